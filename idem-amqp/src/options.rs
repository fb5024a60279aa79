//! Every setting with its default and limits. A setting that would break the guarantee is refused, with the reason.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use idem_core::ConfigError;
use lapin::{
    types::ShortString,
    uri::{AMQPScheme, AMQPUri},
};
use reqwest::Url;

use crate::management::Management;

/// The broker's own default, which no client can read.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// A peer that is gone without a word is missed after two of these. The broker would say 60 s.
const HEARTBEAT_S: u16 = 10;

/// After how many deliveries the queue takes a message away, as its operator says; see
/// [`AmqpOptions::delivery_limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryLimit {
    /// It never does.
    Unlimited,
    /// After this many; at least 1.
    Of(u32),
}

/// The settings of an [`AmqpSource`](crate::AmqpSource).
#[derive(Clone)]
pub struct AmqpOptions {
    url: String,
    queue: String,
    prefetch: u16,
    consumer_timeout: Duration,
    management_url: Option<String>,
    delivery_limit: Option<DeliveryLimit>,
    retry_queue: Option<String>,
    needed: Vec<String>,
    authorities: Option<String>,
    hosts: Vec<String>,
    client_certificate: Option<Identity>,
    connection_name: String,
    consumer_priority: Option<i32>,
}

/// A client's certificate with those that lead to its authority, and its key, as PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The settings once they are checked.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) uri: AMQPUri,
    /// The same for each host that the broker has, its own first.
    pub(crate) uris: Vec<AMQPUri>,
    /// Which of them is tried first: the one that answered last.
    pub(crate) turn: Arc<AtomicUsize>,
    pub(crate) connection_name: String,
    pub(crate) client_certificate: Option<Identity>,
    pub(crate) queue: ShortString,
    pub(crate) prefetch: u16,
    pub(crate) consumer_timeout: Duration,
    pub(crate) management: Option<Management>,
    /// `None` where it is not configured.
    pub(crate) delivery_limit: Option<DeliveryLimit>,
    pub(crate) retry_queue: Option<ShortString>,
    /// The queues that must exist at the start beside the queue itself, the retry queue among them.
    pub(crate) needed: Vec<ShortString>,
    pub(crate) authorities: Option<String>,
    pub(crate) consumer_priority: Option<i32>,
}

impl AmqpOptions {
    /// The default [prefetch](Self::prefetch): the upper end of RabbitMQ's own advice, 100 to 300.
    pub const PREFETCH: u16 = 300;

    /// How many bytes of payloads a subscription is handed before some are settled, whatever the
    /// [prefetch](Self::prefetch) allows: 64 MiB, or one message that is larger.
    pub const IN_HAND_BYTES: usize = 64 << 20;

