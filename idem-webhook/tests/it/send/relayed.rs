//! What a relay notes of the tries, of which an operator decides days later whether a copy may be with the receivers;
//! and what it tells at once.

use std::{sync::Arc, time::Duration};

use idem_core::{
    DedupConsumer, Effects, Event, HandlerError, Message, Store as _, Tx,
    consumer::Decided,
    handler_fn,
    outbox::{EventEnd, EventState, Outbox, OutgoingEvent, StoredEvent},
    relay::Relay,
};
use idem_testkit::{MemoryStore, message};
use idem_webhook::{
    Secret,
    send::{Endpoint, WebhookPublisher},
};
use tokio::time::{sleep, timeout};

use crate::{
    captured::Captured,
    send::receiver::{Answer, Receiver},
};

async fn publish(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
    tx.publish(message, Event::to("hooks").event_type("Told").body("{}"))?;
    Ok(())
}

/// An outbox with one event.
async fn outbox() -> Arc<dyn Outbox> {
    outbox_with(1).await
}

/// An outbox with so many.
async fn outbox_with(events: u8) -> Arc<dyn Outbox> {
    let store = Arc::new(MemoryStore::new());
    let consumer = DedupConsumer::builder(Arc::clone(&store), "teller")
        .handler(handler_fn(publish))
        .handler_name("teller")
        .effects(Effects::InTransaction)
        .publish_to(["hooks"])
        .build()
        .unwrap();
    let messages = (0..events).map(|number| message(&number.to_string(), b"1".to_vec()));
    for Decided { decision, .. } in consumer.process(messages).await.unwrap() {
        assert!(decision.is_processed(), "{decision:?}");
    }
    store.outbox().expect("an outbox")
}

/// A publisher whose endpoint is found after this time.
fn publisher(url: String, found_after: Duration) -> WebhookPublisher {
    let find = move |_: &OutgoingEvent| {
        let endpoint = Endpoint::new(
            url.clone(),
            ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=".parse::<Secret>().unwrap()],
        );
        async move {
            sleep(found_after).await;
            Ok(Some(endpoint))
        }
    };
    WebhookPublisher::new(find).unwrap().allow_private_networks().unwrap().allow_plaintext()
}

/// The event once a relay has noted as many tries.
#[allow(clippy::disallowed_methods, reason = "the relay waits for its next try, with no unit under way")]
async fn after_tries(outbox: &Arc<dyn Outbox>, to: WebhookPublisher, tries: u32) -> StoredEvent {
    let relay =
        tokio::spawn(Relay::builder(Arc::clone(outbox)).to("hooks", to).build().unwrap().run(std::future::pending()));
    let noted = async {
        loop {
            let event = outbox.events(None, None, 1).await.unwrap().remove(0);
            if event.event.attempts >= tries {
                return event;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let event = timeout(Duration::from_secs(60), noted).await.expect("the tries are noted");
    relay.abort();
    event
}

/// O25: the last of the tries may have been taken, as each before it.
#[tokio::test]
async fn o25_the_last_try_may_have_been_sent() {
    for (status, is_sent) in [(Some(500), true), (None, false)] {
        let outbox = outbox().await;
        let id = outbox.backlog(None).await.unwrap()[0].id;
        for _ in 0..9 {
            let event = outbox.next(id, 1, 10_000).await.unwrap().remove(0);
            let (after, error) = (Duration::ZERO, "refused".to_owned());
            let end = EventEnd::Later { after, error, may_be_sent: false, counted: true };
            outbox.settle(id, &[(&event, end)]).await.unwrap();
        }
        let receiver = Receiver::new(status.map(Answer::Status)).await;
        let url = if is_sent { receiver.url("/") } else { "http://127.0.0.1:9/".to_owned() };
        let failed = after_tries(&outbox, publisher(url, Duration::ZERO), 10).await;
        assert_eq!((failed.state, failed.event.first_sent_ago.is_some()), (EventState::Failed, is_sent), "{failed:?}");
        assert!(failed.error.as_ref().is_some_and(|error| error.starts_with("attempt 10 of 10: ")), "{failed:?}");
    }
}

/// O100: that a try took long, here because its endpoint was looked up for long, does not make it one that may have been sent.
#[tokio::test]
async fn o100_a_slow_try_that_sent_nothing_leaves_no_mark() {
    let outbox = outbox().await;
    let slow = publisher("http://127.0.0.1:9/".to_owned(), Duration::from_millis(600));
    let tried = after_tries(&outbox, slow, 1).await;
    assert_eq!((tried.state, tried.event.first_sent_ago), (EventState::Waiting, None), "{tried:?}");
}

/// Relays to this publisher until the relay's view has trouble. Returns the trouble, and the lines of the log about tries in vain.
#[allow(clippy::disallowed_methods, reason = "the log tells nobody that it has grown")]
async fn told_of(outbox: Arc<dyn Outbox>, publisher: WebhookPublisher) -> (String, Vec<String>) {
    let (log, _guard) = Captured::log(tracing::Level::INFO);
    let relay = Relay::builder(outbox).to("hooks", publisher).build().unwrap();
    let view = relay.view();
    let running = tokio::spawn(relay.run(std::future::pending()));
    let told = async {
        loop {
            if let Some((why, _)) = view.destinations()[0].trouble.clone() {
                return why;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let why = timeout(Duration::from_secs(60), told).await.expect("three tries in vain are trouble");
    running.abort();
    let mut lines = log.lines();
    assert!(!lines.iter().chain([&why]).any(|told| told.contains("s3cr3t")), "{why}: {lines:#?}");
    lines.retain(|line| line.contains("events were not confirmed"));
    (why, lines)
}

/// O106: the log and the relay's view say what is wrong with an endpoint that never confirms, and nothing of its path.
#[tokio::test]
async fn o106_an_endpoint_that_never_confirms_is_told_of() {
    let receiver = Receiver::new([(); 3].map(|()| Answer::Status(503))).await;
    let to = publisher(receiver.url("/hooks/s3cr3t"), Duration::ZERO);
    let (why, lines) = told_of(outbox_with(3).await, to).await;
    let answered = "the endpoint at 127.0.0.1 answered 503 Service Unavailable";
    assert!(why.contains(answered) && why.contains("none of the last 3 tries"), "{why}");
    let [line] = &lines[..] else { panic!("one error is told once: {lines:#?}") };
    for part in ["WARN", "destination=\"hooks\"", answered, "tries=1", "tries_max=10"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

/// O106: where the endpoints cannot be found, as while their table is locked, nothing goes either, and no try counts.
#[tokio::test]
async fn o106_a_look_for_endpoints_that_fails_is_told_of() {
    let locked = |_: &OutgoingEvent| async { Err("the table is locked".into()) };
    let (why, lines) = told_of(outbox_with(3).await, WebhookPublisher::new(locked).unwrap()).await;
    assert!(why.contains("the table is locked"), "{why}");
    let [line] = &lines[..] else { panic!("one error is told once: {lines:#?}") };
    assert!(line.contains("the table is locked") && line.contains("tries=0"), "{line}");
}
