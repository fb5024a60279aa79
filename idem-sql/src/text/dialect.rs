//! The two dialects of the texts.

use crate::text::name::SchemaName;

/// Which database a text is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// PostgreSQL 14 and later; `{schema}` is the quoted name of a schema.
    Postgres,
    /// SQLite 3.37 and later; `{schema}` is the prefix of every name.
    Sqlite,
}

impl Dialect {
    /// Puts the schema's name into a text.
    #[must_use]
    pub fn render(self, template: &str, schema: &SchemaName) -> String {
        match self {
            Self::Postgres => template.replace("{schema}", &schema.quoted()),
            Self::Sqlite => template.replace("{schema}", schema.as_str()),
        }
    }
}
