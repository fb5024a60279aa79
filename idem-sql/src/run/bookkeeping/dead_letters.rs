//! Dead letters as rows: written, counted and read back as messages.

use std::{borrow::Cow, sync::Arc, time::Duration};

use idem_core::{
    Bytes, ErrorClass, IdempotencyKey, Message, StoreError,
    dead_letter::{DeadLetter, DeadLetterId, DeadLetterIdentity, Due, Fingerprint, PutAside, Reason, StoredDeadLetter},
    message::{OrderingKey, Origin},
    store::ScopeId,
};

use crate::{
    run::{
        driver::{BookkeepingDriver, Parameter, storable},
        headers::{decode_headers, encode_headers},
        row::{Row, microseconds},
    },
    text::key_id::key_id,
};

/// Rounds of inserting and counting, between which cleanup may take the row away.
const PARK_ROUNDS: usize = 3;

fn storable_or_as_it_is(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(storable(text)) } else { Cow::Borrowed(text) }
}

pub(super) async fn store(
    driver: &impl BookkeepingDriver,
    dead_letter: &DeadLetter,
) -> Result<StoredDeadLetter, StoreError> {
    let identity = dead_letter.identity();
    for _ in 0..PARK_ROUNDS {
        let text = &driver.bookkeeping_statements().insert_dead_letter;
        if let Some(row) = insert(driver, text, dead_letter, identity, None).await? {
            return stored(&row);
        }
        // Another statement, which sees the row that the first one met.
        let Some(row) = count_copy(driver, dead_letter, identity).await? else { continue };
        let mut stored = stored(&row)?;
        let missing = dead_letter.message.payload().filter(|_| dead_letter.keep_payload && !stored.payload_kept);
        if let Some(payload) = missing {
            let parameters = [stored.id.0.into(), Some(payload.as_ref()).into()];
            let kept = driver.rows(DOING, &driver.bookkeeping_statements().keep_payload, &parameters).await?;
            if kept.is_empty() {
                continue;
            }
            stored.payload_kept = true;
        }
        return Ok(stored);
    }
    Err(vanished(DOING))
}

/// Writes the row of a message that waits for a later try.
pub(super) async fn put_aside(
    driver: &impl BookkeepingDriver,
    letter: &DeadLetter,
    after: Duration,
) -> Result<PutAside, StoreError> {
    let text = &driver.bookkeeping_statements().put_aside;
    for _ in 0..PARK_ROUNDS {
        let Some(row) = insert(driver, text, letter, letter.identity(), Some(after)).await? else { continue };
        if let Some(id) = row.get::<Option<i64>>("id")?.map(DeadLetterId) {
            return Ok(if row.get("is_written")? { PutAside::Written(id) } else { PutAside::Known(id) });
        }
    }
    Err(vanished("keeping a message for a later try"))
}

fn vanished(doing: &'static str) -> StoreError {
    let text = "the row that stands for it vanished each time it was looked at";
    StoreError::Failed { doing, class: ErrorClass::Transient, source: text.into() }
}

const DOING: &str = "storing a dead letter";

/// Runs a statement that writes a dead letter, or with a delay a message that waits.
async fn insert(
    driver: &impl BookkeepingDriver,
    text: &Arc<str>,
    dead_letter: &DeadLetter,
    identity: DeadLetterIdentity,
    after: Option<Duration>,
) -> Result<Option<Row>, StoreError> {
    let message = &dead_letter.message;
    let (origin, error) = (storable_or_as_it_is(message.origin().as_str()), storable_or_as_it_is(&dead_letter.error));
    let (id, message_type) = (message.id().map(storable), message.message_type().map(storable));
    let headers = encode_headers(message.headers());
    let key = dead_letter.key.as_ref().map(IdempotencyKey::as_str);
    let payload: Option<&[u8]> = message.payload().map(|payload| payload.as_ref());
    let (hash, rule) = dead_letter.payload_hash();
    let fingerprint = dead_letter.fingerprint.to_string();
    let mut parameters: Vec<Parameter<'_>> = vec![
        dead_letter.scope.0.into(),
        (&*origin).into(),
        key.map(key_id).into(),
        key.into(),
        hash.as_bytes().as_slice().into(),
        rule.map(|rule| rule.0).into(),
        dead_letter.reason.as_str().into(),
        attempts(dead_letter).into(),
        (&*error).into(),
        payload.filter(|_| dead_letter.keep_payload).into(),
        payload.map_or(0, |payload| i64::try_from(payload.len()).unwrap_or(i64::MAX)).into(),
        payload.is_some().into(),
        headers.as_deref().into(),
        id.as_deref().into(),
        message_type.as_deref().into(),
        message.record_key().map(|key| key.as_ref()).into(),
    ];
    // Only messages with one of their own wait for each other.
    let ordering_key = if after.is_some() { message.own_ordering_key() } else { message.ordering_key() };
    parameters.push(ordering_key.map(OrderingKey::as_bytes).into());
    parameters.push(identity.as_bytes().as_slice().into());
    parameters.push(fingerprint.as_str().into());
    if let Some(after) = after {
        parameters.push(microseconds(after).into());
    }
    let rows = driver.rows(DOING, text, &parameters).await?;
    Ok(rows.into_iter().next())
}

