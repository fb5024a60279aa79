//! `idem import`: a hand-written table's rows.

use crate::fixture::{Fixture, message};
use idem_testkit::Decide as _;

const ROWS: usize = 100_000;

async fn with_inbox() -> Fixture {
    let fixture = Fixture::new().await;
    fixture
        .run(&format!(
            "CREATE TABLE inbox (message_id text, consumer_name text, processed_at timestamptz, expires_at timestamptz,
                 PRIMARY KEY (message_id, consumer_name));
             INSERT INTO inbox SELECT 'order-' || n, 'orders-v1', now() - interval '1 h', now() + interval '1 d'
                 FROM generate_series(1, {ROWS}) AS n;
             INSERT INTO inbox VALUES ('order-0', 'other', now(), now()), (E'order\\t1', 'orders-v1', now(), NULL)"
        ))
        .await;
    fixture
}

fn arguments(fixture: &Fixture, more: &str) -> String {
    let table = format!("{}.inbox", fixture.schema);
    format!(
        "import --from {table} --consumer orders --consumer-column consumer_name --named orders-v1 --expires-column expires_at {more}"
    )
}

/// Each row is a record, and its redelivery a duplicate by its key, with any payload. A run that was broken off is
/// begun again.
#[tokio::test]
async fn a_hundred_thousand_rows_are_brought_over_and_are_duplicates() {
    let fixture = with_inbox().await;
    let counted = fixture.idem(&arguments(&fixture, "--dry-run")).ok();
    assert!(counted.contains("100001 rows") && counted.contains("1 of them without a valid key"), "{counted}");
    fixture.idem(&arguments(&fixture, "")).refused("This imports 100001 rows");
    assert_eq!(fixture.texts("SELECT count(*) FROM processed_messages").await, ["0"]);
    let answer = fixture.idem(&arguments(&fixture, "--yes")).ok();
    assert!(answer.contains("100000 imported, 0 were there already, 1 have no valid key"), "{answer}");
    // As if it had been interrupted: rows that are there stay.
    fixture.run("DELETE FROM processed_messages WHERE idempotency_key LIKE 'order-9%'").await;
    let answer = fixture.idem(&arguments(&fixture, "--yes")).ok();
    assert!(answer.contains("11111 imported, 88889 were there already"), "{answer}");
    let wrong = "SELECT count(*) FROM processed_messages WHERE key_id <> key_id(idempotency_key)";
    assert_eq!(fixture.texts(wrong).await, ["0"]);
    assert_eq!(fixture.deliver(&["order-1", "order-77777", "order-0"]).await, "DDP");
    assert!(fixture.idem("show order-2").ok().contains("whatever its payload"));
    let other = idem_core::Message::new("another payload").with_header("idempotencykey", "order-2");
    let decisions = fixture.consumer().decisions(vec![other]).await.unwrap();
    assert!(decisions[0].is_skipped(), "never a conflict: {decisions:?}");
    let trail = fixture.trail().await;
    assert_eq!(trail.iter().filter(|line| line.starts_with("ada import from")).count(), 2, "{trail:?}");
    // A key processed here has a hash, so another payload is a conflict as ever.
    let conflict = idem_core::Message::new("another payload").with_header("idempotencykey", "order-0");
    let decisions = fixture.consumer().decisions(vec![message("order-0"), conflict]).await.unwrap();
    assert!(matches!(decisions[1], idem_core::Decision::Conflict(..)), "{decisions:?}");
    fixture.drop().await;
}

/// S6: names of tables and columns are taken as names, with any characters in them.
#[tokio::test]
async fn s6_what_is_no_table_or_column_is_refused() {
    let fixture = with_inbox().await;
    fixture.idem("import --from nowhere.at_all --consumer orders --yes").refused("there is no table");
    let from = format!("import --from {}.inbox --consumer orders --yes", fixture.schema);
    fixture
        .idem_with(&[&*from.split_whitespace().collect::<Vec<_>>(), &["--key-column", "x\" OR true --"]].concat())
        .refused("has no column");
    fixture.idem(&format!("{from} --named x")).refused("--consumer-column");
    assert_eq!(fixture.texts("SELECT count(*) FROM processed_messages").await, ["0"]);
    fixture.drop().await;
}
