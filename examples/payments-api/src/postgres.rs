//! Payments on PostgreSQL.

use std::time::Duration;

use idem_service::{
    Opened, PostgresStore,
    idem_core::{BoxError, Tx},
};
use sqlx::{PgPool, postgres::PgPoolOptions, query, query_as, query_scalar};

use crate::books::{Books, Order, Recorded, Transaction};

/// How long a read waits for a connection before it is answered with 503.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(3);

/// Keys have no unique constraint here, and balances are changed relatively, so that a transaction that counted twice would show
/// in both.
pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS transactions (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        idempotency_key text NOT NULL,
        tenant text NOT NULL,
        customer text NOT NULL,
        cents bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    );
    CREATE TABLE IF NOT EXISTS balances (
        tenant text NOT NULL,
        customer text NOT NULL,
        cents bigint NOT NULL,
        PRIMARY KEY (tenant, customer)
    );
    CREATE TABLE IF NOT EXISTS declines (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        idempotency_key text NOT NULL,
        tenant text NOT NULL,
        customer text NOT NULL,
        cents bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    )";

pub(crate) const RECORD: &str = "
    INSERT INTO transactions (idempotency_key, tenant, customer, cents) VALUES ($1, $2, $3, $4)
    RETURNING id::text, (at AT TIME ZONE 'UTC')::date::text";

pub(crate) const ADD: &str = "
    INSERT INTO balances VALUES ($1, $2, $3) ON CONFLICT (tenant, customer)
    DO UPDATE SET cents = balances.cents + excluded.cents
    WHERE balances.cents <= 9223372036854775807 - excluded.cents
    RETURNING cents";

pub(crate) const DECLINE: &str =
    "INSERT INTO declines (idempotency_key, tenant, customer, cents) VALUES ($1, $2, $3, $4)";

const READ: &str = "
    SELECT id::text, customer, cents, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') AS at
    FROM transactions WHERE tenant = $1 AND id::text = $2";

pub(crate) fn readers(url: &str) -> Result<PgPool, BoxError> {
    Ok(PgPoolOptions::new().max_connections(4).acquire_timeout(READ_WITHIN).connect_lazy(url)?)
}

impl Books for PostgresStore {
    type Error = sqlx::Error;
    type Readers = PgPool;

    fn readers(opened: &Opened<Self>) -> Result<PgPool, BoxError> {
        readers(opened.database_url())
    }

    async fn record(tx: &mut Tx<'_, Self>, order: &Order) -> Result<Option<Recorded>, sqlx::Error> {
        let Order { tenant, key, customer, cents } = order;
        let record = query_as(RECORD).bind(key).bind(tenant).bind(customer).bind(cents);
        let (id, day) = record.fetch_one(tx.connection()).await?;
        let add = query_scalar(ADD).bind(tenant).bind(customer).bind(cents);
        let balance: Option<i64> = add.fetch_optional(tx.connection()).await?;
        Ok(balance.map(|balance| Recorded { id, day, balance: Some(balance) }))
    }

    async fn decline(tx: &mut Tx<'_, Self>, order: &Order) -> Result<(), sqlx::Error> {
        let Order { tenant, key, customer, cents } = order;
        query(DECLINE).bind(key).bind(tenant).bind(customer).bind(cents).execute(tx.connection()).await?;
        Ok(())
    }

    async fn transaction(readers: &PgPool, tenant: &str, id: &str) -> Result<Option<Transaction>, BoxError> {
        let row: Option<(_, _, _, _)> = query_as(READ).bind(tenant).bind(id).fetch_optional(readers).await?;
        Ok(row.map(Transaction::from))
    }
}
