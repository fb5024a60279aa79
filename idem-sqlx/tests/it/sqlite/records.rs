//! The records in the file, and how they treat keys, payloads and clocks.

use idem_testkit::Decide as _;
use std::time::{Duration, SystemTime};

use idem_core::{
    Decision, ErrorClass, IdempotencyKey, Message, Retention, Store,
    cleanup::{Cleanup, CleanupSettings},
    dead_letter::Reason,
    hash::PayloadHash,
    store::{Bookkeeping, Claim, Claimed, RunId, UnitOfWork, UnitOptions},
};
use idem_sql::KEY_ID_VECTORS;

use super::{Scripted, builder, consumer, fresh, message, messages, names, registration};

fn options() -> UnitOptions {
    let second = Duration::from_secs(1);
    UnitOptions::new(RunId(7), 3, second, 30 * second)
}

/// The golden vectors of every store: a key's id in the file is the one that Rust and PostgreSQL compute.
#[tokio::test(flavor = "multi_thread")]
async fn key_ids_are_the_golden_vectors() {
    let (file, store) = fresh().await;
    let registered = store.bookkeeping().register(&registration()).await.unwrap();
    let claims: Vec<Claim> = vectors()
        .filter_map(|(key, _)| IdempotencyKey::new(key).ok())
        .map(|key| {
            Claim::new(registered.scope, key, PayloadHash::of(b"1"), registered.hash_rules[0], Retention::Forever)
        })
        .collect();
    assert!(claims.len() > 50);
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options()).await.unwrap();
    assert!(unit.claim(&claims).await.unwrap().iter().all(|claimed| *claimed == Claimed::Inserted));
    let (lane, committed) = unit.commit().await;
    committed.unwrap();
    let stored = file.ask("SELECT idempotency_key || char(9) || lower(hex(key_id)) FROM idem_processed_messages").await;
    for claim in &claims {
        let id = vectors().find(|(key, _)| *key == claim.key.as_str()).unwrap().1.replace('-', "");
        assert!(stored.contains(&format!("{}\t{id}", claim.key.as_str())), "{}", claim.key);
    }
    // And what was stored is read back under the same ids, in the order of the claims.
    let mut unit = store.begin(lane.unwrap(), options()).await.unwrap();
    assert!(unit.claim(&claims).await.unwrap().iter().all(|claimed| *claimed == Claimed::NotInserted));
    let found = unit.read(&claims).await.unwrap();
    for (claim, recorded) in claims.iter().zip(found) {
        let recorded = recorded.unwrap();
        assert_eq!((recorded.key, recorded.hash), (claim.key.clone(), claim.hash));
        assert_eq!((recorded.processed_by, recorded.expires_at), (RunId(7), None));
    }
    unit.rollback().await.unwrap();
    assert_eq!(file.ask("SELECT run || '/' || lane FROM idem_units").await, ["7/3"]);
}

fn vectors() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEY_ID_VECTORS.lines().map(|line| line.split_once('\t').unwrap())
}

/// S6, D10: hostile keys are data; keys that only look alike are different; one key twice in a batch is one.
#[tokio::test(flavor = "multi_thread")]
async fn s6_hostile_keys_are_data() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    let keys = [
        "'; DROP TABLE idem_processed_messages; --",
        "\"}]' || (SELECT 1) || '",
        "a",
        "A",
        "a ",
        "\u{e4}",
        "a\u{308}",
        "1",
        "01",
        "1.0",
        "null",
        "[1,\"x\"]",
        "\\u0041",
        "\u{1f980}",
        &"k".repeat(255),
    ];
    let batch: Vec<Message> = keys.iter().chain(&keys).map(|key| message(key, "1")).collect();
    let decisions = consumer.decisions(batch).await.unwrap();
    assert_eq!(names(&decisions[..keys.len()]), vec!["processed"; keys.len()]);
    assert_eq!(names(&decisions[keys.len()..]), vec!["duplicate"; keys.len()]);
    let mut expected: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    expected.sort();
    let mut recorded = file.recorded().await;
    recorded.sort();
    assert_eq!(recorded, expected);
}

