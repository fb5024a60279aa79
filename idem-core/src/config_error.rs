//! [`ConfigError`]: a setting that `build()` refuses.

use std::{fmt, time::Duration};

use crate::span::Exactly;

/// A setting that `build()` refuses: which field, its value, and the rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but {rule}")]
pub struct ConfigError {
    /// The setting, as it is written in code.
    pub field: &'static str,
    /// The value that was given, printed.
    pub value: String,
    /// The rule, as the end of a sentence.
    pub rule: &'static str,
}

impl ConfigError {
    /// The field `field` has this value, but `rule`.
    pub fn new(field: &'static str, value: impl fmt::Display, rule: &'static str) -> Self {
        Self { field, value: value.to_string(), rule }
    }

    /// The same of a span of time.
    pub fn span(field: &'static str, value: Duration, rule: &'static str) -> Self {
        Self { field, value: Exactly(value).to_string(), rule }
    }
}
