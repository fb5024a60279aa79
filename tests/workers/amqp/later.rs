//! Delayed retries: what fails for a while is a row until it goes well, whatever happens to the workers.

use sqlx::{AssertSqlSafe, query, query_as, raw_sql};

use super::{
    fixture::{Fixture, Ledger, until},
    worker::Worker,
};

/// Every fifth purchase fails until this table has a row.
const REFUSAL: &str = "CREATE TABLE mended (at timestamptz);
    GRANT SELECT ON mended TO idem_worker;
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF new.cents % 5 = 0 AND NOT EXISTS (SELECT FROM mended) THEN RAISE EXCEPTION 'the provider is down'; END IF;
        RETURN new; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION refuse()";

/// Enough delays for all that happens here, and short ones first.
const LATER: [&str; 6] = ["--attempts", "2", "--batch", "20", "--retry-later", "1s,2s,5s,10s,10s,10s,10s,10s"];

impl Fixture {
    /// A worker that runs one message at a time, so that it dies with no other one.
    fn with_one_lane(&self, armed: &str) -> Worker {
        let mut arguments = self.arguments(&LATER);
        let lanes = arguments.iter().position(|argument| argument == "--lanes").expect("a number of lanes");
        arguments[lanes + 1] = "1".to_owned();
        Worker::start(env!("CARGO_BIN_EXE_amqp-rig"), &arguments, &[("IDEM_FAILPOINTS", armed)], &self.next_log())
    }

    async fn dies_at(&self, armed: &str) {
        let ended = self.with_one_lane(armed).ended().await;
        assert!(!ended.status.success(), "{armed}: {}", ended.log);
        self.let_leases_end().await;
    }

    /// The rows, their keys, and the most attempts.
    async fn rows(&self) -> (i64, i64, i32) {
        let text = "SELECT count(*), count(DISTINCT idempotency_key), coalesce(max(attempts), 0) FROM idem.dead_letters WHERE due_at IS NOT NULL";
        query_as(text).fetch_one(self.pool()).await.expect("the rows")
    }

    /// The leases of dead workers run out, by the database's clock.
    async fn let_leases_end(&self) {
        let text = "UPDATE idem.dead_letters SET taken_at = taken_at - interval '2 minutes' WHERE taken_at IS NOT NULL";
        query(text).execute(self.pool()).await.expect("older leases");
    }
}

/// Rows that wait outlive every death: between a row's commit and its message's settlement, with rows taken, with rows running, and at their
/// end. Each message is one row, has one effect, and none is a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_for_a_while_is_tried_later_under_kills() {
    let fixture = Fixture::new("later").await;
    raw_sql(AssertSqlSafe(REFUSAL)).execute(fixture.pool()).await.expect("the refusal");
    fixture.send(0..200).await;
    for armed in ["put_aside=2+1*abort", "put_aside=5+1*abort"] {
        fixture.dies_at(armed).await;
    }
    let worker = fixture.with_one_lane("");
    until("a row of each that fails", async || fixture.rows().await.0 == 40 && fixture.purchases().await == 160).await;
    assert_eq!(fixture.rows().await.1, 40, "a message is one row");
    assert!(worker.stop().await.status.success());
    for armed in ["due_taken=1+1*abort", "due_taken=0+1*abort"] {
        fixture.dies_at(armed).await;
    }
    // A process that ends with a message in its last attempt at once leaves a dead letter, so these go well.
    let worker = fixture.start(&LATER);
    fixture.send((200..400).filter(|number| number % 5 > 0)).await;
    fixture.until_purchases(200).await;
    worker.kill().await;
    fixture.let_leases_end().await;
    let worker = fixture.start(&LATER);
    fixture.send((200..400).filter(|number| number % 5 == 0)).await;
    // Not what the broker says of its queue, which it counts every five seconds.
    until("all that goes well, and rows of the others", async || {
        (fixture.rows().await.0, fixture.purchases().await) == (80, 320)
    })
    .await;
    until("later tries", async || fixture.rows().await.2 > 3).await;
    query("INSERT INTO mended VALUES (now())").execute(fixture.pool()).await.expect("the provider is back");
    fixture.until_purchases(321).await;
    worker.kill().await;
    for armed in ["commit_ok=1+1*abort", "due_ended=1+1*abort"] {
        fixture.let_leases_end().await;
        fixture.dies_at(armed).await;
    }
    let worker = fixture.start(&LATER);
    fixture.until_purchases(400).await;
    until("the end of the rows", async || fixture.rows().await.0 == 0).await;
    fixture.until_settled().await;
    assert!(worker.stop().await.status.success());
    assert_eq!(fixture.ledger().await, Ledger::of(0..400));
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    fixture.remove().await;
}
