//! Idempotency as it is commonly written by hand: a table of keys with the answers in it, on a pool, in one transaction with
//! the handler's statements.

use axum::http::StatusCode;
use deadpool_postgres::{Manager, Pool, Transaction};
use idem_core::BoxError;
use idem_tokio_postgres::tokio_postgres::NoTls;
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};

use super::{
    Failed,
    debit::{self, ADD, Answer, BODY, Debited, LOCATION, Order, RECORD, answer},
    server::POOL,
};
use crate::pgbench::{KEY, filled};

const CLAIM: &str = "
    INSERT INTO idem_bench.idempotency_keys (tenant, idempotency_key, request_hash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
const FIND: &str = "
    SELECT request_hash, status, location, body FROM idem_bench.idempotency_keys WHERE tenant = $1 AND idempotency_key = $2";
const KEEP: &str = "
    UPDATE idem_bench.idempotency_keys SET status = $3, location = $4, body = $5 WHERE tenant = $1 AND idempotency_key = $2";

/// The statements as pgbench has them: the claim of a key, and its answer.
pub(crate) fn textbook() -> [String; 2] {
    let (location, body) = (format!("'{LOCATION}'"), format!("'{BODY}'"));
    let claim = filled(CLAIM, &["'shop'", KEY, "decode(repeat('00', 32), 'hex')"]);
    [claim, filled(KEEP, &["'shop'", KEY, "201", &location, &body])]
}

/// The driver that the statements go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Sqlx,
    TokioPostgres,
}

impl Driver {
    pub(super) const ALL: [Self; 2] = [Self::Sqlx, Self::TokioPostgres];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::TokioPostgres => "tokio-postgres",
        }
    }

    /// How tables and targets have it.
    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Sqlx => "sqlx",
            Self::TokioPostgres => "tokio",
        }
    }

    pub(super) fn named(name: &str) -> Result<Self, Failed> {
        Ok(Self::ALL.into_iter().find(|driver| driver.name() == name).ok_or("no such driver")?)
    }
}

/// A pool of connections with its defaults: that of sqlx asks each connection whether it is there before it hands it out.
pub(super) enum Books {
    Sqlx(PgPool),
    TokioPostgres(Pool),
}

impl Books {
    pub(super) async fn connect(driver: Driver, url: &str) -> Result<Self, Failed> {
        Ok(match driver {
            Driver::Sqlx => Self::Sqlx(PgPoolOptions::new().max_connections(u32::try_from(POOL)?).connect(url).await?),
            Driver::TokioPostgres => {
                Self::TokioPostgres(Pool::builder(Manager::new(url.parse()?, NoTls)).max_size(POOL).build()?)
            }
        })
    }

    /// The debit in a transaction, and nothing else.
    pub(super) async fn debited(&self, order: &Order) -> Result<Debited, BoxError> {
        match self {
            Self::Sqlx(pool) => {
                let mut tx = pool.begin().await?;
                let debited = debit::debit(&mut tx, order).await?;
                tx.commit().await?;
                Ok(debited)
            }
            Self::TokioPostgres(pool) => {
                let mut client = pool.get().await?;
                let tx = client.transaction().await?;
                let debited = debit(&tx, order).await?;
                tx.commit().await?;
                Ok(debited)
            }
        }
    }

    /// The debit with its key and its answer, or the answer that was given before. `None` where the key was used for another
    /// request.
    pub(super) async fn once(&self, order: &Order, body: &[u8]) -> Result<Option<Answer>, BoxError> {
        let (Order { tenant, key, .. }, hash) = (order, Sha256::digest(body).to_vec());
        match self {
            Self::Sqlx(pool) => {
                let mut tx = pool.begin().await?;
                let claim = sqlx::query(CLAIM).bind(tenant).bind(key).bind(&hash).execute(&mut *tx).await?;
                if claim.rows_affected() == 0 {
                    let found = found(&mut tx, order).await?;
                    tx.rollback().await?;
                    return Ok(found.again(&hash));
                }
                let debited = debit::debit(&mut tx, order).await?;
                let (location, body) = (debited.location(), debited.body(order));
                let keep = sqlx::query(KEEP).bind(tenant).bind(key).bind(201).bind(&location).bind(&body);
                keep.execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(Some(answer(StatusCode::CREATED, location, body)))
            }
            Self::TokioPostgres(pool) => {
                let mut client = pool.get().await?;
                let tx = client.transaction().await?;
                let claim = tx.prepare_cached(CLAIM).await?;
                if tx.execute(&claim, &[tenant, key, &hash]).await? == 0 {
                    let row = tx.query_one(&tx.prepare_cached(FIND).await?, &[tenant, key]).await?;
                    let found = Found(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                    tx.rollback().await?;
                    return Ok(found.again(&hash));
                }
                let debited = debit(&tx, order).await?;
                let (location, body) = (debited.location(), debited.body(order));
                let keep = tx.prepare_cached(KEEP).await?;
                tx.execute(&keep, &[tenant, key, &201, &location, &body]).await?;
                tx.commit().await?;
                Ok(Some(answer(StatusCode::CREATED, location, body)))
            }
        }
    }
}

async fn debit(tx: &Transaction<'_>, order: &Order) -> Result<Debited, BoxError> {
    let Order { tenant, key, customer, cents } = order;
    let record = tx.prepare_cached(RECORD).await?;
    let id = tx.query_one(&record, &[key, tenant, customer, cents]).await?.try_get(0)?;
    let add = tx.prepare_cached(ADD).await?;
    let balance = tx.query_one(&add, &[tenant, customer, cents]).await?.try_get(0)?;
    Ok(Debited { id, balance })
}

/// The hash of a request, and its answer.
struct Found(Vec<u8>, i32, String, String);

async fn found(connection: &mut PgConnection, order: &Order) -> Result<Found, sqlx::Error> {
    let find = sqlx::query_as(FIND).bind(&order.tenant).bind(&order.key);
    let (hash, status, location, body) = find.fetch_one(connection).await?;
    Ok(Found(hash, status, location, body))
}

impl Found {
    fn again(self, asked: &[u8]) -> Option<Answer> {
        let Self(hash, status, location, body) = self;
        let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok())?;
        (hash == asked).then(|| answer(status, location, body))
    }
}
