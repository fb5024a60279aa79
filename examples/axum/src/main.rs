//! Orders of shops over HTTP, with the application's own state, pool, login and errors. A repeated request makes no second order.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "its terminal is its log")]

use std::process::ExitCode;

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, State},
    http::{StatusCode, header::AUTHORIZATION, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use idem_http::{Authenticated, HashSecret, Idempotency, IdempotentTx, idem_core::BoxError};
use idem_sqlx::PostgresStore;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use tokio::net::TcpListener;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS shops (name text PRIMARY KEY, token text NOT NULL, credit bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        shop text NOT NULL REFERENCES shops,
        item text NOT NULL,
        cents bigint NOT NULL
    );
    INSERT INTO shops VALUES ('acme', 'token-of-acme', 100000), ('globex', 'token-of-globex', 100)
    ON CONFLICT DO NOTHING";

/// The state that all handlers share.
#[derive(Clone)]
struct App {
    pool: PgPool,
    order_max: i64,
}

#[derive(Deserialize)]
struct NewOrder {
    item: String,
    cents: i64,
}

#[derive(Serialize, sqlx::FromRow)]
struct Order {
    id: i64,
    item: String,
    cents: i64,
}

/// Why a request has no order to show.
enum AppError {
    Unauthorized,
    NotFound,
    TooLarge { max: i64 },
    NoCredit,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for AppError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "the token is unknown".to_owned()),
            Self::NotFound => (StatusCode::NOT_FOUND, "the shop has no such order".to_owned()),
            Self::TooLarge { max } => (StatusCode::BAD_REQUEST, format!("an order may cost {max} cents at most")),
            Self::NoCredit => (StatusCode::PAYMENT_REQUIRED, "the shop's credit is too small".to_owned()),
            Self::Database(error) => {
                eprintln!("a request failed: {error}");
                (StatusCode::INTERNAL_SERVER_ERROR, "the order could not be handled".to_owned())
            }
        };
        (status, Json(json!({ "error": text }))).into_response()
    }
}

/// The shop that sends a request, by its bearer token.
struct Caller {
    shop: String,
}

impl FromRequestParts<App> for Caller {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AppError> {
        let token = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let known = sqlx::query_scalar("SELECT name FROM shops WHERE token = $1").bind(token);
        let shop = known.fetch_optional(&app.pool).await?.ok_or(AppError::Unauthorized)?;
        Ok(Self { shop })
    }
}

/// The shop whose keys the request uses.
async fn tenant(app: App, parts: &mut Parts) -> Result<Option<Authenticated>, BoxError> {
    match Caller::from_request_parts(parts, &app).await {
        Ok(caller) => Ok(Some(Authenticated::tenant(caller.shop))),
        Err(AppError::Database(error)) => Err(error.into()),
        Err(_unknown) => Ok(None),
    }
}

async fn create(
    State(app): State<App>,
    caller: Caller,
    mut tx: IdempotentTx<PostgresStore>,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), AppError> {
    let NewOrder { item, cents } = order;
    if cents > app.order_max {
        return Err(AppError::TooLarge { max: app.order_max });
    }
    charge(&mut tx, &caller.shop, cents).await?;
    let insert = sqlx::query_scalar("INSERT INTO orders (shop, item, cents) VALUES ($1, $2, $3) RETURNING id");
    let id = insert.bind(&caller.shop).bind(&item).bind(cents).fetch_one(&mut *tx).await?;
    Ok((StatusCode::CREATED, Json(Order { id, item, cents })))
}

/// Takes the price from the shop's credit.
async fn charge(connection: &mut PgConnection, shop: &str, cents: i64) -> Result<(), AppError> {
    let take = sqlx::query("UPDATE shops SET credit = credit - $2 WHERE name = $1 AND credit >= $2");
    let taken = take.bind(shop).bind(cents).execute(connection).await?;
    if taken.rows_affected() == 1 { Ok(()) } else { Err(AppError::NoCredit) }
}

async fn read(State(app): State<App>, caller: Caller, Path(id): Path<i64>) -> Result<Json<Order>, AppError> {
    let order = sqlx::query_as("SELECT id, item, cents FROM orders WHERE shop = $1 AND id = $2");
    let order = order.bind(caller.shop).bind(id).fetch_optional(&app.pool).await?;
    order.map(Json).ok_or(AppError::NotFound)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    eprintln!("orders: {error}");
    ExitCode::FAILURE
}

/// A setting from the environment.
fn variable(name: &str, what: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("set the variable {name} to {what}"))
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let pool = PgPool::connect(&variable("DATABASE_URL", "the address of a PostgreSQL database")?).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let app = App { pool, order_max: 50_000 };
    let secret = HashSecret::new(
        1,
        variable("HASH_SECRET", "32 or more random bytes, the same ones at each start")?.as_bytes(),
    )?;
    let idempotency = Idempotency::builder(PostgresStore::like(&app.pool)?, "orders").hash_secret(secret);
    let idempotency = idempotency.tenant_with(app.clone(), tenant).build()?;
    idempotency.start().await?;
    let routes = Router::new()
        .route("/orders", post(create).route_layer(idempotency.layer()))
        .route("/orders/{id}", get(read))
        .with_state(app);
    let listener = TcpListener::bind(std::env::var("LISTEN").as_deref().unwrap_or("127.0.0.1:8080")).await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(axum::serve(listener, routes).await?)
}
