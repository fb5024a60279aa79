//! Kills at every failpoint, in single and batch mode, on both stores.

use std::time::Duration;

use futures_util::future::join_all;
use idem_core::failpoint;
use idem_testkit::memory::{Order, QueueOptions};
use idem_tests::plan::Plan;

use super::{
    fixture::{Fixture, conclude},
    is_chosen, kills, points, wave,
};
use crate::support::{child::Child, database::Kind};

/// The batch of batch mode.
pub(crate) const BATCH: usize = 5;

/// How a consumer dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// At this failpoint.
    At(&'static str),
    /// By SIGKILL, at any moment (J2).
    Killed,
    /// By SIGTERM, at any moment: it finishes what runs, gives the rest back and ends well (J1).
    Terminated,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    batch: usize,
    death: Death,
}

impl Row {
    fn name(&self) -> String {
        let mode = if self.batch == 1 { "single" } else { "batch" };
        let death = match self.death {
            Death::At(point) => point,
            Death::Killed => "sigkill",
            Death::Terminated => "sigterm",
        };
        format!("{:?}-{mode}-{death}", self.kind).to_lowercase()
    }

    /// The fixture on which this death can be had.
    async fn fixture(&self) -> Fixture {
        let name = self.name();
        let mut variant = idem_testkit::rng(&format!("{name} variant"));
        // Only a batch is isolated, so single mode is taken at its word everywhere else.
        let batch = if self.death == Death::At(failpoint::ISOLATE) { BATCH } else { self.batch };
        let order = if variant.bool() { Order::ByKey } else { Order::None };
        let mut fixture = Fixture::new(&name, self.kind, batch, QueueOptions::default().order(order)).await;
        fixture.plan.outside = batch == 1 && variant.bool();
        if self.death == Death::At(failpoint::ISOLATE) {
            // With two lanes, the failing messages of a wave may meet none that are new on theirs.
            fixture.plan.lanes = 1;
        }
        fixture
    }

    /// The plan of the consumer that is to die: as the others', and so that it comes to the place.
    fn deadly(&self, plan: &Plan) -> Plan {
        let slow = Plan { handler_ms: 2, ..plan.clone() };
        match self.death {
            // Cleanup comes after a second, and finds the consumer at work.
            Death::At(failpoint::CLEAN_CHUNK) => {
                Plan { cleanup_rows: Some(3), handler_ms: 40, idle_ms: 10_000, ..plan.clone() }
            }
            Death::At(failpoint::DRAIN) | Death::Killed | Death::Terminated => slow,
            Death::At(_) => plan.clone(),
        }
    }

    /// How many passes of the failpoint one wave is certain to make.
    fn passes(&self) -> u64 {
        let Death::At(point) = self.death else { return 1 };
        // In batch mode the first five of a lane are alone, and some batches follow on the lane with more messages.
        let units = match self.batch {
            1 => 14,
            // Some of its messages are recognized from memory, without a unit.
            _ if self.kind == Kind::TokioPostgresTogether => 5,
            _ => 11,
        };
        match point {
            failpoint::RECV => 20,
            failpoint::HANDLER_MID if self.kind == Kind::TokioPostgresTogether => units,
            failpoint::HANDLER_MID => (self.batch as u64 * 6).max(14),
            failpoint::DEAD_LETTER_SENT | failpoint::DEAD_LETTER_OK => wave::DEAD_LETTERS,
            // Garbled, failing and failing once, each in a unit of its own sooner or later.
            failpoint::ROLLBACK => 4,
            // The settler takes what there is, so a wave may be few settlements.
            failpoint::ACK_SENT | failpoint::ACK_OK => 3,
            failpoint::CLEAN_CHUNK if self.kind != Kind::SqliteStore => 4,
            failpoint::ISOLATE | failpoint::CLEAN_CHUNK | failpoint::DRAIN => 1,
            _ => units,
        }
    }

