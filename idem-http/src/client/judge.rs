//! What an answer means. A pure function of the profile and the answer.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, header::RETRY_AFTER};
use serde_json::Value;

use super::{Profile, window::wall_clock};

/// What an answer says of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// It is the operation's answer.
    Answer,
    /// It is the operation's refusal, and another try gives the same.
    Refused,
    /// It speaks of the request alone: this try was not carried out. It says nothing of an earlier try.
    NotTaken,
    /// This try was not carried out, and a later one may be.
    NotYet,
    /// Another request with this key is worked on, or its outcome is not known to the server yet: ask again.
    InProgress,
    /// It failed on the way: it may have been done, or not. The same request tells.
    Failed,
    /// It failed on the way, and the provider repeats this answer for ever.
    KeptFailure,
    /// The key was used for another request.
    KeyReused,
    /// It was done, and the answer is gone.
    AnswerGone,
}

/// An answer, judged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) meaning: Meaning,
    /// When the server wants the next try.
    pub(super) after: Option<Duration>,
    /// Whether the server has answered before and gives that answer again; `None` where it does not say.
    pub(super) replayed: Option<bool>,
}

/// Judges an answer: by what its body says, else by its status, and then by what the provider says of another try.
pub(super) fn judge(profile: &Profile, response: &Response<Bytes>) -> Judged {
    let (status, headers) = (response.status(), response.headers());
    let after = retry_after(headers);
    let of_the_status = profile.meaning(status);
    // A conflict of the business has nothing to wait for.
    let is_worked_on = of_the_status == Meaning::Refused && status == http::StatusCode::CONFLICT && after.is_some();
    let by_status = if is_worked_on { Meaning::InProgress } else { of_the_status };
    let by_word =
        (status.is_client_error() || status.is_server_error()).then(|| word(profile, response.body())).flatten();
    let meaning = by_word.unwrap_or(by_status);
    Judged {
        meaning: as_the_provider_says(profile, headers, meaning),
        after,
        replayed: profile.replayed.as_ref().and_then(|name| says(headers, name)),
    }
}

/// What the body says.
fn word(profile: &Profile, body: &Bytes) -> Option<Meaning> {
    if profile.words.is_empty() {
        return None;
    }
    let body: Value = serde_json::from_slice(body).ok()?;
    profile.words.iter().find_map(|known| {
        let text = body.pointer(&known.pointer)?.as_str()?;
        let is_it = text == known.word || text.rsplit(['/', '#', ':']).next() == Some(&*known.word);
        is_it.then_some(known.meaning)
    })
}

/// A provider that says whether to try again knows better than its statuses do.
fn as_the_provider_says(profile: &Profile, headers: &HeaderMap, meaning: Meaning) -> Meaning {
    let Some(says_again) = &profile.says_again else { return meaning };
    let again = says(headers, &says_again.header);
    match (meaning, again) {
        (Meaning::Answer | Meaning::KeyReused | Meaning::AnswerGone, _) => meaning,
        (Meaning::Failed | Meaning::KeptFailure, Some(true)) => Meaning::Failed,
        (Meaning::Refused | Meaning::NotTaken, Some(true)) => Meaning::NotYet,
        (Meaning::Failed, Some(false)) => Meaning::KeptFailure,
        (Meaning::NotYet, Some(false)) => Meaning::NotTaken,
        (Meaning::Failed, None) if !says_again.unless_said => Meaning::KeptFailure,
        // What is worked on ends, whether or not the same request may be sent: its answer is what is waited for.
        (Meaning::InProgress, _)
        | (Meaning::NotYet, Some(true) | None)
        | (Meaning::Failed, None)
        | (Meaning::KeptFailure | Meaning::Refused | Meaning::NotTaken, Some(false) | None) => meaning,
    }
}

fn says(headers: &HeaderMap, name: &http::HeaderName) -> Option<bool> {
    match headers.get(name)?.to_str().ok()?.trim() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// What `Retry-After` asks for: seconds, or a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(wall_clock()).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests;
