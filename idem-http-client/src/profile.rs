//! How each provider treats a key, as data, with its sources.

mod providers;

use std::{borrow::Cow, fmt, time::Duration};

use http::{HeaderName, StatusCode};
use idem_core::outbox::IdForm;

use super::meaning::Meaning;

/// Where a provider looks for the key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPlace {
    /// A header, with the key unchanged.
    Header(HeaderName),
    /// A header, with the key as a string of structured fields: in quotes, as the IETF's draft has it.
    QuotedHeader(HeaderName),
    /// A member of the JSON object that is the body.
    Member(Cow<'static, str>),
}

/// A word in an answer's body that says more than its status.
#[derive(Debug, Clone)]
pub(super) struct Word {
    /// A JSON pointer.
    pub(super) pointer: Cow<'static, str>,
    /// The text at the pointer, or the last segment of the URI there.
    pub(super) word: Cow<'static, str>,
    pub(super) meaning: Meaning,
}

/// The header in which a provider says whether a failure may be tried again.
#[derive(Debug, Clone)]
pub(super) struct RetryHeader {
    pub(super) header: HeaderName,
    /// Whether an answer without the header may be tried again, if its status allows it.
    pub(super) unless_said: bool,
}

/// How a provider accepts keys, how long it remembers them, and what its answers mean. It is data: there is a constructor for each provider
/// whose documentation was read, and a builder for the others.
///
/// A profile fixes the form in which [derived](super::Intent::of) keys are written and never changes it, because another form is another
/// key.
#[derive(Clone)]
pub struct Profile {
    pub(super) name: Cow<'static, str>,
    pub(super) place: KeyPlace,
    pub(super) form: IdForm,
    pub(super) key_bytes_max: usize,
    memory: Duration,
    margin: Duration,
    statuses: Vec<(StatusCode, Meaning)>,
    pub(super) words: Vec<Word>,
    pub(super) retry_header: Option<RetryHeader>,
    pub(super) replayed: Option<HeaderName>,
    pub(super) status_endpoint: Option<String>,
}

/// The longest default margin.
const MARGIN_MAX: Duration = Duration::from_secs(3_600);

/// The default margin is the memory divided by this.
const MARGIN_PART: u32 = 10;

