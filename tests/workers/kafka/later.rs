//! Delayed retries in order: what follows a record that waits, of its own key, waits behind it, whatever happens to the workers.

use sqlx::{AssertSqlSafe, query, query_as, query_scalar, raw_sql};

use super::{
    CUSTOMERS,
    fixture::{Client, Fixture, Ledger, SQLX, until, with_each_client},
};

/// Purchases with these prices fail until the table `mended` has a row. A purchase that is not the next of its customer is noted.
const REFUSAL: &str = "CREATE TABLE mended (at timestamptz);
    CREATE TABLE disorder (customer text, cents bigint, after bigint);
    GRANT SELECT ON mended TO idem_worker;
    GRANT SELECT, INSERT ON disorder TO idem_worker;
    CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE last bigint; BEGIN
        IF new.cents % 30 = 0 AND NOT EXISTS (SELECT FROM mended) THEN RAISE EXCEPTION 'the provider is down'; END IF;
        SELECT max(cents) FROM purchases WHERE customer = new.customer INTO last;
        IF coalesce(last, new.cents - {customers}) <> new.cents - {customers} THEN
            INSERT INTO disorder VALUES (new.customer, new.cents, last); END IF;
        RETURN new; END $$;
    CREATE TRIGGER judge BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION judge()";

/// Enough delays for all that happens here, and short ones first.
const LATER: [&str; 10] = [
    "--attempts",
    "5",
    "--backoff-first",
    "20ms",
    "--backoff-max",
    "100ms",
    "--batch",
    "20",
    "--retry-later",
    "1s,2s,5s,20s,60s,60s,60s,60s",
];

/// Of these purchases, those that fail or are behind one that does.
fn behind(numbers: std::ops::Range<i64>) -> i64 {
    let waits = |number: &i64| (0..=*number).any(|other| other % 30 == 0 && other % CUSTOMERS == *number % CUSTOMERS);
    i64::try_from(numbers.filter(waits).count()).expect("few")
}

impl Fixture {
    async fn rows(&self) -> (i64, i64) {
        let text = "SELECT count(*), count(DISTINCT idempotency_key) FROM idem.dead_letters WHERE due_at IS NOT NULL";
        query_as(text).fetch_one(self.pool()).await.expect("the rows")
    }

    /// The leases of dead workers run out, by the database's clock.
    async fn let_leases_end(&self) {
        let text = "UPDATE idem.dead_letters SET taken_at = taken_at - interval '2 minutes' WHERE taken_at IS NOT NULL";
        query(text).execute(self.pool()).await.expect("older leases");
    }

    async fn disorder(&self) -> Vec<String> {
        let text = "SELECT format('%s: %s after %s', customer, cents, after) FROM disorder";
        query_scalar(text).fetch_all(self.pool()).await.expect("the disorder")
    }

    async fn dies_at(&self, more: &[&str], armed: &str) {
        let ended = self.start_armed(more, armed).ended().await;
        assert!(!ended.status.success(), "{armed}: {}", ended.log);
        self.let_leases_end().await;
    }
}

/// Every key keeps its order across failures and later tries, under kills: with the row written and the record not settled, with rows taken, with
/// their effects committed, and at their end. Each record is one row at most, has one effect, and none is a dead letter.
async fn keys_keep_their_order(client: Client, more: &[&str]) {
    let fixture = Fixture::new("order", 2).await.client(client);
    let refusal = REFUSAL.replace("{customers}", &CUSTOMERS.to_string());
    raw_sql(AssertSqlSafe(refusal)).execute(fixture.pool()).await.expect("the refusal");
    let more = [&LATER[..], &["--reset", "earliest"], more].concat();
    fixture.send(0..200).await;
    for armed in ["put_aside=2+1*abort", "put_aside=6+1*abort"] {
        fixture.dies_at(&more, armed).await;
    }
    let worker = fixture.start(&more);
    fixture.until_settled().await;
    let waiting = behind(0..200);
    assert_eq!(fixture.rows().await, (waiting, waiting), "a record is one row");
    assert_eq!(fixture.purchases().await, 200 - waiting);
    worker.kill().await;
    for armed in ["due_taken=1+1*abort", "due_taken=0+1*abort"] {
        fixture.let_leases_end().await;
        fixture.dies_at(&more, armed).await;
    }
    let worker = fixture.start(&more);
    fixture.send(200..300).await;
    fixture.until_purchases(300 - behind(0..300)).await;
    worker.kill().await;
    fixture.let_leases_end().await;
    query("INSERT INTO mended VALUES (now())").execute(fixture.pool()).await.expect("the provider is back");
    // As if the time of each later try had come.
    let due = "UPDATE idem.dead_letters SET due_at = now() WHERE due_at > now()";
    query(due).execute(fixture.pool()).await.expect("later tries now");
    for armed in ["due_ended=0+1*abort", "commit_ok=2+1*abort"] {
        fixture.dies_at(&more, armed).await;
    }
    let worker = fixture.start(&more);
    fixture.send(300..400).await;
    fixture.until_purchases(400).await;
    until("the end of the rows", async || fixture.rows().await.0 == 0).await;
    fixture.until_settled().await;
    assert!(worker.stop().await.status.success());
    assert_eq!(fixture.ledger().await, Ledger::of(0..400));
    assert_eq!(fixture.disorder().await, Vec::<String>::new());
    assert!(fixture.dead_letters().await.is_empty(), "{:?}", fixture.dead_letters().await);
    let waits: bool = query_scalar("SELECT coalesce(bool_or(waits), false) FROM idem.controls")
        .fetch_one(fixture.pool())
        .await
        .expect("the mark");
    assert!(!waits, "a claim asks nothing any more");
    fixture.remove().await;
}

async fn records_wait_in_order_under_kills(client: Client) {
    keys_keep_their_order(client, &[]).await;
}

with_each_client!(records_wait_in_order_under_kills);

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_set_based_handler_wait_in_order_under_kills() {
    keys_keep_their_order(SQLX, &["--batch-handler"]).await;
}
