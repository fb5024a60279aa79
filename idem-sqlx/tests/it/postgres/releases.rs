//! Workers of the release before on the newest schema.

use idem_core::{
    ConsumerName, DeadLetter, ErrorClass, Message, Origin, Reason, Store as _, Tenant,
    dead_letter::{FailureKind, Fingerprint},
    store::{Bookkeeping as _, ScopeId},
};
use idem_sqlx::MigrateError;
use sqlx::Row as _;

use super::fixture::Fixture;

/// The statements of 0.1.0, to the letter but for the schema's name, which its connections find by their search_path.
const INSERT: &str = "\
INSERT INTO dead_letters (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason,
    attempts, error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key,
    ordering_key)
VALUES ($1::int4, $2::text, $2::text, $3::uuid, $4::text, $5::bytea, $6::int4, $7::text, $8::int4, $9::text, $10::bytea,
    $11::int8, $12::bool, $13::text::json, $14::text, $15::text, $16::bytea, $17::bytea)
ON CONFLICT DO NOTHING
RETURNING id, idempotency_key, origin, reason, attempts, error, copies,
    (extract(epoch FROM first_at) * 1000000)::int8 AS first_at,
    (extract(epoch FROM published_at) * 1000000)::int8 AS published_at, replay_outcome AS replayed";

const UPDATE: &str = "\
WITH target AS MATERIALIZED (
    SELECT id FROM dead_letters
    WHERE consumer = $1::int4 AND (origin = $2::text OR (key_id = $3::uuid
        AND coalesce(payload_hash, ''::bytea) = coalesce($4::bytea, ''::bytea) AND reason = $5::text))
    ORDER BY origin = $2::text DESC, id LIMIT 1 FOR UPDATE
)
UPDATE dead_letters AS d SET
    copies = d.copies + ($2::text NOT IN (d.origin, d.last_origin))::int4,
    last_origin = CASE WHEN $2::text = d.origin THEN d.last_origin ELSE $2::text END,
    attempts = $6::int4, error = $7::text, last_at = now(),
    (replay_requested_at, replay_taken_at, replay_taken_by, replayed_at, replay_outcome) = (
        SELECT d.replay_requested_at, d.replay_taken_at, d.replay_taken_by, d.replayed_at, d.replay_outcome
        WHERE d.replayed_at IS NULL OR $2::text IN (d.origin, d.last_origin))
FROM target WHERE d.id = target.id
RETURNING d.id, d.idempotency_key, d.origin, d.reason, d.attempts, d.error, d.copies,
    (extract(epoch FROM d.first_at) * 1000000)::int8 AS first_at,
    (extract(epoch FROM d.published_at) * 1000000)::int8 AS published_at, d.replay_outcome AS replayed";

/// A message as both releases set it aside.
#[derive(Debug, Clone, Copy)]
struct Failed {
    origin: &'static str,
    key: Option<&'static str>,
    payload: &'static str,
}

impl Failed {
    fn letter(self, scope: ScopeId) -> DeadLetter {
        DeadLetter {
            consumer: ConsumerName::new("ledger").unwrap(),
            scope,
            message: Message::new(self.payload).with_origin(Origin::new(self.origin)),
            key: self.key.map(|key| idem_core::IdempotencyKey::new(key).unwrap()),
            hash: None,
            reason: Reason::Permanent,
            attempts: 1,
            error: "new".to_owned(),
            fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
            keep_payload: true,
            payload_omitted: None,
        }
    }

    /// Sets it aside as the release before does: which row stands for it, and how many copies that has.
    async fn by_the_release_before(self, fixture: &Fixture, scope: ScopeId) -> (i64, i64) {
        let key_id = self.key.map(idem_schema::key_id);
        let hash = self.key.map(|_| self.payload.as_bytes());
        let insert = sqlx::query(INSERT).bind(scope.0).bind(self.origin).bind(key_id).bind(self.key).bind(hash);
        let insert = insert.bind(1).bind("permanent").bind(1).bind("old").bind(self.payload.as_bytes());
        let insert = insert.bind(i64::try_from(self.payload.len()).unwrap()).bind(true).bind(None::<String>);
        let insert = insert.bind(None::<String>).bind(None::<String>).bind(None::<Vec<u8>>).bind(None::<Vec<u8>>);
        let row = match insert.fetch_optional(&fixture.admin).await.unwrap() {
            Some(row) => row,
            None => {
                let update = sqlx::query(UPDATE).bind(scope.0).bind(self.origin).bind(key_id).bind(hash);
                let update = update.bind("permanent").bind(1).bind("old");
                update.fetch_one(&fixture.admin).await.unwrap()
            }
        };
        (row.get("id"), row.get("copies"))
    }
}

