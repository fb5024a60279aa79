//! D4: a message that ends the process, as a stack overflow or an abort in a C library does. Nothing can be caught and
//! nothing is rolled back by the consumer; only an attempt that was counted before it ran remembers.

use futures_util::future::join_all;
use idem_testkit::memory::{Order, QueueOptions};
use idem_tests::plan::Act;

use super::{
    fixture::{Fixture, conclude},
    is_chosen,
    matrix::BATCH,
};
use crate::support::database::Kind;

#[derive(Debug, Clone, Copy)]
struct Poison {
    kind: Kind,
    batch: usize,
    attempts: u32,
    /// Messages before the poison: within the first batch, which runs alone and counted, or behind it.
    before: usize,
    order: Order,
    /// Whether the broker marks redeliveries. Kafka does not, and then only the care after a start helps.
    marks: bool,
}

impl Poison {
    fn name(&self) -> String {
        let Self { kind, batch, attempts, before, order, marks } = self;
        let broker = if *marks { "marks" } else { "marks-nothing" };
        format!("{kind:?}-poison-batch{batch}-attempts{attempts}-behind{before}-{order:?}-{broker}").to_lowercase()
    }

    async fn run(self) -> Result<(), String> {
        let options = QueueOptions::default().order(self.order).marks_redelivery(self.marks);
        let mut fixture = Fixture::new(&self.name(), self.kind, self.batch, options).await;
        fixture.plan.attempts = self.attempts;
        fixture.ledger.abort_attempts = self.attempts;
        for act in [vec![Act::Succeed; self.before], vec![Act::Abort], vec![Act::Succeed; 30]].concat() {
            let sent = fixture.producer.payment(&fixture.ledger, act, &mut fixture.rng);
            fixture.ledger.publish(&fixture.queue, sent);
        }
        let mut deaths = 0;
        // One death more than attempts where the first was in a batch, which counts no attempt.
        for _ in 0..=self.attempts {
            let plan = fixture.plan.clone();
            let ended = fixture.start(&plan, "").ended().await?;
            if ended.status.success() {
                break;
            }
            if !ended.aborted() {
                return ended.unexpected("been ended by the message");
            }
            deaths += 1;
        }
        fixture.recover_and_check().await.map_err(|error| format!("after {deaths} deaths: {error}"))?;
        if deaths < self.attempts {
            return Err(format!("the message ran {deaths} times, and should have had {} attempts", self.attempts));
        }
        fixture.remove().await;
        Ok(())
    }
}

pub(super) async fn poison(kind: Kind) {
    let rows = [(1, 3, 0), (1, 5, 7), (BATCH, 3, 0), (BATCH, 4, 3), (BATCH, 5, 25)].into_iter().flat_map(
        |(batch, attempts, before)| {
            [(Order::None, true), (Order::ByKey, true), (Order::ByKey, false)].map(|(order, marks)| Poison {
                kind,
                batch,
                attempts,
                before,
                order,
                marks,
            })
        },
    );
    let rows = rows.filter(|row| is_chosen(&row.name()));
    conclude(join_all(rows.map(|row| async move { (row.name(), row.run().await) })).await);
}

/// D4, on PostgreSQL with two lanes: the neighbours on the other lane die with it each time, and are not charged for it.
#[tokio::test]
async fn d4_a_message_that_ends_the_process_is_set_aside_and_harms_no_neighbour_postgres() {
    poison(Kind::PostgresStore).await;
}

/// The same on SQLite (D4).
#[tokio::test]
async fn d4_a_message_that_ends_the_process_is_set_aside_and_harms_no_neighbour_sqlite() {
    poison(Kind::SqliteStore).await;
}
