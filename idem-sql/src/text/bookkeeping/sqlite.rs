//! The same statements in SQLite's dialect. Several in one text are one transaction.

use crate::text::{
    bookkeeping::BookkeepingStatements, dialect::Dialect, inbox::InboxStatements, name::SchemaName,
    outbox::OutboxStatements,
};

/// The columns by which dead letters are listed.
const STORED: &str = "id, idempotency_key, origin, reason, attempts, error, fingerprint, copies, first_at,
    payload IS NOT NULL OR has_payload = 0 AS payload_kept, published_at, loss_accepted_at IS NOT NULL AS loss_accepted,
    replay_outcome AS replayed, iif(state <> 0 AND due_by IS NULL, due_at, NULL) AS waits_until";

/// Rows of the same message that wait for a later try.
const WAITING: &str = r#"SELECT {stored} FROM "{schema}_dead_letters"
    WHERE consumer = ?1 AND key_id = ?3 AND payload_hash = ?5 AND state <> 0 AND due_by IS NULL"#;

impl BookkeepingStatements {
    /// The statements of SQLite with the prefix of idem's tables in them.
    #[must_use]
    pub fn sqlite(schema: &SchemaName) -> Self {
        let text = |template: &str| Dialect::Sqlite.render(template, schema).into();
        let dead_letter = |template: &str| text(&template.replace("{waiting}", WAITING).replace("{stored}", STORED));
        let due = |statements: &[&str]| {
            let free = |now: &str, lease: &str| FREE.replace("{now}", now).replace("{lease}", lease);
            let statements = statements
                .join(";")
                .replace("{ends}", ENDS)
                .replace("{replayed}", REPLAYED)
                .replace("{chosen}", CHOSEN)
                .replace("{first}", FIRST)
                .replace("{orphaned}", ORPHANED);
            text(&statements.replace("{look}", &free("?3", "?2")).replace("{free}", &free("?6", "?5")))
        };
        Self {
            select_consumer: text(SELECT_CONSUMER),
            insert_consumer: text(INSERT_CONSUMER),
            select_renamed: text(SELECT_RENAMED),
            select_reader: text(SELECT_READER),
            insert_tenant: text(INSERT_TENANT),
            fill_binding: text(FILL_BINDING),
            update_horizons: text(UPDATE_HORIZONS),
            select_hash: text(r#"SELECT id FROM "{schema}_payload_hashes" WHERE rule = ?1"#),
            insert_hash: text(INSERT_HASH),
            insert_run: text(INSERT_RUN),
            count_attempt: text(COUNT_ATTEMPT),
            uncount_attempt: text(UNCOUNT_ATTEMPT),
            end_attempts: text(END_ATTEMPTS),
            insert_dead_letter: dead_letter(INSERT_DEAD_LETTER),
            put_aside: due(&[PUT_ASIDE]),
            update_dead_letter: dead_letter(UPDATE_DEAD_LETTER),
            keep_payload: text(KEEP_PAYLOAD),
            dead_letter_bytes: text(&DEAD_LETTER_BYTES.replace("{file}", FILE_BYTES)),
            usage: text(&USAGE.replace("{file}", FILE_BYTES)),
            mark_published: text(r#"UPDATE "{schema}_dead_letters" SET published_at = ?2 WHERE id = ?1"#),
            list_dead_letters: dead_letter(LIST_DEAD_LETTERS),
            due_now: due(&[DUE_NOW, LEAD]),
            any_due: due(&[ANY_DUE]),
            take_due: due(&[LEAD_ORPHANS, READ_CHOSEN, TAKE_CHOSEN]),
            renew_due: text(RENEW_DUE),
            release_due: due(&[RELEASE_DUE, LEAD_NEXT]),
            end_due: due(&[END_DUE, LEAD_NEXT]),
            read_control: text(READ_CONTROL),
            report: text(&[REPORT, &READ_CONTROL.replace("?2", "?5")].concat()),
            standing: text(STANDING),
            runs: text(RUNS),
            write_control: text(WRITE_CONTROL),
            insert_audit: text(INSERT_AUDIT),
            outbox: OutboxStatements::sqlite(schema),
            inbox: InboxStatements::sqlite(schema),
        }
    }
}

/// The size of the file, without pages that are free again.
const FILE_BYTES: &str = "\
SELECT (pages.page_count - free.freelist_count) * size.page_size AS bytes
    FROM pragma_page_count() AS pages, pragma_freelist_count() AS free, pragma_page_size() AS size";

const DEAD_LETTER_BYTES: &str = r#"
SELECT CASE WHEN file.bytes <= ?2 THEN file.bytes ELSE (
    SELECT ifnull(sum(?3 + CASE WHEN d.payload IS NULL THEN 0 ELSE d.payload_bytes END
        + ifnull(length(d.headers), 0) + length(d.error)), 0)
    FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
    WHERE c.name = ?1 AND ifnull(d.replay_outcome, '') NOT IN ('processed', 'duplicate')
) END AS bytes
FROM ({file}) AS file"#;

/// All tables share one file, and the part that each takes is unknown without reading it.
const USAGE: &str = r#"
SELECT -1 AS records, file.bytes AS record_bytes, (SELECT count(*) FROM "{schema}_dead_letters") AS dead_letters,
    file.bytes AS dead_letter_bytes, NULL AS records_of_largest_tenant
FROM ({file}) AS file"#;

const SELECT_CONSUMER: &str = r#"
SELECT oldest.id AS binding, wanted.id, oldest.bound_to, oldest.handler, oldest.key_rules, oldest.hash_rules,
    oldest.derives_as
FROM (SELECT * FROM "{schema}_consumers" WHERE name = ?2 ORDER BY id LIMIT 1) AS oldest
LEFT JOIN "{schema}_consumers" AS wanted ON wanted.name = oldest.name AND wanted.tenant = ?1"#;

const INSERT_CONSUMER: &str = r#"
INSERT INTO "{schema}_consumers" (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention, first_started_at)
SELECT free.id, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?9 FROM (SELECT asked.value AS id FROM json_each(?8) AS asked
    WHERE NOT EXISTS (SELECT 1 FROM "{schema}_consumers" AS other WHERE other.id = asked.value) ORDER BY asked.key LIMIT 1) AS free
WHERE true ON CONFLICT (tenant, name) DO NOTHING RETURNING id"#;

const INSERT_HASH: &str = r#"
INSERT INTO "{schema}_payload_hashes" (id, rule)
SELECT free.id, ?1 FROM (SELECT asked.value AS id FROM json_each(?2) AS asked
    WHERE NOT EXISTS (SELECT 1 FROM "{schema}_payload_hashes" AS other WHERE other.id = asked.value) ORDER BY asked.key LIMIT 1) AS free
WHERE true ON CONFLICT (rule) DO NOTHING RETURNING id"#;

const SELECT_RENAMED: &str =
    r#"SELECT name FROM "{schema}_consumers" WHERE derives_as = ?1 AND name <> ?1 ORDER BY id LIMIT 1"#;

const SELECT_READER: &str = r#"SELECT name FROM "{schema}_consumers" WHERE bound_to <> '' AND bound_to = ?1 AND name <> ?2 ORDER BY id LIMIT 1"#;

const INSERT_TENANT: &str = r#"
INSERT INTO "{schema}_consumers" (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention, redelivery_horizon,
    derives_as, first_started_at)
SELECT free.id, ?1, oldest.name, oldest.bound_to, oldest.handler, oldest.key_rules, oldest.hash_rules, oldest.retention,
    oldest.redelivery_horizon, oldest.derives_as, ?4
FROM (SELECT * FROM "{schema}_consumers" WHERE name = ?2 ORDER BY id LIMIT 1) AS oldest
CROSS JOIN (SELECT asked.value AS id FROM json_each(?3) AS asked
    WHERE NOT EXISTS (SELECT 1 FROM "{schema}_consumers" AS other WHERE other.id = asked.value) ORDER BY asked.key LIMIT 1) AS free
WHERE true ON CONFLICT (tenant, name) DO NOTHING RETURNING id"#;

const FILL_BINDING: &str = r#"
UPDATE "{schema}_consumers" SET bound_to = ?2, handler = ?3, hash_rules = ?4, key_rules = ?6
WHERE id = ?1 AND key_rules IN ('', ?6) AND bound_to IN ('', ?2) AND handler IN ('', ?3) AND hash_rules = ?5
RETURNING id"#;

const UPDATE_HORIZONS: &str = r#"
UPDATE "{schema}_consumers" SET retention = ?2, redelivery_horizon = ?3
WHERE id = ?1 AND (retention IS NOT ?2 OR redelivery_horizon IS NOT ?3) RETURNING id"#;

const INSERT_RUN: &str = r#"
INSERT INTO "{schema}_worker_runs" (host, process, version, started_at) VALUES (?1, ?2, ?3, ?4)
RETURNING id, started_at AS server_now"#;

const COUNT_ATTEMPT: &str = r#"
INSERT INTO "{schema}_message_attempts" AS a (consumer, key_id, idempotency_key, payload_hash, attempts, first_at, last_at)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5)
ON CONFLICT (consumer, key_id, payload_hash) DO UPDATE SET last_at = excluded.last_at, attempts = a.attempts + 1
RETURNING attempts"#;

const UNCOUNT_ATTEMPT: &str = r#"
UPDATE "{schema}_message_attempts" SET attempts = max(attempts - 1, 0)
WHERE consumer = ?1 AND key_id = ?2 AND payload_hash = ?3 RETURNING attempts"#;

const END_ATTEMPTS: &str = r#"
UPDATE "{schema}_message_attempts" SET attempts = 0
WHERE consumer = ?1 AND key_id = ?2 AND payload_hash = ?3 RETURNING attempts"#;

const INSERT_DEAD_LETTER: &str = r#"
INSERT INTO "{schema}_dead_letters" (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason,
    attempts, error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key,
    ordering_key, identity, fingerprint, first_at, last_at)
SELECT ?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?20 WHERE NOT EXISTS ({waiting})
ON CONFLICT (consumer, identity) DO NOTHING RETURNING {stored};
UPDATE "{schema}_message_attempts" SET attempts = 0
WHERE consumer = ?1 AND key_id = ?3 AND payload_hash = ?5 AND NOT EXISTS ({waiting});
{waiting}"#;

/// Returns the row that it writes, else the one that stands for it. A dead letter that waits again may be before the head of its ordering key.
const PUT_ASIDE: &str = r#"
INSERT INTO "{schema}_dead_letters" (consumer, origin, last_origin, key_id, idempotency_key, payload_hash, hash_id, reason,
    attempts, error, payload, payload_bytes, has_payload, headers, message_id, message_type, record_key, ordering_key, identity, fingerprint,
    first_at, last_at, state, due_at)
SELECT ?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?21, ?21,
    1 + EXISTS (SELECT 1 FROM "{schema}_dead_letters" WHERE consumer = ?1 AND ordering_key = ?17 AND state <> 0 AND ordering_key IS NOT NULL),
    ?21 + min(max(?20, 0), 129600000000)
WHERE NOT EXISTS (SELECT 1 FROM "{schema}_dead_letters" WHERE consumer = ?1 AND key_id = ?3 AND payload_hash = ?5 AND state <> 0)
ON CONFLICT (consumer, identity) DO UPDATE SET state = excluded.state, ordering_key = excluded.ordering_key, due_at = excluded.due_at,
    due_by = NULL, reason = excluded.reason,
    attempts = excluded.attempts, error = excluded.error, fingerprint = excluded.fingerprint, last_at = excluded.last_at, replayed_at = NULL,
    replay_outcome = NULL, payload = ifnull(payload, excluded.payload), payload_bytes = excluded.payload_bytes,
    copies = copies + (excluded.origin NOT IN (origin, last_origin)),
    last_origin = iif(excluded.origin = origin, last_origin, excluded.origin)
WHERE state = 0 RETURNING id, 1 AS is_written;
UPDATE "{schema}_dead_letters" AS d SET state = iif(d.id = {first}, 1, 2)
WHERE d.state <> 0 AND d.state <> iif(d.id = {first}, 1, 2) AND d.id IN (
    SELECT f.id FROM "{schema}_dead_letters" AS f WHERE f.consumer = ?1 AND f.ordering_key = ?17 AND f.state <> 0
        AND f.ordering_key IS NOT NULL ORDER BY f.taken_at IS NULL, f.id LIMIT 2);
SELECT id, 0 AS is_written FROM "{schema}_dead_letters"
WHERE consumer = ?1 AND key_id = ?3 AND payload_hash = ?5 AND state <> 0 ORDER BY id LIMIT 1"#;

const UPDATE_DEAD_LETTER: &str = r#"
UPDATE "{schema}_dead_letters" SET copies = copies + (?3 NOT IN (origin, last_origin)),
    last_origin = CASE WHEN ?3 = origin THEN last_origin ELSE ?3 END,
    reason = ?4, attempts = ?5, error = ?6, fingerprint = ?7, last_at = ?8,
    replay_outcome = CASE WHEN ?3 IN (origin, last_origin) THEN replay_outcome END,
    replayed_at = CASE WHEN ?3 IN (origin, last_origin) THEN replayed_at END
WHERE consumer = ?1 AND identity = ?2 RETURNING {stored}"#;

const KEEP_PAYLOAD: &str = r#"
UPDATE "{schema}_dead_letters" SET payload = ?2, payload_bytes = length(?2)
WHERE id = ?1 AND has_payload AND payload IS NULL AND (key_id IS NULL OR idempotency_key IS NOT NULL) RETURNING id"#;

const LIST_DEAD_LETTERS: &str = r#"
SELECT {stored} FROM "{schema}_dead_letters"
WHERE consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1) ORDER BY id DESC LIMIT ?2"#;

