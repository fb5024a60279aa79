//! Messages out: the rows that units append, and the outbox that relays empty, written once for every SQL store.

pub(crate) mod append;
mod passing;
pub(crate) mod plain;
pub(crate) mod results;
mod turns;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    ConsumerName, ErrorClass, IdempotencyKey, StoreError,
    message::OrderingKey,
    outbox::{
        Declared, Destination, DestinationId, DestinationLimits, EventEnd, EventName, EventNumber, EventState,
        LeaseRequest, Leased, Outbox, OutboxBacklog, OutgoingEvent, StoredEvent, UNDER_WAY,
    },
    store::Interned,
};
use serde_json::{Value, json};

use crate::{
    check::errors::damaged_in,
    run::{
        candidates::{INTERN_ROUNDS, candidates, not_interned},
        driver::{BookkeepingDriver, row},
        headers::decode_headers,
        row::{Row, microseconds},
    },
    text::outbox::OutboxStatements,
};

/// Rounds of finding and marking events that stand behind others, a thousand each at least. The next call goes on there.
const MARKING_ROUNDS: usize = 100;

/// The outbox of an SQL store, through whatever driver it has.
#[derive(Debug)]
pub struct SqlOutbox<D> {
    driver: Arc<D>,
    passing: passing::Passing,
    turns: turns::Turns,
}

impl<D: BookkeepingDriver> SqlOutbox<D> {
    /// The outbox through this driver. Nothing is connected yet.
    pub fn new(driver: Arc<D>) -> Self {
        Self { driver, passing: passing::Passing::default(), turns: turns::Turns::default() }
    }

    fn sql(&self) -> &OutboxStatements {
        &self.driver.bookkeeping_statements().outbox
    }

    async fn intern(&self, destination: &Destination) -> Result<Declared, StoreError> {
        let (doing, name, form) = ("declaring destinations", destination.name.as_str(), destination.id_form.as_str());
        for round in 0..INTERN_ROUNDS {
            let mut rows = self.driver.rows(doing, &self.sql().select_destination, &[name.into()]).await?;
            if rows.is_empty() {
                let numbers = candidates(Interned::Destination, &[name], round);
                let parameters = [name.into(), form.into(), numbers.as_slice().into()];
                rows = self.driver.rows(doing, &self.sql().insert_destination, &parameters).await?;
            }
            let Some(row) = rows.first() else { continue };
            let known: &str = row.get("id_form")?;
            if known == form {
                return Ok(Declared::new(DestinationId(row.get("id")?)).limits(limits(row)?));
            }
            return Err(StoreError::refused(
                format!("destination {name:?} was declared with ids of the form {known}, and this program says {form}"),
                format!("Declare it with {known}: under another form its receivers would take copies for new events"),
            ));
        }
        Err(StoreError::failed(doing, ErrorClass::Transient, not_interned(&format!("destination {name}"))))
    }

    async fn look(&self, destination: DestinationId, events_max: u32, bytes_max: u64) -> Result<Look, StoreError> {
        let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
        let parameters = [destination.0.into(), i64::from(events_max).into(), bytes_max.into()];
        let rows = self.driver.rows("reading the outbox", &self.sql().next_events, &parameters).await?;
        let mut look = Look::default();
        for row in &rows {
            if row.get("is_behind")? {
                look.behind.push(row.get("number")?);
                continue;
            }
            match outgoing(row) {
                Ok(event) => look.next.push(event),
                // Alone, or it would stop all the others of its destination.
                Err(error) => {
                    let failed = EventEnd::Failed { error: error.to_string(), may_be_sent: false };
                    look.unreadable.extend(unpublished(row.get("number")?, row.get("event_key")?, &failed, false));
                }
            }
        }
        Ok(look)
    }

    /// Tries it, now and then. Where it fails, looks go on to begin where they did, and it is tried anew: nothing depends on it
    /// but how long they take.
    async fn pass_published(&self, destination: DestinationId, events: usize) {
        let statement = &self.sql().raise_pending;
        if statement.is_empty() {
            return;
        }
        let Some((writers, drawn)) = self.passing.due(destination, events) else { return };
        let _turn = self.turns.of(destination).await;
        let parameters = [destination.0.into(), writers.as_deref().into(), drawn.into()];
        let told = async {
            let told = row(&*self.driver, "passing by what was published", statement, &parameters).await?;
            Ok::<_, StoreError>((told.get::<&str>("writers")?.to_owned(), told.get("last")?))
        };
        if let Ok((writers, drawn)) = told.await {
            self.passing.note(destination, writers, drawn);
        }
    }

