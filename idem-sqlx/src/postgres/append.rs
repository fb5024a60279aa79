//! Writes the events and results that handlers handed in, on the unit's own connection.

use std::sync::Arc;

use idem_core::{
    StoreError,
    outbox::NewEvent,
    results::{KeptResult, NewResult},
    store::{Claim, Found},
};
use idem_sql::{
    AppendLimits, Appending, EventColumns, ResultColumns, ResultRow, Row, claimed_ids, found_in_claim_order,
    results_in_claim_order,
};
use sqlx::{AssertSqlSafe, PgConnection, postgres::PgRow};

use super::{
    Driver,
    driver::{self, Statement},
    error::{self, sqlstate},
    unit::PostgresUnit,
};

pub(super) fn new_events<'q>(query: Statement<'q>, events: &'q EventColumns<'_>) -> Statement<'q> {
    let query = query.bind(&events.destinations).bind(&events.consumers).bind(&events.key_ids).bind(&events.keys);
    let query = query.bind(&events.ordering_keys).bind(&events.event_types).bind(&events.content_types);
    query.bind(&events.headers).bind(&events.payloads).bind(&events.hashes).bind(&events.ranks)
}

pub(super) fn known_events<'q>(query: Statement<'q>, events: &'q EventColumns<'_>) -> Statement<'q> {
    query.bind(&events.destinations).bind(&events.consumers).bind(&events.key_ids)
}

fn new_result<'q>(query: Statement<'q>, result: ResultRow<'_>) -> Statement<'q> {
    let query = query.bind(result.consumer).bind(result.key_id).bind(result.kind).bind(result.status);
    let query = query.bind(result.content_type).bind(result.headers).bind(result.body).bind(result.sealed_with);
    query.bind(result.kept_for).bind(result.reference)
}

fn new_results<'q>(query: Statement<'q>, results: ResultColumns<'_>) -> Statement<'q> {
    let query = query.bind(results.consumers).bind(results.key_ids).bind(results.kinds).bind(results.statuses);
    let query = query.bind(results.content_types).bind(results.headers).bind(results.bodies).bind(results.sealed_with);
    query.bind(results.kept_for).bind(results.references)
}

impl Appending for PostgresUnit {
    /// They are written before the seal, as new ones and without an answer a row, unless one that was known was met lately.
    fn keep_events(&mut self, events: &[NewEvent]) -> bool {
        let keeps = !self.driver.known_events.were_met();
        if keeps {
            self.events.extend_from_slice(events);
        }
        keeps
    }

    async fn insert_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        let rows = new_events(self.query(self.sql().inserting(events)), events).fetch_all(self.connection()).await;
        self.read_or_explain(rows).await
    }

    async fn read_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        let rows = known_events(self.query(&self.sql().read_events), events).fetch_all(self.connection()).await;
        self.read_or_explain(rows).await
    }

    async fn insert_results(&mut self, results: &[NewResult]) -> Result<(), StoreError> {
        self.results.extend_from_slice(results);
        Ok(())
    }
}

impl PostgresUnit {
    pub(super) async fn kept_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        let (scopes, key_ids) = claimed_ids(claims);
        let query = self.query(&self.sql().read_results).bind(&scopes).bind(&key_ids);
        let rows = query.fetch_all(self.connection()).await;
        let rows = rows.map_err(|source| error::store("reading results", source))?;
        results_in_claim_order(claims, &driver::read(&rows)?)
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.session.connection
    }

    /// Writes the events that were kept for the seal.
    pub(super) async fn write_events(&mut self) -> Result<(), StoreError> {
        let events = std::mem::take(&mut self.events);
        let columns = EventColumns::new(&events);
        let text = self.sql().inserting_before_seal(&columns);
        let written = new_events(self.query(text), &columns).execute(self.connection()).await;
        let Err(source) = written else { return Ok(()) };
        Err(match self.driver.known_events.error(&error::code(&source), source) {
            Ok(error) => error,
            Err(source) => self.explain(source).await,
        })
    }

    /// Runs the seal that writes the answers, which comes before the COMMIT: sqlx can send none behind parameters.
    pub(super) async fn seal_results(&mut self, xid: &str) -> Result<Option<PgRow>, StoreError> {
        let results = std::mem::take(&mut self.results);
        let text = if results.len() == 1 { &self.sql().seal_result } else { &self.sql().seal_results };
        let seal = self.query(text).bind(xid).bind(self.session.durability.no_weaker());
        let query = match &*results {
            [result] => new_result(seal, ResultRow::of(result)),
            _ => new_results(seal, ResultColumns::of(&results)),
        };
        match query.fetch_optional(self.connection()).await.map_err(error::sealing_results) {
            Ok(row) => Ok(row),
            Err(Ok(error)) => Err(error),
            Err(Err(source)) => Err(self.explain(source).await),
        }
    }

    /// The rows, or an error that says whether the handler or the database caused it.
    async fn read_or_explain(&self, rows: Result<Vec<PgRow>, sqlx::Error>) -> Result<Vec<Row>, StoreError> {
        match rows {
            Ok(rows) => driver::read(&rows),
            Err(source) => Err(self.explain(source).await),
        }
    }

    /// The error of a failed write, with its cause.
    async fn explain(&self, source: sqlx::Error) -> StoreError {
        // A right that this login lacks is not a handler's fault.
        let is_denied = sqlstate(&source).as_deref() == Some("42501");
        let may_append = is_denied && may_append(&self.driver).await;
        let (lock, statement) = (&*self.session.lock_timeout, &*self.session.statement_timeout);
        error::appending(source, AppendLimits { lock, statement, may_append })
    }
}

/// The records of keys and their results.
pub(super) async fn found(
    driver: &Driver,
    connection: &mut PgConnection,
    claims: &[Claim],
) -> Result<Vec<Option<Found>>, StoreError> {
    let (scopes, key_ids) = claimed_ids(claims);
    let query = sqlx::query(AssertSqlSafe(Arc::clone(&driver.statements.look_up))).persistent(driver.is_named());
    let rows = query.bind(&scopes).bind(&key_ids).fetch_all(connection).await;
    let rows = rows.map_err(|source| error::store("looking keys up", source))?;
    found_in_claim_order(claims, &key_ids, &driver::read(&rows)?)
}

/// Whether the login may write what the unit could not. Where that cannot be found out, it is taken for a missing right.
async fn may_append(driver: &Driver) -> bool {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(&driver.statements.may_append)));
    let asked = driver.within("looking at the rights", driver.once(None, query)).await;
    let row = asked.and_then(|rows| driver::read(&rows));
    row.is_ok_and(|rows| rows.first().is_some_and(|row| row.get("may").unwrap_or(false)))
}
