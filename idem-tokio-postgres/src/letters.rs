//! Dead letters as rows: written, counted and read back as messages.

use std::borrow::Cow;

use idem_core::{
    Bytes, DeadLetter, DeadLetterId, ErrorClass, IdempotencyKey, Message, OrderingKey, Origin, ParkedDeadLetter,
    Reason, Replay, ScopeId, StoreError,
};
use idem_schema::{decode_headers, encode_headers, key_id};
use tokio_postgres::{Row, types::Type};

use crate::{
    Postgres,
    error::{self, get},
    session::Parameters,
};

/// Rounds of inserting and counting, between which cleanup may take the row away.
const PARK_ROUNDS: usize = 3;

/// A text without the one character that PostgreSQL cannot store.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn storable_or_as_it_is(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(storable(text)) } else { Cow::Borrowed(text) }
}

impl Postgres {
    pub(crate) async fn park_letter(&self, letter: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
        let doing = "storing a dead letter";
        for _ in 0..PARK_ROUNDS {
            let rows = self.insert_letter(doing, letter).await?;
            if let Some(row) = rows.first() {
                return parked(row);
            }
            // Another statement, which sees the row that the first one met.
            let rows = self.count_copy(doing, letter).await?;
            if let Some(row) = rows.first() {
                return parked(row);
            }
        }
        let text = "the row that stands for it vanished each time it was looked at";
        Err(StoreError::Failed { doing, class: ErrorClass::Transient, source: text.into() })
    }

    async fn insert_letter(&self, doing: &'static str, letter: &DeadLetter) -> Result<Vec<Row>, StoreError> {
        let message = &letter.message;
        let key = letter.key.as_ref().map(IdempotencyKey::as_str);
        let payload: Option<&[u8]> = message.payload().map(|payload| payload.as_ref());
        let parameters: &Parameters<'_> = &[
            (&letter.scope.0, Type::INT4),
            (&storable_or_as_it_is(message.origin().as_str()), Type::TEXT),
            (&key.map(key_id), Type::UUID),
            (&key, Type::TEXT),
            (&letter.hash.as_ref().map(|(hash, _)| hash.as_bytes().as_slice()), Type::BYTEA),
            (&letter.hash.as_ref().map(|(_, rule)| rule.0), Type::INT4),
            (&letter.reason.as_str(), Type::TEXT),
            (&attempts(letter), Type::INT4),
            (&storable_or_as_it_is(&letter.error), Type::TEXT),
            (&payload.filter(|_| letter.keep_payload), Type::BYTEA),
            (&payload.map_or(0, |payload| i64::try_from(payload.len()).unwrap_or(i64::MAX)), Type::INT8),
            (&payload.is_some(), Type::BOOL),
            (&encode_headers(message.headers()), Type::TEXT),
            (&message.id().map(storable), Type::TEXT),
            (&message.message_type().map(storable), Type::TEXT),
            (&message.record_key().map(|key| key.as_ref()), Type::BYTEA),
            (&message.ordering_key().map(OrderingKey::as_bytes), Type::BYTEA),
        ];
        self.rows(doing, &self.sql().insert_dead_letter, parameters).await
    }

    async fn count_copy(&self, doing: &'static str, letter: &DeadLetter) -> Result<Vec<Row>, StoreError> {
        let parameters: &Parameters<'_> = &[
            (&letter.scope.0, Type::INT4),
            (&storable_or_as_it_is(letter.message.origin().as_str()), Type::TEXT),
            (&letter.key.as_ref().map(|key| key_id(key.as_str())), Type::UUID),
            (&letter.hash.as_ref().map(|(hash, _)| hash.as_bytes().as_slice()), Type::BYTEA),
            (&letter.reason.as_str(), Type::TEXT),
            (&attempts(letter), Type::INT4),
            (&storable_or_as_it_is(&letter.error), Type::TEXT),
        ];
        self.rows(doing, &self.sql().update_dead_letter, parameters).await
    }
}

fn attempts(letter: &DeadLetter) -> i32 {
    i32::try_from(letter.attempts).unwrap_or(i32::MAX)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Failed {
        doing: "reading a dead letter",
        class: ErrorClass::Transient,
        source: format!("its {what} is not what idem writes").into(),
    }
}

fn key(row: &Row) -> Result<Option<IdempotencyKey>, StoreError> {
    let text: Option<&str> = get(row, "idempotency_key")?;
    text.map(IdempotencyKey::new).transpose().map_err(|_| damaged("key"))
}

/// A dead letter as people see it.
pub(crate) fn parked(row: &Row) -> Result<ParkedDeadLetter, StoreError> {
    let attempts: i32 = get(row, "attempts")?;
    let copies: i64 = get(row, "copies")?;
    Ok(ParkedDeadLetter {
        id: DeadLetterId(get(row, "id")?),
        key: key(row)?,
        origin: get(row, "origin")?,
        reason: Reason::parse(get(row, "reason")?).ok_or_else(|| damaged("reason"))?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        error: get(row, "error")?,
        copies: u64::try_from(copies).unwrap_or(0),
        first_at: error::instant(row, "first_at")?,
        published_at: error::optional_instant(row, "published_at")?,
        replayed: get(row, "replayed")?,
    })
}

/// A dead letter as a message again.
pub(crate) fn replay(row: &Row) -> Result<Replay, StoreError> {
    let bytes = |column: &str| get::<Option<Vec<u8>>>(row, column).map(|bytes| bytes.map(Bytes::from));
    let has_payload: bool = get(row, "has_payload")?;
    let mut message = match bytes("payload")? {
        Some(payload) if has_payload => Message::new(payload),
        Some(_) | None => Message::tombstone(),
    };
    message = message.with_origin(Origin::new(get::<&str>(row, "origin")?));
    if let Some(text) = get::<Option<&str>>(row, "headers")? {
        message = message.with_headers(decode_headers(text).ok_or_else(|| damaged("headers"))?);
    }
    if let Some(id) = get::<Option<&str>>(row, "message_id")? {
        message = message.with_id(id);
    }
    if let Some(message_type) = get::<Option<&str>>(row, "message_type")? {
        message = message.with_type(message_type);
    }
    if let Some(key) = bytes("record_key")? {
        message = message.with_record_key(key);
    }
    if let Some(key) = bytes("ordering_key")? {
        message = message.with_ordering_key(OrderingKey::new(key));
    }
    Ok(Replay { id: DeadLetterId(get(row, "id")?), scope: ScopeId(get(row, "consumer")?), message, key: key(row)? })
}
