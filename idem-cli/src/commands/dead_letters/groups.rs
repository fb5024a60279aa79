//! `idem dead-letters groups`: dead letters that failed alike, so that one bad deploy is one line.

use super::{OPEN, WAITS, of_state};
use crate::{
    command_line::{Groups, StateOf},
    database::{Bind, Database},
    exit::Failure,
    report::{Report, Table},
};

/// Those with open dead letters come first. Parameters: 1 consumer or NULL, 2 how many at most. One error stands for all of the group, the newest.
const GROUPS: &str = "\
SELECT d.fingerprint AS \"group\", c.name AS consumer, d.reason, pg_catalog.count(*) AS dead_letters,
    pg_catalog.count(*) FILTER (WHERE {open}) AS open,
    pg_catalog.sum(d.copies)::int8 AS copies, pg_catalog.min(d.first_at) AS first_at,
    pg_catalog.max(d.last_at) AS last_at, (pg_catalog.array_agg(d.error ORDER BY d.last_at DESC))[1] AS error
FROM {schema}.dead_letters AS d JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE ($1::text IS NULL OR c.name = $1::text){state}
GROUP BY d.fingerprint, c.name, d.reason ORDER BY {order} LIMIT $2::int8";

const LARGEST: &str =
    "pg_catalog.count(*) FILTER (WHERE {open}) DESC, pg_catalog.count(*) DESC, pg_catalog.max(d.last_at) DESC";
const NEWEST: &str = "pg_catalog.bool_or({open}) DESC, pg_catalog.max(d.last_at) DESC";

pub(super) async fn run(database: &mut Database, asked: &Groups) -> Result<Report, Failure> {
    if let Some(consumer) = &asked.consumer {
        database.known(consumer).await?;
    }
    let query = GROUPS.replace("{order}", if asked.newest { NEWEST } else { LARGEST }).replace("{open}", OPEN);
    let query = query.replace("{state}", &and_state(asked.state, WAITS));
    let binds = [Bind::TextOr(asked.consumer.as_deref()), Bind::Number(asked.limit.limit)];
    Ok(report(database.table(&query, &binds).await?))
}

/// The condition for rows in this state, as a further one.
pub(crate) fn and_state(state: StateOf, waits: &str) -> String {
    of_state(state, waits).map(|state| format!(" AND {state}")).unwrap_or_default()
}

pub(crate) fn report(groups: Table) -> Report {
    let some = groups.rows().iter().find_map(|row| row.get("group").as_str()).map(str::to_owned);
    let report = Report::new().table("groups of dead letters", groups);
    match some {
        Some(group) => {
            report.line(format!("One of them: idem dead-letters list --group {group}; so with replay and drop."))
        }
        None => report,
    }
}
