//! Of `idem outbox`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use idem_core::outbox::{EventName, EventState};

use super::shared::{Limit, Yes, why};

#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// Destinations with their backlog, and the oldest events
    List {
        /// Events for this destination
        #[arg(long, value_name = "NAME")]
        destination: Option<String>,
        /// Events that are pending, waiting (for their next try), failed, or behind one of those
        #[arg(long, value_name = "STATE", value_parser = state)]
        state: Option<EventState>,
        #[command(flatten)]
        limit: Limit,
    },
    /// One event; the audit trail notes that you have read it
    Show {
        /// Its name, as list prints it
        event: EventName,
        /// With its payload, which the trail notes too
        #[arg(long)]
        payload: bool,
    },
    /// Have failed events, and those that wait for their next try, sent now; their attempts count anew
    Retry(RetryEvents),
    /// Remove events without sending them, and let their followers go; pending ones only while their destination is paused
    Skip(SkipEvents),
    /// Stop the sending to a destination; running relays obey within seconds, and its events are kept
    Pause {
        /// The destination
        destination: String,
        /// Why, for the audit trail
        #[arg(long, value_name = "WHY", value_parser = why)]
        reason: String,
    },
    /// Start the sending to a destination again
    Resume {
        /// The destination
        destination: String,
    },
    /// Send events until stopped, beside the workers or for workers with --relay off; in builds with a broker's feature
    Relay {
        /// Which database, destinations and brokers, in TOML: docs/internals/relay.md has all of it
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// Which events.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which_events").required(true).args(["event", "failed"]))]
pub(crate) struct WhichEvents {
    /// Their names, as list prints them: 4711:KEY
    pub(crate) event: Vec<EventName>,
    /// All that have failed, for this destination
    #[arg(long, value_name = "DESTINATION")]
    pub(crate) failed: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RetryEvents {
    #[command(flatten)]
    pub(crate) which: WhichEvents,
    /// Also those of which a copy may have been sent so long ago that their receivers no longer know them, which lets them
    /// take effect twice
    #[arg(long)]
    pub(crate) stale: bool,
    /// Only say how many there are
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

#[derive(Debug, Args)]
pub(crate) struct SkipEvents {
    #[command(flatten)]
    pub(crate) which: WhichEvents,
    /// Why, for the audit trail
    #[arg(long = "because", value_name = "WHY", value_parser = why)]
    pub(crate) because: String,
    /// Only say how many there are
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) yes: Yes,
}

fn state(text: &str) -> Result<EventState, String> {
    let words = || EventState::ALL.map(EventState::as_str).join(", ");
    EventState::ALL
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| format!("it must be one of {}", words()))
}
