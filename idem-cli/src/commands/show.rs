//! `idem show KEY`.

use idem_core::hash::{PayloadHasher as _, Unhashed};
use serde_json::Value;

use crate::{
    command_line::Show,
    commands::requests,
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Row, Table},
};

const RECORDS: &str = "\
SELECT c.name AS consumer, c.tenant, p.processed_at, r.host, r.process, r.version, p.processed_by AS run,
    pg_catalog.encode(p.payload_hash, 'hex') AS payload_hash, h.rule AS hash_rule,
    CASE WHEN p.expires_at < 'infinity' THEN p.expires_at END AS expires_at, p.expires_at <= pg_catalog.now() AS expired,
    p.idempotency_key = '' AS erased
FROM {schema}.processed_messages AS p
JOIN {schema}.consumers AS c ON c.id = p.consumer
LEFT JOIN {schema}.worker_runs AS r ON r.id = p.processed_by
LEFT JOIN {schema}.payload_hashes AS h ON h.id = p.hash_id
WHERE p.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text))
    AND p.key_id = {schema}.key_id($1::text)
ORDER BY c.name, c.tenant";

const ATTEMPTS: &str = "\
SELECT c.name AS consumer, c.tenant, pg_catalog.encode(a.payload_hash, 'hex') AS payload_hash, a.attempts, a.first_at, a.last_at
FROM {schema}.message_attempts AS a JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE a.key_id = {schema}.key_id($1::text) AND a.attempts > 0 AND ($2::text IS NULL OR c.name = $2::text)
ORDER BY c.name, c.tenant, a.first_at";

const DEAD_LETTERS: &str = "\
SELECT d.id, c.name AS consumer, c.tenant, d.reason, d.attempts, d.copies, d.error, d.first_at, d.last_at, d.origin,
    d.due_at, d.replay_outcome, d.idempotency_key IS NULL AS erased
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE d.key_id = {schema}.key_id($1::text) AND ($2::text IS NULL OR c.name = $2::text) ORDER BY d.id";

/// A body that is not UTF-8 is shown in hexadecimal, and a sealed body as it is stored.
const RESULTS: &str = "\
SELECT c.name AS consumer, c.tenant, CASE WHEN r.kind & 1::smallint = 1 THEN 'error' ELSE 'answer' END AS kind, r.status, r.stored_at,
    r.answer_until, r.reference, r.content_type, r.sealed_with, r.kind & 6::smallint = 2 AS erased, r.kind & 4::smallint = 4 AS ended,
    r.headers,
    pg_catalog.length(r.body) AS bytes, pg_catalog.encode(r.body, 'hex') AS body
FROM {schema}.processed_results AS r JOIN {schema}.consumers AS c ON c.id = r.consumer
WHERE r.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE $2::text IS NULL OR name = $2::text))
    AND r.key_id = {schema}.key_id($1::text)
ORDER BY c.name, c.tenant";

/// The table notes each reading of the key; here those lines would hide the changes.
const AUDIT: &str = "\
SELECT a.at, a.who, a.login, a.action, c.name AS consumer, a.details
FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE a.idempotency_key = $1::text AND ($2::text IS NULL OR c.name = $2::text) AND a.action <> 'read-key'
ORDER BY a.id DESC LIMIT 20";

/// The trail's lines about erasing a key, whose text they do not hold. There is no index for them.
const ERASED: &str = "\
SELECT a.at, a.who, a.login, a.action, c.name AS consumer, a.details
FROM {schema}.audit AS a LEFT JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE a.action = 'erase' AND pg_catalog.starts_with(a.details, pg_catalog.format('key id %s:', {schema}.key_id($1::text)))
    AND ($2::text IS NULL OR c.name = $2::text)
ORDER BY a.id DESC LIMIT 20";

/// Written before anything is shown: one line for each scope that holds something of the key, or one without a scope. The
/// text of a key goes where idem holds it already and nowhere else, so that looking up an erased key does not bring it
/// back; the key id stands in each line. Further parameters: 3 who, 4 further parts that are shown.
const NOTE_READ: &str = "\
WITH held AS (
    SELECT p.consumer, p.idempotency_key FROM {schema}.processed_messages AS p
    WHERE p.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers)) AND p.key_id = {schema}.key_id($1::text)
    UNION ALL SELECT a.consumer, a.idempotency_key FROM {schema}.message_attempts AS a
    WHERE a.key_id = {schema}.key_id($1::text) AND a.attempts > 0
    UNION ALL SELECT d.consumer, d.idempotency_key FROM {schema}.dead_letters AS d
    WHERE d.key_id = {schema}.key_id($1::text)
), asked AS (
    SELECT held.consumer, pg_catalog.max(held.idempotency_key) AS idempotency_key
    FROM held JOIN {schema}.consumers AS c ON c.id = held.consumer
    WHERE $2::text IS NULL OR c.name = $2::text GROUP BY held.consumer
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, 'read-key', consumer, CASE WHEN idempotency_key <> '' THEN idempotency_key END,
        pg_catalog.format('key id %s%s', {schema}.key_id($1::text), $4::text)
    FROM (SELECT consumer, idempotency_key FROM asked
        UNION ALL SELECT NULL::int, NULL::text WHERE NOT EXISTS (SELECT FROM asked)) AS scopes
    RETURNING id
)
SELECT pg_catalog.count(*) FROM noted";

/// Why nothing is shown where reading could not be noted.
pub(crate) const UNNOTED: &str = "nothing is shown, because who reads keys and payloads is noted in the audit trail first, and \
    that failed";

