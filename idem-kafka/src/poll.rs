//! The thread that owns the consumer. It polls, always, and nothing else may call the consumer: rebalances, commits and
//! pauses all happen here, between two polls.

use std::{sync::Arc, time::Duration};

use idem_core::{SourceError, source::Attached};
use rdkafka::{
    Offset,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, KafkaResult},
    message::Message as _,
    types::RDKafkaErrorCode as Code,
};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use crate::{
    attach::{self, Starts, attach, list},
    commit::Commits,
    context::Context,
    error::{classify, cure, is_authentication, refusal, said, unavailable_because, unreachable},
    lag::Ends,
    message,
    options::{KafkaOptions, Reset},
    quiet,
    rebalance::Rebalance,
    refusal::{Ask, Refusals},
    repeated::RepeatedErrors,
    state::{Ending, Progress, Shared},
    tokens::Login,
    watchdog::Watchdog,
};

/// How long a poll waits for a record where nothing else is waited for.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long it waits while it also looks out for the worker: for room in the buffer, or the end of a drain.
pub(crate) const ATTENTION: Duration = Duration::from_millis(2);

/// How often, and for how long, a broker is asked whether it is back: nothing comes from a topic that is at its end.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_WAITS: Duration = Duration::from_millis(300);

/// How many records, and how many bytes of them, are taken in before the rest is looked at. One more may exceed the bytes.
const BURST: usize = 200;
const BURST_BYTES: usize = 1 << 20;

pub(crate) struct Poller {
    pub(crate) consumer: BaseConsumer<Context>,
    pub(crate) options: Arc<KafkaOptions>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rebalance: Rebalance,
    /// Where the group starts in partitions that it knows nothing of, until it has these positions.
    pub(crate) starts: Starts,
    /// Partitions are paused because the buffer is full.
    pub(crate) paused: bool,
    /// When positions are committed next.
    pub(crate) commit_at: Instant,
    pub(crate) commits: Commits,
    login: Option<Login>,
    repeated: RepeatedErrors,
    refusals: Refusals,
    probe_at: Instant,
    watchdog: Watchdog,
    ends: Ends,
}

/// Runs on a thread of its own until the source is closed or dropped.
pub(crate) fn run(
    options: Arc<KafkaOptions>,
    shared: Arc<Shared>,
    runtime: &Handle,
    attached: oneshot::Sender<Result<Attached, SourceError>>,
) {
    let mut poller = match Poller::attach(options, &shared, runtime) {
        Ok((poller, facts)) => {
            // The caller that attached may have given up, and then attaches again.
            if attached.is_closed() || !shared.begin() {
                return poller.leave();
            }
            if attached.send(Ok(facts)).is_err() {
                shared.over(None);
                return poller.leave();
            }
            poller
        }
        Err(error) => return drop(attached.send(Err(error))),
    };
    let guard = OverGuard(Arc::clone(&shared));
    quiet::prepare();
    while shared.ending().is_none() {
        poller.turn();
    }
    poller.close();
    // The membership has ended by now, unless the brokers cannot be reached.
    drop(guard);
}

/// However the thread ends, its waiters are released.
struct OverGuard(Arc<Shared>);

impl Drop for OverGuard {
    fn drop(&mut self) {
        let failure = std::thread::panicking().then(|| {
            SourceError::refused(
                "the thread that polls Kafka has panicked",
                "Start the worker again, and report the panic; nothing was lost",
            )
        });
        self.0.over(failure);
    }
}

impl Poller {
    fn attach(
        options: Arc<KafkaOptions>,
        shared: &Arc<Shared>,
        runtime: &Handle,
    ) -> Result<(Self, Attached), SourceError> {
        let login = options.tokens.clone().map(|source| Login::new(source, runtime.clone()));
        let consumer =
            consumer(&options, login.clone()).map_err(|error| classify(&options, "creating the consumer", error))?;
        let (attached, starts) = attach(&consumer, &options, runtime)?;
        consumer.subscribe(&[&options.topic]).map_err(|error| classify(&options, "subscribing", error))?;
        let poller = Self {
            consumer,
            shared: Arc::clone(shared),
            rebalance: Rebalance::default(),
            starts,
            paused: false,
            commit_at: Instant::now() + options.commit_every,
            commits: Commits::new(options.stalled_after / 2),
            login,
            repeated: RepeatedErrors::default(),
            refusals: Refusals::default(),
            probe_at: Instant::now(),
            watchdog: Watchdog::new(options.stalled_after),
            ends: Ends::new(),
            options,
        };
        Ok((poller, attached))
    }

