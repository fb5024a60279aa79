//! [`KafkaSource`]: the source as the worker sees it.

use std::{fmt, sync::Arc, time::Duration};

use idem_core::{
    ConfigError, Source, SourceError,
    source::{Attached, Behind, Received, Settle, Settled, SourceCapabilities},
};
use rdkafka::{error::KafkaError, types::RDKafkaErrorCode as Code};
use tokio::sync::{Mutex, oneshot};

use crate::{
    error::{unavailable, unavailable_because},
    options::{KafkaOptions, LaneBy},
    poll,
    state::{Ending, KafkaHandle, Shared},
};

/// How long attaching may take, all questions to the brokers together.
const ATTACH: Duration = Duration::from_secs(30);

/// How long a flush waits for the group.
const FLUSH: Duration = Duration::from_secs(5);

/// One topic, consumed as a member of one group. [`KafkaOptions`] makes one.
///
/// The consumer lives on a thread of its own, which polls from [`Source::attach`] until [`Source::close`] or until the
/// source is dropped.
pub struct KafkaSource {
    options: Arc<KafkaOptions>,
    shared: Arc<Shared>,
    attached: Mutex<Option<Attached>>,
}

impl KafkaOptions {
    /// Checks the settings. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(&self) -> Result<KafkaSource, ConfigError> {
        self.check()?;
        Ok(KafkaSource { options: Arc::new(self.clone()), shared: Arc::default(), attached: Mutex::default() })
    }
}

impl KafkaSource {
    /// The partitions that the group has given this member, in order, without those that it is about to lose.
    #[must_use]
    pub fn partitions(&self) -> Vec<i32> {
        let mut partitions = self.shared.partitions();
        partitions.sort_unstable();
        partitions
    }

    /// The same partitions, each with how many of its records are not settled: those that are in hand, and those behind them,
    /// by the brokers' answers of the last seconds. `None` until they answered. Records that compaction removed count until
    /// they are passed.
    #[must_use]
    pub fn lag(&self) -> Vec<(i32, Option<u64>)> {
        self.shared.lag()
    }

    /// The topic that is consumed.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.options.topic
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Source for KafkaSource {
    type Handle = KafkaHandle;

    fn capabilities(&self) -> SourceCapabilities {
        let by_partition = self.options.lane_by == LaneBy::Partition;
        SourceCapabilities::minimal().ordered_by_part(by_partition)
    }

    /// # Errors
    /// [`SourceError::Refused`] for a topic that does not exist, rights that are missing, a group without committed offsets in the
    /// topic where no [`reset`](KafkaOptions::reset) was given, and brokers that do not let this client in.
    ///
    /// # Cancel safety
    /// Cancel safe: the consumer of a dropped call leaves the group again.
    async fn attach(&self) -> Result<Attached, SourceError> {
        let mut attached = self.attached.lock().await;
        if let Some(attached) = &*attached {
            return Ok(attached.clone());
        }
        let (options, shared) = (Arc::clone(&self.options), Arc::clone(&self.shared));
        let (answer, answered) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let thread = std::thread::Builder::new().name("idem-kafka".to_owned());
        thread
            .spawn(move || poll::run(options, shared, &runtime, answer))
            .map_err(|error| SourceError::Unavailable { doing: "starting a thread", source: error.into() })?;
        let late = || unavailable("attaching", &KafkaError::MetadataFetch(Code::OperationTimedOut));
        let facts = match tokio::time::timeout(ATTACH, answered).await {
            Ok(Ok(facts)) => facts?,
            Ok(Err(_)) => return Err(SourceError::refused("the source is closed", "Make a new one")),
            Err(_) => return Err(late()),
        };
        *attached = Some(facts.clone());
        Ok(facts)
    }

    /// # Errors
    /// [`SourceError::Refused`] where the group's position is outside of the log, the topic was deleted or rights were
    /// taken away; [`SourceError::Unavailable`] when no broker can be reached.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call loses nothing.
    async fn receive(&self, max: usize) -> Result<Received<KafkaHandle>, SourceError> {
        self.shared.receive(max).await
    }

    /// # Cancel safety
    /// It does not wait.
    async fn settle(&self, settlements: Vec<(KafkaHandle, Settle)>) -> Vec<Settled> {
        self.shared.settle(settlements)
    }

    /// Commits positions, and reads back that the group has them. While assignments end it commits those alone, so nothing is
    /// flushed then.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] where the group did not take them within 5 seconds.
    ///
    /// # Cancel safety
    /// Cancel safe: positions are committed later all the same.
    async fn flush(&self) -> Result<(), SourceError> {
        if let Ok(Ok(())) = tokio::time::timeout(FLUSH, self.shared.flush()).await {
            return Ok(());
        }
        let text = format!("group {:?} of topic {:?} has not taken them yet", self.options.group, self.options.topic);
        Err(unavailable_because("committing positions", text))
    }

    fn holds_back(&self, handle: &KafkaHandle) -> bool {
        self.shared.holds_back(handle)
    }

    fn is_held_back(&self, handle: &KafkaHandle) -> bool {
        self.shared.is_held_back(handle)
    }

    async fn is_idle(&self) -> bool {
        self.shared.is_idle()
    }

    /// The group may refuse this member for as long as another one lives, and says so at each of its tries.
    fn takes_part(&self) -> bool {
        self.shared.has_joined()
    }

    fn unreachable_for(&self) -> Option<Duration> {
        self.shared.unreachable_for()
    }

    async fn behind(&self) -> Vec<Behind> {
        let part = |(partition, messages)| Behind::new(format!("{}/{partition}", self.options.topic), messages);
        self.shared.lag().into_iter().map(part).collect()
    }

    fn stop(&self) {
        self.shared.stop();
    }

    /// Commits finished positions and leaves the group.
    ///
    /// # Cancel safety
    /// Cancel safe: the thread goes on closing.
    async fn close(&self, deadline: Duration) {
        self.shared.end(Ending::Close);
        if tokio::time::timeout(deadline, self.shared.ended()).await.is_err() {
            // The thread ends by itself once the brokers let it.
            tracing::warn!(topic = self.options.topic, ?deadline, "the brokers did not let go in time");
            self.shared.over(None);
        }
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.end(Ending::Drop);
    }
}
