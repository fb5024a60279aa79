//! Workers whose handlers publish, and the signs of it.

use std::time::Duration;

use idem_core::Message;
use idem_testkit::memory::{Queue, QueueOptions};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

use crate::{
    admin::Admin,
    place::Place,
    process::{Running, Worker},
};

/// A place with a queue for the events.
async fn place() -> (Place, Queue) {
    let place = Place::new().await;
    let told = place.broker.create("told", QueueOptions::default()).expect("a queue");
    (place, told)
}

/// Ids of the events that wait in the outbox.
async fn waiting(place: &Place) -> Vec<String> {
    let mut connection = SqliteConnection::connect(&place.url()).await.expect("the file");
    let text = "SELECT event_key FROM idem_outbox ORDER BY number";
    sqlx::query_scalar(text).fetch_all(&mut connection).await.expect("the outbox")
}

fn header<'m>(message: &'m Message, name: &str) -> &'m str {
    message.headers().text(name).unwrap_or_else(|| panic!("there is no header {name}"))
}

/// O2: committed with the purchase, sent under an id that is derived from its key, and removed.
#[tokio::test]
async fn o2_a_worker_announces_each_purchase_once() {
    let (place, told) = place().await;
    place.publish("order-1", "00001");
    place.publish("order-1", "00001");
    place.publish("order-2", "00002");
    let ended = Worker::at(&place, "--announce told --until-idle 500ms").run().await.with(0);
    assert_eq!(ended.summary()["published"], 2, "{}", ended.log);
    assert_eq!(waiting(&place).await, [""; 0]);
    let events = told.unsettled();
    let payloads: Vec<Value> = events.iter().map(|event| event.json().expect("JSON")).collect();
    let payload = |key: &str, customer: &str| json!({ "purchase": key, "customer": customer, "day": "1997-01-01", "cds": 1, "cents": 1177 });
    assert_eq!(payloads, [payload("order-1", "00001"), payload("order-2", "00002")]);
    let [first, second] = &events[..] else { panic!("{events:?}") };
    assert_eq!([first, second].map(|event| header(event, "idemcause")), ["order-1", "order-2"]);
    assert_eq!(header(first, "ce_type"), "PurchaseRecorded");
    let ids = [first, second].map(|event| header(event, "idempotencykey"));
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 36 && id.as_bytes()[14] == b'8'), "{ids:?}");

    // A second worker that consumes them arrives at the same purchases, under the events' ids.
    let accounts = format!(
        "--database-url sqlite://{} --socket {} --queue told --consumer accounts --migrate --create-tables --until-idle 500ms",
        place.folder.join("accounts.db").display(),
        place.socket()
    );
    let ended = Worker::bare(&accounts).run().await.with(0);
    assert_eq!((&ended.summary()["processed"], &ended.summary()["published"]), (&json!(2), &json!(0)), "{}", ended.log);
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", place.folder.join("accounts.db").display()))
        .await
        .expect("it");
    let text = "SELECT idempotency_key FROM purchases ORDER BY customer";
    let keys: Vec<String> = sqlx::query_scalar(text).fetch_all(&mut connection).await.expect("its purchases");
    assert_eq!(keys, ids);
    place.remove();
}

/// O11: events committed by a worker without a relay are sent by another one; one that relays is not idle before.
#[tokio::test]
async fn o11_a_worker_that_does_not_relay_leaves_it_to_others() {
    let (place, told) = place().await;
    place.publish("order-1", "00001");
    let ended = Worker::at(&place, "--announce told --relay off --until-idle 500ms").run().await.with(0);
    assert_eq!(ended.summary()["published"], 0, "{}", ended.log);
    assert_eq!((waiting(&place).await.len(), told.stats().published), (1, 0));
    let ours = "--announce told --event-source urn:example:bank --event-format structured --until-idle 500ms";
    let ended = Worker::at(&place, ours).run().await.with(0);
    assert_eq!((ended.summary()["published"].as_u64(), told.stats().published), (Some(1), 1), "{}", ended.log);
    let event: Value = told.unsettled()[0].json().expect("JSON");
    assert_eq!(
        (event["type"].as_str(), event["data"]["purchase"].as_str(), event["source"].as_str()),
        (Some("PurchaseRecorded"), Some("order-1"), Some("urn:example:bank"))
    );
    place.remove();
}

