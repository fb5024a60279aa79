//! Events that are written to an inbox, and handled by a worker behind it.

use std::{sync::Arc, time::Duration};

use http::HeaderName;
use idem_core::{
    Worker,
    inbox::{InboxSource, InboxStore as _, ReceiverSettings},
};
use idem_sqlx::PostgresStore;
use idem_webhook::receive::{EventBridge, Inbound};

use super::fixture::{Act, Fixture, Said, post, serve};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn inbound(fixture: &Fixture, settings: ReceiverSettings) -> Inbound<PostgresStore, EventBridge> {
    let inbound = Inbound::new(fixture.consumer(EventBridge::identify), EventBridge::new(API_KEY, ["secret"]));
    inbound.into_inbox(Arc::new(fixture.store.clone()).inbox(), settings)
}

async fn send(url: &str, id: &str, cents: u32) -> Said {
    let body = format!(r#"{{"id":"{id}","detail-type":"PaymentMade","detail":{{"cents":{cents}}}}}"#);
    post(url, &[("x-api-key", "secret".to_owned())], body).await
}

/// Has a worker handle everything that waits.
async fn work(fixture: &Fixture) {
    let consumer = fixture.consumer(EventBridge::identify);
    let source = InboxSource::new(Arc::new(fixture.store.clone()).inbox(), consumer.name().clone());
    let worker = Worker::builder(consumer, source).until_idle(Duration::from_millis(200)).cleanup(None);
    worker.build().unwrap().run(std::future::pending()).await.unwrap();
}

/// N24: the sender has its answer once the row is committed, whatever the handler does; copies have one effect, another payload under a known
/// key is a dead letter of the worker's, and so is what cannot be handled.
#[tokio::test]
async fn n24_an_event_is_answered_once_its_row_is_committed() {
    let fixture = Fixture::new().await;
    let url = serve(inbound(&fixture, ReceiverSettings::default())).await;
    for (id, cents) in [("e-1", 1), ("e-1", 1), ("e-2", 2), ("e-1", 9)] {
        assert_eq!(send(&url, id, cents).await, Said(202, None, "received".into()));
    }
    let rows = "SELECT idempotency_key || '|' || message_type || '|' || convert_from(payload, 'UTF8') FROM inbox ORDER BY number";
    let waiting = ["1", "1", "2", "9"].map(|cents| format!(r#"PaymentMade|{{"cents":{cents}}}"#));
    assert_eq!(fixture.texts(rows).await.len(), 4);
    for (row, payload) in fixture.texts(rows).await.iter().zip(&waiting) {
        assert!(row.ends_with(payload.as_str()), "{row}");
    }
    assert_eq!((fixture.runs(), fixture.effects().await.len()), (0, 0));
    work(&fixture).await;
    assert_eq!(fixture.effects().await, ["e-1", "e-2"]);
    assert_eq!(fixture.dead_letters().await, [r#"conflict|e-1|{"cents":9}"#]);
    assert!(fixture.texts(rows).await.is_empty());
    fixture.act(Act::Refuse);
    assert_eq!(send(&url, "e-3", 3).await.0, 202);
    work(&fixture).await;
    assert_eq!(fixture.dead_letters().await, [r#"conflict|e-1|{"cents":9}"#, r#"permanent|e-3|{"cents":3}"#]);
    fixture.drop().await;
}

/// N24: a full inbox and a database that takes no rows are a 503 with Retry-After; nothing is kept of the event then.
#[tokio::test]
async fn n24_a_full_inbox_and_a_database_that_is_down_are_503() {
    let fixture = Fixture::new().await;
    let settings = ReceiverSettings::default().rows_max(2).count_every(Duration::from_millis(50));
    let url = serve(inbound(&fixture, settings)).await;
    for id in ["e-1", "e-2"] {
        assert_eq!(send(&url, id, 1).await.0, 202);
    }
    assert_eq!(send(&url, "e-3", 1).await, Said(503, Some("30".into()), "the inbox is full".into()));
    let count = "SELECT count(*) FROM inbox";
    assert_eq!(fixture.texts(count).await, ["2"]);
    work(&fixture).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(send(&url, "e-3", 1).await.0, 202);
    fixture.texts("ALTER TABLE inbox RENAME TO inbox_gone").await;
    let said = send(&url, "e-4", 1).await;
    assert_eq!((said.0, said.1.as_deref()), (503, Some("10")));
    fixture.texts("ALTER TABLE inbox_gone RENAME TO inbox").await;
    assert_eq!(fixture.texts(count).await, ["1"]);
    assert_eq!(send(&url, "e-4", 1).await.0, 202);
    fixture.drop().await;
}
