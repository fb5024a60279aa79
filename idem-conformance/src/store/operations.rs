//! Operations of [`RunOnce`] that are held as values, and every way in which one ends early.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Effects, HandlerError, ResultBody, RunOnce, Tx,
    once::{Begun, Operation, Request, RunOnceBuilder, RunOnceError},
};

use super::{
    fixture::{Fixture, Seen},
    gate::{DEADLINE, within},
    results::keep_results,
    subject::{Effect, HandlerAction, StoreUnderTest},
};

fn builder<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> RunOnceBuilder<Seen<T>> {
    RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction).allow_final_errors()
}

async fn first<T: StoreUnderTest>(payments: &RunOnce<Seen<T>>) -> Operation<Seen<T>> {
    match within("beginning", payments.begin(Request::new("a", "a"))).await.unwrap() {
        Begun::First(operation) => operation,
        Begun::Known(ran) => panic!("it is known: {ran:?}"),
    }
}

/// The effect of the operation.
fn paid() -> Effect {
    Effect { key: "a".to_owned(), payload: b"a".to_vec(), note: String::new() }
}

async fn write<T: StoreUnderTest>(operation: &mut Operation<Seen<T>>) {
    let mut lent = operation.tx().unwrap();
    T::write(&mut Tx::new(lent.tx().connection()), &paid()).await.unwrap();
}

/// The operation runs, and is done, on the only connection that `payments` has. Nothing of it was done before.
async fn runs_now<T: StoreUnderTest>(fixture: &Fixture<'_, T>, payments: &RunOnce<Seen<T>>) {
    fixture.assert_effects([]).await;
    let mut operation = first::<T>(payments).await;
    write::<T>(&mut operation).await;
    let ran = within("the end", operation.finish(ResultBody::new("paid"))).await.unwrap();
    assert!(!ran.is_replayed());
    fixture.assert_effects([("a", "a")]).await;
}

/// A16: an operation that is dropped between two statements leaves nothing, and its key is free.
pub async fn a16_a_dropped_operation_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = builder(&fixture).lanes(1).build().unwrap();
    let mut operation = first::<T>(&payments).await;
    write::<T>(&mut operation).await;
    drop(operation);
    runs_now(&fixture, &payments).await;
}

/// A16, A15: one that is dropped half way through a statement is ended on the server, and does not hold its key for as long as the statement
/// would have taken.
pub async fn a16_an_operation_dropped_in_a_statement_frees_its_key<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) || !fixture.offers(HandlerAction::Block).await {
        return;
    }
    // Far longer than the case: a rollback behind the statement would wait for it.
    let payments = builder(&fixture).lanes(1).answer_timeout(Duration::from_secs(300)).build().unwrap();
    let mut operation = first::<T>(&payments).await;
    write::<T>(&mut operation).await;
    let mut running = Box::pin(async {
        let mut lent = operation.tx().unwrap();
        T::act(&mut Tx::new(lent.tx().connection()), HandlerAction::Block, &paid()).await
    });
    assert!(tokio::time::timeout(DEADLINE, &mut running).await.is_err(), "the statement has ended");
    drop(running);
    drop(operation);
    runs_now(&fixture, &payments).await;
}

/// A16: one that is dropped where there is no runtime closes its connection, which rolls back.
pub async fn a16_an_operation_dropped_without_a_runtime_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = builder(&fixture).lanes(1).build().unwrap();
    let mut operation = first::<T>(&payments).await;
    write::<T>(&mut operation).await;
    std::thread::spawn(move || drop(operation)).join().unwrap();
    runs_now(&fixture, &payments).await;
}

/// A18: an operation ends at its deadline although nothing of its caller's runs: its key is free, and so is the only writer's turn where
/// there is one. What its caller does with it later is refused.
pub async fn a18_an_operation_ends_at_its_deadline<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = builder(&fixture).lanes(1).handler_deadline(DEADLINE).build().unwrap();
    let mut late = first::<T>(&payments).await;
    write::<T>(&mut late).await;
    // Another process, which does not know of the deadline.
    let elsewhere = fixture.elsewhere().await;
    runs_now(&elsewhere, &builder(&elsewhere).busy_timeout(DEADLINE * 30).build().unwrap()).await;
    // Its end on the server comes before its end here.
    within("the end here", payments.peek(idem_testkit::message("b", ""))).await.unwrap();
    assert!(late.tx().is_err());
    let ended = within("the end", late.finish(ResultBody::new("late"))).await;
    assert!(matches!(&ended, Err(RunOnceError::Failed(failure)) if failure.text.contains("deadline")), "{ended:?}");
}

/// A18: one whose transaction is lent at its deadline is ended when the transaction comes back, and nothing of it is kept.
pub async fn a18_a_lent_transaction_that_is_late_is_not_committed<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = builder(&fixture).lanes(1).handler_deadline(DEADLINE).build().unwrap();
    let mut late = first::<T>(&payments).await;
    let mut lent = late.tx().unwrap();
    T::write(&mut Tx::new(lent.tx().connection()), &paid()).await.unwrap();
    tokio::time::sleep(DEADLINE * 2).await;
    fixture.assert_effects([]).await;
    drop(lent);
    let ended = within("the end", late.finish(ResultBody::new("late"))).await;
    assert!(matches!(&ended, Err(RunOnceError::Failed(failure)) if failure.text.contains("deadline")), "{ended:?}");
    runs_now(&fixture, &payments).await;
}

/// V18, V19: a result with a status from 400 to 499 is final although a statement has failed before it, unless the error that was noted may
/// pass.
pub async fn v18_v19_an_operation_declines_after_a_failed_statement<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) || !fixture.offers(HandlerAction::FailingStatement).await {
        return;
    }
    let payments = builder(&fixture).lanes(1).build().unwrap();
    for (noted, is_final) in [(Some(HandlerError::transient("a deadlock")), false), (None, true)] {
        let mut operation = first::<T>(&payments).await;
        write::<T>(&mut operation).await;
        let mut lent = operation.tx().unwrap();
        let mut tx = lent.tx();
        let failed = T::act(&mut Tx::new(tx.connection()), HandlerAction::FailingStatement, &paid()).await;
        assert!(failed.is_err());
        if let Some(noted) = noted {
            tx.note_error(noted);
        }
        drop(tx);
        drop(lent);
        let ended = within("the end", operation.finish(ResultBody::new("declined").with_status(409))).await;
        assert_eq!(ended.as_ref().is_ok_and(|ran| ran.is_refused()), is_final, "{ended:?}");
    }
    assert_eq!((fixture.effects().await, fixture.recorded().await), (Vec::new(), vec!["a".to_owned()]));
    let Begun::Known(known) = within("a repeat", payments.begin(Request::new("a", "a"))).await.unwrap() else {
        panic!("it is free")
    };
    assert_eq!((known.result().status, known.is_refused(), known.is_replayed()), (Some(409), true, true));
}
