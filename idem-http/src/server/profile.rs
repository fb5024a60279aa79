//! Profiles: the statuses and texts of a service's answers.

use std::time::Duration;

use http::StatusCode;
use idem_core::{Retention, key::KeyPolicy};

const HOUR: Duration = Duration::from_secs(3_600);
/// The part of a profile's day that is the cleanup's.
pub(crate) const OF_CLEANUP: Duration = HOUR;

/// The specification whose texts problems use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    Ietf,
    Guardia,
    Stripe,
}

/// The statuses and texts of a service's answers, and the defaults of its settings.
#[derive(Debug, Clone)]
pub struct Profile {
    pub(crate) name: &'static str,
    pub(crate) words: Words,
    /// The status for a key that was used for another request.
    pub(crate) differs: StatusCode,
    pub(crate) wait: Duration,
    pub(crate) keys_for: Retention,
    /// The bounds of how long records are kept, if the profile has any.
    pub(crate) keys_within: Option<(Duration, Duration)>,
    pub(crate) key_policy: KeyPolicy,
    /// Whether a replay gives the time of the first run in `Last-Modified`.
    pub(crate) last_modified: bool,
    /// Whether a replay of a 2xx has the status 200.
    pub(crate) replays_2xx_as_200: bool,
    pub(crate) retry_after: Duration,
}

impl Profile {
    /// The semantics of the IETF's draft -07: 400 without a key, 422 for another request, 409 without a wait while the first one runs.
    /// Keys are kept for 90 days. The default.
    #[must_use]
    pub fn ietf() -> Self {
        Self {
            name: "ietf",
            words: Words::Ietf,
            differs: StatusCode::UNPROCESSABLE_ENTITY,
            wait: Duration::ZERO,
            keys_for: Retention::For(HOUR * 24 * 90),
            keys_within: None,
            key_policy: KeyPolicy::default(),
            last_modified: false,
            replays_2xx_as_200: false,
            retry_after: Duration::from_secs(1),
        }
    }

    /// The platform rules of Guardia: its codes and reasons, 409 for another request, keys that are UUIDs and are kept for 23
    /// hours (2 to 23 are allowed, so that a cleanup each half hour removes them within 24), `Last-Modified` on replays. A repeat waits for 2 seconds for the first request to end.
    #[must_use]
    pub fn guardia() -> Self {
        Self {
            name: "guardia",
            words: Words::Guardia,
            differs: StatusCode::CONFLICT,
            wait: Duration::from_secs(2),
            keys_for: Retention::For(HOUR * 23),
            keys_within: Some((HOUR * 2, HOUR * 24 - OF_CLEANUP)),
            key_policy: KeyPolicy::Uuid,
            last_modified: true,
            ..Self::ietf()
        }
    }

    /// The form that Stripe's clients know: 400 `idempotency_error` for other parameters, 409 `idempotency_key_in_use` while the first
    /// request runs. Keys are kept for 30 days.
    #[must_use]
    pub fn stripe() -> Self {
        Self {
            name: "stripe",
            words: Words::Stripe,
            differs: StatusCode::BAD_REQUEST,
            keys_for: Retention::For(HOUR * 24 * 30),
            ..Self::ietf()
        }
    }

    /// Gives every 2xx that is replayed the status 200, whatever it was at first, such as 201, for clients that tell a repeat by that. All
    /// other answers are replayed with their own status, or a refusal would look like a success. The answer to a question about a key has
    /// the first status all the same. Off unless this is called: a repeat is otherwise told by `Idempotent-Replayed` alone.
    #[must_use]
    pub fn replay_2xx_as_200(mut self) -> Self {
        self.replays_2xx_as_200 = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}
