//! `idem dead-letters`.

pub(crate) mod accept_loss;
pub(crate) mod groups;
pub(crate) mod wait;

use idem_core::dead_letter::Reason;

use crate::{
    command_line::{DeadLetters, Replay, StateOf, Which, shared::Limit},
    commands::{
        forget::{self, check_time},
        show,
    },
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Row, Table},
};

/// Parameters: 1 ids or NULL, 2 consumer or NULL, 3 reason or NULL, 4 from or NULL, 5 to or NULL, 6 group or NULL.
const CHOSEN: &str = "\
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE ($1::int8[] IS NULL OR d.id = ANY ($1::int8[])) AND ($2::text IS NULL OR c.name = $2::text)
    AND ($3::text IS NULL OR d.reason = $3::text)
    AND ($4::text IS NULL OR d.last_at >= $4::text::timestamptz)
    AND ($5::text IS NULL OR d.last_at < $5::text::timestamptz)
    AND ($6::text IS NULL OR d.fingerprint = $6::text)";

/// One whose failure may still matter: a dead letter that was replayed and went well is history.
pub(crate) const OPEN: &str = "(d.replayed_at IS NULL OR pg_catalog.starts_with(d.replay_outcome, 'failed'))";

/// A row that waits for a later try: it is no dead letter. One whose replay an operator asked for is.
pub(crate) const WAITS: &str = "(d.state <> 0::int2 AND d.due_by IS NULL)";

/// An id that no dead letter has. Parameters: 1 ids.
const UNKNOWN: &str = "\
SELECT coalesce(pg_catalog.min(asked.id), 0) AS id, pg_catalog.count(*) AS unknown
FROM pg_catalog.unnest($1::int8[]) AS asked (id)
WHERE NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.id = asked.id)";

const LIST: &str = "\
SELECT d.id, c.name AS consumer, c.tenant, d.idempotency_key AS key, d.reason, d.fingerprint AS \"group\", d.attempts,
    d.copies, d.last_at, {due}d.error,
    CASE WHEN d.replayed_at IS NOT NULL THEN d.replay_outcome WHEN d.taken_at IS NOT NULL THEN 'running'
        WHEN d.state <> 0::int2 AND d.due_by IS NOT NULL THEN 'awaited' END AS replay
{chosen} ORDER BY {order} LIMIT $7::int8";

const SHOW: &str = "\
SELECT d.id, c.name AS consumer, c.tenant, d.idempotency_key AS key, pg_catalog.encode(d.payload_hash, 'hex') AS payload_hash, d.reason,
    d.fingerprint AS \"group\", d.attempts, d.copies, d.error, d.origin, d.last_origin, d.message_id, d.message_type, d.payload_bytes,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept, d.first_at, d.last_at, d.published_at,
    d.loss_accepted_at, d.loss_accepted_by,
    d.due_at, d.due_by, d.taken_at, d.replayed_at, d.replay_outcome
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer WHERE d.id = $1::int8";

const PAYLOAD: &str = "\
SELECT pg_catalog.encode(d.payload, 'hex') AS payload, d.headers FROM {schema}.dead_letters AS d WHERE d.id = $1::int8";

/// The trail is written before anything is shown. Parameters: 1 id, 2 who, 3 the action's name in the trail.
const NOTE_READ: &str = "\
WITH noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, $3::text, consumer, idempotency_key, pg_catalog.format('dead letter %s', id)
    FROM {schema}.dead_letters WHERE id = $1::int8 RETURNING id
)
SELECT pg_catalog.count(*) FROM noted";

