//! Takes messages in, bounded by count and bytes, and hands each to the lane of its key.

mod subscription;

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::Instrument as _;

use crate::{
    bugs::{self, Bug},
    config::OlderThanRetention,
    dead_letter::Reason,
    error::{ErrorClass, SourceError, StoreError, with_causes},
    failpoint,
    message::Message,
    names::{IdempotencyKey, Retention},
    outcome::{Durable, Failure, Settle},
    retry::RetryPolicy,
    source::{Assignment, Delivery, Received, Revocation, Source},
    store::{Store, claim::Recorded},
    telemetry::spans,
    unit::identify::{Item, Rejected},
    worker::{
        error::WorkerError,
        in_flight::Permit,
        intake::subscription::Subscription,
        job::{Attempt, Counts, DeadLetterCause, DeliveredBy, Isolation, Job},
        lane::Command,
        settler::Answers,
        shared::Shared,
        view::incidents::IncidentKind,
    },
};

/// The most messages that are asked for at once.
const AT_ONCE: usize = 1_000;

/// Hands messages to the lanes after at most this many, so that lanes and intake overlap.
const TOGETHER: usize = 100;

type ToLane<H> = mpsc::UnboundedSender<Command<H>>;

pub(crate) type LaneSenders<H> = Vec<ToLane<H>>;

pub(crate) async fn run<S: Store, B: Source>(shared: Arc<Shared<S, B>>, lanes: LaneSenders<B::Handle>) {
    let mut failures = 0;
    // Received, and waiting for their share of the limits in flight.
    let mut waiting = VecDeque::<(Delivery<B::Handle>, Arc<Instant>)>::new();
    let mut admitted = Admitted::new(lanes.len());
    let mut subscription = Subscription::of(&shared);
    loop {
        let try_permit = |first: &(Delivery<_>, _)| shared.flight.try_permit(first.0.message.bytes(), &first.1);
        while let Some(permit) = waiting.front().and_then(try_permit) {
            if let Some((delivery, _)) = waiting.pop_front() {
                admit(&shared, &mut admitted, delivery, Some(permit)).await;
            }
            if admitted.messages >= TOGETHER {
                admitted.hand_over(&shared, &lanes);
            }
        }
        admitted.hand_over(&shared, &lanes);
        // A revocation is read also while nothing else can be taken in.
        let received = if let Some((first, arrived)) = waiting.front() {
            tokio::select! {
                biased;
                permit = permit(&shared, first.message.bytes(), arrived) => {
                    if let Some((delivery, _)) = waiting.pop_front() {
                        admit(&shared, &mut admitted, delivery, permit).await;
                    }
                    continue;
                }
                () = subscription.due() => {
                    if subscription.look(&shared, &lanes) {
                        waiting.drain(..).for_each(|(delivery, _)| shared.release_unseen(delivery.handle));
                    }
                    continue;
                }
                received = shared.source.receive(0) => received,
            }
        } else {
            match next(&shared, &lanes, &mut subscription).await {
                Some(received) => received,
                None => continue,
            }
        };
        match received {
            Ok(Received::Deliveries(deliveries)) => {
                failures = 0;
                let arrived = shared.flight.arrive(Instant::now());
                shared.metrics.received.increment(deliveries.len() as u64);
                for delivery in deliveries {
                    // An injected error stands for a delivery that was lost on its way: it is never settled.
                    if failpoint!(RECV).is_ok() {
                        waiting.push_back((delivery, Arc::clone(&arrived)));
                    }
                }
            }
            Ok(Received::Revoked(revocation)) => {
                waiting.retain(|(delivery, _)| !revocation.assignments.contains(&delivery.assignment));
                revoke(&shared, &lanes, revocation).await;
            }
            Ok(Received::End) => break,
            Err(error) if error.class() == ErrorClass::Fatal => {
                shared.fatal(WorkerError::Source(error));
                break;
            }
            // A stop does not wait for a broker that does not answer.
            Err(_) if shared.shutdown.is_cancelled() => break,
            Err(error) => {
                failures += 1;
                broker_failed(&shared, &error);
                pause(&shared, RetryPolicy::default().backoff_now(failures)).await;
            }
        }
    }
}

