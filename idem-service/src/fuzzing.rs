//! An entry point for the properties of any input.

use clap::{Args as _, Command};

use crate::{config, settings::Settings};

/// The flags that a file of settings stands for.
///
/// # Errors
/// Why it cannot be read, in the words of the refusal.
pub fn settings(text: &str) -> Result<Vec<String>, String> {
    let command = Settings::augment_args(Command::new("worker")).arg(config::flag());
    let given =
        command.clone().ignore_errors(true).try_get_matches_from(["worker"]).map_err(|error| error.to_string())?;
    let flags = config::added(&config::parsed(text)?, &command, &given)?;
    Ok(flags.iter().map(|flag| flag.to_string_lossy().into_owned()).collect())
}
