//! The two servers, and queues on them.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_credential_types::Credentials;
use idem_sqs::{
    SqsOptions,
    aws_sdk_sqs::{
        Client, Config,
        config::{BehaviorVersion, Region},
        operation::send_message::builders::SendMessageFluentBuilder,
        types::QueueAttributeName,
    },
};
use idem_testkit::sqs::{FakeQueue, FakeSqs, QueueOptions};

/// How long anything may take before a test says that it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A name that no other test has, in this run or another.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Process ids come again; a hasher's seed does not.
    let seed = RandomState::new().build_hasher().finish();
    format!("{what}-{}-{count}-{seed:016x}", std::process::id())
}

pub(crate) fn client(endpoint: &str) -> Client {
    let credentials = Credentials::new("test", "test", None, None, "test");
    let config = Config::builder().behavior_version(BehaviorVersion::latest()).credentials_provider(credentials);
    let config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
    Client::from_conf(config.region(Region::new("elasticmq")).endpoint_url(endpoint).build())
}

#[derive(Clone)]
pub(crate) enum Server {
    Elastic(Client),
    Fake(Arc<FakeSqs>, Client),
}

impl Server {
    pub(crate) fn elastic() -> Self {
        let url = std::env::var("IDEM_SQS_URL").unwrap_or_else(|_| "http://127.0.0.1:29324".to_owned());
        Self::Elastic(client(&url))
    }

    pub(crate) async fn fake() -> Self {
        let fake = FakeSqs::start().await.unwrap();
        let client = client(fake.endpoint());
        Self::Fake(Arc::new(fake), client)
    }

    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Elastic(client) | Self::Fake(_, client) => client,
        }
    }

    /// The fake, in a test of what only it does.
    pub(crate) fn as_fake(&self) -> &FakeSqs {
        match self {
            Self::Fake(fake, _) => fake,
            Self::Elastic(_) => panic!("a test of the fake"),
        }
    }

    /// A new queue, whose name ends so.
    pub(crate) async fn queue(&self, ending: &str) -> TestQueue {
        self.queue_with(ending, QueueOptions::default()).await
    }

    pub(crate) async fn queue_with(&self, ending: &str, options: QueueOptions) -> TestQueue {
        let name = format!("{}{ending}", unique("idem-test"));
        let url = match self {
            Self::Fake(fake, _) => fake.create(&name, options).url(),
            Self::Elastic(client) => {
                let mut create = client.create_queue().queue_name(&name);
                if ending == ".fifo" {
                    create = create.attributes(QueueAttributeName::FifoQueue, "true");
                }
                create.send().await.expect("ElasticMQ answers: ./servers up sqs").queue_url.unwrap()
            }
        };
        TestQueue { server: self.clone(), name, url }
    }
}

/// A queue of a test's own, removed when it is dropped.
pub(crate) struct TestQueue {
    pub(crate) server: Server,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl TestQueue {
    pub(crate) fn client(&self) -> &Client {
        self.server.client()
    }

    /// With spans that a test can wait for.
    pub(crate) fn options(&self) -> SqsOptions {
        let options = SqsOptions::new(self.client().clone(), &self.url);
        options.wait(Duration::from_secs(1)).receivers(2).handler_deadline(Duration::from_secs(1))
    }

    pub(crate) fn fake(&self) -> FakeQueue {
        self.server.as_fake().queue(&self.name)
    }

    /// A message to be sent. On a FIFO queue it has a group of its own and is no repetition.
    pub(crate) fn message(&self, body: &str) -> SendMessageFluentBuilder {
        let send = self.client().send_message().queue_url(&self.url).message_body(body);
        if !self.name.ends_with(".fifo") {
            return send;
        }
        send.message_group_id(unique("group")).message_deduplication_id(unique("send"))
    }

    pub(crate) async fn send(&self, bodies: impl IntoIterator<Item = impl AsRef<str>>) {
        for body in bodies {
            self.message(body.as_ref()).send().await.unwrap();
        }
    }

    /// Messages of one group, in this order.
    pub(crate) async fn send_in_order(&self, group: &str, bodies: impl IntoIterator<Item = impl AsRef<str>>) {
        for body in bodies {
            self.message(body.as_ref()).message_group_id(group).send().await.unwrap();
        }
    }

    /// How many messages are waiting, in flight and delayed.
    pub(crate) async fn counts(&self) -> [u64; 3] {
        let request = self.client().get_queue_attributes().queue_url(&self.url);
        let answer = request.attribute_names(QueueAttributeName::All).send().await.unwrap();
        let attributes = answer.attributes.unwrap();
        [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ]
        .map(|name| attributes[&name].parse().unwrap())
    }

    /// All of them.
    pub(crate) async fn total(&self) -> u64 {
        self.counts().await.iter().sum()
    }

    pub(crate) async fn until_counts(&self, expected: [u64; 3]) {
        eventually(&format!("counts of {expected:?}"), async || self.counts().await == expected).await;
    }
}

impl Drop for TestQueue {
    fn drop(&mut self) {
        if let Server::Fake(..) = self.server {
            return;
        }
        let url = self.url.clone();
        // On a thread, because a runtime may not be blocked, and with a client of its own, because a connection of the
        // test's needs the test's runtime. The queues of a server that is away are gone with it.
        let _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let deleted = async { Server::elastic().client().delete_queue().queue_url(url).send().await };
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), deleted).await })
        })
        .join();
    }
}

/// Waits until a condition without an event is true, by asking again.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "{what} did not come within {PATIENCE:?}");
}
