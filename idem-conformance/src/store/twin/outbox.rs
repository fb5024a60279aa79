//! The outbox as relays and operators have it.

use std::{fmt::Write as _, sync::Arc};

use idem_core::{
    ConsumerName, StoreError,
    message::OrderingKey,
    outbox::{
        Destination, DestinationId, DestinationLimits, EventEnd, EventName, LeaseRequest, Leased, Outbox,
        OutboxBacklog, OutgoingEvent, RECEIVER_KEEPS, StoredEvent,
    },
};

use super::{
    super::subject::StoreUnderTest,
    side::{Side, coarse, number},
    steps::{Named, OutboxStep},
};

/// More than a sequence has.
const EVENTS_MAX: u32 = 1_000;

/// A destination of one sequence alone.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) id: DestinationId,
}

/// Declares the destinations of a sequence.
pub(super) async fn declare(outbox: &dyn Outbox, consumer: &str) -> Vec<Declared> {
    let names = ["one", "two"].map(|name| format!("{consumer} {name}"));
    let destinations = names.clone().map(Destination::new);
    let declared = outbox.declare(&destinations).await.unwrap();
    names.into_iter().zip(declared).map(|(name, row)| Declared { name, id: row.id }).collect()
}

impl<T: StoreUnderTest> Side<'_, T> {
    pub(super) fn destination(&self, number: usize) -> &Declared {
        &self.destinations[number % self.destinations.len()]
    }

    pub(super) async fn relay(&mut self, step: &OutboxStep) -> Result<String, StoreError> {
        let Some(outbox) = self.outbox.clone() else { return Ok(String::new()) };
        Ok(match step {
            OutboxStep::Declare { destination, form } => {
                let mut again = Destination::new(&self.destination(*destination).name);
                again.id_form = *form;
                let again = outbox.declare(&[again]).await?[0].id;
                let known: Vec<_> = self.destinations.iter().map(|declared| declared.id == again).collect();
                format!("{known:?}")
            }
            OutboxStep::Lease { destination, relay, time, receiver_keeps } => {
                let relay = relay_name(*relay);
                let limits = DestinationLimits::new("sqs").message_bytes_max(Some(receiver_keeps.as_secs()));
                let limits = (*receiver_keeps != RECEIVER_KEEPS).then_some(&limits);
                let request = LeaseRequest::new(&relay, *time).receiver_keeps(*receiver_keeps).limits(limits);
                match outbox.lease(self.destination(*destination).id, request).await? {
                    Leased::Others { left } => format!("leased by another one for {}", coarse(left)),
                    leased @ (Leased::Mine | Leased::Paused) => format!("{leased:?}"),
                }
            }
            OutboxStep::Release { destination, relay } => {
                outbox.release(self.destination(*destination).id, &relay_name(*relay)).await?;
                String::new()
            }
            OutboxStep::Next { destination, events, bytes } => {
                self.next(&outbox, *destination, *events, *bytes).await?
            }
            OutboxStep::Settle { ends, elsewhere } => {
                self.settle(&outbox, ends, *elsewhere).await?;
                String::new()
            }
            OutboxStep::Retry(events) => format!("{} retried", outbox.retry(&self.named(events)).await?),
            OutboxStep::Skip(events) => format!("{} skipped", outbox.skip(&self.named(events)).await?),
            OutboxStep::Pause { destination, is_paused } => {
                let is_there = outbox.pause(&self.destination(*destination).name, *is_paused).await?;
                format!("there {is_there}")
            }
        })
    }

    async fn next(
        &mut self,
        outbox: &Arc<dyn Outbox>,
        destination: usize,
        events: u32,
        bytes: u64,
    ) -> Result<String, StoreError> {
        let mut said = String::new();
        for event in outbox.next(self.destination(destination).id, events, bytes).await? {
            let _ = writeln!(said, "{} {:?}", self.outgoing(&event), event.payload);
            self.in_hand.retain(|(_, other)| other.name() != event.name());
            self.in_hand.push((destination, event));
        }
        Ok(said)
    }

    async fn settle(
        &self,
        outbox: &Arc<dyn Outbox>,
        ends: &[(Named, EventEnd)],
        elsewhere: bool,
    ) -> Result<(), StoreError> {
        let mut settled: Vec<(OutgoingEvent, EventEnd)> = Vec::new();
        let mut at = None;
        for (named, end) in ends {
            let of = |number| late(&self.in_hand, number);
            let Some((destination, event)) = of(named.event) else { return Ok(()) };
            at.get_or_insert(destination + usize::from(elsewhere));
            let mut event = event.clone();
            if let Some((_, other)) = named.key_of.and_then(of) {
                event.key = other.key.clone();
            }
            // A relay has one end of an event.
            if settled.iter().all(|(other, _)| other.name() != event.name()) {
                settled.push((event, end.clone()));
            }
        }
        let Some(at) = at else { return Ok(()) };
        let ends: Vec<_> = settled.iter().map(|(event, end)| (event, end.clone())).collect();
        outbox.settle(self.destination(at).id, &ends).await
    }

    /// The names as an operator gives them, of events that may be gone.
    fn named(&self, events: &[Named]) -> Vec<EventName> {
        let of = |number| late(&self.events, number);
        let name = |named: &Named| {
            let EventName { number, key } = of(named.event)?.clone();
            let key = named.key_of.and_then(of).map_or(key, |other| other.key.clone());
            Some(EventName { number, key })
        };
        events.iter().filter_map(name).collect()
    }

    /// The outbox as operators see it.
    pub(super) async fn look_at_outbox(&mut self) -> String {
        let Some(outbox) = self.outbox.clone() else { return String::new() };
        let names: Vec<String> = self.destinations.iter().map(|declared| declared.name.clone()).collect();
        let mut seen = String::new();
        for name in &names {
            for stored in outbox.events(Some(name), None, EVENTS_MAX).await.unwrap() {
                let _ = writeln!(seen, "{}", self.stored_event(&stored));
            }
        }
        seen + &self.backlogs(&outbox, None).await
    }

    /// The backlogs, or what they have of the events of this consumer.
    async fn backlogs(&self, outbox: &Arc<dyn Outbox>, of: Option<&ConsumerName>) -> String {
        let backlogs = outbox.backlog(of).await.unwrap();
        let mut seen = String::new();
        for declared in &self.destinations {
            let backlog = backlogs.iter().find(|backlog| backlog.destination == declared.name).unwrap();
            let _ = writeln!(seen, "{}", waiting(backlog));
        }
        seen
    }

    /// What is left in the outbox, and the part of it that is this consumer's.
    pub(super) async fn left_in_outbox(&mut self) -> String {
        let Some(outbox) = self.outbox.clone() else { return String::new() };
        let seen = self.look_at_outbox().await;
        seen + &self.backlogs(&outbox, Some(&self.consumer)).await
    }

    fn outgoing(&mut self, event: &OutgoingEvent) -> String {
        let number = number(&mut self.events, event.name());
        let headers: Vec<_> = event.headers.iter().collect();
        let age = self.age(event.created_at);
        format!(
            "event {number} of {:?} {:?}: {:?} {:?} {:?} {:?} {headers:?} attempts {} sent {:?} age {age}",
            event.consumer.as_str(),
            event.tenant,
            event.key,
            event.ordering_key.as_ref().map(OrderingKey::as_bytes),
            event.event_type,
            event.content_type,
            event.attempts,
            event.first_sent_ago.map(coarse),
        )
    }

    fn stored_event(&mut self, stored: &StoredEvent) -> String {
        let event = self.outgoing(&stored.event);
        let waits = stored.not_before.map(|at| at.duration_since(self.now).map_or(0, coarse));
        let StoredEvent { destination, payload_bytes, state, error, .. } = stored;
        format!("{event} to {destination:?}: {payload_bytes} bytes, {state:?}, {error:?}, waits {waits:?}")
    }
}

/// Counted from the end: what came early is mostly gone.
fn late<E>(known: &[E], number: usize) -> Option<&E> {
    known.iter().nth_back(number % known.len().max(1))
}

fn relay_name(number: usize) -> String {
    format!("relay {number}")
}

fn waiting(backlog: &OutboxBacklog) -> String {
    let OutboxBacklog { destination, pending, waiting, failed, behind, receiver_keeps, relayed_by, is_paused, .. } =
        backlog;
    let (oldest, sent, limits) = (backlog.oldest.map(coarse), backlog.first_sent_ago.map(coarse), &backlog.limits);
    format!(
        "{destination:?}: pending {pending} waiting {waiting} failed {failed} behind {behind} oldest {oldest:?} sent {sent:?} \
         keeps {receiver_keeps:?} takes {limits:?} relayed by {relayed_by:?} paused {is_paused}"
    )
}
