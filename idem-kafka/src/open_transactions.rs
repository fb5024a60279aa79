//! Finds transactions of producers that stay open: readers of committed records get nothing behind them, and see no lag.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use rdkafka::{
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaResult,
};
use tokio::time::{Duration, Instant};

use crate::{error::said, options::KafkaOptions};

/// For how long a partition has had the same end before it is looked at, and how often it is looked at then.
const UNMOVED: Duration = Duration::from_secs(60);

/// How long a leader's answer is waited for.
const WAITS: Duration = Duration::from_secs(10);

/// Where a partition ends for readers of committed records, and behind its last record.
type Ends = (i64, i64);

/// What is known of the partitions that this member holds.
#[derive(Debug, Default)]
pub(crate) struct OpenTransactions {
    /// The end of each for readers of committed records, and since when it has been that.
    unmoved: BTreeMap<i32, (i64, Instant)>,
    found: Arc<Mutex<BTreeMap<i32, Ends>>>,
    look_at: Option<Instant>,
    looking: Option<JoinHandle<()>>,
}

impl OpenTransactions {
    /// Takes over where partitions end for readers of committed records, and moves each end behind what an open transaction holds back.
    pub(crate) fn beyond(&mut self, options: &Arc<KafkaOptions>, mut ends: BTreeMap<i32, i64>) -> BTreeMap<i32, i64> {
        let now = Instant::now();
        self.unmoved.retain(|partition, (end, _)| ends.get(partition) == Some(end));
        for (partition, end) in &ends {
            self.unmoved.entry(*partition).or_insert((*end, now));
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|partition, (committed, _)| ends.get(partition) == Some(committed));
        ends.extend(found.iter().map(|(partition, (_, last))| (*partition, *last)));
        drop(found);
        self.look(options, now);
        ends
    }

    /// Looks if that is due, on a thread of its own.
    fn look(&mut self, options: &Arc<KafkaOptions>, now: Instant) {
        let is_long = |since: Instant| now.duration_since(since) >= UNMOVED;
        let asked: Vec<(i32, i64)> =
            self.unmoved.iter().filter(|(_, (_, since))| is_long(*since)).map(|(of, (end, _))| (*of, *end)).collect();
        let is_looking = self.looking.as_ref().is_some_and(|thread| !thread.is_finished());
        // A client that logs in by token would need a task of its own for it.
        if asked.is_empty() || is_looking || self.look_at.is_some_and(|at| now < at) || options.tokens.is_some() {
            return;
        }
        self.look_at = Some(now + UNMOVED);
        let (options, found) = (Arc::clone(options), Arc::clone(&self.found));
        let look = move || match last(&options, &asked) {
            Ok(ends) => note(&options, &found, ends),
            Err(error) => tracing::debug!(error = said(&error), "the ends of partitions could not be asked for"),
        };
        match thread::Builder::new().name("idem-kafka-ends".to_owned()).spawn(look) {
            Ok(thread) => self.looking = Some(thread),
            Err(error) => tracing::debug!(%error, "no thread for a look at the ends of partitions"),
        }
    }
}

/// Asks where these partitions end behind their last records. It takes a client of its own: the library asks with the isolation that the
/// client consumes with. Its connections end with the look.
fn last(options: &KafkaOptions, asked: &[(i32, i64)]) -> KafkaResult<Vec<(i32, Ends)>> {
    let client: BaseConsumer = options.connection_config().set("isolation.level", "read_uncommitted").create()?;
    let end = |(partition, committed): &(i32, i64)| {
        let (_, last) = client.fetch_watermarks(&options.topic, *partition, WAITS)?;
        Ok((*partition, (*committed, last)))
    };
    asked.iter().map(end).collect()
}

fn note(options: &KafkaOptions, found: &Mutex<BTreeMap<i32, Ends>>, ends: Vec<(i32, Ends)>) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    for (partition, (committed, last)) in ends {
        if last <= committed {
            found.remove(&partition);
        } else if found.insert(partition, (committed, last)).is_none_or(|(before, _)| before != committed) {
            tracing::warn!(
                topic = options.topic,
                partition,
                offset = committed,
                records = last - committed,
                "a producer's transaction has been open for over a minute, and nothing behind it is delivered; \
                 `kafka-transactions.sh describe-producers` names the producer, and `kafka-transactions.sh abort` ends the transaction"
            );
        }
    }
}
