//! Inserts that meet a row of their key where none should be: next to a unique index that is not valid, and where a sequence is behind
//! the rows of its column.

use std::time::Duration;

use idem_core::{
    ConsumerName, Effects, ErrorClass, RunOnce, Store as _, StoreError,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Reason},
    hash::PayloadHash,
    message::Origin,
    once::KeyState,
    store::{AuditEntry, Bookkeeping as _, Claim, ControlState, RunId, UnitOfWork as _},
};

use super::{
    commits::pay,
    consumers::{builder, claim_of, keys, messages, msg, options, process, registration},
    handlers::Write,
    subject::{PostgresUnderTest, effects, forget, unique, until},
};

const PATIENT: Duration = Duration::from_secs(20);

/// A session that stops at the gate between its look for a row of its key and the entry of its own row.
const LATE: &[(&str, &str)] = &[("idem.gate", "late")];

/// Leaves a table as a cancelled REINDEX CONCURRENTLY does: next to its unique index there is one on the same columns that is kept up
/// to date and is not valid. Of two sessions that insert one key the later one meets it, if both have looked for the key before. So
/// that one of them does, an index between the two evaluates a function that waits. Answers the name of its gate.
async fn leftover(subject: &impl PostgresUnderTest, table: &str, index: &str, columns: &str, gated: &str) -> String {
    let gate = unique(table);
    let unique_index = if index.ends_with("_pkey") {
        format!(
            "ALTER TABLE {table} DROP CONSTRAINT {index}; ALTER TABLE {table} ADD CONSTRAINT {index} PRIMARY KEY ({columns})"
        )
    } else {
        format!("DROP INDEX {index}; CREATE UNIQUE INDEX {index} ON {table} ({columns})")
    };
    let statements = format!(
        "CREATE FUNCTION gate_{table}(value int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
            IF current_setting('idem.gate', true) = 'late' THEN
                PERFORM pg_advisory_xact_lock_shared(hashtextextended('{gate}', 0));
            END IF;
            RETURN value;
        END $$;
        CREATE INDEX gate_{table} ON {table} (gate_{table}({gated}));
        {unique_index};
        CREATE UNIQUE INDEX {index}_ccnew ON {table} ({columns});
        UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{index}_ccnew'::regclass"
    );
    subject.run(&statements).await;
    gate
}

/// Has `late` wait at the gate until `early` is over.
async fn overtaken<T: PostgresUnderTest, L>(
    subject: &T,
    gate: &str,
    late: impl Future<Output = L>,
    early: impl Future<Output = ()>,
) -> L {
    let lane = subject.store().open().await.unwrap();
    let mut holder = subject.store().begin(lane, options(RunId(0), PATIENT)).await.unwrap();
    holder.claim(&[]).await.unwrap();
    let hold = format!("SELECT pg_advisory_xact_lock(hashtextextended('{gate}', 0))");
    T::execute(&mut holder.tx(), &hold).await.unwrap();
    let waits = format!(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND (classid::int8 << 32 | objid::int8) = hashtextextended('{gate}', 0))::text::char(1)"
    );
    let overtaking = async {
        until(subject, &waits).await;
        early.await;
        holder.rollback().await.unwrap();
    };
    tokio::join!(late, overtaking).0
}

const RECORDS: (&str, &str, &str) = ("processed_messages", "processed_messages_pkey", "consumer, key_id");

/// A55: the loser of a race for a key runs its unit again, and finds the record. Nothing is charged or set aside.
pub async fn a55_next_to_an_invalid_index_a_lost_claim_is_a_duplicate<T: PostgresUnderTest>(subject: &T) {
    let (table, index, columns) = RECORDS;
    let gate = leftover(subject, table, index, columns, "hash_id").await;
    let consumer = |store| {
        let consumer = builder(store, Write::<T>::new()).busy_timeout(PATIENT);
        consumer.handlers(subject.concurrency()).build().unwrap()
    };
    let (early, late) = (consumer(subject.store().clone()), consumer(subject.another(None, LATE)));
    for count in [1, 3] {
        let all = || messages(&keys(count));
        let first = async { assert_eq!(process(&early, all()).await, "P".repeat(count)) };
        assert_eq!(overtaken(subject, &gate, process(&late, all()), first).await, "D".repeat(count));
        assert_eq!(effects(subject).await, keys(count));
        assert_eq!(subject.texts("SELECT count(*)::text FROM message_attempts").await, ["0"]);
        forget(subject).await;
    }
}

/// A55: a call has the answer of the one that was first, and a question does not fail.
pub async fn a55_next_to_an_invalid_index_a_call_has_the_first_answer<T: PostgresUnderTest>(subject: &T) {
    let (table, index, columns) = RECORDS;
    let gate = leftover(subject, table, index, columns, "hash_id").await;
    let instance = |store| {
        let builder = RunOnce::builder(store, "payments").busy_timeout(PATIENT).lanes(1);
        builder.effects(Effects::InTransaction).allow_final_errors().build().unwrap()
    };
    let (early, late) = (instance(subject.store().clone()), instance(subject.another(None, LATE)));
    let pays = async |key: &str| assert!(!pay::<T>(&early, key, "p").await.unwrap().is_replayed());
    let again = overtaken(subject, &gate, pay::<T>(&late, "paid", "p"), pays("paid")).await.unwrap();
    assert!(again.is_replayed() && again.result().body == "paid", "{again:?}");
    let asked = overtaken(subject, &gate, late.key_state(msg("asked")), pays("asked")).await.unwrap();
    assert!(matches!(asked, KeyState::InProgress), "{asked:?}");
    assert!(matches!(late.key_state(msg("asked")).await.unwrap(), KeyState::Done { .. }));
    assert_eq!(effects(subject).await, ["asked", "paid"]);
}

