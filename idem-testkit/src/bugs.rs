//! Plants a bug of idem-core in a child process, by an environment variable: `IDEM_BUG=AnswersBeforeCommit`.

use std::env;

use idem_core::bugs::{self, Bug};

/// The environment variable that [`plant_from_env`] reads.
pub const VARIABLE: &str = "IDEM_BUG";

/// No bug has the name that the variable has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE} names no bug: {name:?}")]
pub struct UnknownBugError {
    /// The name that was given.
    pub name: String,
}

/// Plants the bug that [`VARIABLE`] names in all threads, at the start of a child process. Without the variable none is planted.
///
/// # Errors
/// [`UnknownBugError`]; better end than test nothing.
pub fn plant_from_env() -> Result<Option<Bug>, UnknownBugError> {
    let Some(name) = env::var_os(VARIABLE) else { return Ok(None) };
    let name = name.to_string_lossy();
    let bug = Bug::named(&name).ok_or_else(|| UnknownBugError { name: name.to_string() })?;
    bugs::plant_everywhere(bug);
    Ok(Some(bug))
}