/// O65: a record that is forgotten, and its message sent again, make the same event to the byte, so that its receiver skips it.
#[tokio::test]
async fn o65_an_event_that_is_published_again_in_structured_mode_is_a_copy() {
    let (place, told) = place().await;
    for _ in 0..2 {
        place.publish("order-1", "00001");
        let arguments = "--announce told --event-format structured --until-idle 500ms";
        let ended = Worker::at(&place, arguments).run().await.with(0);
        assert_eq!(ended.summary()["published"], 1, "{}", ended.log);
        let mut connection = SqliteConnection::connect(&place.url()).await.expect("the file");
        let text = "DELETE FROM idem_processed_messages; DELETE FROM purchases";
        sqlx::raw_sql(text).execute(&mut connection).await.expect("it is forgotten");
    }
    let events = told.unsettled();
    let [first, second] = &events[..] else { panic!("{events:?}") };
    assert_eq!(header(first, "idempotencykey"), header(second, "idempotencykey"));
    assert_eq!(first.payload(), second.payload());
    place.remove();
}

/// O10: a destination that nothing brings events to is refused at the start, not at the first message.
#[tokio::test]
async fn o10_a_destination_without_a_way_there_is_refused_at_the_start() {
    let (place, _) = place().await;
    let ended = Worker::at(&place, "--announce told --deaf").run().await.with(2);
    assert!(
        ended.why().contains("publish to \"told\", and nothing here brings events there: give --relay off"),
        "{}",
        ended.why()
    );
    let ended = Worker::at(&place, "--announce told --receiver-keeps 1h").run().await.with(2);
    assert!(ended.why().contains("more than an hour"), "{}", ended.why());
    let ended = Worker::at(&place, "--announce told --event-source no:<uri>").run().await.with(2);
    assert!(ended.why().contains("a URI reference"), "{}", ended.why());
    place.remove();
}

/// O63: a worker whose events would be its next messages, or come among its dead letters, is refused before it takes any message.
#[tokio::test]
async fn o63_a_worker_never_publishes_to_its_own_queue_or_among_its_dead_letters() {
    let (place, told) = place().await;
    place.publish("order-1", "00001");
    let ended = Worker::at(&place, "--announce orders --until-idle 500ms").run().await.with(2);
    assert!(ended.why().contains("\"orders\", which is --queue: each event would come back"), "{}", ended.why());
    let arguments = "--announce told --dead-letter-queue told --until-idle 500ms";
    let ended = Worker::at(&place, arguments).run().await.with(2);
    assert!(ended.why().contains("\"told\", which is --dead-letter-queue: a consumer"), "{}", ended.why());
    assert_eq!(told.stats().published, 0);

    // Another process may bring them to another broker.
    let ended = Worker::at(&place, &format!("{arguments} --relay off")).run().await.with(0);
    assert!(ended.log.contains("unless the relay brings them to another broker"), "{}", ended.log);
    assert_eq!((waiting(&place).await.len(), told.stats().published), (1, 0));
    place.remove();
}

/// O69: a destination that is not there is warned of at the start, before there is an event.
#[tokio::test]
async fn o69_a_destination_that_is_not_there_is_warned_of_at_the_start() {
    let (place, _told) = place().await;
    for (to, is_warned) in [("tolt", true), ("told", false)] {
        let ended = Worker::at(&place, &format!("--announce {to} --until-idle 500ms")).run().await.with(0);
        assert_eq!(ended.log.contains("events would not get to their destination"), is_warned, "{}", ended.log);
    }
    place.remove();
}

/// O9: a destination that is away is seen at `/readyz`, on the page and as a metric; its events go when it is back.
#[tokio::test]
async fn o9_what_waits_for_a_destination_is_seen() {
    let place = Place::new().await;
    place.publish("order-1", "00001");
    let mut running: Running = Worker::at(&place, "--announce told --admin 0").start();
    let admin = Admin::of(&mut running).await;
    let (_, json) = admin.readiness(|json| json["relay"][0]["trouble"].is_string()).await;
    let relay = &json["relay"][0];
    assert_eq!((relay["destination"].as_str(), relay["standing"].as_str()), (Some("told"), Some("relaying")), "{json}");
    let (_, page) = admin.get("/").await;
    assert!(page.contains("Events for told") && page.contains("not sent for"), "{page}");
    let told = place.broker.create("told", QueueOptions::default()).expect("a queue");
    told.until(|stats| stats.published == 1).await;
    admin.readiness(|json| json["relay"][0]["trouble"].is_null()).await;
    // It is counted once it is settled, which is a moment after the trouble is over.
    let is_counted = tokio::time::timeout(Duration::from_secs(60), async {
        while !admin.get("/metrics").await.1.contains("idem_outbox_published_total{destination=\"told\"} 1") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    is_counted.await.expect("the metric counts it");
    running.signal("TERM").await;
    assert_eq!(running.ended().await.with(0).summary()["published"], 1);
    place.remove();
}
