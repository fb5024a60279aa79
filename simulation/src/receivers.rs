//! Where events go: receivers that are slow, refuse, lose answers and hang, each event checked as it arrives; and the events
//! that must have arrived in the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    Store as _,
    config::RetryPolicy,
    outbox::{CAUSED_BY, Dispatch, EventError, EventPublisher, EventState, OutgoingEvent},
    relay::{RelayBuilder, Route},
};
use idem_testkit::{Operation, memory::Rate};

use crate::{
    calls::CALLS,
    handler::UsersOwn,
    journal::{Happened, Rule},
    telling::{Receiver, Told},
    world::World,
};

/// Which event it is: of a content, and which of those that its handler publishes; or of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Of {
    Content(usize, usize),
    Operation(usize),
}

/// As it stands in the event's payload.
impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(content, number) => write!(f, "c {content} {number}"),
            Self::Operation(operation) => write!(f, "o {operation} 0"),
        }
    }
}

impl Of {
    fn event(event: &OutgoingEvent) -> Option<Self> {
        let text = std::str::from_utf8(&event.payload).ok()?;
        let mut words = text.split(' ');
        let (kind, first, second) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(if kind == "c" { Self::Content(first, second) } else { Self::Operation(first) })
    }
}

/// The events that have arrived so far.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The id of each event that was published, which it has for ever.
    ids: BTreeMap<Of, String>,
    /// In which place the first copy came.
    first: BTreeMap<Of, usize>,
    /// How many effects there were when the arrival of an event was confirmed to a relay.
    confirmed: BTreeMap<Of, usize>,
    /// Whether receivers have stopped failing.
    pub(crate) faults_over: bool,
    /// How many effects there were when everything had come to rest.
    pub(crate) effects_at_rest: Option<usize>,
}

/// The routes of a process's relay.
pub(crate) fn routes(world: &Arc<World>, process: usize, mut relay: RelayBuilder) -> RelayBuilder {
    let Some(telling) = &world.scenario.telling else { return relay };
    for (number, receiver) in telling.receivers.iter().enumerate() {
        let client = Client { world: Arc::clone(world), process, number, receiver: *receiver };
        let retry = RetryPolicy::new(receiver.attempts, Duration::from_millis(100), Duration::from_secs(2));
        relay = relay.route(Route::to(name(number), client).retry(retry));
    }
    let (lease, deadline) = (telling.lease, telling.publish_deadline);
    let (poll_busy, poll_idle) = (telling.poll_busy, telling.poll_idle);
    relay.named(format!("process {process}")).settings(move |settings| {
        (settings.lease, settings.publish_deadline) = (lease, deadline);
        (settings.poll_busy, settings.poll_idle) = (poll_busy, poll_idle);
    })
}

/// The name of a receiver.
pub(crate) fn name(receiver: usize) -> String {
    format!("receiver {receiver}")
}

/// A process's client of a receiver.
#[derive(Debug)]
struct Client {
    world: Arc<World>,
    process: usize,
    number: usize,
    receiver: Receiver,
}

/// A fault of an event on its way.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Refused,
    Away,
    AnswerLost,
    Closed,
    Hangs,
    Panics,
}

#[async_trait]
impl EventPublisher for Client {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let keys: BTreeSet<_> = events.iter().filter_map(|event| event.ordering_key.as_ref()).collect();
        let with_key = events.iter().filter(|event| event.ordering_key.is_some()).count();
        if !self.receiver.keeps_order && keys.len() < with_key {
            let text = format!("{} was given two events of one ordering key at once", name(self.number));
            self.world.journal.breach(Rule::EventsOutOfOrder, text);
        }
        self.take_time().await;
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        for event in events {
            tokio::task::yield_now().await;
            let key = event.ordering_key.as_ref().filter(|_| self.receiver.keeps_order);
            let answer = if key.is_some_and(|key| failed.contains(key)) {
                Err(EventError::not_sent("one before it has failed").uncounted())
            } else {
                self.give(event).await
            };
            if answer.is_err() {
                failed.extend(key.cloned());
            }
            answers.push(answer);
        }
        self.take_time().await;
        for (event, _) in events.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
            self.world.confirmed(event);
        }
        answers
    }

    fn dispatch(&self) -> Dispatch {
        self.receiver.dispatch
    }

    fn keeps_order(&self) -> bool {
        self.receiver.keeps_order
    }
}

