//! C7: dead letters are replayed through a running consumer, which is killed meanwhile. Each takes effect once, although
//! its message was settled long ago and nothing but the row in `dead_letters` remembers it.

use futures_util::future::join_all;
use idem_core::failpoint;
use idem_testkit::memory::QueueOptions;
use idem_tests::plan::{Act, Plan};

use super::{
    fixture::{Fixture, conclude},
    is_chosen, kills,
    matrix::BATCH,
};
use crate::support::database::Kind;

/// How many dead letters are replayed.
const LETTERS: usize = 8;
/// The same, where they are many units.
const HUNDREDS: usize = 200;

/// Where a replay can be interrupted.
const POINTS: [&str; 9] = [
    failpoint::DUE_TAKEN,
    failpoint::BEGIN,
    failpoint::CLAIMED,
    failpoint::HANDLER_MID,
    failpoint::HANDLER_DONE,
    failpoint::GUARD,
    failpoint::COMMIT_SENT,
    failpoint::COMMIT_OK,
    failpoint::DUE_ENDED,
];

/// Replays as many dead letters through consumers that die, each at the next of these points.
async fn replay(kind: Kind, letters: usize, points: &[&str], name: &str) -> Result<(), String> {
    let mut fixture = Fixture::new(name, kind, BATCH, QueueOptions::default()).await;
    // Fewer fail than succeed, or the breaker opens.
    let acts = [Act::FailUntilRepaired, Act::Succeed, Act::Succeed].into_iter().cycle().take(letters * 3);
    for act in acts {
        let sent = fixture.producer.payment(&fixture.ledger, act, &mut fixture.rng);
        fixture.ledger.publish(&fixture.queue, sent);
    }
    fixture.recover_and_check().await.map_err(|error| format!("before the replay: {error}"))?;

    let ids: Vec<_> = fixture.database.dead_letters().await.iter().map(|letter| letter.id).collect();
    let marked = fixture.database.bookkeeping().due_now(&ids, "ann").await.unwrap();
    if marked != letters as u64 {
        return Err(format!("{marked} of {letters} dead letters were marked for a replay"));
    }
    // The queue is at its end, so it is the replays that have to be waited for.
    fixture.plan = Plan { repaired: true, idle_ms: 700, ..fixture.plan.clone() };
    let last = if letters == LETTERS { kills().min(3) } else { points.len() as u64 };
    for (kill, point) in (1..=last).zip(points.iter().cycle()) {
        // At most two replays are done with each kill, or a few batches, so that some are left for the next.
        let skip = match *point {
            failpoint::DUE_TAKEN | failpoint::DUE_ENDED => 0,
            _ if letters == LETTERS => fixture.rng.u64(0..2),
            _ => fixture.rng.u64(0..10),
        };
        let plan = fixture.plan.clone();
        let ended = fixture.start(&plan, &format!("{point}={skip}+1*abort")).ended().await?;
        if !ended.aborted() {
            return ended.unexpected(&format!("died at {point}, kill {kill}"));
        }
        fixture.database.let_replays_be_taken_over().await;
    }
    // A consumer ends when its queue has been at its end for long enough, also with replays that it has not taken yet: on a
    // busy machine some are left.
    for _ in 0..LETTERS {
        if fixture.database.dead_letters().await.iter().all(|letter| letter.replayed.is_some()) {
            break;
        }
        let plan = fixture.plan.clone();
        fixture.start(&plan, "").ended().await?;
        fixture.database.let_replays_be_taken_over().await;
    }
    fixture.ledger.replayed = true;
    fixture.recover_and_check().await.map_err(|error| format!("after the replay: {error}"))?;
    let unfinished: Vec<_> =
        fixture.database.dead_letters().await.into_iter().filter(|letter| letter.replayed.is_none()).collect();
    if !unfinished.is_empty() {
        return Err(format!("these took effect and are not marked as replayed: {unfinished:?}"));
    }
    fixture.remove().await;
    Ok(())
}

pub(super) async fn replays(kind: Kind) {
    let rows = POINTS.map(|point| (point, format!("{kind:?}-replay-{point}").to_lowercase())).into_iter();
    let rows = rows.filter(|(_, name)| is_chosen(name));
    let rows = rows.map(|(point, name)| async move { (name.clone(), replay(kind, LETTERS, &[point], &name).await) });
    conclude(join_all(rows).await);
}

/// On PostgreSQL (C7).
#[tokio::test]
async fn c7_a_replay_that_is_killed_midway_takes_effect_once_postgres() {
    replays(Kind::PostgresStore).await;
}

/// On SQLite (C7).
#[tokio::test]
async fn c7_a_replay_that_is_killed_midway_takes_effect_once_sqlite() {
    replays(Kind::SqliteStore).await;
}

/// Of many units, some rows are in flight at each death, and the next consumer takes over what the dead one had.
async fn hundreds(kind: Kind) {
    let points = [failpoint::COMMIT_SENT, failpoint::DUE_TAKEN, failpoint::COMMIT_OK, failpoint::DUE_ENDED];
    let name = format!("{kind:?}-replay-hundreds").to_lowercase();
    conclude(vec![(name.clone(), replay(kind, HUNDREDS, &points, &name).await)]);
}

/// On PostgreSQL (C18).
#[tokio::test]
async fn c18_hundreds_of_replays_are_exact_under_kills_postgres() {
    hundreds(Kind::PostgresStore).await;
}

/// On SQLite (C18).
#[tokio::test]
async fn c18_hundreds_of_replays_are_exact_under_kills_sqlite() {
    hundreds(Kind::SqliteStore).await;
}