/// Another payload under a recorded key never runs, and learns by whom and when the key was used.
#[tokio::test(flavor = "multi_thread")]
async fn another_payload_is_a_conflict() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    let before = SystemTime::UNIX_EPOCH + Duration::from_micros(now_of(&file).await);
    let decisions = consumer.decisions(messages(&[("a", "paid"), ("a", "refunded"), ("b", "1")])).await.unwrap();
    assert_eq!(names(&decisions), ["processed", "conflict", "processed"]);
    let decisions = consumer.decisions(messages(&[("a", "refunded"), ("a", "paid")])).await.unwrap();
    assert_eq!(names(&decisions), ["conflict", "duplicate"]);
    let Decision::Conflict(recorded, _) = &decisions[0] else { panic!("{decisions:?}") };
    assert_eq!(recorded.hash, PayloadHash::of(b"paid"));
    assert!(recorded.processed_at >= before && recorded.expires_at.unwrap() > recorded.processed_at);
    assert_eq!(file.effects().await, ["a=paid", "b=1"]);
}

async fn now_of(file: &super::File) -> u64 {
    file.ask("SELECT CAST(CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS TEXT)").await[0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_batches_are_one_claim() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    let batch = || (0..500).map(|number| message(&format!("k{number}"), "1")).collect::<Vec<_>>();
    assert!(consumer.decisions(batch()).await.unwrap().iter().all(Decision::is_processed));
    assert!(consumer.decisions(batch()).await.unwrap().iter().all(Decision::is_skipped));
    assert_eq!(file.ask("SELECT CAST(count(*) AS TEXT) FROM idem_units").await, ["1"]);
    // Old and new mixed: only the old ones are duplicates.
    let mixed = (480..520).map(|number| message(&format!("k{number}"), "1")).collect();
    let decisions = consumer.decisions(mixed).await.unwrap();
    assert!(decisions[..20].iter().all(Decision::is_skipped) && decisions[20..].iter().all(Decision::is_processed));
    assert_eq!(file.effects().await.len(), 520);
}

/// An expired record counts until cleanup removes it; a record that is kept for ever stays, and so does a recent one.
#[tokio::test(flavor = "multi_thread")]
async fn cleanup_removes_only_what_has_expired() {
    let (file, store) = fresh().await;
    let short = builder(&store).handler(Scripted).retention(Retention::For(Duration::from_secs(60))).build().unwrap();
    short.decisions(messages(&[("old", "1"), ("fresh", "1")])).await.unwrap();
    let forever = builder(&store).handler(Scripted).retention(Retention::Forever).build().unwrap();
    forever.decisions(vec![message("kept", "1")]).await.unwrap();
    file.run(
        "UPDATE idem_processed_messages SET expires_at = 1 WHERE idempotency_key = 'old'; UPDATE idem_units SET at = 1",
    )
    .await;
    assert_eq!(names(&short.decisions(vec![message("old", "1")]).await.unwrap()), ["duplicate"]);
    let report = Cleanup::new(store.cleaner(), CleanupSettings::default()).unwrap().cycle().await.unwrap();
    assert_eq!(report.to_string(), "1 processed_messages, 2 units");
    assert_eq!(file.recorded().await, ["fresh", "kept"]);
    assert_eq!(names(&short.decisions(vec![message("old", "1")]).await.unwrap()), ["processed"]);
}

/// S61: no hash of another length is taken, and a record that is damaged all the same fails its own message.
#[tokio::test(flavor = "multi_thread")]
async fn s61_a_damaged_record_fails_its_own_message() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    let batch = || messages(&[("a", "1"), ("b", "1"), ("c", "1")]);
    assert_eq!(names(&consumer.decisions(batch()).await.unwrap()), ["processed"; 3]);
    let damage = "UPDATE idem_processed_messages SET payload_hash = x'00' WHERE idempotency_key = 'a'";
    let refused = sqlx::raw_sql(damage).execute(&mut file.connect().await).await.unwrap_err().to_string();
    assert!(refused.contains("CHECK"), "{refused}");
    file.run(&format!(
        "PRAGMA ignore_check_constraints = on; {damage};
         UPDATE idem_processed_messages SET idempotency_key = char(10) WHERE idempotency_key = 'b'"
    ))
    .await;
    let decisions = consumer.decisions(batch()).await.unwrap();
    for decision in &decisions[..2] {
        let Decision::Failed(failure) = decision else { panic!("{decision:?}") };
        assert!(failure.reason == Reason::KeyCollision && failure.text.contains("damaged"), "{}", failure.text);
    }
    assert_eq!(names(&decisions[2..]), ["duplicate"]);
}