    /// Lets a consumer die once.
    async fn kill(&self, fixture: &mut Fixture) -> Result<(), String> {
        let plan = self.deadly(&fixture.plan);
        let skip = fixture.rng.u64(..self.passes());
        let settled = fixture.rng.u64(0..12);
        let moment = Moment::after(fixture, settled);
        match self.death {
            Death::Killed => {
                let child = fixture.start(&plan, "");
                moment.signal(fixture, &child, "KILL").await;
                let ended = child.ended().await?;
                // It may have been done before the signal came.
                if ended.status.code().is_none_or(|code| code == 0) { Ok(()) } else { ended.unexpected("been killed") }
            }
            Death::Terminated => {
                let child = fixture.start(&plan, "");
                moment.signal(fixture, &child, "TERM").await;
                let ended = child.ended().await?;
                if ended.status.success() { Ok(()) } else { ended.unexpected("drained") }
            }
            Death::At(point) => {
                let child = fixture.start(&plan, &format!("{point}={skip}+1*abort"));
                if point == failpoint::DRAIN {
                    moment.signal(fixture, &child, "TERM").await;
                }
                let ended = child.ended().await?;
                if ended.aborted() && !ended.logged("panicked at") && !ended.logged("overflowed its stack") {
                    return Ok(());
                }
                ended.unexpected(&format!("died at {point}, pass {}", skip + 1))
            }
        }
    }

    /// One to three deaths in a row, each among new messages; then a consumer that lives, and everything compared.
    async fn run(self) -> Result<(), String> {
        let mut fixture = self.fixture().await;
        let (mut kills, wanted) = (0, kills());
        while kills < wanted {
            for _ in 0..fixture.rng.u64(1..=3).min(wanted - kills) {
                kills += 1;
                fixture.publish_wave();
                self.kill(&mut fixture).await.map_err(|error| format!("kill {kills} of {wanted}: {error}"))?;
            }
            let recovered = fixture.recover_and_check().await;
            recovered.map_err(|error| format!("after kill {kills} of {wanted}: {error}"))?;
        }
        fixture.remove().await;
        Ok(())
    }
}

/// A moment in the life of the consumer that is started next, as the broker sees it.
#[derive(Debug, Clone, Copy)]
struct Moment {
    delivered: u64,
    settled: u64,
}

impl Moment {
    /// It has received something, and settled at least this many messages.
    fn after(fixture: &Fixture, settled: u64) -> Self {
        let stats = fixture.queue.stats();
        Self { delivered: stats.delivered, settled: stats.acknowledged + stats.dead_lettered + settled }
    }

    /// Waits for it, and sends the signal.
    async fn signal(self, fixture: &Fixture, child: &Child, signal: &str) {
        let come = fixture.queue.until(|stats| {
            stats.delivered > self.delivered && stats.acknowledged + stats.dead_lettered >= self.settled
        });
        // A consumer that does not get there is found by how it ends.
        let _ = tokio::time::timeout(Duration::from_secs(20), come).await;
        child.signal(signal).await;
    }
}

pub(super) async fn matrix(kind: Kind, batch: usize) {
    let deaths = points().map(Death::At).chain([Death::Killed, Death::Terminated]);
    let rows = deaths.map(|death| Row { kind, batch, death });
    let rows = rows.filter(|row| is_chosen(&row.name()));
    conclude(join_all(rows.map(|row| async move { (row.name(), row.run().await) })).await);
}

/// A1, A2, A3, B13, C4, G8, J1, J2, J10: one message a unit.
#[tokio::test]
async fn crash_matrix_postgres_single() {
    matrix(Kind::PostgresStore, 1).await;
}

/// The same with several messages a unit (B16, D1, D7, D10).
#[tokio::test]
async fn crash_matrix_postgres_batch() {
    matrix(Kind::PostgresStore, BATCH).await;
}

/// As on PostgreSQL, one message a unit.
#[tokio::test]
async fn crash_matrix_sqlite_single() {
    matrix(Kind::SqliteStore, 1).await;
}

/// As on PostgreSQL, several messages a unit.
#[tokio::test]
async fn crash_matrix_sqlite_batch() {
    matrix(Kind::SqliteStore, BATCH).await;
}