/// Why a replay would only fail again, by the dead letter's reason, and the cure. Further parameters: 7 whether malformed ones
/// are to run all the same, 8 whether conflicts are.
const HOPELESS: &str = "\
SELECT hopeless.reason, pg_catalog.count(*) AS dead_letters, pg_catalog.min(why) AS why FROM (
    SELECT d.reason, CASE
        WHEN d.payload IS NULL AND d.has_payload
            THEN 'the payload was too large to keep, or was erased: have the producer send the message again'
        WHEN d.reason = 'missing-key' AND d.key_id IS NULL THEN 'it has no key: give it one with --key KEY'
        WHEN d.reason = 'malformed' AND $7::int8 = 0
            THEN 'its payload cannot be read: give another with --payload FILE, or --unchanged if the handler was fixed'
        WHEN d.reason IN ('conflict', 'key-collision', 'hash-unknown') AND $8::int8 = 0 AND EXISTS (
                SELECT FROM {schema}.processed_messages AS p WHERE p.consumer = d.consumer AND p.key_id = d.key_id)
            THEN 'its key has a record of another payload: give --forget-first if this one is to take effect, or --key KEY '
                'if it is another message'
        END AS why
    {chosen}) AS hopeless
WHERE why IS NOT NULL GROUP BY hopeless.reason ORDER BY hopeless.reason";

/// Gives a dead letter another key, which counts instead of the message's own. Parameters: 1 id, 2 key, 3 who.
const REKEY: &str = "\
WITH changed AS (
    UPDATE {schema}.dead_letters SET idempotency_key = $2::text, key_id = {schema}.key_id($2::text)
    WHERE id = $1::int8 AND state = 0::int2 RETURNING id, consumer
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, 'change-key', consumer, $2::text, pg_catalog.format('dead letter %s', id) FROM changed
)
SELECT pg_catalog.count(*) FROM changed";

/// Gives a dead letter another payload, and with it another identity: a later copy of the old payload is another dead letter,
/// because this one no longer has it. Parameters: 1 id, 2 payload in hexadecimal digits, 3 who.
const REFILL: &str = "\
WITH changed AS (
    UPDATE {schema}.dead_letters SET payload = pg_catalog.decode($2::text, 'hex'), has_payload = true,
        payload_bytes = pg_catalog.length($2::text) / 2, identity = pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
    WHERE id = $1::int8 AND state = 0::int2
    RETURNING id, consumer, idempotency_key
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $3::text, 'change-payload', consumer, idempotency_key, pg_catalog.format('dead letter %s', id) FROM changed
)
SELECT pg_catalog.count(*) FROM changed";

const IDS: &str = "SELECT d.id {chosen} ORDER BY d.id";

/// Makes those due that are not due already, and writes the trail. Parameters: 1 ids, 2 who.
const REPLAY: &str = "\
WITH asked AS MATERIALIZED (
    SELECT due AS id FROM {schema}.due_now($1::int8[], $2::text) AS due
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, 'replay', d.consumer, d.idempotency_key, pg_catalog.format('dead letter %s', d.id)
    FROM {schema}.dead_letters AS d WHERE d.id = ANY (ARRAY(SELECT asked.id FROM asked))
)
SELECT pg_catalog.count(*) FROM asked";

/// How many of these wait or run, and how many have failed again. Parameter: 1 ids.
const LEFT: &str = "\
SELECT pg_catalog.count(*) FILTER (WHERE d.state <> 0::int2),
    pg_catalog.count(*) FILTER (WHERE d.state = 0::int2 AND coalesce(pg_catalog.starts_with(d.replay_outcome, 'failed'), true))
FROM {schema}.dead_letters AS d WHERE d.id = ANY ($1::int8[])";

/// Further parameters: 7 who, 8 why.
const DROP: &str = "\
WITH gone AS (
    DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(SELECT d.id {chosen}))
    RETURNING id, consumer, idempotency_key
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $7::text, 'drop', consumer, idempotency_key, pg_catalog.format('dead letter %s: %s', id, $8::text) FROM gone
)
SELECT pg_catalog.count(*) FROM gone";

pub(crate) async fn run(mut database: Database, command: DeadLetters) -> Result<Report, Failure> {
    match command {
        DeadLetters::List { which, limit } => list(&mut database, &which, &limit).await,
        DeadLetters::Groups(asked) => groups::run(&mut database, &asked).await,
        DeadLetters::AcceptLoss(asked) => accept_loss::run(&mut database, &asked).await,
        DeadLetters::Show { id, payload } => show(&mut database, id, payload).await,
        DeadLetters::Replay(mut asked) => {
            // What has taken effect must not take it again because its record is forgotten.
            asked.which.open |= asked.forget_first && asked.which.id.is_empty();
            replay(&mut database, &asked).await
        }
        DeadLetters::Drop { which, because, dry_run, yes } => {
            drop_them(&mut database, &which, &because, dry_run, yes.yes).await
        }
    }
}

