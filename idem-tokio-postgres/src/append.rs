//! What handlers handed in, written on the unit's own connection.

use idem_core::StoreError;
use idem_schema::{AppendLimits, Appending, EventColumns, ResultColumns, Row};
use tokio_postgres::types::Type;

use crate::{
    PostgresUnit,
    driver::{self, Driver},
    error::{self, sqlstate},
    link::{Parameter, Parameters},
};

pub(crate) fn new_events<'p>(events: &'p EventColumns<'_>) -> [Parameter<'p>; 10] {
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
    ]
}

pub(crate) fn known_events<'p>(events: &'p EventColumns<'_>) -> [Parameter<'p>; 3] {
    [
        (&events.destinations, Type::INT4_ARRAY),
        (&events.consumers, Type::INT4_ARRAY),
        (&events.key_ids, Type::UUID_ARRAY),
    ]
}

impl Appending for PostgresUnit<'_> {
    async fn insert_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        self.append_rows(&self.driver.statements.append_events, &new_events(events)).await
    }

    async fn read_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        self.append_rows(&self.driver.statements.read_events, &known_events(events)).await
    }

    async fn insert_results(&mut self, results: &ResultColumns<'_>) -> Result<(), StoreError> {
        let parameters: [Parameter<'_>; 7] = [
            (&results.consumers, Type::INT4_ARRAY),
            (&results.key_ids, Type::UUID_ARRAY),
            (&results.kinds, Type::INT4_ARRAY),
            (&results.statuses, Type::INT4_ARRAY),
            (&results.content_types, Type::TEXT_ARRAY),
            (&results.headers, Type::TEXT_ARRAY),
            (&results.bodies, Type::BYTEA_ARRAY),
        ];
        self.append_rows(&self.driver.statements.append_results, &parameters).await.map(|_| ())
    }
}

impl PostgresUnit<'_> {
    /// The rows, or whose fault it is that there are none.
    async fn append_rows(&self, text: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        // The claim has read the answer to BEGIN.
        let source = match self.rows(None, text, parameters).await? {
            Ok(rows) => return driver::read(&rows),
            Err(source) => source,
        };
        // A right that this login itself lacks is nobody's in the handlers.
        let is_denied = sqlstate(&source).as_deref() == Some("42501");
        let may_append = is_denied && may_append(self.driver).await;
        let (lock, statement) = (&*self.session.lock_timeout, &*self.session.statement_timeout);
        Err(error::appending(source, AppendLimits { lock, statement, may_append }))
    }
}

/// Whether the login may write what the unit could not. Where that cannot be found out, it is taken for a missing right.
async fn may_append(driver: &Driver) -> bool {
    let asked = driver.rows("looking at the rights", &driver.statements.may_append, &[]).await;
    let row = asked.and_then(|rows| driver::read(&rows));
    row.is_ok_and(|rows| rows.first().is_some_and(|row| row.get("may").unwrap_or(false)))
}
