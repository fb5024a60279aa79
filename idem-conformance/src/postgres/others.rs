//! What other logins and sessions leave behind: records that cannot be read, rows that are locked, and a pooler's other process.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    CancellationToken, Decision, ErrorClass, Store as _, StoreError, Worker,
    cleanup::{Expiring, Removal, Removed},
    dead_letter::Reason,
    store::{ClaimError, RunId, UnitOfWork as _},
    worker::IncidentKind,
};

use super::{
    consumers::{claim_of, keys, letters, messages, options, process},
    handlers::{Write, builder, consumer},
    pooler,
    subject::{PATIENCE, PostgresUnderTest, effects, recorded},
};
use idem_testkit::{
    Decide as _,
    memory::{Broker, QueueOptions},
};

/// Whoever may do this has the tables, and no worker has them.
const UNBOUNDED: &str = "ALTER TABLE processed_messages DROP CONSTRAINT processed_messages_readable";

/// S61: a record whose key or hash is damaged fails its own message, and neither those beside it nor the worker.
pub async fn s61_a_damaged_record_fails_its_own_message<T: PostgresUnderTest>(subject: &T) {
    let consumer = consumer(subject, Write::<T>::new());
    assert_eq!(process(&consumer, messages(&keys(4))).await, "PPPP");
    let damage = "; UPDATE processed_messages SET payload_hash = 'x' WHERE idempotency_key = 'order-001';
        UPDATE processed_messages SET idempotency_key = chr(10) WHERE idempotency_key = 'order-002'";
    subject.run(&format!("{UNBOUNDED}{damage}")).await;
    let decisions = consumer.decisions(messages(&keys(5))).await.unwrap();
    assert_eq!(letters(&decisions), "DppDP");
    for decision in &decisions[1..3] {
        let Decision::Failed(failure) = decision else { panic!("{decision:?}") };
        assert_eq!(failure.reason, Reason::KeyCollision);
        assert!(failure.text.contains("damaged"), "{}", failure.text);
    }
}

/// S61: a record that the server itself cannot write out does not stop its lane: its message is a dead letter, and the others are handled.
pub async fn s61_a_record_that_cannot_be_read_stops_no_lane<T: PostgresUnderTest>(subject: &T) {
    assert_eq!(process(&consumer(subject, Write::<T>::new()), messages(&keys(3))).await, "PPP");
    let damage = "; UPDATE processed_messages SET processed_at = 'infinity' WHERE idempotency_key = 'order-001'";
    subject.run(&format!("{UNBOUNDED}{damage}")).await;
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    messages(&keys(6)).into_iter().for_each(|message| drop(queue.publish(message)));
    let consumer = builder(subject, Write::<T>::new()).lanes(1).build().unwrap();
    let worker = Worker::builder(consumer, queue.source()).cleanup(None).build().unwrap();
    let (stop, view) = (CancellationToken::new(), worker.view());
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    tokio::time::timeout(PATIENCE, queue.drained()).await.expect("no lane goes round in a circle");
    stop.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.duplicates, summary.dead_lettered), (3, 2, 1), "{summary:?}");
    assert_eq!(effects(subject).await, keys(6));
    let said = view.recent(IncidentKind::Error);
    assert!(
        said.iter().any(|line| line.text.contains("runs alone")),
        "the log and the page say what is done again: {said:?}"
    );
    let letters = subject.texts("SELECT idempotency_key || ' ' || error FROM dead_letters").await;
    assert!(
        letters.len() == 1 && letters[0].starts_with("order-001 ") && letters[0].contains("SQLSTATE"),
        "{letters:?}"
    );
}

