//! The values of flags, variables and files, as parsers for settings of your own: `#[arg(value_parser = values::span)]`.

use std::fmt;
#[cfg(feature = "http")]
use std::path::PathBuf;

use idem_core::{ConfigError, outbox::CloudEvents};
use idem_sql::SchemaName;

pub use crate::{sizes::size, spans::span};

/// The database's URL, which may hold a password: `Debug` prints nothing of it.
#[derive(Clone)]
pub(crate) struct DatabaseUrl(String);

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl DatabaseUrl {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// `name`, unless the URL or `PGAPPNAME` has a name for the database's list of activities.
    pub(crate) fn application_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        let is_given = self.0.contains("application_name=");
        (!is_given && std::env::var_os("PGAPPNAME").is_none()).then_some(name)
    }

    /// The part before the colon.
    pub(crate) fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl")
    }
}

/// The words for [`CloudEvents`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EventFormat {
    #[default]
    Binary,
    Structured,
}

impl EventFormat {
    /// # Errors
    /// [`ConfigError`] if the source is no URI reference.
    pub(crate) fn cloud_events(self, source: Option<&str>) -> Result<CloudEvents, ConfigError> {
        let form = match self {
            Self::Binary => CloudEvents::binary(),
            Self::Structured => CloudEvents::structured(),
        };
        match source {
            Some(source) => form.source(source),
            None => Ok(form),
        }
    }
}

pub(crate) fn schema(text: &str) -> Result<SchemaName, String> {
    SchemaName::new(text).map_err(|error| error.to_string())
}

/// `on` or `off`.
///
/// # Errors
/// The form that is needed.
pub fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it must be on or off".to_owned()),
    }
}

/// `1=/run/secrets/hashes`.
#[cfg(feature = "http")]
pub(crate) fn numbered_file(text: &str) -> Result<(u16, PathBuf), String> {
    let parsed = text.split_once('=').and_then(|(number, file)| Some((number.parse().ok()?, PathBuf::from(file))));
    parsed.ok_or_else(|| "it must be NUMBER=FILE, such as 1=/run/secrets/hashes".to_owned())
}

/// `scheme://user:password@host`, or a setting whose name ends in `password` and whose value names no file.
pub(crate) fn has_password(value: &str) -> bool {
    let authority = value.split_once("://").and_then(|(_, rest)| rest.split(['/', '?']).next());
    let user = authority.and_then(|authority| authority.rsplit_once('@'));
    user.is_some_and(|(user, _)| user.contains(':'))
        || value.split("password=").skip(1).any(|rest| !rest.is_empty() && !rest.starts_with('@'))
}