    /// Marks and sets aside, and answers how many events will not be met again.
    async fn note(&self, destination: DestinationId, look: &mut Look) -> Result<i64, StoreError> {
        let mut noted = 0;
        let _turn = self.turns.of(destination).await;
        if !look.behind.is_empty() {
            let parameters = [destination.0.into(), look.behind.as_slice().into()];
            noted += row(&*self.driver, "marking events", &self.sql().mark_behind, &parameters)
                .await?
                .get::<i64>("marked")?;
        }
        if !look.unreadable.is_empty() {
            noted += i64::try_from(look.unreadable.len()).unwrap_or(i64::MAX);
            let unreadable = Value::Array(std::mem::take(&mut look.unreadable)).to_string();
            self.settle_as(destination, &[], &[], &unreadable).await?;
        }
        Ok(noted)
    }

    async fn settle_as(
        &self,
        destination: DestinationId,
        published: &[i64],
        keys: &[&str],
        others: &str,
    ) -> Result<(), StoreError> {
        let parameters = [destination.0.into(), published.into(), keys.into(), others.into()];
        self.driver.rows("settling events", &self.sql().settle, &parameters).await.map(|_| ())
    }

    async fn change(&self, doing: &'static str, text: &Arc<str>, events: &[EventName]) -> Result<u64, StoreError> {
        let numbers: Vec<i64> = events.iter().map(|event| event.number.0).collect();
        let keys: Vec<&str> = events.iter().map(|event| event.key.as_str()).collect();
        let parameters = [numbers.as_slice().into(), keys.as_slice().into()];
        let changed: i64 = row(&*self.driver, doing, text, &parameters).await?.get("events")?;
        Ok(u64::try_from(changed).unwrap_or(0))
    }
}

/// The events that were found in one look.
#[derive(Default)]
struct Look {
    next: Vec<OutgoingEvent>,
    /// Those that stand behind others in their ordering key.
    behind: Vec<i64>,
    /// The ends of those that cannot be read.
    unreadable: Vec<Value>,
}

