//! The conformance suite, on the real broker, for both kinds of queue.

use std::time::Duration;

use idem_amqp::AmqpSource;
use idem_conformance::source::{Features, SourceUnderTest, Unsupported};
use idem_core::{Message, SourceError};
use tokio::sync::OnceCell;

use crate::broker::{Kind, PATIENCE, Queue};

struct Fixture {
    queue: Queue,
    another: OnceCell<Queue>,
    kind: Kind,
}

async fn fixture(kind: Kind) -> Fixture {
    Fixture { queue: Queue::new(kind).await, another: OnceCell::new(), kind }
}

impl SourceUnderTest for Fixture {
    type Source = AmqpSource;

    fn features(&self) -> Features {
        Features::default()
            .delayed_release(false)
            .repeated_headers(false)
            .tombstones(false)
            .record_keys(false)
            .counts_attempts(self.kind == Kind::Quorum)
            // Messages that another consumer holds cannot be seen over the protocol.
            .sees_others(false)
            .disconnects(true)
            .hangs(true)
    }

    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        self.queue.publish(message).await
    }

    async fn source(&self) -> AmqpSource {
        self.queue.options().build().unwrap()
    }

    async fn source_of_another_queue(&self) -> AmqpSource {
        let another = self.another.get_or_init(|| Queue::new(self.kind)).await;
        another.options().build().unwrap()
    }

    async fn source_of_an_unknown_queue(&self, name: &str) -> AmqpSource {
        self.queue.options_for(name).build().unwrap()
    }

    async fn crash(&self, source: AmqpSource) {
        let before = self.queue.declared().await.consumer_count();
        drop(source);
        let gone = async {
            while before > 0 && self.queue.declared().await.consumer_count() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("the consumer's end");
    }

    async fn unsettled(&self, expected: u64) -> u64 {
        let equal = async {
            while self.queue.messages().await != expected {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        // The management API's figures are as old as its interval, and older on a busy machine.
        let _ = tokio::time::timeout(Duration::from_secs(30), equal).await;
        self.queue.messages().await
    }

    async fn disconnect(&self) -> Result<(), Unsupported> {
        self.queue.proxy.cut().await;
        Ok(())
    }

    async fn hang(&self) -> Result<(), Unsupported> {
        self.queue.proxy.freeze();
        Ok(())
    }

    async fn answer_again(&self) -> Result<(), Unsupported> {
        self.queue.proxy.thaw();
        Ok(())
    }
}

macro_rules! suites {
    ($($name:ident => $kind:expr;)*) => {$(
        mod $name {
            use crate::broker::Kind;

            async fn fresh() -> super::Fixture {
                super::fixture($kind).await
            }

            idem_conformance::source_conformance!(fresh);
        }
    )*};
}

suites! {
    classic => Kind::Classic;
    quorum => Kind::Quorum;
}
