//! The rows that a unit writes beside its records, as columns, and how their insertion ended.

use std::{
    collections::HashSet,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use idem_core::{
    StoreError,
    outbox::{AppendError, Appended, NewEvent},
    results::NewResult,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    check::errors::WRITING,
    run::{
        headers::encode_headers,
        row::{Row, microseconds},
    },
    text::{key_id::key_id, postgres::PostgresStatements},
};

/// The unique key of the outbox: destination, consumer and key id.
type EventId = (i32, i32, Uuid);

/// How often events are inserted that were neither inserted nor found: a relay may have removed the one that was in the way.
const ROUNDS: usize = 3;

/// Events as the columns of the statement that writes them, and of the one that reads those not written: in the order of the unique
/// key, so that two units with the same events wait for each other one way only.
#[derive(Debug)]
pub struct EventColumns<'e> {
    /// Whether one of them may be in the outbox already; if not, the statement may fail of that.
    pub may_be_known: bool,
    /// The places in the unit's events.
    places: Vec<usize>,
    /// `int4[]`: which of the statement's numbers each gets, from 1, in the order of their publication.
    pub ranks: Vec<i32>,
    /// `int4[]`.
    pub destinations: Vec<i32>,
    /// `int4[]`.
    pub consumers: Vec<i32>,
    /// `uuid[]`.
    pub key_ids: Vec<Uuid>,
    /// `text[]`.
    pub keys: Vec<&'e str>,
    /// `bytea[]`.
    pub ordering_keys: Vec<Option<&'e [u8]>>,
    /// `text[]`.
    pub event_types: Vec<Option<&'e str>>,
    /// `text[]`.
    pub content_types: Vec<Option<&'e str>>,
    /// `text[]` of JSON.
    pub headers: Vec<Option<String>>,
    /// `bytea[]`.
    pub payloads: Vec<&'e [u8]>,
    /// `bytea[]`.
    pub hashes: Vec<&'e [u8]>,
}

impl<'e> EventColumns<'e> {
    /// The columns of events none of which is known to be in the outbox.
    #[must_use]
    pub fn new(events: &'e [NewEvent]) -> Self {
        Self::of(events, (0..events.len()).collect(), false)
    }

    /// The columns of the events at these places.
    fn of(events: &'e [NewEvent], mut places: Vec<usize>, may_be_known: bool) -> Self {
        places.sort_unstable();
        let ranked = (1..).zip(places).filter_map(|(rank, place)| Some((rank, place, events.get(place)?)));
        let ids = ranked.map(|(rank, place, event)| {
            let id: EventId = (event.destination.0, event.scope.0, key_id(event.key.as_str()));
            (id, rank, place, event)
        });
        let mut ids: Vec<_> = ids.collect();
        ids.sort_unstable_by_key(|(id, rank, ..)| (*id, *rank));
        let chosen = || ids.iter().map(|(.., event)| *event);
        Self {
            may_be_known,
            places: ids.iter().map(|(_, _, place, _)| *place).collect(),
            ranks: ids.iter().map(|(_, rank, ..)| *rank).collect(),
            destinations: ids.iter().map(|((destination, ..), ..)| *destination).collect(),
            consumers: ids.iter().map(|((_, consumer, _), ..)| *consumer).collect(),
            key_ids: ids.iter().map(|((.., key_id), ..)| *key_id).collect(),
            keys: chosen().map(|event| event.key.as_str()).collect(),
            ordering_keys: chosen().map(|event| event.ordering_key.as_ref().map(|key| key.as_bytes())).collect(),
            event_types: chosen().map(|event| event.event_type.as_deref()).collect(),
            content_types: chosen().map(|event| event.content_type.as_deref()).collect(),
            headers: chosen().map(|event| encode_headers(&event.headers)).collect(),
            payloads: chosen().map(|event| &*event.payload).collect(),
            hashes: chosen().map(|event| event.hash.as_bytes().as_slice()).collect(),
        }
    }

    fn ids(&self) -> impl Iterator<Item = EventId> {
        let ids = self.destinations.iter().zip(&self.consumers).zip(&self.key_ids);
        ids.map(|((destination, consumer), id)| (*destination, *consumer, *id))
    }

    /// The places of those that are not among these rows.
    fn not_among(&self, rows: &[Row]) -> Result<Vec<usize>, StoreError> {
        let there = rows.iter().map(event_id).collect::<Result<HashSet<EventId>, StoreError>>()?;
        Ok(self.places.iter().zip(self.ids()).filter(|(_, id)| !there.contains(id)).map(|(place, _)| *place).collect())
    }

