//! The task of one destination. While it has the lease, it takes events, gives them to the publisher, and notes the
//! outcomes.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{sync::watch, time::Instant};

use crate::{
    bugs::{Bug, planted},
    error::StoreError,
    failpoint,
    outbox::{
        limits::DestinationLimits,
        publisher::{Dispatch, EventError},
        rows::{DestinationId, EventEnd, EventNumber, Leased, Outbox, OutgoingEvent},
    },
    relay::{
        Stopping,
        ends::{self, Became},
        lease::Lease,
        rest,
        rounds::Rounds,
        settings::{RelaySettings, Route},
        state::{Line, RelayStanding, State},
        unconfirmed::{TOLD_EVERY, TOLD_MAX, Told, Unconfirmed},
    },
    retry::RetryPolicy,
    telemetry::{
        SPANS,
        handles::SentMetrics,
        spans,
        trace_context::{TRACEPARENT, TraceContext},
    },
};

/// The most bytes of payloads and headers that are taken at once.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// The waits between steps in which the destination confirmed nothing.
pub(super) const TROUBLE: RetryPolicy = RetryPolicy::new(u32::MAX, Duration::from_millis(200), Duration::from_secs(5));

/// The waits between tries to note outcomes.
const NOTING: RetryPolicy = RetryPolicy::new(u32::MAX, Duration::from_millis(100), Duration::from_secs(2));

/// The wait after a step that found fewer events than it had room for: the next step then finds more events, and each costs less.
const LINGER: Duration = Duration::from_millis(10);

/// A step that filled at least one part in this many of its room is followed by the next one without waiting for the poll. Only
/// a high rate fills so much, and each of its events would otherwise wait for the poll.
const BUSY: usize = 20;

/// How long one step may go on with rounds. An ordering key with many events delays the others for this long at most.
const ROUNDS_MAX: Duration = Duration::from_millis(500);

/// The same for events that wait for a person.
const FAILURES_TOLD_EVERY: Duration = Duration::from_secs(1);

/// How long a publisher may look for its destination at the start.
const LOOKED_WITHIN: Duration = Duration::from_secs(5);

/// How long a publisher may take to drop its events.
const PURGED_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Carrier {
    pub(super) route: Route,
    pub(super) settings: RelaySettings,
    relay: Arc<str>,
    pub(super) outbox: Arc<dyn Outbox>,
    state: Arc<State>,
    pub(super) line: Arc<Line>,
    woken: watch::Receiver<u64>,
    pub(super) stopping: Stopping,
    /// Consecutive steps in which the destination confirmed nothing.
    pub(super) tries: u32,
    told_at: Option<Instant>,
    unconfirmed_told: Told,
    failures_told_at: Option<Instant>,
    untold_failures: u64,
    /// Whether the relay stops without having noted the ends of some events.
    leaves_unnoted: bool,
    /// The last number that was seen, for the planted bug that reads on from there.
    seen: EventNumber,
}

/// Outcomes that are to be noted.
pub(super) type Ends<'e> = Vec<(&'e OutgoingEvent, EventEnd)>;

impl Carrier {
    pub(super) fn new(
        route: Route,
        settings: RelaySettings,
        relay: Arc<str>,
        state: &Arc<State>,
        line: &Arc<Line>,
        woken: watch::Receiver<u64>,
        stopping: Stopping,
    ) -> Self {
        Self {
            route,
            settings,
            relay,
            outbox: Arc::clone(&state.outbox),
            state: Arc::clone(state),
            line: Arc::clone(line),
            woken,
            stopping,
            tries: 0,
            told_at: None,
            unconfirmed_told: Told::default(),
            failures_told_at: None,
            untold_failures: 0,
            leaves_unnoted: false,
            seen: EventNumber(0),
        }
    }