    /// One queue of one vhost: `amqp://user:password@host:port/vhost`, in which the vhost `/` is written `%2f`.
    pub fn new(url: impl Into<String>, queue: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            queue: queue.into(),
            prefetch: Self::PREFETCH,
            consumer_timeout: CONSUMER_TIMEOUT,
            management_url: None,
            delivery_limit: None,
            retry_queue: None,
            needed: Vec::new(),
            authorities: None,
            hosts: Vec::new(),
            client_certificate: None,
            connection_name: "idem".to_owned(),
            consumer_priority: None,
        }
    }

    /// How many messages the broker delivers before some are settled, at most. Defaults to 300; from 1 to 65,535.
    ///
    /// A subscription begins with one message, and has 8 and then all of them once that many have shown how large they are:
    /// together they stay within [`IN_HAND_BYTES`](Self::IN_HAND_BYTES) if none is larger than the largest of the last 256 to
    /// 512. Where a larger one comes, another subscription with a smaller prefetch takes the place of this one, and messages
    /// in this process beyond twice as many bytes that were not handed over go back to the queue. So payloads take 192 MiB at
    /// most. Unsettled messages of the subscription before come on top of the count.
    #[must_use]
    pub fn prefetch(mut self, count: u16) -> Self {
        self.prefetch = count;
        self
    }

    /// After how long without a settlement the broker takes a message back and closes the channel: its `consumer_timeout`.
    /// Defaults to the broker's own default, 30 minutes; from 1 s. A message that would be held for longer is released before.
    #[must_use]
    pub fn consumer_timeout(mut self, time: Duration) -> Self {
        self.consumer_timeout = time;
        self
    }

    /// Where the broker's management API is: `http://host:15672`, with user and password where they differ from those of
    /// the broker's URL. There the queue's delivery limit, dead-letter exchange and policies are read, and dangerous ones
    /// are refused; without it they are unknown.
    #[must_use]
    pub fn management_url(mut self, url: impl Into<String>) -> Self {
        self.management_url = Some(url.into());
        self
    }

    /// The queue's delivery limit, where no [management URL](Self::management_url) shows it. Defaults to unknown: then
    /// start-up warns, and one message at a time is in hand until some have gone well, because each crash counts against
    /// all that are. The same holds with a limit. A queue with a limit and no dead-letter exchange is refused where the
    /// management API shows it, unless this setting names the same limit; so is one whose limit is another than this.
    #[must_use]
    pub fn delivery_limit(mut self, limit: DeliveryLimit) -> Self {
        self.delivery_limit = Some(limit);
        self
    }

    /// A queue for messages that must wait for longer than [`consumer_timeout`](Self::consumer_timeout) allows; defaults
    /// to none, and they come back at once. It must exist, and its dead-letter exchange must bring expired messages back:
    /// `x-dead-letter-exchange` is `""`, and `x-dead-letter-routing-key` the name of the consumed queue. That is checked where
    /// there is a [management URL](Self::management_url).
    #[must_use]
    pub fn retry_queue(mut self, name: impl Into<String>) -> Self {
        self.retry_queue = Some(name.into());
        self
    }

    /// A further queue that must exist at the start, such as that of an [`AmqpPublisher`](crate::AmqpPublisher).
    #[must_use]
    pub fn require_queue(mut self, queue: impl Into<String>) -> Self {
        self.needed.push(queue.into());
        self
    }

    /// Certificates, as PEM, of authorities that are trusted beside those of the platform, for `amqps://` and `https://`.
    #[must_use]
    pub fn authorities(mut self, pem: impl Into<String>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// A further host of the same cluster, `host`, `host:port` or `[::1]:port`, with the port, user and vhost of the URL where it names
    /// none; may be called again. They are tried in turn, beginning with the one that answered last.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// The certificate by which the broker knows this client, with those that lead to its authority, and its key, both as
    /// PEM. Needed where the broker asks for one; with `?auth_mechanism=external` in the URL it takes the password's place.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Self {
        self.client_certificate = Some(Identity { certificate: certificate.into(), key: key.into() });
        self
    }

    /// The name of the connections and consumers in the broker's management. Defaults to `idem`; of 1 to 200 bytes.
    /// Connections that publish append their purpose.
    #[must_use]
    pub fn connection_name(mut self, name: impl Into<String>) -> Self {
        self.connection_name = name.into();
        self
    }

    /// The priority among the queue's consumers, `x-priority`: while those of the highest have room, the others get no
    /// messages, so a lower one is a standby. Defaults to none, which is 0. Not the priority of a message.
    #[must_use]
    pub fn consumer_priority(mut self, priority: i32) -> Self {
        self.consumer_priority = Some(priority);
        self
    }

    pub(crate) fn check(&self) -> Result<Settings, ConfigError> {
        let uri = check_url(&self.url)?;
        if self.prefetch == 0 {
            return Err(ConfigError::new(
                "prefetch",
                "0",
                "that would be no limit: the whole queue would be taken into memory",
            ));
        }
        if self.consumer_timeout < Duration::from_secs(1) {
            let rule = "it must be at least 1 s, and what the broker has";
            return Err(ConfigError::span("consumer_timeout", self.consumer_timeout, rule));
        }
        if self.delivery_limit == Some(DeliveryLimit::Of(0)) {
            return Err(ConfigError::new("delivery_limit", "0", "it must be at least 1, or unlimited"));
        }
        if let Some(pem) = &self.authorities {
            check_authorities(pem)?;
        }
        if let Some(identity) = &self.client_certificate {
            check_identity(identity)?;
        }
        if !(1..=200).contains(&self.connection_name.len()) {
            return Err(ConfigError::new(
                "connection_name",
                format!("{:?}", self.connection_name),
                "it must have 1 to 200 bytes",
            ));
        }
        let further = self.hosts.iter().map(|host| check_host(&uri, host));
        let uris = std::iter::once(Ok(uri.clone())).chain(further).collect::<Result<_, _>>()?;
        let management = |url: &String| Management::new(url, &uri, self.authorities.clone());
        let retry_queue = self.retry_queue.as_ref().map(|queue| check_queue("retry_queue", queue)).transpose()?;
        if retry_queue.as_ref().is_some_and(|retry| retry.as_str() == self.queue) {
            return Err(ConfigError::new(
                "retry_queue",
                format!("{:?}", self.queue),
                "it must be another than the queue",
            ));
        }
        let needed = self.needed.iter().map(|queue| check_queue("require_queue", queue));
        Ok(Settings {
            management: self.management_url.as_ref().map(management).transpose()?,
            queue: check_queue("queue", &self.queue)?,
            prefetch: self.prefetch,
            consumer_timeout: self.consumer_timeout,
            delivery_limit: self.delivery_limit,
            needed: retry_queue.clone().map(Ok).into_iter().chain(needed).collect::<Result<_, _>>()?,
            retry_queue,
            authorities: self.authorities.clone(),
            client_certificate: self.client_certificate.clone(),
            connection_name: self.connection_name.clone(),
            consumer_priority: self.consumer_priority,
            turn: Arc::default(),
            uris,
            uri,
        })
    }

    /// The same connection for a publisher to another queue.
    pub(crate) fn for_queue(&self, field: &'static str, queue: &str) -> Result<Settings, ConfigError> {
        let queue = check_queue(field, queue)?;
        let connection_name = format!("{}, dead letters", self.connection_name);
        Ok(Settings { queue, connection_name, ..self.check()? })
    }
}