/// B25: RAISE in a trigger of the application's says nothing about why: the message has all of its attempts, and its neighbours run.
#[tokio::test(flavor = "multi_thread")]
async fn b25_a_raise_of_the_applications_is_transient() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    file.run(
        "CREATE TRIGGER refuse BEFORE INSERT ON effects WHEN NEW.key = 'b' BEGIN SELECT RAISE(ABORT, 'not yet'); END",
    )
    .await;
    let batch = || messages(&[("a", "1"), ("b", "1"), ("c", "1")]);
    let decisions = consumer.decisions(batch()).await.unwrap();
    let Decision::Failed(failure) = &decisions[1] else { panic!("{decisions:?}") };
    assert_eq!((failure.class, failure.code.as_deref()), (ErrorClass::Transient, Some("1811")));
    assert!(decisions[0].is_processed() && decisions[2].is_processed(), "{decisions:?}");
    file.run("DROP TRIGGER refuse").await;
    assert_eq!(names(&consumer.decisions(batch()).await.unwrap()), ["duplicate", "processed", "duplicate"]);
}

/// The time for which the broker may deliver again is the one that the last start found.
#[tokio::test(flavor = "multi_thread")]
async fn the_brokers_horizon_is_kept_beside_the_retention() {
    let (file, store) = fresh().await;
    for (horizon, kept) in [(Some(Duration::from_secs(90)), "90000000"), (None, "none")] {
        store.bookkeeping().register(&registration().redelivery_horizon(horizon)).await.unwrap();
        let read = "SELECT ifnull(CAST(redelivery_horizon AS TEXT), 'none') FROM idem_consumers";
        assert_eq!(file.ask(read).await, [kept]);
    }
}

/// A success forgets its attempts, in its own transaction: a failure after the claim keeps them, and so does another payload.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_forgotten_with_the_success() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    consumer.start().await.unwrap();
    let scope = store.bookkeeping().scope(consumer.name(), &idem_core::Tenant::default()).await.unwrap();
    let key = IdempotencyKey::new("a").unwrap();
    for number in 1..=3 {
        assert_eq!(store.bookkeeping().count_attempt(scope, &key, PayloadHash::of(b"fail")).await.unwrap(), number);
    }
    for number in 1..=2 {
        assert_eq!(store.bookkeeping().count_attempt(scope, &key, PayloadHash::of(b"1")).await.unwrap(), number);
    }
    consumer.decisions(vec![message("a", "fail")]).await.unwrap();
    let counts = "SELECT CAST(attempts AS TEXT) FROM idem_message_attempts ORDER BY attempts";
    assert_eq!(file.ask(counts).await, ["2", "3"]);
    consumer.decisions(vec![message("a", "1")]).await.unwrap();
    assert_eq!(file.ask(counts).await, ["3"]);
}

/// A27: a table that is gone during a claim is infrastructure, and the redelivery runs when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a27_a_table_that_is_gone_and_comes_back() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    consumer.start().await.unwrap();
    file.run("ALTER TABLE idem_processed_messages RENAME TO hidden").await;
    let decisions = consumer.decisions(messages(&[("a", "1"), ("b", "1")])).await.unwrap();
    for decision in &decisions {
        let Decision::Failed(failure) = decision else { panic!("{decisions:?}") };
        assert_eq!(failure.class, idem_core::ErrorClass::Infrastructure, "{failure}");
    }
    file.run("ALTER TABLE hidden RENAME TO idem_processed_messages").await;
    let decisions = consumer.decisions(messages(&[("a", "1"), ("b", "1")])).await.unwrap();
    assert_eq!(names(&decisions), ["processed", "processed"]);
}
