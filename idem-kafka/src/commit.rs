//! Positions on their way to the group.
//!
//! rdkafka 0.39 never reports the result of an asynchronous commit (it registers no callback for those), and a synchronous
//! one waits without a limit. So a position counts as committed once it was read back, and is sent until then. A failed commit
//! is no error: handled messages are recorded, and come back as duplicates at worst (E9).

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::KafkaResult,
};
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use crate::{
    attach::{ANSWER, committed, known},
    error::{said, unavailable_because},
    poll::{ATTENTION, Poller},
    state::Heard,
};

/// How long the last commits of an assignment may take.
const LAST_COMMIT: Duration = Duration::from_secs(5);

/// How long the group coordinator is waited for at a time, unless it was seen to need longer. Nothing is polled meanwhile, and
/// while the group rebalances it answers nothing: a broker reads the next request of a connection only after it has answered
/// the one to join.
const GLANCE: Duration = Duration::from_millis(500);

/// How often it is reported that the group takes no position.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// How long to leave a coordinator alone that did not answer.
const REST: Duration = Duration::from_secs(5);

/// How the group takes commits.
#[derive(Debug)]
pub(crate) struct Commits {
    /// How long the coordinator's next answer is waited for.
    patience: Duration,
    /// Since when there are positions to commit of which none was taken.
    untaken: Option<Instant>,
    /// How long the group may take no position before that is reported.
    told_after: Duration,
    told: Option<Instant>,
    /// Callers that wait until the group has every position.
    flushes: Vec<oneshot::Sender<()>>,
}

impl Commits {
    pub(crate) fn new(told_after: Duration) -> Self {
        Self { patience: GLANCE, untaken: None, told_after, told: None, flushes: Vec::new() }
    }

    /// Whether a caller waits for a commit.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// The coordinator answered after `took`. One that is far away, or throttles this client, needs as long again.
    fn answered(&mut self, took: Duration) {
        self.patience = (took * 2).clamp(GLANCE, ANSWER);
    }

    fn unanswered(&mut self) {
        self.patience = (self.patience * 2).min(ANSWER);
    }

    /// A position was taken, or there was none to take.
    fn taken(&mut self) {
        (self.untaken, self.told) = (None, None);
    }

    /// The group took no position. Answers for how long, if that is to be reported.
    fn not_taken(&mut self, now: Instant) -> Option<Duration> {
        let silent = now - *self.untaken.get_or_insert(now);
        let is_due = silent >= self.told_after && self.told.is_none_or(|told| now - told >= TOLD_EVERY);
        is_due.then(|| {
            self.told = Some(now);
            silent
        })
    }
}

impl Poller {
    pub(crate) fn commit_if_due(&mut self) {
        self.commits.flushes.extend(self.shared.take_flushes());
        self.commits.flushes.retain(|flush| !flush.is_closed());
        // Until a rebalance is answered, a commit may be refused, or start the next one.
        if self.rebalance.is_draining() {
            return self.commits.flushes.clear();
        }
        if Instant::now() < self.commit_at && !self.commits.is_awaited() {
            return;
        }
        let (rest, why) = match self.commit(&|_| true) {
            Ok(has_all) => {
                if has_all {
                    for flush in self.commits.flushes.drain(..) {
                        // The caller may have given up.
                        let _ = flush.send(());
                    }
                }
                (self.options.commit_every, "each of them is sent, and the group goes on with an older one".to_owned())
            }
            Err(error) => {
                self.commits.unanswered();
                self.commits.flushes.clear();
                let error = said(&error);
                tracing::debug!(error, "positions could not be committed; they are sent again");
                (self.options.commit_every.max(REST), error)
            }
        };
        self.commit_at = Instant::now() + rest;
        if let Some(silent) = self.commits.untaken.and_then(|_| self.commits.not_taken(Instant::now())) {
            self.shared.fail(unavailable_because(
                "committing positions",
                format!(
                    "group {:?} has taken none for {} s: {why}. What was handled since is recorded, and comes back as duplicates \
                     at the next rebalance; look at the load of the group's coordinator and at this client's quotas",
                    self.options.group,
                    silent.as_secs()
                ),
            ));
        }
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
                let error = taken.err().map(|error| said(&error)).unwrap_or_default();
                tracing::warn!(error, "the last positions were not taken; their messages come back as duplicates");
                return;
            }
            self.poll(ATTENTION);
        }
    }

    /// Waits until the coordinator answers, which it does not while this member is joining: a request to leave would wait
    /// behind that and time out, and the group would wait for a member that is gone.
    pub(crate) fn wait_for_coordinator(&mut self) {
        let until = Instant::now() + LAST_COMMIT;
        while committed(&self.consumer, &self.options.topic, &[0], GLANCE).is_err() && Instant::now() < until {
            self.poll(ATTENTION);
        }
    }

    /// Reads which positions the group has, and sends those that it does not have. True when it has them all.
    fn commit(&mut self, among: &impl Fn(i32) -> bool) -> KafkaResult<bool> {
        self.pass_what_is_not_delivered();
        let topic = &self.options.topic;
        let mut changed = self.shared.changed(among);
        if changed.is_empty() {
            self.commits.taken();
            return Ok(true);
        }
        self.commits.untaken.get_or_insert_with(Instant::now);
        let partitions: Vec<_> = changed.iter().map(|position| position.partition).collect();
        let asked = Instant::now();
        let theirs = committed(&self.consumer, topic, &partitions, self.commits.patience)?;
        self.commits.answered(asked.elapsed());
        let mut moved = false;
        for element in theirs.elements() {
            let position = known(&element);
            // Kafka forgets positions together with their topic, and takes them from no group that has members. Committing a
            // position of the old topic would skip as many records of a new one, without a word (E13).
            match self.shared.committed(element.partition(), position) {
                Heard::Vanished => {
                    self.shared.fail(self.created_again());
                    return Ok(true);
                }
                Heard::Moved => moved = true,
                Heard::Same => {}
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
        if moved || changed.is_empty() {
            self.commits.taken();
        }
        Ok(changed.is_empty())
    }

    /// Behind the last record of a partition there may be markers of transactions and records of aborted ones. A position in
    /// front of them would never reach the end, and would be out of range once they have expired (E22).
    fn pass_what_is_not_delivered(&self) {
        // Asked of this client alone. Where it does not know, the next look will show.
        let Ok(positions) = self.consumer.position() else { return };
        for element in positions.elements() {
            if let Some(offset) = known(&element) {
                self.shared.passed(element.partition(), offset);
            }
        }
    }
}
