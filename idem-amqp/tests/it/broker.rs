//! The broker that the tests use: their own queues on it, and the requests to it that no source makes.

use std::{
    collections::HashSet,
    hash::{BuildHasher, Hasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use idem_amqp::{AmqpOptions, DeliveryLimit};
use idem_core::{Message, SourceError};
use idem_testkit::proxy::Proxy;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use reqwest::Method;
use serde_json::Value;

/// How long a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The broker's address: `IDEM_AMQP_URL`, else the server that `./servers up rabbitmq` starts.
pub(crate) fn url() -> String {
    std::env::var("IDEM_AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:25673/%2f".to_owned())
}

/// Where its management API is.
pub(crate) fn management_url() -> String {
    std::env::var("IDEM_AMQP_MANAGEMENT_URL").unwrap_or_else(|_| "http://127.0.0.1:25674".to_owned())
}

/// A name that no other test has, in this run or another.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Process ids come again; a hasher's seed does not.
    let seed = RandomState::new().build_hasher().finish();
    format!("{what}-{}-{count}-{seed:016x}", std::process::id())
}

/// The kinds of queue that a source consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Classic,
    Quorum,
    /// Which it refuses.
    Stream,
}

/// The arguments of a queue that keeps a message however often it is delivered. RabbitMQ 3 has no default limit, and refuses the argument.
fn unlimited(kind: Kind) -> Vec<(&'static str, AMQPValue)> {
    let is_limited = kind == Kind::Quorum && !is_version_3();
    is_limited.then_some(("x-delivery-limit", AMQPValue::LongInt(-1))).into_iter().collect()
}

/// Whether the broker is older than the one that `./servers up rabbitmq` starts by default.
pub(crate) fn is_version_3() -> bool {
    std::env::var("IDEM_RABBITMQ_VERSION").is_ok_and(|version| version.starts_with('3'))
}

/// A queue, with a proxy in front of the broker. The broker deletes it once it has been unused for a while.
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) proxy: Proxy,
    channel: Channel,
    url: String,
    kind: Kind,
    _connection: Connection,
}

impl Queue {
    /// Without a delivery limit.
    pub(crate) async fn new(kind: Kind) -> Self {
        Self::with(kind, &unlimited(kind)).await
    }

    /// With these arguments, and the broker's own delivery limit where they have none.
    pub(crate) async fn with(kind: Kind, arguments: &[(&str, AMQPValue)]) -> Self {
        Self::on(&url(), kind, arguments).await
    }

    /// On a broker of the caller's.
    pub(crate) async fn on(url: &str, kind: Kind, arguments: &[(&str, AMQPValue)]) -> Self {
        loop {
            let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
            let channel = connection.create_channel().await.unwrap();
            channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
            let proxy = Proxy::to(&host(url)).await.unwrap();
            let (name, url) = (unique("idem-test"), url.to_owned());
            let queue = Self { name, proxy, channel, url, kind, _connection: connection };
            match queue.try_declare(arguments).await {
                Ok(()) => return queue,
                // A broker that is busy may give up forming a quorum queue, and then closes the connection.
                Err(error) => assert!(error.to_string().contains("INTERNAL_ERROR"), "{error}"),
            }
        }
    }

    pub(crate) async fn declare(&self) {
        self.try_declare(&unlimited(self.kind)).await.unwrap();
    }

    async fn try_declare(&self, arguments: &[(&str, AMQPValue)]) -> lapin::Result<()> {
        let mut table = FieldTable::default();
        if self.kind != Kind::Stream {
            table.insert("x-expires".into(), AMQPValue::LongInt(180_000));
        }
        let kind = match self.kind {
            Kind::Classic => "classic",
            Kind::Quorum => "quorum",
            Kind::Stream => "stream",
        };
        table.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(self.name.as_str().into(), durable, table).await.map(|_| ())
    }

