//! `idem show`, `forget` and `erase` on a file.

use super::file::{Bind, File, Keys, time};
use crate::{
    command_line::{Erase, Forget, Show},
    commands::{erase, forget, progress::beside_one, requests, show},
    confirm::confirm,
    exit::Failure,
    report::Report,
};

/// Parameters of these four: 1 key id, 2 consumer or NULL, 3 key.
const RECORDS: &str = r#"
SELECT c.name AS consumer, c.tenant, {at}p.processed_at{} AS processed_at, r.host, r.process, r.version,
    p.processed_by AS run, p.payload_hash, h.rule AS hash_rule,
    CASE WHEN p.expires_at < 9223372036854775807 THEN {at}p.expires_at{} END AS expires_at,
    p.expires_at <= {now} AS expired, p.idempotency_key = '' AS erased
FROM "{schema}_processed_messages" AS p JOIN "{schema}_consumers" AS c ON c.id = p.consumer
LEFT JOIN "{schema}_worker_runs" AS r ON r.id = p.processed_by
LEFT JOIN "{schema}_payload_hashes" AS h ON h.id = p.hash_id
WHERE p.consumer IN (SELECT id FROM "{schema}_consumers" WHERE ?2 IS NULL OR name = ?2) AND p.key_id = ?1
ORDER BY c.name, c.tenant"#;

const ATTEMPTS: &str = r#"
SELECT c.name AS consumer, c.tenant, lower(hex(a.payload_hash)) AS payload_hash, a.attempts, {at}a.first_at{} AS first_at,
    {at}a.last_at{} AS last_at
FROM "{schema}_message_attempts" AS a JOIN "{schema}_consumers" AS c ON c.id = a.consumer
WHERE a.key_id = ?1 AND a.attempts > 0 AND (?2 IS NULL OR c.name = ?2) ORDER BY c.name, c.tenant, a.first_at"#;

const DEAD_LETTERS: &str = r#"
SELECT d.id, c.name AS consumer, c.tenant, d.reason, d.attempts, d.copies, d.error, {at}d.first_at{} AS first_at,
    {at}d.last_at{} AS last_at, d.origin, {at}d.due_at{} AS due_at, d.replay_outcome,
    d.idempotency_key IS NULL AS erased
FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
WHERE d.key_id = ?1 AND (?2 IS NULL OR c.name = ?2) ORDER BY d.id"#;

const AUDIT: &str = r#"
SELECT {at}a.at{} AS at, a.who, a.action, c.name AS consumer, a.details
FROM "{schema}_audit" AS a LEFT JOIN "{schema}_consumers" AS c ON c.id = a.consumer
WHERE a.idempotency_key = ?3 AND (?2 IS NULL OR c.name = ?2) AND a.action <> 'read-key' ORDER BY a.id DESC LIMIT 20"#;

/// As on PostgreSQL. Parameters: 1 the text that begins the line, 2 consumer or NULL.
const ERASED: &str = r#"
SELECT {at}a.at{} AS at, a.who, a.action, c.name AS consumer, a.details
FROM "{schema}_audit" AS a LEFT JOIN "{schema}_consumers" AS c ON c.id = a.consumer
WHERE a.action = 'erase' AND substr(a.details, 1, length(?1)) = ?1 AND (?2 IS NULL OR c.name = ?2) ORDER BY a.id DESC LIMIT 20"#;

const RESULTS: &str = r#"
SELECT c.name AS consumer, c.tenant, CASE WHEN r.kind & 1 THEN 'error' ELSE 'answer' END AS kind, r.status,
    {at}r.stored_at{} AS stored_at, {at}r.answer_until{} AS answer_until, r.reference, r.content_type, r.sealed_with,
    r.kind & 6 = 2 AS erased, r.kind & 4 <> 0 AS ended, r.headers, length(r.body) AS bytes,
    lower(hex(r.body)) AS body
FROM "{schema}_processed_results" AS r JOIN "{schema}_consumers" AS c ON c.id = r.consumer
WHERE r.key_id = ?1 AND (?2 IS NULL OR c.name = ?2) ORDER BY c.name, c.tenant"#;