async fn count_copy(
    driver: &impl BookkeepingDriver,
    dead_letter: &DeadLetter,
    identity: DeadLetterIdentity,
) -> Result<Option<Row>, StoreError> {
    let (origin, error) =
        (storable_or_as_it_is(dead_letter.message.origin().as_str()), storable_or_as_it_is(&dead_letter.error));
    let fingerprint = dead_letter.fingerprint.to_string();
    let parameters = [
        dead_letter.scope.0.into(),
        identity.as_bytes().as_slice().into(),
        (&*origin).into(),
        dead_letter.reason.as_str().into(),
        attempts(dead_letter).into(),
        (&*error).into(),
        fingerprint.as_str().into(),
    ];
    let rows = driver.rows(DOING, &driver.bookkeeping_statements().update_dead_letter, &parameters).await?;
    Ok(rows.into_iter().next())
}

fn attempts(dead_letter: &DeadLetter) -> i32 {
    i32::try_from(dead_letter.attempts).unwrap_or(i32::MAX)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Failed {
        doing: "reading a dead letter",
        class: ErrorClass::Transient,
        source: format!("its {what} is not what idem writes").into(),
    }
}

fn key(row: &Row) -> Result<Option<IdempotencyKey>, StoreError> {
    let text: Option<&str> = row.get("idempotency_key")?;
    text.map(IdempotencyKey::new).transpose().map_err(|_| damaged("key"))
}

/// A dead letter as people see it.
pub(super) fn stored(row: &Row) -> Result<StoredDeadLetter, StoreError> {
    Ok(StoredDeadLetter {
        id: DeadLetterId(row.get("id")?),
        key: key(row)?,
        origin: row.get("origin")?,
        reason: Reason::parse(row.get("reason")?).ok_or_else(|| damaged("reason"))?,
        attempts: u32::try_from(row.get::<i32>("attempts")?).unwrap_or(0),
        error: row.get("error")?,
        fingerprint: row.get::<Option<&str>>("fingerprint")?.and_then(Fingerprint::parse),
        copies: u64::try_from(row.get::<i64>("copies")?).unwrap_or(0),
        first_at: row.instant("first_at")?,
        payload_kept: row.get("payload_kept")?,
        published_at: row.optional_instant("published_at")?,
        loss_accepted: row.get("loss_accepted")?,
        replayed: row.get("replayed")?,
        waits_until: row.optional_instant("waits_until")?,
    })
}

/// A dead letter as a message again.
pub(super) fn due(row: &Row) -> Result<Due, StoreError> {
    let bytes = |column: &str| row.get::<Option<Vec<u8>>>(column).map(|bytes| bytes.map(Bytes::from));
    let has_payload: bool = row.get("has_payload")?;
    let mut message = match bytes("payload")? {
        Some(payload) if has_payload => Message::new(payload),
        Some(_) | None => Message::tombstone(),
    };
    message = message.with_origin(Origin::new(row.get("origin")?));
    if let Some(text) = row.get("headers")? {
        message = message.with_headers(decode_headers(text).ok_or_else(|| damaged("headers"))?);
    }
    if let Some(id) = row.get("message_id")? {
        message = message.with_id(id);
    }
    if let Some(message_type) = row.get("message_type")? {
        message = message.with_type(message_type);
    }
    if let Some(key) = bytes("record_key")? {
        message = message.with_record_key(key);
    }
    if let Some(key) = bytes("ordering_key")? {
        message = message.with_ordering_key(OrderingKey::new(key));
    }
    let (id, scope) = (DeadLetterId(row.get("id")?), ScopeId(row.get("consumer")?));
    let attempts = u32::try_from(row.get::<i32>("attempts")?).unwrap_or(0);
    let (replayed, was_taken) = (row.get("replayed")?, row.get("was_taken")?);
    Ok(Due { id, scope, message, key: key(row)?, attempts, replayed, was_taken })
}