fn broker_failed<S: Store, B: Source>(shared: &Shared<S, B>, error: &SourceError) {
    shared.metrics.broker_failures.increment(1);
    let error = with_causes(error);
    tracing::warn!(idem.consumer = %shared.consumer.name, error, "the broker cannot be used; intake tries again");
    shared.recent.note(IncidentKind::Error, None, None, format!("the broker cannot be used: {error}"));
    shared.gate.broker_failed(error);
}

/// Waits for room and then for messages, or for a revocation alone; `None` where intake closed meanwhile. A receive that is
/// under way then ends: a pause would otherwise be met by the first messages after it.
async fn next<S: Store, B: Source>(
    shared: &Shared<S, B>,
    lanes: &LaneSenders<B::Handle>,
    subscription: &mut Subscription,
) -> Option<Result<Received<B::Handle>, SourceError>> {
    let mut room = pin!(room(shared));
    let max = loop {
        tokio::select! {
            biased;
            max = &mut room => break max,
            () = subscription.due() => drop(subscription.look(shared, lanes)),
            received = shared.source.receive(0) => return Some(received),
        }
    };
    subscription.look(shared, lanes);
    tokio::select! {
        biased;
        () = shared.gate.closed(), if !shared.shutdown.is_cancelled() => None,
        received = receive(shared, max) => Some(received),
        () = subscription.due() => {
            subscription.look(shared, lanes);
            None
        }
    }
}

async fn receive<S: Store, B: Source>(shared: &Shared<S, B>, max: usize) -> Result<Received<B::Handle>, SourceError> {
    let span = spans::receive(&shared.consumer.name, shared.consumer.source.get());
    let begun = Instant::now();
    let received = shared.source.receive(max).instrument(span.clone()).await;
    if let Ok(Received::Deliveries(deliveries)) = &received {
        span.record("messaging.batch.message_count", deliveries.len());
        if let Some(metrics) = shared.consumer.consumed.get() {
            metrics.received.record(begun.elapsed());
            metrics.messages.increment(deliveries.len() as u64);
        }
    }
    received
}

async fn pause<S: Store, B: Source>(shared: &Shared<S, B>, time: Duration) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = shared.shutdown.cancelled() => {}
    }
}

/// Waits until there is room for a message, and answers for how many. At a stop there is always room: messages that the
/// source still hands over go straight back.
async fn room<S: Store, B: Source>(shared: &Shared<S, B>) -> usize {
    let room = async {
        shared.gate.open().await;
        if shared.gate.breaker_is_open() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return 1;
        }
        shared.flight.room().await.min(AT_ONCE)
    };
    tokio::select! {
        room = room => room,
        () = shared.shutdown.cancelled() => {
            // Before it is asked again, so that it hands over nothing that it has not received yet.
            shared.source.stop();
            AT_ONCE
        }
    }
}

/// Messages that are handed over together: to each lane its own, to the settler the duplicates.
struct Admitted<H> {
    messages: usize,
    of_lane: Vec<Vec<Job<H>>>,
    duplicates: Answers<H>,
}

impl<H: Send + 'static> Admitted<H> {
    fn new(lanes: usize) -> Self {
        Self { messages: 0, of_lane: (0..lanes).map(|_| Vec::new()).collect(), duplicates: Answers::default() }
    }

    fn push(&mut self, job: Job<H>) {
        let lane = job.lane(self.of_lane.len());
        self.of_lane[lane].push(job);
        self.messages += 1;
    }

    fn skip(&mut self, handle: H, durable: Durable, permit: Option<Permit>) {
        self.duplicates.push(handle, Settle::Acknowledge(durable), permit);
        self.messages += 1;
    }

    fn hand_over<S: Store, B: Source<Handle = H>>(&mut self, shared: &Shared<S, B>, lanes: &LaneSenders<H>) {
        self.messages = 0;
        shared.settle_all(std::mem::take(&mut self.duplicates));
        for (jobs, lane) in self.of_lane.iter_mut().zip(lanes).filter(|(jobs, _)| !jobs.is_empty()) {
            hand_over(shared, lane, std::mem::take(jobs));
        }
    }
}

