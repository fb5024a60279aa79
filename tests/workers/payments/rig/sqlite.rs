//! Payments on SQLite.

use idem_service::{
    Opened,
    idem_core::{BoxError, Tx},
};
use idem_sqlx::SqliteStore;
use sqlx::{SqlitePool, query, query_as, query_scalar, sqlite::SqlitePoolOptions};

use crate::{
    books::{Books, Order, Recorded, Transaction},
    postgres::READ_WITHIN,
};

/// As those of `postgres.rs`.
pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS transactions (
        id text PRIMARY KEY,
        idempotency_key text NOT NULL,
        tenant text NOT NULL,
        customer text NOT NULL,
        cents integer NOT NULL,
        at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    );
    CREATE TABLE IF NOT EXISTS balances (
        tenant text NOT NULL,
        customer text NOT NULL,
        cents integer NOT NULL,
        PRIMARY KEY (tenant, customer)
    );
    CREATE TABLE IF NOT EXISTS declines (
        id integer PRIMARY KEY,
        idempotency_key text NOT NULL,
        tenant text NOT NULL,
        customer text NOT NULL,
        cents integer NOT NULL,
        at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    )";

/// The id is a UUID of version 4, which SQLite has no function for.
const RECORD: &str = "
    INSERT INTO transactions (id, idempotency_key, tenant, customer, cents)
    SELECT substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-4' || substr(hex, 14, 3) || '-a' || substr(hex, 18, 3) || '-'
        || substr(hex, 21, 12), $1, $2, $3, $4
    FROM (SELECT lower(hex(randomblob(16))) AS hex)
    RETURNING id, substr(at, 1, 10)";

const ADD: &str = "
    INSERT INTO balances VALUES ($1, $2, $3) ON CONFLICT (tenant, customer)
    DO UPDATE SET cents = balances.cents + excluded.cents
    WHERE balances.cents <= 9223372036854775807 - excluded.cents
    RETURNING cents";

const DECLINE: &str = "INSERT INTO declines (idempotency_key, tenant, customer, cents) VALUES ($1, $2, $3, $4)";

const READ: &str = "SELECT id, customer, cents, at FROM transactions WHERE tenant = $1 AND id = $2";

impl Books for SqliteStore {
    type Error = sqlx::Error;
    type Readers = SqlitePool;

    fn readers(opened: &Opened<Self>) -> Result<SqlitePool, BoxError> {
        let pool = SqlitePoolOptions::new().max_connections(4).acquire_timeout(READ_WITHIN);
        Ok(pool.connect_lazy(opened.database_url())?)
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

    async fn transaction(readers: &SqlitePool, tenant: &str, id: &str) -> Result<Option<Transaction>, BoxError> {
        let row: Option<(_, _, _, _)> = query_as(READ).bind(tenant).bind(id).fetch_optional(readers).await?;
        Ok(row.map(Transaction::from))
    }
}
