//! `idem consumers`.

use idem_core::{
    ConsumerName, Store as _, Tenant,
    store::{Bookkeeping as _, ControlState},
};
use idem_testkit::Decide as _;

use crate::fixture::{Fixture, orders};

#[tokio::test]
async fn a_pause_is_what_workers_read_until_it_is_resumed() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture.idem("consumers pause orders").refused("--reason");
    fixture.idem("consumers pause ordres --reason x").refused("no consumer \"ordres\"");
    fixture.idem("consumers pause orders --reason ledger-is-down").ok();
    let control = fixture.store.bookkeeping().control(orders()).await.unwrap();
    assert_eq!(
        (control.state, control.by.as_str(), control.reason.as_str()),
        (ControlState::Paused, "ada", "ledger-is-down")
    );
    let listed = fixture.idem("consumers list --json").json();
    let consumer = &listed["consumers"][0];
    assert_eq!(
        (&consumer["consumer"], &consumer["state"], &consumer["by"]),
        (&"orders".into(), &"paused".into(), &"ada".into())
    );
    fixture.idem("consumers resume orders").ok();
    assert_eq!(fixture.store.bookkeeping().control(orders()).await.unwrap().state, ControlState::Running);
    assert_eq!(fixture.trail().await, ["ada pause ledger-is-down", "ada resume"]);
    fixture.drop().await;
}

#[tokio::test]
async fn a_renamed_consumer_keeps_its_records() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture.idem("consumers rename orders purchases").refused("give --yes");
    fixture.idem("consumers rename orders orders --yes").refused("already");
    assert!(fixture.idem("consumers rename orders purchases --yes").ok().contains("--consumer purchases"));
    fixture.idem("consumers rename orders other --yes").refused("no consumer \"orders\"");
    let builder = idem_core::DedupConsumer::builder(fixture.store.clone(), "purchases");
    let consumer =
        builder.effects(idem_core::Effects::InTransaction).handler(crate::fixture::Accepting(Default::default()));
    let decisions = consumer.build().unwrap().decisions(vec![crate::fixture::message("order-1")]).await.unwrap();
    assert!(decisions[0].is_skipped());
    assert_eq!(fixture.trail().await, ["ada rename orders to purchases"]);
    fixture.drop().await;
}

#[tokio::test]
async fn a_consumer_that_was_rebound_keeps_its_records_and_takes_another_handler() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    let builder = idem_core::DedupConsumer::builder(fixture.store.clone(), "orders").handler_name("refunds");
    let consumer =
        builder.effects(idem_core::Effects::InTransaction).handler(crate::fixture::Accepting(Default::default()));
    let consumer = consumer.build().unwrap();
    let again = || consumer.decisions(vec![crate::fixture::message("order-1")]);
    fixture.run("UPDATE consumers SET handler = 'orders'").await;
    let refused = again().await.unwrap_err().to_string();
    assert!(refused.contains("idem consumers rebind"), "{refused}");
    fixture.idem("consumers rebind orders").refused("give --yes");
    fixture.idem("consumers rebind ordres --yes").refused("no consumer \"ordres\"");
    fixture.idem("consumers rebind orders --yes").ok();
    assert!(again().await.unwrap()[0].is_skipped());
    let trail = fixture.trail().await;
    assert!(trail.len() == 1 && trail[0].contains("rebind was bound to , handler orders"), "{trail:?}");
    fixture.drop().await;
}

/// J98: only tenants that nothing refers to are removed, and one that comes back has the number that it had.
#[tokio::test]
async fn j98_tenants_that_nothing_refers_to_are_pruned() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    let orders = ConsumerName::new("orders").unwrap();
    let mut scopes = Vec::new();
    for tenant in ["acme", "globex", "hooli"] {
        let tenant = Tenant::new(tenant).unwrap();
        scopes.push(fixture.store.bookkeeping().scope(&orders, &tenant).await.unwrap());
    }
    let (acme, globex) = (scopes[0].0, scopes[1].0);
    fixture
        .run(&format!(
            "INSERT INTO processed_messages (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by, expires_at)
            SELECT {globex}, key_id, idempotency_key, payload_hash, hash_id, processed_by, expires_at FROM processed_messages;
            INSERT INTO controls (consumer, state) VALUES ({acme}, 'running'), ({}, 'halted')",
            scopes[2].0
        ))
        .await;
    // The row with the lowest number holds the binding, whichever that is.
    let first = fixture.texts("SELECT tenant FROM consumers ORDER BY id LIMIT 1").await.remove(0);
    fixture.idem("consumers prune orders").refused("give --yes");
    fixture.idem("consumers prune ordres --yes").refused("no consumer \"ordres\"");
    fixture.idem("consumers prune orders --yes").ok();
    let left = fixture.texts("SELECT tenant FROM consumers ORDER BY tenant").await;
    let kept: Vec<_> =
        ["", "acme", "globex", "hooli"].into_iter().filter(|name| *name != "acme" || first == "acme").collect();
    assert_eq!(left, kept);
    assert_eq!(fixture.store.bookkeeping().scope(&orders, &Tenant::new("acme").unwrap()).await.unwrap().0, acme);
    fixture.drop().await;
}

/// Few records are counted; of many the server's statistics know about how many there are.
#[tokio::test]
async fn a_list_says_about_how_many_records_there_are_without_counting_them() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1", "order-2"]).await;
    fixture
        .run(
            "INSERT INTO consumers (name, tenant, bound_to, handler, key_rules, hash_rules, retention)
                 VALUES ('bulk', '', '', '', '', '', interval '7 d'), ('kept', '', '', '', '', '', NULL);
             INSERT INTO processed_messages (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by,
                     processed_at, expires_at)
                 SELECT (SELECT id FROM consumers WHERE name = 'bulk'), key_id('bulk-' || n), 'bulk-' || n, sha256(''),
                     (SELECT id FROM payload_hashes LIMIT 1), 1, now() - interval '6 d', now() + interval '1 d'
                 FROM generate_series(1, 12000) AS n;
             INSERT INTO processed_messages (consumer, key_id, idempotency_key, payload_hash, hash_id, processed_by,
                     processed_at, expires_at)
                 VALUES ((SELECT id FROM consumers WHERE name = 'kept'), key_id('kept-1'), 'kept-1', sha256(''),
                     (SELECT id FROM payload_hashes LIMIT 1), 1, '2026-01-02T03:04:05Z', 'infinity')",
        )
        .await;
    let records = || fixture.idem("consumers list --json").json()["records"].as_array().unwrap().clone();
    let about = records()[0]["records_about"].as_i64().unwrap();
    assert!(about > 10_000, "{about}: more than are counted, with and without statistics");
    fixture.run("ANALYZE processed_messages").await;
    let [bulk, kept, orders] = records().try_into().unwrap();
    assert_eq!(
        (&bulk["consumer"], &bulk["records_about"], &bulk["last_hour"]),
        (&"bulk".into(), &12_000.into(), &0.into())
    );
    assert!(bulk["oldest"].is_string() && bulk["next_expiry"].is_string(), "{bulk}");
    assert_eq!((&orders["records_about"], &orders["last_hour"]), (&2.into(), &2.into()), "{orders}");
    assert!(orders["oldest"].is_string() && orders["next_expiry"].is_string(), "{orders}");
    // Records kept for ever never expire, and no index gives their rate.
    assert_eq!((&kept["records_about"], &kept["next_expiry"], &kept["last_hour"]), (&1.into(), &().into(), &().into()));
    assert!(kept["oldest"].as_str().unwrap().starts_with("2026-01-02T"), "{kept}");
    fixture.drop().await;
}
