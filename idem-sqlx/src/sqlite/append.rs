//! Writes the events and results that handlers handed in, on the unit's own connection.

use idem_core::{
    StoreError,
    results::{KeptResult, NewResult},
    store::{Claim, boxed},
};
use idem_sql::{Appending, EventColumns, ResultColumns, Row, key_id, results_in_claim_order};
use serde_json::{Value, json};
use sqlx::{Sqlite as Db, query::Query, sqlite::SqliteArguments};

use super::{clock, driver, error, statements::Statements, unit::SqliteUnit};

const DOING: &str = "writing events and results";

/// The binary values, in one blob, because JSON has no binary: each piece is its place from 1 and its length.
#[derive(Default)]
struct Blob(Vec<u8>);

impl Blob {
    fn add(&mut self, bytes: &[u8]) -> [usize; 2] {
        let place = self.0.len() + 1;
        self.0.extend_from_slice(bytes);
        [place, bytes.len()]
    }

    fn add_optional(&mut self, bytes: Option<&[u8]>) -> [Option<usize>; 2] {
        bytes.map_or([None; 2], |bytes| self.add(bytes).map(Some))
    }
}

pub(super) type Statement<'q> = Query<'q, Db, SqliteArguments>;

pub(super) fn new_events<'q>(statements: &Statements, events: &EventColumns<'_>) -> Statement<'q> {
    let mut blob = Blob::default();
    let mut row = |at: usize| -> Option<Value> {
        let [id, hash] = [events.key_ids.get(at)?.as_bytes().as_slice(), events.hashes.get(at)?].map(|it| blob.add(it));
        let (ordering_key, payload) =
            (blob.add_optional(*events.ordering_keys.get(at)?), blob.add(events.payloads.get(at)?));
        Some(json!([
            events.destinations.get(at)?,
            events.consumers.get(at)?,
            events.keys.get(at)?,
            events.event_types.get(at)?,
            events.content_types.get(at)?,
            events.headers.get(at)?,
            id,
            hash,
            ordering_key,
            payload,
        ]))
    };
    // Rows are numbered as they are inserted, and with one writer no other order is needed.
    let mut published: Vec<(i32, usize)> = events.ranks.iter().copied().zip(0..).collect();
    published.sort_unstable();
    let rows: Vec<Value> = published.into_iter().map_while(|(_, at)| row(at)).collect();
    let statement = sqlx::query(statements.append_events());
    statement.bind(Value::Array(rows).to_string()).bind(blob.0).bind(clock::now())
}

pub(super) fn known_events<'q>(statements: &Statements, events: &EventColumns<'_>) -> Statement<'q> {
    let ids: Vec<u8> = events.key_ids.iter().flat_map(|id| *id.as_bytes()).collect();
    let rows: Vec<(i32, i32)> = events.destinations.iter().copied().zip(events.consumers.iter().copied()).collect();
    let statement = sqlx::query(statements.read_events());
    statement.bind(json!(rows).to_string()).bind(ids)
}

impl Appending for SqliteUnit {
    async fn insert_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        self.append(new_events(&self.driver.unit_statements, events)).await
    }

    async fn read_events(&mut self, events: &EventColumns<'_>) -> Result<Vec<Row>, StoreError> {
        self.append(known_events(&self.driver.unit_statements, events)).await
    }

    async fn insert_results(&mut self, results: &[NewResult]) -> Result<(), StoreError> {
        let results = &ResultColumns::of(results);
        let mut blob = Blob::default();
        let row = |at: usize| -> Option<Value> {
            let (id, body) = (blob.add(results.key_ids.get(at)?.as_bytes()), blob.add(results.bodies.get(at)?));
            Some(json!([
                results.consumers.get(at)?,
                results.kinds.get(at)?,
                results.statuses.get(at)?,
                results.content_types.get(at)?,
                results.headers.get(at)?,
                id,
                body,
                results.sealed_with.get(at)?,
                results.kept_for.get(at)?,
                results.references.get(at)?,
            ]))
        };
        let rows: Vec<Value> = (0..results.kinds.len()).map_while(row).collect();
        let statement = sqlx::query(self.driver.unit_statements.append_results());
        self.append(statement.bind(Value::Array(rows).to_string()).bind(blob.0).bind(clock::now())).await.map(|_| ())
    }
}

impl SqliteUnit {
    pub(super) async fn kept_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        let ids: Vec<u8> = claims.iter().flat_map(|claim| *key_id(claim.key.as_str()).as_bytes()).collect();
        let scopes: Vec<i32> = claims.iter().map(|claim| claim.scope.0).collect();
        let statement =
            sqlx::query(self.driver.unit_statements.read_results()).bind(json!(scopes).to_string()).bind(ids);
        let rows = statement.fetch_all(self.connection()).await;
        let rows = rows.map_err(|source| error::of_unit("reading results", source))?;
        let rows = driver::decode(&rows).map_err(|source| idem_sql::unreadable(boxed(source)))?;
        results_in_claim_order(claims, &rows)
    }

    async fn append(&mut self, statement: Statement<'_>) -> Result<Vec<Row>, StoreError> {
        if !self.session.guard.is_open() {
            // A write would now be committed at once, and without a record.
            let problem = "a handler, or an error of SQLite, has ended the transaction".to_owned();
            return Err(StoreError::Unsealed { problem, source: None });
        }
        let rows = statement.fetch_all(self.connection()).await.map_err(|source| error::of_unit(DOING, source))?;
        driver::decode(&rows).map_err(|source| idem_sql::unreadable(boxed(source)))
    }
}