    pub(super) async fn run(mut self) {
        self.look().await;
        let id = loop {
            if let Some(id) = self.line.id.get() {
                break *id;
            }
            if self.stopping.is_asked() {
                return;
            }
            self.wait(self.settings.poll_idle).await;
        };
        let (keeps, limits) = (self.route.receiver_keeps, self.limits().await);
        let kind = limits.as_ref().map(|limits| &*limits.kind);
        let _ = self.line.sent.set(SentMetrics::of(&self.line.destination, kind));
        let lease = Lease::new(&self.outbox, id, &self.relay, self.settings.lease, keeps, limits);
        let mut had_it = false;
        while !self.stopping.stop.is_cancelled() {
            let wait = match lease.ask().await {
                Ok(Leased::Mine) => {
                    self.line.stands(RelayStanding::Relaying);
                    self.relay(id, &lease).await;
                    had_it = true;
                    Duration::ZERO
                }
                Ok(Leased::Others { left }) => {
                    self.line.stands(RelayStanding::Standby);
                    (left + Duration::from_millis(5)).min(self.settings.poll_idle)
                }
                Ok(Leased::Paused) => {
                    self.line.stands(RelayStanding::Paused);
                    // The operator who paused it may wait for that, because nothing is under way from here on.
                    if std::mem::take(&mut had_it) && !self.leaves_unnoted {
                        lease.release().await;
                    }
                    self.settings.poll_idle
                }
                Err(error) => {
                    self.store_failed("taking a destination", &error);
                    self.settings.poll_idle
                }
            };
            // A worker that drains sends the events of destinations whose lease it has, and waits for no other lease.
            if self.stopping.is_asked() {
                break;
            }
            rest(wait, &self.stopping).await;
        }
        // Otherwise the lease runs out: the relay that takes over then knows that copies may be with the receivers (O25).
        if !self.leaves_unnoted {
            lease.release().await;
        }
        self.line.stands(RelayStanding::Standby);
    }

    /// Works while the relay has the lease, and renews it meanwhile.
    async fn relay(&mut self, id: DestinationId, lease: &Arc<Lease>) {
        let kept = Arc::clone(lease);
        tokio::select! {
            () = kept.keep() => {}
            () = async {
                match self.route.dispatch {
                    Dispatch::Batches { events_max } => self.batches(id, lease, events_max.max(1)).await,
                    Dispatch::Each { at_once } => self.each(id, lease, at_once.max(1)).await,
                }
            } => {}
        }
    }

    /// Whether another step may begin.
    pub(super) fn goes_on(&self, lease: &Lease) -> bool {
        !self.stopping.stop.is_cancelled() && lease.holds()
    }

    async fn batches(&mut self, id: DestinationId, lease: &Lease, events_max: usize) {
        let mut poll = self.settings.poll_busy;
        while self.goes_on(lease) {
            // One event tests whether the destination is back: with many, each would have to be noted as tried.
            let max = if self.tries == 0 { events_max } else { 1 };
            self.woken_now();
            let events = match self.outbox.next(id, u32::try_from(max).unwrap_or(u32::MAX), BYTES_MAX).await {
                Ok(events) => {
                    self.store_answers();
                    self.seen(events)
                }
                Err(error) => {
                    self.store_failed("taking events", &error);
                    if self.stopping.is_asked() {
                        return;
                    }
                    rest(self.settings.poll_idle, &self.stopping).await;
                    continue;
                }
            };
            let (found, is_full) = (!events.is_empty(), events.len() >= max);
            let is_busy = found && events.len() >= max / BUSY;
            if found {
                if let Err(error) = self.step(id, lease, events).await {
                    self.store_failed("noting what became of events", &error);
                }
                if self.tries > 0 {
                    if self.stopping.is_asked() {
                        return;
                    }
                    rest(TROUBLE.backoff_now(self.tries), &self.stopping).await;
                    continue;
                }
            }
            if found && is_full {
                tokio::task::yield_now().await;
                continue;
            }
            if self.is_drained(found).await {
                return;
            }
            poll = if found { self.settings.poll_busy } else { (poll * 2).min(self.settings.poll_idle) };
            if found {
                rest(LINGER, &self.stopping).await;
            }
            if !is_busy {
                self.wait(poll).await;
            }
        }
    }

    /// Whether a relay that ends once no event may go has reached that point.
    pub(super) async fn is_drained(&self, found: bool) -> bool {
        self.stopping.drain.is_cancelled()
            && (!found || self.state.has_pending().await.is_ok_and(|has_pending| !has_pending))
    }

    /// All of them, but for a planted bug.
    pub(super) fn seen(&mut self, mut events: Vec<OutgoingEvent>) -> Vec<OutgoingEvent> {
        if planted(Bug::ScansById) {
            events.retain(|event| event.number > self.seen);
            self.seen = events.iter().map(|event| event.number).fold(self.seen, Ord::max);
        }
        events
    }

