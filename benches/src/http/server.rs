//! The server, in a process of its own: the same axum handler without a key, with the textbook's table of keys, and under
//! idem's layer.

use std::{io::Read as _, process::Stdio, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
    serve::ListenerExt as _,
};
use idem_core::BoxError;
use idem_http::{Authenticated, HashSecret, Idempotency, IdempotentTx, TxError};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

use super::{
    Failed, Way,
    by_hand::{Books, Driver},
    debit::{Debits, Order},
};
use crate::{alone, postgres::RECORDS};

/// Connections of each server to its database: as many as idem's layer has lanes by default.
pub(super) const POOL: usize = 16;

const PATH: &str = "/transactions";

/// A server, which ends with this.
pub(super) struct Running {
    pub(super) port: u16,
    process: Child,
}

impl Running {
    /// Starts it on tables that are there.
    pub(super) async fn start(way: Way, driver: Driver, url: &str) -> Result<Self, Failed> {
        let mut process = Command::new(std::env::current_exe()?);
        process.args([alone::FLAG, "http", way.name(), driver.name(), url]);
        let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = process.stdout.take().ok_or("the server has no output")?;
        let port = BufReader::new(output).lines().next_line().await?.ok_or("the server has not started")?.parse()?;
        Ok(Self { port, process })
    }

    /// Its resident memory in MiB.
    pub(super) fn resident_mib(&self) -> Result<usize, Failed> {
        alone::resident_mib_of(&self.process.id().ok_or("the server has ended")?.to_string())
    }

    pub(super) async fn stop(mut self) -> Result<(), Failed> {
        Ok(self.process.kill().await?)
    }
}

/// Serves until the parent process closes its input.
pub(crate) async fn serve(way: &str, driver: &str, url: &str) -> Result<(), Failed> {
    let router = router(Way::named(way)?, Driver::named(driver)?, url).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    tokio::select! {
        ended = async { axum::serve(listener, router).await } => Ok(ended?),
        _ = closed => Ok(()),
    }
}

async fn router(way: Way, driver: Driver, url: &str) -> Result<Router, Failed> {
    match (way, driver) {
        (Way::Bare | Way::ByHand, _) => {
            let books = Arc::new(Books::connect(driver, url).await?);
            let routes = if way == Way::Bare { post(bare) } else { post(by_hand) };
            Ok(Router::new().route(PATH, routes).with_state(books))
        }
        (Way::Idem, Driver::Sqlx) => with_idem(crate::postgres::records(url, RECORDS)?).await,
        (Way::Idem, Driver::TokioPostgres) => {
            let options = idem_tokio_postgres::PostgresOptions::parse(url)?.schema(RECORDS.parse()?);
            with_idem(options.build()?).await
        }
    }
}

async fn with_idem<S: Debits>(store: S) -> Result<Router, Failed> {
    let idempotency = Idempotency::builder(store, "bench")
        .tenant(tenant)
        .hash_secret(HashSecret::new(1, &[7; 32])?)
        .lanes(POOL)
        .tenant_connections_max(POOL)
        .build()?;
    idempotency.start().await?;
    Ok(Router::new().route(PATH, post(under_idem::<S>)).layer(idempotency.layer()))
}

fn tenant(parts: &Parts) -> Option<Authenticated> {
    bearer(&parts.headers).map(Authenticated::tenant)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

fn key(headers: &HeaderMap) -> Option<&str> {
    headers.get("idempotency-key")?.to_str().ok()
}

fn order(headers: &HeaderMap, body: &[u8]) -> Result<Order, StatusCode> {
    let tenant = bearer(headers).ok_or(StatusCode::UNAUTHORIZED)?;
    Order::new(tenant, key(headers).ok_or(StatusCode::BAD_REQUEST)?, body).ok_or(StatusCode::BAD_REQUEST)
}

async fn bare(State(books): State<Arc<Books>>, headers: HeaderMap, body: Bytes) -> Result<Response, StatusCode> {
    let order = order(&headers, &body)?;
    let debited = books.debited(&order).await.map_err(failed)?;
    Ok(debited.answer(&order).into_response())
}

async fn by_hand(State(books): State<Arc<Books>>, headers: HeaderMap, body: Bytes) -> Result<Response, StatusCode> {
    let order = order(&headers, &body)?;
    let answer = books.once(&order, &body).await.map_err(failed)?;
    answer.map(IntoResponse::into_response).ok_or(StatusCode::UNPROCESSABLE_ENTITY)
}

async fn under_idem<S: Debits>(mut tx: IdempotentTx<S>, headers: HeaderMap, body: Bytes) -> Result<Response, TxError> {
    let order = match order(&headers, &body) {
        Ok(order) => order,
        Err(status) => return Ok(status.into_response()),
    };
    let debited = S::debit(&mut tx.tx(), &order).await?;
    Ok(debited.answer(&order).into_response())
}

fn failed(error: BoxError) -> StatusCode {
    eprintln!("{error}");
    StatusCode::INTERNAL_SERVER_ERROR
}
