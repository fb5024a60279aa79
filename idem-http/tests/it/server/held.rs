//! What becomes of a transaction that its handler does not hold as it should.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::post,
};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use idem_http::{IdempotentTx, TxError};
use tokio::sync::{mpsc, oneshot};
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory, Sql},
    support::{Runs, Seen, builder, request},
};

async fn send(app: &Router, key: &str) -> Seen {
    Seen::of(app.clone().oneshot(request(key, "one").map(Body::new)).await.unwrap()).await
}

/// Whether it is the problem of a transaction that was moved.
fn is_moved(seen: &Seen) -> bool {
    seen.status == 500 && seen.json()["type"].as_str().is_some_and(|kind| kind.ends_with("#transaction-moved"))
}

/// W190: a handler that moves its transaction into a task gets a 500 that says so, nothing of it is committed, and its key is free once the task
/// has let go of it.
pub(crate) async fn w190_a_transaction_in_a_task_is_not_committed<G: Ground>() {
    type Waiting = (oneshot::Receiver<()>, oneshot::Sender<()>);
    async fn moves<G: Ground>(
        State(waiting): State<Arc<Mutex<Option<Waiting>>>>,
        mut tx: IdempotentTx<G::Store>,
    ) -> Result<StatusCode, TxError> {
        G::pay(&mut tx.tx(), "before".to_owned()).await?;
        let waiting = waiting.lock().unwrap().take();
        if let Some((goes_on, ended)) = waiting {
            tokio::spawn(async move {
                goes_on.await.unwrap();
                // It is late, and not over.
                G::pay(&mut tx.tx(), "after".to_owned()).await.unwrap();
                drop(tx);
                ended.send(()).unwrap();
            });
        }
        Ok(StatusCode::CREATED)
    }
    let ground = G::new().await;
    let ((go_on, goes_on), (end, ended)) = (oneshot::channel(), oneshot::channel());
    let waiting = Arc::new(Mutex::new(Some((goes_on, end))));
    let payments = builder(&ground).lanes(1).build().unwrap();
    let app = Router::new().route("/t", post(moves::<G>).route_layer(payments.layer())).with_state(waiting);
    let moved = send(&app, "k").await;
    assert!(is_moved(&moved) && moved.is_replayed().is_none(), "{moved:?}");
    go_on.send(()).unwrap();
    ended.await.unwrap();
    assert_eq!(ground.paid().await, [""; 0]);
    // On the only connection.
    let again = send(&app, "k").await;
    assert_eq!((again.status, again.is_replayed(), ground.paid().await), (201, Some(false), vec!["before".to_owned()]));
}

/// W191: a response's body may use the transaction, as it is read to its end before the commit.
pub(crate) async fn w191_a_transaction_in_the_body_is_committed<G: Ground>() {
    async fn streams<G: Ground>(tx: IdempotentTx<G::Store>) -> Response {
        let parts = stream::unfold((tx, 0), |(mut tx, part)| async move {
            if part == 2 {
                return None;
            }
            G::pay(&mut tx.tx(), format!("part {part}")).await.unwrap();
            Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b"part")), (tx, part + 1)))
        });
        Body::from_stream(parts).into_response()
    }
    let ground = G::new().await;
    let payments = builder(&ground).build().unwrap();
    let app = Router::new().route("/t", post(streams::<G>).route_layer(payments.layer()));
    for replayed in [false, true] {
        let seen = send(&app, "k").await;
        assert_eq!((seen.status, seen.is_replayed(), &*seen.body), (200, Some(replayed), &b"partpart"[..]), "{seen:?}");
    }
    assert_eq!(ground.paid().await, ["part 0", "part 1"]);
}

/// W192: a handler that takes its transaction twice is refused, and nothing is kept; one after the other they may take it.
pub(crate) async fn w192_two_extractors_are_refused<G: Ground>() {
    async fn takes<G: Ground>(
        tx: IdempotentTx<G::Store>,
        again: Result<IdempotentTx<G::Store>, Response>,
    ) -> StatusCode {
        drop(tx);
        again.map_or_else(|refused| refused.status(), |_| StatusCode::CREATED)
    }
    async fn passes<G: Ground>(
        mut tx: IdempotentTx<G::Store>,
        request: axum::extract::Request,
        next: axum::middleware::Next,
    ) -> Result<Response, TxError> {
        G::pay(&mut tx.tx(), "outside".to_owned()).await?;
        drop(tx);
        Ok(next.run(request).await)
    }
    async fn pays<G: Ground>(mut tx: IdempotentTx<G::Store>) -> Result<StatusCode, TxError> {
        G::pay(&mut tx.tx(), "inside".to_owned()).await?;
        Ok(StatusCode::CREATED)
    }
    let ground = G::new().await;
    let payments = builder(&ground).build().unwrap();
    let twice = Router::new().route("/t", post(takes::<G>).route_layer(payments.layer()));
    for _ in 0..2 {
        let refused = send(&twice, "twice").await;
        assert_eq!((refused.status, refused.is_replayed()), (500, None), "{refused:?}");
    }
    let inner = axum::middleware::from_fn(passes::<G>);
    let in_turn = Router::new().route("/t", post(pays::<G>).route_layer(inner).route_layer(payments.layer()));
    assert_eq!(send(&in_turn, "in-turn").await.status, 201);
    assert_eq!(ground.paid().await, ["inside", "outside"]);
}

