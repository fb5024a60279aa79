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

/// N19: the state of a consumer has the slots that no worker holds while a message waits for a minute, and a message that waits for five.
async fn the_state_has_the_inbox<S: InboxStore>(
    store: Arc<S>,
    idem: &dyn Fn(&[&str]) -> Answer,
    age: impl AsyncFn(u32),
) {
    let commands: [&[&str]; 3] = [&["doctor"], &["stuck"], &["consumers", "list"]];
    let says = |part: &str| {
        let said = commands.map(|words| idem(words).out);
        let with = said.iter().filter(|said| said.contains(part)).count();
        assert!(with == 0 || with == said.len(), "the commands disagree on {part:?}: {said:#?}");
        assert!(!said.iter().any(|said| said.contains(PAYLOAD)), "{said:#?}");
        with > 0
    };
    let inbox = store.inbox();
    let open = inbox.open(&ConsumerName::new("orders").unwrap(), None, 4).await.unwrap();
    fill(&store).await;
    let (unheld, behind) = ("no worker holds 4 slots of it", "the oldest message of the inbox is not handled");
    assert!(!says(unheld), "a worker may just be starting");
    age(2).await;
    assert!(says(unheld) && !says(behind));
    let held = inbox.hold_slots(open.id, "worker", Duration::from_secs(60), true).await.unwrap();
    assert_eq!(held.len(), 4);
    assert!(!says(unheld) && !says(behind), "all slots are held, and nothing waits for long");
    age(4).await;
    assert!(says(behind) && !says(unheld));
    let held: Vec<_> = held.iter().map(|granted| granted.held).collect();
    inbox.release_slots(open.id, "worker", &held).await.unwrap();
}

#[tokio::test]
async fn n19_the_state_has_the_inbox_on_postgres() {
    let fixture = Fixture::new().await;
    let idem = |words: &[&str]| fixture.idem_with(words);
    let age = async |minutes: u32| {
        fixture.run(&format!("UPDATE inbox SET received_at = received_at - interval '{minutes} minutes'")).await;
    };
    the_state_has_the_inbox(Arc::new(fixture.store.clone()), &idem, age).await;
    fixture.drop().await;
}

#[tokio::test]
async fn n19_the_state_has_the_inbox_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let age = async |minutes: u32| {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            let statement = format!("UPDATE idem_inbox SET received_at = received_at - {minutes} * 60000000");
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
        };
        the_state_has_the_inbox(store, idem, age).await;
    })
    .await;
}
