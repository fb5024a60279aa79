//! The conformance suite, on the real broker, under both rebalance protocols.

use std::time::Duration;

use idem_conformance::source::{Features, SourceUnderTest, Unsupported};
use idem_core::{Message, SourceError};
use idem_kafka::{KafkaOptions, KafkaSource};
use idem_testkit::memory::Revoke;

use crate::cluster::{BROKERS, Topic, eventually, fast};

/// A topic of one partition, because a crash brings back the messages behind the first unfinished one.
struct Fixture {
    topic: Topic,
    another: Topic,
    strategy: &'static str,
}

async fn fixture(strategy: &'static str) -> Fixture {
    Fixture { topic: Topic::new(1).await, another: Topic::new(1).await, strategy }
}

impl Fixture {
    fn build(&self, options: KafkaOptions) -> KafkaSource {
        options.set("partition.assignment.strategy", self.strategy).build().unwrap()
    }

    fn is_eager(&self) -> bool {
        self.strategy == "range"
    }
}

impl SourceUnderTest for Fixture {
    type Source = KafkaSource;

    fn features(&self) -> Features {
        Features::default()
            .ordered(true)
            .individual_settle(false)
            .delayed_release(false)
            .message_ids(false)
            .counts_attempts(false)
            .shares_messages(false)
            .revokes(self.is_eager())
    }

    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        self.topic.publish(message).await
    }

    async fn source(&self) -> KafkaSource {
        self.build(self.topic.options())
    }

    async fn source_that_tells_late(&self) -> KafkaSource {
        self.build(self.topic.options().commit_every(Duration::from_secs(300)))
    }

    async fn source_of_another_queue(&self) -> KafkaSource {
        self.build(self.another.options())
    }

    async fn source_of_an_unknown_queue(&self, name: &str) -> KafkaSource {
        self.build(fast(KafkaOptions::new(&*BROKERS, name, &self.topic.group)))
    }

    /// A dropped source commits nothing; it leaves the group, which a process that dies would not.
    async fn crash(&self, source: KafkaSource) {
        let before = self.topic.members();
        drop(source);
        // Another may be joining meanwhile, so their ids distinguish the members.
        let gone = || {
            let members = self.topic.members();
            before.is_empty() || before.iter().any(|member| !members.contains(member))
        };
        eventually("the member's end", gone).await;
    }

    async fn unsettled(&self, expected: u64) -> u64 {
        let equal = async {
            while tokio::task::block_in_place(|| self.topic.lag()) != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), equal).await;
        tokio::task::block_in_place(|| self.topic.lag())
    }

    async fn formed(&self, sources: usize) {
        eventually("a stable group", || self.topic.is_stable(sources)).await;
    }

    /// Under the eager protocol a member gives back everything when a partition is added. Under the cooperative one a
    /// group of one member keeps what it has.
    async fn revoke(&self, how: Revoke) -> Result<(), Unsupported> {
        if !self.is_eager() {
            return Err(Unsupported);
        }
        match how {
            Revoke::Drained => self.topic.add_partition().await,
            Revoke::Lost => tokio::task::block_in_place(|| self.topic.expel()),
        }
        Ok(())
    }
}

macro_rules! suites {
    ($($protocol:ident => $strategy:literal;)*) => {$(
        mod $protocol {
            async fn fresh() -> super::Fixture {
                super::fixture($strategy).await
            }

            idem_conformance::source_conformance!(fresh);
        }
    )*};
}

suites! {
    cooperative => "cooperative-sticky";
    eager => "range";
}
