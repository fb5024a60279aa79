//! `idem forget`: the only way to let a message take effect once more.

use crate::{
    command_line::Forget,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

/// Records a transaction.
const CHUNK: i64 = 1_000;

/// Parameters: 1 consumer, 2 keys or NULL, 3 from or NULL, 4 to or NULL, 5 run or NULL, 6 version or NULL.
const CHOSEN: &str = "\
FROM {schema}.processed_messages AS p
WHERE p.consumer = ANY (ARRAY(SELECT id FROM {schema}.consumers WHERE name = $1::text))
    AND ($2::text[] IS NULL OR p.key_id = ANY (ARRAY(SELECT {schema}.key_id(k) FROM pg_catalog.unnest($2::text[]) AS k)))
    AND ($3::text IS NULL OR p.processed_at >= $3::text::timestamptz)
    AND ($4::text IS NULL OR p.processed_at < $4::text::timestamptz)
    AND ($5::int8 IS NULL OR p.processed_by = $5::int8)
    AND ($6::text IS NULL OR p.processed_by = ANY (ARRAY(SELECT id FROM {schema}.worker_runs WHERE version = $6::text)))";

/// Record, count of attempts, trail and the caches of running workers change in one transaction. Forgotten rows can
/// still be taken back. Further parameters: 7 how many, 8 who, 9 why, 10 batch.
const FORGET: &str = "\
WITH gone AS (
    DELETE FROM {schema}.processed_messages WHERE ctid = ANY (ARRAY(SELECT p.ctid {chosen} LIMIT $7::int8)) RETURNING *
), kept AS (
    INSERT INTO {schema}.forgotten (batch, consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at,
        processed_by, expires_at)
    SELECT $10::int8, consumer, key_id, idempotency_key, payload_hash, hash_id, processed_at, processed_by, expires_at
    FROM gone
), results AS (
    DELETE FROM {schema}.processed_results AS r USING gone WHERE r.consumer = gone.consumer AND r.key_id = gone.key_id
), counts AS (
    DELETE FROM {schema}.message_attempts AS a USING gone WHERE a.consumer = gone.consumer AND a.key_id = gone.key_id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $8::text, 'forget', consumer, nullif(idempotency_key, ''), $9::text FROM gone
), emptied AS (
    INSERT INTO {schema}.controls AS c (consumer, epoch) SELECT DISTINCT consumer, 1 FROM gone ORDER BY consumer
    ON CONFLICT (consumer) DO UPDATE SET epoch = (c.epoch + 1) % 1099511627776
)
SELECT pg_catalog.count(*) FROM gone";

/// A number that no other act of forgetting has.
const BATCH: &str = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000::numeric)::int8";

/// The places of the keys, from 1, that some scope of the consumer has no record of. Parameters: 1 consumer, 2 keys.
const UNRECORDED: &str = "\
SELECT k.number FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS k (key, number)
WHERE EXISTS (SELECT FROM {schema}.consumers AS c WHERE c.name = $1::text AND NOT EXISTS (
    SELECT FROM {schema}.processed_messages AS p WHERE p.consumer = c.id AND p.key_id = {schema}.key_id(k.key)))
ORDER BY k.number";

pub(crate) async fn run(mut database: Database, forget: &Forget) -> Result<Report, Failure> {
    database.known(&forget.consumer).await?;
    let keys = keys(forget)?;
    for time in [&forget.from, &forget.to].into_iter().flatten() {
        check_time(&mut database, time).await?;
    }
    let keys = keys.as_deref();
    at_rest(&mut database, &forget.consumer, keys.unwrap_or_default()).await?;
    let chosen = [
        Bind::Text(&forget.consumer),
        keys.map_or(Bind::TextOr(None), Bind::Texts),
        Bind::TextOr(forget.from.as_deref()),
        Bind::TextOr(forget.to.as_deref()),
        Bind::NumberOr(forget.run),
        Bind::TextOr(forget.release.as_deref()),
    ];
    let count = database.number(&format!("SELECT pg_catalog.count(*) {CHOSEN}"), &chosen).await?;
    let records = if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
    if count == 0 || forget.dry_run {
        return none_or_dry(&records, forget);
    }
    confirm(&warning(&records, &forget.consumer), forget.yes.yes)?;
    let (forgotten, batch) = forget_chosen(&mut database, &chosen, count, &forget.reason).await?;
    Ok(done(forgotten, batch))
}