/// Rows that have expired: records, two of them with answers, and two of each other kind that a worker may lock.
const EXPIRED: &str = "
    INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
        SELECT key_id('r' || n), now() - (9 - n) * interval '1 s', 1, 1, 1, 'r' || n, sha256('') FROM generate_series(1, 3) AS n;
    INSERT INTO processed_results (key_id, consumer, kind, body) SELECT key_id('r' || n), 1, 0, '' FROM generate_series(1, 2) AS n;
    INSERT INTO processed_results (key_id, consumer, kind, body, answer_until)
        SELECT key_id('a' || n), 1, 0, '', now() - (9 - n) * interval '1 s' FROM generate_series(1, 2) AS n;
    INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload, first_at, last_at)
        SELECT 1, n::text, '', 'permanent', 1, '', 0, false, now() - (9 - n) * interval '9 d', now() - (9 - n) * interval '9 d'
        FROM generate_series(1, 2) AS n;
    INSERT INTO message_attempts (key_id, last_at, consumer, attempts, idempotency_key, payload_hash)
        SELECT key_id('t' || n), now() - interval '9 d', 1, 1, 't' || n, '' FROM generate_series(1, 2) AS n;";

/// The first row of each kind, as a login of a worker may lock it.
const HELD: &str = "
    WITH answers AS (SELECT FROM processed_results WHERE key_id IN (key_id('r1'), key_id('a1')) FOR UPDATE),
        letters AS (SELECT FROM dead_letters WHERE origin = '1' FOR UPDATE),
        attempts AS (SELECT FROM message_attempts WHERE idempotency_key = 't1' FOR UPDATE)
    SELECT count(*) FROM answers, letters, attempts";

/// C17: expired rows that another session has locked stay for the next turn, and hold up no others, however small the step is.
pub async fn c17_expired_rows_that_are_locked_hold_up_no_others<T: PostgresUnderTest>(subject: &T) {
    subject.run(EXPIRED).await;
    let lane = subject.store().open().await.unwrap();
    let mut holder = subject.store().begin(lane, options(RunId(0), PATIENCE)).await.unwrap();
    holder.claim(&[]).await.unwrap();
    T::execute(&mut holder.tx(), HELD).await.unwrap();
    let mut cleaner = Arc::new(subject.store().clone()).cleaner();
    let kinds = [Expiring::Records, Expiring::Answers, Expiring::DeadLetters, Expiring::Attempts];
    let mut removed = async |rows_max: u32| {
        let mut removed = Vec::new();
        for kind in kinds {
            let removal = Removal { kind, kept: Duration::ZERO, rows_max, timeout: Duration::from_secs(5) };
            let Removed::Rows(rows) = cleaner.remove(&removal).await.unwrap() else { panic!("another session cleans") };
            removed.push(rows);
        }
        removed
    };
    assert_eq!(removed(1).await, [1, 1, 1, 1], "what is held takes no place in a step");
    assert_eq!(removed(9).await, [1, 0, 0, 0]);
    for table in kinds.map(Expiring::table) {
        let held = format!("SELECT concat_ws(' ', held, holders) FROM remove_expired('{table}', 9, 0)");
        let held = subject.texts(&held).await.remove(0);
        assert!(held.starts_with("1 process ") && held.contains("login"), "{table}: {held}");
    }
    holder.rollback().await.unwrap();
    assert_eq!(removed(9).await, [1, 1, 1, 1]);
    assert_eq!(subject.texts("SELECT count(*)::text FROM processed_results").await, ["2"], "their keys were answered");
}

/// A57: a pooler in transaction mode that gives each of its server processes the settings of a session is noticed at the first claim that
/// another process answers, and named.
pub async fn a57_a_session_that_a_pooler_gives_to_others_is_refused<T: PostgresUnderTest>(subject: &T) {
    let (claim, run) = claim_of(subject.store(), "a").await;
    let (port, moved) = pooler::between_transactions(subject.server()).await;
    let store = subject.another(Some(port), &[]);
    for alone in [false, true] {
        moved.store(false, Ordering::SeqCst);
        let lane = store.open().await.unwrap();
        moved.store(true, Ordering::SeqCst);
        let mut unit = store.begin(lane, options(run, PATIENCE).alone(alone)).await.unwrap();
        let ClaimError::Store(error) = unit.claim(std::slice::from_ref(&claim)).await.unwrap_err() else {
            panic!("it is the session")
        };
        assert!(matches!(error, StoreError::Refused { .. }) && error.class() == ErrorClass::Fatal, "{error:?}");
        assert!(error.to_string().contains("track_extra_parameters"), "{error}");
        unit.rollback().await.unwrap();
    }
    assert!(recorded(subject).await.is_empty());
}
