//! `/transactions`: the form of a request, and its answers.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use idem_service::{
    Database, HttpService, Opened, axum,
    idem_core::{BoxError, Event},
    idem_http::{IdempotentTx, TxError},
};
use serde::Deserialize;
use serde_json::json;

use crate::{
    bearer::{self, Bearer},
    books::{Books, Order, Recorded},
    problems,
};

/// The settings of this service beyond those of every one.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Payments")]
pub(crate) struct Payments {
    /// Send an event for each transaction to this topic of --brokers [default: none]
    #[arg(long, value_name = "DESTINATION")]
    pub(crate) announce: Option<String>,

    /// The most that one transaction may be, in cents; more is declined with 402
    #[arg(long, value_name = "CENTS", default_value_t = 100_000_000)]
    limit: i64,
}

/// The form of a body, for those who have sent another one.
const FORM: &str = "the body must be {\"customer\": \"…\", \"cents\": …} in JSON";

/// The body of a request.
#[derive(Deserialize)]
struct Asked {
    customer: String,
    cents: i64,
}

/// The state that the routes share.
struct Shared<S: Books> {
    payments: Payments,
    readers: S::Readers,
}

/// The service. Keys are those of the tenant that the bearer token names.
pub(crate) fn service<D: Database>(payments: Payments, tables: &'static str) -> HttpService<D>
where
    D::Store: Books,
{
    let announce = payments.announce.clone();
    HttpService::new("payments", |opened| routes(opened, payments))
        .idempotency(|idempotency| idempotency.tenant(bearer::tenant).problem_types("/problems/"))
        .tables(tables)
        .publish_to(announce)
}

/// The routes. Whatever changes something stands under the layer, and what no route takes is refused before it.
fn routes<S: Books>(opened: Opened<S>, payments: Payments) -> Result<Router, BoxError> {
    let shared = Arc::new(Shared::<S> { payments, readers: S::readers(&opened)? });
    Ok(Router::new()
        .route("/transactions", post(create::<S>).route_layer(opened.idempotency.layer()))
        .route("/transactions/{id}", get(read::<S>))
        .route_service("/idempotency/{key}", opened.idempotency.asks(["POST /transactions"])?)
        .with_state(shared)
        .merge(problems::routes()))
}

/// Records a transaction. Effect, event and answer are committed together; who asks again with the key gets the answer.
async fn create<S: Books>(
    State(shared): State<Arc<Shared<S>>>,
    mut tx: IdempotentTx<S>,
    body: Bytes,
) -> Result<Response, TxError> {
    let Payments { announce, limit } = shared.payments.clone();
    let (customer, cents) = match serde_json::from_slice(&body) {
        // An array of the members in their order would be read too.
        Ok(_) if !body.trim_ascii().starts_with(b"{") => return Ok(problems::malformed(FORM)),
        // The database cannot store a NUL.
        Ok(Asked { customer, cents }) if (1..=200).contains(&customer.chars().count()) && !customer.contains('\0') => {
            (customer, cents)
        }
        // Nothing was decided, so nothing is kept: the corrected request may have the same key.
        Ok(_) => return Ok(problems::malformed("customer must have 1 to 200 characters, of which none is NUL")),
        Err(_) => return Ok(problems::malformed(FORM)),
    };
    if cents <= 0 {
        // A decision: every repeat with this key is refused again.
        tx.refuse();
        return Ok(problems::no_amount(cents));
    }
    let (tenant, key) = (tx.key().tenant().to_owned(), tx.key().as_str().to_owned());
    let order = Order { tenant, key, customer, cents };
    if cents > limit {
        // A decline has an effect of its own, and is committed.
        S::decline(&mut tx.tx(), &order).await?;
        return Ok(problems::over_limit(cents, limit));
    }
    let Some(recorded) = S::record(&mut tx.tx(), &order).await? else {
        tx.refuse();
        return Ok(problems::balance_too_large(cents));
    };
    if let Some(destination) = announce {
        tx.publish(event(&destination, &order, &recorded))?;
    }
    let Recorded { id, balance, .. } = recorded;
    let location = [(header::LOCATION, format!("/transactions/{id}"))];
    let mut answer = json!({ "id": id, "customer": order.customer, "cents": cents });
    if let Some(balance) = balance {
        answer["balance"] = balance.into();
    }
    Ok((StatusCode::CREATED, location, Json(answer)).into_response())
}

/// The same event as the workers', so that they can consume it.
fn event(destination: &str, order: &Order, recorded: &Recorded) -> Event {
    let Order { key, customer, cents, .. } = order;
    let body = json!({ "purchase": key, "customer": customer, "day": recorded.day, "cds": 1, "cents": cents });
    Event::to(destination)
        .event_type("PurchaseRecorded")
        .ordering_key(customer.clone())
        .content_type("application/json")
        .body(body.to_string())
}

/// Reads a transaction of the tenant's.
async fn read<S: Books>(
    State(shared): State<Arc<Shared<S>>>,
    Bearer(tenant): Bearer,
    Path(id): Path<String>,
) -> Response {
    // No transaction has such an id, and PostgreSQL takes no NUL.
    if id.contains('\0') {
        return StatusCode::NOT_FOUND.into_response();
    }
    match S::transaction(&shared.readers, &tenant, &id).await {
        Ok(Some(transaction)) => Json(transaction).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::warn!(%error, "a transaction could not be read");
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response()
        }
    }
}