    /// Gives events to the publisher, in rounds if their order requires it, and notes the outcomes after each round.
    async fn step(&mut self, id: DestinationId, lease: &Lease, events: Vec<OutgoingEvent>) -> Result<(), StoreError> {
        failpoint!(RELAY_TAKEN).map_err(injected)?;
        let events = self.without_stale(id, events).await?;
        if planted(Bug::MarksFirst) {
            let ends: Ends<'_> = events.iter().map(|event| (event, EventEnd::Published)).collect();
            self.outbox.settle(id, &ends).await?;
        }
        let begun = Instant::now();
        let mut rounds = if self.route.keeps_order { Rounds::at_once(&events) } else { Rounds::of(&events) };
        // If another relay may have the destination, or time is up, the remaining events are taken again: nothing was noted of them.
        while self.goes_on(lease) && begun.elapsed() < ROUNDS_MAX {
            let places = rounds.next();
            if places.is_empty() {
                break;
            }
            let round: Vec<&OutgoingEvent> = places.iter().map(|place| &events[*place]).collect();
            let mut answers = give(&self.route, &self.settings, &self.line, &round).await;
            if planted(Bug::OneConfirmsAll) && answers.iter().any(Result::is_ok) {
                answers.iter_mut().for_each(|answer| *answer = Ok(()));
            }
            failpoint!(RELAY_CONFIRMED).map_err(injected)?;
            let mut judged = Judged::default();
            for (place, answer) in places.into_iter().zip(answers) {
                let event = &events[place];
                if answer.is_err() && !planted(Bug::SendsFollowers) {
                    rounds.hold_behind(place);
                }
                judged.add(event, ends::of(event, answer, &self.route.retry, self.tries));
            }
            self.tell(&judged);
            self.note(id, judged.ends).await;
            failpoint!(RELAY_SETTLED).map_err(injected)?;
            if self.tries > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Leaves events that must not be sent again to a person.
    pub(super) async fn without_stale(
        &mut self,
        id: DestinationId,
        events: Vec<OutgoingEvent>,
    ) -> Result<Vec<OutgoingEvent>, StoreError> {
        let mut judged = Judged::default();
        for event in &events {
            if let Some(end) = ends::stale(event, &self.route) {
                judged.add(event, Became::Noted(end));
            }
        }
        if judged.ends.is_empty() {
            return Ok(events);
        }
        self.tell(&judged);
        self.note(id, judged.ends).await;
        // Another event may follow one of these in its ordering key.
        Ok(Vec::new())
    }

    /// Notes outcomes, and tries until the database has them: a confirmed event whose outcome is not noted is sent again.
    pub(super) async fn note(&mut self, id: DestinationId, ends: Ends<'_>) {
        if ends.is_empty() {
            return;
        }
        let published = ends.iter().filter(|(_, end)| matches!(end, EventEnd::Published)).count() as u64;
        let failed = ends.iter().filter(|(_, end)| matches!(end, EventEnd::Failed { .. })).count() as u64;
        let mut tries = 0;
        while let Err(error) = self.outbox.settle(id, &ends).await {
            tries += 1;
            if tries == 1 {
                self.store_failed("noting what became of events", &error);
            }
            if self.stopping.stop.is_cancelled() && tries > 3 {
                tracing::warn!(
                    destination = &*self.line.destination,
                    events = ends.len(),
                    error = (self.state.describe)(&error),
                    "it could not be noted what became of events; the next relay sends copies of those that were confirmed"
                );
                self.leaves_unnoted = true;
                return;
            }
            tokio::time::sleep(NOTING.backoff_now(tries)).await;
        }
        self.line.settled(published, failed, ends.len() as u64);
    }

    /// Warns of a destination that is not there, which only the first event would notice otherwise.
    async fn look(&self) {
        // An own implementation may panic; it is asked again when events go.
        let looking = AssertUnwindSafe(async { self.route.publisher.look().await }).catch_unwind();
        let looked = tokio::select! {
            biased;
            looked = tokio::time::timeout(LOOKED_WITHIN, looking) => looked,
            () = self.stopping.stop.cancelled() => return,
        };
        if let Ok(Ok(Err(refused @ EventError::Refused { .. }))) = looked {
            tracing::warn!(
                destination = &*self.line.destination, error = %refused,
                "events would not get to their destination; they will wait in the outbox"
            );
        }
    }

    /// What the publisher knows of its destination.
    async fn limits(&self) -> Option<DestinationLimits> {
        let asking = AssertUnwindSafe(async { self.route.publisher.limits().await }).catch_unwind();
        tokio::select! {
            biased;
            asked = tokio::time::timeout(LOOKED_WITHIN, asking) => asked.ok()?.ok()?,
            () = self.stopping.stop.cancelled() => None,
        }
    }

    /// Logs what an operator must know, at a limited rate, and counts steps without a confirmation.
    pub(super) fn tell(&mut self, judged: &Judged<'_>) {
        let destination = &*self.line.destination;
        if judged.confirmed > 0 {
            self.tries = 0;
            self.line.confirmed();
            if let Some(time) = self.line.out_of_trouble()
                && self.told_at.take().is_some()
            {
                tracing::info!(destination, after = ?time, "events get to their destination again");
            }
        } else if let Some(why) = judged.refused.as_ref().or(judged.away.as_ref()) {
            self.tries = self.tries.saturating_add(1);
            let (time, is_new) = self.line.in_trouble(why);
            if is_new || self.told_at.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
                self.told_at = Some(Instant::now());
                tracing::warn!(
                    destination, error = why, since = ?time,
                    "events do not get to their destination now; they wait in the outbox, and none is charged"
                );
            }
        }
        if let Some(last) = judged.unconfirmed.last().filter(|_| judged.confirmed == 0) {
            self.line.in_vain(judged.tried, &last.error);
        }
        for Unconfirmed { error, events, tries } in &judged.unconfirmed {
            if self.unconfirmed_told.is_due(error) {
                let tries_max = self.route.retry.attempts;
                tracing::warn!(
                    destination,
                    events,
                    tries,
                    tries_max,
                    error,
                    "events were not confirmed, and are tried again; this error is named once a minute"
                );
            }
        }
        if let Some((key, error)) = &judged.failure {
            self.untold_failures += judged.failures;
            if self.failures_told_at.is_none_or(|at| at.elapsed() >= FAILURES_TOLD_EVERY) {
                self.failures_told_at = Some(Instant::now());
                tracing::error!(
                    destination,
                    events = self.untold_failures,
                    key,
                    error,
                    "events wait for a person, and with them what is behind them in their ordering keys; see `idem outbox list`"
                );
                self.untold_failures = 0;
            }
        }
    }

    /// Notes that the store answers, which ends the trouble unless the destination itself has failed.
    pub(super) fn store_answers(&self) {
        if self.tries == 0 {
            self.line.out_of_trouble();
        }
    }

    pub(super) fn store_failed(&self, doing: &str, error: &StoreError) {
        let error = (self.state.describe)(error);
        let (time, is_new) = self.line.in_trouble(&format!("{doing}: {error}"));
        let destination = &*self.line.destination;
        if is_new {
            tracing::warn!(destination, error, "the relay waits for the database while {doing}");
        } else {
            tracing::debug!(destination, error, since = ?time, "the relay waits for the database while {doing}");
        }
    }

    /// Forgets earlier notices: the next look at the outbox finds everything that was committed before this call.
    pub(super) fn woken_now(&mut self) {
        self.woken.borrow_and_update();
    }

    /// Waits for the notice of a commit, for this long at most.
    pub(super) async fn wait(&mut self, time: Duration) {
        tokio::select! {
            () = rest(time, &self.stopping) => {}
            // The sender lives as long as the relay.
            Ok(()) = self.woken.changed() => {}
        }
    }
}

/// The outcomes of a step.
#[derive(Default)]
pub(super) struct Judged<'e> {
    pub(super) ends: Ends<'e>,
    confirmed: u64,
    /// Why the destination accepts no events, if it said so.
    refused: Option<String>,
    /// Why an event was not confirmed, if the event is not at fault.
    away: Option<String>,
    /// Events that were not confirmed for a reason of their own or of their endpoint's, and are tried again.
    tried: u64,
    /// The same by that reason, as many as the log names.
    pub(super) unconfirmed: Vec<Unconfirmed>,
    failures: u64,
    /// Key and reason of the first event that is left to a person.
    failure: Option<(String, String)>,
}

