//! A queue, its producer, and the broker's view of it.

use std::time::Duration;

use futures_util::future::join_all;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use serde_json::Value;
use tokio::sync::Mutex;

use super::purchase::Purchase;

/// Where the broker is: `IDEM_AMQP_URL`, else what `./servers up rabbitmq` starts.
pub(crate) fn url() -> String {
    std::env::var("IDEM_AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:25673/%2f".to_owned())
}

/// Where its management API is.
pub(crate) fn management_url() -> String {
    std::env::var("IDEM_AMQP_MANAGEMENT_URL").unwrap_or_else(|_| "http://127.0.0.1:25674".to_owned())
}

/// `host:port` of a URL with a user.
pub(crate) fn host(url: &str) -> &str {
    let (_, rest) = url.split_once('@').expect("a URL with a user");
    rest.split('/').next().expect("a host")
}

pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) url: String,
    management_url: String,
    producer: Mutex<Option<(Connection, Channel)>>,
}

impl Queue {
    /// A durable queue on the shared broker.
    pub(crate) async fn create(name: &str, arguments: &[(&str, AMQPValue)]) -> Self {
        Self::create_on(&url(), &management_url(), name, arguments).await
    }

    pub(crate) async fn create_on(url: &str, management: &str, name: &str, arguments: &[(&str, AMQPValue)]) -> Self {
        let producer = Mutex::default();
        let queue =
            Self { name: name.to_owned(), url: url.to_owned(), management_url: management.to_owned(), producer };
        let mut table = FieldTable::default();
        // It expires by itself once it is unused.
        table.insert("x-expires".into(), AMQPValue::LongInt(600_000));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let channel = queue.channel().await;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.into(), durable, table).await.expect("a new queue");
        queue
    }

    /// Sends purchases, and waits until the broker has all of them.
    pub(crate) async fn send(&self, purchases: impl IntoIterator<Item = Purchase>) {
        let texts: Vec<String> = purchases.into_iter().map(|purchase| purchase.json()).collect();
        for some in texts.chunks(500) {
            self.send_texts(some).await;
        }
    }

    pub(crate) async fn send_text(&self, text: &str) {
        self.send_texts(&[text.to_owned()]).await;
    }

    pub(crate) async fn send_texts(&self, texts: &[String]) {
        self.send_with_headers(texts.iter().map(|text| (text.as_bytes(), FieldTable::default()))).await;
    }

    /// Sends payloads, each with its headers.
    pub(crate) async fn send_with_headers(&self, messages: impl Iterator<Item = (&[u8], FieldTable)>) {
        let channel = self.channel().await;
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut confirms = Vec::new();
        for (payload, headers) in messages {
            let id = format!("{:016x}", fastrand::u64(..));
            let mut persistent = BasicProperties::default().with_delivery_mode(2).with_message_id(id.into());
            if !headers.inner().is_empty() {
                persistent = persistent.with_headers(headers);
            }
            let published = channel.basic_publish("".into(), self.name.as_str().into(), mandatory, payload, persistent);
            confirms.push(published.await.expect("the broker takes messages"));
        }
        for confirmed in join_all(confirms).await {
            assert_eq!(confirmed.expect("the broker confirms"), Confirmation::Ack(None));
        }
    }

    /// Takes everything out of it: payloads, each with its headers.
    pub(crate) async fn take(&self) -> Vec<(Vec<u8>, FieldTable)> {
        let (channel, mut taken) = (self.channel().await, Vec::new());
        let get = || channel.basic_get(self.name.as_str().into(), BasicGetOptions { no_ack: true });
        while let Some(message) = get().await.expect("the broker answers") {
            let headers = message.delivery.properties.headers().clone().unwrap_or_default();
            taken.push((message.delivery.data, headers));
        }
        taken
    }

    /// A channel, on a new connection where the one before is gone.
    async fn channel(&self) -> Channel {
        let mut producer = self.producer.lock().await;
        if let Some((_, channel)) = &*producer
            && channel.status().connected()
        {
            return channel.clone();
        }
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await;
        let connection = connection.expect("the broker answers: ./servers up rabbitmq");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirmations");
        *producer = Some((connection, channel.clone()));
        channel
    }

    /// Asks the management API, or a worker.
    pub(crate) async fn get(url: &str) -> reqwest::Result<reqwest::Response> {
        // Where TLS is compiled in, a client wants a provider even for what has none.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
        client.get(url).basic_auth("guest", Some("guest")).send().await
    }

    /// Publishes through the management API, with these headers as JSON, which no client library could write.
    pub(crate) async fn publish_with_headers(&self, headers: &str, text: &str) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let text = Value::from(text);
        let body = format!(
            r#"{{"routing_key":"{}","properties":{{"headers":{headers}}},"payload":{text},"payload_encoding":"string"}}"#,
            self.name
        );
        let url = format!("{}/api/exchanges/%2f/amq.default/publish", self.management_url);
        let sent = reqwest::Client::new().post(url).basic_auth("guest", Some("guest")).body(body).send().await;
        let answer = sent.expect("the API answers").text().await.expect("an answer");
        assert_eq!(answer, r#"{"routed":true}"#);
    }

    /// The management API's description of it, which lags by a moment.
    pub(crate) async fn described(&self) -> Value {
        let url = format!("{}/api/queues/%2f/{}", self.management_url, self.name);
        let answer = Self::get(&url).await.expect("the API answers");
        serde_json::from_slice(&answer.bytes().await.expect("an answer")).expect("JSON")
    }

    pub(crate) async fn delete(&self) {
        let channel = self.channel().await;
        let deleted = channel.queue_delete(self.name.as_str().into(), QueueDeleteOptions::default());
        deleted.await.expect("the queue goes");
    }

    /// How many messages wait or are not settled.
    pub(crate) async fn messages(&self) -> u64 {
        self.described().await["messages"].as_u64().unwrap_or(u64::MAX)
    }
}
