//! Payments on PostgreSQL through tokio-postgres: the same statements.

use idem_service::{
    Opened,
    idem_core::{BoxError, Tx},
    idem_tokio_postgres::{PostgresStore, RunStatementError},
};
use sqlx::PgPool;

use crate::{
    books::{Books, Order, Recorded, Transaction},
    postgres::{self, ADD, DECLINE, RECORD},
};

impl Books for PostgresStore {
    type Error = RunStatementError;
    type Readers = PgPool;

    fn readers(opened: &Opened<Self>) -> Result<PgPool, BoxError> {
        postgres::readers(opened.database_url())
    }

    async fn record(tx: &mut Tx<'_, Self>, order: &Order) -> Result<Option<Recorded>, RunStatementError> {
        let Order { tenant, key, customer, cents } = order;
        let recorded = tx.connection().query_one(RECORD, &[key, tenant, customer, cents]).await?;
        let Some(added) = tx.connection().query_opt(ADD, &[tenant, customer, cents]).await? else { return Ok(None) };
        Ok(Some(Recorded { id: recorded.try_get(0)?, day: recorded.try_get(1)?, balance: Some(added.try_get(0)?) }))
    }

    async fn decline(tx: &mut Tx<'_, Self>, order: &Order) -> Result<(), RunStatementError> {
        let Order { tenant, key, customer, cents } = order;
        tx.connection().execute(DECLINE, &[key, tenant, customer, cents]).await?;
        Ok(())
    }

    async fn transaction(readers: &PgPool, tenant: &str, id: &str) -> Result<Option<Transaction>, BoxError> {
        idem_sqlx::PostgresStore::transaction(readers, tenant, id).await
    }
}
