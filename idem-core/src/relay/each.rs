//! Sends each event by itself, to endpoints of different owners, so that a slow endpoint delays no other.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::Instant;

use crate::{
    bugs::{Bug, planted},
    error::StoreError,
    failpoint,
    outbox::{
        publisher::EventError,
        rows::{DestinationId, EventEnd, OutgoingEvent, UNDER_WAY},
    },
    relay::{
        carrier::{BYTES_MAX, Carrier, Judged, TROUBLE, give, injected},
        ends::{self, Became},
        lease::Lease,
        rest, told,
    },
};

/// Events that are read for each one that may be in flight: events behind another of their ordering key cannot begin.
const LOOKED_AT: usize = 8;

/// An event that is in flight for longer than this is noted as tried. Otherwise the events behind it would be read again and
/// again, in place of others that could go.
const SLOW_AFTER: Duration = Duration::from_millis(200);

/// The extra wait beyond the deadline for an answer that never comes.
const MARGIN: Duration = Duration::from_secs(2);

type Answered = (Arc<OutgoingEvent>, Result<(), EventError>);

/// The events that are with the publisher.
#[derive(Default)]
struct UnderWay {
    calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The answers that came while the outbox was waited for.
    answered: Vec<Answered>,
    events: Vec<Begun>,
}

struct Begun {
    event: Arc<OutgoingEvent>,
    at: Instant,
    is_noted: bool,
}

impl UnderWay {
    fn begin(&mut self, event: &Arc<OutgoingEvent>, call: BoxFuture<'static, Answered>) {
        self.calls.push(call);
        self.events.push(Begun { event: Arc::clone(event), at: Instant::now(), is_noted: false });
    }

    /// Whether this event is with the publisher, or one before it in its ordering key. A number alone says too little: a server that
    /// took over without the last commits draws it again for another event, and those behind that one would go before it (O41, J70).
    fn holds(&self, event: &OutgoingEvent) -> bool {
        let is_it = |begun: &OutgoingEvent| {
            begun.number == event.number && (begun.key == event.key || planted(Bug::UnderWayByNumber))
        };
        let is_before =
            |begun: &OutgoingEvent| event.ordering_key.is_some() && begun.ordering_key == event.ordering_key;
        self.events.iter().any(|begun| is_it(&begun.event) || is_before(&begun.event))
    }

    /// Waits for the outbox while the calls go on: one that nothing polled would find its time over, although its answer has come.
    async fn beside<T>(&mut self, outbox: impl Future<Output = T>) -> T {
        let mut outbox = pin!(outbox);
        loop {
            tokio::select! {
                biased;
                done = &mut outbox => return done,
                Some(answer) = self.calls.next() => self.answered.push(answer),
            }
        }
    }

    /// The answers that are there, or else the next one; pending while there is no call.
    async fn answers(&mut self) -> Vec<Answered> {
        if self.answered.is_empty() {
            match self.calls.next().await {
                Some(answer) => self.answered.push(answer),
                None => std::future::pending().await,
            }
        }
        while let Some(next) = self.calls.next().now_or_never().flatten() {
            self.answered.push(next);
        }
        std::mem::take(&mut self.answered)
    }

    /// Whether the outbox was told that it is under way.
    fn is_noted(&self, event: &Arc<OutgoingEvent>) -> bool {
        self.events.iter().any(|begun| begun.is_noted && Arc::ptr_eq(&begun.event, event))
    }

    fn ended(&mut self, event: &Arc<OutgoingEvent>) {
        self.events.retain(|begun| !Arc::ptr_eq(&begun.event, event));
    }
}