    /// The place of one of which the outbox holds another content.
    fn conflict(&self, found: &[Row]) -> Result<Option<usize>, StoreError> {
        for row in found {
            let (id, key, hash) = (event_id(row)?, row.get::<&str>("event_key")?, row.get::<&[u8]>("event_hash")?);
            for (at, own) in self.ids().enumerate() {
                // Two keys that share an id are two events, of which there is room for one.
                if own == id && (self.keys.get(at) != Some(&key) || self.hashes.get(at) != Some(&hash)) {
                    return Ok(self.places.get(at).copied());
                }
            }
        }
        Ok(None)
    }
}

fn event_id(row: &Row) -> Result<EventId, StoreError> {
    Ok((row.get("destination")?, row.get("consumer")?, row.get("key_id")?))
}

/// Answers as the columns of the statement that writes them.
#[derive(Debug)]
pub struct ResultColumns<'r> {
    /// `int4[]`.
    pub consumers: Vec<i32>,
    /// `uuid[]`.
    pub key_ids: Vec<Uuid>,
    /// `int4[]`: 0 an answer, 1 an error.
    pub kinds: Vec<i32>,
    /// `int4[]`.
    pub statuses: Vec<Option<i32>>,
    /// `text[]`.
    pub content_types: Vec<Option<&'r str>>,
    /// `text[]` of JSON.
    pub headers: Vec<Option<String>>,
    /// `bytea[]`.
    pub bodies: Vec<&'r [u8]>,
    /// `int4[]`: the numbers of the keys that they are sealed with.
    pub sealed_with: Vec<Option<i32>>,
    /// `int8[]`: for how many microseconds they are kept, where their records are kept for longer.
    pub kept_for: Vec<Option<i64>>,
    /// `text[]`.
    pub references: Vec<Option<&'r str>>,
}

impl<'r> ResultColumns<'r> {
    /// The columns of these answers.
    #[must_use]
    pub fn of(results: &'r [NewResult]) -> Self {
        let mut rows: Vec<ResultRow<'_>> = results.iter().map(ResultRow::of).collect();
        Self {
            consumers: rows.iter().map(|row| row.consumer).collect(),
            key_ids: rows.iter().map(|row| row.key_id).collect(),
            kinds: rows.iter().map(|row| row.kind).collect(),
            statuses: rows.iter().map(|row| row.status).collect(),
            content_types: rows.iter().map(|row| row.content_type).collect(),
            headers: rows.iter_mut().map(|row| row.headers.take()).collect(),
            bodies: rows.iter().map(|row| row.body).collect(),
            sealed_with: rows.iter().map(|row| row.sealed_with).collect(),
            kept_for: rows.iter().map(|row| row.kept_for).collect(),
            references: rows.iter().map(|row| row.reference).collect(),
        }
    }
}

/// One answer as the parameters of the statement that writes it: the values of [`ResultColumns`]. For the server ten arrays of one value
/// each are half of what that statement costs.
#[derive(Debug)]
pub struct ResultRow<'r> {
    /// `int4`.
    pub consumer: i32,
    /// `uuid`.
    pub key_id: Uuid,
    /// `int4`.
    pub kind: i32,
    /// `int4`.
    pub status: Option<i32>,
    /// `text`.
    pub content_type: Option<&'r str>,
    /// `text` of JSON.
    pub headers: Option<String>,
    /// `bytea`.
    pub body: &'r [u8],
    /// `int4`.
    pub sealed_with: Option<i32>,
    /// `int8`.
    pub kept_for: Option<i64>,
    /// `text`.
    pub reference: Option<&'r str>,
}

impl<'r> ResultRow<'r> {
    /// The values of this answer.
    #[must_use]
    pub fn of(result: &'r NewResult) -> Self {
        Self {
            consumer: result.scope.0,
            key_id: key_id(result.key.as_str()),
            kind: i32::from(result.is_error),
            status: result.result.status.map(i32::from),
            content_type: result.result.content_type.as_deref(),
            headers: encode_headers(&result.result.headers),
            body: &result.result.body,
            sealed_with: Some(i32::from(result.sealed_with)).filter(|number| *number != 0),
            kept_for: result.kept_for.and_then(microseconds),
            reference: result.result.reference.as_deref(),
        }
    }
}

impl PostgresStatements {
    /// The statement that writes these events, with the seal and the COMMIT behind it.
    #[must_use]
    pub fn inserting_before_seal(&self, events: &EventColumns<'_>) -> &Arc<str> {
        if events.ranks.len() == 1 { &self.append_one_before_seal } else { &self.append_before_seal }
    }

    /// The statement that writes these events.
    #[must_use]
    pub fn inserting(&self, events: &EventColumns<'_>) -> &Arc<str> {
        match events.ranks.len() {
            _ if !events.may_be_known => &self.append_new_events,
            1 => &self.append_event,
            _ => &self.append_events,
        }
    }
}

/// Whether a unit has of late published an event whose id was in the outbox already. Until then the events of units are inserted as
/// new ones, which takes the server a third less, and one that is known fails its unit, which runs again.
#[derive(Debug, Default)]
pub struct KnownEvents(Mutex<Option<Instant>>);