/// W193: a handler that is dropped at its deadline half way through a statement leaves nothing, and its key is free at once, however long the
/// statement would have run.
pub(crate) async fn w193_a_handler_dropped_in_a_statement_frees_its_key<G: Sql>(endless: &'static str) {
    let ground = G::new().await;
    // Far longer than the test: a rollback behind the statement would wait for it.
    let builder = builder(&ground).engine(|engine| engine.answer_timeout(Duration::from_secs(300)));
    let payments = builder.handler_deadline(Duration::from_secs(1)).lanes(1).build().unwrap();
    let runs = Arc::new(Runs::default());
    let handler = {
        let runs = Arc::clone(&runs);
        async move |mut tx: IdempotentTx<G::Store>| -> Result<StatusCode, TxError> {
            runs.one_begun();
            G::pay(&mut tx.tx(), "paid".to_owned()).await?;
            if runs.begun() == 1 {
                G::execute(&mut tx.tx(), endless).await?;
            }
            Ok(StatusCode::CREATED)
        }
    };
    let app = Router::new().route("/t", post(handler).route_layer(payments.layer()));
    let in_time = |seen| tokio::time::timeout(Duration::from_secs(60), seen);
    let late = in_time(send(&app, "k")).await.expect("the statement is waited for");
    assert_eq!((late.status, late.header("retry-after")), (503, Some("1")), "{late:?}");
    let again = in_time(send(&app, "k")).await.expect("the statement still runs");
    assert_eq!((again.status, ground.paid().await), (201, vec!["paid".to_owned()]));
}

/// W194: where the client is gone in the middle, the handler runs to its end with the transaction, which is committed.
pub(crate) async fn w194_a_client_that_is_gone_takes_no_transaction_with_it<G: Ground>() {
    type Steps = Arc<tokio::sync::Mutex<mpsc::Receiver<()>>>;
    async fn waits<G: Ground>(
        State((runs, steps)): State<(Arc<Runs>, Steps)>,
        mut tx: IdempotentTx<G::Store>,
    ) -> Result<StatusCode, TxError> {
        G::pay(&mut tx.tx(), "before".to_owned()).await?;
        runs.one_begun();
        steps.lock().await.recv().await;
        G::pay(&mut tx.tx(), "after".to_owned()).await?;
        Ok(StatusCode::CREATED)
    }
    let (ground, runs, (go_on, steps)) = (G::new().await, Arc::new(Runs::default()), mpsc::channel(1));
    let payments = builder(&ground).wait_for_owner(Duration::from_secs(20)).build().unwrap();
    let state = (Arc::clone(&runs), Arc::new(tokio::sync::Mutex::new(steps)));
    let app = Router::new().route("/t", post(waits::<G>).route_layer(payments.layer())).with_state(state);
    let mut gone = Box::pin(send(&app, "k"));
    tokio::select! {
        seen = &mut gone => panic!("it was answered while it waits: {seen:?}"),
        () = runs.until_begun(1) => drop(gone),
    }
    go_on.send(()).await.unwrap();
    payments.idle().await;
    assert_eq!(ground.paid().await, ["after", "before"]);
    assert_eq!(send(&app, "k").await.is_replayed(), Some(true));
}

/// A transaction that was kept beyond its request, as in an extension that a task holds, cannot be had any more.
#[tokio::test]
async fn w190_a_transaction_cannot_be_had_after_its_request() {
    type Store = <Memory as Ground>::Store;
    async fn keeps(
        State(kept): State<Arc<Mutex<Option<http::Extensions>>>>,
        request: axum::extract::Request,
    ) -> StatusCode {
        *kept.lock().unwrap() = Some(request.extensions().clone());
        StatusCode::CONFLICT
    }
    let (ground, kept) = (Memory::new().await, Arc::new(Mutex::new(None)));
    let payments = builder(&ground).build().unwrap();
    let app = Router::new().route("/t", post(keeps).route_layer(payments.layer())).with_state(Arc::clone(&kept));
    assert_eq!(send(&app, "k").await.status, 409);
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.extensions = kept.lock().unwrap().take().unwrap();
    let refused =
        <IdempotentTx<Store> as axum::extract::FromRequestParts<()>>::from_request_parts(&mut parts, &()).await;
    assert_eq!(refused.unwrap_err().status(), 500);
}
