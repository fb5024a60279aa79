//! The inbox of an SQL store, through whatever driver it has.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    Bytes, ConsumerName, Message, StoreError,
    inbox::{Granted, HeldSlot, Inbox, InboxBacklog, InboxRow, NewInboxRow, OpenInbox, Reading, Settling},
    message::{OrderingKey, Origin},
    store::ScopeId,
};

use crate::{
    check::errors::damaged_in,
    run::{
        bookkeeping::register::bind_source,
        driver::{BookkeepingDriver, Parameter, row, storable},
        headers::{decode_headers, encode_headers},
        row::{Row, microseconds},
    },
    text::{inbox::InboxStatements, key_id::key_id},
};

/// The inboxes of a store.
#[derive(Debug)]
pub struct SqlInbox<D> {
    driver: Arc<D>,
}

impl<D: BookkeepingDriver> SqlInbox<D> {
    /// The inboxes through this driver. Nothing is connected yet.
    pub fn new(driver: Arc<D>) -> Self {
        Self { driver }
    }

    fn sql(&self) -> &InboxStatements {
        &self.driver.bookkeeping_statements().inbox
    }
}

/// A parameter of SQL's integers for a moment that no message has.
const NEVER: i64 = i64::MIN;

/// Microseconds since the Unix epoch.
fn moment(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => microseconds(since).unwrap_or(i64::MAX),
        Err(before) => microseconds(before.duration()).map_or(NEVER + 1, |time| -time),
    }
}

/// A message as values of columns.
struct Columns<'r> {
    row: &'r NewInboxRow,
    origin: String,
    message_id: Option<String>,
    message_type: Option<String>,
    problem: Option<String>,
    headers: Option<String>,
}

/// The problem of a message whose id, type or origin holds the character that PostgreSQL cannot store. A broker's source delivers it
/// as it is, and a key with that character is malformed.
const NUL: &str = "its id, type or origin has a NUL character, which the inbox cannot keep";

impl<'r> Columns<'r> {
    fn of(row: &'r NewInboxRow) -> Self {
        let message = &row.message;
        // The type of a CloudEvent is a header, and is found there again.
        let texts = [Some(message.origin().as_str()), message.id(), message.message_type()];
        let has_nul = texts.iter().flatten().any(|text| text.contains('\0'));
        Self {
            row,
            origin: storable(message.origin().as_str()),
            message_id: message.id().map(storable),
            message_type: message.message_type().map(storable),
            problem: message.problem().or_else(|| has_nul.then_some(NUL)).map(storable),
            headers: encode_headers(message.headers()),
        }
    }

    fn sent_at(&self) -> Option<i64> {
        self.row.message.sent_at().map(moment)
    }

    fn key(&self) -> Option<&str> {
        self.row.key.as_ref().map(idem_core::IdempotencyKey::as_str)
    }

    fn ordering_key(&self) -> Option<&[u8]> {
        self.row.message.ordering_key().map(OrderingKey::as_bytes)
    }
}

