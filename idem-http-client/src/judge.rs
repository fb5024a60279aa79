//! Judges answers: a pure function of the profile and the answer.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, header::RETRY_AFTER};
use serde_json::Value;

use super::{clock::wall_clock, meaning::Meaning, profile::Profile};

/// An answer, judged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) meaning: Meaning,
    /// When the server wants the next try.
    pub(super) after: Option<Duration>,
    /// Whether the server repeats an earlier answer; `None` if it does not say.
    pub(super) replayed: Option<bool>,
}

/// Judges an answer: by its body, else by its status, and then by the provider's header about another try.
pub(super) fn judge(profile: &Profile, response: &Response<Bytes>) -> Judged {
    let (status, headers) = (response.status(), response.headers());
    let after = retry_after(headers);
    let of_the_status = profile.meaning(status);
    // A conflict of the business does not pass with time, so waiting is pointless.
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

/// The meaning that the body gives the answer.
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

/// A provider's own word on whether to try again counts for more than its status.
fn as_the_provider_says(profile: &Profile, headers: &HeaderMap, meaning: Meaning) -> Meaning {
    let Some(retry_header) = &profile.retry_header else { return meaning };
    let again = says(headers, &retry_header.header);
    match (meaning, again) {
        (Meaning::Answer | Meaning::KeyReused | Meaning::AnswerGone, _) => meaning,
        (Meaning::Failed | Meaning::KeptFailure, Some(true)) => Meaning::Failed,
        (Meaning::Refused | Meaning::NotTaken, Some(true)) => Meaning::NotYet,
        (Meaning::Failed, Some(false)) => Meaning::KeptFailure,
        (Meaning::NotYet, Some(false)) => Meaning::NotTaken,
        (Meaning::Failed, None) if !retry_header.unless_said => Meaning::KeptFailure,
        // A request in progress ends, whether or not it may be sent again, and the client waits for its answer.
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

/// The pause that `Retry-After` asks for, in seconds or as a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(wall_clock()).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests;
