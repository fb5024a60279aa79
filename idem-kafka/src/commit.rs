//! Positions on their way to the group.
//!
//! rdkafka 0.39 never tells what became of an asynchronous commit (it registers no callback for those), and a synchronous
//! one waits without a limit. So a position counts as committed once it was read back, and is sent until then. A commit
//! that fails is no error: what was handled is recorded, and comes back as a duplicate at worst (E9).

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::KafkaResult,
};
use tokio::time::{Duration, Instant};

use crate::{
    attach::{committed, known},
    poll::{ATTENTION, Poller},
};

/// How long the last commits of an assignment may take.
const LAST_COMMIT: Duration = Duration::from_secs(5);

/// How long the group coordinator is waited for at a time. Nothing is polled meanwhile, and while the group rebalances it
/// answers nothing: a broker reads the next request of a connection only after it has answered the one to join.
const GLANCE: Duration = Duration::from_millis(500);

/// How long to leave a coordinator alone that did not answer.
const REST: Duration = Duration::from_secs(5);

impl Poller {
    pub(crate) fn commit_if_due(&mut self) {
        // Until a rebalance is answered, a commit may be refused, or start the next one.
        if Instant::now() < self.commit_at || self.rebalance.is_draining() {
            return;
        }
        let rest = match self.commit(&|_| true) {
            Ok(_) => self.options.commit_every,
            Err(error) => {
                tracing::debug!(%error, "positions could not be committed; they are sent again");
                self.options.commit_every.max(REST)
            }
        };
        self.commit_at = Instant::now() + rest;
    }

    /// Sends positions until the group has them, but not for ever. Records that arrive meanwhile are taken in.
    pub(crate) fn commit_and_wait(&mut self, among: &impl Fn(i32) -> bool) {
        let until = Instant::now() + LAST_COMMIT;
        loop {
            let taken = self.commit(among);
            if matches!(taken, Ok(true)) {
                return;
            }
            if Instant::now() >= until {
                let error = taken.err();
                tracing::warn!(?error, "the last positions were not taken; what they cover comes back as duplicates");
                return;
            }
            self.poll(ATTENTION);
        }
    }

    /// Waits until the coordinator answers, which it does not while this member is joining: a request to leave would wait
    /// behind that and time out, and the group would wait for a member that is gone.
    pub(crate) fn wait_for_coordinator(&self) {
        let until = Instant::now() + LAST_COMMIT;
        while committed(&self.consumer, &self.options.topic, &[0], GLANCE).is_err() && Instant::now() < until {
            self.poll(ATTENTION);
        }
    }

    /// Reads which positions the group has, and sends those that it does not have. True when it has them all.
    fn commit(&mut self, among: &impl Fn(i32) -> bool) -> KafkaResult<bool> {
        let topic = &self.options.topic;
        let mut changed = self.shared.changed(among);
        if changed.is_empty() {
            return Ok(true);
        }
        let partitions: Vec<_> = changed.iter().map(|position| position.partition).collect();
        let theirs = committed(&self.consumer, topic, &partitions, GLANCE)?;
        for element in theirs.elements() {
            let position = known(&element);
            // Kafka forgets positions together with their topic, and takes them from no group that has members. Committing a
            // position of the old topic would skip as many records of a new one, without a word (E13).
            if !self.shared.committed(element.partition(), position) {
                self.shared.fail(self.created_again());
                return Ok(true);
            }
            changed.retain(|ours| ours.partition != element.partition() || Some(ours.offset) != position);
        }
        let mut list = TopicPartitionList::with_capacity(changed.len());
        for position in &changed {
            list.add_partition_offset(topic, position.partition, Offset::Offset(position.offset))?;
        }
        if !changed.is_empty() {
            self.consumer.commit(&list, CommitMode::Async)?;
        }
        Ok(changed.is_empty())
    }
}
