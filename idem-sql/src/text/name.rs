//! The name of the schema that holds idem's tables.

use std::{fmt, str::FromStr};

/// The longest name that PostgreSQL keeps whole; it cuts longer ones silently, so that two names could meet.
const LENGTH_MAX: usize = 63;

/// The name of the schema (in SQLite: the prefix) of idem's tables, checked once so that it can stand in a statement.
///
/// No value that comes from outside is ever pasted into SQL but this one, and only [`SchemaName::quoted`].
///
/// ```
/// use idem_sql::SchemaName;
///
/// let name: SchemaName = "billing_idem".parse()?;
/// assert_eq!(name.quoted(), r#""billing_idem""#);
/// assert!("billing; DROP TABLE orders".parse::<SchemaName>().is_err());
/// # Ok::<(), idem_sql::SchemaNameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SchemaName(String);

impl SchemaName {
    /// The name that is used unless another is given.
    pub const DEFAULT: &'static str = "idem";

    /// Checks a name: `[a-z_][a-z0-9_]{0,62}`, and neither of the databases' own reserved prefixes.
    ///
    /// # Errors
    /// [`SchemaNameError`] names the value and the rule that it breaks.
    pub fn new(name: impl Into<String>) -> Result<Self, SchemaNameError> {
        let name = name.into();
        match broken_rule(&name) {
            None => Ok(Self(name)),
            Some(rule) => Err(SchemaNameError { value: name, rule }),
        }
    }

    /// The plain name, as it stands in a catalogue's column or in the name of an SQLite table.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a quoted identifier, so that a name that is also a keyword works.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

fn broken_rule(name: &str) -> Option<&'static str> {
    let mut bytes = name.bytes();
    match bytes.next() {
        None => return Some("must not be empty"),
        Some(b'a'..=b'z' | b'_') => {}
        Some(_) => return Some("must begin with a lower-case letter of ASCII or an underscore"),
    }
    if !bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')) {
        return Some("must hold only lower-case letters of ASCII, digits and underscores");
    }
    if name.len() > LENGTH_MAX {
        return Some("must not be longer than 63 bytes");
    }
    // The databases refuse these themselves, but only in the middle of a migration.
    if name.starts_with("pg_") {
        return Some("must not begin with pg_, which PostgreSQL reserves");
    }
    if name == "sqlite" || name.starts_with("sqlite_") {
        return Some("must not be a prefix that SQLite reserves");
    }
    None
}

impl Default for SchemaName {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SchemaName {
    type Err = SchemaNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

/// A schema name that was refused: its value and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schema name {value:?} {rule}")]
#[non_exhaustive]
pub struct SchemaNameError {
    /// The name that was given.
    pub value: String,
    /// The rule that it breaks, as the end of a sentence.
    pub rule: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_plain_names_are_taken() {
        for name in ["idem", "_", "_idem", "a", "billing_2", "select", "sqlite3", &"a".repeat(63)] {
            assert_eq!(SchemaName::new(name).unwrap().as_str(), name);
        }
        assert_eq!(SchemaName::default(), SchemaName::new("idem").unwrap());
        assert_eq!(SchemaName::new("select").unwrap().quoted(), "\"select\"");
    }

    #[test]
    fn s6_hostile_names_are_refused_with_value_and_rule() {
        let hostile = [
            "",
            "Idem",
            "1dem",
            "idem-2",
            "idem 2",
            "idem\"",
            "idem'; DROP TABLE x; --",
            "idem\0",
            "idem\n",
            "idém",
            "é",
            "{}",
            "*",
            "a.b",
            "pg_temp",
            "pg_",
            "sqlite",
            "sqlite_x",
            &"a".repeat(64),
            &"é".repeat(255),
        ];
        for name in hostile {
            let error = SchemaName::new(name).unwrap_err();
            assert_eq!(error.value, name);
            assert!(error.to_string().contains(&format!("{name:?} must")), "{error}");
        }
    }
}