/// The facts known of a key.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) records: Table,
    /// Where they were asked for.
    pub(crate) results: Option<Table>,
    pub(crate) attempts: Table,
    pub(crate) dead_letters: Table,
    pub(crate) audit: Table,
    /// Whether the key is in progress at a consumer that has no record of it; `None` where the database does not say.
    pub(crate) runs: Option<bool>,
    /// Of a key that is a request's.
    pub(crate) request: Option<requests::Found>,
}

pub(crate) async fn run(mut database: Database, show: &Show) -> Result<Report, Failure> {
    let key = show.of.recorded(&show.key)?;
    let consumer = show.consumer.as_deref();
    if let Some(consumer) = consumer {
        database.known(consumer).await?;
    }
    let binds = [Bind::Text(&key), Bind::TextOr(consumer)];
    let by = database.by.clone();
    let noting = [binds[0], binds[1], Bind::Text(&by), Bind::Text(also(show))];
    database.act(NOTE_READ, &noting).await.map_err(|failure| failure.so(UNNOTED))?;
    let records = database.table(RECORDS, &binds).await?;
    let attempts = database.table(ATTEMPTS, &binds).await?;
    let dead_letters = database.table(DEAD_LETTERS, &binds).await?;
    let audit = database.table(if is_erased(&records, &dead_letters) { ERASED } else { AUDIT }, &binds).await?;
    let results = if show.result { Some(database.table(RESULTS, &binds).await?) } else { None };
    let request = match show.of.named(&show.key, &key) {
        Some(named) => Some(requests::find(&mut database, named, &key, &binds).await?),
        None => None,
    };
    let runs = database.runs(consumer, &key).await?;
    Ok(report(Found { records, results, attempts, dead_letters, audit, runs, request }))
}

/// Whether the key was erased, and then nothing holds its text any more.
pub(crate) fn is_erased(records: &Table, dead_letters: &Table) -> bool {
    let erased = |table: &Table| {
        table.rows().iter().any(|row| matches!(row.get("erased").as_i64(), Some(1)) || *row.get("erased") == true)
    };
    erased(records) || erased(dead_letters)
}

/// The trail's words for a look at the result.
pub(crate) fn also(show: &Show) -> &'static str {
    if show.result { ", and its result" } else { "" }
}

/// A result with its body as text, where it is one.
fn readable(row: &Row) -> Row {
    let text = |digits: &str| String::from_utf8(hex::decode(digits).ok()?).ok();
    let sealed = !row.get("sealed_with").is_null();
    let body = |value: &Value| match value.as_str().filter(|_| !sealed).and_then(text) {
        Some(text) => Value::from(text),
        None => value.clone(),
    };
    row.members()
        .map(|(name, value)| (name.clone(), if name == "body" { body(value) } else { value.clone() }))
        .collect()
}

/// The facts of a key, and the outcome of a redelivery.
pub(crate) fn report(found: Found) -> Report {
    let Found { records, results, attempts, dead_letters, audit, runs, request } = found;
    let redelivery = match &request {
        Some(request) => requests::repeat(&request.requests(&records, runs)),
        None => redelivery(&records, &attempts, runs),
    };
    let report = Report::new();
    let report = match &request {
        Some(request) => report.record("requests", request.requests(&records, runs)),
        None => report,
    };
    let report = report.record("records", records);
    let report = match results {
        Some(results) => report.record("results", results.rows().iter().map(readable).collect()),
        None => report,
    };
    let report = report.table("attempts", attempts).record("dead letters", dead_letters);
    let report = match request {
        Some(request) => report.table("unsent events", request.events).line(requests::SENT),
        None => report,
    };
    report.table("audit", audit).line(redelivery)
}

/// Refuses a text that no message can have as its key.
pub(crate) fn check_key(key: &str) -> Result<(), Failure> {
    let key = idem_core::IdempotencyKey::new(key);
    key.map(|_| ()).map_err(|error| Failure::refused(format!("that is no key: {error}")))
}

/// The outcome of the message if it came again now.
fn redelivery(records: &Table, attempts: &Table, runs: Option<bool>) -> String {
    let names = |rows: &[&Row]| rows.iter().map(|row| row.text("consumer")).collect::<Vec<_>>().join(", ");
    let unhashed = Unhashed.rule();
    let (imported, handled): (Vec<_>, Vec<_>) =
        records.rows().iter().partition(|row| row.text("hash_rule") == unhashed);
    let mut said = Vec::new();
    if !handled.is_empty() {
        said.push(format!(
            "A redelivery with the same payload is skipped as a duplicate by {}; with another payload it is a conflict, and \
             never runs.",
            names(&handled)
        ));
    }
    if !imported.is_empty() {
        said.push(format!(
            "A redelivery is skipped as a duplicate by {}, whatever its payload: the record was imported without a hash.",
            names(&imported)
        ));
    }
    if runs == Some(true) {
        let elsewhere = if said.is_empty() { "" } else { " at another consumer" };
        said.push(format!(
            "The key is in progress{elsewhere}, and nothing of that can be seen before its commit: a redelivery waits for its end."
        ));
    }
    if !said.is_empty() {
        return said.join(" ");
    }
    if attempts.is_empty() {
        return "A redelivery is handled: there is no record of this key.".to_owned();
    }
    let names = names(&attempts.rows().iter().collect::<Vec<_>>());
    format!("A redelivery is handled, and its attempts go on from the count above at {names}.")
}
