//! The guide's table of errors, row by row on the databases: what is kept after a failed statement, and what a client is told.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
    routing::post,
};
use http::StatusCode;
use idem_core::{BoxError, Store};
use idem_http::{IdempotentTx, TxError};
use tower::ServiceExt as _;

use super::{
    grounds::{Postgres, Sql, Sqlite, TokioPostgres},
    support::{Seen, builder, request},
};

const GUIDE: &str = include_str!("../../../../docs/internals/http-failed-statements.md");

/// The statement that fails as the first cell says.
fn statement(cell: &str) -> Option<&'static str> {
    let kinds = [
        ("none", None),
        ("a unique violation", Some("INSERT INTO parent VALUES (1)")),
        ("a broken reference", Some("INSERT INTO child VALUES (7)")),
        ("a deadlock", Some("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")),
        ("a RAISE of a trigger", Some("DO $$ BEGIN RAISE EXCEPTION 'over the limit'; END $$")),
        ("a lock timeout", Some("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '55P03'; END $$")),
        ("a lost connection", Some("SELECT pg_terminate_backend(pg_backend_pid())")),
    ];
    let found = kinds.into_iter().find(|(kind, _)| cell.starts_with(kind));
    found.unwrap_or_else(|| panic!("the cell {cell:?}")).1
}

/// The rows of the table.
fn rows() -> Vec<Vec<&'static str>> {
    let table = GUIDE.split("| error of a statement |").nth(1).expect("the table").split("\n\n").next().unwrap();
    let rows = table.lines().skip(2).map(|line| line.trim().trim_matches('|').split('|').map(str::trim).collect());
    rows.collect()
}

/// Responds as the second cell says.
fn responds<S: Store>(tx: &IdempotentTx<S>, cell: &str) -> Response {
    let (first, status) = cell.rsplit_once(' ').unwrap_or(("", cell));
    match first {
        "" => {}
        "`refuse`," => tx.refuse(),
        "`discard`," => tx.discard(),
        _ => panic!("the cell {cell:?}"),
    }
    let status = StatusCode::from_u16(status.parse().unwrap()).unwrap();
    (status, fastrand::u64(..).to_string()).into_response()
}

/// Plays each row twice, with the results of this column.
async fn each_row_is_played<G: Sql>(column: usize) {
    let ground = G::new().await;
    let payments = builder(&ground).build().unwrap();
    let seed = async |mut tx: IdempotentTx<G::Store>| -> Result<StatusCode, TxError> {
        G::execute(&mut tx.tx(), "INSERT INTO parent VALUES (1)").await?;
        Ok(StatusCode::CREATED)
    };
    let seed = Router::new().route("/t", post(seed).route_layer(payments.layer()));
    assert_eq!(seed.oneshot(request("seed", "").map(Body::new)).await.unwrap().status(), 201);
    let rows = rows();
    assert!((10..=20).contains(&rows.len()), "{} rows", rows.len());
    for (number, row) in rows.into_iter().enumerate() {
        let what = row.join(", ");
        let (cell, handler, expected) = (row[0], row[1], row[column]);
        if expected == "-" {
            continue;
        }
        let runs = Arc::new(AtomicUsize::new(0));
        let (statement, is_noted) = (statement(cell), !cell.ends_with("without a note"));
        let answers = {
            let (runs, effect) = (Arc::clone(&runs), what.clone());
            async move |mut tx: IdempotentTx<G::Store>| -> Result<Response, TxError> {
                runs.fetch_add(1, Ordering::SeqCst);
                G::pay(&mut tx.tx(), effect).await?;
                if let Some(text) = statement {
                    let error = G::execute(&mut tx.tx(), text).await.unwrap_err();
                    if handler == "`?`" {
                        Err(error)?;
                    } else if is_noted {
                        tx.note(error);
                    }
                }
                assert_ne!(handler, "panics");
                Ok(responds(&tx, handler))
            }
        };
        let app = Router::new().route("/t", post(answers).route_layer(payments.layer()));
        let sent = || app.clone().oneshot(request(&format!("k-{number}"), "one").map(Body::new));
        let first = Seen::of(sent().await.unwrap()).await;
        let again = Seen::of(sent().await.unwrap()).await;
        let (status, is_kept) = expected.strip_suffix(", kept").map_or((expected, false), |status| (status, true));
        let status = status.parse::<u16>().unwrap();
        assert_eq!((first.status, again.status), (status, status), "{what}: {first:?}, {again:?}");
        let replayed = is_kept.then_some(true);
        assert_eq!((first.is_replayed(), again.is_replayed()), (replayed.map(|_| false), replayed), "{what}");
        assert_eq!(runs.load(Ordering::SeqCst), if is_kept { 1 } else { 2 }, "{what}: its runs");
        // A repeat is asked for only where it may go better.
        assert_eq!(first.header("retry-after").is_some(), status == 503, "{what}: {first:?}");
        if is_kept {
            assert_eq!(first.body, again.body, "{what}");
        }
        // PostgreSQL has lost the whole transaction, and a 4xx after an error that was noted takes it back.
        let has_effect = ground.paid().await.contains(&what);
        let is_taken_back = statement.is_some() && (column == 2 || is_noted && status >= 400);
        assert!(!(has_effect && (!is_kept || is_taken_back)), "{what}: its effect");
    }
}

#[tokio::test]
async fn w168_w169_the_table_of_errors_is_played_on_postgres() {
    each_row_is_played::<Postgres>(2).await;
}

#[tokio::test]
async fn w168_w169_the_table_of_errors_is_played_on_tokio_postgres() {
    each_row_is_played::<TokioPostgres>(2).await;
}

#[tokio::test]
async fn w168_w169_the_table_of_errors_is_played_on_sqlite() {
    each_row_is_played::<Sqlite>(3).await;
}

/// W170: a query without a row fails no statement, so a refusal after it is kept.
#[tokio::test]
async fn w170_a_refusal_after_a_query_without_a_row_is_kept() {
    refused_without_a_row::<Postgres>().await;
}

async fn refused_without_a_row<G: Sql>() {
    let ground = G::new().await;
    let payments = builder(&ground).build().unwrap();
    let handler = async |mut tx: IdempotentTx<G::Store>| -> StatusCode {
        let _ = tx.connection();
        tx.note(BoxError::from(sqlx::Error::RowNotFound));
        tx.refuse();
        StatusCode::NOT_FOUND
    };
    let app = Router::new().route("/t", post(handler).route_layer(payments.layer()));
    for replayed in [false, true] {
        let seen = Seen::of(app.clone().oneshot(request("k", "one").map(Body::new)).await.unwrap()).await;
        assert_eq!((seen.status, seen.is_replayed()), (404, Some(replayed)), "{seen:?}");
    }
}
