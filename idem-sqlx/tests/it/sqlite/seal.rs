//! Handlers that meddle with their transaction: only idem's own commit commits.

use idem_core::{
    Decision, HandlerError, Message, Store, Tx,
    store::{UnitOfWork, UnitOptions},
};
use idem_sqlx::SqliteStore;
use idem_testkit::Decide as _;
use sqlx::{Connection, SqliteConnection};

use super::{consumer, fresh, message, messages, names, registered, soon};

/// The action of [`super::Scripted`] after its write, by the payload's first word.
pub(super) async fn act(word: &str, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
    let connection = tx.connection();
    match word {
        "commit" => run(connection, "COMMIT").await?,
        "swallowed-commit" => drop(run(connection, "COMMIT").await),
        "rollback" => run(connection, "ROLLBACK").await?,
        "commit-begin" => {
            drop(run(connection, "COMMIT").await);
            run(connection, "BEGIN").await?;
            super::write(message, connection).await?;
        }
        "rollback-write" => {
            run(connection, "ROLLBACK").await?;
            drop(super::write(message, connection).await);
        }
        "swallowed-error" => drop(run(connection, "INSERT INTO taken VALUES (1)").await),
        "swallowed-rollback" => drop(run(connection, "INSERT OR ROLLBACK INTO taken VALUES (1)").await),
        "deferred" => run(connection, "INSERT INTO children VALUES (7)").await?,
        "nested-left" => {
            let mut nested = connection.begin().await?;
            super::write(message, &mut nested).await?;
            std::mem::forget(nested);
        }
        "nested-committed" => {
            let mut nested = connection.begin().await?;
            super::write(message, &mut nested).await?;
            nested.commit().await?;
        }
        "nested-rolled-back" => {
            let mut nested = connection.begin().await?;
            super::write(message, &mut nested).await?;
            nested.rollback().await?;
        }
        "fail" => return Err("no".into()),
        "fail-permanent" => return Err(HandlerError::permanent("no")),
        "panic" => panic!("as asked"),
        "block" => {
            run(connection, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
                .await?
        }
        _ => {}
    }
    Ok(())
}

async fn run(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(connection).await.map(drop)
}

/// A12: when a handler ends the transaction in mid-batch, by whatever means, nothing of it stays, its neighbours run,
/// and after a redelivery that behaves every effect is there exactly once.
#[tokio::test(flavor = "multi_thread")]
async fn a12_a_raw_commit_in_mid_batch_commits_nothing() {
    for word in ["commit", "swallowed-commit", "rollback", "commit-begin", "rollback-write", "swallowed-rollback"] {
        let (file, store) = fresh().await;
        let consumer = consumer(&store);
        let decisions = soon(consumer.decisions(messages(&[("a", "1"), ("b", word), ("c", "3")]))).await.unwrap();
        assert_eq!(names(&decisions), ["processed", "failed", "processed"], "{word}");
        assert_eq!(file.effects().await, ["a=1", "c=3"], "{word}");
        assert_eq!(file.recorded().await, ["a", "c"], "{word}");
        let again = soon(consumer.decisions(messages(&[("a", "1"), ("b", "2"), ("c", "3")]))).await.unwrap();
        assert_eq!(names(&again), ["duplicate", "processed", "duplicate"], "{word}");
        assert_eq!(file.effects().await, ["a=1", "b=2", "c=3"], "{word}");
    }
}

/// A12, with one message a unit: the refusal is the store's, not the batch's.
#[tokio::test(flavor = "multi_thread")]
async fn a12_a_raw_commit_alone_commits_nothing() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    let decisions = consumer.decisions(vec![message("a", "commit")]).await.unwrap();
    let Decision::Failed(failure) = &decisions[0] else { panic!("{decisions:?}") };
    assert!(failure.text.contains("idem refused a COMMIT that it did not send"), "{}", failure.text);
    assert_eq!(file.effects().await, Vec::<String>::new());
    assert_eq!(file.recorded().await, Vec::<String>::new());
}

