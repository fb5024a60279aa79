//! Events to a queue.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aws_sdk_sqs::types::MessageSystemAttributeName;
use idem_core::{
    CancellationToken, DedupConsumer, Effects, Event, HandlerError, Message, Store as _, Tx,
    consumer::Decided,
    handler_fn,
    key::{KeySource, default_key_source},
    message::OrderingKey,
    outbox::{CloudEvents, DestinationLimits, EventError, EventPublisher, OutgoingEvent},
    relay::Relay,
};
use idem_sqs::SqsPublisher;
use idem_testkit::{MemoryStore, message, outgoing_event, sqs::QueueOptions};

use crate::{
    member::{join, within},
    server::{Server, TestQueue},
};

async fn publish(publisher: &SqsPublisher, events: &[OutgoingEvent]) -> Vec<Result<(), EventError>> {
    let events: Vec<_> = events.iter().collect();
    within("publishing", publisher.publish_events(&events)).await
}

fn key_of(message: &Message) -> String {
    default_key_source().key(message).unwrap().unwrap().as_str().to_owned()
}

async fn is_read_back(server: Server) {
    for mode in [CloudEvents::binary(), CloudEvents::structured()] {
        let queue = server.queue("").await;
        let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap().cloud_events(mode.clone());
        let mut event = outgoing_event("event-1", "{\"cents\":1}");
        event.headers.push("region", Some("eu".into()));
        assert!(publish(&publisher, &[event]).await[0].is_ok());
        let message = join(&queue.options()).await.take_without_outage(1).await.remove(0).message;
        assert_eq!((key_of(&message).as_str(), message.message_type()), ("event-1", Some("Told")));
        let text = |name| message.headers().text(name);
        assert_eq!((text("idemcause"), text("region")), (Some("order-1"), Some("eu")));
        let is_binary = mode == CloudEvents::binary();
        let attributes: serde_json::Value = if is_binary {
            assert_eq!(message.payload().unwrap(), "{\"cents\":1}");
            serde_json::from_str(text("ce").unwrap()).unwrap()
        } else {
            assert_eq!(text("content-type"), Some("application/cloudevents+json"));
            message.json().unwrap()
        };
        for (name, value) in
            [("specversion", "1.0"), ("id", "event-1"), ("type", "Told"), ("idempotencykey", "event-1")]
        {
            assert_eq!(attributes[name], value, "{name}");
        }
    }
}

/// O26: the event is read back, under the key by which a consumer that runs idem knows it.
#[tokio::test(flavor = "multi_thread")]
async fn o26_an_event_is_read_back_by_its_key_on_elasticmq() {
    is_read_back(Server::elastic()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn o26_an_event_is_read_back_by_its_key_on_the_fake() {
    is_read_back(Server::fake().await).await;
}

/// A FIFO queue has the events of one ordering key in order, and drops a copy of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_queue_keeps_the_order_and_drops_copies() {
    for server in [Server::elastic(), Server::fake().await] {
        let queue = server.queue(".fifo").await;
        let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
        // As a relay gives them: those of one key one after the other.
        for number in [0, 1, 1, 2] {
            let mut event = outgoing_event(&format!("event-{number}"), number.to_string());
            event.ordering_key = Some(OrderingKey::new("account 7"));
            assert!(publish(&publisher, &[event]).await[0].is_ok());
        }
        queue.until_counts([3, 0, 0]).await;
        let held = join(&queue.options()).await.take_without_outage(3).await;
        let keys: Vec<_> = held.iter().map(|delivery| key_of(&delivery.message)).collect();
        assert_eq!(keys, ["event-0", "event-1", "event-2"]);
    }
}

/// Publishes an event for each of these, with an ordering key, in this order.
async fn published(store: &Arc<MemoryStore>, url: &str, events: impl Iterator<Item = (String, String)>) {
    let to = url.to_owned();
    let handler = handler_fn(async move |message: &Message, tx: &mut Tx<'_, MemoryStore>| {
        let (key, body): (String, String) = message.json()?;
        tx.publish(message, Event::to(&to).ordering_key(key).body(body)).map(drop)?;
        Ok::<(), HandlerError>(())
    });
    let builder = DedupConsumer::builder(Arc::clone(store), "teller").handler(handler).handler_name("teller");
    let consumer = builder.effects(Effects::InTransaction).publish_to([url]).build().unwrap();
    let messages = events.map(|(key, body)| message(&body.clone(), serde_json::to_vec(&(key, body)).unwrap()));
    for Decided { decision, .. } in consumer.process(messages).await.unwrap() {
        assert!(decision.is_processed(), "{decision:?}");
    }
}