/// Of a request, as on PostgreSQL.
const ANSWERS: &str = r#"
SELECT c.name AS consumer, c.tenant, r.kind & 1 AS refused, r.kind & 6 <> 0 AS gone, r.status, r.reference,
    {at}r.answer_until{} AS answer_until
FROM "{schema}_processed_results" AS r JOIN "{schema}_consumers" AS c ON c.id = r.consumer
WHERE r.key_id = ?1 AND (?2 IS NULL OR c.name = ?2) ORDER BY c.name, c.tenant"#;

/// One transaction writes at a time, so events whose time lies before that of the next record were committed with this one.
const EVENTS: &str = r#"
SELECT o.number AS event, d.name AS destination, o.event_key AS key, o.event_type AS type,
    CASE o.state WHEN 0 THEN 'pending' WHEN 1 THEN 'waiting' WHEN 2 THEN 'failed' ELSE 'behind' END AS state, o.attempts,
    {at}o.created_at{} AS created_at, o.error
FROM "{schema}_processed_messages" AS p JOIN "{schema}_outbox" AS o ON o.consumer = p.consumer
JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE p.consumer IN (SELECT id FROM "{schema}_consumers" WHERE ?2 IS NULL OR name = ?2) AND p.key_id = ?1
    AND o.created_at >= p.processed_at AND NOT EXISTS (SELECT 1 FROM "{schema}_processed_messages" AS other
        WHERE other.consumer = p.consumer AND other.processed_at > p.processed_at AND other.processed_at <= o.created_at)
    AND EXISTS (SELECT 1 FROM json_each(o.headers) AS pair
        WHERE json_extract(pair.value, '$[0]') = 'idemcausedby' AND json_extract(pair.value, '$[1]') = ?3)
ORDER BY o.number LIMIT 100"#;

/// The note is the same as on PostgreSQL. Further parameters: 4 who, 5 the trail's details.
const NOTE_READ: &str = r#"
WITH held AS (
    SELECT consumer, idempotency_key FROM "{schema}_processed_messages" WHERE {hold}
    UNION ALL SELECT consumer, idempotency_key FROM "{schema}_message_attempts" WHERE {hold} AND attempts > 0
    UNION ALL SELECT consumer, idempotency_key FROM "{schema}_dead_letters" WHERE {hold}
), asked AS (SELECT consumer, max(nullif(idempotency_key, '')) AS idempotency_key FROM held GROUP BY consumer)
INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?4, 'read-key', consumer, idempotency_key, ?5 FROM asked
UNION ALL SELECT {now}, ?4, 'read-key', NULL, NULL, ?5 WHERE NOT EXISTS (SELECT 1 FROM asked)"#;

pub(super) async fn show(mut file: File, show: &Show) -> Result<Report, Failure> {
    let key = show.of.recorded(&show.key)?;
    if let Some(consumer) = &show.consumer {
        file.known(consumer).await?;
    }
    let key_id = idem_sql::key_id(&key);
    let (id, by, details) = (*key_id.as_bytes(), file.by.clone(), format!("key id {key_id}{}", show::also(show)));
    let consumer = Bind::Text(show.consumer.as_deref());
    let noting = [key.as_str().into(), consumer, Bind::Bytes(Some(&id)), by.as_str().into(), details.as_str().into()];
    file.act([&*NOTE_READ.replace("{hold}", HOLD)], &noting).await.map_err(|failure| failure.so(show::UNNOTED))?;
    let binds = [Bind::Bytes(Some(&id)), consumer, key.as_str().into()];
    let records = file.table(RECORDS, &binds).await?;
    let attempts = file.table(ATTEMPTS, &binds).await?;
    let dead_letters = file.table(DEAD_LETTERS, &binds).await?;
    let audit = if show::is_erased(&records, &dead_letters) {
        let begins = format!("key id {key_id}:");
        file.table(ERASED, &[begins.as_str().into(), consumer]).await?
    } else {
        file.table(AUDIT, &binds).await?
    };
    let results = if show.result { Some(file.table(RESULTS, &binds).await?) } else { None };
    let request = match show.of.named(&show.key, &key) {
        Some(named) => Some(requests::Found {
            answers: file.table(ANSWERS, &binds).await?,
            events: file.table(EVENTS, &[binds[0], consumer, named.key.as_str().into()]).await?,
            recorded: key,
            named,
        }),
        None => None,
    };
    // The note above waited for whoever writes, and a writer holds the whole file.
    Ok(show::report(show::Found { records, results, attempts, dead_letters, audit, runs: None, request }))
}

