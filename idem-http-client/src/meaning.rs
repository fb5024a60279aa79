//! [`Meaning`]: what an answer means.

/// The meaning of an answer for the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// It is the operation's answer.
    Answer,
    /// It is the operation's refusal, and another try would give the same.
    Refused,
    /// It concerns the request alone: this try was not carried out. It says nothing about an earlier try.
    NotTaken,
    /// This try was not carried out, but a later one may succeed.
    NotYet,
    /// Another request with this key is in progress, or the server does not know its outcome yet: ask again.
    InProgress,
    /// It failed midway and may have been carried out or not. Sending the same request again shows which.
    Failed,
    /// It failed midway, and the provider repeats this answer every time.
    KeptFailure,
    /// The key was used for another request.
    KeyReused,
    /// It was carried out, and the answer is no longer kept.
    AnswerGone,
}
