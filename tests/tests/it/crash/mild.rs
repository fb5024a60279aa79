//! The same places with milder accidents: an injected error, a panic. Each once, on each store, in batch mode; nothing
//! is lost or doubled, and the process says so where it had to end.

use futures_util::future::join_all;
use idem_core::failpoint;
use idem_testkit::memory::{Order, QueueOptions};
use idem_tests::plan::{Plan, WORKER_FAILED};

use super::{
    fixture::{Fixture, conclude},
    is_chosen,
    matrix::BATCH,
    points,
};
use crate::support::database::Kind;

/// The exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

#[derive(Debug, Clone, Copy)]
struct Accident {
    kind: Kind,
    point: &'static str,
    action: &'static str,
}

impl Accident {
    fn name(&self) -> String {
        format!("{:?}-{}-{}", self.kind, self.action, self.point).to_lowercase()
    }

    async fn run(self) -> Result<(), String> {
        let mut variant = idem_testkit::rng(&format!("{} variant", self.name()));
        // A delivery that gets lost at `recv` comes back behind those that followed it, which no source does that keeps
        // an order.
        let ordered = self.point != failpoint::RECV && variant.bool();
        let order = if ordered { Order::ByKey } else { Order::None };
        let mut fixture = Fixture::new(&self.name(), self.kind, BATCH, QueueOptions::default().order(order)).await;
        if self.point == failpoint::ISOLATE {
            fixture.plan.lanes = 1;
        }
        fixture.publish_wave();
        let cleaning = self.point == failpoint::CLEAN_CHUNK;
        let idle_ms = if cleaning { 1_500 } else { fixture.plan.idle_ms };
        // A delivery or settlement that gets lost stays with this consumer, which ends when it holds everything left.
        let plan = Plan { cleanup_rows: cleaning.then_some(3), idle_ms, ..fixture.plan.clone() };
        let child = fixture.start(&plan, &format!("{}=1*{}", self.point, self.action));
        let ended = child.ended().await?;
        let code = ended.status.code();
        let in_main = self.point == failpoint::DRAIN && code == Some(PANICKED);
        match self.action {
            "error" if code != Some(0) => return ended.unexpected("gone on"),
            // A task of the worker that panics stops the worker, which says which one. The drain is no task: it runs
            // where the application called `run`, and so does its panic.
            "panic" if code != Some(0) && code != Some(i32::from(WORKER_FAILED)) && !in_main => {
                return ended.unexpected("gone on, or ended with an error");
            }
            "panic" if !ended.logged(&format!("failpoint {}", self.point)) => return ended.unexpected("panicked"),
            _ => {}
        }
        fixture.recover_and_check().await?;
        fixture.remove().await;
        Ok(())
    }
}

pub(super) async fn accidents(kind: Kind, action: &'static str) {
    let rows = points().map(|point| Accident { kind, point, action });
    let rows = rows.filter(|row| is_chosen(&row.name()));
    conclude(join_all(rows.map(|row| async move { (row.name(), row.run().await) })).await);
}

/// A3, A5, A6 and every other place: an error instead of an answer.
#[tokio::test]
async fn an_error_at_any_failpoint_loses_and_doubles_nothing_on_postgres() {
    accidents(Kind::PostgresStore, "error").await;
}

/// As on PostgreSQL.
#[tokio::test]
async fn an_error_at_any_failpoint_loses_and_doubles_nothing_on_sqlite() {
    accidents(Kind::SqliteStore, "error").await;
}

/// J11: a task that panics stops the worker instead of leaving it standing still.
#[tokio::test]
async fn a_panic_at_any_failpoint_loses_and_doubles_nothing_on_postgres() {
    accidents(Kind::PostgresStore, "panic").await;
}

/// As on PostgreSQL.
#[tokio::test]
async fn a_panic_at_any_failpoint_loses_and_doubles_nothing_on_sqlite() {
    accidents(Kind::SqliteStore, "panic").await;
}
