//! `idem dead-letters`.

use crate::{
    command_line::{DeadLetters, Limit, Which},
    commands::forget::check_time,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Row},
};

/// Parameters: 1 ids or NULL, 2 consumer or NULL, 3 reason or NULL, 4 from or NULL, 5 to or NULL.
const CHOSEN: &str = "\
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE ($1::int8[] IS NULL OR d.id = ANY ($1::int8[])) AND ($2::text IS NULL OR c.name = $2::text)
    AND ($3::text IS NULL OR d.reason = $3::text)
    AND ($4::text IS NULL OR d.last_at >= $4::text::timestamptz)
    AND ($5::text IS NULL OR d.last_at < $5::text::timestamptz)";

const LIST: &str = "\
SELECT d.id, c.name AS consumer, c.tenant, d.idempotency_key AS key, d.reason, d.attempts, d.copies, d.last_at, d.error,
    CASE WHEN d.replayed_at IS NOT NULL THEN d.replay_outcome WHEN d.replay_taken_at IS NOT NULL THEN 'running'
        WHEN d.replay_requested_at IS NOT NULL THEN 'awaited' END AS replay
{chosen} ORDER BY d.id DESC LIMIT $6::int8";

const SHOW: &str = "\
SELECT d.id, c.name AS consumer, c.tenant, d.idempotency_key AS key, encode(d.payload_hash, 'hex') AS payload_hash, d.reason,
    d.attempts, d.copies, d.error, d.origin, d.last_origin, d.message_id, d.message_type, d.payload_bytes,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept, d.first_at, d.last_at, d.published_at,
    d.replay_requested_at, d.replay_taken_at, d.replayed_at, d.replay_outcome
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer WHERE d.id = $1::int8";

const PAYLOAD: &str = "\
SELECT encode(d.payload, 'hex') AS payload, d.headers FROM {schema}.dead_letters AS d WHERE d.id = $1::int8";

/// The trail is written before anything is shown (R94).
const NOTE_READ: &str = "\
WITH noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, 'read-payload', consumer, idempotency_key, format('dead letter %s', id)
    FROM {schema}.dead_letters WHERE id = $1::int8 RETURNING id
)
SELECT count(*) FROM noted";

/// Why a replay would only fail again, by the reason that the dead letter has.
const HOPELESS: &str = "\
SELECT d.reason, count(*) AS dead_letters, min(CASE WHEN d.payload IS NULL AND d.has_payload
        THEN 'the payload was too large to keep: have the producer send the message again'
    WHEN d.reason = 'missing-key' THEN 'it has no key: have the producer send it with one'
    ELSE 'its key has a record of another payload: run `idem forget KEY` first if this one is to take effect' END) AS why
{chosen} AND ((d.payload IS NULL AND d.has_payload) OR d.reason IN ('conflict', 'key-collision', 'hash-unknown', 'missing-key'))
    AND NOT (d.payload IS NOT NULL AND d.reason IN ('conflict', 'key-collision', 'hash-unknown') AND NOT EXISTS (
        SELECT FROM {schema}.processed_messages AS p WHERE p.consumer = d.consumer AND p.key_id = d.key_id))
GROUP BY d.reason, d.payload IS NULL AND d.has_payload ORDER BY d.reason";

/// Marks those that do not wait already, empties the caches of committed keys, and writes the trail. A replay counts its
/// attempts anew, so the old count goes with the mark. Further parameter: 6 who.
const REPLAY: &str = "\
WITH asked AS (
    UPDATE {schema}.dead_letters SET replay_requested_at = now(), replay_taken_at = NULL, replay_taken_by = NULL,
        replayed_at = NULL, replay_outcome = NULL
    WHERE id = ANY (ARRAY(SELECT d.id {chosen})) AND (replay_requested_at IS NULL OR replayed_at IS NOT NULL)
    RETURNING id, consumer, idempotency_key
), emptied AS (
    INSERT INTO {schema}.controls AS c (consumer, epoch) SELECT DISTINCT consumer, 1 FROM asked ORDER BY consumer
    ON CONFLICT (consumer) DO UPDATE SET epoch = c.epoch + 1
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $6::text, 'replay', consumer, idempotency_key, format('dead letter %s', id) FROM asked
)
SELECT count(*) FROM asked";

/// Further parameters: 6 who, 7 why.
const DROP: &str = "\
WITH gone AS (
    DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(SELECT d.id {chosen}))
    RETURNING id, consumer, idempotency_key
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $6::text, 'drop', consumer, idempotency_key, format('dead letter %s: %s', id, $7::text) FROM gone
)
SELECT count(*) FROM gone";