/// Parameters: 1 consumer, 2 and 3 the [`Keys`] or NULL, 4 from or NULL, 5 to or NULL, 6 run or NULL, 7 version or NULL.
const CHOSEN: &str = r#"
FROM "{schema}_processed_messages" AS p
WHERE p.consumer IN (SELECT id FROM "{schema}_consumers" WHERE name = ?1)
    AND (?2 IS NULL OR p.key_id IN (SELECT substr(?3, 1 + 16 * key, 16) FROM json_each(?2)))
    AND (?4 IS NULL OR p.processed_at >= ?4) AND (?5 IS NULL OR p.processed_at < ?5)
    AND (?6 IS NULL OR p.processed_by = ?6)
    AND (?7 IS NULL OR p.processed_by IN (SELECT id FROM "{schema}_worker_runs" WHERE version = ?7))"#;

/// Further parameters: 8 how many, 9 who, 10 why, 11 batch. As many as were counted and confirmed: keys processed in the
/// meantime stay. Forgotten rows can still be taken back.
const FORGET: [&str; 8] = [
    "CREATE TEMP TABLE gone (id INTEGER, consumer INTEGER, key_id BLOB, idempotency_key TEXT)",
    "INSERT INTO temp.gone SELECT p.rowid, p.consumer, p.key_id, p.idempotency_key {chosen} LIMIT ?8",
    r#"DELETE FROM "{schema}_message_attempts" WHERE (consumer, key_id) IN (SELECT consumer, key_id FROM temp.gone)"#,
    r#"DELETE FROM "{schema}_processed_results" WHERE (consumer, key_id) IN (SELECT consumer, key_id FROM temp.gone)"#,
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?9, 'forget', consumer, nullif(idempotency_key, ''), ?10 FROM temp.gone"#,
    r#"INSERT INTO "{schema}_controls" AS c (consumer, at, epoch) SELECT DISTINCT consumer, {now}, 1 FROM temp.gone WHERE true
ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1"#,
    r#"INSERT INTO "{schema}_forgotten" (batch, consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at,
    processed_by, expires_at, forgotten_at)
SELECT ?11, consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at, {now}
FROM "{schema}_processed_messages" WHERE rowid IN (SELECT id FROM temp.gone)"#,
    r#"DELETE FROM "{schema}_processed_messages" WHERE rowid IN (SELECT id FROM temp.gone)"#,
];

/// A number that no other act of forgetting has.
const BATCH: &str = r#"SELECT max({now}, ifnull(max(batch), 0) + 1) FROM "{schema}_forgotten""#;

