//! The requests that are sent, the meaning of the answers, and the endpoints that are never called.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use idem_core::{
    BoxError, ConsumerName, IdempotencyKey,
    message::Headers,
    outbox::{CloudEvents, Dispatch, EventError, EventNumber, EventPublisher as _, OutgoingEvent},
};
use idem_webhook::{
    Secret,
    send::{Endpoint, Endpoints, WebhookPublisher},
};
use tokio::net::{TcpSocket, TcpStream};

use super::receiver::{Answer, Receiver};

const KEY: &str = "order-1 \"a\\b\" c";

const ORIGIN: [&str; 4] = ["idemcause", "idemcausedby", "traceparent", "tracestate"];

fn secret(byte: u8) -> String {
    format!("whsec_{}", STANDARD.encode([byte; 32]))
}

fn event(attempts: u32) -> OutgoingEvent {
    let (consumer, key) = (ConsumerName::new("ledger").unwrap(), IdempotencyKey::new(KEY).unwrap());
    let body = r#"{"cents":1177}"#.into();
    let mut event = OutgoingEvent::new(EventNumber(1), consumer, key, body, SystemTime::UNIX_EPOCH);
    event.content_type = Some("application/json".into());
    event.attempts = attempts;
    let mut headers = Headers::default();
    headers.push("region", Some("north".into()));
    for name in ORIGIN {
        headers.push(name, Some("order-0".into()));
    }
    event.headers = headers;
    event
}

/// Endpoints that are all one, and the record of those reported gone.
struct One {
    url: String,
    gone: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Endpoints for One {
    async fn of(&self, _event: &OutgoingEvent) -> Result<Option<Endpoint>, BoxError> {
        let secrets = [1, 2].map(|byte| secret(byte).parse::<Secret>().unwrap());
        Ok(Some(Endpoint::new(self.url.clone(), secrets)))
    }

    async fn gone(&self, _event: &OutgoingEvent, url: &str) {
        self.gone.lock().unwrap().push(url.to_owned());
    }
}

fn at(url: String) -> WebhookPublisher {
    WebhookPublisher::new(One { url, gone: Arc::default() }).unwrap()
}

fn own(url: String) -> WebhookPublisher {
    at(url).allow_private_networks().unwrap().allow_plaintext()
}

async fn post(publisher: &WebhookPublisher, event: &OutgoingEvent) -> Result<(), EventError> {
    publisher.publish_events(&[event]).await.pop().unwrap()
}

/// When it is tried again, and whether the try counted.
fn later(answer: Result<(), EventError>) -> (Duration, bool) {
    match answer {
        Err(EventError::Later { after: Some(after), counted, .. }) => (after, counted),
        other => panic!("not to be tried again: {other:?}"),
    }
}

fn waits_for_a_person(answer: Result<(), EventError>) -> String {
    match answer {
        Err(EventError::DoesNotFit { problem }) => problem,
        other => panic!("not for a person: {other:?}"),
    }
}

/// O100: an event whose endpoint could not be connected to was certainly not sent. One with another answer than a good one may have
/// been taken.
#[tokio::test]
async fn o100_a_connection_that_is_refused_sends_nothing() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let answer = post(&own(format!("http://{closed}/")), &event(0)).await;
    assert!(matches!(answer, Err(EventError::Later { may_be_sent: false, counted: true, .. })), "{answer:?}");
    let receiver = Receiver::new([Answer::Status(500)]).await;
    let answer = post(&own(receiver.url("/hooks")), &event(0)).await;
    assert!(matches!(answer, Err(EventError::Later { may_be_sent: true, counted: true, .. })), "{answer:?}");
}

/// O100: nor was one whose host lets every packet drop, which is known before the time for an answer is over.
#[tokio::test]
async fn o100_a_host_that_drops_packets_was_sent_nothing() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    // Once its line is full, the system drops every further attempt to connect.
    let full = socket.listen(1).unwrap();
    let to = full.local_addr().unwrap();
    let mut in_line = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(to)).await {
        in_line.push(connected.unwrap());
    }
    let answer = post(&own(format!("http://{to}/")), &event(0)).await;
    let Err(EventError::Later { may_be_sent: false, counted: true, source, .. }) = answer else { panic!("{answer:?}") };
    assert!(source.to_string().contains("connected to within"), "{source}");
}

