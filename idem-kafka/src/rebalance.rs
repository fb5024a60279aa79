//! Assignments that begin and end.
//!
//! The client library keeps the membership alive until a rebalance is answered, so answers wait here, between polls, until
//! the worker has finished: drain, then commit, then let go (E10).

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, KafkaResult},
    types::RDKafkaErrorCode as Code,
};
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Duration, Instant},
};

use crate::{
    attach::{self, ANSWER, Starts, committed, known, list, list_of},
    context::{Step, answer_assign, answer_revoke},
    error::said,
    options::Reset,
    poll::Poller,
    state::Start,
};

/// How long to wait before the group coordinator is asked again where an assignment starts.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How long to wait before it is read whether the group has the start of an assignment.
const READ_BACK: Duration = Duration::from_millis(20);

/// How often that is read before a line of the log says so, and between two such lines.
const TOLD_EVERY: u32 = 250;

/// The revocation that is not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Rebalance {
    /// Partitions whose starts are not known yet, and when to ask for them again.
    assign: Option<(Vec<i32>, Instant)>,
    drain: Option<Drain>,
    /// How often in a row the group was found without the start of an assignment.
    without_start: u32,
}

/// Partitions that are still held while their messages are finished.
#[derive(Debug)]
struct Drain {
    partitions: Vec<i32>,
    answer: oneshot::Receiver<()>,
    until: Instant,
}

/// Partitions, as a log line has them.
fn numbers(partitions: &[i32]) -> String {
    partitions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Rebalance {
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }
}

impl Poller {
    /// Continues the rebalance that the group asked for, as far as it can without waiting.
    pub(crate) fn rebalance(&mut self) {
        if let Some(mut drain) = self.rebalance.drain.take() {
            if self.is_awaited(&mut drain) {
                self.rebalance.drain = Some(drain);
                return;
            }
            self.commit_and_wait(&|partition| drain.partitions.contains(&partition));
            self.let_go(&drain.partitions);
        }
        if let Some((partitions, at)) = self.rebalance.assign.take() {
            if Instant::now() < at && !self.consumer.context().has_step() {
                self.rebalance.assign = Some((partitions, at));
                return;
            }
            self.begin(partitions);
        }
        match self.consumer.context().next_step() {
            Some(Step::Assign(partitions)) => self.begin(partitions),
            Some(Step::Revoke(partitions)) => {
                let until = Instant::now() + self.options.drain;
                let answer = self.shared.drain(&partitions);
                self.rebalance.drain = Some(Drain { partitions, answer, until });
            }
            Some(Step::Lost(partitions)) => {
                tracing::warn!(
                    partitions = numbers(&partitions),
                    "the group went on without this member; its messages in hand come back"
                );
                self.let_go(&partitions);
            }
            None => {}
        }
    }

    /// Whether the end of an assignment still waits for the worker.
    fn is_awaited(&self, drain: &mut Drain) -> bool {
        if Instant::now() >= drain.until {
            tracing::warn!(
                partitions = numbers(&drain.partitions),
                "an assignment ended before its messages did; they come back as duplicates"
            );
            return false;
        }
        drain.answer.try_recv() == Err(TryRecvError::Empty)
            && !self.shared.is_drained(&drain.partitions)
            && !self.consumer.assignment_lost()
    }

    fn let_go(&self, partitions: &[i32]) {
        self.shared.forget(partitions);
        if let Err(error) = answer_revoke(&self.consumer, &list(&self.options.topic, partitions)) {
            tracing::warn!(
                error = said(&error),
                partitions = numbers(partitions),
                "the end of an assignment could not be answered"
            );
        }
    }