impl<'e> Judged<'e> {
    /// Drops the reason why events were not confirmed that are not at fault: where each goes by itself, it says nothing about the
    /// others.
    pub(super) fn of_each(mut self) -> Self {
        self.away = None;
        self
    }

    pub(super) fn add(&mut self, event: &'e OutgoingEvent, became: Became) {
        let end = match became {
            Became::Refused(why) => {
                self.refused.get_or_insert(why);
                return;
            }
            Became::Noted(end) => end,
        };
        match &end {
            EventEnd::Published => self.confirmed += 1,
            EventEnd::Later { counted: false, error, .. } => {
                self.away.get_or_insert_with(|| error.clone());
            }
            EventEnd::Later { error, .. } => self.unconfirmed(event.attempts.saturating_add(1), error),
            EventEnd::Failed { error, .. } => {
                self.failures += 1;
                self.failure.get_or_insert_with(|| (event.key.to_string(), error.clone()));
            }
        }
        self.ends.push((event, end));
    }

    /// Counts an event that was not confirmed, and was tried so often.
    pub(super) fn unconfirmed(&mut self, tries: u32, error: &str) {
        self.tried += 1;
        if let Some(same) = self.unconfirmed.iter_mut().find(|other| other.error == error) {
            same.events += 1;
        } else if self.unconfirmed.len() < TOLD_MAX {
            self.unconfirmed.push(Unconfirmed { error: error.to_owned(), events: 1, tries });
        }
    }
}