fn statement(template: &str, which: &Which) -> String {
    let mut chosen = CHOSEN.to_owned();
    if which.open {
        chosen = format!("{chosen} AND {OPEN}");
    }
    if let Some(state) = of_state(which.state(), WAITS) {
        chosen = format!("{chosen} AND {state}");
    }
    let (due, order) = columns_and_order(which.state());
    template.replace("{chosen}", &chosen).replace("{due}", due).replace("{order}", order).replace("{open}", OPEN)
}

/// The condition for rows in this state.
pub(crate) fn of_state(state: StateOf, waits: &str) -> Option<String> {
    match state {
        StateOf::Dead => Some(format!("NOT {waits}")),
        StateOf::Waiting => Some(waits.to_owned()),
        StateOf::All => None,
    }
}

/// What a list of rows in this state has more, and its order: the newest first, or the one that runs next.
fn columns_and_order(state: StateOf) -> (&'static str, &'static str) {
    match state {
        StateOf::Dead => ("", "{open} DESC, d.id DESC"),
        StateOf::Waiting => ("d.due_at, ", "d.due_at, d.id"),
        StateOf::All => ("d.due_at, ", "{open} DESC, d.id DESC"),
    }
}

/// What rows in this state are called.
pub(crate) fn title(state: StateOf) -> &'static str {
    match state {
        StateOf::Dead => "dead letters",
        StateOf::Waiting => "waiting messages",
        StateOf::All => "dead letters and waiting messages",
    }
}