impl fmt::Debug for AmqpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both URLs may hold a password.
        f.debug_struct("AmqpOptions")
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .field("consumer_timeout", &self.consumer_timeout)
            .field("has_management_url", &self.management_url.is_some())
            .field("retry_queue", &self.retry_queue)
            .field("needed", &self.needed)
            .field("hosts", &self.hosts)
            .field("has_client_certificate", &self.client_certificate.is_some())
            .field("connection_name", &self.connection_name)
            .field("consumer_priority", &self.consumer_priority)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("host", &self.uri.authority.host)
            .field("vhost", &self.uri.vhost)
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

fn check_url(url: &str) -> Result<AMQPUri, ConfigError> {
    // The URL is left out of the error: it may hold a password.
    let rule = "it must be amqp:// or amqps://user:password@host:port/vhost, in which the vhost / is written %2f";
    let wrong = || ConfigError::new("url", "no such URL", rule);
    let mut uri: AMQPUri = url.parse().map_err(|_| wrong())?;
    // The client's own parser takes localhost for an IPv6 address.
    if let Some(address) = Url::parse(url).map_err(|_| wrong())?.host_str().filter(|host| host.starts_with('[')) {
        uri.authority.host = without_brackets(address).to_owned();
    }
    if uri.authority.host.is_empty() {
        return Err(ConfigError::new("url", "without a host", rule));
    }
    if uri.scheme == AMQPScheme::AMQPS && cfg!(not(feature = "tls")) {
        return Err(ConfigError::new("url", "amqps://", "this build lacks the feature `tls` of idem-amqp"));
    }
    uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
    Ok(uri)
}

/// The URL for another host.
fn check_host(uri: &AMQPUri, host: &str) -> Result<AMQPUri, ConfigError> {
    let wrong =
        || ConfigError::new("host", format!("{host:?}"), "it must be host or host:port; an IPv6 address is [::1]");
    let url = Url::parse(&format!("amqp://{host}/")).map_err(|_| wrong())?;
    let is_more = url.path() != "/" || !url.username().is_empty() || url.query().is_some() || url.fragment().is_some();
    let name = without_brackets(url.host_str().ok_or_else(wrong)?);
    if is_more || name.is_empty() || name.contains(',') || host.ends_with(':') {
        return Err(wrong());
    }
    let mut uri = uri.clone();
    uri.authority.host = name.to_owned();
    uri.authority.port = url.port().unwrap_or(uri.authority.port);
    Ok(uri)
}

/// The host of a URL as the resolver takes it: URLs write an IPv6 address in brackets.
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

#[cfg(feature = "tls")]
fn check_identity(identity: &Identity) -> Result<(), ConfigError> {
    use rustls::pki_types::{PrivateKeyDer, pem::PemObject};

    let field = "client_certificate";
    check_certificates(field, &identity.certificate)?;
    match PrivateKeyDer::from_pem_slice(identity.key.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err(ConfigError::new(field, "without a key", "its key must be PEM: -----BEGIN PRIVATE KEY-----")),
    }
}

#[cfg(not(feature = "tls"))]
fn check_identity(_identity: &Identity) -> Result<(), ConfigError> {
    Err(ConfigError::new("client_certificate", "some", "this build lacks the feature `tls` of idem-amqp"))
}

#[cfg(feature = "tls")]
fn check_authorities(pem: &str) -> Result<(), ConfigError> {
    check_certificates("authorities", pem)
}

#[cfg(feature = "tls")]
fn check_certificates(field: &'static str, pem: &str) -> Result<(), ConfigError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(()),
        Ok(_) | Err(_) => {
            Err(ConfigError::new(field, "no PEM", "it must hold certificates: -----BEGIN CERTIFICATE-----"))
        }
    }
}

#[cfg(not(feature = "tls"))]
fn check_authorities(_pem: &str) -> Result<(), ConfigError> {
    Err(ConfigError::new("authorities", "some", "this build lacks the feature `tls` of idem-amqp"))
}

fn check_queue(field: &'static str, queue: &str) -> Result<ShortString, ConfigError> {
    let rule = "it must have 1 to 255 bytes, and not blanks alone";
    match ShortString::try_new(queue) {
        Ok(name) if !queue.trim().is_empty() => Ok(name),
        Ok(_) | Err(_) => Err(ConfigError::new(field, format!("{queue:?}"), rule)),
    }
}

#[cfg(test)]
mod tests;