/// Gives events to the publisher. One answer for each event, whatever the publisher does: publishers are the application's code, and may panic,
/// take too long, or return another number of answers.
pub(super) async fn give(
    route: &Route,
    settings: &RelaySettings,
    line: &Line,
    events: &[&OutgoingEvent],
) -> Vec<Result<(), EventError>> {
    let (begun, deadline) = (Instant::now(), settings.publish_deadline);
    let spans = sending(line, events);
    let publishing = AssertUnwindSafe(async { route.publisher.publish_events(events).await }).catch_unwind();
    let unanswered = |why: String, is_to_blame: bool| {
        let error = EventError::unconfirmed(why);
        if is_to_blame { error } else { error.uncounted() }
    };
    let each = matches!(route.dispatch, Dispatch::Each { .. });
    let (mut answers, missing, is_to_blame) = match tokio::time::timeout(deadline, publishing).await {
        Ok(Ok(answers)) => {
            (answers, "the publisher did not answer for this event, which is a bug in it".to_owned(), each)
        }
        // One of the events makes it panic; trying each alone finds it.
        Ok(Err(_panic)) => (Vec::new(), "the publisher panicked".to_owned(), events.len() == 1),
        Err(_late) => {
            // It may panic too, and then there is nothing left to do.
            let purging = AssertUnwindSafe(async { route.publisher.purge().await }).catch_unwind();
            let _ = tokio::time::timeout(PURGED_WITHIN, purging).await;
            (Vec::new(), format!("no confirmation came within {deadline:?}"), each)
        }
    };
    line.metrics.publish.record(begun.elapsed());
    answers.truncate(events.len());
    answers.resize_with(events.len(), || Err(unanswered(missing.clone(), is_to_blame)));
    if let Some(metrics) = line.sent.get() {
        metrics.sent.record(begun.elapsed());
        metrics.messages.increment(events.len() as u64);
    }
    for (span, answer) in spans.iter().zip(&answers) {
        match answer {
            Ok(()) => {}
            Err(EventError::Refused { .. }) => spans::failed(span, "refused"),
            Err(_) => spans::failed(span, "unconfirmed"),
        }
    }
    answers
}

/// A span for each event that is given to the publisher, where one is wanted.
fn sending(line: &Line, events: &[&OutgoingEvent]) -> Vec<tracing::Span> {
    if !tracing::enabled!(target: SPANS, tracing::Level::DEBUG) {
        return Vec::new();
    }
    let system = line.sent.get().and_then(|metrics| metrics.system.as_deref());
    let handled = |event: &OutgoingEvent| event.headers.text(TRACEPARENT).and_then(TraceContext::parse);
    let span = |event: &&OutgoingEvent| {
        spans::send_event(system, &line.destination, &event.consumer, &event.key, handled(event))
    };
    events.iter().map(span).collect()
}

pub(super) fn injected(injected: failpoint::Injected) -> StoreError {
    StoreError::unavailable("relaying", injected)
}
