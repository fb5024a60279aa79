//! The operators' commands for messages that wait in an inbox, on both databases.

use std::{sync::Arc, time::Duration};

use idem_core::{
    ConsumerName, IdempotencyKey,
    inbox::{InboxStore, NewInboxRow},
    message::OrderingKey,
};

use crate::{
    answers::on_sqlite,
    fixture::{Answer, Fixture, PAYLOAD, message},
};

/// Three messages in the inbox of `orders`, of which two have the key `order-1`.
async fn fill<S: InboxStore>(store: &Arc<S>) {
    let inbox = store.inbox();
    let open = inbox.open(&ConsumerName::new("orders").unwrap(), Some("kafka:c/orders"), 4).await.unwrap();
    let row = |key: &str| {
        let message = message(key).with_ordering_key(OrderingKey::new("customer"));
        NewInboxRow::new(message, Some(IdempotencyKey::new(key).unwrap()), open.slots)
    };
    inbox.put(open.id, &[row("order-1"), row("order-1"), row("order-2")]).await.unwrap();
}

/// N20, S4: erasing a key removes what waits under it, and says so before it does; the trail has the act, and cleanup removes nothing of the
/// rest.
async fn a_waiting_message_goes_with_its_key<S: InboxStore>(
    store: Arc<S>,
    idem: &dyn Fn(&[&str]) -> Answer,
    keys: impl AsyncFn() -> Vec<String>,
) {
    fill(&store).await;
    let asked = idem(&["erase", "order-1", "--reason", "art-17"]);
    assert_eq!(asked.status, 2, "{asked:?}");
    assert!(asked.err.contains("removes 2 messages that wait in the inbox"), "{asked:?}");
    assert_eq!(keys().await, ["order-1", "order-1", "order-2"]);
    let said = idem(&["erase", "order-1", "--reason", "art-17", "--yes"]).ok();
    assert!(said.contains("2 rows erased"), "{said}");
    assert_eq!(keys().await, ["order-2"]);
    assert!(idem(&["erase", "order-1", "--reason", "art-17", "--yes"]).ok().contains("0 rows hold this key"));
    idem(&["cleanup"]).ok();
    assert_eq!(keys().await, ["order-2"], "what waits is not cleaned up");
}

#[tokio::test]
async fn n20_a_waiting_message_goes_with_its_key_on_postgres() {
    let fixture = Fixture::new().await;
    let idem = |words: &[&str]| fixture.idem_with(words);
    let keys = async || fixture.texts("SELECT idempotency_key FROM inbox ORDER BY number").await;
    a_waiting_message_goes_with_its_key(Arc::new(fixture.store.clone()), &idem, keys).await;
    let trail = fixture.trail().await;
    assert!(trail.iter().any(|line| line.starts_with("ada erase key id ") && line.ends_with(": art-17")), "{trail:?}");
    fixture.drop().await;
}

#[tokio::test]
async fn n20_a_waiting_message_goes_with_its_key_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let all = async |text: &str| -> Vec<String> {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            sqlx::query_scalar(sqlx::AssertSqlSafe(text.to_owned())).fetch_all(&mut connection).await.unwrap()
        };
        let keys = async || all("SELECT idempotency_key FROM idem_inbox ORDER BY number").await;
        a_waiting_message_goes_with_its_key(store, idem, keys).await;
        let trail = all("SELECT who || ' ' || details FROM idem_audit WHERE action = 'erase'").await;
        assert!(
            matches!(&trail[..], [line] if line.starts_with("ada key id ") && line.ends_with(": art-17")),
            "{trail:?}"
        );
    })
    .await;
}

/// N19: `doctor` has the slots that no worker holds while messages wait in them, and messages that wait for long.
async fn doctor_looks_at_inboxes<S: InboxStore>(
    store: Arc<S>,
    idem: &dyn Fn(&[&str]) -> Answer,
    age: impl AsyncFnOnce(),
) {
    let findings = || idem(&["doctor"]).out;
    let (open, held) = {
        let inbox = store.inbox();
        let open = inbox.open(&ConsumerName::new("orders").unwrap(), None, 4).await.unwrap();
        assert!(!findings().contains("inbox"), "an empty inbox needs no worker");
        fill(&store).await;
        let said = findings();
        assert!(
            said.contains("of the 4 slots of the inbox of orders no worker holds 4") && !said.contains("oldest"),
            "{said}"
        );
        (open.id, inbox.hold_slots(open.id, "worker", Duration::from_secs(60), true).await.unwrap())
    };
    assert_eq!(held.len(), 4);
    assert!(!findings().contains("inbox"), "all slots are held, and nothing waits for long");
    age().await;
    let said = findings();
    assert!(said.contains("the oldest of 3 messages in the inbox of orders waits for"), "{said}");
    assert!(!said.contains(PAYLOAD), "{said}");
    let held: Vec<_> = held.iter().map(|granted| granted.held).collect();
    store.inbox().release_slots(open, "worker", &held).await.unwrap();
}

#[tokio::test]
async fn n19_doctor_looks_at_inboxes_on_postgres() {
    let fixture = Fixture::new().await;
    let idem = |words: &[&str]| fixture.idem_with(words);
    let age = async || fixture.run("UPDATE inbox SET received_at = received_at - interval '6 minutes'").await;
    doctor_looks_at_inboxes(Arc::new(fixture.store.clone()), &idem, age).await;
    fixture.drop().await;
}

#[tokio::test]
async fn n19_doctor_looks_at_inboxes_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let age = async || {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            let statement = "UPDATE idem_inbox SET received_at = received_at - 360000000";
            sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
        };
        doctor_looks_at_inboxes(store, idem, age).await;
    })
    .await;
}