/// Refuses keys of which one is in progress. A key with a record is not: its message would be a duplicate.
async fn at_rest(database: &mut Database, consumer: &str, keys: &[String]) -> Result<(), Failure> {
    let unrecorded = database.table(UNRECORDED, &[Bind::Text(consumer), Bind::Texts(keys)]).await?;
    for row in unrecorded.rows() {
        let number = usize::try_from(row.number("number")).unwrap_or_default();
        let Some(key) = number.checked_sub(1).and_then(|place| keys.get(place)) else { continue };
        database.at_rest(Some(consumer), key).await.map_err(|failure| failure.so(&numbered(number)))?;
    }
    Ok(())
}

fn numbered(number: usize) -> String {
    format!("key number {number} cannot be forgotten")
}

/// What is said where nothing was forgotten. Without `--dry-run` it is refused: whoever names records that are not there has the wrong
/// key or consumer, and must not take them for forgotten.
pub(crate) fn none_or_dry(records: &str, forget: &Forget) -> Result<Report, Failure> {
    let consumer = &forget.consumer;
    if forget.dry_run {
        return Ok(Report::said(format!("{records} of {consumer} would be forgotten")));
    }
    Err(Failure::refused(format!(
        "nothing was forgotten: {records} of {consumer} are what you name; `idem show KEY` looks for one under every consumer"
    )))
}

pub(crate) fn warning(records: &str, consumer: &str) -> String {
    format!("This forgets {records} of {consumer}: if their messages come again, they take effect once more")
}

pub(crate) fn done(forgotten: i64, batch: i64) -> Report {
    Report::said(format!(
        "{forgotten} forgotten. Running workers may still answer from memory for up to 2 seconds. Until cleanup takes them, \
         this takes it back: idem forgotten restore {batch}"
    ))
}

/// Forgets some keys of a consumer, and returns how many, and the batch.
pub(crate) async fn forget_keys(
    database: &mut Database,
    consumer: &str,
    keys: &[String],
    reason: &str,
) -> Result<(i64, i64), Failure> {
    let chosen = [
        Bind::Text(consumer),
        Bind::Texts(keys),
        Bind::TextOr(None),
        Bind::TextOr(None),
        Bind::NumberOr(None),
        Bind::TextOr(None),
    ];
    forget_chosen(database, &chosen, i64::try_from(keys.len()).unwrap_or(i64::MAX), reason).await
}

async fn forget_chosen(
    database: &mut Database,
    chosen: &[Bind<'_>],
    count: i64,
    reason: &str,
) -> Result<(i64, i64), Failure> {
    let by = database.by.clone();
    let batch = database.number(BATCH, &[]).await?;
    let mut binds = chosen.to_vec();
    binds.extend([Bind::Number(CHUNK), Bind::Text(&by), Bind::Text(reason), Bind::Number(batch)]);
    let statement = FORGET.replace("{chosen}", CHOSEN);
    let mut forgotten = 0;
    // As many as were counted and confirmed: keys processed in the meantime stay.
    while forgotten < count {
        match database.act(&statement, &binds).await? {
            0 => break,
            gone => forgotten += gone,
        }
    }
    Ok((forgotten, batch))
}

/// The keys that were named; `None` where the choice is another.
pub(crate) fn keys(forget: &Forget) -> Result<Option<Vec<String>>, Failure> {
    let mut keys = forget.key.clone();
    if let Some(path) = &forget.keys {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::refused(format!("{} cannot be read: {}", path.display(), error.kind())))?;
        keys.extend(text.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    }
    for (number, key) in keys.iter_mut().enumerate() {
        *key = forget.of.recorded(key).map_err(|failure| failure.so(&numbered(number + 1)))?;
    }
    Ok((forget.keys.is_some() || !keys.is_empty()).then_some(keys))
}

/// A time without a zone would be another in each place, so one is asked for.
pub(crate) async fn check_time(database: &mut Database, time: &str) -> Result<(), Failure> {
    if !has_zone(time) {
        return Err(wrong(time));
    }
    let read = database.number("SELECT extract(epoch FROM $1::text::timestamptz)::int8", &[Bind::Text(time)]).await;
    read.map(|_| ()).map_err(|_| wrong(time))
}

pub(crate) fn has_zone(time: &str) -> bool {
    let is_said = time.ends_with('Z') || time.get(10..).is_some_and(|rest| rest.contains(['+', '-']));
    is_said && time.starts_with(|c: char| c.is_ascii_digit())
}

pub(crate) fn wrong(time: &str) -> Failure {
    Failure::refused(format!("{time:?} is no time with a zone, such as 2026-11-21T20:00:00Z"))
}
