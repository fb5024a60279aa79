//! `idem dead-letters accept-loss`: a message whose payload cannot be kept is held until an operator accepts its loss.

use crate::{
    command_line::AcceptLoss,
    confirm::confirm,
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Row, Table},
};

/// A dead letter that is held, because acknowledging its message would lose it: the row has no payload, no broker has
/// confirmed a copy, and no operator has accepted that. SQLite reads it alike.
pub(crate) const HELD: &str = "\
d.payload IS NULL AND d.has_payload AND d.published_at IS NULL AND d.loss_accepted_at IS NULL";

/// Parameters: 1 ids.
const BY_ID: &str = "\
SELECT asked.id, d.id IS NOT NULL AS known, d.id IS NOT NULL AND {held} AS held
FROM pg_catalog.unnest($1::int8[]) AS asked (id) LEFT JOIN {schema}.dead_letters AS d ON d.id = asked.id ORDER BY asked.id";

/// Parameters: 1 origin.
const BY_ORIGIN: &str = "\
SELECT d.id FROM {schema}.dead_letters AS d WHERE $1::text IN (d.origin, d.last_origin) AND {held} ORDER BY d.id";

/// The trail says how much is lost and of which message, so that it can be recognised if it turns up again: a hash by no
/// rule of the consumer's is the SHA-256 of its bytes. Parameters: 1 ids, 2 who, 3 why.
const ACCEPT: &str = "\
WITH accepted AS (
    UPDATE {schema}.dead_letters AS d SET loss_accepted_at = pg_catalog.now(), loss_accepted_by = $2::text
    WHERE d.id = ANY ($1::int8[]) AND {held}
    RETURNING d.id, d.consumer, d.idempotency_key, d.origin, d.payload_bytes, d.payload_hash, d.hash_id
), noted AS (
    INSERT INTO {schema}.audit (who, action, consumer, idempotency_key, details)
    SELECT $2::text, 'accept-loss', a.consumer, a.idempotency_key, pg_catalog.format(
        'dead letter %s from %s, %s bytes with the hash %s (%s): %s', a.id, a.origin, a.payload_bytes,
        pg_catalog.encode(a.payload_hash, 'hex'), coalesce(h.rule, 'raw/1'), $3::text)
    FROM accepted AS a LEFT JOIN {schema}.payload_hashes AS h ON h.id = a.hash_id
)
SELECT pg_catalog.count(*) FROM accepted";

pub(super) async fn run(database: &mut Database, asked: &AcceptLoss) -> Result<Report, Failure> {
    let ids = match ids(&asked.which) {
        Some(ids) => {
            let found = database.table(&BY_ID.replace("{held}", HELD), &[Bind::Numbers(&ids)]).await?;
            all_held(&found).map(|()| ids)?
        }
        None => {
            let origin = origin(&asked.which)?;
            one_from(origin, &database.table(&BY_ORIGIN.replace("{held}", HELD), &[Bind::Text(origin)]).await?)?
        }
    };
    confirm(&warning(&ids), asked.yes.yes)?;
    let by = database.by.clone();
    let binds = [Bind::Numbers(&ids), Bind::Text(&by), Bind::Text(&asked.reason)];
    Ok(accepted(database.act(&ACCEPT.replace("{held}", HELD), &binds).await?))
}

/// The selection, where it is by ids.
pub(crate) fn ids(which: &[String]) -> Option<Vec<i64>> {
    which.iter().map(|text| text.parse().ok()).collect()
}

/// The selection, where it is by origin.
pub(crate) fn origin(which: &[String]) -> Result<&str, Failure> {
    match which {
        [origin] => Ok(origin),
        _ => Err(Failure::refused("give ids, or one origin")),
    }
}

/// Refuses dead letters that are not there, or not held: SQLite has 1 for true.
pub(crate) fn all_held(found: &Table) -> Result<(), Failure> {
    let is = |row: &Row, column| *row.get(column) == true || *row.get(column) == 1;
    for row in found.rows() {
        let id = row.number("id");
        if !is(row, "known") {
            return Err(Failure::refused(format!("there is no dead letter {id}")));
        }
        if !is(row, "held") {
            return Err(Failure::refused(format!(
                "dead letter {id} is not held: its payload is kept or was published, or its loss was accepted before. `idem \
                 stuck` lists those that are"
            )));
        }
    }
    Ok(())
}

/// The one dead letter from this origin that is held.
pub(crate) fn one_from(origin: &str, found: &Table) -> Result<Vec<i64>, Failure> {
    let ids: Vec<i64> = found.rows().iter().map(|row| row.number("id")).collect();
    match ids.as_slice() {
        [] => {
            Err(Failure::refused(format!("no dead letter from {origin:?} is held; `idem stuck` lists those that are")))
        }
        [_] => Ok(ids),
        several => Err(Failure::refused(format!(
            "several dead letters from {origin:?} are held: say which by id, of {several:?}"
        ))),
    }
}

pub(crate) fn warning(ids: &[i64]) -> String {
    match ids {
        [id] => format!(
            "This gives the payload of dead letter {id} up for good: it is kept nowhere, and its message is acknowledged"
        ),
        ids => format!(
            "This gives the payloads of {} dead letters up for good: they are kept nowhere, and their messages are acknowledged",
            ids.len()
        ),
    }
}

pub(crate) fn accepted(accepted: i64) -> Report {
    Report::said(format!("{accepted} accepted. The worker that holds them acknowledges them at its next try."))
}