    fn turn(&mut self) {
        let attends = self.paused || self.rebalance.is_draining() || self.commits.is_awaited();
        let waits = if attends { ATTENTION } else { PATIENCE };
        self.poll(waits);
        self.rebalance();
        self.balance();
        self.commit_if_due();
        self.probe();
        self.ask_again();
        self.ends.ask(&self.consumer, &self.options, &self.shared);
        let rests = self.paused || self.rebalance.is_draining();
        if self.watchdog.is_stalled(&self.consumer, &self.options.topic, &self.shared, rests) {
            self.replace("no record was delivered although there are some");
        }
    }

    /// Takes in the records that are there, or waits that long for one. They are handed on together, so that the worker is
    /// woken once.
    pub(crate) fn poll(&mut self, waits: Duration) {
        let (mut waits, mut records, mut bytes) = (waits, Vec::new(), 0);
        for _ in 0..BURST {
            let error = match self.consumer.poll(waits) {
                Some(Ok(record)) => {
                    let message = message::message(&record, self.options.lane_by);
                    bytes += message.bytes();
                    self.refusals.answered(Instant::now());
                    records.push((record.partition(), record.offset(), message));
                    if bytes >= BURST_BYTES {
                        break;
                    }
                    None
                }
                Some(Err(error)) => Some(error),
                None => break,
            };
            if let Some(error) = error {
                // The end of a partition comes after its records.
                self.shared.deliver(std::mem::take(&mut records));
                self.note(&error);
            }
            waits = Duration::ZERO;
        }
        self.shared.deliver(records);
    }