fn chosen(which: &Which) -> Vec<Bind<'_>> {
    vec![
        if which.id.is_empty() { Bind::TextOr(None) } else { Bind::Numbers(&which.id) },
        Bind::TextOr(which.consumer.as_deref()),
        Bind::TextOr(which.reason.map(Reason::as_str)),
        Bind::TextOr(which.from.as_deref()),
        Bind::TextOr(which.to.as_deref()),
        Bind::TextOr(which.group.as_deref()),
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

/// How many there are. Refuses a command without a selection, which would change all dead letters of all consumers, and one
/// whose dead letters do not exist: with a mistyped number or group it would look like success.
async fn count(database: &mut Database, which: &Which) -> Result<i64, Failure> {
    if which.id.is_empty() && which.consumer.is_none() && which.group.is_none() {
        return Err(Failure::refused("say which: ids, --consumer or --group"));
    }
    check(database, which).await?;
    let [unknown, count] = database.numbers(UNKNOWN, &[Bind::Numbers(&which.id)]).await?;
    if count > 0 {
        return Err(Failure::refused(format!("there is no dead letter {unknown}")));
    }
    let chosen = database.number(&statement("SELECT pg_catalog.count(*) {chosen}", which), &chosen(which)).await?;
    match &which.group {
        Some(group) if chosen == 0 => Err(Failure::refused(format!(
            "no such dead letter has the group {group}; `idem dead-letters groups` lists those that there are"
        ))),
        Some(_) | None => Ok(chosen),
    }
}

async fn list(database: &mut Database, which: &Which, limit: &Limit) -> Result<Report, Failure> {
    check(database, which).await?;
    let mut binds = chosen(which);
    binds.push(Bind::Number(limit.limit));
    let letters = database.table(&statement(LIST, which), &binds).await?;
    let shown = i64::try_from(letters.rows().len()).unwrap_or(i64::MAX);
    let report = Report::new().table(title(which.state()), letters);
    if shown < limit.limit {
        return Ok(report);
    }
    let all = database.number(&statement("SELECT pg_catalog.count(*) {chosen}", which), &chosen(which)).await?;
    Ok(if all > shown {
        report.line(format!(
            "{} of {}; --limit N shows more, and `idem dead-letters groups` what they have in common",
            thousands(shown),
            thousands(all)
        ))
    } else {
        report
    })
}

/// A count as people read it: 3,011.
pub(crate) fn thousands(count: i64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

async fn show(database: &mut Database, id: i64, with_payload: bool) -> Result<Report, Failure> {
    let by = database.by.clone();
    let noting = [Bind::Number(id), Bind::Text(&by), Bind::Text(read(with_payload))];
    if database.act(NOTE_READ, &noting).await.map_err(|failure| failure.so(show::UNNOTED))? == 0 {
        return Err(Failure::refused(format!("there is no dead letter {id}")));
    }
    let report = Report::new().record("dead letter", database.table(SHOW, &[Bind::Number(id)]).await?);
    if !with_payload {
        return Ok(report);
    }
    let payload = database.table(PAYLOAD, &[Bind::Number(id)]).await?;
    Ok(with_content(report, &payload))
}

/// The trail's word for reading a dead letter.
pub(crate) fn read(with_payload: bool) -> &'static str {
    if with_payload { "read-payload" } else { "read-dead-letter" }
}

/// The report with payload and headers, which SQLite has as a text.
pub(crate) fn with_content(report: Report, payload: &Table) -> Report {
    let headers = |row: &Row| serde_json::from_str(row.text("headers")).unwrap_or_else(|_| row.get("headers").clone());
    let row = |row: &Row| Row::new([("payload", text(row.text("payload")).into()), ("headers", headers(row))]);
    report.record("payload", payload.rows().iter().map(row).collect())
}

/// The payload as text where it is one, else its hexadecimal digits.
fn text(digits: &str) -> String {
    let text = hex::decode(digits).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.unwrap_or_else(|| digits.to_owned())
}

async fn replay(database: &mut Database, replay: &Replay) -> Result<Report, Failure> {
    let which = &replay.which;
    let count = count(database, which).await?;
    let payload = payload_of(replay)?;
    if let Some(key) = &replay.key {
        show::check_key(key)?;
    }
    refuse_others(database, replay).await?;
    refuse_hopeless(database, replay, payload.is_some()).await?;
    if count == 0 || replay.dry_run {
        return Ok(Report::said(format!("{count} would be replayed")));
    }
    at_rest(database, replay).await?;
    confirm(&format!("This has running workers handle {count} dead letters again"), replay.yes.yes)?;
    let by = database.by.clone();
    for id in &which.id {
        for (statement, value) in [(REKEY, &replay.key), (REFILL, &payload)] {
            if let Some(value) = value
                && database.act(statement, &[Bind::Number(*id), Bind::Text(value), Bind::Text(&by)]).await? == 0
            {
                return Err(Failure::refused(format!("dead letter {id} awaits a replay already")));
            }
        }
    }
    let forgotten = forget_first(database, replay).await?;
    let ids = database.table(&statement(IDS, which), &chosen(which)).await?;
    let ids: Vec<i64> = ids.rows().iter().map(|row| row.number("id")).collect();
    let asked = database.act(REPLAY, &[Bind::Numbers(&ids), Bind::Text(&by)]).await?;
    let report = if replay.wait {
        let binds = [Bind::Numbers(&ids)];
        wait::until_over(ids.len(), async || database.numbers(LEFT, &binds).await).await?
    } else {
        wait::asked(asked)
    };
    let restore = |batch| format!("To take back the records forgotten for it: idem forgotten restore {batch}");
    Ok(forgotten.into_iter().map(restore).fold(report, Report::line))
}

/// The payload to replay with, in hexadecimal digits. A change of a dead letter is for one, by its id.
fn payload_of(replay: &Replay) -> Result<Option<String>, Failure> {
    if (replay.key.is_some() || replay.payload.is_some()) && replay.which.id.len() != 1 {
        return Err(Failure::refused("--key and --payload are for one dead letter, by its id"));
    }
    if replay.forget_first && replay.which.id.is_empty() && replay.which.group.is_none() {
        return Err(Failure::refused("--forget-first is for dead letters by their ids or --group"));
    }
    let Some(path) = &replay.payload else { return Ok(None) };
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::refused(format!("{} cannot be read: {}", path.display(), error.kind())))?;
    Ok(Some(hex::encode(bytes)))
}