async fn admit<S: Store, B: Source>(
    shared: &Arc<Shared<S, B>>,
    admitted: &mut Admitted<B::Handle>,
    delivery: Delivery<B::Handle>,
    permit: Option<Permit>,
) {
    let Delivery { message, attempt, redelivered, suspect, assignment, handle } = delivery;
    let Some(mut job) = identify(shared, message, None, DeliveredBy::Broker(handle), assignment, permit).await else {
        return;
    };
    job.redelivered = redelivered;
    if let Some((recorded, durable)) = remembered(shared, &job) {
        shared.skipped(&job, &recorded, false);
        shared.stats.cache_hits.add(1);
        if let DeliveredBy::Broker(handle) = job.from {
            admitted.skip(handle, durable, job.permit);
        }
        return;
    }
    if suspect {
        job.isolation = Isolation::Process;
    }
    if bugs::planted(Bug::TrustsTheBrokersCount) && attempt > shared.settings.retry.attempts {
        job.isolate();
        job.attempt = Attempt::Open(attempt);
    }
    in_doubt(shared, &mut job).await;
    admitted.push(job);
}

/// That a message is a duplicate of a key that is known committed: it needs neither a lane nor the database.
fn remembered<S: Store, B: Source>(shared: &Shared<S, B>, job: &Job<B::Handle>) -> Option<(Recorded, Durable)> {
    let claim = job.item.claim.as_ref().filter(|claim| claim.scope == shared.scope)?;
    shared.cache.as_ref()?.duplicate(claim, Instant::now())
}

/// Waits for the message's share of the limits in flight.
async fn permit<S: Store, B: Source>(shared: &Shared<S, B>, bytes: usize, arrived: &Arc<Instant>) -> Option<Permit> {
    tokio::select! {
        permit = shared.flight.permit(bytes, arrived) => permit,
        // At a stop nothing more is bounded: the message goes straight back.
        () = shared.shutdown.cancelled() => None,
    }
}

/// Makes a job of a message; `None` where it was given back because the worker stops.
pub(super) async fn identify<S: Store, B: Source>(
    shared: &Shared<S, B>,
    mut message: Message,
    key: Option<IdempotencyKey>,
    from: DeliveredBy<B::Handle>,
    assignment: Assignment,
    permit: Option<Permit>,
) -> Option<Job<B::Handle>> {
    let mut failures = 0;
    loop {
        let rejected = match shared.consumer.identify(message, key.clone()).await {
            Ok(item) => {
                let calls_outside = shared.consumer.calls_outside(&item.message);
                let mut job = Job::new(item, from, assignment, permit);
                if calls_outside {
                    job.isolate();
                }
                return Some(job);
            }
            Err(rejected) => rejected,
        };
        let Rejected { message: back, key, failure } = rejected;
        if failure.class == ErrorClass::Permanent {
            let mut job = Job::new(Item { message: back, claim: None, from_row: false }, from, assignment, permit);
            job.dead = Some(Box::new(malformed(failure, key)));
            return Some(job);
        }
        if failure.class == ErrorClass::Fatal {
            let cure = "Nothing was lost; the message goes back to the broker".to_owned();
            shared.fatal(WorkerError::Store(StoreError::Refused { problem: failure.text.clone(), cure }));
        }
        if shared.shutdown.is_cancelled() {
            let job = Job::new(Item { message: back, claim: None, from_row: false }, from, assignment, permit);
            shared.release(job, Duration::ZERO);
            return None;
        }
        // Only the interning of a new tenant asks the database here, and that waits until it answers.
        failures += 1;
        tracing::warn!(idem.consumer = %shared.consumer.name, error = failure.text, "a message cannot be identified yet");
        pause(shared, RetryPolicy::default().backoff_now(failures)).await;
        message = back;
    }
}

fn malformed(failure: Failure, key: Option<IdempotencyKey>) -> DeadLetterCause {
    let Failure { reason, class, text, code, .. } = failure;
    DeadLetterCause {
        reason,
        class,
        text,
        code,
        key,
        hash: None,
        in_claim: false,
        counts: Counts::Producer,
        after: None,
    }
}

