//! `idem dead-letters` on a file.

use idem_core::dead_letter::Reason;
use idem_sql::BookkeepingStatements;

use super::{
    file::{Bind, File, time},
    only_on_postgres,
};
use crate::{
    command_line::{AcceptLoss, DeadLetters, Groups, Replay, StateOf, Which, shared::Limit},
    commands::{
        dead_letters::{self, accept_loss, groups::and_state},
        show,
    },
    confirm::confirm,
    exit::Failure,
    report::Report,
};

/// Parameters: 1 ids as a JSON array or NULL, 2 consumer or NULL, 3 reason or NULL, 4 from or NULL, 5 to or NULL, 6 group
/// or NULL.
const CHOSEN: &str = r#"
FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
WHERE (?1 IS NULL OR d.id IN (SELECT value FROM json_each(?1))) AND (?2 IS NULL OR c.name = ?2)
    AND (?3 IS NULL OR d.reason = ?3) AND (?4 IS NULL OR d.last_at >= ?4) AND (?5 IS NULL OR d.last_at < ?5)
    AND (?6 IS NULL OR d.fingerprint = ?6)"#;

/// As on PostgreSQL.
const OPEN: &str = "(d.replayed_at IS NULL OR substr(d.replay_outcome, 1, 6) = 'failed')";

/// As on PostgreSQL.
const WAITS: &str = "(d.state <> 0 AND d.due_by IS NULL)";

const LIST: &str = r#"
SELECT d.id, c.name AS consumer, c.tenant, d.idempotency_key AS key, d.reason, d.fingerprint AS "group", d.attempts, d.copies,
    {at}d.last_at{} AS last_at, {due}d.error,
    CASE WHEN d.replayed_at IS NOT NULL THEN d.replay_outcome WHEN d.taken_at IS NOT NULL THEN 'running'
        WHEN d.state <> 0 AND d.due_by IS NOT NULL THEN 'awaited' END AS replay
{chosen} ORDER BY {order} LIMIT ?7"#;

const SHOW: &str = r#"
SELECT d.id, c.name AS consumer, c.tenant, d.idempotency_key AS key, d.payload_hash, d.reason, d.fingerprint AS "group",
    d.attempts, d.copies, d.error, d.origin, d.last_origin, d.message_id, d.message_type, d.payload_bytes,
    d.payload IS NOT NULL OR NOT d.has_payload AS payload_kept, {at}d.first_at{} AS first_at, {at}d.last_at{} AS last_at,
    {at}d.published_at{} AS published_at, {at}d.due_at{} AS due_at, d.due_by,
    {at}d.taken_at{} AS taken_at, {at}d.replayed_at{} AS replayed_at, d.replay_outcome
FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer WHERE d.id = ?1"#;

const PAYLOAD: &str = r#"SELECT payload, headers FROM "{schema}_dead_letters" WHERE id = ?1"#;

/// The trail is written before anything is shown. Parameters: 1 id, 2 who, 3 the action's name in the trail.
const NOTE_READ: &str = r#"
INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, ?3, consumer, idempotency_key, 'dead letter ' || id FROM "{schema}_dead_letters" WHERE id = ?1"#;

/// The rows that the statement before it has marked. Parameters: 1 ids, 2 who, 3 now.
const NOTE_REPLAY: &str = r#"
INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT ?3, ?2, 'replay', consumer, idempotency_key, 'dead letter ' || id FROM "{schema}_dead_letters"
WHERE id IN (SELECT value FROM json_each(?1)) AND state <> 0 AND due_at = ?3"#;

/// As on PostgreSQL. Parameter: 1 ids.
const LEFT: &str = r#"
SELECT count(*) FILTER (WHERE state <> 0) AS waiting,
    count(*) FILTER (WHERE state = 0 AND ifnull(substr(replay_outcome, 1, 6), 'failed') = 'failed') AS failed
FROM "{schema}_dead_letters" WHERE id IN (SELECT value FROM json_each(?1))"#;

/// As on PostgreSQL: one error stands for all of the group, the newest. Parameters: 1 consumer or NULL, 2 how many at most.
const GROUPS: &str = r#"
SELECT d.fingerprint AS "group", c.name AS consumer, d.reason, count(*) AS dead_letters,
    count(*) FILTER (WHERE {open}) AS open, sum(d.copies) AS copies,
    {at}min(d.first_at){} AS first_at, {at}max(d.last_at){} AS last_at,
    substr(max(printf('%020d', d.last_at) || d.error), 21) AS error
FROM "{schema}_dead_letters" AS d JOIN "{schema}_consumers" AS c ON c.id = d.consumer
WHERE (?1 IS NULL OR c.name = ?1){state}
GROUP BY d.fingerprint, c.name, d.reason ORDER BY {order} LIMIT ?2"#;

/// Parameter: 1 ids as a JSON array.
const BY_ID: &str = r#"
SELECT asked.value AS id, d.id IS NOT NULL AS known, d.id IS NOT NULL AND {held} AS held
FROM json_each(?1) AS asked LEFT JOIN "{schema}_dead_letters" AS d ON d.id = asked.value ORDER BY asked.value"#;

