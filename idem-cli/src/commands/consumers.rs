//! `idem consumers`.

use crate::{
    command_line::Consumers,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::Report,
};

const LIST: &str = "\
SELECT c.name AS consumer, c.tenant, coalesce(o.state, 'running') AS state, nullif(o.by, '') AS by,
    nullif(o.reason, '') AS reason, CASE WHEN o.state <> 'running' THEN o.at END AS since,
    coalesce(justify_hours(c.retention)::text, 'for ever') AS retention, nullif(c.bound_to, '') AS bound_to,
    nullif(c.handler, '') AS handler, c.first_started_at
FROM {schema}.consumers AS c LEFT JOIN {schema}.controls AS o ON o.consumer = c.id ORDER BY c.name, c.tenant";

/// Every tenant's scope, because a worker obeys that of its own tenant.
const SET: &str = "\
WITH scopes AS (
    SELECT id FROM {schema}.consumers WHERE name = $1::text
), written AS (
    INSERT INTO {schema}.controls AS c (consumer, state, by, reason)
    SELECT id, $2::text, CASE WHEN $2::text = 'running' THEN '' ELSE $3::text END, $4::text FROM scopes
    ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, by = excluded.by, reason = excluded.reason, at = now()
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $3::text, CASE WHEN $2::text = 'running' THEN 'resume' ELSE 'pause' END, id, $4::text FROM scopes
)
SELECT count(*) FROM scopes";

const RENAME: &str = "\
WITH renamed AS (
    UPDATE {schema}.consumers SET name = $2::text
    WHERE name = $1::text AND NOT EXISTS (SELECT FROM {schema}.consumers WHERE name = $2::text) RETURNING id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $3::text, 'rename', id, format('%s to %s', $1::text, $2::text) FROM renamed
)
SELECT count(*) FROM renamed";

/// An empty text binds nothing. Records keep the hash rules that they were written by.
const REBIND: &str = "\
WITH bound AS (
    SELECT id, bound_to, handler, key_rules, hash_rules FROM {schema}.consumers WHERE name = $1::text
), freed AS (
    UPDATE {schema}.consumers AS c SET bound_to = '', handler = '', key_rules = '', hash_rules = ''
    FROM bound WHERE c.id = bound.id RETURNING c.id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, details)
    SELECT $2::text, 'rebind', id,
        format('was bound to %s, handler %s, keys %s, hashes %s', bound_to, handler, key_rules, hash_rules) FROM bound
)
SELECT count(*) FROM freed";

pub(crate) async fn run(mut database: Database, command: Consumers) -> Result<Report, Failure> {
    match command {
        Consumers::List => Ok(Report::new().table("consumers", database.table(LIST, &[]).await?)),
        Consumers::Pause(because) => {
            set(&mut database, &because.consumer, "paused", &because.reason).await?;
            Ok(Report::said(format!("{} is paused; running workers stop intake within 5 s", because.consumer)))
        }
        Consumers::Resume { consumer } => {
            set(&mut database, &consumer, "running", "").await?;
            Ok(Report::said(format!("{consumer} is running; workers take messages in within 5 s")))
        }
        Consumers::Rename { consumer, to, yes } => rename(&mut database, &consumer, &to, yes.yes).await,
        Consumers::Rebind { consumer, yes } => rebind(&mut database, &consumer, yes.yes).await,
    }
}

async fn set(database: &mut Database, consumer: &str, state: &str, reason: &str) -> Result<(), Failure> {
    database.known(consumer).await?;
    let by = database.by.clone();
    let binds = [Bind::Text(consumer), Bind::Text(state), Bind::Text(&by), Bind::Text(reason)];
    database.number(SET, &binds).await.map(|_| ())
}

async fn rename(database: &mut Database, consumer: &str, to: &str, is_yes: bool) -> Result<Report, Failure> {
    database.known(consumer).await?;
    idem_core::ConsumerName::new(to).map_err(|error| Failure::refused(error.to_string()))?;
    confirm(
        &format!(
            "This renames the consumer {consumer} to {to}. A worker that starts with the old name begins without a record"
        ),
        is_yes,
    )?;
    let by = database.by.clone();
    match database.number(RENAME, &[Bind::Text(consumer), Bind::Text(to), Bind::Text(&by)]).await? {
        0 => Err(Failure::refused(format!("there is a consumer {to:?} already, and two cannot become one"))),
        _ => Ok(Report::said(format!("{consumer} is {to} now: start its workers with --consumer {to} from here on"))),
    }
}

async fn rebind(database: &mut Database, consumer: &str, is_yes: bool) -> Result<Report, Failure> {
    database.known(consumer).await?;
    confirm(
        &format!(
            "This forgets what {consumer} is bound to; its next start binds it anew. Under another key rule, messages that \
             were handled have other keys, and are handled again"
        ),
        is_yes,
    )?;
    let by = database.by.clone();
    database.number(REBIND, &[Bind::Text(consumer), Bind::Text(&by)]).await?;
    Ok(Report::said(format!("{consumer} is bound to nothing: the next worker that starts under this name binds it")))
}