/// J12: a worker of the release before folds its dead letters among themselves as it always did, and neither release takes
/// the other's row for its message, so that each is whole in one.
#[tokio::test]
async fn j12_a_worker_of_the_release_before_goes_on_with_its_dead_letters() {
    let fixture = Fixture::new().await;
    let scope = fixture.store.bookkeeping().scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await;
    // It was never registered; rows of a scope need no more than its number.
    let scope = scope.unwrap_or(ScopeId(1));
    let keyed = Failed { origin: "q/1", key: Some("order-1"), payload: "paid" };
    let (first, copies) = keyed.by_the_release_before(&fixture, scope).await;
    assert_eq!(copies, 1);
    assert_eq!(keyed.by_the_release_before(&fixture, scope).await, (first, 1), "a retry is no copy");
    let copy = Failed { origin: "q/2", ..keyed };
    assert_eq!(copy.by_the_release_before(&fixture, scope).await, (first, 2));
    let without_key = Failed { origin: "q/3", key: None, payload: "paid" };
    let (other, _) = without_key.by_the_release_before(&fixture, scope).await;
    assert_eq!(without_key.by_the_release_before(&fixture, scope).await, (other, 1));

    // This release beside it, over the same origins and other ones.
    for failed in [keyed, without_key, Failed { payload: "other", ..without_key }] {
        let stored = fixture.store.bookkeeping().store_dead_letter(&failed.letter(scope)).await.unwrap();
        assert!(stored.copies == 1 && stored.id.0 > other, "{stored:?}");
        assert_eq!(fixture.store.bookkeeping().store_dead_letter(&failed.letter(scope)).await.unwrap().id, stored.id);
        assert!(stored.fingerprint.is_some() && stored.payload_kept);
    }
    let new = Failed { origin: "q/4", key: None, payload: "new" };
    fixture.store.bookkeeping().store_dead_letter(&new.letter(scope)).await.unwrap();
    let (own, copies) = new.by_the_release_before(&fixture, scope).await;
    assert_eq!((new.by_the_release_before(&fixture, scope).await.1, copies), (1, 1));
    let payloads = fixture.texts("SELECT convert_from(payload, 'UTF8') FROM dead_letters ORDER BY id").await;
    assert_eq!(payloads, ["paid", "paid", "paid", "paid", "other", "new", "new"]);
    let old = fixture.texts(format!("SELECT id::text FROM dead_letters WHERE identity IS NULL AND id = {own}")).await;
    assert_eq!(old.len(), 1);

    fixture.down_to(3).await;
    // The way back is refused while the older schema would take two messages for one.
    let refused = fixture.store.migrate_down().await;
    assert!(matches!(refused, Err(MigrateError::Failed { version: 3, .. })), "{refused:?}");
    fixture.run("DELETE FROM dead_letters WHERE identity IS NOT NULL").await;
    assert_eq!(fixture.store.migrate_down().await.unwrap(), Some(3));
    assert_eq!(copy.by_the_release_before(&fixture, scope).await, (first, 2));
    assert_eq!(fixture.store.migrate().await.unwrap()[0], 3);
    assert_eq!(fixture.texts("SELECT count(*)::text FROM dead_letters").await, ["3"]);
    fixture.drop().await;
}

/// As the release before counts an attempt. Parameters: 1 consumer, 2 key id, 3 key, 4 payload hash.
const COUNT: &str = "\
INSERT INTO attempts AS a (consumer, key_id, idempotency_key, attempts, payload_hash)
VALUES ($1::int4, $2::uuid, $3::text, 1, $4::bytea)
ON CONFLICT (consumer, key_id) DO UPDATE SET last_at = pg_catalog.now(), payload_hash = excluded.payload_hash,
    attempts = CASE WHEN a.payload_hash = excluded.payload_hash THEN a.attempts + 1 ELSE 1 END
RETURNING attempts";

/// J12: a worker of the release before counts attempts on the newest schema as it always did; a count from before the
/// migration goes on after it, and after its way back.
#[tokio::test]
async fn j12_a_worker_of_the_release_before_goes_on_counting() {
    let fixture = Fixture::new().await;
    let (key, scope) = (idem_core::IdempotencyKey::new("order-1").unwrap(), ScopeId(1));
    let (paid, refunded) = (idem_core::PayloadHash::of(b"paid"), idem_core::PayloadHash::of(b"refunded"));
    let by_the_release_before = async |hash: idem_core::PayloadHash| -> i32 {
        let query = sqlx::query(COUNT).bind(scope.0).bind(idem_schema::key_id(key.as_str())).bind(key.as_str());
        query.bind(hash.as_bytes().as_slice()).fetch_one(&fixture.admin).await.unwrap().get("attempts")
    };
    let count = async |hash| fixture.store.bookkeeping().count_attempt(scope, &key, hash).await.unwrap();
    // Counts of before the migration are taken over.
    fixture.down_to(3).await;
    assert_eq!((by_the_release_before(paid).await, by_the_release_before(paid).await), (1, 2));
    assert_eq!(fixture.store.migrate().await.unwrap()[0], 4);
    assert_eq!((count(paid).await, count(refunded).await), (3, 1));
    // Both go on side by side.
    assert_eq!(by_the_release_before(paid).await, 3);
    assert_eq!((count(refunded).await, count(paid).await), (2, 4));
    // One count a key is left on the way back.
    fixture.run("UPDATE attempts SET last_at = now() - interval '1 h'").await;
    fixture.down_to(3).await;
    assert_eq!(by_the_release_before(paid).await, 5);
    // Rows that the release before left behind go with cleanup, and a step takes no more than it was asked for.
    assert_eq!(fixture.store.migrate().await.unwrap()[0], 4);
    assert_eq!(count(refunded).await, 1);
    fixture.run("UPDATE attempts SET last_at = now() - interval '8 d'").await;
    fixture.run("UPDATE message_attempts SET last_at = now() - interval '8 d'").await;
    let mut cleaner = std::sync::Arc::new(fixture.store.clone()).cleaner();
    let removal = idem_core::store::Removal {
        kind: idem_core::store::Expiring::Attempts,
        kept: std::time::Duration::from_secs(7 * 24 * 3600),
        rows_max: 2,
        timeout: std::time::Duration::from_secs(5),
    };
    for (removed, left) in [(2, "1"), (1, "0")] {
        assert_eq!(cleaner.remove(&removal).await.unwrap(), idem_core::store::Removed::Rows(removed));
        let both = "SELECT ((SELECT count(*) FROM attempts) + (SELECT count(*) FROM message_attempts))::text";
        assert_eq!(fixture.texts(both).await, [left]);
    }
    fixture.drop().await;
}
