//! A dead letter as an item, and its payload as several.

use aws_sdk_dynamodb::types::AttributeValue;
use idem_core::{
    Bytes, IdempotencyKey, Message, StoreError,
    dead_letter::{DEAD_LETTER_ROW_BYTES, DeadLetter, DeadLetterId, Due, Fingerprint, Reason, StoredDeadLetter},
    hash::PayloadHash,
    message::{OrderingKey, Origin},
    store::ScopeId,
};

use crate::{
    clock::{Micros, time},
    item::{At, Item, Read, bytes, flag, number, storable, text},
    record::{headers, read_headers},
};

/// The bytes of a payload in one item, of at most 400 KB.
pub(super) const PART: usize = 350 << 10;

/// The largest payload that is kept: it is written in one transaction, of at most 4 MB in all.
pub(super) const PAYLOAD_MAX: usize = 10 * PART;

/// The replay of a dead letter.
pub(super) const IDLE: &str = "idle";
pub(super) const DUE: &str = "due";

/// How many items hold a payload.
pub(super) fn parts(payload: Option<&Bytes>) -> usize {
    payload.map_or(0, |payload| payload.len().div_ceil(PART))
}

/// Whether the store keeps the payload of this letter, or there is none to keep.
pub(super) fn keeps(letter: &DeadLetter) -> bool {
    letter.message.payload().is_none_or(|payload| letter.keep_payload && payload.len() <= PAYLOAD_MAX)
}

/// The item of a new dead letter.
pub(super) fn new(letter: &DeadLetter, id: DeadLetterId, now: Micros) -> Item {
    let (message, kept) = (&letter.message, keeps(letter));
    let mut item = Item::new();
    let mut set = |name: &str, value: Option<AttributeValue>| item.extend(value.map(|value| (name.to_owned(), value)));
    set("id", Some(number(id.0)));
    set("consumer", Some(text(letter.consumer.as_str())));
    set("scope", Some(number(letter.scope.0)));
    set("identity", Some(bytes(letter.identity().as_bytes().to_vec())));
    set("key", letter.key.as_ref().map(|key| text(key.as_str())));
    set("h", Some(bytes(letter.payload_hash().0.as_bytes().to_vec())));
    set("origin", Some(storable(message.origin().as_str())));
    set("last_origin", Some(storable(message.origin().as_str())));
    set("copies", Some(number(1)));
    set("first_at", Some(number(now)));
    set("replay", Some(text(IDLE)));
    set("headers", Some(headers(message.headers())));
    set("message_id", message.id().map(storable));
    set("message_type", message.message_type().map(storable));
    set("record_key", message.record_key().map(|key| bytes(key.to_vec())));
    set("ordering_key", message.ordering_key().map(|key| bytes(key.as_bytes().to_vec())));
    set("tombstone", message.payload().is_none().then(|| flag(true)));
    keep(&mut item, message.payload().filter(|_| kept), kept);
    last(&mut item, letter, now);
    item
}

/// Notes whether the payload is kept, and how large it is.
pub(super) fn keep(item: &mut Item, payload: Option<&Bytes>, kept: bool) {
    let size = i64::try_from(payload.map_or(0, Bytes::len)).unwrap_or(i64::MAX);
    let parts = i64::try_from(parts(payload)).unwrap_or(i64::MAX);
    item.insert("kept".to_owned(), flag(kept));
    item.insert("payload_bytes".to_owned(), number(size));
    item.insert("parts".to_owned(), number(parts));
}

/// The facts of the last copy.
pub(super) fn last(item: &mut Item, letter: &DeadLetter, now: Micros) {
    item.insert("reason".to_owned(), text(letter.reason.as_str()));
    item.insert("attempts".to_owned(), number(letter.attempts));
    item.insert("error".to_owned(), storable(&letter.error));
    item.insert("fingerprint".to_owned(), text(letter.fingerprint.to_string()));
    item.insert("last_at".to_owned(), number(now));
}