/// A14: a nested transaction that is left open is found before the next handler runs.
#[tokio::test(flavor = "multi_thread")]
async fn a14_a_nested_transaction_left_open_is_its_handlers_failure() {
    let (file, store) = fresh().await;
    let batch = messages(&[("a", "1"), ("b", "nested-left"), ("c", "3")]);
    let decisions = soon(consumer(&store).decisions(batch)).await.unwrap();
    assert_eq!(names(&decisions), ["processed", "failed", "processed"]);
    let Decision::Failed(failure) = &decisions[1] else { panic!("{decisions:?}") };
    assert!(failure.text.contains("left 1 nested transactions open"), "{}", failure.text);
    assert_eq!(file.effects().await, ["a=1", "c=3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_transactions_work() {
    let (file, store) = fresh().await;
    let batch = messages(&[("a", "nested-committed"), ("b", "nested-rolled-back")]);
    let decisions = soon(consumer(&store).decisions(batch)).await.unwrap();
    assert_eq!(names(&decisions), ["processed", "processed"]);
    assert_eq!(file.effects().await, ["a=nested-committed", "a=nested-committed", "b=nested-rolled-back"]);
}

/// A9, as SQLite has it: the failed statement is undone, the transaction goes on, and the handler's other writes are
/// committed. Where SQLite itself ends the transaction, the message is not acknowledged: see `swallowed-rollback`.
#[tokio::test(flavor = "multi_thread")]
async fn a9_a_swallowed_error_costs_only_its_statement() {
    let (file, store) = fresh().await;
    let decisions = consumer(&store).decisions(vec![message("a", "swallowed-error")]).await.unwrap();
    assert_eq!(names(&decisions), ["processed"]);
    assert_eq!(file.effects().await, ["a=swallowed-error"]);
    assert_eq!(file.recorded().await, ["a"]);
}

/// A10: a deferred constraint that fails at COMMIT is a certain rollback, charged to its message.
#[tokio::test(flavor = "multi_thread")]
async fn a10_a_deferred_constraint_fails_its_message_only() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    let decisions = soon(consumer.decisions(messages(&[("a", "1"), ("b", "deferred")]))).await.unwrap();
    assert_eq!(names(&decisions), ["processed", "failed"]);
    assert_eq!(file.effects().await, ["a=1"]);
    assert_eq!(names(&consumer.decisions(vec![message("b", "2")]).await.unwrap()), ["processed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_panics_leave_nothing_and_cost_no_neighbour() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    for word in ["fail", "fail-permanent", "panic"] {
        let batch = messages(&[(&format!("a-{word}"), "1"), (word, word)]);
        let decisions = soon(consumer.decisions(batch)).await.unwrap();
        assert_eq!(names(&decisions), ["processed", "failed"], "{word}");
    }
    assert_eq!(file.effects().await, ["a-fail-permanent=1", "a-fail=1", "a-panic=1"]);
}

fn options(run: i32) -> UnitOptions {
    let second = std::time::Duration::from_secs(1);
    UnitOptions::new(idem_core::store::RunId(run), 0, second, 30 * second)
}

/// Contract of a store, 3: a unit that is dropped leaves nothing, and the lock is free for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_unit_leaves_nothing_and_frees_the_lock() {
    let (file, store) = fresh().await;
    registered(&store).await;
    for _ in 0..20 {
        let lane = store.open().await.unwrap();
        let mut unit = store.begin(lane, options(1)).await.unwrap();
        run(unit.tx().connection(), "INSERT INTO effects VALUES ('dropped', '')").await.unwrap();
        drop(unit);
    }
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options(1)).await.unwrap();
    unit.claim(&[]).await.unwrap();
    run(unit.tx().connection(), "INSERT INTO effects VALUES ('kept', '')").await.unwrap();
    unit.commit().await.1.unwrap();
    assert_eq!(file.effects().await, ["kept="]);
}

/// A commit without a unit is unsealed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_commits_nothing_outside_of_units() {
    let (file, store) = fresh().await;
    let lane = store.open().await.unwrap();
    let unit = store.begin(lane, options(1)).await.unwrap();
    let (lane, committed) = unit.commit().await;
    committed.unwrap();
    let mut unit = store.begin(lane.unwrap(), options(1)).await.unwrap();
    run(unit.tx().connection(), "ROLLBACK").await.unwrap();
    let error = run(unit.tx().connection(), "INSERT INTO effects VALUES ('after', '')").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("531"));
    unit.check().unwrap_err();
    assert!(unit.rollback().await.unwrap().is_none(), "nothing runs on that connection again");
    assert_eq!(file.effects().await, Vec::<String>::new());
    let lane = store.open().await.unwrap();
    let mut unit = store.begin(lane, options(1)).await.unwrap();
    run(unit.tx().connection(), "INSERT INTO effects VALUES ('later', '')").await.unwrap();
    unit.commit().await.1.unwrap();
    assert_eq!(file.effects().await, ["later="]);
}
