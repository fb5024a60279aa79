//! The conformance suite, on both servers and both kinds of queues.

use std::time::Duration;

use idem_conformance::source::{Features, SourceUnderTest, Unsupported};
use idem_core::{
    Message, Source, SourceError,
    source::{Attached, Delivery, Received, Settle, Settled, SourceCapabilities},
};
use idem_sqs::{
    SqsHandle, SqsOptions, SqsSource,
    aws_sdk_sqs::{primitives::Blob, types::MessageAttributeValue as Value},
};

use crate::server::{Server, TestQueue};

/// How long ElasticMQ keeps messages of a crashed source; the fake's clock is moved on. A quarter of it is how long a request
/// may take, and half of it how long the source may be silent: a busy machine stands still for seconds.
const VISIBILITY: Duration = Duration::from_secs(16);

struct Fixture {
    queue: TestQueue,
    another: TestQueue,
}

/// With the record key that a message was published with, which on SQS is its group.
struct Keyed(SqsSource);

impl Source for Keyed {
    type Handle = SqsHandle;

    fn capabilities(&self) -> SourceCapabilities {
        self.0.capabilities()
    }
    async fn attach(&self) -> Result<Attached, SourceError> {
        self.0.attach().await
    }
    async fn receive(&self, max: usize) -> Result<Received<SqsHandle>, SourceError> {
        let received = self.0.receive(max).await?;
        let Received::Deliveries(deliveries) = received else { return Ok(received) };
        let keyed = |mut delivery: Delivery<_>| {
            let group = delivery.message.ordering_key().and_then(|key| str::from_utf8(key.as_bytes()).ok());
            if let Some(key) = group.and_then(|group| group.strip_prefix("key-")).map(str::to_owned) {
                delivery.message = delivery.message.with_record_key(key);
            }
            delivery
        };
        Ok(Received::Deliveries(deliveries.into_iter().map(keyed).collect()))
    }
    async fn settle(&self, settlements: Vec<(SqsHandle, Settle)>) -> Vec<Settled> {
        self.0.settle(settlements).await
    }
    async fn is_idle(&self) -> bool {
        self.0.is_idle().await
    }
    fn stop(&self) {
        self.0.stop();
    }
    async fn close(&self, deadline: Duration) {
        self.0.close(deadline).await;
    }
}

async fn fixture(server: Server, ending: &str) -> Fixture {
    Fixture { queue: server.queue(ending).await, another: server.queue(ending).await }
}

fn refused(problem: &str) -> Result<(), SourceError> {
    Err(SourceError::Refused { problem: problem.to_owned(), cure: String::new() })
}

impl Fixture {
    fn is_fake(&self) -> bool {
        matches!(self.queue.server, Server::Fake(..))
    }

    fn is_fifo(&self) -> bool {
        self.queue.name.ends_with(".fifo")
    }

    fn options(&self, url: &str) -> SqsOptions {
        let options = SqsOptions::new(self.queue.client().clone(), url).handler_deadline(Duration::from_secs(1));
        options.wait(Duration::from_secs(1)).receivers(2).visibility(VISIBILITY)
    }
}

impl SourceUnderTest for Fixture {
    type Source = Keyed;

    fn features(&self) -> Features {
        Features::default()
            .ordered(self.is_fifo())
            .repeated_headers(false)
            .null_headers(false)
            .tombstones(false)
            .empty_payloads(false)
            .binary_payloads(false)
            .payloads_of_one_mebibyte(self.is_fake())
            .record_keys(self.is_fifo())
            .message_ids(false)
            .hangs(self.is_fake())
            .expires(self.is_fake())
    }

    async fn publish(&self, message: Message) -> Result<(), SourceError> {
        let body = message.payload().and_then(|payload| str::from_utf8(payload).ok()).filter(|body| !body.is_empty());
        let Some(body) = body.filter(|_| message.id().is_none()) else { return refused("SQS carries text") };
        let mut send = self.queue.message(body);
        match message.record_key() {
            Some(key) if self.is_fifo() => {
                send = send.message_group_id(format!("key-{}", str::from_utf8(key).unwrap()));
            }
            Some(_) => return refused("a standard queue has no record keys"),
            None => {}
        }
        for (place, (name, value)) in message.headers().iter().enumerate() {
            let Some(value) = value else { return refused("an attribute has a value") };
            if message.headers().iter().take(place).any(|(before, _)| before == name) {
                return refused("an attribute is there once");
            }
            let attribute = match str::from_utf8(value) {
                Ok(text) => Value::builder().data_type("String").string_value(text),
                Err(_) => Value::builder().data_type("Binary").binary_value(Blob::new(value)),
            };
            send = send.message_attributes(name, attribute.build().unwrap());
        }
        match send.send().await {
            Ok(_) => Ok(()),
            Err(error) => Err(SourceError::Unavailable { doing: "sending", source: error.into() }),
        }
    }

    async fn source(&self) -> Keyed {
        Keyed(self.options(&self.queue.url).build().unwrap())
    }

    async fn source_of_another_queue(&self) -> Keyed {
        Keyed(self.options(&self.another.url).build().unwrap())
    }

    async fn source_of_an_unknown_queue(&self, name: &str) -> Keyed {
        let url = self.queue.url.replace(&self.queue.name, name);
        Keyed(self.options(&url).build().unwrap())
    }

    /// SQS gets no notice. The messages of the source come back when their visibility has passed, which on ElasticMQ takes
    /// its time.
    async fn crash(&self, source: Keyed) {
        drop(source);
        if self.is_fake() {
            self.queue.server.as_fake().advance(VISIBILITY);
        }
    }

    async fn unsettled(&self, expected: u64) -> u64 {
        let equal = async {
            while self.queue.total().await != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), equal).await;
        self.queue.total().await
    }

    async fn hang(&self) -> Result<(), Unsupported> {
        let Server::Fake(fake, _) = &self.queue.server else { return Err(Unsupported) };
        fake.hang(true);
        Ok(())
    }

    async fn answer_again(&self) -> Result<(), Unsupported> {
        let Server::Fake(fake, _) = &self.queue.server else { return Err(Unsupported) };
        fake.hang(false);
        // The messages of a source that gave up come back when their visibility has passed.
        fake.advance(VISIBILITY);
        Ok(())
    }

    async fn expire(&self) -> Result<(), Unsupported> {
        let Server::Fake(fake, _) = &self.queue.server else { return Err(Unsupported) };
        fake.advance(VISIBILITY);
        Ok(())
    }
}

macro_rules! suites {
    ($($name:ident => $server:expr, $ending:literal;)*) => {$(
        mod $name {
            async fn fresh() -> super::Fixture {
                super::fixture($server, $ending).await
            }

            idem_conformance::source_conformance!(fresh);
        }
    )*};
}

suites! {
    elasticmq_standard => crate::server::Server::elastic(), "";
    elasticmq_fifo => crate::server::Server::elastic(), ".fifo";
    fake_standard => crate::server::Server::fake().await, "";
    fake_fifo => crate::server::Server::fake().await, ".fifo";
}