pub(super) async fn forget(mut file: File, forget: &Forget) -> Result<Report, Failure> {
    file.known(&forget.consumer).await?;
    let keys = forget::keys(forget)?.map(|keys| Keys::of(&keys));
    if keys.is_some() {
        file.at_rest().await?;
    }
    let from = time(&mut file, forget.from.as_deref()).await?;
    let to = time(&mut file, forget.to.as_deref()).await?;
    let mut binds = vec![
        forget.consumer.as_str().into(),
        Bind::Text(keys.as_ref().map(Keys::places)),
        Bind::Bytes(keys.as_ref().map(Keys::ids)),
        Bind::Number(from),
        Bind::Number(to),
        Bind::Number(forget.run),
        Bind::Text(forget.release.as_deref()),
    ];
    let count = file.number(&format!("SELECT count(*) {CHOSEN}"), &binds).await?;
    let records = if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
    if count == 0 || forget.dry_run {
        return forget::none_or_dry(&records, forget);
    }
    confirm(&forget::warning(&records, &forget.consumer), forget.yes.yes)?;
    let (by, batch) = (file.by.clone(), file.number(BATCH, &[]).await?);
    binds.extend::<[Bind<'_>; 4]>([count.into(), by.as_str().into(), forget.reason.as_str().into(), batch.into()]);
    let chosen = FORGET[1].replace("{chosen}", CHOSEN);
    let [create, _, counts, results, noted, emptied, kept, records] = FORGET;
    let [.., forgotten] = file.act([create, &chosen, counts, results, noted, emptied, kept, records], &binds).await?;
    Ok(forget::done(forgotten, batch))
}

/// The rows of a table that hold the key. Parameters: 1 key, 2 consumer or NULL, 3 key id.
const HOLD: &str = r#"consumer IN (SELECT id FROM "{schema}_consumers" WHERE ?2 IS NULL OR name = ?2) AND key_id = ?3"#;

const COUNT: &str = r#"
SELECT (SELECT count(*) FROM "{schema}_processed_messages" WHERE {hold})
    + (SELECT count(*) FROM "{schema}_processed_results" WHERE {hold})
    + (SELECT count(*) FROM "{schema}_message_attempts" WHERE {hold})
    + (SELECT count(*) FROM "{schema}_dead_letters" WHERE {hold})
    + (SELECT count(*) FROM "{schema}_forgotten" WHERE {hold})
    + (SELECT count(*) FROM "{schema}_audit" WHERE idempotency_key = ?1)"#;

/// An empty text cannot be a key, so it means that one was erased; the rest is as on PostgreSQL. Further parameters: 4 who,
/// 5 the trail's details.
const ERASE: [&str; 10] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, details) SELECT {now}, ?4, 'erase', consumer, ?5 FROM (
    SELECT consumer FROM "{schema}_processed_messages" WHERE {hold}
    UNION SELECT consumer FROM "{schema}_processed_results" WHERE {hold}
    UNION SELECT consumer FROM "{schema}_message_attempts" WHERE {hold}
    UNION SELECT consumer FROM "{schema}_dead_letters" WHERE {hold}
    UNION SELECT consumer FROM "{schema}_forgotten" WHERE {hold}
    UNION SELECT consumer FROM "{schema}_inbox" WHERE {hold}
    UNION SELECT consumer FROM "{schema}_audit" WHERE idempotency_key = ?1)"#,
    r#"INSERT INTO "{schema}_controls" AS c (consumer, at, epoch)
SELECT consumer, {now}, 1 FROM "{schema}_processed_messages" WHERE {hold}
ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1"#,
    r#"UPDATE "{schema}_processed_messages" SET idempotency_key = '' WHERE {hold}"#,
    r#"UPDATE "{schema}_processed_results" SET kind = (kind & 1) | 2, content_type = NULL, headers = NULL, body = x'', sealed_with = NULL,
    reference = NULL, answer_until = NULL
WHERE {hold}"#,
    r#"UPDATE "{schema}_message_attempts" SET idempotency_key = '' WHERE {hold}"#,
    r#"DELETE FROM "{schema}_dead_letters" WHERE {hold} AND state <> 0 AND due_by IS NULL"#,
    r#"UPDATE "{schema}_dead_letters" SET idempotency_key = NULL, error = '', payload = NULL, has_payload = 1, headers = NULL,
    message_id = NULL, record_key = NULL, ordering_key = NULL,
    state = 0, due_at = NULL, taken_at = NULL, taken_by = NULL, identity = randomblob(32), loss_accepted_at = {now},
    loss_accepted_by = ?4
WHERE {hold}"#,
    r#"UPDATE "{schema}_forgotten" SET idempotency_key = '' WHERE {hold}"#,
    r#"DELETE FROM "{schema}_inbox" WHERE {hold}"#,
    r#"UPDATE "{schema}_audit" SET idempotency_key = NULL WHERE idempotency_key = ?1"#,
];