    fn begin(&mut self, partitions: Vec<i32>) {
        let starts = if self.consumer.context().has_step() {
            // It is over already, or is taken back: it is answered, and nothing of it is delivered.
            Ok((list(&self.options.topic, &partitions), Vec::new()))
        } else {
            match self.has_starts(&partitions) {
                Ok(false) => {
                    self.rebalance.assign = Some((partitions, Instant::now() + READ_BACK));
                    return;
                }
                Ok(true) => self.starts(&partitions),
                Err(error) => Err(error),
            }
        };
        let begun = starts.and_then(|(list, starts)| {
            self.shared.assign(&starts);
            answer_assign(&self.consumer, &list)?;
            if self.paused { self.consumer.pause(&list) } else { self.consumer.resume(&list) }
        });
        match begun {
            Ok(()) => self.commit_at = Instant::now(),
            Err(error) => {
                tracing::warn!(
                    error = said(&error),
                    partitions = numbers(&partitions),
                    "partitions were assigned that cannot begin yet; trying again"
                );
                self.shared.forget(&partitions);
                self.rebalance.assign = Some((partitions, Instant::now() + ASK_AGAIN));
            }
        }
    }

    /// Whether the group has the starts of these partitions. If not, commits them as the member that the partitions were given to: nothing
    /// may be delivered before that, because after a crash `latest` would mean a later end.
    fn has_starts(&mut self, partitions: &[i32]) -> KafkaResult<bool> {
        let mut starts: Starts =
            partitions.iter().filter_map(|partition| self.starts.remove_entry(partition)).collect();
        if starts.is_empty() {
            return Ok(true);
        }
        let (topic, asked) = (&self.options.topic, starts.keys().copied().collect::<Vec<_>>());
        let theirs = committed(&self.consumer, topic, &asked, ANSWER);
        // Those that the group has are never committed again: it may have gone on since, or an operator has moved it.
        for element in theirs.iter().flat_map(|theirs| theirs.elements()).filter(|element| known(element).is_some()) {
            starts.remove(&element.partition());
        }
        self.starts.extend(&starts);
        theirs?;
        if starts.is_empty() {
            self.rebalance.without_start = 0;
            return Ok(true);
        }
        self.rebalance.without_start += 1;
        if self.rebalance.without_start.is_multiple_of(TOLD_EVERY) {
            tracing::warn!(
                group = self.options.group,
                %topic,
                partitions = numbers(&asked),
                "the group does not take the positions at which these partitions start; nothing is delivered from them before that"
            );
        }
        self.consumer.commit(&list_of(topic, &starts)?, CommitMode::Async)?;
        Ok(false)
    }

    /// Where each partition starts: at the group's position; where it has none, as in a partition that was added later, at
    /// its beginning.
    fn starts(&self, partitions: &[i32]) -> KafkaResult<(TopicPartitionList, Vec<Start>)> {
        if partitions.is_empty() {
            return Ok((TopicPartitionList::new(), Vec::new()));
        }
        let topic = &self.options.topic;
        let mut list = committed(&self.consumer, topic, partitions, ANSWER)?;
        let theirs: Vec<_> = list.elements().iter().map(|element| (element.partition(), known(element))).collect();
        let unknown: Vec<_> =
            theirs.iter().filter(|(_, offset)| offset.is_none()).map(|(partition, _)| *partition).collect();
        let beginnings = attach::ends(&self.consumer, topic, &unknown, Reset::Earliest)?;
        let mut starts = Vec::with_capacity(partitions.len());
        for (partition, offset) in theirs {
            let beginning = beginnings.get(&partition).copied();
            let Some(start) = offset.or(beginning) else {
                return Err(KafkaError::OffsetFetch(Code::UnknownPartition));
            };
            list.set_partition_offset(topic, partition, Offset::Offset(start))?;
            starts.push(Start { partition, offset: start, committed: offset.is_some() });
        }
        Ok((list, starts))
    }

    /// Answers whatever the group waits for, because leaving it waits for that.
    pub(crate) fn answer_all(&mut self) {
        if let Some(drain) = self.rebalance.drain.take() {
            self.let_go(&drain.partitions);
        }
        let assigned = self.rebalance.assign.take().map(|(partitions, _)| Step::Assign(partitions));
        for step in assigned.into_iter().chain(std::iter::from_fn(|| self.consumer.context().next_step())) {
            match step {
                Step::Assign(partitions) => {
                    if let Err(error) = answer_assign(&self.consumer, &list(&self.options.topic, &partitions)) {
                        tracing::debug!(error = said(&error), "the last assignment could not be answered");
                    }
                }
                Step::Revoke(partitions) | Step::Lost(partitions) => self.let_go(&partitions),
            }
        }
    }
}