impl Profile {
    /// A provider of your own: the key in this place, remembered for at least `memory` after its first use. There is no default for the
    /// memory, because a try after it is a second order. Statuses have the meanings of [`meaning`](Self::meaning) unless you set others.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>, place: KeyPlace, memory: Duration) -> Self {
        Self {
            name: name.into(),
            place,
            form: IdForm::V8,
            key_bytes_max: 255,
            memory,
            margin: (memory / MARGIN_PART).min(MARGIN_MAX),
            statuses: Vec::new(),
            words: Vec::new(),
            retry_header: None,
            replayed: None,
            status_endpoint: None,
        }
    }

    /// Sets the form of derived keys. Do not change it while the provider is in use.
    #[must_use]
    pub fn form(mut self, form: IdForm) -> Self {
        self.form = form;
        self
    }

    /// Sets how long a key may be, in bytes. A longer one is refused before anything is sent, and never cut.
    #[must_use]
    pub fn key_bytes_max(mut self, bytes: usize) -> Self {
        self.key_bytes_max = bytes;
        self
    }

    /// Sets how long before the end of the memory the last try ends. It covers the difference between two machines' clocks and the time on the
    /// network.
    /// Defaults to a tenth of the memory, and to an hour at most.
    #[must_use]
    pub fn with_margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the meaning of a status.
    #[must_use]
    pub fn status(mut self, status: StatusCode, meaning: Meaning) -> Self {
        self.statuses.retain(|(known, _)| *known != status);
        self.statuses.push((status, meaning));
        self
    }

    /// Sets the meaning of an answer of 4xx or 5xx whose JSON body has `word` at `pointer`, or a URI there whose last segment is `word`. It
    /// counts for more than the status.
    #[must_use]
    pub fn word(
        mut self,
        pointer: impl Into<Cow<'static, str>>,
        word: impl Into<Cow<'static, str>>,
        meaning: Meaning,
    ) -> Self {
        self.words.push(Word { pointer: pointer.into(), word: word.into(), meaning });
        self
    }

    /// Sets the header in which the provider says, by `true` or `false`, whether a failure may be tried again, and whether a failure without
    /// the header may be, if its status allows it.
    #[must_use]
    pub fn retry_header(mut self, header: HeaderName, unless_said: bool) -> Self {
        self.retry_header = Some(RetryHeader { header, unless_said });
        self
    }

    /// Sets the header that is `true` on a repeated answer.
    #[must_use]
    pub fn replayed(mut self, header: HeaderName) -> Self {
        self.replayed = Some(header);
        self
    }

    /// Lets the client ask the server about a key with `GET {path}/idempotency/{key}`, on the authority and with the headers of the request. `path`
    /// is empty, or begins with a slash.
    #[must_use]
    pub fn status_endpoint(mut self, path: impl Into<String>) -> Self {
        self.status_endpoint = Some(path.into());
        self
    }

    /// The provider's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long at least the provider remembers a key after its first use.
    #[must_use]
    pub fn memory(&self) -> Duration {
        self.memory
    }

    /// How long before the end of the memory the last try ends.
    #[must_use]
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// The meaning of a status if neither a header nor the body says more.
    ///
    /// By default 2xx and 303 are the answer; any other 3xx means that the order was not taken here, so it is
    /// [`NotTaken`](Meaning::NotTaken); 425 and 429 mean later; a 409 is [`InProgress`](Meaning::InProgress) if it has a
    /// `Retry-After`, and otherwise the operation's refusal, for which this answers `Refused`; 402, 410, 412, 422 and the other 4xx
    /// that concern the operation are refusals; those that concern the request, such as 400, 401, 403, 404, 405 and 413, are
    /// [`NotTaken`](Meaning::NotTaken); 408 and 5xx leave the outcome open and are tried again.
    #[must_use]
    pub fn meaning(&self, status: StatusCode) -> Meaning {
        let told = self.statuses.iter().find(|(known, _)| *known == status);
        told.map_or_else(|| by_default(status), |(_, meaning)| *meaning)
    }
}

fn by_default(status: StatusCode) -> Meaning {
    match status.as_u16() {
        200..=299 | 303 => Meaning::Answer,
        425 | 429 => Meaning::NotYet,
        // A route may be missing during a deploy, so 404 says no more than 403 does; nor does one that has moved.
        300..=399 | 400 | 401 | 403..=407 | 411 | 413..=415 | 417 | 421 | 426 | 428 | 431 | 451 => Meaning::NotTaken,
        408 | 500..=599 => Meaning::Failed,
        400..=499 => Meaning::Refused,
        // Not a status of HTTP.
        _ => Meaning::Failed,
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("place", &self.place)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_meaning_by_default() {
        let profile = Profile::new("mine", KeyPlace::Header(HeaderName::from_static("x-key")), Duration::from_secs(60));
        let meaning = |status: u16| profile.meaning(StatusCode::from_u16(status).expect("a status"));
        for (statuses, wanted) in [
            (vec![200, 201, 202, 204, 303], Meaning::Answer),
            (vec![425, 429], Meaning::NotYet),
            (vec![301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 413, 415, 431], Meaning::NotTaken),
            (vec![402, 409, 410, 412, 422], Meaning::Refused),
            (vec![408, 500, 502, 503, 504, 599], Meaning::Failed),
        ] {
            for status in statuses {
                assert_eq!(meaning(status), wanted, "{status}");
            }
        }
        let own = profile
            .clone()
            .status(StatusCode::NOT_FOUND, Meaning::Refused)
            .status(StatusCode::NOT_FOUND, Meaning::NotYet);
        assert_eq!(own.meaning(StatusCode::NOT_FOUND), Meaning::NotYet);
    }

    #[test]
    fn the_margin_is_a_tenth_and_an_hour_at_most() {
        let with = |memory| Profile::new("mine", KeyPlace::Member("k".into()), Duration::from_secs(memory)).margin();
        assert_eq!((with(20), with(86_400 * 30)), (Duration::from_secs(2), Duration::from_secs(3_600)));
    }
}
