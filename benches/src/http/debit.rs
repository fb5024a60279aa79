//! The handler's work, as that of `examples/payments-api`: a row, and a balance that it changes.

use std::future::Future;

use axum::http::{HeaderName, StatusCode, header};
use idem_core::{BoxError, Store, Tx};
use serde::Deserialize;
use serde_json::json;
use sqlx::PgConnection;

use crate::pgbench::{KEY, filled};

/// Nothing but the primary keys is unique, so that a debit that counted twice would show in both tables.
pub(super) const TABLES: &str = "
    CREATE TABLE idem_bench.transactions (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), idempotency_key text NOT NULL, tenant text NOT NULL,
        customer text NOT NULL, cents bigint NOT NULL, at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE idem_bench.balances (
        tenant text NOT NULL, customer text NOT NULL, cents bigint NOT NULL, PRIMARY KEY (tenant, customer));
    CREATE TABLE idem_bench.idempotency_keys (
        tenant text NOT NULL, idempotency_key text NOT NULL, request_hash bytea NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(), status int, location text, body text,
        PRIMARY KEY (tenant, idempotency_key));
    INSERT INTO idem_bench.balances SELECT 'shop', lpad(n::text, 5, '0'), 0 FROM generate_series(0, 9999) AS n";

pub(super) const RECORD: &str = "
    INSERT INTO idem_bench.transactions (idempotency_key, tenant, customer, cents) VALUES ($1, $2, $3, $4) RETURNING id::text";

pub(super) const ADD: &str = "
    INSERT INTO idem_bench.balances VALUES ($1, $2, $3) ON CONFLICT (tenant, customer)
    DO UPDATE SET cents = balances.cents + excluded.cents RETURNING cents";

/// An answer as long as that of a debit.
pub(crate) const LOCATION: &str = "/transactions/2d3e2b6c-59a6-4b2e-8d4e-1f2f3f4f5f6f";
pub(crate) const BODY: &str =
    r#"{"balance":117700,"cents":1177,"customer":"01234","id":"2d3e2b6c-59a6-4b2e-8d4e-1f2f3f4f5f6f"}"#;

/// The work as pgbench has it.
pub(super) fn script() -> String {
    let customer = "lpad((:customer)::text, 5, '0')";
    let (record, add) =
        (filled(RECORD, &[KEY, "'shop'", customer, "1177"]), filled(ADD, &["'shop'", customer, "1177"]));
    format!("{record};\n{add};\n")
}

/// The debit that a client asks for, its tenant and its key.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) tenant: String,
    pub(super) key: String,
    pub(super) customer: String,
    pub(super) cents: i64,
}

#[derive(Deserialize)]
struct Asked {
    customer: String,
    cents: i64,
}

impl Order {
    pub(super) fn new(tenant: &str, key: &str, body: &[u8]) -> Option<Self> {
        let Asked { customer, cents } = serde_json::from_slice(body).ok()?;
        Some(Self { tenant: tenant.to_owned(), key: key.to_owned(), customer, cents })
    }
}

/// A debit that was recorded.
#[derive(Debug)]
pub(super) struct Debited {
    pub(super) id: String,
    pub(super) balance: i64,
}

impl Debited {
    pub(super) fn location(&self) -> String {
        format!("/transactions/{}", self.id)
    }

    pub(super) fn body(&self, order: &Order) -> String {
        json!({ "id": self.id, "customer": order.customer, "cents": order.cents, "balance": self.balance }).to_string()
    }

    pub(super) fn answer(&self, order: &Order) -> Answer {
        answer(StatusCode::CREATED, self.location(), self.body(order))
    }
}

pub(super) type Answer = (StatusCode, [(HeaderName, String); 2], String);

pub(super) fn answer(status: StatusCode, location: String, body: String) -> Answer {
    (status, [(header::LOCATION, location), (header::CONTENT_TYPE, "application/json".to_owned())], body)
}

/// The work on a connection of sqlx, in a transaction that the caller has begun.
pub(super) async fn debit(connection: &mut PgConnection, order: &Order) -> Result<Debited, sqlx::Error> {
    let Order { tenant, key, customer, cents } = order;
    let record = sqlx::query_scalar(RECORD).bind(key).bind(tenant).bind(customer).bind(cents);
    let id = record.fetch_one(&mut *connection).await?;
    let balance = sqlx::query_scalar(ADD).bind(tenant).bind(customer).bind(cents).fetch_one(connection).await?;
    Ok(Debited { id, balance })
}

/// The work in a transaction of idem's.
pub(super) trait Debits: Store {
    fn debit(tx: &mut Tx<'_, Self>, order: &Order) -> impl Future<Output = Result<Debited, BoxError>> + Send;
}

impl Debits for idem_sqlx::PostgresStore {
    async fn debit(tx: &mut Tx<'_, Self>, order: &Order) -> Result<Debited, BoxError> {
        Ok(debit(tx.connection(), order).await?)
    }
}

impl Debits for idem_tokio_postgres::PostgresStore {
    async fn debit(tx: &mut Tx<'_, Self>, order: &Order) -> Result<Debited, BoxError> {
        let Order { tenant, key, customer, cents } = order;
        let connection = tx.connection();
        let id = connection.query_one(RECORD, &[key, tenant, customer, cents]).await?.try_get(0)?;
        let balance = connection.query_one(ADD, &[tenant, customer, cents]).await?.try_get(0)?;
        Ok(Debited { id, balance })
    }
}