/// A message that is older than its record would be kept may have been handled before, and no record may show it.
async fn in_doubt<S: Store, B: Source>(shared: &Shared<S, B>, job: &mut Job<B::Handle>) {
    let Retention::For(retention) = shared.consumer.settings.retention else { return };
    let old = job.item.message.age(|| shared.consumer.clock.now()).is_some_and(|age| age > retention);
    let Some(claim) = job.item.claim.as_ref().filter(|_| old) else { return };
    let text = format!("the message is older than the retention of {retention:?}, so its record may be gone");
    match shared.settings.older_than_retention {
        OlderThanRetention::Process => {
            shared.stats.older_than_retention.add(1);
            if let Some(left_out) = shared.lines.waiting.pass() {
                tracing::warn!(idem.consumer = %shared.consumer.name, idem.key = %claim.key, left_out, "{text}; it is handled all the same");
            }
        }
        OlderThanRetention::DeadLetter => {
            let (key, hash) = (Some(claim.key.clone()), Some((claim.hash, claim.hash_rule)));
            let reason = Reason::OlderThanRetention;
            let class = ErrorClass::Permanent;
            let counts = Counts::Nothing;
            job.dead = Some(Box::new(DeadLetterCause {
                reason,
                class,
                text,
                code: None,
                key,
                hash,
                in_claim: false,
                counts,
                after: None,
            }));
        }
        OlderThanRetention::Halt => {
            shared.halt(&format!("run {}", shared.run), &text).await;
        }
    }
}

fn hand_over<S: Store, B: Source>(shared: &Shared<S, B>, lane: &ToLane<B::Handle>, jobs: Vec<Job<B::Handle>>) {
    if let Err(mpsc::error::SendError(Command::Jobs(jobs))) = lane.send(Command::Jobs(jobs)) {
        // The lane has stopped.
        jobs.into_iter().for_each(|job| shared.release(job, Duration::ZERO));
    }
}

/// Hands one message to its lane.
pub(super) fn hand_over_one<S: Store, B: Source>(
    shared: &Shared<S, B>,
    lanes: &LaneSenders<B::Handle>,
    job: Job<B::Handle>,
) {
    let lane = job.lane(lanes.len());
    hand_over(shared, &lanes[lane], vec![job]);
}

/// Assignments end. Where they are still held, the broker waits until all that must be finished is, see
/// `lane/drain.rs`.
async fn revoke<S: Store, B: Source>(shared: &Shared<S, B>, lanes: &LaneSenders<B::Handle>, revocation: Revocation) {
    let assignments = Arc::new(revocation.assignments);
    let Some(drained) = revocation.drained else {
        // A lane that stopped has handed everything back.
        lanes.iter().for_each(|lane| drop(lane.send(Command::Drop(Arc::clone(&assignments)))));
        return;
    };
    if bugs::planted(Bug::RevocationsDoNotWait) {
        let _ = drained.send(());
        return;
    }
    let drain = shared.settings.drain;
    let until = Instant::now() + drain;
    // A lane that runs for longer is waited for below, and its settlements then count too.
    let _ = tokio::time::timeout(drain / 2, async {
        tell(lanes, Command::Rest).await;
        shared.flush().await;
    })
    .await;
    let parted = async {
        tell(lanes, |done| Command::Revoke(Arc::clone(&assignments), done)).await;
        if shared.shutdown.is_cancelled() {
            // Lanes that stop answer nothing any more, and finish the same messages.
            shared.all_stopped().await;
        }
        shared.flush().await;
    };
    if tokio::time::timeout_at(until, parted).await.is_err() {
        tracing::warn!(idem.consumer = %shared.consumer.name, "an assignment ended before its messages did; they come back as duplicates");
    }
    // The source may have given up waiting.
    let _ = drained.send(());
}

/// Sends every lane a command, and waits for their answers.
async fn tell<H>(lanes: &LaneSenders<H>, command: impl Fn(oneshot::Sender<()>) -> Command<H>) {
    let tell = |lane: &mpsc::UnboundedSender<_>| {
        let (done, answer) = oneshot::channel();
        lane.send(command(done)).is_ok().then_some(answer)
    };
    let answers: Vec<_> = lanes.iter().filter_map(tell).collect();
    for answer in answers {
        // A lane that stopped has handed everything back.
        let _ = answer.await;
    }
}