/// The messages with the key that wait in the inbox. Parameters: 1 key, 2 consumer or NULL, 3 key id.
const INBOX: &str = r#"SELECT count(*) FROM "{schema}_inbox" WHERE {hold}"#;

/// The events that hold the key, as on PostgreSQL. Parameters: 1 key, 2 consumer or NULL, 3 the key as its sender knows it.
const WAITING: &str = r#"
SELECT count(*) FROM "{schema}_outbox" AS o
WHERE o.consumer IN (SELECT id FROM "{schema}_consumers" WHERE ?2 IS NULL OR name = ?2) AND {caused}"#;

/// As on PostgreSQL. Further parameter: 4 the id.
const OF_ID: &str = r#"
SELECT o.number || ':' || o.event_key AS event, d.name AS destination
FROM "{schema}_outbox" AS o JOIN "{schema}_outbox_destinations" AS d ON d.id = o.destination
WHERE o.consumer IN (SELECT id FROM "{schema}_consumers" WHERE ?2 IS NULL OR name = ?2)
    AND o.event_key = ?4 AND NOT {caused} ORDER BY o.number LIMIT 3"#;

const CAUSED: &str = "EXISTS (SELECT 1 FROM json_each(o.headers) AS pair
        WHERE json_extract(pair.value, '$[0]') IN ('idemcause', 'idemcausedby') AND json_extract(pair.value, '$[1]') IN (?1, ?3))";

/// As on PostgreSQL. Parameters: 1 key id, 2 consumer or NULL, 3 a JSON array of the key's forms.
const OTHERS_LETTERS: &str = r#"
SELECT count(*) FROM "{schema}_dead_letters" AS d
WHERE d.consumer IN (SELECT id FROM "{schema}_consumers" WHERE ?2 IS NULL OR name = ?2) AND d.key_id IS NOT ?1
    AND EXISTS (SELECT 1 FROM json_each(?3) AS held
        WHERE instr(d.headers, held.value) > 0 OR instr(d.payload, CAST(held.value AS BLOB)) > 0)"#;

pub(super) async fn erase(mut file: File, asked: &Erase) -> Result<Report, Failure> {
    let key = asked.of.recorded(&asked.key)?;
    if let Some(consumer) = &asked.consumer {
        file.known(consumer).await?;
    }
    file.at_rest().await?;
    let id = idem_sql::key_id(&key);
    let (bytes, by) = (*id.as_bytes(), file.by.clone());
    let details = format!("key id {id}: {}", asked.reason);
    let binds = [
        key.as_str().into(),
        Bind::Text(asked.consumer.as_deref()),
        Bind::Bytes(Some(&bytes)),
        by.as_str().into(),
        details.as_str().into(),
    ];
    let count = file.number(&COUNT.replace("{hold}", HOLD), &binds).await?;
    let inbox = file.number(&INBOX.replace("{hold}", HOLD), &binds).await?;
    let senders_key = asked.of.senders_key(&asked.key, &key);
    let event_id = erase::event_id(&key);
    let holding = [binds[0], binds[1], senders_key.as_str().into(), event_id.as_str().into()];
    let waiting = file.number(&WAITING.replace("{caused}", CAUSED), &holding[..3]).await?;
    let of_id = file.table(&OF_ID.replace("{caused}", CAUSED), &holding).await?;
    let forms = serde_json::Value::from(erase::forms([&key, &senders_key])).to_string();
    let held_by = [binds[2], binds[1], forms.as_str().into()];
    let letters = beside_one(erase::SEARCHING, file.number(OTHERS_LETTERS, &held_by)).await?;
    let elsewhere = erase::Elsewhere { of_id, waiting, letters };
    if count + inbox == 0 {
        return Ok(elsewhere.of_none(&key));
    }
    confirm(&erase::warning(count, inbox), asked.yes.yes)?;
    let statements = ERASE.map(|text| text.replace("{hold}", HOLD));
    let erased = file.act(statements.each_ref().map(String::as_str), &binds);
    let [_, _, changed @ ..] = beside_one(erase::ERASING, erased).await?;
    Ok(elsewhere.beside(erase::told(changed.iter().sum())))
}
