//! Logins by token (E28), at a broker of this module's own that takes unsigned ones.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use idem_core::{BoxError, Message, SourceError, dead_letter::Publisher, internal::chain};
use idem_kafka::{KafkaOptions, KafkaPublisher, Reset, Token, TokenSource};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
};

use crate::{
    cluster::{PATIENCE, eventually, fast},
    member::{attach, attach_when_reachable, join, payloads, within},
    publisher::dead_letter,
};

/// A Kafka of its own, because one that has been up for long may not take tokens yet.
struct OwnServer;

impl OwnServer {
    async fn up() -> Self {
        tokio::task::spawn_blocking(|| servers(&["up", "kafka"])).await.unwrap();
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", Self::url("kafka")).create().unwrap();
        let topics = ["consumed", "dead"].map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(1)));
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        within("two topics", admin.create_topics(&topics, &options)).await.unwrap();
        Self
    }

    fn url(name: &str) -> String {
        servers(&["url", name]).trim().to_owned()
    }

    fn options(issuer: &Arc<Issuer>) -> KafkaOptions {
        let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/../.servers/sets/kafka-tokens/kafka/ca.pem");
        fast(KafkaOptions::new(Self::url("kafka_ssl"), "consumed", "ledger"))
            .reset(Reset::Earliest)
            .set("ssl.ca.location", authority)
            .tokens(Asked(Arc::clone(issuer)))
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        servers(&["down", "--purge"]);
    }
}

fn servers(arguments: &[&str]) -> String {
    let outer: u32 = std::env::var("IDEM_PORT_OFFSET").ok().and_then(|offset| offset.parse().ok()).unwrap_or(0);
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../servers"))
        .args(arguments)
        .env("IDEM_SERVERS_SET", "kafka-tokens")
        .env("IDEM_PORT_OFFSET", (outer + 700).to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Signs nothing, which Kafka's validator for tests takes.
#[derive(Default)]
struct Issuer {
    asked: AtomicUsize,
    /// How often it answers with an error first.
    fails: usize,
    expired: bool,
}

struct Asked(Arc<Issuer>);

#[async_trait::async_trait]
impl TokenSource for Asked {
    async fn token(&self) -> Result<Token, BoxError> {
        if self.0.asked.fetch_add(1, Ordering::SeqCst) < self.0.fails {
            return Err("the identity provider is on holiday".into());
        }
        #[allow(clippy::disallowed_methods, reason = "a token names times of the wall clock")]
        let clock = SystemTime::now();
        let now = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let (issued, left) = if self.0.expired { (now - Duration::from_secs(7200), 60) } else { (now, 10) };
        let claims = format!(r#"{{"sub":"idem","iat":{},"exp":{}}}"#, issued.as_secs(), issued.as_secs() + left);
        let parts = [r#"{"alg":"none"}"#, &claims].map(|part| URL_SAFE_NO_PAD.encode(part));
        // By its own word it is valid, so that the client library tries it.
        let expires_at = clock + Duration::from_secs(10);
        Ok(Token::new(format!("{}.", parts.join(".")), "idem", expires_at))
    }
}

fn text(error: &SourceError) -> String {
    chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test(flavor = "multi_thread")]
async fn e28_tokens_let_a_worker_in_and_are_renewed() {
    let _server = OwnServer::up().await;
    let issuer = Arc::new(Issuer::default());
    let member = join(OwnServer::options(&issuer)).await;
    let attached = &member.attached;
    assert!(attached.warnings[0].contains("token") && attached.redelivery_horizon.is_none(), "{attached:?}");
    let dead = KafkaPublisher::new(&OwnServer::options(&issuer), "dead").unwrap();
    within("publishing", dead.publish(&dead_letter(Message::new("one")))).await.unwrap();
    let back = KafkaPublisher::new(&OwnServer::options(&issuer), "consumed").unwrap();
    within("publishing", back.publish(&dead_letter(Message::new("two")))).await.unwrap();
    let held = member.take(1).await;
    assert_eq!(payloads(&held), ["two"]);
    member.acknowledge(held).await;
    // Three clients, and a token of ten seconds.
    eventually("new tokens", || issuer.asked.load(Ordering::SeqCst) >= 6).await;
    within("publishing", back.publish(&dead_letter(Message::new("three")))).await.unwrap();
    assert_eq!(payloads(&member.take(1).await), ["three"]);
    member.close().await;

    // A provider that is away is waited for, and says so.
    let away = Arc::new(Issuer { fails: 1, ..Issuer::default() });
    let answer = attach(OwnServer::options(&away)).await.err().unwrap();
    assert!(matches!(answer, SourceError::Unavailable { .. }) && text(&answer).contains("on holiday"), "{answer:?}");
    join(OwnServer::options(&away)).await.close().await;

    // A token that the broker does not take is refused, as a password is.
    let expired = Arc::new(Issuer { expired: true, ..Issuer::default() });
    let answer = attach_when_reachable(OwnServer::options(&expired)).await.unwrap_err();
    assert!(matches!(answer, SourceError::Refused { .. }) && text(&answer).contains("do not let this client in"));
}