impl Client {
    async fn take_time(&self) {
        if self.receiver.latency > 0 {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=self.receiver.latency))).await;
        }
    }

    fn trouble(&self) -> Option<Trouble> {
        let strikes = match self.receiver.faults {
            Rate::OneIn(n) => fastrand::u32(0..n.max(1)) == 0,
            Rate::Never => false,
            Rate::Always => true,
        };
        if !strikes || self.world.received().faults_over {
            return None;
        }
        Some(match fastrand::u32(0..12) {
            0..3 => Trouble::Refused,
            3..5 => Trouble::Away,
            5..9 => Trouble::AnswerLost,
            9 => Trouble::Closed,
            10 => Trouble::Hangs,
            _ => Trouble::Panics,
        })
    }

    async fn give(&self, event: &OutgoingEvent) -> Result<(), EventError> {
        if Of::event(event).is_some_and(|of| !self.world.fits(of)) {
            return Err(EventError::DoesNotFit { problem: "it cannot be taken".to_owned() });
        }
        let trouble = self.trouble();
        let arrives = match trouble {
            None | Some(Trouble::AnswerLost) => true,
            Some(Trouble::Refused | Trouble::Away | Trouble::Closed) => false,
            Some(Trouble::Hangs | Trouble::Panics) => fastrand::bool(),
        };
        if arrives {
            self.arrives(event);
        }
        match trouble {
            None => Ok(()),
            Some(Trouble::Refused) => Err(EventError::not_sent("not now")),
            Some(Trouble::Away) => Err(EventError::not_sent("nobody is there").uncounted()),
            Some(Trouble::AnswerLost) => Err(EventError::unconfirmed("no answer")),
            Some(Trouble::Closed) => {
                Err(EventError::Refused { problem: "it takes nothing".to_owned(), cure: "Wait".to_owned() })
            }
            Some(Trouble::Hangs) => std::future::pending().await,
            #[allow(clippy::panic, reason = "publishers are the application's code")]
            Some(Trouble::Panics) => std::panic::panic_any(UsersOwn),
        }
    }

    /// An event is there. By now its effect is committed, and its id is the one that its handler got.
    fn arrives(&self, event: &OutgoingEvent) {
        let (world, id) = (&self.world, event.key.as_str());
        let Some(of) = Of::event(event) else {
            return world.journal.breach(Rule::EventOfNothing, format!("{id} is an event that was never published"));
        };
        let (process, to) = (self.process, name(self.number));
        world.journal.note(&Happened::Noted(format!("process {process}: event {of} arrives at {to} as {id}")));
        let effects = world.effects_of(of);
        if effects == 0 && !world.may_be_undone(of) {
            world.journal.breach(Rule::EventOfNothing, format!("event {of} arrives, and no effect of it is committed"));
        }
        let mut received = world.received();
        if received.ids.get(&of).is_none_or(|own| own != id) {
            let text = format!("event {of} arrives as {id}, and was published as {:?}", received.ids.get(&of));
            world.journal.breach(Rule::OtherEventId, text);
        }
        if let Some((told, about)) = world.told(of) {
            let order = told.order.map(|order| order.to_string());
            let own = event.ordering_key.as_ref().map(|key| key.as_bytes().to_vec());
            let cause = event.headers.text(CAUSED_BY);
            if told.receiver != self.number || own != order.map(String::into_bytes) || cause != about.key.as_deref() {
                let text = format!("event {of} ({told:?}) of {about:?} arrives at {to} as {event:?}");
                world.journal.breach(Rule::OtherEventId, text);
            }
        }
        if received.confirmed.get(&of).is_some_and(|before| *before == effects) && !world.may_send_copies() {
            let text =
                format!("event {of} was confirmed, and comes again although nothing was lost and no process died");
            world.journal.breach(Rule::NeedlessCopy, text);
        }
        let place = received.first.len();
        received.first.entry(of).or_insert(place);
    }
}