#[async_trait]
impl<D: BookkeepingDriver + 'static> Outbox for SqlOutbox<D> {
    async fn declare(&self, destinations: &[Destination]) -> Result<Vec<Declared>, StoreError> {
        let mut declared = Vec::with_capacity(destinations.len());
        for destination in destinations {
            declared.push(self.intern(destination).await?);
        }
        Ok(declared)
    }

    async fn lease(&self, destination: DestinationId, request: LeaseRequest<'_>) -> Result<Leased, StoreError> {
        let _turn = self.turns.of(destination).await;
        let time = microseconds(request.time).unwrap_or(i64::MAX);
        // An interval of the server's must not overflow.
        let keeps = microseconds(request.receiver_keeps).unwrap_or(i64::MAX).min(AFTER_MAX);
        let limits = request.limits;
        let bytes_max = limits.and_then(|limits| limits.message_bytes_max);
        let bytes_max = bytes_max.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let parameters = [
            destination.0.into(),
            request.relay.into(),
            time.into(),
            keeps.into(),
            limits.map(|limits| limits.kind.as_str()).into(),
            bytes_max.into(),
            limits.is_some_and(|limits| limits.is_structured).into(),
        ];
        let row = row(&*self.driver, "leasing a destination", &self.sql().lease, &parameters).await?;
        Ok(if row.get("mine")? {
            Leased::Mine
        } else if row.get("paused")? {
            Leased::Paused
        } else {
            Leased::Others { left: span(&row, "left")?.unwrap_or_default() }
        })
    }

    async fn release(&self, destination: DestinationId, relay: &str) -> Result<(), StoreError> {
        let _turn = self.turns.of(destination).await;
        let parameters = [destination.0.into(), relay.into()];
        self.driver.rows("releasing a destination", &self.sql().release, &parameters).await.map(|_| ())
    }

    async fn next(
        &self,
        destination: DestinationId,
        events_max: u32,
        bytes_max: u64,
    ) -> Result<Vec<OutgoingEvent>, StoreError> {
        for _ in 0..MARKING_ROUNDS {
            let mut look = self.look(destination, events_max, bytes_max).await?;
            self.pass_published(destination, look.next.len()).await;
            // Set aside before the others go, among which some may be behind it.
            let is_readable = look.unreadable.is_empty();
            let is_all = look.behind.is_empty() && is_readable;
            if is_all || self.note(destination, &mut look).await? == 0 || is_readable && !look.next.is_empty() {
                return Ok(look.next);
            }
        }
        Ok(Vec::new())
    }

    async fn settle(&self, destination: DestinationId, ends: &[(&OutgoingEvent, EventEnd)]) -> Result<(), StoreError> {
        let (mut published, mut keys, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (event, end) in ends {
            match unpublished(event.number.0, event.key.as_str(), end, event.first_sent_ago.is_none()) {
                None => {
                    published.push(event.number.0);
                    keys.push(event.key.as_str());
                }
                Some(other) => others.push(other),
            }
        }
        if ends.is_empty() {
            return Ok(());
        }
        let _turn = self.turns.of(destination).await;
        self.settle_as(destination, &published, &keys, &Value::Array(others).to_string()).await
    }

    async fn backlog(&self, consumer: Option<&ConsumerName>) -> Result<Vec<OutboxBacklog>, StoreError> {
        let parameters = [consumer.map(ConsumerName::as_str).into()];
        let rows = self.driver.rows("looking at the outbox", &self.sql().backlog, &parameters).await?;
        rows.iter().map(backlog).collect()
    }

    async fn events(
        &self,
        destination: Option<&str>,
        state: Option<EventState>,
        max: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let parameters = [destination.into(), state.map(EventState::number).into(), i64::from(max).into()];
        let rows = self.driver.rows("listing events", &self.sql().list_events, &parameters).await?;
        rows.iter().map(stored).collect()
    }

    async fn retry(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.change("retrying events", &self.sql().retry_events, events).await
    }

    async fn retry_stale(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.change("retrying events", &self.sql().retry_stale_events, events).await
    }

    async fn skip(&self, events: &[EventName]) -> Result<u64, StoreError> {
        self.change("skipping events", &self.sql().skip_events, events).await
    }

    async fn pause(&self, destination: &str, is_paused: bool) -> Result<bool, StoreError> {
        let parameters = [destination.into(), is_paused.into()];
        Ok(!self.driver.rows("pausing a destination", &self.sql().pause, &parameters).await?.is_empty())
    }
}

/// The end of an event, as an object for the statement; `None` where it was published. `was_unsent` says whether no copy may have been
/// sent when it was taken: a note of this try that it is under way is then taken back, where the try sent nothing (O100).
fn unpublished(number: i64, key: &str, end: &EventEnd, was_unsent: bool) -> Option<Value> {
    let (state, after, error, may_be_sent, counted) = match end {
        EventEnd::Published => return None,
        EventEnd::Later { after, error, may_be_sent, counted } => {
            // A wait that does not fit is for ever, and an instant must not overflow.
            let after = microseconds(*after).unwrap_or(i64::MAX).min(AFTER_MAX);
            (EventState::Waiting, Some(after), error, *may_be_sent, *counted)
        }
        EventEnd::Failed { error, may_be_sent } => (EventState::Failed, None, error, *may_be_sent, true),
    };
    let error = error.replace('\0', "\u{fffd}");
    let state = state.number();
    let takes_back = (was_unsent && !may_be_sent).then_some(UNDER_WAY);
    Some(json!({
        "number": number, "key": key, "state": state, "after": after, "error": error,
        "may_be_sent": may_be_sent, "counted": counted, "takes_back": takes_back,
    }))
}

/// A hundred years, in microseconds.
const AFTER_MAX: i64 = 3_155_760_000_000_000;

fn span(row: &Row, column: &str) -> Result<Option<Duration>, StoreError> {
    let microseconds = row.get::<Option<i64>>(column)?;
    Ok(microseconds.map(|time| Duration::from_micros(u64::try_from(time).unwrap_or(0))))
}

/// What a destination takes; nothing before a relay has said it.
fn limits(row: &Row) -> Result<Option<DestinationLimits>, StoreError> {
    let Some(kind) = row.get::<Option<&str>>("kind")? else { return Ok(None) };
    let bytes_max = row.get::<Option<i64>>("message_bytes_max")?.and_then(|bytes| u64::try_from(bytes).ok());
    Ok(Some(DestinationLimits::new(kind).message_bytes_max(bytes_max).is_structured(row.get("is_structured")?)))
}

