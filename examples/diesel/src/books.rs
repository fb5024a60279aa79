//! What is done outside of units of work goes over idem's own connections.

use std::{error::Error, sync::Arc, time::Duration};

use idem_core::StoreError;
use idem_schema::{Parameter, PostgresDriver, PostgresStatements, Row, SchemaName, SeenPids};
use idem_tokio_postgres::Postgres;

use crate::DieselPostgres;

idem_schema::postgres_bookkeeping!(DieselPostgres);

impl PostgresDriver for DieselPostgres {
    fn statements(&self) -> &PostgresStatements {
        self.books.statements()
    }

    fn schema(&self) -> &SchemaName {
        PostgresDriver::schema(&self.books)
    }

    async fn run_once(
        &self,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.books.run_once(doing, text, parameters).await
    }

    async fn clean_once(
        &self,
        begin: &str,
        limit: Duration,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.books.clean_once(begin, limit, text, parameters).await
    }

    async fn rest(&self) {
        PostgresDriver::rest(&self.books).await;
    }

    fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
        Postgres::sqlstate(error)
    }

    async fn seen_pids(&self) -> Result<SeenPids, StoreError> {
        self.books.seen_pids().await
    }

    async fn refuse_forgetful_pooler(&self) -> Result<(), StoreError> {
        self.books.refuse_forgetful_pooler().await
    }

    fn is_plaintext_abroad(&self) -> bool {
        self.books.is_plaintext_abroad()
    }
}