/// The ids of a JSON array. Rows that the first statement has marked have its instant, as long as the transaction lasts.
const DUE_NOW: &str = r#"
UPDATE "{schema}_dead_letters" SET state = iif(ordering_key IS NULL, 1, 2), due_at = ?3, due_by = ?2, replayed_at = NULL,
    replay_outcome = NULL
WHERE id IN (SELECT value FROM json_each(?1)) AND (state = 0 OR due_by IS NULL AND taken_at IS NULL) AND (payload IS NOT NULL OR has_payload = 0)
RETURNING id;
UPDATE "{schema}_message_attempts" SET attempts = 0 WHERE (consumer, key_id, payload_hash) IN (
    SELECT consumer, key_id, payload_hash FROM "{schema}_dead_letters"
    WHERE id IN (SELECT value FROM json_each(?1)) AND state <> 0 AND due_at = ?3);
INSERT INTO "{schema}_controls" AS c (consumer, at, epoch)
SELECT DISTINCT consumer, ?3, 1 FROM "{schema}_dead_letters"
WHERE id IN (SELECT value FROM json_each(?1)) AND state <> 0 AND due_at = ?3
ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1"#;

/// The head of the ordering key of `d`: of the rows that run, else of all, the one with the lowest id.
const FIRST: &str = r#"(SELECT f.id FROM "{schema}_dead_letters" AS f
    WHERE f.consumer = d.consumer AND f.ordering_key = d.ordering_key AND f.state <> 0 AND f.ordering_key IS NOT NULL ORDER BY f.taken_at IS NULL, f.id LIMIT 1)"#;

