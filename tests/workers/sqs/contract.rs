//! A worker on a queue without faults.

use super::{
    fixture::{Fixture, Ledger, count},
    purchase::Purchase,
    queue::{Queue, Server, on_both_servers},
};

on_both_servers!(
    every_purchase_is_in_the_ledger_once,
    what_cannot_be_handled_is_set_aside_with_its_reason,
    f6_a_group_keeps_its_order_through_failures,
    envelopes_are_opened_on_request,
);

/// Every purchase once, whichever handler writes it, and a second send changes nothing.
async fn every_purchase_is_in_the_ledger_once(server: Server) {
    let purchases = count(5_000, 500);
    let fixture = Fixture::on(&server, "once", "").await;
    fixture.send(0..purchases).await;
    let first = fixture.drain(&[]).await;
    assert_eq!(first.count("processed"), u64::try_from(purchases).expect("a count"));
    fixture.send(0..purchases).await;
    let second = fixture.drain(&["--batch-handler"]).await;
    assert_eq!((second.count("processed"), second.count("duplicates")), (0, first.count("processed")));
    fixture.send(purchases..2 * purchases).await;
    assert_eq!(fixture.drain(&["--batch-handler"]).await.count("processed"), first.count("processed"));
    assert_eq!(fixture.ledger().await, Ledger::of(0..2 * purchases));
    assert_eq!(fixture.queue.counts().await, [0, 0, 0]);
    fixture.remove().await;
}

/// X, R-malformed: conflicts and malformed messages are set aside with their reasons, published too where asked for, and
/// harm no neighbour.
async fn what_cannot_be_handled_is_set_aside_with_its_reason(server: Server) {
    let fixture = Fixture::on(&server, "aside", "").await;
    let aside = Queue::create(&server, &format!("{}-aside", fixture.name)).await;
    fixture.send(0..50).await;
    assert_eq!(fixture.drain(&[]).await.count("processed"), 50);
    fixture.queue.send([Purchase { cents: 999_999, ..Purchase::number(7) }]).await;
    let texts = [
        r#"{"customer":"1","day":"1997-01-01","cds":1,"cents":1}"#,
        "not json",
        r#"{"idempotencykey":"","customer":"1","day":"1997-01-01","cds":1,"cents":1}"#,
    ];
    fixture.queue.send_texts(texts.map(|text| (text.to_owned(), "1".to_owned())).to_vec()).await;
    fixture.send(50..100).await;
    let ended = fixture.drain(&["--dead-letter-queue-url", &aside.url]).await;
    assert_eq!((ended.count("processed"), ended.count("conflicts"), ended.count("dead_lettered")), (50, 1, 4));
    let reasons: Vec<(String, i64)> = fixture.dead_letters().await.into_iter().collect();
    let expected = [("conflict", 1), ("malformed", 2), ("missing-key", 1)];
    assert_eq!(reasons, expected.map(|(reason, count)| (reason.to_owned(), count)));
    let mut published: Vec<String> = aside.values("idem-reason").await.into_iter().flatten().collect();
    published.sort_unstable();
    assert_eq!(published, ["conflict", "malformed", "malformed", "missing-key"], "each is published once");
    assert_eq!(fixture.ledger().await, Ledger::of(0..100));
    assert_eq!(fixture.queue.counts().await, [0, 0, 0]);
    aside.delete().await;
    fixture.remove().await;
}

/// F6: a message that fails holds up its own group, which goes on in its order once it can be handled.
async fn f6_a_group_keeps_its_order_through_failures(server: Server) {
    let fixture = Fixture::on(&server, "groups", ".fifo").await;
    // For its tables.
    fixture.drain(&[]).await;
    let refusal = "CREATE TABLE refused (customer text); INSERT INTO refused VALUES ('00003'); \
                   GRANT SELECT ON refused TO idem_worker; \
                   CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                       IF new.cents % 1000 = 103 AND EXISTS (SELECT FROM refused) THEN RAISE EXCEPTION 'not today'; END IF; \
                       RETURN new; END $$; \
                   CREATE TRIGGER refuse BEFORE INSERT ON purchases FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refusal).execute(fixture.pool()).await.expect("a table that refuses a purchase");
    // Numbers 3, 103, 203 and 303 are one customer's, and 103 fails.
    let customers = |numbers: std::ops::Range<i64>| numbers.filter(|number| (1..6).contains(&(number % 100)));
    fixture.queue.send(customers(0..400).map(Purchase::number)).await;
    let worker = fixture.start(&["--attempts", "1000"]);
    fixture.until_purchases(17).await;
    let text = "SELECT cents FROM purchases WHERE customer = '00003'";
    let written: Vec<i64> = sqlx::query_scalar(text).fetch_all(fixture.pool()).await.expect("the purchases");
    assert_eq!(written, [3], "nothing of the group overtakes");
    worker.stop().await;
    sqlx::raw_sql("DELETE FROM refused").execute(fixture.pool()).await.expect("a new day");
    assert_eq!(fixture.drain(&[]).await.count("dead_lettered"), 0);
    for customer in 1..6 {
        let text = "SELECT cents FROM purchases WHERE customer = $1 ORDER BY at, ctid";
        let query = sqlx::query_scalar(text).bind(format!("{customer:05}"));
        let written: Vec<i64> = query.fetch_all(fixture.pool()).await.expect("the purchases");
        assert_eq!(written, (0..4).map(|number| number * 100 + customer).collect::<Vec<_>>());
    }
    fixture.remove().await;
}

/// The envelopes of SNS and EventBridge around a purchase are opened before it is handled.
async fn envelopes_are_opened_on_request(server: Server) {
    for (flag, wrap) in [
        (
            "sns",
            (|text| serde_json::json!({ "Type": "Notification", "MessageId": "1", "Message": text })) as fn(_) -> _,
        ),
        ("eventbridge", |text: String| {
            let detail: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            serde_json::json!({ "id": "1", "detail-type": "purchase", "source": "shop", "detail": detail })
        }),
    ] {
        let fixture = Fixture::on(&server, flag, "").await;
        let wrapped: Vec<_> =
            (0..20).map(|number| (wrap(Purchase::number(number).json()).to_string(), String::new())).collect();
        fixture.queue.send_texts(wrapped).await;
        assert_eq!(fixture.drain(&["--envelope", flag]).await.count("processed"), 20, "{flag}");
        assert_eq!(fixture.ledger().await, Ledger::of(0..20));
        fixture.remove().await;
    }
}