fn damaged(what: &str) -> StoreError {
    damaged_in("outbox", what)
}

fn outgoing(row: &Row) -> Result<OutgoingEvent, StoreError> {
    let consumer = ConsumerName::new(row.get("consumer_name")?).map_err(|_| {
        StoreError::schema(
            "the row of the consumer or writer of this event is missing",
            "Start the program that published it, which puts it back, then let the event go: idem outbox retry",
        )
    })?;
    let derives_as = ConsumerName::new(row.get("derives_as")?).map_err(|_| damaged_in("consumers", "derives_as"))?;
    let key = IdempotencyKey::new(row.get("event_key")?).map_err(|_| damaged("event_key"))?;
    let payload = row.get::<Option<Vec<u8>>>("payload")?.unwrap_or_default();
    let number = EventNumber(row.get("number")?);
    let mut event = OutgoingEvent::new(number, consumer, key, payload.into(), row.instant("created_at")?);
    event.derives_as = derives_as;
    event.tenant = row.get::<&str>("tenant")?.into();
    event.ordering_key = row.get::<Option<Vec<u8>>>("ordering_key")?.map(OrderingKey::new);
    event.event_type = row.get::<Option<&str>>("event_type")?.map(Into::into);
    event.content_type = row.get::<Option<&str>>("content_type")?.map(Into::into);
    if let Some(headers) = row.get::<Option<&str>>("headers")? {
        event.headers = decode_headers(headers).ok_or_else(|| damaged("headers"))?;
    }
    event.attempts = u32::try_from(row.get::<i32>("attempts")?).unwrap_or(0);
    event.first_sent_ago = span(row, "first_sent_ago")?;
    Ok(event)
}

/// The name and age of an event of which something cannot be read.
fn what_is_left(row: &Row) -> Result<OutgoingEvent, StoreError> {
    let consumer = ConsumerName::new(row.get("consumer_name")?).or_else(|_| ConsumerName::new("unknown"));
    let key = IdempotencyKey::new(row.get("event_key")?).or_else(|_| IdempotencyKey::new("unreadable"));
    let (consumer, key) = (consumer.map_err(|_| damaged("consumer"))?, key.map_err(|_| damaged("event_key"))?);
    let mut event = OutgoingEvent::new(
        EventNumber(row.get("number")?),
        consumer,
        key,
        Vec::new().into(),
        row.instant("created_at")?,
    );
    event.attempts = u32::try_from(row.get::<i32>("attempts")?).unwrap_or(0);
    event.first_sent_ago = span(row, "first_sent_ago")?;
    Ok(event)
}

fn stored(row: &Row) -> Result<StoredEvent, StoreError> {
    let state = EventState::of(row.get("state")?).ok_or_else(|| damaged("state"))?;
    let payload_bytes = u64::try_from(row.get::<i64>("payload_bytes")?).unwrap_or(0);
    // One that cannot be read is shown with the reason: an operator removes it, and sees the others.
    let (event, damage) = match outgoing(row) {
        Ok(event) => (event, None),
        Err(error) => (what_is_left(row)?, Some(error.to_string())),
    };
    let mut stored = StoredEvent::new(event, row.get("destination")?, payload_bytes, state);
    stored.error = damage.map_or_else(|| row.get("error"), |why| Ok(Some(why)))?;
    stored.not_before = row.optional_instant("not_before")?;
    Ok(stored)
}

fn backlog(row: &Row) -> Result<OutboxBacklog, StoreError> {
    let count = |column: &str| Ok::<u64, StoreError>(u64::try_from(row.get::<i64>(column)?).unwrap_or(0));
    let mut backlog = OutboxBacklog::new(row.get("name")?, DestinationId(row.get("id")?));
    (backlog.pending, backlog.waiting) = (count("pending")?, count("waiting")?);
    (backlog.failed, backlog.behind) = (count("failed")?, count("behind")?);
    backlog.oldest = span(row, "oldest")?;
    backlog.due = span(row, "due")?;
    backlog.first_sent_ago = span(row, "first_sent_ago")?;
    backlog.receiver_keeps = span(row, "receiver_keeps")?.unwrap_or(backlog.receiver_keeps);
    backlog.limits = limits(row)?;
    backlog.relayed_by = row.get("relayed_by")?;
    backlog.is_paused = row.get("paused")?;
    Ok(backlog)
}
