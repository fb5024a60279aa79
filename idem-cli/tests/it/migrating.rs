//! `docs/guide/migrating.md`: the rows of a hand-written table.

use crate::fixture::Fixture;
use idem_testkit::Decide as _;

const GUIDE: &str = include_str!("../../../docs/guide/migrating.md");

/// The guide's statement copies each row once, and a redelivery is then a duplicate by its key, with any payload.
#[tokio::test]
async fn the_guides_statement_makes_old_rows_duplicates() {
    let fixture = Fixture::new().await;
    fixture
        .run(
            "CREATE TABLE old_messages (message_id text, consumer_name text, processed_at timestamptz NOT NULL, expires_at timestamptz,
                 PRIMARY KEY (message_id, consumer_name));
             INSERT INTO old_messages SELECT 'order-' || n, 'orders', now() - interval '1 h', now() + interval '1 d'
                 FROM generate_series(1, 1000) AS n;
             INSERT INTO old_messages VALUES ('order-0', 'other', now(), now()), (E'order\\t1', 'orders', now(), NULL),
                 ('order-2000', 'orders', now(), NULL)",
        )
        .await;
    let copy = GUIDE.split_once("WITH scope AS").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let copy = format!("WITH scope AS{copy}").replace("idem.", "").replace("public.processed_messages", "old_messages");
    fixture.run(&copy).await;
    // The guide has the statement run again once the old consumer has stopped: rows that are there stay.
    fixture.run("DELETE FROM processed_messages WHERE idempotency_key LIKE 'order-9%'").await;
    fixture.run(&copy).await;
    assert_eq!(
        fixture.texts("SELECT count(*) FROM processed_messages WHERE key_id = key_id(idempotency_key)").await,
        ["1001"]
    );
    assert_eq!(fixture.texts("SELECT count(*) FROM processed_messages WHERE expires_at = 'infinity'").await, ["1"]);
    assert_eq!(fixture.deliver(&["order-1", "order-999", "order-2000", "order-0"]).await, "DDDP");
    assert!(fixture.idem("show order-2").ok().contains("whatever its payload"));
    let other = |key| idem_core::Message::new("another payload").with_header("idempotencykey", key);
    let decisions = fixture.consumer().decisions(vec![other("order-2"), other("order-0")]).await.unwrap();
    assert!(decisions[0].is_skipped(), "never a conflict: {decisions:?}");
    // A key that was handled here has a hash, so another payload is a conflict.
    assert!(matches!(decisions[1], idem_core::Decision::Conflict(..)), "{decisions:?}");
    fixture.drop().await;
}