impl<D: BookkeepingDriver> SqlInbox<D> {
    async fn put_arrays(&self, inbox: ScopeId, rows: &[Columns<'_>]) -> Result<(), StoreError> {
        let slots: Vec<i64> = rows.iter().map(|row| i64::from(row.row.slot)).collect();
        let sent_at: Vec<i64> = rows.iter().map(|row| row.sent_at().unwrap_or(NEVER)).collect();
        let origins: Vec<Option<&str>> = rows.iter().map(|row| Some(row.origin.as_str())).collect();
        let keys: Vec<Option<&str>> = rows.iter().map(Columns::key).collect();
        let ids: Vec<Option<&str>> = rows.iter().map(|row| row.message_id.as_deref()).collect();
        let types: Vec<Option<&str>> = rows.iter().map(|row| row.message_type.as_deref()).collect();
        let problems: Vec<Option<&str>> = rows.iter().map(|row| row.problem.as_deref()).collect();
        let headers: Vec<Option<&str>> = rows.iter().map(|row| row.headers.as_deref()).collect();
        let bytes = |of: fn(&Message) -> Option<&Bytes>| -> Vec<Option<&[u8]>> {
            rows.iter().map(|row| of(&row.row.message).map(|bytes| &**bytes)).collect()
        };
        let (record_keys, payloads) = (bytes(Message::record_key), bytes(Message::payload));
        let ordering_keys: Vec<Option<&[u8]>> = rows.iter().map(Columns::ordering_key).collect();
        let parameters = [
            inbox.0.into(),
            slots.as_slice().into(),
            sent_at.as_slice().into(),
            Parameter::OptionalTexts(&origins),
            Parameter::OptionalTexts(&keys),
            Parameter::OptionalTexts(&ids),
            Parameter::OptionalTexts(&types),
            Parameter::OptionalTexts(&problems),
            Parameter::OptionalTexts(&headers),
            Parameter::OptionalBytes(&record_keys),
            Parameter::OptionalBytes(&ordering_keys),
            Parameter::OptionalBytes(&payloads),
        ];
        self.driver.rows(WRITING, &self.sql().put_messages, &parameters).await.map(|_| ())
    }

    /// A parameter a value, because SQLite's arrays are JSON, which has no bytes.
    async fn put_values(&self, inbox: ScopeId, rows: &[Columns<'_>]) -> Result<(), StoreError> {
        const EACH: usize = 12;
        let now = rows.len() * EACH + 2;
        let mut text = String::new();
        let mut parameters: Vec<Parameter<'_>> = vec![inbox.0.into()];
        for (place, row) in rows.iter().enumerate() {
            let first = place * EACH + 2;
            text.push_str(if place == 0 { "(?1" } else { ", (?1" });
            for number in first..first + EACH {
                let _ = write!(text, ", ?{number}");
            }
            let _ = write!(text, ", ?{now})");
            let message = &row.row.message;
            let values: [Parameter<'_>; EACH] = [
                i64::from(row.row.slot).into(),
                row.sent_at().into(),
                row.origin.as_str().into(),
                row.key().map(key_id).into(),
                row.key().into(),
                row.message_id.as_deref().into(),
                row.message_type.as_deref().into(),
                row.problem.as_deref().into(),
                row.headers.as_deref().into(),
                message.record_key().map(|bytes| &**bytes).into(),
                row.ordering_key().into(),
                message.payload().map(|bytes| &**bytes).into(),
            ];
            parameters.extend(values);
        }
        let statement: Arc<str> = self.sql().put_messages.replace(ROWS, &text).into();
        self.driver.rows(WRITING, &statement, &parameters).await.map(|_| ())
    }
}

const WRITING: &str = "writing to the inbox";

/// Where the rows stand in a statement that has a parameter a value.
const ROWS: &str = "{rows}";

#[async_trait]
impl<D: BookkeepingDriver + 'static> Inbox for SqlInbox<D> {
    async fn open(&self, consumer: &ConsumerName, bound_to: Option<&str>, slots: u16) -> Result<OpenInbox, StoreError> {
        let id = bind_source(&*self.driver, consumer, bound_to).await?;
        let parameters = [id.0.into(), i32::from(slots.max(1)).into()];
        row(&*self.driver, "making the inbox", &self.sql().open_inbox, &parameters).await?;
        let found = self.find(consumer).await?;
        found.ok_or_else(|| damaged_in("consumers", "the row of the inbox's consumer"))
    }

    async fn find(&self, consumer: &ConsumerName) -> Result<Option<OpenInbox>, StoreError> {
        let rows =
            self.driver.rows("looking for the inbox", &self.sql().select_inbox, &[consumer.as_str().into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let slots = u16::try_from(row.get::<i64>("slots")?).unwrap_or(0);
        let open = OpenInbox::new(ScopeId(row.get("id")?), slots, row.get("bound_to")?);
        Ok(Some(open).filter(|open| open.slots > 0))
    }

    async fn put(&self, inbox: ScopeId, rows: &[NewInboxRow]) -> Result<(), StoreError> {
        let columns: Vec<Columns<'_>> = rows.iter().map(Columns::of).collect();
        if columns.is_empty() {
            Ok(())
        } else if self.sql().put_messages.contains(ROWS) {
            self.put_values(inbox, &columns).await
        } else {
            self.put_arrays(inbox, &columns).await
        }
    }

    async fn hold_slots(
        &self,
        inbox: ScopeId,
        holder: &str,
        lease: Duration,
        takes: bool,
    ) -> Result<Vec<Granted>, StoreError> {
        let lease = microseconds(lease).unwrap_or(i64::MAX);
        let parameters = [inbox.0.into(), holder.into(), lease.into(), takes.into()];
        let rows = self.driver.rows("holding slots of the inbox", &self.sql().hold_slots, &parameters).await?;
        rows.iter().map(|row| Ok(Granted { held: held(row)?, is_wanted: row.get("is_wanted")? })).collect()
    }

    async fn release_slots(&self, inbox: ScopeId, holder: &str, slots: &[HeldSlot]) -> Result<(), StoreError> {
        let (numbers, epochs) = arrays(slots.iter().copied());
        let parameters = [inbox.0.into(), holder.into(), numbers.as_slice().into(), epochs.as_slice().into()];
        self.driver.rows("releasing slots of the inbox", &self.sql().release_slots, &parameters).await.map(|_| ())
    }

    async fn next(&self, inbox: ScopeId, reading: Reading<'_>) -> Result<Vec<InboxRow>, StoreError> {
        let (slots, epochs) = arrays(reading.slots.iter().map(|(held, _)| *held));
        let cursors: Vec<i64> = reading.slots.iter().map(|(_, cursor)| *cursor).collect();
        let parameters = [
            inbox.0.into(),
            slots.as_slice().into(),
            epochs.as_slice().into(),
            cursors.as_slice().into(),
            reading.except.into(),
            i64::from(reading.each_max).into(),
            i64::from(reading.rows_max).into(),
            i64::try_from(reading.bytes_max).unwrap_or(i64::MAX).into(),
        ];
        let rows = self.driver.rows("reading the inbox", &self.sql().next_messages, &parameters).await?;
        rows.iter().map(read).collect()
    }

    async fn remove(&self, inbox: ScopeId, holder: &str, rows: &[Settling]) -> Result<Vec<HeldSlot>, StoreError> {
        let (slots, epochs) = arrays(rows.iter().map(|row| row.held));
        let numbers: Vec<i64> = rows.iter().map(|row| row.number).collect();
        let times: Vec<i64> = rows.iter().map(|row| moment(row.received_at)).collect();
        let parameters = [
            inbox.0.into(),
            holder.into(),
            slots.as_slice().into(),
            epochs.as_slice().into(),
            numbers.as_slice().into(),
            times.as_slice().into(),
        ];
        let rows = self.driver.rows("removing processed messages", &self.sql().remove_messages, &parameters).await?;
        rows.iter().map(held).collect()
    }

    async fn backlog(&self, inbox: ScopeId, except: &[i64], enough: u64) -> Result<InboxBacklog, StoreError> {
        let enough = i64::try_from(enough).unwrap_or(i64::MAX);
        let parameters = [inbox.0.into(), except.into(), enough.into()];
        let row = row(&*self.driver, "counting the inbox", &self.sql().count_messages, &parameters).await?;
        let oldest =
            row.get::<Option<i64>>("oldest")?.map(|time| Duration::from_micros(u64::try_from(time).unwrap_or(0)));
        let messages = u64::try_from(row.get::<i64>("messages")?).unwrap_or(0);
        Ok(InboxBacklog::new(messages, oldest, u16::try_from(row.get::<i64>("free_slots")?).unwrap_or(u16::MAX)))
    }
}

fn arrays(slots: impl Iterator<Item = HeldSlot>) -> (Vec<i64>, Vec<i64>) {
    slots.map(|held| (i64::from(held.slot), held.epoch)).unzip()
}

fn slot(row: &Row) -> Result<u16, StoreError> {
    u16::try_from(row.get::<i32>("slot")?).map_err(|_| damaged_in("inbox_slots", "slot"))
}

fn held(row: &Row) -> Result<HeldSlot, StoreError> {
    Ok(HeldSlot { slot: slot(row)?, epoch: row.get("epoch")? })
}

fn read(row: &Row) -> Result<InboxRow, StoreError> {
    let received_at = row.instant("received_at")?;
    let mut message = match row.get::<Option<Vec<u8>>>("payload")? {
        Some(payload) => Message::new(payload),
        None => Message::tombstone(),
    };
    // A broker that says nothing of a message's age has it at most as long as the inbox.
    let sent_at = row.optional_instant("sent_at")?.unwrap_or(received_at);
    message = message.with_origin(Origin::new(row.get("origin")?)).with_sent_at(sent_at);
    if let Some(id) = row.get("message_id")? {
        message = message.with_id(id);
    }
    if let Some(message_type) = row.get("message_type")? {
        message = message.with_type(message_type);
    }
    if let Some(key) = row.get::<Option<Vec<u8>>>("record_key")? {
        message = message.with_record_key(key);
    }
    if let Some(key) = row.get::<Option<Vec<u8>>>("ordering_key")? {
        message = message.with_ordering_key(OrderingKey::new(key));
    }
    let headers = row.get::<Option<&str>>("headers")?.map(decode_headers);
    let problem = match &headers {
        // One damaged row must not keep the others back.
        Some(None) => Some("the headers of its row in the inbox are damaged"),
        Some(Some(_)) | None => row.get("problem")?,
    };
    if let Some(headers) = headers.flatten() {
        message = message.with_headers(headers);
    }
    if let Some(problem) = problem {
        message = message.with_problem(problem);
    }
    Ok(InboxRow::new(slot(row)?, row.get("number")?, received_at, message))
}