pub(crate) async fn run(mut database: Database, command: DeadLetters) -> Result<Report, Failure> {
    match command {
        DeadLetters::List { which, limit } => list(&mut database, &which, &limit).await,
        DeadLetters::Show { id, payload } => show(&mut database, id, payload).await,
        DeadLetters::Replay { which, dry_run, yes } => replay(&mut database, &which, dry_run, yes.yes).await,
        DeadLetters::Drop { which, because, dry_run, yes } => {
            drop_them(&mut database, &which, &because, dry_run, yes.yes).await
        }
    }
}

fn statement(template: &str) -> String {
    template.replace("{chosen}", CHOSEN)
}

fn chosen(which: &Which) -> Vec<Bind<'_>> {
    vec![
        if which.id.is_empty() { Bind::TextOr(None) } else { Bind::Numbers(&which.id) },
        Bind::TextOr(which.consumer.as_deref()),
        Bind::TextOr(which.reason.map(idem_core::Reason::as_str)),
        Bind::TextOr(which.from.as_deref()),
        Bind::TextOr(which.to.as_deref()),
    ]
}

async fn check(database: &mut Database, which: &Which) -> Result<(), Failure> {
    if let Some(consumer) = &which.consumer {
        database.known(consumer).await?;
    }
    for time in [&which.from, &which.to].into_iter().flatten() {
        check_time(database, time).await?;
    }
    Ok(())
}

/// Refuses a command that would change all dead letters of all consumers because nothing was said.
async fn count(database: &mut Database, which: &Which) -> Result<i64, Failure> {
    if which.id.is_empty() && which.consumer.is_none() {
        return Err(Failure::refused("say which: ids, or --consumer"));
    }
    check(database, which).await?;
    database.number(&statement("SELECT count(*) {chosen}"), &chosen(which)).await
}

async fn list(database: &mut Database, which: &Which, limit: &Limit) -> Result<Report, Failure> {
    check(database, which).await?;
    let mut binds = chosen(which);
    binds.push(Bind::Number(limit.limit));
    Ok(Report::new().table("dead letters", database.table(&statement(LIST), &binds).await?))
}

async fn show(database: &mut Database, id: i64, with_payload: bool) -> Result<Report, Failure> {
    let letter = database.table(SHOW, &[Bind::Number(id)]).await?;
    if letter.is_empty() {
        return Err(Failure::refused(format!("there is no dead letter {id}")));
    }
    let report = Report::new().table("dead letter", letter);
    if !with_payload {
        return Ok(report);
    }
    let by = database.by.clone();
    database.number(NOTE_READ, &[Bind::Number(id), Bind::Text(&by)]).await?;
    let payload = database.table(PAYLOAD, &[Bind::Number(id)]).await?;
    let row =
        |row: &Row| Row::new([("payload", text(row.text("payload")).into()), ("headers", row.get("headers").clone())]);
    Ok(report.table("payload", payload.rows().iter().map(row).collect()))
}

/// The payload as text where it is one, else its hexadecimal digits.
fn text(digits: &str) -> String {
    let byte = |start| u8::from_str_radix(digits.get(start..start + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| digits.to_owned())
}

async fn replay(database: &mut Database, which: &Which, dry_run: bool, is_yes: bool) -> Result<Report, Failure> {
    let count = count(database, which).await?;
    let mut binds = chosen(which);
    let hopeless = database.table(&statement(HOPELESS), &binds).await?;
    if let Some(row) = hopeless.rows().first() {
        let (number, reason, why) = (row.number("dead_letters"), row.text("reason"), row.text("why"));
        return Err(Failure::refused(format!(
            "{number} of them have the reason {reason} and cannot be replayed: {why}. Leave them out by id or --reason"
        )));
    }
    if count == 0 || dry_run {
        return Ok(Report::said(format!("{count} would be replayed")));
    }
    confirm(&format!("This has running workers handle {count} dead letters again"), is_yes)?;
    let by = database.by.clone();
    binds.push(Bind::Text(&by));
    let asked = database.number(&statement(REPLAY), &binds).await?;
    Ok(Report::said(format!(
        "{asked} asked for. Running workers take them within seconds; `idem dead-letters list` shows what became of them."
    )))
}

async fn drop_them(
    database: &mut Database,
    which: &Which,
    because: &str,
    dry_run: bool,
    is_yes: bool,
) -> Result<Report, Failure> {
    let count = count(database, which).await?;
    if count == 0 || dry_run {
        return Ok(Report::said(format!("{count} would be dropped")));
    }
    confirm(&format!("This deletes {count} dead letters for good"), is_yes)?;
    let by = database.by.clone();
    let mut binds = chosen(which);
    binds.extend([Bind::Text(&by), Bind::Text(because)]);
    let gone = database.number(&statement(DROP), &binds).await?;
    Ok(Report::said(format!("{gone} dropped")))
}
