//! A queue, its producer, and the server's view of it.

use std::{collections::HashMap, sync::Arc};

use aws_sdk_sqs::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    types::{MessageAttributeValue, QueueAttributeName, SendMessageBatchRequestEntry as Entry},
};
use futures_util::{StreamExt, stream};

use idem_testkit::sqs::{FakeSqs, QueueOptions};

use super::purchase::Purchase;

/// The attributes of a message.
pub(crate) type Attributes = HashMap<String, MessageAttributeValue>;

/// Where queues are.
#[derive(Clone)]
pub(crate) enum Server {
    /// An emulator, which is lenient where SQS is not: `IDEM_SQS_URL`, else what `./servers up sqs` starts.
    ElasticMq,
    /// One that is strict as SQS's documentation is.
    Strict(Arc<FakeSqs>),
}

impl Server {
    pub(crate) async fn strict() -> Self {
        Self::Strict(Arc::new(FakeSqs::start().await.expect("a port")))
    }

    pub(crate) fn endpoint(&self) -> String {
        match self {
            Self::ElasticMq => std::env::var("IDEM_SQS_URL").unwrap_or_else(|_| "http://127.0.0.1:29324".to_owned()),
            Self::Strict(fake) => fake.endpoint().to_owned(),
        }
    }
}

/// Tests on both servers (F11) with the function of this name, which takes the server.
macro_rules! on_both_servers {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use crate::queue::Server;

            #[tokio::test(flavor = "multi_thread")]
            async fn f11_on_elasticmq() {
                super::$name(Server::ElasticMq).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn f11_on_the_strict_server() {
                super::$name(Server::strict().await).await;
            }
        }
    )*};
}
pub(crate) use on_both_servers;

pub(crate) struct Queue {
    pub(crate) server: Server,
    client: Client,
    pub(crate) url: String,
}

impl Queue {
    pub(crate) async fn create(server: &Server, name: &str) -> Self {
        let credentials = Credentials::new("test", "test", None, None, "test");
        let config = Config::builder().behavior_version(BehaviorVersion::latest()).credentials_provider(credentials);
        let config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
        let client =
            Client::from_conf(config.region(Region::new("eu-central-1")).endpoint_url(server.endpoint()).build());
        let server = server.clone();
        if let Server::Strict(fake) = &server {
            return Self { url: fake.create(name, QueueOptions::default()).url(), server, client };
        }
        let mut create = client.create_queue().queue_name(name);
        if name.ends_with(".fifo") {
            create = create.attributes(QueueAttributeName::FifoQueue, "true");
        }
        let created = create.send().await.expect("the server answers: ./servers up sqs");
        Self { url: created.queue_url.expect("its URL"), server, client }
    }

    /// Sends purchases; on a FIFO queue those of one customer are a group.
    pub(crate) async fn send(&self, purchases: impl IntoIterator<Item = Purchase>) {
        let texts = purchases.into_iter().map(|purchase| (purchase.json(), purchase.customer));
        self.send_texts(texts.collect()).await;
    }

    /// Sends texts, each with its group.
    pub(crate) async fn send_texts(&self, texts: Vec<(String, String)>) {
        self.send_with_attributes(texts.into_iter().map(|(text, group)| (text, group, HashMap::new())).collect()).await;
    }

    /// The same with attributes.
    pub(crate) async fn send_with_attributes(&self, texts: Vec<(String, String, Attributes)>) {
        let is_fifo = self.url.ends_with(".fifo");
        let batches: Vec<_> = texts
            .chunks(10)
            .map(|batch| {
                let entry = |(number, (text, group, attributes)): (usize, &(String, String, Attributes))| {
                    let mut entry = Entry::builder().id(number.to_string()).message_body(text);
                    if is_fifo {
                        let once = format!("{:016x}", fastrand::u64(..));
                        entry = entry.message_group_id(group).message_deduplication_id(once);
                    }
                    let attributes = Some(attributes.clone()).filter(|attributes| !attributes.is_empty());
                    entry.set_message_attributes(attributes).build().expect("an entry")
                };
                let entries = batch.iter().enumerate().map(entry).collect();
                self.client.send_message_batch().queue_url(&self.url).set_entries(Some(entries)).send()
            })
            .collect();
        // Groups keep their order where one batch is sent after the other.
        let mut sent = stream::iter(batches).buffered(if is_fifo { 1 } else { 4 });
        while let Some(sent) = sent.next().await {
            assert!(sent.expect("the server takes them").failed.is_empty());
        }
    }

    /// How many messages wait, are in flight, and are delayed.
    pub(crate) async fn counts(&self) -> [u64; 3] {
        let asked = self.client.get_queue_attributes().queue_url(&self.url).attribute_names(QueueAttributeName::All);
        let attributes = asked.send().await.expect("the server answers").attributes.expect("attributes");
        [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ]
        .map(|name| attributes[&name].parse().expect("a count"))
    }

    /// Gives messages in flight back, as their visibility would in time. ElasticMQ has no way to.
    pub(crate) fn lapse(&self) {
        if let (Server::Strict(fake), Some((_, name))) = (&self.server, self.url.rsplit_once('/')) {
            fake.queue(name).lapse(usize::MAX);
        }
    }

    /// One attribute of each message in the queue; `None` where a message does not have it.
    pub(crate) async fn values(&self, attribute: &str) -> Vec<Option<String>> {
        let value = |(_, attributes): (String, Attributes)| attributes.get(attribute)?.string_value.clone();
        self.messages().await.into_iter().map(value).collect()
    }

    /// The content of the queue: texts with their attributes. None of it comes again while the default visibility
    /// lasts.
    pub(crate) async fn messages(&self) -> Vec<(String, Attributes)> {
        let mut all = Vec::new();
        loop {
            let receive = self.client.receive_message().queue_url(&self.url).max_number_of_messages(10);
            let received = receive.wait_time_seconds(1).message_attribute_names("All").send().await;
            let messages = received.expect("the server answers").messages.unwrap_or_default();
            if messages.is_empty() {
                return all;
            }
            for message in messages {
                all.push((message.body.unwrap_or_default(), message.message_attributes.unwrap_or_default()));
            }
        }
    }

    /// Deletes the queue and creates it again under its name.
    pub(crate) async fn create_again(&self) -> Self {
        self.client.delete_queue().queue_url(&self.url).send().await.expect("the queue goes");
        let (_, name) = self.url.rsplit_once('/').expect("a URL with a name");
        Self::create(&self.server, name).await
    }

    /// The strict server goes with its queues.
    pub(crate) async fn delete(self) {
        if let Server::Strict(_) = self.server {
            return;
        }
        self.client.delete_queue().queue_url(&self.url).send().await.expect("the queue goes");
    }
}
