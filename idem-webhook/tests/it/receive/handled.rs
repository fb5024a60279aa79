//! The outcomes of an event, from any sender: EventBridge here, which signs nothing.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body::{Body, Frame};
use idem_core::{
    ConsumerName, Store as _, Tenant,
    store::{Bookkeeping as _, ControlState},
    telemetry::{HTTP_DELIVERIES, HTTP_DELIVERY_TIME},
};
use idem_sqlx::PostgresStore;
use idem_webhook::{
    Secret,
    receive::{EventBridge, Inbound, Sender, Sns, StandardWebhooks, Stripe},
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tower_service::Service as _;

use super::fixture::{Act, Fixture, Said, post, serve};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn inbound(fixture: &Fixture) -> Inbound<PostgresStore, EventBridge> {
    Inbound::new(fixture.consumer(EventBridge::identify), EventBridge::new(API_KEY, ["old", "new"]))
}

fn event(id: &str, detail: &str) -> String {
    format!(
        r#"{{"version":"0","id":"{id}","detail-type":"PaymentMade","source":"bank","time":"2026-11-25T00:00:00Z","detail":{detail}}}"#
    )
}

async fn send(url: &str, secret: &str, body: String) -> Said {
    post(url, &[("x-api-key", secret.to_owned())], body).await
}

async fn status(url: &str, body: String) -> u16 {
    send(url, "new", body).await.0
}

/// W41: 200 comes after the commit, a second copy has no effect, and the key is the producer's where it gives one.
#[tokio::test]
async fn w41_an_event_is_confirmed_once_its_effect_is_committed() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture)).await;
    assert_eq!(send(&url, "new", event("e-1", r#"{"cents":1}"#)).await, Said(200, None, "handled".into()));
    assert_eq!(fixture.effects().await, ["e-1"]);
    assert_eq!(send(&url, "old", event("e-1", r#"{"cents":1}"#)).await, Said(200, None, "handled before".into()));
    // The producer put it again: another id, and the same key.
    for id in ["e-2", "e-3"] {
        assert_eq!(status(&url, event(id, r#"{"idempotencykey":"order-1","cents":2}"#)).await, 200);
    }
    assert_eq!(fixture.effects().await, ["e-1", "order-1"]);
    assert_eq!(
        fixture.texts("SELECT type || convert_from(payload, 'UTF8') FROM effects WHERE key = 'e-1'").await,
        [r#"PaymentMade{"cents":1}"#]
    );
    assert_eq!(fixture.runs(), 2);
    fixture.drop().await;
}

/// W41: an event that fails now leaves nothing and comes again; one that can never be handled is kept whole, and then confirmed.
#[tokio::test]
async fn w41_failures_come_again_or_are_kept() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture)).await;
    fixture.act(Act::Fail);
    let said = send(&url, "new", event("e-1", "{}")).await;
    assert_eq!((said.0, said.1.as_deref()), (503, Some("10")));
    assert_eq!(fixture.effects().await.len() + fixture.dead_letters().await.len(), 0);
    fixture.act(Act::Write);
    assert_eq!(status(&url, event("e-1", "{}")).await, 200);
    assert_eq!(fixture.effects().await, ["e-1"]);
    fixture.act(Act::Refuse);
    assert_eq!(status(&url, event("e-2", r#"{"cents":2}"#)).await, 200);
    assert_eq!(fixture.effects().await, ["e-1"]);
    assert_eq!(fixture.dead_letters().await, [r#"permanent|e-2|{"cents":2}"#]);
    fixture.drop().await;
}

/// W42: another payload under a known key runs nothing, is kept whole and noted in the trail, and its sender does not send it for days.
#[tokio::test]
async fn w42_a_conflict_is_kept_and_confirmed() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture)).await;
    assert_eq!(status(&url, event("e-1", r#"{"cents":1}"#)).await, 200);
    for _ in 0..2 {
        assert_eq!(status(&url, event("e-1", r#"{"cents":9}"#)).await, 200);
    }
    assert_eq!((fixture.runs(), fixture.effects().await.len()), (1, 1));
    assert_eq!(fixture.dead_letters().await, [r#"conflict|e-1|{"cents":9}"#]);
    assert_eq!(fixture.texts("SELECT action FROM audit WHERE action = 'conflict'").await.len(), 2);
    fixture.drop().await;
}

/// W42: the sender has to keep a malformed event: it gets a 400, and the note has none of the content.
#[tokio::test]
async fn w42_what_is_malformed_is_noted_without_its_content() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture)).await;
    for body in [
        "{\"secret\":\"canary\"}".to_owned(),
        "canary".to_owned(),
        event("e-1", "{}").replace("\"id\"", "\"id\":\"canary\",\"id\""),
    ] {
        assert_eq!(status(&url, body).await, 400);
    }
    assert_eq!(status(&url, event("e-1", r#"{"idempotencykey":7}"#)).await, 400);
    let letters = fixture.dead_letters().await;
    assert_eq!(letters.len(), 4, "{letters:?}");
    assert!(
        letters.iter().all(|letter| letter.starts_with("malformed|") && letter.ends_with("|not kept")),
        "{letters:?}"
    );
    assert!(fixture.texts("SELECT d::text FROM dead_letters d").await.iter().all(|row| !row.contains("canary")));
    assert_eq!(fixture.runs(), 0);
    fixture.drop().await;
}

/// W43: each sender has its answer before it gives up: EventBridge after 5 s and SNS after 15, as Amazon documents, idem's own publisher
/// of Standard Webhooks after 8. Stripe does not say.
#[test]
fn w43_each_sender_is_answered_before_it_gives_up() {
    let (none, fetch) = (std::iter::empty::<String>, super::http_client());
    let senders: [Box<dyn Sender>; 4] = [
        Box::new(EventBridge::new(API_KEY, none())),
        Box::new(Sns::new(none(), fetch)),
        Box::new(StandardWebhooks::new(std::iter::empty::<Secret>())),
        Box::new(Stripe::new(none())),
    ];
    assert_eq!(senders.map(|sender| sender.deadline().as_secs()), [4, 12, 7, 10]);
}

/// W43: a handler that is slower than its sender waits goes on, and has its effect once, however often it is sent meanwhile.
#[tokio::test]
async fn w43_a_handler_beyond_the_deadline_goes_on() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture).deadline(Duration::from_millis(300))).await;
    fixture.act(Act::WriteAndWait);
    let first = send(&url, "new", event("e-1", "{}")).await;
    assert_eq!(first, Said(503, Some("5".into()), "it is still being handled".into()));
    tokio::time::timeout(Duration::from_secs(30), fixture.orders.began.notified()).await.expect("it began");
    let second = send(&url, "new", event("e-1", "{}")).await;
    assert_eq!((second.0, fixture.effects().await.len(), fixture.runs()), (503, 0, 1), "{second:?}");
    fixture.orders.let_go.notify_one();
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    // The commit gives no signal here; the sender comes again until it gets its 200.
    while status(&url, event("e-1", "{}")).await != 200 {
        assert!(tokio::time::Instant::now() < until, "never confirmed");
    }
    assert_eq!((fixture.effects().await, fixture.runs()), (vec!["e-1".to_owned()], 1));
    fixture.drop().await;
}

/// W43: an event that fails for good beyond the deadline is kept, whether or not its sender comes again.
#[tokio::test]
async fn w43_what_fails_beyond_the_deadline_is_kept() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture).deadline(Duration::from_millis(300))).await;
    fixture.act(Act::WaitAndRefuse);
    assert_eq!(status(&url, event("e-1", "{}")).await, 503);
    tokio::time::timeout(Duration::from_secs(30), fixture.orders.began.notified()).await.expect("it began");
    fixture.orders.let_go.notify_one();
    // The row gives no signal that it is there.
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    let kept = async {
        while fixture.dead_letters().await.is_empty() {
            pace.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), kept).await.expect("it is kept");
    assert_eq!(fixture.dead_letters().await, ["permanent|e-1|{}"]);
    fixture.drop().await;
}

/// W41: two instances get copies of one event at once, and another payload under its key: one runs, and what the others are is decided
/// once it has ended.
#[tokio::test]
async fn w41_copies_at_two_instances_at_once_have_one_effect() {
    let fixture = Fixture::new().await;
    let (here, there) = (serve(inbound(&fixture)).await, serve(inbound(&fixture)).await);
    let (event, other) = (event("e-1", r#"{"cents":1}"#), event("e-1", r#"{"cents":9}"#));
    fixture.act(Act::WriteAndWait);
    let first = tokio::spawn({
        let event = event.clone();
        async move { send(&here, "new", event).await }
    });
    tokio::time::timeout(Duration::from_secs(30), fixture.orders.began.notified()).await.expect("it began");
    for body in [&event, &other] {
        let said = send(&there, "new", body.clone()).await;
        assert_eq!(said, Said(503, Some("2".into()), "another delivery of it is being handled".into()));
    }
    assert!(fixture.dead_letters().await.is_empty(), "nobody knows yet whether it is a conflict");
    fixture.orders.let_go.notify_one();
    assert_eq!(first.await.unwrap(), Said(200, None, "handled".into()));
    assert_eq!(send(&there, "new", event).await, Said(200, None, "handled before".into()));
    assert_eq!(send(&there, "new", other).await, Said(200, None, "kept for a person to look at".into()));
    assert_eq!((fixture.effects().await, fixture.runs()), (vec!["e-1".to_owned()], 1));
    assert_eq!(fixture.dead_letters().await, [r#"conflict|e-1|{"cents":9}"#]);
    fixture.drop().await;
}

/// W43: a sender that goes away while its event is handled does not end the handler, and its next try is a duplicate.
#[tokio::test]
async fn w43_a_sender_that_is_gone_ends_nothing() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture)).await;
    fixture.act(Act::WriteAndWait);
    let body = event("e-1", "{}");
    let address = url.trim_start_matches("http://").trim_end_matches("/events");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("POST /events HTTP/1.1\r\nhost: a\r\nx-api-key: new\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), fixture.orders.began.notified()).await.expect("it began");
    drop(stream);
    assert_eq!(status(&url, body.clone()).await, 503, "it is still held");
    fixture.orders.let_go.notify_one();
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    // The commit gives no signal here.
    while status(&url, body.clone()).await != 200 {
        assert!(tokio::time::Instant::now() < until, "never confirmed");
    }
    assert_eq!((fixture.effects().await, fixture.runs()), (vec!["e-1".to_owned()], 1));
    fixture.drop().await;
}

/// W141: an event that fails for now beyond the deadline leaves nothing, and the sender's next try has its effect once.
#[tokio::test]
async fn w141_what_fails_for_now_beyond_the_deadline_may_come_again() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture).deadline(Duration::from_millis(300)).at_once(1)).await;
    fixture.act(Act::WaitAndFail);
    assert_eq!(status(&url, event("e-1", "{}")).await, 503);
    tokio::time::timeout(Duration::from_secs(30), fixture.orders.began.notified()).await.expect("it began");
    fixture.act(Act::Write);
    fixture.orders.let_go.notify_one();
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    // Only one runs at once, so the next try is let in after the end of the first, which gives no signal here.
    while status(&url, event("e-1", "{}")).await != 200 {
        assert!(tokio::time::Instant::now() < until, "never confirmed");
    }
    assert_eq!((fixture.effects().await, fixture.runs()), (vec!["e-1".to_owned()], 2));
    assert!(fixture.dead_letters().await.is_empty(), "its sender was answered 503 and still has it");
    fixture.drop().await;
}

/// W140: a body that does not come, or is cut off, is asked for again, and then has its effect once: a 4xx would have the sender drop it.
#[tokio::test]
async fn w140_a_body_that_does_not_come_whole_is_asked_for_again() {
    let fixture = Fixture::new().await;
    let mut service = inbound(&fixture);
    let url = serve(service.clone()).await;
    let late = serve(inbound(&fixture).deadline(Duration::from_millis(300))).await;
    let answer = answer(&mut begin(&late, "new").await).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 2\r\n"), "{answer}");
    let cut = Request::post("/events").header(API_KEY, "new").body(CutOff).unwrap();
    let said = service.call(cut).await.unwrap();
    assert_eq!((said.status().as_u16(), &said.headers()["retry-after"]), (503, &HeaderValue::from(2)));
    assert_eq!((fixture.runs(), fixture.dead_letters().await.len()), (0, 0));
    for text in ["handled", "handled before"] {
        assert_eq!(send(&url, "new", event("e-1", "{}")).await, Said(200, None, text.into()));
    }
    assert_eq!(fixture.effects().await, ["e-1"]);
    fixture.drop().await;
}

/// W43: a flood of slow events holds a bounded number of tasks; the others get a 503. Bodies that do not come hold none.
#[tokio::test]
async fn w43_requests_at_once_are_bounded() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture).at_once(1)).await;
    let _loris = (begin(&url, "new").await, begin(&url, "new").await);
    fixture.act(Act::WriteAndWait);
    let slow = tokio::spawn({
        let url = url.clone();
        async move { status(&url, event("e-1", "{}")).await }
    });
    tokio::time::timeout(Duration::from_secs(30), fixture.orders.began.notified()).await.expect("it began");
    let said = send(&url, "new", event("e-2", "{}")).await;
    assert_eq!(said, Said(503, Some("2".into()), "too many are being handled".into()));
    fixture.orders.let_go.notify_one();
    assert_eq!(slow.await.unwrap(), 200);
    fixture.act(Act::Write);
    assert_eq!(status(&url, event("e-2", "{}")).await, 200);
    fixture.drop().await;
}

/// W40: a stranger is refused by the head alone: its body is not read and the database not asked. Bodies are bounded.
#[tokio::test]
async fn w40_a_stranger_is_refused_before_anything_is_read() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture).body_bytes_max(1_000)).await;
    for secret in ["", "ne", "NEW", "neww"] {
        let said = send(&url, secret, event("e-1", "{}")).await;
        assert_eq!(said.0, 401, "{secret:?}");
    }
    assert_eq!(post(&url, &[], "").await.0, 401);
    let twice = [("x-api-key", "new".to_owned()), ("x-api-key", "other".to_owned())];
    assert_eq!(post(&url, &twice, event("e-1", "{}")).await.0, 401);
    // A body that never ends is answered all the same.
    let said = answer(&mut begin(&url, "wrong").await).await;
    assert!(said.starts_with("HTTP/1.1 401"), "{said}");
    assert_eq!(send(&url, "new", event("e-1", &format!("{{\"x\":\"{}\"}}", "y".repeat(1_000)))).await.0, 413);
    // Not even the consumer was registered.
    assert_eq!(fixture.texts("SELECT name FROM consumers").await.len(), 0);
    fixture.drop().await;
}

/// Announces a body and sends none of it.
async fn begin(url: &str, secret: &str) -> TcpStream {
    let address = url.trim_start_matches("http://").trim_end_matches("/events");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("POST /events HTTP/1.1\r\nhost: a\r\nx-api-key: {secret}\r\ncontent-length: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The answer to such a request.
async fn answer(stream: &mut TcpStream) -> String {
    let mut answer = [0; 1_024];
    let read =
        tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// A body whose connection is lost.
struct CutOff;

impl Body for CutOff {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())))
    }
}

/// W155: while an operator has paused the consumer no event is handled, its sender tries again, and a resume ends it.
#[tokio::test]
async fn w155_a_paused_consumer_handles_nothing() {
    let fixture = Fixture::new().await;
    let name = ConsumerName::new("events").unwrap();
    fixture.consumer(EventBridge::identify).start().await.unwrap();
    for state in [ControlState::Paused, ControlState::Halted] {
        let scope = fixture.store.bookkeeping().scope(&name, &Tenant::default()).await.unwrap();
        let control =
            async |state| fixture.store.bookkeeping().set_control(scope, state, "ada", "read only").await.unwrap();
        control(state).await;
        let url = serve(inbound(&fixture)).await;
        let runs = fixture.runs();
        let said = send(&url, "new", event(state.as_str(), "{}")).await;
        assert_eq!(said, Said(503, Some("5".into()), "the consumer is paused".into()));
        assert_eq!(send(&url, "strange", event("e-1", "{}")).await.0, 401, "and a stranger learns nothing of it");
        assert_eq!((fixture.runs(), fixture.dead_letters().await.len()), (runs, 0));
        control(ControlState::Running).await;
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        // It reads the controls every two seconds.
        while status(&url, event(state.as_str(), "{}")).await != 200 {
            assert!(tokio::time::Instant::now() < until, "never resumed");
        }
        assert_eq!(fixture.runs(), runs + 1);
        // And a pause that comes while it serves is obeyed as soon.
        control(state).await;
        let until = tokio::time::Instant::now() + Duration::from_secs(30);
        while status(&url, event("while", "{}")).await != 503 {
            assert!(tokio::time::Instant::now() < until, "never paused");
        }
    }
    fixture.drop().await;
}

/// W95: each delivery is counted once, by how it ended.
#[tokio::test]
async fn w95_deliveries_are_counted_by_how_they_ended() {
    let recorder = DebuggingRecorder::new();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture).body_bytes_max(1_000)).await;
    let large = event("e-9", &format!("\"{}\"", "x".repeat(1_000)));
    for (act, secret, body, answer, outcome) in [
        (Act::Write, "new", event("e-1", "1"), 200, "handled"),
        (Act::Write, "new", event("e-1", "1"), 200, "duplicate"),
        (Act::Write, "new", event("e-1", "2"), 200, "dead-lettered"),
        (Act::Fail, "new", event("e-2", "1"), 503, "failed-for-now"),
        (Act::Write, "new", "canary".to_owned(), 400, "malformed"),
        (Act::Write, "strange", event("e-3", "1"), 401, "unauthenticated"),
        (Act::Write, "new", large, 413, "body-too-large"),
    ] {
        fixture.act(act);
        assert_eq!(send(&url, secret, body).await.0, answer, "{outcome}");
        let taken = recorder.snapshotter().snapshot().into_vec();
        let of = |metric: idem_core::telemetry::Metric| {
            let counted = taken.iter().filter(|(key, ..)| key.key().name() == metric.name);
            // A value of before stays in a histogram as none, and in a counter as 0.
            let now = counted.filter(|(.., value)| match value {
                DebugValue::Counter(count) => *count > 0,
                DebugValue::Histogram(values) => !values.is_empty(),
                DebugValue::Gauge(_) => false,
            });
            let labels = now.map(|(key, ..)| {
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect::<Vec<_>>()
            });
            labels.collect::<Vec<_>>()
        };
        let only = vec![vec!["consumer=events".to_owned(), format!("outcome={outcome}")]];
        assert_eq!((of(HTTP_DELIVERIES), of(HTTP_DELIVERY_TIME)), (only.clone(), only), "{outcome}");
    }
    fixture.drop().await;
}
