//! What is done outside of units of work goes over idem's own connections.

use std::{error::Error, sync::Arc};

use idem_core::StoreError;
use idem_schema::{Login, Parameter, PostgresDriver, PostgresStatements, Row, SchemaName, SeenPids};
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
        login: Login,
        doing: &'static str,
        text: &Arc<str>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.books.run_once(login, doing, text, parameters).await
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