impl World {
    /// The event of this number, and its content; `None` for that of an operation.
    fn told(&self, of: Of) -> Option<(&Told, &crate::scenario::Content)> {
        let Of::Content(content, number) = of else { return None };
        let about = self.scenario.contents.get(content)?;
        Some((about.tells.get(number)?, about))
    }

    fn fits(&self, of: Of) -> bool {
        self.told(of).is_none_or(|(told, _)| told.fits)
    }

    /// A handler has published it.
    pub(crate) fn published(&self, of: Of, id: &str) {
        let before = self.received().ids.insert(of, id.to_owned());
        let own = self.told(of).filter(|(told, _)| told.same_key).and_then(|(_, about)| {
            let key = about.key.as_deref()?;
            Some(
                about
                    .tenant
                    .as_ref()
                    .map_or_else(|| key.to_owned(), |tenant| format!("{}:{tenant} {key}", tenant.len())),
            )
        });
        if before.is_some_and(|before| before != id) || own.is_some_and(|own| own != id) {
            self.journal.breach(Rule::OtherEventId, format!("event {of} is published under two ids"));
        }
    }

    fn confirmed(&self, event: &OutgoingEvent) {
        if let Some(of) = Of::event(event) {
            let effects = self.effects_of(of);
            self.received().confirmed.insert(of, effects);
        }
    }

    /// How many effects are committed that go with this event.
    fn effects_of(&self, of: Of) -> usize {
        match of {
            Of::Content(content, _) => {
                let known = self.known();
                let is_of = |run: usize| known.runs.get(run).is_some_and(|run| run.content == content);
                self.effects().iter().filter(|(_, run)| is_of(*run)).count()
            }
            Of::Operation(operation) => {
                let key = operation.to_string();
                self.store.rows(CALLS).iter().filter(|(of, _)| *of == key).count()
            }
        }
    }

    /// Whether the store has lost at any time what came of it.
    fn may_be_undone(&self, of: Of) -> bool {
        match of {
            Of::Content(content, _) => self.known().disasters.was_undone(content),
            Of::Operation(_) => self.known().disasters.times() > 0,
        }
    }

    /// Whether a relay may send again what was confirmed: it died before it could note that, or another one had its lease.
    fn may_send_copies(&self) -> bool {
        let scenario = &self.scenario;
        self.deaths.load(Ordering::SeqCst) > 0
            || self.store.faults_met(Operation::Bookkeeping) > 0
            || scenario.weather.slow != Rate::Never
            || !scenario.clock_moves().is_zero()
            || scenario.goes_back()
            || scenario.stops()
    }

    /// The events that wait, and for no person.
    pub(crate) fn on_their_way(&self) -> Vec<Of> {
        let waiting = self.store.events();
        let (mut held, mut on_their_way) = (BTreeSet::new(), Vec::new());
        for (to, event) in &waiting {
            let Some(of) = Of::event(event) else { continue };
            let line = event.ordering_key.as_ref().map(|key| (to, key));
            if !self.fits(of) {
                held.extend(line);
            } else if line.is_none_or(|line| !held.contains(&line)) {
                on_their_way.push(of);
            }
        }
        on_their_way
    }

    /// An operator frees the events whose attempts are used up.
    pub(crate) async fn let_events_go(&self) {
        let Some(outbox) = self.store.outbox() else { return };
        let failed = outbox.events(None, Some(EventState::Failed), u32::MAX).await.unwrap_or_default();
        let fits = |number| {
            let waiting = self.store.events();
            let event = waiting.iter().find(|(_, event)| event.number == number);
            event.and_then(|(_, event)| Of::event(event)).is_some_and(|of| self.fits(of))
        };
        let mended = failed.iter().map(|stored| stored.event.name()).filter(|name| fits(name.number));
        // It is tried again in a moment.
        let _ = outbox.retry(&mended.collect::<Vec<_>>()).await;
    }
}

