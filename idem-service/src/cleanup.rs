//! The flags of cleanup in a worker.

use std::time::Duration;

use idem_core::cleanup::CleanupSettings;

use crate::{spans, values::DatabaseUrl};

/// The settings of a worker's cleanup.
#[derive(Debug, Clone, clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
#[command(next_help_heading = "Cleanup")]
pub(crate) struct CleanupFlags {
    /// How often this worker removes expired rows, or off; of all workers on a schema, one does it
    #[arg(long, hide_short_help = true, value_name = "TIME", default_value = "1h", value_parser = every)]
    cleanup_every: Every,

    /// The login that may delete, where the worker's own may not [default: the worker's own]
    #[arg(long, hide_short_help = true, value_name = "URL", hide_env_values = true)]
    pub(crate) cleanup_database_url: Option<DatabaseUrl>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    Off,
    After(Duration),
}

fn every(text: &str) -> Result<Every, String> {
    match text {
        "off" => Ok(Every::Off),
        _ => spans::span(text).map(Every::After).map_err(|error| format!("{error}, or off")),
    }
}

impl CleanupFlags {
    /// How often; `None` where it is off.
    #[cfg(feature = "http")]
    pub(crate) fn every(&self) -> Option<Duration> {
        match self.cleanup_every {
            Every::Off => None,
            Every::After(every) => Some(every),
        }
    }

    /// The settings for the worker; `None` where cleanup is off.
    pub(crate) fn settings(&self) -> Option<CleanupSettings> {
        match self.cleanup_every {
            Every::Off => None,
            Every::After(every) => Some(CleanupSettings::default().every(every)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleanup_is_a_span_or_off() {
        assert_eq!(every("off"), Ok(Every::Off));
        assert_eq!(every("15m"), Ok(Every::After(Duration::from_secs(900))));
        assert!(every("never").is_err() && every("0").is_err());
    }
}