/// Of the ordering keys of these ids the first row is the head, and no other.
const LEAD: &str = r#"
UPDATE "{schema}_dead_letters" AS d SET state = iif(d.id = {first}, 1, 2)
WHERE d.state <> 0 AND d.ordering_key IS NOT NULL AND d.state <> iif(d.id = {first}, 1, 2) AND (d.consumer, d.ordering_key) IN (
    SELECT k.consumer, k.ordering_key FROM "{schema}_dead_letters" AS k
    WHERE k.id IN (SELECT value FROM json_each(?1)) AND k.ordering_key IS NOT NULL)"#;

/// Of the ordering keys of these ids the first row is a head. No other one is.
const LEAD_NEXT: &str = r#"
UPDATE "{schema}_dead_letters" SET state = 1 WHERE state <> 0 AND state = 2 AND id IN (
    SELECT {first} FROM "{schema}_dead_letters" AS d WHERE d.id IN (SELECT value FROM json_each(?1)) AND d.ordering_key IS NOT NULL)"#;

/// Whether a row may be taken: `{now}` and `{lease}` are parameters.
const FREE: &str =
    "d.state <> 0 AND d.state = 1 AND d.due_at <= {now} AND (d.taken_at IS NULL OR d.taken_at < {now} - {lease})";

/// Scopes whose rows all stand behind another one, which was erased or deleted.
const ORPHANED: &str = r#"SELECT c.id FROM "{schema}_consumers" AS c WHERE c.name = ?1 AND 2 = (
    SELECT w.state FROM "{schema}_dead_letters" AS w WHERE w.consumer = c.id AND w.state <> 0 ORDER BY w.state LIMIT 1)"#;