    pub(crate) async fn delete(&self) {
        self.channel.queue_delete(self.name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    }

    /// Through the proxy. These queues have no limit, so nothing has to go well before the prefetch grows.
    pub(crate) fn options(&self) -> AmqpOptions {
        self.options_for(&self.name).delivery_limit(DeliveryLimit::Unlimited)
    }

    pub(crate) fn options_for(&self, queue: &str) -> AmqpOptions {
        AmqpOptions::new(self.url.replace(&host(&self.url), self.proxy.address()), queue)
    }

    /// Everything of the message, and an id of its own where it has none, as producers give it.
    pub(crate) async fn publish(&self, message: Message) -> Result<(), SourceError> {
        let refused = |what: &str| {
            Err(SourceError::Refused { problem: format!("AMQP has no {what}"), cure: "Do without".to_owned() })
        };
        let Some(payload) = message.payload() else { return refused("tombstones") };
        if message.record_key().is_some() {
            return refused("record keys");
        }
        let mut headers = FieldTable::default();
        for (name, value) in message.headers().iter() {
            let value = value.map_or(AMQPValue::Void, |value| AMQPValue::LongString(value.into()));
            headers.insert(name.into(), value);
        }
        let names: HashSet<&str> = message.headers().iter().map(|(name, _)| name).collect();
        if names.len() < message.headers().len() {
            return refused("repeated headers");
        }
        let id = message.id().map_or_else(|| unique("message"), str::to_owned);
        self.put(payload, BasicProperties::default().with_headers(headers).with_message_id(id.into())).await;
        Ok(())
    }

    pub(crate) async fn put(&self, payload: &[u8], properties: BasicProperties) {
        self.publish_to("", &self.name, payload, properties).await;
    }

    /// Through an exchange, from which this routing key leads here.
    pub(crate) async fn put_through(&self, exchange: &str, key: &str, payload: &[u8], properties: BasicProperties) {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let bound = self.channel.queue_bind(self.name.as_str().into(), exchange.into(), key.into(), options, none);
        bound.await.unwrap();
        self.publish_to(exchange, key, payload, properties).await;
    }

    async fn publish_to(&self, exchange: &str, key: &str, payload: &[u8], properties: BasicProperties) {
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let published = self.channel.basic_publish(exchange.into(), key.into(), mandatory, payload, properties);
        assert_eq!(published.await.unwrap().await.unwrap(), Confirmation::Ack(None));
    }

    /// How many messages wait in it, and how many consumers it has, as they are now.
    pub(crate) async fn declared(&self) -> lapin::Queue {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(self.name.as_str().into(), passive, FieldTable::default()).await.unwrap()
    }

    /// Its description in the management API.
    pub(crate) async fn described(&self) -> Value {
        let answer = management(Method::GET, &format!("queues/%2f/{}", self.name)).await;
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
    }

    /// Waits until its only consumer has this prefetch.
    pub(crate) async fn until_prefetch(&self, prefetch: u64) {
        eventually("the prefetch", async || {
            let described = self.described().await;
            let consumers = described["consumer_details"].as_array();
            consumers.is_some_and(|all| all.len() == 1 && all[0]["prefetch_count"].as_u64() == Some(prefetch))
        })
        .await;
    }

    /// How many messages wait or are not settled, a few seconds ago: 0 of a queue that is new.
    pub(crate) async fn messages(&self) -> u64 {
        self.described().await["messages"].as_u64().unwrap_or(0)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let path = format!("queues/%2f/{}", self.name);
        // On a thread of its own, because a runtime may not be blocked. Leftovers expire by themselves.
        let _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(management(Method::DELETE, &path));
        })
        .join();
    }
}

/// A client of the management API. Where TLS is compiled in, it wants a provider even for plaintext.
pub(crate) fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

pub(crate) async fn management(method: Method, path: &str) -> reqwest::Response {
    let url = format!("{}/api/{path}", management_url());
    http().request(method, url).basic_auth("guest", Some("guest")).send().await.unwrap()
}

/// `host:port` of a URL.
pub(crate) fn host(url: &str) -> String {
    let (_, rest) = url.split_once('@').unwrap();
    rest.split('/').next().unwrap().to_owned()
}

/// Asks until the answer is yes.
pub(crate) async fn eventually(what: &str, mut yes: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !yes().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asked).await.is_ok(), "{what}: not within {PATIENCE:?}");
}
