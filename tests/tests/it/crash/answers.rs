//! Processes that ask for the same operations, and die: every answer to an operation is the same one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use idem_core::failpoint;
use idem_testkit::memory::QueueOptions;
use idem_tests::{
    asker::is_refused,
    plan::{Asking, Plan},
};

use super::{fixture::Fixture, kills};
use crate::support::database::Kind;

const TIMES: u64 = 3;

/// The processes that ask for everything, once others have died.
const ASKING: u64 = 4;

/// How many operations there are: enough that each process that is to die runs one, whatever the others have run by then.
fn keys() -> u64 {
    if std::env::var_os("IDEM_TEST_ALL").is_some() { 10_000 } else { 700 }
}

/// How long a process may take that asks for everything.
const LIMIT: Duration = Duration::from_secs(600);

async fn answers(kind: Kind) {
    let name = format!("{kind:?}-answers").to_lowercase();
    let mut fixture = Fixture::new(&name, kind, 1, QueueOptions::default()).await;
    let to = fixture.folder().join("answers");
    let keys = keys();
    let asks = Some(Asking { keys, times: TIMES, to: to.clone() });
    let plan = Plan { asks, ..fixture.plan.clone() };
    let points = [
        failpoint::CLAIMED,
        failpoint::HANDLER_DONE,
        failpoint::REFUSED,
        failpoint::APPENDED,
        failpoint::COMMIT_SENT,
        failpoint::COMMIT_OK,
    ];
    for _ in 0..kills() {
        // Each of them dies at one of the first keys that it is the first to ask for.
        let armed: Vec<String> = points.map(|point| format!("{point}={}+1*abort", fixture.rng.u64(..4))).into();
        let dying: Vec<_> = armed.iter().map(|armed| fixture.start(&plan, armed)).collect();
        for (child, armed) in dying.into_iter().zip(&armed) {
            let ended = child.ended().await.expect("it ends");
            assert!(ended.aborted(), "{armed}: {:?}", ended.unexpected::<()>("died"));
        }
    }
    let asking: Vec<_> = (0..ASKING).map(|_| fixture.start(&plan, "")).collect();
    for child in asking {
        let ended = child.ended_within(LIMIT).await.expect("it ends");
        assert!(ended.status.success(), "{:?}", ended.unexpected::<()>("asked for everything"));
    }

    let mut told: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    let text = std::fs::read_to_string(&to).expect("answers");
    for line in text.lines() {
        let (key, value) = line.split_once(' ').expect("key and answer");
        told.entry(key.parse().expect("a key")).or_default().insert(value.to_owned());
    }
    assert!(text.lines().count() as u64 >= ASKING * keys * TIMES);
    let effects: BTreeMap<String, Vec<i64>> =
        fixture.database.effects().await.into_iter().fold(BTreeMap::new(), |mut of, effect| {
            of.entry(effect.message_key).or_default().push(effect.cents);
            of
        });
    for key in 0..keys {
        let values: Vec<&String> = told.get(&key).expect("an answer").iter().collect();
        assert_eq!(values.len(), 1, "key {key} was answered in more than one way");
        let effect = effects.get(&key.to_string()).cloned().unwrap_or_default();
        let expected: Vec<i64> = if is_refused(key) { vec![] } else { vec![values[0].parse().expect("a number")] };
        assert_eq!(effect, expected, "the effect of key {key} is what was answered");
    }
    fixture.remove().await;
}

/// V13, V1, V2, V7, V11: on PostgreSQL.
#[tokio::test]
async fn v13_processes_that_die_give_one_answer_postgres() {
    answers(Kind::PostgresStore).await;
}

/// V13: through tokio-postgres.
#[tokio::test]
async fn v13_processes_that_die_give_one_answer_tokio_postgres() {
    answers(Kind::TokioPostgres).await;
}

/// V13: on SQLite, where one writes at a time.
#[tokio::test]
async fn v13_processes_that_die_give_one_answer_sqlite() {
    answers(Kind::SqliteStore).await;
}