impl Carrier {
    pub(super) async fn each(&mut self, id: DestinationId, lease: &Lease, at_once: usize) {
        let mut under_way = UnderWay::default();
        let (mut poll, mut refused) = (self.settings.poll_busy, None::<Instant>);
        loop {
            let mut found = false;
            let is_refused = refused.is_some_and(|until| Instant::now() < until);
            if self.goes_on(lease) && under_way.events.len() < at_once && !is_refused {
                match self.begin(id, lease, &mut under_way, at_once).await {
                    Ok(begun) => found = begun > 0,
                    Err(error) => self.store_failed("taking events", &error),
                }
            }
            if under_way.events.is_empty() && (!self.goes_on(lease) || self.is_drained(found).await) {
                return;
            }
            poll = if found { self.settings.poll_busy } else { (poll * 2).min(self.settings.poll_idle) };
            let slow_at =
                under_way.events.iter().filter(|begun| !begun.is_noted).map(|begun| begun.at + SLOW_AFTER).min();
            let slow = async {
                match slow_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Look for events if a slot is free; otherwise wait until one is.
            let may_begin = under_way.events.len() < at_once && !self.stopping.is_asked();
            tokio::select! {
                answers = under_way.answers() => {
                    if let Err(error) = self.answered(id, lease, &mut under_way, answers).await {
                        self.store_failed("noting what became of events", &error);
                    }
                    refused = (self.tries > 0).then(|| Instant::now() + TROUBLE.backoff_now(self.tries));
                }
                () = slow => self.note_slow(id, &mut under_way).await,
                () = self.wait_or_lost(lease, poll), if may_begin => {}
            }
        }
    }

    /// Takes events and begins those that may go now. Answers how many.
    async fn begin(
        &mut self,
        id: DestinationId,
        lease: &Lease,
        under_way: &mut UnderWay,
        at_once: usize,
    ) -> Result<usize, StoreError> {
        let max = u32::try_from(at_once * LOOKED_AT).unwrap_or(u32::MAX);
        self.woken_now();
        let outbox = Arc::clone(&self.outbox);
        let events = under_way.beside(outbox.next(id, max, BYTES_MAX)).await?;
        self.store_answers();
        let events = self.seen(events);
        failpoint!(RELAY_TAKEN).map_err(injected)?;
        let events: Vec<OutgoingEvent> = events.into_iter().filter(|event| !under_way.holds(event)).collect();
        let mut begun = 0;
        for event in under_way.beside(self.without_stale(id, events)).await? {
            // Another relay may have the destination meanwhile, and then these are its events.
            if under_way.events.len() >= at_once || !self.goes_on(lease) {
                break;
            }
            if under_way.holds(&event) {
                continue;
            }
            if planted(Bug::MarksFirst) {
                self.outbox.settle(id, &[(&event, EventEnd::Published)]).await?;
            }
            let event = Arc::new(event);
            let (route, settings, line) = (self.route.clone(), self.settings, Arc::clone(&self.line));
            let given = Arc::clone(&event);
            let call = async move {
                let answer = give(&route, &settings, &line, &[&given]).await.pop();
                (given, answer.unwrap_or_else(|| Err(EventError::unconfirmed("no answer"))))
            };
            under_way.begin(&event, Box::pin(call));
            begun += 1;
        }
        Ok(begun)
    }

    /// Notes the outcome of these events.
    async fn answered(
        &mut self,
        id: DestinationId,
        lease: &Lease,
        under_way: &mut UnderWay,
        ended: Vec<Answered>,
    ) -> Result<(), StoreError> {
        let (events, answers): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        let mut judged = Judged::default();
        for (event, answer) in events.iter().zip(answers) {
            if let Err(error @ EventError::Later { counted: false, after: None, .. }) = &answer {
                // Where the destination has said when, the event is in line, and nothing is wrong.
                judged.unconfirmed(event.attempts, &told(error));
            }
            let mut became = ends::of(event, answer, &self.route.retry, self.tries);
            if under_way.is_noted(event) {
                if !lease.holds() {
                    // Another relay may have noted that it has it under way, and what it noted is not this one's to take back (O100).
                    became = became.may_be_sent();
                } else if let Became::Refused(why) = &became {
                    // Nothing was sent, and without an outcome the note would say otherwise (O100).
                    judged.add(event, Became::Noted(ends::not_sent(why.clone(), self.tries)));
                }
            }
            judged.add(event, became);
        }
        let confirmed = failpoint!(RELAY_CONFIRMED).map_err(injected);
        if confirmed.is_ok() {
            let judged = judged.of_each();
            self.tell(&judged);
            under_way.beside(self.note(id, judged.ends)).await;
        }
        // Only now, because the outbox returns them again until they are noted.
        events.iter().for_each(|event| under_way.ended(event));
        confirmed?;
        failpoint!(RELAY_SETTLED).map_err(injected)
    }

    /// Notes that an event is in flight, so that the events behind it wait in the outbox and are not read. If no outcome follows,
    /// because this process ends, the event is tried again after the deadline, and may have been sent. An outcome that says that it was
    /// not takes that back.
    async fn note_slow(&self, id: DestinationId, under_way: &mut UnderWay) {
        let now = Instant::now();
        let mut slow = Vec::new();
        for begun in under_way.events.iter_mut().filter(|begun| !begun.is_noted && now >= begun.at + SLOW_AFTER) {
            begun.is_noted = true;
            slow.push(Arc::clone(&begun.event));
        }
        let end = || EventEnd::Later {
            after: self.settings.publish_deadline + MARGIN,
            error: UNDER_WAY.to_owned(),
            may_be_sent: true,
            counted: false,
        };
        let ends: Vec<_> = slow.iter().map(|event| (&**event, end())).collect();
        if let Err(error) = under_way.beside(self.outbox.settle(id, &ends)).await {
            self.store_failed("noting what is under way", &error);
        }
    }

    async fn wait_or_lost(&mut self, lease: &Lease, time: Duration) {
        if lease.holds() {
            self.wait(time).await;
        } else {
            // Wait for the events in flight; begin none.
            rest(Duration::from_secs(1), &self.stopping).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{names::IdempotencyKey, relay::tests::event};

    /// O41: two events of two servers have one number, and one of them is with the publisher.
    #[test]
    fn o41_an_event_under_way_is_known_by_its_number_and_its_key() {
        let (lost, kept) = (event(1, None), Arc::new(event(2, None)));
        let mut new = lost.clone();
        new.key = IdempotencyKey::new("of the new server").expect("a key");
        let (lost, new) = (Arc::new(lost), Arc::new(new));
        let mut under_way = UnderWay::default();
        let never = || Box::pin(std::future::pending::<Answered>());
        under_way.begin(&lost, never());
        under_way.begin(&kept, never());
        assert!(under_way.holds(&lost) && !under_way.holds(&new));
        under_way.begin(&new, never());
        under_way.ended(&lost);
        assert!(under_way.holds(&new) && under_way.holds(&kept) && !under_way.holds(&lost));
    }
}
