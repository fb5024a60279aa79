//! What several commands have in common.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Limit {
    /// How many at most
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    pub(crate) limit: i64,
}

#[derive(Debug, Args)]
pub(crate) struct Yes {
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
}

/// A reason for the audit trail.
pub(crate) fn why(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("say why: it stands in the audit trail".to_owned()) } else { Ok(text.to_owned()) }
}
