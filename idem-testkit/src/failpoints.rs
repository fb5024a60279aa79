//! Arms the failpoints of idem-core in a child process, by an environment variable.
//!
//! ```text
//! IDEM_FAILPOINTS="claimed=3*abort;guard=error;commit_sent=10+1*sleep(250)"
//! ```
//!
//! Entries are separated by `;`. Each is `point=[skip+][times*]action`: the first `skip` passes do nothing, the next
//! `times` do `action`, all later ones do nothing again. Without `skip` it begins with the first pass, without `times`
//! it never ends. The points are those of [`idem_core::failpoint::ALL`], [`OF_REPLAYS`](idem_core::failpoint::OF_REPLAYS), [`REFUSED`](idem_core::failpoint::REFUSED) and [`PUT_ASIDE`](idem_core::failpoint::PUT_ASIDE), and the actions:
//!
//! | action | what happens at the point |
//! |---|---|
//! | `abort` | the process dies at once, without unwinding |
//! | `panic` | a panic |
//! | `error` | an error is answered, as if the connection had failed |
//! | `sleep(250)` | it takes 250 ms longer |
//! | `park` | it never goes on; the test kills the process there |

use std::{env, sync::Arc, time::Duration};

use idem_core::failpoint::{self, Action};
use tokio::sync::Notify;

/// The environment variable that [`arm_from_env`] reads.
pub const VARIABLE: &str = "IDEM_FAILPOINTS";

/// One armed failpoint.
#[derive(Debug, Clone)]
pub struct Armed {
    /// Its name, one of [`idem_core::failpoint::ALL`].
    pub point: &'static str,
    /// How many passes do nothing at first.
    pub skip: u64,
    /// How many passes then do the action.
    pub times: u64,
    /// The action.
    pub action: Action,
}

/// A text that arms no failpoints. Nothing was armed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseFailpointsError {
    /// There is no failpoint of this name.
    #[error("there is no failpoint {name:?}; there are {}, {}", failpoint::ALL.join(", "), failpoint::REFUSED)]
    UnknownPoint {
        /// The name that was given.
        name: String,
    },
    /// There is no such action.
    #[error("{action:?} is no action; there are abort, panic, error, sleep(milliseconds) and park")]
    UnknownAction {
        /// The action that was given.
        action: String,
    },
    /// A number of passes is none.
    #[error("{number:?} is no number of passes: skip is a whole number, times one from 1")]
    Number {
        /// The number that was given.
        number: String,
    },
    /// An entry has no `=`.
    #[error("{entry:?} is not of the form point=[skip+][times*]action")]
    Form {
        /// The entry.
        entry: String,
    },
    /// The variable is not UTF-8.
    #[error("{VARIABLE} is not UTF-8")]
    NotText,
}

/// Arms what [`VARIABLE`] says, at the start of a child process. Without the variable nothing is armed.
///
/// # Errors
/// [`ParseFailpointsError`]; better end than test nothing.
pub fn arm_from_env() -> Result<Vec<Armed>, ParseFailpointsError> {
    match env::var(VARIABLE) {
        Ok(text) => arm(&text),
        Err(env::VarError::NotPresent) => Ok(Vec::new()),
        Err(env::VarError::NotUnicode(_)) => Err(ParseFailpointsError::NotText),
    }
}

/// Arms what `text` says, beside what is armed already; a second entry for a point replaces the first. Answers the
/// points that it armed; a parked pass goes on when its [`Notify`] is notified.
///
/// # Errors
/// [`ParseFailpointsError`], and nothing was armed.
pub fn arm(text: &str) -> Result<Vec<Armed>, ParseFailpointsError> {
    let all = parse(text)?;
    for armed in &all {
        failpoint::arm(armed.point, armed.skip, armed.times, armed.action.clone());
    }
    Ok(all)
}

/// Reads a text as [`arm`] does, and arms nothing.
///
/// # Errors
/// [`ParseFailpointsError`] names what it does not understand.
pub fn parse(text: &str) -> Result<Vec<Armed>, ParseFailpointsError> {
    text.split(';').map(str::trim).filter(|entry| !entry.is_empty()).map(parse_entry).collect()
}

fn parse_entry(entry: &str) -> Result<Armed, ParseFailpointsError> {
    let form = || ParseFailpointsError::Form { entry: entry.to_owned() };
    let (name, rest) = entry.split_once('=').ok_or_else(form)?;
    let known = failpoint::ALL
        .iter()
        .copied()
        .chain(failpoint::OF_REPLAYS)
        .chain([failpoint::REFUSED, failpoint::PUT_ASIDE])
        .find(|point| *point == name.trim());
    let point = known.ok_or_else(|| ParseFailpointsError::UnknownPoint { name: name.trim().to_owned() })?;
    let (skip, rest) = rest.split_once('+').map_or(Ok((0, rest)), |(skip, rest)| Ok((number(skip, 0)?, rest)))?;
    let (times, action) =
        rest.split_once('*').map_or(Ok((u64::MAX, rest)), |(times, rest)| Ok((number(times, 1)?, rest)))?;
    Ok(Armed { point, skip, times, action: parse_action(action.trim())? })
}

fn number(text: &str, min: u64) -> Result<u64, ParseFailpointsError> {
    let parsed = text.trim().parse().ok().filter(|number| *number >= min);
    parsed.ok_or_else(|| ParseFailpointsError::Number { number: text.trim().to_owned() })
}

fn parse_action(action: &str) -> Result<Action, ParseFailpointsError> {
    let unknown = || ParseFailpointsError::UnknownAction { action: action.to_owned() };
    match action {
        "abort" => Ok(Action::Abort),
        "panic" => Ok(Action::Panic),
        "error" => Ok(Action::Error),
        "park" => Ok(Action::Park(Arc::new(Notify::new()))),
        other => {
            let milliseconds =
                other.strip_prefix("sleep(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(unknown)?;
            Ok(Action::Sleep(Duration::from_millis(number(milliseconds, 0)?)))
        }
    }
}

#[cfg(test)]
mod tests;