/// The bodies of all messages of a FIFO queue, by their groups.
async fn drained(queue: &TestQueue) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        let receive = queue.client().receive_message().queue_url(&queue.url).max_number_of_messages(10);
        let answer = receive.message_system_attribute_names(MessageSystemAttributeName::All).send().await.unwrap();
        let Some(messages) = answer.messages.filter(|messages| !messages.is_empty()) else { return groups };
        for message in messages {
            let group = &message.attributes.unwrap()[&MessageSystemAttributeName::MessageGroupId];
            groups.entry(group.clone()).or_default().push(message.body.unwrap());
            let delete = queue.client().delete_message().queue_url(&queue.url);
            delete.receipt_handle(message.receipt_handle.unwrap()).send().await.unwrap();
        }
    }
}

/// O24: entries fail singly, while later events of their groups are in the relay's hands: those wait, and each group is in its order.
#[tokio::test(flavor = "multi_thread")]
async fn o24_entries_that_fail_hold_back_what_follows_in_their_group() {
    let queue = Server::fake().await.queue(".fifo").await;
    let store = Arc::new(MemoryStore::new());
    let all = (0..30).map(|number| (format!("account-{}", number % 5), number.to_string()));
    published(&store, &queue.url, all).await;
    queue.fake().fail_entries(3);
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    let relay = Relay::builder(store.outbox().unwrap()).to(&queue.url, publisher).build().unwrap();
    let (stop, view) = (CancellationToken::new(), relay.view());
    let run = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    within("draining", async {
        while !store.events().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    stop.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(view.published(), 30);
    let expected = (0..5).map(|account| {
        (format!("account-{account}"), (0..6).map(|number| (number * 5 + account).to_string()).collect::<Vec<_>>())
    });
    assert_eq!(drained(&queue).await, expected.collect());
}

/// O8: many events are several requests of ten entries, and those that SQS cannot take are reported apart from
/// the others.
#[tokio::test(flavor = "multi_thread")]
async fn o8_events_that_sqs_cannot_take_are_told_from_the_others() {
    for server in [Server::elastic(), Server::fake().await] {
        let queue = server.queue("").await;
        let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
        let mut events: Vec<_> = (0..45).map(|number| outgoing_event(&format!("event-{number}"), "{}")).collect();
        events[3].payload = vec![0xff].into();
        events[11].payload = vec![b'x'; (1 << 20) + 1].into();
        events[20].payload = "".into();
        for number in 0..9 {
            events[30].headers.push(&format!("header-{number}"), Some("x".into()));
        }
        let answers = publish(&publisher, &events).await;
        for (number, answer) in answers.iter().enumerate() {
            match answer {
                Ok(()) => assert!(![3, 11, 20, 30].contains(&number), "{number}"),
                Err(EventError::DoesNotFit { .. }) => {
                    assert!([3, 11, 20, 30].contains(&number), "{number}: {answer:?}")
                }
                other => panic!("event {number}: {other:?}"),
            }
        }
        queue.until_counts([41, 0, 0]).await;
    }
}

/// O107: workers that have no relay learn from the destination's row what the queue takes.
#[tokio::test(flavor = "multi_thread")]
async fn o107_a_relay_leaves_what_a_queue_takes() {
    let old = QueueOptions { message_bytes_max: 256 << 10, ..QueueOptions::default() };
    let queue = Server::fake().await.queue_with("", old).await;
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap().cloud_events(CloudEvents::structured());
    let store = Arc::new(MemoryStore::new());
    let outbox = store.outbox().unwrap();
    assert_eq!(outbox.declare(&[queue.url.as_str().into()]).await.unwrap()[0].limits, None);
    let relay = Relay::builder(store.outbox().unwrap()).to(&queue.url, publisher).build().unwrap();
    let stop = CancellationToken::new();
    let run = tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    let limits = within("the limits", async {
        loop {
            if let Some(limits) = outbox.declare(&[queue.url.as_str().into()]).await.unwrap().remove(0).limits {
                break limits;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(limits, DestinationLimits::new("sqs").message_bytes_max(Some(256 << 10)).is_structured(true));
    stop.cancel();
    run.await.unwrap().unwrap();
}

/// O72: a message's trace, which its producer wrote, takes no room that the event needs: SQS takes ten attributes, of which six are a
/// handler's.
#[tokio::test(flavor = "multi_thread")]
async fn o72_a_producers_trace_gives_way_to_what_the_event_needs() {
    let traced = |own: usize, is_typed: bool| {
        let mut event = outgoing_event(&format!("event-{own}"), "{}");
        event.event_type = event.event_type.filter(|_| is_typed);
        for number in 0..own {
            event.headers.push(&format!("header-{number}"), Some("x".into()));
        }
        event.headers.push("traceparent", Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()));
        event.headers.push("tracestate", Some("a=b".into()));
        event
    };
    // Whether there are the trace and its state, the media type, and the type.
    for (mode, own, is_typed, there) in [
        // Media type and type stand in the attribute of CloudEvents too.
        (CloudEvents::binary(), 6, true, [false, false, false, false]),
        (CloudEvents::binary(), 2, true, [true, true, true, true]),
        (CloudEvents::binary(), 3, true, [true, false, true, true]),
        (CloudEvents::binary(), 4, true, [false, false, true, true]),
        (CloudEvents::structured(), 5, true, [false, false, true, true]),
        (CloudEvents::structured(), 6, true, [false, false, true, false]),
        (CloudEvents::binary(), 4, false, [true, true, true, false]),
        (CloudEvents::binary(), 6, false, [false, false, true, false]),
    ] {
        for server in [Server::elastic(), Server::fake().await] {
            let queue = server.queue("").await;
            let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap().cloud_events(mode.clone());
            let sent = publish(&publisher, &[traced(own, is_typed)]).await;
            assert!(sent[0].is_ok(), "{mode:?} {own}: {sent:?}");
            let message = join(&queue.options()).await.take_without_outage(1).await.remove(0).message;
            let has = |name: &str| message.headers().text(name).is_some();
            let found = ["traceparent", "tracestate", "content-type", "EventType"].map(has);
            assert_eq!(found, there, "{mode:?} {own} {is_typed}");
            // F21: in binary mode a consumer on idem knows the type in any case.
            let is_known = is_typed && (mode == CloudEvents::binary() || there[3]);
            assert_eq!(message.message_type(), is_known.then_some("Told"), "{mode:?} {own}");
            assert!((0..own).all(|number| has(&format!("header-{number}"))) && has("idemcause"), "{mode:?} {own}");
        }
    }
}

/// F5: SQS answers for each entry, and 200 where some of them failed.
#[tokio::test(flavor = "multi_thread")]
async fn f5_an_entry_that_failed_is_the_only_one_that_is_not_confirmed() {
    let queue = Server::fake().await.queue("").await;
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    let events: Vec<_> = (0..10).map(|number| outgoing_event(&format!("event-{number}"), "{}")).collect();
    queue.fake().fail_entries(3);
    let failed: Vec<_> = publish(&publisher, &events).await.into_iter().filter_map(Result::err).collect();
    assert_eq!(failed.len(), 3);
    assert!(failed.iter().all(|error| matches!(error, EventError::Later { counted: false, .. })), "{failed:?}");
    queue.until_counts([7, 0, 0]).await;
}

/// O9: a queue that is not there, and a server that is away or loses its answer.
#[tokio::test(flavor = "multi_thread")]
async fn o9_an_outage_is_one_and_an_unknown_queue_is_refused() {
    let queue = Server::fake().await.queue("").await;
    let event = [outgoing_event("event-1", "{}")];
    let nowhere = SqsPublisher::new(queue.client(), format!("{}-none", queue.url)).unwrap();
    let refused = publish(&nowhere, &event).await;
    assert!(
        matches!(&refused[0], Err(EventError::Refused { problem, .. }) if problem.contains("-none")),
        "{refused:?}"
    );
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    queue.server.as_fake().fail("SendMessageBatch", 1);
    let away = publish(&publisher, &event).await;
    assert!(matches!(away[0], Err(EventError::Later { may_be_sent: true, counted: false, .. })), "{away:?}");
    assert!(publish(&publisher, &event).await[0].is_ok());
}

/// O100: what could not be connected to was certainly not sent. Once bytes have left, nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn o100_a_connection_that_is_refused_sends_nothing() {
    let queue = Server::fake().await.queue("").await;
    let (fake, event) = (queue.server.as_fake(), [outgoing_event("event-1", "{}")]);
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    fake.lose_answers("SendMessageBatch", 1);
    let unanswered = publish(&publisher, &event).await;
    assert!(
        matches!(unanswered[0], Err(EventError::Later { may_be_sent: true, counted: false, .. })),
        "{unanswered:?}"
    );
    fake.down().await;
    let refused = publish(&publisher, &event).await;
    assert!(matches!(refused[0], Err(EventError::Later { may_be_sent: false, counted: false, .. })), "{refused:?}");
    fake.up().unwrap();
    assert!(publish(&publisher, &event).await[0].is_ok());
}

/// O66: a key, a name and a payload with characters that SQS does not take: the event goes, and is read as it was published.
#[tokio::test(flavor = "multi_thread")]
async fn o66_an_event_with_characters_that_sqs_does_not_take_goes_all_the_same() {
    let payload = "{\"customer\":\"a\u{ffff}\",\"\u{fffe}\":\"\\\\\u{ffff}\"}";
    for server in [Server::elastic(), Server::fake().await] {
        for mode in [CloudEvents::binary(), CloudEvents::structured()] {
            let queue = server.queue("").await;
            let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap().cloud_events(mode.clone());
            let mut event = outgoing_event("key-\u{ffff}", payload);
            event.headers.push("region", Some("eu\u{fffe}".into()));
            event.event_type = Some("Told\u{ffff}".into());
            let sent = publish(&publisher, &[event]).await;
            assert!(sent[0].is_ok(), "{sent:?}");
            let message = join(&queue.options()).await.take_without_outage(1).await.remove(0).message;
            assert_eq!((key_of(&message).as_str(), message.message_type()), ("key-\u{ffff}", Some("Told\u{ffff}")));
            assert_eq!(message.headers().text("region"), Some("eu\u{fffe}"));
            let body: serde_json::Value = message.json().unwrap();
            let (data, attributes) = if mode == CloudEvents::binary() {
                (body, serde_json::from_str(message.headers().text("ce").unwrap()).unwrap())
            } else {
                (body["data"].clone(), body)
            };
            assert_eq!(data, serde_json::from_str::<serde_json::Value>(payload).unwrap());
            assert_eq!((&attributes["id"], &attributes["type"]), (&"key-\u{ffff}".into(), &"Told\u{ffff}".into()));
        }
    }
    // There is no way to write this so that its receiver would read the same.
    let queue = Server::fake().await.queue("").await;
    let publisher = SqsPublisher::new(queue.client(), &queue.url).unwrap();
    let answers = publish(&publisher, &[outgoing_event("event-1", "no JSON: \u{ffff}")]).await;
    assert!(matches!(answers[0], Err(EventError::DoesNotFit { .. })), "{answers:?}");
}

/// O69: a queue that is not there is seen before the first event, and nothing is sent or made by the look.
#[tokio::test(flavor = "multi_thread")]
async fn o69_a_queue_that_is_not_there_is_seen_without_an_event() {
    for server in [Server::elastic(), Server::fake().await] {
        let queue = server.queue("").await;
        assert!(within("a look", SqsPublisher::new(queue.client(), &queue.url).unwrap().look()).await.is_ok());
        let nowhere = SqsPublisher::new(queue.client(), format!("{}-none", queue.url)).unwrap();
        let refused = within("a look", nowhere.look()).await;
        assert!(
            matches!(&refused, Err(EventError::Refused { problem, .. }) if problem.contains("-none")),
            "{refused:?}"
        );
        queue.until_counts([0, 0, 0]).await;
    }
}