const ANY_DUE: &str = r#"
SELECT EXISTS (
    SELECT 1 FROM "{schema}_consumers" AS c JOIN "{schema}_dead_letters" AS d ON d.consumer = c.id WHERE c.name = ?1 AND {look}
) OR EXISTS ({orphaned}) AS waiting"#;

const LEAD_ORPHANS: &str = r#"
UPDATE "{schema}_dead_letters" AS d SET state = 1
WHERE d.state <> 0 AND d.state = 2 AND d.consumer IN ({orphaned}) AND d.id = {first}"#;

/// The heads, and behind each of them others of its ordering key while there is room. Each scope has its turns.
const CHOSEN: &str = r#"
WITH heads AS (
    SELECT h.id, h.consumer, h.ordering_key, h.due_at, row_number() OVER (PARTITION BY h.consumer ORDER BY h.due_at, h.id) AS turn
    FROM "{schema}_consumers" AS c JOIN "{schema}_dead_letters" AS h ON h.id IN (
        SELECT d.id FROM "{schema}_dead_letters" AS d WHERE d.consumer = c.id AND {free} ORDER BY d.due_at, d.id LIMIT ?3)
    WHERE c.name = ?1
), turns AS (
    SELECT * FROM heads ORDER BY turn, due_at, id LIMIT ?3
), found AS (
    SELECT id, 0 AS step, due_at, id AS head FROM turns
    UNION ALL
    SELECT f.id, row_number() OVER (PARTITION BY t.id ORDER BY f.taken_at IS NULL, f.id), t.due_at, t.id
    FROM turns AS t JOIN "{schema}_dead_letters" AS f ON f.id IN (
        SELECT d.id FROM "{schema}_dead_letters" AS d
        WHERE d.consumer = t.consumer AND d.ordering_key = t.ordering_key AND d.state <> 0 AND d.state = 2
            AND (d.taken_at IS NULL OR d.taken_at < ?6 - ?5)
        ORDER BY d.taken_at IS NULL, d.id LIMIT (SELECT (?3 - count(*)) / max(count(*), 1) FROM turns))
), measured AS (
    SELECT f.id, f.step, f.due_at, f.head, ifnull(sum(iif(d.payload IS NULL, 0, d.payload_bytes)) OVER (
        ORDER BY f.step, f.due_at, f.head ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before
    FROM found AS f JOIN "{schema}_dead_letters" AS d ON d.id = f.id
)"#;

/// Reads what [`TAKE_CHOSEN`] takes, because only the rows before it say whether they were taken.
const READ_CHOSEN: &str = r#"
{chosen}
SELECT d.id, d.consumer, d.origin, d.idempotency_key, d.payload, d.has_payload, d.headers, d.message_id, d.message_type, d.record_key,
    d.ordering_key, iif(d.due_by IS NULL, d.attempts, 0) AS attempts, d.due_by IS NOT NULL AS replayed, d.taken_at IS NOT NULL AS was_taken
FROM measured AS m JOIN "{schema}_dead_letters" AS d ON d.id = m.id WHERE m.bytes_before < ?4 ORDER BY m.step, m.due_at, m.head"#;

const TAKE_CHOSEN: &str = r#"
UPDATE "{schema}_dead_letters" SET taken_at = ?6, taken_by = ?2
WHERE id IN ({chosen} SELECT m.id FROM measured AS m WHERE m.bytes_before < ?4)"#;

const RENEW_DUE: &str = r#"
UPDATE "{schema}_dead_letters" SET taken_at = ?3 WHERE id IN (SELECT value FROM json_each(?1)) AND taken_by = ?2"#;

const RELEASE_DUE: &str = r#"
UPDATE "{schema}_dead_letters" SET taken_at = NULL, taken_by = NULL, state = iif(ordering_key IS NULL, 1, 2)
WHERE id IN (SELECT value FROM json_each(?1)) AND taken_by = ?2"#;

/// A failure counts only where the run still has the row, and a row that waited for a later try is removed once it is handled, as on
/// PostgreSQL.
const END_DUE: &str = r#"
UPDATE "{schema}_message_attempts" SET attempts = 0 WHERE (consumer, key_id, payload_hash) IN (
    SELECT d.consumer, d.key_id, d.payload_hash FROM ({ends}) AS e JOIN "{schema}_dead_letters" AS d ON d.id = e.id
    WHERE d.state <> 0 AND d.due_by IS NULL AND d.taken_by = ?3 AND e.after < 0 AND e.outcome NOT IN ('processed', 'duplicate'));
DELETE FROM "{schema}_dead_letters" WHERE state <> 0 AND due_by IS NULL AND taken_at IS NOT NULL AND id IN (
    SELECT e.id FROM ({ends}) AS e WHERE e.outcome IN ('processed', 'duplicate'));
UPDATE "{schema}_dead_letters" AS d SET taken_at = NULL, taken_by = NULL,
    state = iif(e.after < 0, 0, iif(ordering_key IS NULL, 1, 2)), due_at = iif(e.after < 0, NULL, ?9 + min(e.after, 129600000000)),
    due_by = iif(e.after < 0, due_by, NULL), replayed_at = iif({replayed}, ?9, NULL), replay_outcome = iif({replayed}, e.outcome, NULL),
    reason = iif({replayed}, d.reason, e.reason), error = iif({replayed}, d.error, e.error),
    attempts = iif({replayed} OR e.made = 0, d.attempts, e.made),
    fingerprint = iif({replayed} OR e.fingerprint = '', d.fingerprint, e.fingerprint), last_at = iif({replayed}, d.last_at, ?9)
FROM ({ends}) AS e
WHERE d.id = e.id AND d.state <> 0 AND d.taken_at IS NOT NULL AND (d.taken_by = ?3 OR e.outcome IN ('processed', 'duplicate'));
UPDATE "{schema}_dead_letters" SET taken_at = NULL, taken_by = NULL
WHERE state <> 0 AND ordering_key IS NOT NULL AND taken_by = ?3 AND (consumer, ordering_key, taken_at IS NULL) IN (
    SELECT d.consumer, d.ordering_key, 0 FROM ({ends}) AS e JOIN "{schema}_dead_letters" AS d ON d.id = e.id
    WHERE e.after >= 0 AND d.state <> 0 AND d.taken_at IS NULL AND d.ordering_key IS NOT NULL)"#;

/// Whether a row that ends was replayed for an operator, and stays what it was.
const REPLAYED: &str = "e.after < 0 AND d.due_by IS NOT NULL";

const ENDS: &str = "\
SELECT i.value AS id, o.value AS outcome, a.value AS after, r.value AS reason, m.value AS made, x.value AS error, f.value AS fingerprint
    FROM json_each(?1) AS i JOIN json_each(?2) AS o ON o.key = i.key JOIN json_each(?4) AS a ON a.key = i.key
    JOIN json_each(?5) AS r ON r.key = i.key JOIN json_each(?6) AS m ON m.key = i.key JOIN json_each(?7) AS x ON x.key = i.key
    JOIN json_each(?8) AS f ON f.key = i.key";

/// One file, which has no failover, has one identity.
const READ_CONTROL: &str = r#"
SELECT ifnull(c.state, 'running') AS state, ifnull(c."by", '') AS "by", ifnull(c.reason, '') AS reason,
    ifnull(c.epoch, 0) AS epoch, ?2 AS server_now, '' AS identity
FROM (SELECT ?1 AS consumer) AS asked LEFT JOIN "{schema}_controls" AS c ON c.consumer = asked.consumer"#;

const REPORT: &str = r#"
UPDATE "{schema}_worker_runs" SET consumer = ?1, seen_at = ?5, standing = ?3, ended_at = CASE WHEN ?4 THEN ?5 END WHERE id = ?2;"#;

const STANDING: &str = r#"
SELECT ?2 AS server_now, ifnull(control.state, 'running') AS state, ifnull(control."by", '') AS "by",
    ifnull(control.reason, '') AS reason, control.at AS controlled_at,
    known.open, known.conflicts, known.oldest, known.newest, known.held, known.held_since, late.awaited, late.awaited_since,
    (SELECT count(*) FROM "{schema}_inbox_slots" AS s JOIN "{schema}_consumers" AS c ON c.id = s.consumer
        WHERE c.name = ?1 AND c.tenant = '' AND (s.held_until IS NULL OR s.held_until <= ?2)) AS unheld,
    (SELECT i.received_at FROM "{schema}_inbox" AS i
        WHERE i.consumer = (SELECT id FROM "{schema}_consumers" WHERE name = ?1 AND tenant = '') ORDER BY i.number LIMIT 1) AS received
FROM (
    SELECT count(*) AS open, count(*) FILTER (WHERE reason = 'conflict') AS conflicts, min(first_at) AS oldest,
        max(last_at) AS newest, count(*) FILTER (WHERE is_held) AS held, min(first_at) FILTER (WHERE is_held) AS held_since
    FROM (
        SELECT d.reason, d.first_at, d.last_at, d.payload IS NULL AND d.has_payload AND d.published_at IS NULL
            AND d.loss_accepted_at IS NULL AS is_held
        FROM "{schema}_dead_letters" AS d
        WHERE d.consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1) AND d.state = 0
            AND (d.replayed_at IS NULL OR substr(d.replay_outcome, 1, 6) = 'failed')
        LIMIT 10001
    )
) AS known CROSS JOIN (
    SELECT count(*) AS awaited, min(due_at) AS awaited_since FROM (
        SELECT d.due_at FROM "{schema}_dead_letters" AS d WHERE d.consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1)
            AND d.state <> 0 AND d.due_at < ?2 - 600000000 LIMIT 10001)
) AS late LEFT JOIN (
    SELECT o.state, o."by", o.reason, o.at FROM "{schema}_controls" AS o
    WHERE o.consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1) AND o.state <> 'running' ORDER BY o.state, o.at LIMIT 1
) AS control ON true"#;

const RUNS: &str = r#"
SELECT r.id AS run, r.host, r.process, r.started_at, r.seen_at, r.ended_at, r.standing FROM "{schema}_worker_runs" AS r
WHERE r.seen_at IS NOT NULL AND r.consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1)
ORDER BY r.id DESC LIMIT 100"#;

const WRITE_CONTROL: &str = r#"
INSERT INTO "{schema}_controls" AS c (consumer, state, "by", reason, at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, "by" = excluded."by", reason = excluded.reason,
    at = excluded.at
RETURNING epoch"#;

const INSERT_AUDIT: &str = r#"
INSERT INTO "{schema}_audit" (who, action, consumer, idempotency_key, details, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
RETURNING id"#;
