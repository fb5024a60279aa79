//! Writes the events and results that handlers handed in, on the unit's own connection.

use idem_core::{
    StoreError, Uuid,
    outbox::NewEvent,
    results::{KeptResult, NewResult},
    store::{Claim, CommitError, Found},
};
use idem_sql::{
    AppendLimits, Appending, EventColumns, ResultColumns, ResultRow, Row, claimed_ids, found_in_claim_order,
    results_in_claim_order,
};
use tokio_postgres::{Error, types::Type};

use crate::{
    PostgresSession, PostgresUnit,
    driver::{self, Driver},
    error::{self, sqlstate},
    link::{Parameter, Parameters},
};

pub(crate) fn new_events<'p>(events: &'p EventColumns<'_>) -> [Parameter<'p>; 11] {
    [
        (&events.destinations, Type::INT4_ARRAY),
        (&events.consumers, Type::INT4_ARRAY),
        (&events.key_ids, Type::UUID_ARRAY),
        (&events.keys, Type::TEXT_ARRAY),
        (&events.ordering_keys, Type::BYTEA_ARRAY),
        (&events.event_types, Type::TEXT_ARRAY),
        (&events.content_types, Type::TEXT_ARRAY),
        (&events.headers, Type::TEXT_ARRAY),
        (&events.payloads, Type::BYTEA_ARRAY),
        (&events.hashes, Type::BYTEA_ARRAY),
        (&events.ranks, Type::INT4_ARRAY),
    ]
}

pub(crate) fn known_events<'p>(events: &'p EventColumns<'_>) -> [Parameter<'p>; 3] {
    [
        (&events.destinations, Type::INT4_ARRAY),
        (&events.consumers, Type::INT4_ARRAY),
        (&events.key_ids, Type::UUID_ARRAY),
    ]
}

pub(crate) fn new_result<'p>(result: &'p ResultRow<'_>) -> [Parameter<'p>; 10] {
    [
        (&result.consumer, Type::INT4),
        (&result.key_id, Type::UUID),
        (&result.kind, Type::INT4),
        (&result.status, Type::INT4),
        (&result.content_type, Type::TEXT),
        (&result.headers, Type::TEXT),
        (&result.body, Type::BYTEA),
        (&result.sealed_with, Type::INT4),
        (&result.kept_for, Type::INT8),
        (&result.reference, Type::TEXT),
    ]
}

pub(crate) fn new_results<'p>(results: &'p ResultColumns<'_>) -> [Parameter<'p>; 10] {
    [
        (&results.consumers, Type::INT4_ARRAY),
        (&results.key_ids, Type::UUID_ARRAY),
        (&results.kinds, Type::INT4_ARRAY),
        (&results.statuses, Type::INT4_ARRAY),
        (&results.content_types, Type::TEXT_ARRAY),
        (&results.headers, Type::TEXT_ARRAY),
        (&results.bodies, Type::BYTEA_ARRAY),
        (&results.sealed_with, Type::INT4_ARRAY),
        (&results.kept_for, Type::INT8_ARRAY),
        (&results.references, Type::TEXT_ARRAY),
    ]
}

impl Appending for PostgresUnit {
    /// They go out with the seal and the COMMIT, one round trip earlier than by themselves, unless one that was known was met lately.
    fn keep_events(&mut self, events: &[NewEvent]) -> bool {
        let keeps = !self.driver.known_events.were_met();
        if keeps {
            self.events.extend_from_slice(events);
        }
        keeps
    }

    async fn insert_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        self.append_rows(self.driver.statements.inserting(events), &new_events(events)).await
    }

    async fn read_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        self.append_rows(&self.driver.statements.read_events, &known_events(events)).await
    }

    async fn insert_results(&mut self, results: &[NewResult]) -> Result<(), StoreError> {
        self.results.extend_from_slice(results);
        Ok(())
    }
}

impl PostgresUnit {
    pub(crate) async fn kept_results(&self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        let (scopes, key_ids) = claimed_ids(claims);
        // The claim has read the answer to BEGIN.
        let rows = self.rows(None, &self.driver.statements.read_results, &ids(&scopes, &key_ids)).await?;
        let rows = rows.map_err(|source| error::store("reading results", source))?;
        results_in_claim_order(claims, &driver::read(&rows)?)
    }

    pub(crate) async fn found(&mut self, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
        let begun = self.begun.take();
        let (scopes, key_ids) = claimed_ids(claims);
        let rows = self.rows(begun, &self.driver.statements.look_up, &ids(&scopes, &key_ids)).await?;
        let rows = rows.map_err(looking_up)?;
        found_in_claim_order(claims, &key_ids, &driver::read(&rows)?)
    }

    /// The rows, or an error that says whether the handler or the database caused it.
    async fn append_rows(&self, text: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        // The claim has read the answer to BEGIN.
        match self.rows(None, text, parameters).await? {
            Ok(rows) => driver::read(&rows),
            Err(source) => Err(self.explain(source).await),
        }
    }

    /// The server refused events with which the seal and the COMMIT were sent, so the transaction has failed, and the COMMIT was a
    /// ROLLBACK; or the connection is gone, and nobody knows. The id of an event that is in the outbox already is no fault: the unit
    /// runs again, and looks at what is there.
    pub(crate) async fn events_not_written(&self, source: Error) -> CommitError {
        let Some(code) = sqlstate(&source) else { return error::committing(source) };
        CommitError::RolledBack(match self.driver.known_events.error(&code, source) {
            Ok(error) => error,
            Err(source) => self.explain(source).await,
        })
    }

    /// Whose fault it is that something was not written.
    pub(crate) async fn explain(&self, source: Error) -> StoreError {
        // A right that this login lacks is not a handler's fault.
        let is_denied = sqlstate(&source).as_deref() == Some("42501");
        let may_append = is_denied && may_append(&self.driver).await;
        let (lock, statement) = (&*self.session.lock_timeout, &*self.session.statement_timeout);
        error::appending(source, AppendLimits { lock, statement, may_append })
    }
}

impl PostgresSession {
    /// The records of keys and their results, in a statement of its own.
    pub(crate) async fn found(&self, driver: &Driver, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
        let (scopes, key_ids) = claimed_ids(claims);
        let ready = self.link.ready(driver.naming(), &driver.statements.look_up).await.map_err(looking_up)?;
        let rows = ready.rows(&ids(&scopes, &key_ids)).await.map_err(looking_up)?;
        found_in_claim_order(claims, &key_ids, &driver::read(&rows)?)
    }
}

fn ids<'p>(scopes: &'p Vec<i32>, key_ids: &'p Vec<Uuid>) -> [Parameter<'p>; 2] {
    [(scopes, Type::INT4_ARRAY), (key_ids, Type::UUID_ARRAY)]
}

fn looking_up(source: Error) -> StoreError {
    error::store("looking keys up", source)
}

/// Whether the login may write what the unit could not. Where that cannot be found out, it is taken for a missing right.
async fn may_append(driver: &Driver) -> bool {
    let asked = driver.rows("looking at the rights", &driver.statements.may_append, &[]).await;
    let row = asked.and_then(|rows| driver::read(&rows));
    row.is_ok_and(|rows| rows.first().is_some_and(|row| row.get("may").unwrap_or(false)))
}
