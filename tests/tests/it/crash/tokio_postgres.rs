//! The matrix on the store on tokio-postgres, with handlers one after the other and at once.

use super::{
    matrix::{BATCH, matrix},
    mild::accidents,
    poison::poison,
    replay::replays,
};
use crate::support::database::Kind;

/// As [`super::matrix`], one message a unit.
#[tokio::test]
async fn crash_matrix_tokio_postgres_single() {
    matrix(Kind::TokioPostgres, 1).await;
}

/// As [`super::matrix`], several messages a unit.
#[tokio::test]
async fn crash_matrix_tokio_postgres_batch() {
    matrix(Kind::TokioPostgres, BATCH).await;
}

/// As [`super::matrix`], one message a unit, on the shared handle.
#[tokio::test]
async fn crash_matrix_tokio_postgres_pipelined_single() {
    matrix(Kind::TokioPostgresPipelined, 1).await;
}

/// As [`super::matrix`], several messages a unit, at once.
#[tokio::test]
async fn crash_matrix_tokio_postgres_pipelined_batch() {
    matrix(Kind::TokioPostgresPipelined, BATCH).await;
}

/// As [`super::matrix`], in the fastest configuration: a batch handler, and the cache of committed keys.
#[tokio::test]
async fn crash_matrix_tokio_postgres_together_batch() {
    matrix(Kind::TokioPostgresTogether, BATCH).await;
}

/// As [`super::mild`].
#[tokio::test]
async fn errors_tokio_postgres() {
    accidents(Kind::TokioPostgres, "error").await;
}

/// As [`super::mild`], with handlers at once.
#[tokio::test]
async fn errors_tokio_postgres_pipelined() {
    accidents(Kind::TokioPostgresPipelined, "error").await;
}

/// As [`super::mild`].
#[tokio::test]
async fn panics_tokio_postgres() {
    accidents(Kind::TokioPostgres, "panic").await;
}

/// As [`super::mild`], with handlers at once.
#[tokio::test]
async fn panics_tokio_postgres_pipelined() {
    accidents(Kind::TokioPostgresPipelined, "panic").await;
}

/// As [`super::replay`] (C7).
#[tokio::test]
async fn c7_replays_tokio_postgres() {
    replays(Kind::TokioPostgres).await;
}

/// As [`super::replay`], with handlers at once (C7).
#[tokio::test]
async fn c7_replays_tokio_postgres_pipelined() {
    replays(Kind::TokioPostgresPipelined).await;
}

/// As [`super::poison`] (D4).
#[tokio::test]
async fn d4_poison_tokio_postgres() {
    poison(Kind::TokioPostgres).await;
}

/// D4, as [`super::poison`]: a message that ends the process takes its neighbours' handlers with it, and only itself is
/// set aside.
#[tokio::test]
async fn d4_poison_tokio_postgres_pipelined() {
    poison(Kind::TokioPostgresPipelined).await;
}
