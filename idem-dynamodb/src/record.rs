//! A record as an item: claimed, done, or given up; and the result beside it.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use idem_core::{
    IdempotencyKey, ResultBody, Retention, StoreError,
    hash::PayloadHash,
    message::Headers,
    results::{KeptResult, NewResult},
    store::{Claim, Found, HashRuleId, Recorded, RunId},
};

use crate::{
    bugs::{self, Bug},
    clock::{Micros, now, span, time},
    item::{Item, Read, bytes, flag, number, text},
};

/// How long an item outlives its record's expiry, in which its key still counts as recorded.
const TTL_AFTER: i64 = 24 * 3600;

/// Where a key's item is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// A unit was given up. Only the epoch counts.
    GivenUp,
    /// A unit has it, until its lease ends.
    Claimed,
    /// Its operation is done.
    Done,
}

impl State {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::GivenUp => "A",
            Self::Claimed => "P",
            Self::Done => "C",
        }
    }

    pub(crate) fn of(item: &Item) -> Result<Self, StoreError> {
        let all = [Self::GivenUp, Self::Claimed, Self::Done];
        let state = item.string("st").and_then(|text| all.into_iter().find(|state| state.as_str() == text));
        item.needed(state, "st")
    }
}

/// The committed record of an item; `None` where its operation is not done.
pub(crate) fn found(item: &Item, claim: &Claim) -> Result<Option<Found>, StoreError> {
    let in_progress = State::of(item)? == State::Claimed && bugs::planted(Bug::FoundInProgress);
    if State::of(item)? != State::Done && !in_progress {
        return Ok(None);
    }
    let hash = item.blob("h").and_then(|hash| <[u8; 32]>::try_from(hash).ok()).map(PayloadHash::from_bytes);
    let id = |name: &str| item.number(name).and_then(|number| i32::try_from(number).ok());
    // Where the text was erased, the id alone decides.
    let key = match item.string("key") {
        Some(key) => item.needed(IdempotencyKey::new(key).ok(), "key")?,
        None => claim.key.clone(),
    };
    let recorded = Recorded::new(
        key,
        item.needed(hash, "h")?,
        HashRuleId(item.needed(id("hr"), "hr")?),
        time(item.needed(item.number(if in_progress { "until" } else { "at" }), "at")?),
        RunId(item.needed(id("by"), "by")?),
        item.number("x").map(time),
    );
    Ok(Some(Found::new(recorded, item.get("res").map(kept))))
}

/// Until when a record is kept that is committed now; `None` keeps it without end.
pub(crate) fn expires_at(retention: Retention) -> Option<Micros> {
    match retention {
        Retention::For(kept) => Some(now().saturating_add(span(kept))),
        Retention::Forever => None,
    }
}

/// When DynamoDB may remove an item that expires then, in seconds.
pub(crate) fn ttl(expires_at: Micros) -> AttributeValue {
    number(expires_at / 1_000_000 + TTL_AFTER)
}

/// The same of an item that is kept for this long.
pub(crate) fn ttl_after(kept: Duration) -> AttributeValue {
    number(now().saturating_add(span(kept)) / 1_000_000)
}

/// The bytes that a result takes in an item, about.
pub(crate) fn result_bytes(result: &ResultBody) -> usize {
    result.bytes() + result.reference.as_deref().map_or(0, str::len) + result.headers.len() * 16
}

/// A result as an attribute of its record.
pub(crate) fn result(new: &NewResult) -> AttributeValue {
    let NewResult { is_error, result, sealed_with, kept_for, .. } = new;
    let mut all = Item::from([
        ("e".to_owned(), flag(*is_error)),
        ("b".to_owned(), bytes(result.body.to_vec())),
        ("k".to_owned(), number(*sealed_with)),
    ]);
    let mut set = |name: &str, value: Option<AttributeValue>| all.extend(value.map(|value| (name.to_owned(), value)));
    set("s", result.status.map(number));
    set("t", result.content_type.as_deref().map(text));
    set("r", result.reference.as_deref().map(text));
    set("hd", (!result.headers.is_empty()).then(|| headers(&result.headers)));
    set("u", kept_for.map(|kept| number(now().saturating_add(span(kept)))));
    AttributeValue::M(all)
}

fn kept(value: &AttributeValue) -> KeptResult {
    let nothing = Item::new();
    let all = value.as_m().unwrap_or(&nothing);
    let (is_error, until) = (all.is_set("e"), all.number("u").map(time));
    let status = all.number("s").and_then(|status| u16::try_from(status).ok());
    let reference = all.string("r").map(Box::from);
    let mut kept = match all.string("gone") {
        Some("erased") => KeptResult::erased(is_error, status),
        Some(_) => KeptResult::expired(is_error, status, reference),
        None => {
            let mut result = ResultBody::new(all.blob("b").unwrap_or_default().to_vec());
            (result.status, result.reference) = (status, reference);
            result.content_type = all.string("t").map(Box::from);
            result.headers = all.get("hd").map(read_headers).unwrap_or_default();
            let sealed_with = all.number("k").and_then(|number| u16::try_from(number).ok()).unwrap_or_default();
            KeptResult::new(is_error, result, sealed_with)
        }
    };
    kept.until = until;
    kept
}

/// Headers as a list, because names repeat and their order counts: name and value in turn, the value null where there is none.
pub(crate) fn headers(headers: &Headers) -> AttributeValue {
    let pair = |(name, value): (&str, Option<&[u8]>)| {
        [text(name), value.map_or(AttributeValue::Null(true), |value| bytes(value.to_vec()))]
    };
    AttributeValue::L(headers.iter().flat_map(pair).collect())
}

pub(crate) fn read_headers(value: &AttributeValue) -> Headers {
    let mut headers = Headers::default();
    let list = value.as_l().map(Vec::as_slice).unwrap_or_default();
    for pair in list.chunks(2) {
        if let [AttributeValue::S(name), value] = pair {
            headers.push(name, value.as_b().ok().map(|value| value.as_ref().to_vec().into()));
        }
    }
    headers
}
