//! The three ways in which an intent ends.

use std::{fmt, time::SystemTime};

use idem_core::IdempotencyKey;

use super::Answer;

/// How the tries of an intent have ended. There is no fourth way, and none of the three is a guess.
#[derive(Debug)]
#[must_use]
pub enum Ended {
    /// The answer of the operation: 2xx, or 303.
    Known(Answer),
    /// The operation was not carried out, and the answer says why. If the answer to an earlier try was lost, this one is marked as a repeat;
    /// from a provider that marks none, it is not a 409, 410 or 412, which that try may have caused. An answer that does not concern the key,
    /// such as a 401 or a redirect, then ends as [`Indeterminate`](Self::Indeterminate).
    Refused(Answer, Refusal),
    /// The operation may have been carried out. Keep this value and find out; never send the request under another key.
    Indeterminate(Indeterminate),
}

/// Why an operation was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The operation itself was refused: a declined card, a rule of the business. The same key gives the same answer for as long as the
    /// provider keeps it.
    Operation,
    /// The request was malformed or not allowed, so the operation never began. Correct the request; the provider's documentation says
    /// whether the corrected one may use the same key.
    Request,
    /// The key was used for another request before: two intents share it, or one was changed after its first try. This is a bug in the program.
    KeyReused,
    /// The server accepted none of the tries in time, and said so each time. The same intent may be sent again.
    Busy,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operation => "the operation was refused",
            Self::Request => "the request was not accepted",
            Self::KeyReused => "the key was used for another request",
            Self::Busy => "the server was too busy to take it",
        })
    }
}

/// Why the outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Undecided {
    /// The [deadline](super::Retries::deadline) has passed, or all tries were used up.
    Deadline,
    /// The provider may have forgotten the key, or may forget it before another try could end. Another try could carry the operation out a
    /// second time.
    Memory,
    /// The time of the first try is in the future by this machine's clock, so the age of the key is not known. Nothing was sent.
    Clock,
    /// The provider failed midway, and repeats that answer for this key every time.
    KeptFailure,
    /// One try was left without an answer, and a later one was not accepted, which says nothing about the first.
    NotAccepted,
    /// It was done, and the answer is no longer kept.
    AnswerGone,
    /// The answer is larger than [`answer_bytes_max`](super::Retries::answer_bytes_max).
    AnswerTooLarge,
}

impl Undecided {
    /// The advice to the person or program that has to find out.
    #[must_use]
    pub const fn what_to_do(self) -> &'static str {
        match self {
            Self::Deadline => {
                "send the same intent again while the provider remembers its key, with the time of the first try (Intent::first_tried_at)"
            }
            Self::Memory => {
                "do not send it again: look it up with the provider, by your own reference or its key, and note what is found"
            }
            Self::Clock => "set this machine's clock right, then send the same intent again",
            Self::KeptFailure => {
                "do not send it again under this key: look it up with the provider, or wait for its event, and note what is found"
            }
            Self::NotAccepted => {
                "mend what was not accepted, such as credentials, and send the same intent again, with the time of the first try"
            }
            Self::AnswerGone => {
                "it was done: read what it made, under the location that is given or your own reference"
            }
            Self::AnswerTooLarge => {
                "it has the status of the last answer: send the same intent again with room for a larger one"
            }
        }
    }
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "no answer came in time",
            Self::Memory => "the provider may have forgotten the key",
            Self::Clock => "the first try lies in the future of this clock",
            Self::KeptFailure => "the provider keeps a failure as its answer",
            Self::NotAccepted => "after a try without an answer, another was not accepted",
            Self::AnswerGone => "the answer is no longer kept",
            Self::AnswerTooLarge => "the answer is too large",
        })
    }
}

/// An intent that may or may not have been carried out. `Display` says so in one line, with the key as the engine
/// [shows keys](idem_core::key::hide_keys_with).
#[derive(Debug)]
#[non_exhaustive]
pub struct Indeterminate {
    /// The time of the first try.
    pub since: SystemTime,
    /// The key that was sent.
    pub key: IdempotencyKey,
    /// Why the outcome is not known, and [what to do](Undecided::what_to_do).
    pub why: Undecided,
    /// How many tries this call has made. Zero means that another try was too risky from the start.
    pub tries: u32,
    /// The last answer, if there was one.
    pub last: Option<Answer>,
    /// The server's knowledge of the key, if it was asked and answered.
    pub state: Option<KeyState>,
}

impl fmt::Display for Indeterminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} tries under key {}", self.why, self.tries, self.key)?;
        if let Some(state) = &self.state {
            write!(f, "; the server says of it: {}", state.kind)?;
        }
        write!(f, "; {}", self.why.what_to_do())
    }
}

/// A server's knowledge of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyState {
    /// The state.
    pub kind: KeyStateKind,
    /// The operation that the server has told of, by method and path. Without it, what is told may be of another operation with the same
    /// key, and nothing follows from it.
    pub route: Option<String>,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// The URL of the resource that the operation made.
    pub location: Option<String>,
    /// When the operation was carried out or refused.
    pub processed_at: Option<SystemTime>,
    /// Until when at least the server knows the key; `None` if it has not said so, or knows it for ever.
    pub key_expires: Option<SystemTime>,
    /// Until when the server gives the answer again, by its settings; `None` as above.
    pub answer_expires: Option<SystemTime>,
}

/// The states of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyStateKind {
    /// The server has no record of the key. A request that is still on its way may make one later.
    Unknown,
    /// A request with this key is being worked on.
    InProgress,
    /// It was done.
    Completed,
    /// The operation was refused permanently.
    Failed,
    /// The server itself does not know, for example because it cannot ask its database.
    Uncertain,
    /// It was done, and the answer is no longer kept.
    AnswerNotKept,
}

impl KeyStateKind {
    /// The word for this state in idem's answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Uncertain => "uncertain",
            Self::AnswerNotKept => "answer_not_kept",
        }
    }

    /// The state that this word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let all =
            [Self::Unknown, Self::InProgress, Self::Completed, Self::Failed, Self::Uncertain, Self::AnswerNotKept];
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl fmt::Display for KeyStateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
