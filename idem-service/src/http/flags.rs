//! The flags and variables that all services over HTTP have in common, beside those of every process.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use idem_core::{Retention, outbox::CloudEvents};

use crate::{cleanup::CleanupFlags, database::DatabaseSettings, flags::Flags, sizes, spans};

/// The settings of a service over HTTP. Texts and defaults stand in `--help`.
#[derive(Debug, clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
pub(crate) struct HttpFlags {
    #[command(flatten)]
    pub(crate) common: Flags,

    /// Where requests are served; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,

    /// How keys are answered for: ietf, the draft of the IETF; guardia, with its codes and times; or stripe, for its clients
    #[arg(long, value_name = "NAME", default_value = "ietf")]
    pub(crate) profile: ProfileFlag,

    /// Give each 2xx that is replayed the status 200, such as a first 201; all others keep theirs
    #[arg(long, hide_short_help = true)]
    pub(crate) replay_2xx_as_200: bool,

    /// How long a request waits for another one with its key [default: as the profile says; ietf does not wait]
    #[arg(long, hide_short_help = true, value_name = "TIME", value_parser = spans::span)]
    pub(crate) in_progress_wait: Option<Duration>,

    /// How long a key is known, and its operation does not run again [default: as the profile says]
    #[arg(long, value_name = "TIME", value_parser = spans::retention)]
    pub(crate) keys_for: Option<Retention>,

    /// How long the answer of an operation is kept and given again; then repeats learn only that it was done
    /// [default: 24h, or as long as its key where that is less]
    #[arg(long, value_name = "TIME", value_parser = spans::retention)]
    pub(crate) answers_for: Option<Retention>,

    /// Make fingerprints of requests with the secret in this file, NUMBER=FILE, the same in all instances; repeatable, the first
    /// counts for new records and the others for those that were made with them. Add another one behind the first until all
    /// instances know it, and only then put it in front [default: none, with a warning]
    #[arg(long, value_name = "NUMBER=FILE", value_parser = crate::values::numbered_file)]
    pub(crate) hash_secret: Vec<(u16, PathBuf)>,

    /// Bodies hold no secret: make fingerprints by plain hashes where there is no --hash-secret, and do not warn of it
    #[arg(long)]
    pub(crate) plain_hashes: bool,

    /// The largest body of a request
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = sizes::size)]
    pub(crate) body_max: usize,

    /// How many requests run side by side, each on a connection of its own [default: 16, or one on SQLite]
    #[arg(long, value_name = "COUNT", value_parser = sizes::count(1_usize..=1024))]
    pub(crate) lanes: Option<usize>,

    /// How many requests of one tenant may be in hand at once, repeats that wait included; one more gets 429
    #[arg(long, hide_short_help = true, value_name = "COUNT", default_value = "1000", value_parser = sizes::count(1_usize..=1_000_000))]
    pub(crate) tenant_requests_max: usize,

    /// How many requests of one tenant may come in a second to this process, as a mean, repeats included; as many may come at once after a
    /// pause, and one that comes sooner gets 429 [default: no limit]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) tenant_rate_max: Option<u32>,

    #[command(flatten)]
    pub(crate) cleanup: CleanupFlags,

    #[cfg(feature = "kafka")]
    #[command(flatten)]
    pub(crate) kafka: crate::kafka::Announcing,
}

/// The flag's words for a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileFlag {
    Ietf,
    Guardia,
    Stripe,
}

impl HttpFlags {
    /// How events are written where the application does not say. Guardia's rules want the key in the payload of an event.
    pub(super) fn events(&self) -> CloudEvents {
        match self.profile {
            ProfileFlag::Guardia => CloudEvents::structured(),
            ProfileFlag::Ietf | ProfileFlag::Stripe => CloudEvents::binary(),
        }
    }

    /// Connections are called after the service.
    pub(crate) fn for_database<'s>(&'s self, name: &'s str) -> DatabaseSettings<'s> {
        self.common.for_database(name, &self.cleanup)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    /// The rules of guardia want the key in the payload.
    #[test]
    fn guardias_events_are_structured_by_default() {
        for (given, is_structured) in
            [(&["--profile", "guardia"][..], true), (&["--profile", "stripe"], false), (&[], false)]
        {
            let line = ["service", "--database-url", "sqlite://x"].iter().chain(given);
            let matches = HttpFlags::augment_args(Command::new("service")).try_get_matches_from(line).unwrap();
            let flags = HttpFlags::from_arg_matches(&matches).unwrap();
            assert_eq!(flags.events().is_structured(), is_structured, "{given:?}");
        }
    }
}