fn letter(claim: &Claim, origin: &str) -> DeadLetter {
    DeadLetter {
        consumer: ConsumerName::new("by-hand").unwrap(),
        scope: claim.scope,
        message: msg(claim.key.as_str()).with_origin(Origin::new(origin)),
        key: Some(claim.key.clone()),
        hash: Some((PayloadHash::of(origin.as_bytes()), claim.hash_rule)),
        reason: Reason::Permanent,
        attempts: 1,
        error: "no".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}

/// A55: a dead letter is one row with both copies' place, an attempt is counted, and a control is set.
pub async fn a55_next_to_an_invalid_index_bookkeeping_is_done<T: PostgresUnderTest>(subject: &T) {
    let (claim, _) = claim_of(subject.store(), "a").await;
    let behind = subject.another(None, LATE);
    let (early, late) = (subject.store().bookkeeping(), behind.bookkeeping());
    let gate = leftover(subject, "dead_letters", "dead_letters_identity", "consumer, identity", "attempts").await;
    let stores = async { drop(early.store_dead_letter(&letter(&claim, "q/1")).await.unwrap()) };
    let stored = overtaken(subject, &gate, late.store_dead_letter(&letter(&claim, "q/1")), stores).await.unwrap();
    assert_eq!(stored.copies, 1);
    assert_eq!(subject.texts("SELECT id::text FROM dead_letters").await, [stored.id.0.to_string()]);

    let (key, attempts) = ("consumer, key_id, payload_hash", "message_attempts");
    let gate = leftover(subject, attempts, "message_attempts_pkey", key, "attempts").await;
    let counts = async { assert_eq!(early.count_attempt(claim.scope, &claim.key, claim.hash).await.unwrap(), 1) };
    let counted = overtaken(subject, &gate, late.count_attempt(claim.scope, &claim.key, claim.hash), counts).await;
    assert_eq!(counted.unwrap(), 2);

    let gate = leftover(subject, "controls", "controls_pkey", "consumer", "consumer").await;
    let pauses = async { early.set_control(claim.scope, ControlState::Paused, "ann", "").await.unwrap() };
    let halts = late.set_control(claim.scope, ControlState::Halted, "bob", "");
    overtaken(subject, &gate, halts, pauses).await.unwrap();
    assert_eq!(early.control(claim.scope).await.unwrap().by, "bob");
}

/// Rows above the sequences, as a logical replication or a restore of the rows alone leaves them.
const BEHIND: &str = "
    INSERT INTO audit (who, action) SELECT 'x', 'read-key' FROM generate_series(1, 20);
    INSERT INTO worker_runs (host, process, version) SELECT 'x', 1, '1' FROM generate_series(1, 20);
    INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload, identity)
        SELECT 1, n::text, '', 'permanent', 1, '', 0, false, int4send(n) FROM generate_series(1, 20) AS n;
    ALTER SEQUENCE audit_id_seq RESTART WITH 1;
    ALTER SEQUENCE worker_runs_id_seq RESTART WITH 1;
    ALTER SEQUENCE dead_letters_id_seq RESTART WITH 1;";

/// A56: a start, and a worker under which it happens, name table, sequence and cure. It is no outage, and no message is set aside for it.
pub async fn a56_a_sequence_behind_its_rows_is_named_with_its_cure<T: PostgresUnderTest>(subject: &T) {
    let (claim, _) = claim_of(subject.store(), "a").await;
    let bookkeeping = subject.store().bookkeeping();
    bookkeeping.verify().await.unwrap();
    subject.run(BEHIND).await;
    let entry = AuditEntry::new("w".to_owned(), "conflict", claim.scope, "d".to_owned());
    for (table, failed) in [
        ("dead_letters", bookkeeping.store_dead_letter(&letter(&claim, "q/1")).await.map(drop)),
        ("worker_runs", bookkeeping.register(&registration()).await.map(drop)),
        ("audit", bookkeeping.audit(&entry).await),
        ("audit", bookkeeping.verify().await),
    ] {
        let error = failed.unwrap_err();
        assert!(matches!(error, StoreError::Schema { .. }) && error.class() == ErrorClass::Fatal, "{table}: {error:?}");
        let text = error.to_string();
        let cure = format!(".{table}_id_seq', 20)");
        assert!(text.contains("rows up to 2") && text.contains("SELECT pg_catalog.setval('"), "{text}");
        assert!(text.contains(&cure) || text.contains(&cure.replace("20", "21")), "{text}");
    }
    let StoreError::Schema { cure, .. } = bookkeeping.verify().await.unwrap_err() else { panic!("it is the schema") };
    for set in cure.split("SELECT pg_catalog.setval(").skip(1) {
        subject.run(&format!("SELECT setval({})", set.split(')').next().unwrap())).await;
    }
    bookkeeping.verify().await.unwrap();
    bookkeeping.register(&registration()).await.unwrap();
    bookkeeping.audit(&entry).await.unwrap();
    assert!(bookkeeping.store_dead_letter(&letter(&claim, "q/1")).await.unwrap().id.0 > 20);
}
