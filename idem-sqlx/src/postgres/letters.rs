//! Dead letters as rows: written, counted and read back as messages.

use std::borrow::Cow;

use idem_core::{
    Bytes, DeadLetter, DeadLetterId, ErrorClass, IdempotencyKey, Message, OrderingKey, Origin, ParkedDeadLetter,
    Reason, Replay, StoreError,
};
use idem_schema::key_id;
use sqlx::postgres::PgRow;

use super::{Postgres, books, error};
/// Rounds of inserting and counting, between which cleanup may take the row away.
const PARK_ROUNDS: usize = 3;

/// A text without the one character that PostgreSQL cannot store.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn storable_or_as_it_is(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(storable(text)) } else { Cow::Borrowed(text) }
}

impl Postgres {
    pub(super) async fn park_letter(&self, letter: &DeadLetter) -> Result<ParkedDeadLetter, StoreError> {
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

    async fn insert_letter(&self, doing: &'static str, letter: &DeadLetter) -> Result<Vec<PgRow>, StoreError> {
        let message = &letter.message;
        let origin = storable_or_as_it_is(message.origin().as_str());
        let error = storable_or_as_it_is(&letter.error);
        let headers = idem_schema::encode_headers(message.headers());
        let (id, message_type) = (message.id().map(storable), message.message_type().map(storable));
        let key = letter.key.as_ref().map(IdempotencyKey::as_str);
        let payload = message.payload().map(|payload| payload.as_ref());
        let insert = || {
            self.statement(&self.sql().insert_dead_letter)
                .bind(letter.scope.0)
                .bind(&*origin)
                .bind(key.map(key_id))
                .bind(key)
                .bind(letter.hash.as_ref().map(|(hash, _)| hash.as_bytes().as_slice()))
                .bind(letter.hash.as_ref().map(|(_, rule)| rule.0))
                .bind(letter.reason.as_str())
                .bind(attempts(letter))
                .bind(&*error)
                .bind(payload.filter(|_| letter.keep_payload))
                .bind(payload.map_or(0, |payload| i64::try_from(payload.len()).unwrap_or(i64::MAX)))
                .bind(payload.is_some())
                .bind(&headers)
                .bind(&id)
                .bind(&message_type)
                .bind(message.record_key().map(|key| key.as_ref()))
                .bind(message.ordering_key().map(OrderingKey::as_bytes))
        };
        self.rows(doing, insert).await
    }

    async fn count_copy(&self, doing: &'static str, letter: &DeadLetter) -> Result<Vec<PgRow>, StoreError> {
        let origin = storable_or_as_it_is(letter.message.origin().as_str());
        let error = storable_or_as_it_is(&letter.error);
        let update = || {
            self.statement(&self.sql().update_dead_letter)
                .bind(letter.scope.0)
                .bind(&*origin)
                .bind(letter.key.as_ref().map(|key| key_id(key.as_str())))
                .bind(letter.hash.as_ref().map(|(hash, _)| hash.as_bytes().as_slice()))
                .bind(letter.reason.as_str())
                .bind(attempts(letter))
                .bind(&*error)
        };
        self.rows(doing, update).await
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

fn key(row: &PgRow) -> Result<Option<IdempotencyKey>, StoreError> {
    let text: Option<&str> = error::get(row, "idempotency_key")?;
    text.map(IdempotencyKey::new).transpose().map_err(|_| damaged("key"))
}

/// A dead letter as people see it.
pub(super) fn parked(row: &PgRow) -> Result<ParkedDeadLetter, StoreError> {
    let attempts: i32 = error::get(row, "attempts")?;
    let copies: i64 = error::get(row, "copies")?;
    Ok(ParkedDeadLetter {
        id: DeadLetterId(error::get(row, "id")?),
        key: key(row)?,
        origin: error::get(row, "origin")?,
        reason: Reason::parse(error::get(row, "reason")?).ok_or_else(|| damaged("reason"))?,
        attempts: u32::try_from(attempts).unwrap_or(0),
        error: error::get(row, "error")?,
        copies: u64::try_from(copies).unwrap_or(0),
        first_at: error::instant(row, "first_at")?,
        published_at: error::optional_instant(row, "published_at")?,
        replayed: error::get(row, "replayed")?,
    })
}

/// A dead letter as a message again.
pub(super) fn replay(row: &PgRow) -> Result<Replay, StoreError> {
    let bytes = |column: &str| error::get::<Option<Vec<u8>>>(row, column).map(|bytes| bytes.map(Bytes::from));
    let has_payload: bool = error::get(row, "has_payload")?;
    let mut message = match bytes("payload")? {
        Some(payload) if has_payload => Message::new(payload),
        Some(_) | None => Message::tombstone(),
    };
    message = message.with_origin(Origin::new(error::get(row, "origin")?));
    if let Some(text) = error::get::<Option<&str>>(row, "headers")? {
        message = message.with_headers(idem_schema::decode_headers(text).ok_or_else(|| damaged("headers"))?);
    }
    if let Some(id) = error::get::<Option<&str>>(row, "message_id")? {
        message = message.with_id(id);
    }
    if let Some(message_type) = error::get::<Option<&str>>(row, "message_type")? {
        message = message.with_type(message_type);
    }
    if let Some(key) = bytes("record_key")? {
        message = message.with_record_key(key);
    }
    if let Some(key) = bytes("ordering_key")? {
        message = message.with_ordering_key(OrderingKey::new(key));
    }
    Ok(Replay {
        id: DeadLetterId(error::get(row, "id")?),
        scope: books::scope_of(row, "consumer")?,
        message,
        key: key(row)?,
    })
}