/// The letter as operators see it.
pub(super) fn stored(item: &Item) -> Result<StoredDeadLetter, StoreError> {
    let needed = |name: &str| item.needed(item.number(name), name);
    Ok(StoredDeadLetter {
        waits_until: None,
        id: id(item)?,
        key: key(item),
        origin: item.string("origin").unwrap_or_default().to_owned(),
        reason: item.needed(item.string("reason").and_then(Reason::parse), "reason")?,
        attempts: u32::try_from(needed("attempts")?).unwrap_or(u32::MAX),
        error: item.string("error").unwrap_or_default().to_owned(),
        fingerprint: item.string("fingerprint").and_then(Fingerprint::parse),
        copies: u64::try_from(needed("copies")?).unwrap_or_default(),
        first_at: time(needed("first_at")?),
        payload_kept: item.is_set("kept"),
        published_at: item.number("published_at").map(time),
        loss_accepted: item.is_set("loss_accepted"),
        replayed: item.string("replayed").map(str::to_owned),
    })
}

/// Notes that it is to run again.
pub(super) fn make_due(item: &mut Item, sk: String, by: &str) {
    reopen(item);
    item.insert("replay".to_owned(), text(DUE));
    item.insert("due".to_owned(), text(sk));
    item.insert("due_by".to_owned(), storable(by));
}

/// Notes how its replay ended.
pub(super) fn end(item: &mut Item, outcome: &str, now: Micros) {
    item.insert("replay".to_owned(), text(IDLE));
    item.insert("replayed".to_owned(), storable(outcome));
    item.insert("replayed_at".to_owned(), number(now));
    item.remove("due");
}

/// A replay that has ended does not stand for what comes after it.
pub(super) fn reopen(item: &mut Item) {
    item.remove("replayed");
    item.remove("replayed_at");
}

/// Where the row is that says that it is due; `None` where it is not.
pub(super) fn due_at(item: &Item) -> Option<At> {
    Some(At::new(format!("due#{}", item.string("consumer")?), item.string("due")?))
}

/// The letter as it runs again.
pub(super) fn due(item: &Item, payload: Vec<u8>, was_taken: bool) -> Result<Due, StoreError> {
    let key = item.string("key").map(|text| item.needed(IdempotencyKey::new(text).ok(), "key")).transpose()?;
    Ok(Due {
        id: id(item)?,
        scope: scope(item)?,
        message: message(item, payload),
        key,
        attempts: 0,
        replayed: true,
        was_taken,
    })
}

pub(super) fn id(item: &Item) -> Result<DeadLetterId, StoreError> {
    item.needed(item.number("id"), "id").map(DeadLetterId)
}

pub(super) fn key(item: &Item) -> Option<IdempotencyKey> {
    item.string("key").and_then(|key| IdempotencyKey::new(key).ok())
}

pub(super) fn scope(item: &Item) -> Result<ScopeId, StoreError> {
    let scope = item.number("scope").and_then(|scope| i32::try_from(scope).ok());
    item.needed(scope, "scope").map(ScopeId)
}

pub(super) fn hash(item: &Item) -> PayloadHash {
    let hash = item.blob("h").and_then(|hash| <[u8; 32]>::try_from(hash).ok());
    hash.map_or(PayloadHash::NONE, PayloadHash::from_bytes)
}

/// The message of the first copy, with this payload.
fn message(item: &Item, payload: Vec<u8>) -> Message {
    let message = if item.is_set("tombstone") { Message::tombstone() } else { Message::new(payload) };
    let mut message = message.with_origin(Origin::new(item.string("origin").unwrap_or_default()));
    message = message.with_headers(item.get("headers").map(read_headers).unwrap_or_default());
    if let Some(id) = item.string("message_id") {
        message = message.with_id(id);
    }
    if let Some(message_type) = item.string("message_type") {
        message = message.with_type(message_type);
    }
    if let Some(key) = item.blob("record_key") {
        message = message.with_record_key(key.to_vec());
    }
    match item.blob("ordering_key") {
        Some(key) => message.with_ordering_key(OrderingKey::new(key.to_vec())),
        None => message,
    }
}

/// What a letter counts for its consumer's quota; nothing where a replay has handled it.
pub(super) fn bytes_of(item: &Item) -> u64 {
    if item.string("replayed").is_some_and(|end| ["processed", "duplicate"].contains(&end)) {
        return 0;
    }
    let list = item.get("headers").map(read_headers).unwrap_or_default();
    let payload = item.number("payload_bytes").and_then(|size| u64::try_from(size).ok()).unwrap_or_default();
    DEAD_LETTER_ROW_BYTES + payload + (list.bytes() + item.string("error").map_or(0, str::len)) as u64
}