    /// Errors that the client library recovers from by itself are only logged, by the context; those that it repeats are
    /// reported.
    fn note(&mut self, error: &KafkaError) {
        if let KafkaError::PartitionEOF(partition) = error {
            self.refusals.answered(Instant::now());
            return self.shared.reached_end(*partition);
        }
        let Some(code) = error.rdkafka_error_code() else { return };
        if matches!(code, Code::AutoOffsetReset | Code::LogTruncation | Code::OffsetOutOfRange) {
            self.shared.fail(self.out_of_range());
        } else if matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownTopicId) {
            if attach::is_gone(&self.consumer, &self.options.topic) {
                self.shared.fail(self.created_again());
            }
        } else if code == Code::AllBrokersDown {
            self.shared.unreachable();
            self.shared.fail(unreachable(&self.options, "consuming", error));
        } else if let Some(problem) = self.consumer.context().no_token().filter(|_| is_authentication(code)) {
            // The one before may be valid for some time, and the next is asked for soon.
            self.shared.fail(unavailable_because("asking for a token", problem));
        } else if let Some(refusal) = refusal(&self.options, code) {
            // A new consumer would only turn the other member out.
            if code == Code::FencedInstanceId { self.shared.fail(refusal) } else { self.refused(refusal) }
        } else {
            let (reason, cure) = (self.consumer.context().reason(), cure(&self.options, code));
            if self.repeated.is_told(code, cure.is_some(), Instant::now()) {
                let text = if reason.is_empty() { said(error) } else { reason };
                self.shared.fail(unavailable_because(
                    "consuming",
                    cure.map_or(text.clone(), |cure| format!("{text}: {cure}")),
                ));
            }
        }
    }

    /// The brokers refuse a request that they allowed before. For a while that counts as an outage.
    fn refused(&mut self, refusal: SourceError) {
        let holds = self.refusals.refused(Instant::now());
        self.shared.fail(if holds { refusal } else { SourceError::unavailable("consuming", refusal) });
    }

    /// Asks whether a refusal still holds, once its grace is over.
    fn ask_again(&mut self) {
        match self.refusals.due(Instant::now()) {
            Some(Ask::Fetch) => self.fetch_again(),
            Some(Ask::Anew) => self.ask_anew(),
            None => {}
        }
    }

    fn ask_anew(&mut self) {
        if self.replace("the brokers refused it, and a new one shows whether they still do") {
            self.refusals.begun_anew(Instant::now());
        }
    }

    /// Fetches once more where each partition is. The client library then reports a partition's end again, and drops the
    /// records it had fetched ahead.
    fn fetch_again(&self) {
        for Progress { partition, next, .. } in self.shared.progress() {
            if let Err(error) = self.consumer.seek(&self.options.topic, partition, Offset::Offset(next), Duration::ZERO)
            {
                // It may have been lost just now; a new consumer is the next that is asked.
                tracing::debug!(error = said(&error), partition, "a partition could not be fetched again");
            }
        }
    }

    /// Asks the brokers whether they are back, while none can be reached.
    fn probe(&mut self) {
        if self.shared.unreachable_for().is_none() || Instant::now() < self.probe_at {
            return;
        }
        self.probe_at = Instant::now() + PROBE_EVERY;
        if self.consumer.fetch_metadata(Some(&self.options.topic), PROBE_WAITS).is_ok() {
            self.shared.reachable();
        }
    }

    /// Which positions the log does not have, or no longer has.
    fn out_of_range(&self) -> SourceError {
        let topic = &self.options.topic;
        let progress = self.shared.progress();
        let partitions: Vec<_> = progress.iter().map(|progress| progress.partition).collect();
        let ends = |which| attach::ends(&self.consumer, topic, &partitions, which).unwrap_or_default();
        let (low, high) = (ends(Reset::Earliest), ends(Reset::Latest));
        let outside = progress.iter().filter_map(|Progress { partition, next, .. }| {
            let (low, high) = (low.get(partition)?, high.get(partition)?);
            let inside = (low..=high).contains(&next);
            (!inside).then(|| format!("{topic}/{partition}/{next} (it has {low} to {high})"))
        });
        let outside: Vec<_> = outside.collect();
        SourceError::refused(
            format!("topic {topic:?} has no record at the group's position {}", outside.join(", ")),
            format!(
                "Records expired before they were handled, or the topic was truncated or created again. Find out which, then move \
                 group {:?} to where it should go on with kafka-consumer-groups --reset-offsets",
                self.options.group
            ),
        )
    }

    pub(crate) fn created_again(&self) -> SourceError {
        let KafkaOptions { topic, group, .. } = &*self.options;
        SourceError::refused(
            format!("topic {topic:?} was deleted, and maybe created again, while group {group:?} consumed it"),
            "Start again once it is there: the group knows nothing of the new topic, so say where it starts; reset earliest \
             loses nothing",
        )
    }

    /// Pauses everything while the buffer is full: polling goes on, so the group keeps this member.
    fn balance(&mut self) {
        let Some(full) = self.shared.full().filter(|full| *full != self.paused) else { return };
        let partitions = list(&self.options.topic, &self.shared.partitions());
        let done = if full { self.consumer.pause(&partitions) } else { self.consumer.resume(&partitions) };
        match done {
            Ok(()) => self.paused = full,
            // A partition was lost between two polls; the next turn tries again.
            Err(error) => tracing::debug!(error = said(&error), "partitions could not be paused or resumed"),
        }
    }

    /// Gives up the consumer for a new one. False if none could be made.
    fn replace(&mut self, why: &str) -> bool {
        let topic = &self.options.topic;
        tracing::warn!(%topic, why, "the consumer is replaced by a new one");
        let fresh = consumer(&self.options, self.login.clone()).and_then(|fresh| {
            fresh.subscribe(&[topic])?;
            Ok(fresh)
        });
        let is_fresh = fresh.is_ok();
        match fresh {
            Ok(fresh) => {
                self.shared.forget(&self.shared.partitions());
                let stalled = std::mem::replace(&mut self.consumer, fresh);
                self.rebalance = Rebalance::default();
                self.paused = false;
                stalled.context().close();
                // Leaving the group may take as long as the brokers let it.
                let disposal = std::thread::Builder::new().name("idem-kafka-drop".to_owned());
                if let Err(error) = disposal.spawn(move || drop(stalled)) {
                    tracing::warn!(%error, "the old consumer was dropped on the polling thread");
                }
            }
            // Such as a certificate that is being exchanged; the consumer that there is may still be let in.
            Err(error) => {
                let doing = "replacing the consumer";
                self.shared.fail(SourceError::unavailable(doing, classify(&self.options, doing, error)));
            }
        }
        is_fresh
    }

    fn close(mut self) {
        if self.shared.ending() == Some(Ending::Close) {
            self.commit_and_wait(&|_| true);
        }
        self.wait_for_coordinator();
        self.leave();
    }

    /// Dropping the consumer leaves the group, which waits for every assignment to be answered.
    fn leave(mut self) {
        self.consumer.context().close();
        self.answer_all();
        // librdkafka 2.12 tells the group nothing when a cooperative member without partitions is closed, and the group
        // would wait for it until its session ends.
        self.consumer.unsubscribe();
        // That revokes the assigned partitions, which is answered from within this poll.
        self.poll(PATIENCE);
        self.wait_for_coordinator();
    }
}

fn consumer(options: &KafkaOptions, login: Option<Login>) -> KafkaResult<BaseConsumer<Context>> {
    options.consumer_config().create_with_context(Context::new(login))
}