/// Parameter: 1 origin.
const BY_ORIGIN: &str =
    r#"SELECT d.id FROM "{schema}_dead_letters" AS d WHERE ?1 IN (d.origin, d.last_origin) AND {held} ORDER BY d.id"#;

/// The trail describes the loss, as on PostgreSQL. Parameters: 1 ids as a JSON array, 2 who, 3 why.
const ACCEPT: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?2, 'accept-loss', d.consumer, d.idempotency_key, printf('dead letter %s from %s, %s bytes with the hash %s (%s): %s',
    d.id, d.origin, d.payload_bytes, lower(hex(d.payload_hash)), ifnull(h.rule, 'raw/1'), ?3)
FROM "{schema}_dead_letters" AS d LEFT JOIN "{schema}_payload_hashes" AS h ON h.id = d.hash_id
WHERE d.id IN (SELECT value FROM json_each(?1)) AND {held}"#,
    r#"UPDATE "{schema}_dead_letters" AS d SET loss_accepted_at = {now}, loss_accepted_by = ?2
WHERE d.id IN (SELECT value FROM json_each(?1)) AND {held}"#,
];

/// Further parameters: 7 who, 8 why.
const DROP: [&str; 2] = [
    r#"INSERT INTO "{schema}_audit" (at, who, action, consumer, idempotency_key, details)
SELECT {now}, ?7, 'drop', d.consumer, d.idempotency_key, 'dead letter ' || d.id || ': ' || ?8 {chosen}"#,
    r#"DELETE FROM "{schema}_dead_letters" WHERE id IN (SELECT d.id {chosen})"#,
];

/// The selection, as parameters.
struct Chosen<'a> {
    ids: Option<String>,
    which: &'a Which,
    from: Option<i64>,
    to: Option<i64>,
}

impl<'a> Chosen<'a> {
    async fn of(file: &mut File, which: &'a Which) -> Result<Self, Failure> {
        if let Some(consumer) = &which.consumer {
            file.known(consumer).await?;
        }
        let ids = (!which.id.is_empty()).then(|| format!("{:?}", which.id));
        let (from, to) = (time(file, which.from.as_deref()).await?, time(file, which.to.as_deref()).await?);
        Ok(Self { ids, which, from, to })
    }

    fn binds(&self) -> Vec<Bind<'_>> {
        vec![
            Bind::Text(self.ids.as_deref()),
            Bind::Text(self.which.consumer.as_deref()),
            Bind::Text(self.which.reason.map(Reason::as_str)),
            Bind::Number(self.from),
            Bind::Number(self.to),
            Bind::Text(self.which.group.as_deref()),
        ]
    }
}

pub(super) async fn run(file: File, command: DeadLetters) -> Result<Report, Failure> {
    match command {
        DeadLetters::List { which, limit } => list(file, &which, &limit).await,
        DeadLetters::Show { id, payload } => show(file, id, payload).await,
        DeadLetters::Replay(asked) if !asked.is_changed() => replay(file, &asked).await,
        DeadLetters::Drop { which, because, dry_run, yes } => drop_them(file, &which, &because, dry_run, yes.yes).await,
        DeadLetters::Groups(asked) => groups(file, &asked).await,
        DeadLetters::AcceptLoss(asked) => accept_loss(file, &asked).await,
        DeadLetters::Replay(_) => Err(only_on_postgres("dead-letters replay")),
    }
}

fn statement(template: &str, which: &Which) -> String {
    let mut chosen = CHOSEN.to_owned();
    if which.open {
        chosen = format!("{chosen} AND {OPEN}");
    }
    chosen.push_str(&and_state(which.state(), WAITS));
    let (due, order) = match which.state() {
        StateOf::Dead => ("", "{open} DESC, d.id DESC"),
        StateOf::Waiting => ("{at}d.due_at{} AS due_at, ", "d.due_at, d.id"),
        StateOf::All => ("{at}d.due_at{} AS due_at, ", "{open} DESC, d.id DESC"),
    };
    template.replace("{chosen}", &chosen).replace("{due}", due).replace("{order}", order).replace("{open}", OPEN)
}

async fn list(mut file: File, which: &Which, limit: &Limit) -> Result<Report, Failure> {
    let chosen = Chosen::of(&mut file, which).await?;
    let mut binds = chosen.binds();
    // One more than is shown, to see whether there are more.
    binds.push(limit.limit.saturating_add(1).into());
    let letters = file.table(&statement(LIST, which), &binds).await?;
    let max = usize::try_from(limit.limit).unwrap_or(usize::MAX);
    let is_all = letters.rows().len() <= max;
    let report = Report::new().table(dead_letters::title(which.state()), letters.first(max));
    Ok(if is_all { report } else { report.line(format!("the newest {max}; --limit N shows more")) })
}

