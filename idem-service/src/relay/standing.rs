//! [`Standing`]: how a destination is shown.

use idem_core::relay::Relayed;
use serde::Serialize;

/// A destination in the JSON of `/readyz`.
#[derive(Debug, Serialize)]
pub(crate) struct Standing {
    destination: String,
    /// Whether this relay has it, waits for its turn, or must not.
    standing: &'static str,
    /// Why nothing goes there, and for how many seconds nothing has.
    trouble: Option<String>,
    trouble_for: Option<u64>,
    pending: Option<u64>,
    failed: Option<u64>,
    /// The age of the oldest event that may go, in seconds.
    oldest: Option<u64>,
}

impl From<Relayed> for Standing {
    fn from(relayed: Relayed) -> Self {
        let (trouble, trouble_for) = relayed.trouble.map(|(why, time)| (why, time.as_secs())).unzip();
        let backlog = relayed.backlog.as_ref();
        Self {
            standing: relayed.standing.as_str(),
            trouble,
            trouble_for,
            pending: backlog.map(|backlog| backlog.pending),
            failed: backlog.map(|backlog| backlog.failed),
            oldest: backlog.and_then(|backlog| backlog.oldest).map(|age| age.as_secs()),
            destination: relayed.destination,
        }
    }
}
