//! Subscriptions of SNS, with a certificate that the test makes.

use std::{
    collections::HashMap,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use idem_core::BoxError;
use idem_sqlx::PostgresStore;
use idem_webhook::receive::{Fetch, Inbound, Sns};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, process::Command, task::JoinSet};

use super::fixture::{Fixture, Said, now, post, serve};

const TOPIC: &str = "arn:aws:sns:eu-west-1:123456789012:payments";
const CERTIFICATE: &str =
    "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem";
const CONFIRM: &str = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=t";

/// A key and its certificate, made with openssl.
struct Signer {
    folder: PathBuf,
}

async fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "openssl {arguments:?}");
    output.stdout
}

impl Signer {
    async fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("idem-sns-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let signer = Self { folder };
        let (key, certificate) = (signer.path("key.pem"), signer.path("certificate.pem"));
        let arguments =
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=sns.amazonaws.com"];
        openssl(&[&arguments[..], &["-keyout", &key, "-out", &certificate]].concat(), b"").await;
        signer
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn certificate(&self) -> Bytes {
        std::fs::read(self.path("certificate.pem")).unwrap().into()
    }

    /// Signs a message as SNS does, with this digest.
    async fn sign(&self, digest: &str, message: &mut Value) {
        let names: &[&str] = match message["Type"].as_str().unwrap() {
            "Notification" => &["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
            _ => &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
        };
        let mut text = String::new();
        for name in names {
            if let Some(value) = message.get(*name).and_then(Value::as_str) {
                text.push_str(&format!("{name}\n{value}\n"));
            }
        }
        let signature = openssl(&["dgst", digest, "-sign", &self.path("key.pem")], text.as_bytes()).await;
        message["Signature"] = STANDARD.encode(signature).into();
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The hosts of AWS, as far as a message may lead there.
#[derive(Clone, Default)]
struct Hosts {
    pages: Arc<Mutex<HashMap<String, Bytes>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// They never answer for another page than these.
    hang: bool,
}

impl Hosts {
    fn with(self, url: &str, page: Bytes) -> Self {
        self.pages.lock().unwrap().insert(url.to_owned(), page);
        self
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Fetch for Hosts {
    async fn get(&self, url: &str) -> Result<Bytes, BoxError> {
        self.asked.lock().unwrap().push(url.to_owned());
        let page = self.pages.lock().unwrap().get(url).cloned();
        if page.is_none() && self.hang {
            std::future::pending::<()>().await;
        }
        page.ok_or_else(|| "404".into())
    }
}

fn iso(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // By trial: no calendar of our own to be compared with itself.
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= months[month] {
        left -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}T{:02}:{:02}:{:02}.000Z", month + 1, left + 1, time / 3_600, time / 60 % 60, time % 60)
}

fn notification(id: &str, message: &str) -> Value {
    json!({
        "Type": "Notification", "MessageId": id, "TopicArn": TOPIC, "Subject": "paid", "Message": message, "Timestamp": iso(now()),
        "SignatureVersion": "2", "SigningCertURL": CERTIFICATE, "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe",
    })
}

fn confirmation() -> Value {
    json!({
        "Type": "SubscriptionConfirmation", "MessageId": "c-1", "TopicArn": TOPIC, "Message": "You have chosen to subscribe", "Token": "t",
        "SubscribeURL": CONFIRM, "Timestamp": iso(now()), "SignatureVersion": "2", "SigningCertURL": CERTIFICATE,
    })
}

async fn send(url: &str, message: &Value) -> Said {
    let text = |name: &str| message[name].as_str().unwrap().to_owned();
    let headers = [("x-amz-sns-message-type", text("Type")), ("x-amz-sns-topic-arn", text("TopicArn"))];
    post(url, &headers, message.to_string()).await
}

fn inbound(fixture: &Fixture, hosts: &Hosts) -> Inbound<PostgresStore, Sns> {
    Inbound::new(fixture.consumer(Sns::identify), Sns::new([TOPIC], hosts.clone()))
}

/// W44: a message that SNS has signed has its effect once; its certificate is fetched once; a replay is a duplicate.
#[tokio::test]
async fn w44_a_signed_message_has_its_effect_once() {
    let (fixture, signer) = (Fixture::new().await, Signer::new().await);
    let hosts = Hosts::default().with(CERTIFICATE, signer.certificate());
    let url = serve(inbound(&fixture, &hosts)).await;
    let mut message = notification("m-1", "{\"cents\":1,\n\"to\":\"ä\"}");
    signer.sign("-sha256", &mut message).await;
    assert_eq!(send(&url, &message).await, Said(200, None, "handled".into()));
    assert_eq!(send(&url, &message).await, Said(200, None, "handled before".into()));
    // An unsigned part cannot make another message of it.
    message["MessageAttributes"] = json!({"idempotencykey": {"Type": "String", "Value": "another"}});
    assert_eq!(send(&url, &message).await, Said(200, None, "handled before".into()));
    let mut plain = notification("m-2", "{}");
    plain.as_object_mut().unwrap().remove("Subject");
    signer.sign("-sha256", &mut plain).await;
    assert_eq!(send(&url, &plain).await.0, 200);
    assert_eq!(
        fixture.texts("SELECT key || convert_from(payload, 'UTF8') FROM effects ORDER BY 1").await,
        ["m-1{\"cents\":1,\n\"to\":\"ä\"}", "m-2{}"]
    );
    assert_eq!(hosts.asked(), [CERTIFICATE]);
    fixture.drop().await;
}

/// W44: a message that was changed, is old, is of another topic or of version 1, or whose certificate lies elsewhere, is refused.
#[tokio::test]
async fn w44_what_sns_has_not_signed_is_refused() {
    let (fixture, signer, stranger) = (Fixture::new().await, Signer::new().await, Signer::new().await);
    let elsewhere = "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-f3ecfb.pem";
    let hosts = Hosts::default().with(CERTIFICATE, signer.certificate()).with(elsewhere, stranger.certificate());
    let url = serve(inbound(&fixture, &hosts)).await;
    let mut right = notification("m-1", "{}");
    signer.sign("-sha256", &mut right).await;
    for (name, value) in
        [("Message", "{ }"), ("MessageId", "m-2"), ("Subject", "other"), ("Timestamp", &iso(now() - 7))]
    {
        let mut changed = right.clone();
        changed[name] = value.into();
        let said = send(&url, &changed).await;
        assert_eq!((said.0, &*said.2), (401, "the signature is wrong"), "{name}");
    }
    let changed = async |signer: &Signer, digest: &str, name: &str, value: &str| {
        let mut message = notification("m-1", "{}");
        message[name] = value.into();
        signer.sign(digest, &mut message).await;
        let said = send(&url, &message).await;
        assert_eq!(said.0, 401, "{name}={value}: {said:?}");
        said.2
    };
    changed(&stranger, "-sha256", "Subject", "by a stranger").await;
    assert!(changed(&stranger, "-sha256", "SigningCertURL", elsewhere).await.contains("host of the topic's region"));
    assert!(changed(&signer, "-sha256", "Timestamp", &iso(now() - 3_600 - 310)).await.contains("older"));
    assert!(changed(&signer, "-sha256", "Timestamp", "yesterday").await.contains("no time"));
    assert!(changed(&signer, "-sha1", "SignatureVersion", "1").await.contains("SignatureVersion to 2"));
    changed(&signer, "-sha1", "SignatureVersion", "2").await;
    let other = "arn:aws:sns:eu-west-1:210987654321:payments";
    assert!(changed(&signer, "-sha256", "TopicArn", other).await.contains("none of ours"));
    // The head names our topic, the body another.
    let mut message = notification("m-1", "{}");
    message["TopicArn"] = other.into();
    signer.sign("-sha256", &mut message).await;
    let head = [("x-amz-sns-message-type", "Notification".to_owned()), ("x-amz-sns-topic-arn", TOPIC.to_owned())];
    assert_eq!(post(&url, &head, message.to_string()).await.0, 401);
    let raw = [&head[..], &[("x-amz-sns-rawdelivery", "true".to_owned())]].concat();
    assert!(post(&url, &raw, "{}").await.2.contains("raw"));
    assert_eq!(post(&url, &head, "{}").await.0, 401);
    assert!(hosts.asked().iter().all(|asked| asked == CERTIFICATE), "{:?}", hosts.asked());
    assert_eq!(fixture.texts("SELECT name FROM consumers").await.len() + fixture.runs() as usize, 0);
    fixture.drop().await;
}

/// W45: a subscription is confirmed where it is to one of our topics, signed, and leads to the host of its region; a certificate that cannot
/// be fetched now is not a refusal.
#[tokio::test]
async fn w45_subscriptions_are_confirmed_at_amazons_host_alone() {
    let (fixture, signer) = (Fixture::new().await, Signer::new().await);
    let hosts = Hosts::default();
    let url = serve(inbound(&fixture, &hosts)).await;
    let mut right = confirmation();
    signer.sign("-sha256", &mut right).await;
    let said = send(&url, &right).await;
    assert_eq!((said.0, said.1.as_deref()), (503, Some("10")), "no certificate yet");
    let _ = hosts.clone().with(CERTIFICATE, signer.certificate());
    assert_eq!(send(&url, &right).await.0, 503, "the confirmation did not go through");
    let _ = hosts.clone().with(CONFIRM, Bytes::new());
    assert_eq!(send(&url, &right).await, Said(200, None, "settled".into()));
    assert_eq!(hosts.asked().last().unwrap(), CONFIRM);
    let asked = hosts.asked().len();
    for elsewhere in [
        "https://evil.example/?Action=ConfirmSubscription",
        "http://sns.eu-west-1.amazonaws.com/?x",
        "https://sns.us-east-1.amazonaws.com/?x",
    ] {
        let mut message = confirmation();
        message["SubscribeURL"] = elsewhere.into();
        signer.sign("-sha256", &mut message).await;
        assert_eq!(send(&url, &message).await.0, 401, "{elsewhere}");
    }
    let mut unsigned = right.clone();
    unsigned["Token"] = "other".into();
    assert_eq!(send(&url, &unsigned).await.0, 401);
    assert_eq!(hosts.asked().len(), asked);
    assert_eq!(fixture.runs(), 0);
    fixture.drop().await;
}

/// W44: the signed text has names and values on lines and no lengths, so that line ends in a value could make one signature fit two messages.
#[tokio::test]
async fn w44_one_signature_is_of_one_message() {
    let (fixture, signer) = (Fixture::new().await, Signer::new().await);
    let hosts = Hosts::default().with(CERTIFICATE, signer.certificate());
    let url = serve(inbound(&fixture, &hosts)).await;
    let mut real = notification("m-1", "{\"cents\":1}\nMessageId\nm-2\nSubject\nhello");
    real.as_object_mut().unwrap().remove("Subject");
    signer.sign("-sha256", &mut real).await;
    assert_eq!(send(&url, &real).await.0, 200);
    let mut shifted = real.clone();
    shifted["Message"] = "{\"cents\":1}".into();
    shifted["MessageId"] = "m-2".into();
    shifted["Subject"] = "hello\nMessageId\nm-1".into();
    assert_eq!(send(&url, &shifted).await.0, 401);
    assert_eq!(fixture.runs(), 1);
    fixture.drop().await;
}

/// W174: clients that name certificates whose host does not answer take every place, and a message of SNS's is handled: with a certificate
/// that is known, and with one that has to be fetched.
#[tokio::test]
async fn w174_no_fetch_of_a_strangers_certificate_keeps_a_message_out() {
    let (fixture, signer) = (Fixture::new().await, Signer::new().await);
    let hosts = Hosts { hang: true, ..Hosts::default().with(CERTIFICATE, signer.certificate()) };
    // Four places.
    let url = serve(inbound(&fixture, &hosts).at_once(1)).await;
    let mut strangers = JoinSet::new();
    for number in 0..12 {
        let mut message = notification("m-1", "{}");
        message["SigningCertURL"] =
            format!("https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{number}.pem").into();
        message["Signature"] = "AAAA".into();
        let url = url.clone();
        strangers.spawn(async move { send(&url, &message).await });
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        while hosts.asked().len() <= number {
            assert!(tokio::time::Instant::now() < until, "{number} is not fetched");
            tokio::task::yield_now().await;
        }
    }
    for id in ["m-1", "m-2"] {
        let mut message = notification(id, "{}");
        signer.sign("-sha256", &mut message).await;
        assert_eq!(send(&url, &message).await, Said(200, None, "handled".into()), "{id}");
    }
    assert_eq!(fixture.effects().await, ["m-1", "m-2"]);
    fixture.drop().await;
}