async fn show(mut file: File, id: i64, with_payload: bool) -> Result<Report, Failure> {
    let by = file.by.clone();
    let noting = [id.into(), by.as_str().into(), dead_letters::read(with_payload).into()];
    let [noted] = file.act([NOTE_READ], &noting).await.map_err(|failure| failure.so(show::UNNOTED))?;
    if noted == 0 {
        return Err(Failure::refused(format!("there is no dead letter {id}")));
    }
    let report = Report::new().record("dead letter", file.table(SHOW, &[id.into()]).await?);
    if !with_payload {
        return Ok(report);
    }
    Ok(dead_letters::with_content(report, &file.table(PAYLOAD, &[id.into()]).await?))
}

/// Marks those that can be replayed as a worker's own bookkeeping does, and notes each in the trail.
async fn replay(mut file: File, asked: &Replay) -> Result<Report, Failure> {
    let which = &asked.which;
    if which.id.is_empty() && which.consumer.is_none() && which.group.is_none() {
        return Err(Failure::refused("say which: ids, --consumer or --group"));
    }
    let ids = {
        let chosen = Chosen::of(&mut file, which).await?;
        file.table(&statement("SELECT d.id {chosen} ORDER BY d.id", which), &chosen.binds()).await?
    };
    let ids: Vec<i64> = ids.rows().iter().map(|row| row.number("id")).collect();
    if asked.dry_run {
        return Ok(Report::said(format!("{} would be replayed", ids.len())));
    }
    confirm(&format!("This has a running worker handle {} dead letters again", ids.len()), asked.yes.yes)?;
    let (now, by) = (file.number("SELECT {now}", &[]).await?, file.by.clone());
    let (all, ids) = (ids.len(), format!("{ids:?}"));
    let mark = BookkeepingStatements::sqlite(&file.schema).due_now;
    let is_waited_for = asked.wait;
    let [_, asked] = file.act([&*mark, NOTE_REPLAY], &[ids.as_str().into(), by.as_str().into(), now.into()]).await?;
    if is_waited_for && all > 0 {
        return dead_letters::wait::until_over(all, async || {
            let left = file.table(LEFT, &[ids.as_str().into()]).await?;
            Ok(left.rows().first().map_or([0, 0], |row| [row.number("waiting"), row.number("failed")]))
        })
        .await;
    }
    if asked == 0 {
        // A mistyped number must not look like success.
        return Err(Failure::refused(
            "none of them can be replayed: there is no such dead letter, it awaits a replay already, or its payload was too \
             large to keep. `idem dead-letters list --consumer NAME` shows those that there are",
        ));
    }
    Ok(dead_letters::wait::asked(asked))
}

async fn groups(mut file: File, asked: &Groups) -> Result<Report, Failure> {
    if let Some(consumer) = &asked.consumer {
        file.known(consumer).await?;
    }
    let order = if asked.newest { "max({open}) DESC" } else { "count(*) FILTER (WHERE {open}) DESC, count(*) DESC" };
    let query = GROUPS.replace("{order}", &format!("{order}, max(d.last_at) DESC")).replace("{open}", OPEN);
    let query = query.replace("{state}", &and_state(asked.state, WAITS));
    let groups = file.table(&query, &[Bind::Text(asked.consumer.as_deref()), asked.limit.limit.into()]).await?;
    Ok(dead_letters::groups::report(groups))
}

async fn accept_loss(mut file: File, asked: &AcceptLoss) -> Result<Report, Failure> {
    let statement = |text: &str| text.replace("{held}", accept_loss::HELD);
    let ids = match accept_loss::ids(&asked.which) {
        Some(ids) => {
            let found = file.table(&statement(BY_ID), &[format!("{ids:?}").as_str().into()]).await?;
            accept_loss::all_held(&found).map(|()| ids)?
        }
        None => {
            let origin = accept_loss::origin(&asked.which)?;
            accept_loss::one_from(origin, &file.table(&statement(BY_ORIGIN), &[origin.into()]).await?)?
        }
    };
    confirm(&accept_loss::warning(&ids), asked.yes.yes)?;
    let (by, ids) = (file.by.clone(), format!("{ids:?}"));
    let [noted, accepted] = ACCEPT.map(statement);
    let binds = [&ids, &by, &asked.reason].map(|text| Bind::from(text.as_str()));
    let [_, accepted] = file.act([&*noted, &*accepted], &binds).await?;
    Ok(accept_loss::accepted(accepted))
}

async fn drop_them(
    mut file: File,
    which: &Which,
    because: &str,
    dry_run: bool,
    is_yes: bool,
) -> Result<Report, Failure> {
    if which.id.is_empty() && which.consumer.is_none() && which.group.is_none() {
        return Err(Failure::refused("say which: ids, --consumer or --group"));
    }
    let chosen = Chosen::of(&mut file, which).await?;
    let mut binds = chosen.binds();
    let count = file.number(&statement("SELECT count(*) {chosen}", which), &binds).await?;
    if count == 0 || dry_run {
        return Ok(Report::said(format!("{count} would be dropped")));
    }
    confirm(&format!("This deletes {count} dead letters for good"), is_yes)?;
    let by = file.by.clone();
    binds.extend::<[Bind<'_>; 2]>([by.as_str().into(), because.into()]);
    let [noted, gone] = DROP.map(|text| statement(text, which));
    let [_, gone] = file.act([&*noted, &*gone], &binds).await?;
    Ok(Report::said(format!("{gone} dropped")))
}