/// Refuses to forget records by a group of dead letters that met none: such a record is of the same payload, which has taken effect.
async fn refuse_others(database: &mut Database, replay: &Replay) -> Result<(), Failure> {
    let Some(group) = replay.which.group.as_deref().filter(|_| replay.forget_first && replay.which.id.is_empty())
    else {
        return Ok(());
    };
    let others =
        "SELECT pg_catalog.count(*) {chosen} AND d.reason NOT IN ('conflict', 'key-collision', 'hash-unknown')";
    if database.number(&statement(others, &replay.which), &chosen(&replay.which)).await? > 0 {
        return Err(Failure::refused(format!(
            "the dead letters of the group {group} are no conflicts, so there is no record to forget: leave --forget-first out"
        )));
    }
    Ok(())
}

async fn refuse_hopeless(database: &mut Database, replay: &Replay, has_payload: bool) -> Result<(), Failure> {
    let mut binds = chosen(&replay.which);
    let is_mended = has_payload || replay.unchanged;
    let is_allowed = replay.forget_first || replay.key.is_some();
    binds.extend([Bind::Number(i64::from(is_mended)), Bind::Number(i64::from(is_allowed))]);
    let hopeless = database.table(&statement(HOPELESS, &replay.which), &binds).await?;
    let is_cured = |reason: &str| reason == Reason::MissingKey.as_str() && replay.key.is_some();
    match hopeless.rows().iter().find(|row| !is_cured(row.text("reason"))) {
        None => Ok(()),
        Some(row) => {
            let (number, reason, why) = (row.number("dead_letters"), row.text("reason"), row.text("why"));
            Err(Failure::refused(format!(
                "{number} of them have the reason {reason} and cannot be replayed as they are: {why}. Or leave them out by \
                 id or --reason"
            )))
        }
    }
}

/// Refuses to forget a key that is in progress: there is no record to forget yet, and after its commit the replay would be a conflict.
async fn at_rest(database: &mut Database, replay: &Replay) -> Result<(), Failure> {
    for (consumer, key) in keys_to_forget(database, replay).await? {
        let refused = |failure: Failure| failure.so(&format!("the key {key:?} cannot be forgotten first"));
        database.at_rest(Some(&consumer), &key).await.map_err(refused)?;
    }
    Ok(())
}

/// Parameters as those of [`CHOSEN`].
const KEYS: &str = "\
SELECT DISTINCT c.name AS consumer, d.idempotency_key AS key {chosen} AND d.idempotency_key IS NOT NULL ORDER BY c.name, d.idempotency_key";

/// The consumers and keys whose records go before a replay.
async fn keys_to_forget(database: &mut Database, replay: &Replay) -> Result<Vec<(String, String)>, Failure> {
    if !replay.forget_first {
        return Ok(Vec::new());
    }
    let keys = database.table(&statement(KEYS, &replay.which), &chosen(&replay.which)).await?;
    Ok(keys.rows().iter().map(|row| (row.text("consumer").to_owned(), row.text("key").to_owned())).collect())
}

/// Forgets the records that the dead letters met, and returns the number of each consumer's batch.
async fn forget_first(database: &mut Database, replay: &Replay) -> Result<Vec<i64>, Failure> {
    let mut batches = Vec::new();
    let keys = keys_to_forget(database, replay).await?;
    for of_one in keys.chunk_by(|(one, _), (other, _)| one == other) {
        let consumer = &of_one[0].0;
        let keys: Vec<String> = of_one.iter().map(|(_, key)| key.clone()).collect();
        let reason = match (&replay.which.group, &replay.which.id[..]) {
            (Some(group), _) => format!("for the replay of the dead letters of the group {group}"),
            (None, [id]) => format!("for the replay of dead letter {id}"),
            (None, ids) => format!("for the replay of {} dead letters", ids.len()),
        };
        let (_, batch) = forget::forget_keys(database, consumer, &keys, &reason).await?;
        batches.push(batch);
    }
    Ok(batches)
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
    let gone = database.act(&statement(DROP, which), &binds).await?;
    Ok(Report::said(format!("{gone} dropped")))
}