/// For so long units look at what is in the outbox before they are sealed, once one has met an event of its own there: the messages
/// that a restore or `idem forget` brings again come one after the other.
const KNOWN_EVENTS_FOR: Duration = Duration::from_secs(60);

impl KnownEvents {
    /// The error of [`inserting_before_seal`](PostgresStatements::inserting_before_seal) with this code where it met such an event, or a
    /// table that suppresses rows.
    ///
    /// # Errors
    /// `source`, where it is another.
    pub fn error<E: Into<idem_core::BoxError>>(&self, code: &str, source: E) -> Result<StoreError, E> {
        match code {
            "23505" => {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Ok(StoreError::contended(WRITING, source))
            }
            "22012" => Ok(suppressed_event()),
            _ => Err(source),
        }
    }

    /// Whether one was met within the last minute.
    pub fn were_met(&self) -> bool {
        let met = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        met.is_some_and(|met| met.elapsed() < KNOWN_EVENTS_FOR)
    }
}

/// An open transaction that events and answers are written in. Errors are those of
/// [`append`](idem_core::store::UnitOfWork::append).
pub trait Appending: Send {
    /// Keeps events for the seal, which writes them; `false` where it does not. Not asked of a unit that cannot run again.
    fn keep_events(&mut self, _: &[NewEvent]) -> bool {
        false
    }

    /// Runs the statement of [`inserting`](crate::PostgresStatements::inserting), or its like.
    fn insert_events(&mut self, events: &EventColumns<'_>)
    -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// Runs [`read_events`](crate::PostgresStatements::read_events), or its like.
    fn read_events(&mut self, events: &EventColumns<'_>) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// Writes answers, or keeps them for the seal that [writes](crate::PostgresStatements::seal_results) them.
    fn insert_results(&mut self, results: &[NewResult]) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Writes the events and results of a unit's handlers: one statement a table, and one more for events that are in the outbox already.
///
/// # Errors
/// As for [`append`](idem_core::store::UnitOfWork::append).
///
/// # Cancel safety
/// Not cancel safe: drop the unit.
pub async fn append(unit: &mut impl Appending, appended: &Appended) -> Result<(), AppendError> {
    if !appended.results.is_empty() {
        unit.insert_results(&appended.results).await?;
    }
    if appended.events.is_empty() || !appended.runs_once && unit.keep_events(&appended.events) {
        return Ok(());
    }
    let mut left: Vec<usize> = (0..appended.events.len()).collect();
    for round in 0..ROUNDS {
        if left.is_empty() {
            return Ok(());
        }
        let events = EventColumns::of(&appended.events, left, !appended.is_shared || round > 0);
        left = events.not_among(&unit.insert_events(&events).await?)?;
        if left.is_empty() {
            return Ok(());
        }
        let events = EventColumns::of(&appended.events, left, true);
        let found = unit.read_events(&events).await?;
        if let Some(event) = events.conflict(&found)? {
            return Err(AppendError::Conflict { event });
        }
        left = events.not_among(&found)?;
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(suppressed_event().into())
}

/// As with a record (B6): no row inserted and none found proves nothing.
#[must_use]
pub fn suppressed_event() -> StoreError {
    let text = "an event was neither inserted into the outbox nor found there: look for a trigger, a rule or a row security \
                policy on that table, which suppresses rows";
    StoreError::unavailable(WRITING, text)
}

#[cfg(test)]
mod tests {
    use idem_core::{Event, IdempotencyKey, outbox::DestinationId, store::ScopeId};

    use super::*;

    #[test]
    fn events_stand_in_the_order_of_their_ids_and_are_numbered_in_that_of_publication() {
        let event = |(destination, key): (i32, &str)| {
            NewEvent::plain(
                ScopeId(1),
                DestinationId(destination),
                IdempotencyKey::new(key).unwrap(),
                Event::to("d").body("it"),
            )
            .unwrap()
        };
        let given = [(2, "one"), (1, "two"), (1, "three"), (2, "four"), (1, "five")];
        let events: Vec<NewEvent> = given.into_iter().map(event).collect();
        for places in [vec![0, 1, 2, 3, 4], vec![4, 0, 2]] {
            let columns = EventColumns::of(&events, places.clone(), true);
            assert!(columns.ids().is_sorted());
            let mut published: Vec<_> = columns.ranks.iter().zip(&columns.keys).collect();
            published.sort();
            let mut in_order = places;
            in_order.sort_unstable();
            let expected = (1..).zip(in_order.iter().map(|place| given[*place].1));
            assert!(published.into_iter().map(|(rank, key)| (*rank, *key)).eq(expected));
            let at_their_places = columns.places.iter().zip(&columns.keys);
            assert!(at_their_places.into_iter().all(|(place, key)| given[*place].1 == *key));
        }
    }
}