/// Judges the arrived events, once everything is at rest; before that, only faults that are certain already.
pub(crate) fn judge(world: &World, is_at_rest: bool) {
    if world.scenario.telling.is_none() {
        return;
    }
    let effects = world.effects();
    let on_their_way = world.on_their_way();
    let waiting: BTreeSet<Of> = world.store.events().iter().filter_map(|(_, event)| Of::event(event)).collect();
    let (known, received) = (world.known(), world.received());
    let breach = |rule, text| world.journal.breach(rule, text);
    // An event of an effect that the store lost has the id of another effect's by the same key, and may stand for it: one receiver
    // takes one of them. The relay that had it in hand, by a number that the other drew again, notes its confirmation of both.
    let stands_for = |content: usize, number: usize, told: &Told| {
        let key = world.scenario.contents[content].scoped_key();
        let mut contents = world.scenario.contents.iter().enumerate();
        contents.any(|(other, about)| {
            other != content
                && about.scoped_key() == key
                && known.disasters.was_undone(other)
                && about
                    .tells
                    .get(number)
                    .is_some_and(|of| (of.receiver, of.same_key) == (told.receiver, told.same_key))
                && received.first.contains_key(&Of::Content(other, number))
        })
    };
    // The events of each first effect, with its place and how many effects there were as its run began.
    let (mut lines, mut seen) = (BTreeMap::<(usize, u8), Vec<(usize, usize, Of)>>::new(), BTreeSet::new());
    for (place, (_, run)) in effects.iter().enumerate() {
        let Some(run) = known.runs.get(*run).filter(|run| seen.insert(run.content)) else { continue };
        for (number, told) in world.scenario.contents[run.content].tells.iter().enumerate().filter(|(_, t)| t.fits) {
            let of = Of::Content(run.content, number);
            // One that was committed after everything was at rest has its events on their way.
            let late = received.effects_at_rest.is_some_and(|effects| place >= effects);
            let owed = !waiting.contains(&of) || (!late && on_their_way.contains(&of));
            if is_at_rest && owed && !received.first.contains_key(&of) && !stands_for(run.content, number, told) {
                breach(Rule::EventLost, format!("event {of} has an effect, and never arrived"));
            }
            if let Some(order) = told.order.filter(|_| !known.disasters.was_undone(run.content)) {
                lines.entry((told.receiver, order)).or_default().push((place, run.effects_before, of));
            }
        }
    }
    let operations = world.scenario.telling.iter().flat_map(|telling| telling.operations.iter().enumerate());
    let calls = world.store.rows(CALLS);
    for (number, _) in operations.filter(|(_, operation)| operation.tells) {
        let (of, key) = (Of::Operation(number), number.to_string());
        let has_effect = calls.iter().any(|(call, _)| *call == key);
        // One that ran again after everything was at rest has its event on its way.
        if is_at_rest && has_effect && !received.first.contains_key(&of) && !waiting.contains(&of) {
            breach(Rule::EventLost, format!("event {of} has an effect, and never arrived"));
        }
    }
    for line in lines.values() {
        for (place, _, of) in line {
            let Some(came) = received.first.get(of) else { continue };
            let behind = |(_, before, other): &&(usize, usize, Of)| {
                *before > *place || matches!((of, other), (Of::Content(a, n), Of::Content(b, m)) if a == b && n < m)
            };
            for (_, _, other) in line.iter().filter(behind) {
                if received.first.get(other).is_some_and(|earlier| earlier < came) {
                    breach(Rule::EventsOutOfOrder, format!("event {other} arrived before {of}, which comes before it"));
                }
            }
        }
    }
}