/// O19: the reference verifier accepts each request, by each of the secrets, and a receiver knows every try by one id.
#[tokio::test]
async fn o19_the_reference_verifier_accepts_each_secret() {
    let receiver = Receiver::new([Answer::Status(500)]).await;
    let publisher = own(receiver.url("/hooks"));
    assert!(later(post(&publisher, &event(0)).await).1);
    post(&publisher, &event(1)).await.unwrap();
    let posts = receiver.posts();
    assert_eq!(posts.len(), 2);
    for post in &posts {
        assert_eq!((post.path.as_str(), &*post.body), ("/hooks", &br#"{"cents":1177}"#[..]));
        assert_eq!(post.headers["webhook-id"], KEY);
        assert_eq!(post.headers["idempotency-key"], r#""order-1 \"a\\b\" c""#);
        assert_eq!(
            (&post.headers["content-type"], &post.headers["region"]),
            (&"application/json".parse().unwrap(), &"north".parse().unwrap())
        );
        for byte in [1, 2] {
            standardwebhooks::Webhook::new(&secret(byte)).unwrap().verify(&post.body, &post.headers).unwrap();
        }
        let stranger = standardwebhooks::Webhook::new(&secret(3)).unwrap();
        assert!(stranger.verify(&post.body, &post.headers).is_err());
    }
}

/// What a handler calls `host` or `content-length`, as it may for Kafka, changes neither the request nor its body.
#[tokio::test]
async fn headers_of_the_request_itself_are_not_the_events() {
    let receiver = Receiver::new([]).await;
    let publisher = own(receiver.url("/"));
    let names = ["connection", "content-length", "expect", "Host", "keep-alive", "proxy-authorization"];
    let more = ["proxy-connection", "te", "trailer", "Transfer-Encoding", "upgrade"];
    for name in names.into_iter().chain(more) {
        let mut event = event(0);
        event.headers.push(name, Some("3".into()));
        post(&publisher, &event).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let arrived = receiver.posts().pop().unwrap();
        assert_eq!(&*arrived.body, br#"{"cents":1177}"#, "{name}");
        assert_eq!(arrived.headers["region"], "north");
        assert!(arrived.headers.get(name).is_none_or(|value| value != "3"), "{name}");
    }
}

/// O60: the keys of clients and of other tenants go to endpoints of one's own alone.
#[tokio::test]
async fn o60_an_endpoint_does_not_learn_where_an_event_comes_from() {
    let receiver = Receiver::new([]).await;
    for (publisher, learns) in [(own(receiver.url("/")), false), (own(receiver.url("/")).send_origin(), true)] {
        post(&publisher, &event(0)).await.unwrap();
        let arrived = receiver.posts().pop().unwrap();
        assert_eq!(ORIGIN.map(|name| arrived.headers.contains_key(name)), [learns; 4]);
    }
}

/// O60: nor by the attributes of a CloudEvent, in either mode.
#[tokio::test]
async fn o60_a_cloud_events_causes_are_its_origin_too() {
    let receiver = Receiver::new([]).await;
    let mut event = event(0);
    event.event_type = Some("Charged".into());
    for mode in [CloudEvents::binary(), CloudEvents::structured()] {
        for learns in [false, true] {
            let publisher = own(receiver.url("/")).cloud_events(mode.clone());
            let publisher = if learns { publisher.send_origin() } else { publisher };
            post(&publisher, &event).await.unwrap();
            let arrived = receiver.posts().pop().unwrap();
            let values = arrived.headers.values().any(|value| value.as_bytes() == b"order-0");
            let body = String::from_utf8_lossy(&arrived.body);
            assert_eq!(values || body.contains("order-0"), learns, "{mode:?} {:?} {body}", arrived.headers);
            assert!(arrived.headers.contains_key("ce-id") || body.contains("specversion"), "it is a CloudEvent");
        }
    }
}

/// O61: an id that a header of HTTP does not carry as it is would arrive as another one, whose signature no receiver accepts.
#[tokio::test]
async fn o61_an_id_that_is_no_header_waits_for_a_person_at_once() {
    let receiver = Receiver::new([]).await;
    for key in [" order-1", "order-1 ", "größe"] {
        let mut event = event(0);
        event.key = IdempotencyKey::new(key).unwrap();
        assert!(waits_for_a_person(post(&own(receiver.url("/")), &event).await).contains("cannot be a header"));
    }
    assert!(receiver.posts().is_empty());
}

/// W182: the signature joins id, time and payload by dots, so with a dot in the id it would be that of a second event too.
#[tokio::test]
async fn w182_an_id_with_a_dot_is_not_sent() {
    let receiver = Receiver::new([]).await;
    for key in ["order.1", "order-1.1792000000.{}", "."] {
        let mut event = event(0);
        event.key = IdempotencyKey::new(key).unwrap();
        assert!(waits_for_a_person(post(&own(receiver.url("/")), &event).await).contains("contains a dot"));
    }
    assert!(receiver.posts().is_empty());
}

/// O20: every answer but a confirmation is followed by another try, when the endpoint wants it or after longer and longer
/// pauses, ten times over three days; then a person decides.
#[tokio::test]
async fn o20_an_endpoint_that_fails_is_tried_for_three_days() {
    let in_a_minute = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000));
    let receiver = Receiver::new([
        Answer::With(429, "retry-after", "120".to_owned()),
        Answer::With(503, "retry-after", in_a_minute),
        Answer::With(307, "location", "/elsewhere".to_owned()),
        Answer::Status(404),
    ])
    .await;
    let publisher = own(receiver.url("/"));
    let within = |(after, counted): (Duration, bool), seconds: u64| {
        let wanted = Duration::from_secs(seconds);
        assert!(counted && after >= wanted && after <= wanted.mul_f64(1.1), "{after:?} in place of {wanted:?}");
    };
    within(later(post(&publisher, &event(0)).await), 120);
    within(later(post(&publisher, &event(0)).await), 24 * 3_600);
    within(later(post(&publisher, &event(0)).await), 5);
    within(later(post(&publisher, &event(8)).await), 24 * 3_600);
    assert!(receiver.posts().iter().all(|post| post.path == "/"), "no redirect is followed");
    drop(receiver);
    let unreachable = own("http://127.0.0.1:9/".to_owned());
    within(later(post(&unreachable, &event(1)).await), 300);
    // How many tries there are is the route's to say, which may allow more of them than there are pauses.
    for attempts in [9, 30] {
        within(later(post(&unreachable, &event(attempts)).await), 24 * 3_600);
    }
}

/// O21: an endpoint that is gone is reported, once a try, and its event waits for a person.
#[tokio::test]
async fn o21_an_endpoint_that_is_gone_is_told_of() {
    let receiver = Receiver::new([Answer::Status(410)]).await;
    let gone = Arc::default();
    let endpoints = One { url: receiver.url("/"), gone: Arc::clone(&gone) };
    let publisher = WebhookPublisher::new(endpoints).unwrap().allow_private_networks().unwrap().allow_plaintext();
    assert!(waits_for_a_person(post(&publisher, &event(0)).await).contains("410"));
    assert_eq!(*gone.lock().unwrap(), [receiver.url("/")]);
    let none = WebhookPublisher::new(|_: &OutgoingEvent| async { Ok(None) });
    assert!(waits_for_a_person(post(&none.unwrap(), &event(0)).await).contains("switched off"));
    let unknown = WebhookPublisher::new(|_: &OutgoingEvent| async { Err("the table is locked".into()) });
    // Nothing was tried, so nothing is charged; and it is not in line, so the relay tells of it (O106).
    let answer = post(&unknown.unwrap(), &event(9)).await;
    assert!(
        matches!(answer, Err(EventError::Later { may_be_sent: false, after: None, counted: false, .. })),
        "{answer:?}"
    );
}

/// S39: a stranger's endpoint reaches nothing behind this machine, by an address or by a name, and nothing in plain text.
#[tokio::test]
async fn s39_nothing_behind_this_machine_is_called() {
    let receiver = Receiver::new([]).await;
    for host in ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "169.254.169.254"] {
        let publisher = at(format!("http://{host}:{}/", receiver.port)).allow_plaintext();
        let problem = waits_for_a_person(post(&publisher, &event(0)).await);
        assert!(problem.contains("no public address"), "{host}: {problem}");
    }
    let by_name = at(format!("http://localhost:{}/", receiver.port)).allow_plaintext();
    match post(&by_name, &event(0)).await {
        Err(EventError::Later { source, .. }) => assert!(source.to_string().contains("no public address"), "{source}"),
        other => panic!("it was called: {other:?}"),
    }
    let in_plain_text = at(receiver.url("/")).allow_private_networks().unwrap();
    assert!(waits_for_a_person(post(&in_plain_text, &event(0)).await).contains("https://"));
    assert!(receiver.posts().is_empty());
}

/// O16: four events at most are with one host, and the others come back at once, uncharged, so that they hold up no other
/// event.
#[tokio::test(flavor = "multi_thread")]
async fn o16_a_host_that_hangs_holds_four_events_and_no_more() {
    let receiver = Receiver::new((0..4).map(|_| Answer::Never)).await;
    let publisher = Arc::new(own(receiver.url("/")));
    assert_eq!(publisher.dispatch(), Dispatch::Each { at_once: 64 });
    let hanging: Vec<_> = (0..4)
        .map(|_| {
            let publisher = Arc::clone(&publisher);
            tokio::spawn(async move { later(post(&publisher, &event(0)).await) })
        })
        .collect();
    receiver.until(4).await;
    let (after, counted) = later(post(&publisher, &event(9)).await);
    assert!(!counted && after <= Duration::from_secs(2));
    for hung in hanging {
        assert!(hung.await.unwrap().1, "an answer that never came is a try");
    }
    // The calls that hung have given their places back.
    post(&publisher, &event(0)).await.unwrap();
}
