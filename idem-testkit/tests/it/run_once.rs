//! Work of a call's own, on a [`MemoryStore`]: one outcome a key, for every caller and even if the first one fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Effects, ErrorClass, HandlerError, Message, ResultBody, RunOnce, Tenant,
    internal::Whereabouts,
    once::{Begun, Outcome, Request, RunOnceError, WorkError},
    results::{NotKept, ResultKeys},
};
use idem_testkit::{Fault, MemoryStore, Operation};

fn payments(store: &Arc<MemoryStore>) -> RunOnce<MemoryStore> {
    let builder = RunOnce::builder(Arc::clone(store), "payments").effects(Effects::InTransaction);
    builder.allow_final_errors().lanes(64).build().unwrap()
}

/// Pays once: the effect and the answer have one random number. Counts its runs.
async fn pay(payments: &RunOnce<MemoryStore>, key: &str, runs: &Arc<AtomicUsize>) -> Result<Outcome, RunOnceError> {
    let (runs, row) = (Arc::clone(runs), key.to_owned());
    payments
        .run(Request::new(key, key), move |tx| {
            let (runs, row) = (Arc::clone(&runs), row.clone());
            Box::pin(async move {
                runs.fetch_add(1, Ordering::Relaxed);
                let number = fastrand::u64(..).to_string();
                tx.connection().append("payments", &row, number.clone()).await?;
                Ok(ResultBody::new(number))
            })
        })
        .await
}

async fn refuse(payments: &RunOnce<MemoryStore>, key: &str, runs: &Arc<AtomicUsize>) -> Result<Outcome, RunOnceError> {
    let (runs, row) = (Arc::clone(runs), key.to_owned());
    payments
        .run(Request::new(key, key), move |tx| {
            let (runs, row) = (Arc::clone(&runs), row.clone());
            Box::pin(async move {
                runs.fetch_add(1, Ordering::Relaxed);
                tx.connection().append("payments", &row, "tried").await?;
                tokio::task::yield_now().await;
                Err(WorkError::final_result(ResultBody::new(fastrand::u64(..).to_string()).with_status(402)))
            })
        })
        .await
}

/// How often the work ran, and how many outcomes its callers saw, when 200 of four processes ask at once for what is to be refused.
async fn two_hundred_refusals<const N: usize>() -> (usize, usize) {
    let (store, runs) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let processes = [(); N].map(|()| payments(&store));
    processes[0].start().await.unwrap();
    let calls = processes.iter().cycle().take(200).map(|payments| refuse(payments, "order-1", &runs));
    let all = futures_join(calls).await;
    let outcomes: BTreeSet<_> =
        all.into_iter().map(|ran| format!("{:?}", ran.map(|ran| ran.into_result().body))).collect();
    assert!(store.rows("payments").is_empty(), "the effects of a refusal are taken back");
    (runs.load(Ordering::Relaxed), outcomes.len())
}

/// All of them at once, on this thread.
async fn futures_join<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, output) in &mut all {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(ready) => *output = Some(ready),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

/// V11: of 200 calls at once in one process one runs, in four at most one in each, and all get one outcome.
#[tokio::test]
async fn v11_of_two_hundred_callers_who_are_refused_one_runs() {
    assert_eq!(two_hundred_refusals::<1>().await, (1, 1));
    let (runs, outcomes) = two_hundred_refusals::<4>().await;
    assert!((1..=4).contains(&runs) && outcomes == 1, "{runs} runs, {outcomes} outcomes");
}

/// Each key's values as callers saw them, when the store loses connections, answers and commits, and callers give up between
/// any two polls. A call without a value is repeated, as its caller would.
async fn values_under_faults(seed: u64) -> (Arc<MemoryStore>, BTreeMap<String, BTreeSet<String>>) {
    let (store, runs) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let mut rng = fastrand::Rng::with_seed(seed);
    let seen: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::default();
    for round in 0..3 {
        // A process of its own: nothing is shared but the database.
        let payments = payments(&store);
        payments.start().await.unwrap();
        for operation in [Operation::Claim, Operation::Append, Operation::Commit, Operation::Read, Operation::Rollback]
        {
            for _ in 0..rng.usize(0..12) {
                let fault = *rng.choice(&[Fault::ConnectionLost, Fault::AnswerLost]).unwrap();
                store.inject(operation, fault);
            }
        }
        let calls = (0..4 * 25).map(|number| {
            let (payments, runs, seen) = (&payments, &runs, &seen);
            let polls = rng.usize(1..60);
            let dies = round < 2 && rng.u8(..) < 60;
            async move {
                let key = format!("order-{}", number % 25);
                for _ in 0..20 {
                    let call = pay(payments, &key, runs);
                    let ran = if dies { polled(call, polls).await } else { Some(call.await) };
                    match ran {
                        Some(Ok(ran)) => {
                            let value = String::from_utf8(ran.result().body.to_vec()).unwrap();
                            seen.lock().unwrap().entry(key.clone()).or_default().insert(value);
                            return;
                        }
                        // Its caller is gone, and the next process asks again.
                        None => return,
                        Some(Err(RunOnceError::Busy | RunOnceError::Unavailable(_) | RunOnceError::Failed(_))) => {}
                        Some(Err(error)) => {
                            seen.lock().unwrap().entry(key.clone()).or_default().insert(error.to_string());
                            return;
                        }
                    }
                }
            }
        });
        futures_join(calls).await;
    }
    (store, seen.into_inner().unwrap())
}

/// Polls a future so many times and drops it; its task goes on with what was begun.
async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let (mut future, mut left) = (Box::pin(future), polls);
    std::future::poll_fn(move |context| match future.as_mut().poll(context) {
        std::task::Poll::Ready(ready) => std::task::Poll::Ready(Some(ready)),
        std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
        std::task::Poll::Pending => {
            left -= 1;
            std::task::Poll::Pending
        }
    })
    .await
}

/// V1, V2, V7: per key there is exactly one visible value, and it is the one that the effect wrote.
#[tokio::test]
async fn v1_v2_each_key_has_one_value_under_lost_answers_and_dropped_calls() {
    for seed in 0..10 {
        let (store, seen) = values_under_faults(seed).await;
        let rows: BTreeMap<_, _> = store.rows("payments").into_iter().collect();
        assert_eq!((rows.len(), store.rows("payments").len()), (25, 25), "one effect a key, seed {seed}");
        assert_eq!(seen.len(), 25);
        for (key, values) in seen {
            let effect = String::from_utf8(rows[&key].to_vec()).unwrap();
            assert_eq!(values, BTreeSet::from([effect]), "{key}, seed {seed}");
        }
    }
}

/// V1: the same proof is red where results are written after the commit.
#[cfg(idem_bugs)]
#[tokio::test]
async fn v1_result_in_second_tx_is_seen() {
    idem_core::bugs::plant(Some(idem_core::bugs::Bug::ResultInSecondTx));
    let mut wrong = 0;
    for seed in 0..10 {
        let (store, seen) = values_under_faults(seed).await;
        let rows: BTreeMap<_, _> = store.rows("payments").into_iter().collect();
        let is_right = |(key, values): (&String, &BTreeSet<String>)| {
            rows.get(key).is_some_and(|row| *values == BTreeSet::from([String::from_utf8_lossy(row).into_owned()]))
        };
        wrong += seen.iter().filter(|entry| !is_right(*entry)).count();
    }
    idem_core::bugs::plant(None);
    assert!(wrong > 0);
}

/// V17: calls that wait for one key take no lane, so that one with another key runs; those that wait too long are told so, and those that
/// do not have the answer.
#[tokio::test(start_paused = true)]
async fn v17_calls_that_wait_for_one_key_keep_no_other_one_waiting() {
    let store = Arc::new(MemoryStore::new());
    let builder = RunOnce::builder(Arc::clone(&store), "payments").effects(Effects::InTransaction);
    let payments = builder.lanes(2).busy_timeout(Duration::from_secs(2)).build().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let Begun::First(slow) = payments.begin(Request::new("order-1", "order-1")).await.unwrap() else {
        panic!("it was not done before")
    };
    let impatient = futures_join((0..20).map(|_| pay(&payments, "order-1", &runs)));
    let another = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::time::timeout(Duration::from_millis(100), pay(&payments, "order-2", &runs)).await
    };
    let (impatient, another) = tokio::join!(impatient, another);
    assert!(impatient.iter().all(|end| matches!(end, Err(RunOnceError::Busy))), "{impatient:?}");
    assert!(!another.expect("it waits for calls of another key").unwrap().is_replayed());

    let patient = futures_join((0..20).map(|_| pay(&payments, "order-1", &runs)));
    let end = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        slow.finish(ResultBody::new("paid")).await
    };
    let (patient, end) = tokio::join!(patient, end);
    end.unwrap();
    assert!(
        patient
            .into_iter()
            .all(|ran| ran.is_ok_and(|ran| ran.is_replayed() && *ran.result() == ResultBody::new("paid")))
    );
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// V17: where the call that has the turn is given up, the next one runs.
#[tokio::test(start_paused = true)]
async fn v17_a_turn_that_came_to_nothing_is_the_next_ones() {
    let store = Arc::new(MemoryStore::new());
    let (payments, runs) = (payments(&store), Arc::new(AtomicUsize::new(0)));
    let Begun::First(given_up) = payments.begin(Request::new("order-1", "order-1")).await.unwrap() else {
        panic!("it was not done before")
    };
    let calls = futures_join((0..20).map(|_| pay(&payments, "order-1", &runs)));
    let (calls, ()) = tokio::join!(calls, given_up.give_up());
    let values: BTreeSet<_> = calls.into_iter().map(|ran| ran.unwrap().into_result().body).collect();
    assert_eq!((values.len(), runs.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test]
async fn what_work_and_the_database_answer_are_errors_of_their_own() {
    let (store, runs) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let payments = payments(&store);
    let answering = |error: fn() -> WorkError| {
        let payments = payments.clone();
        async move { payments.run(Request::new("order-1", "p"), move |_| Box::pin(async move { Err(error()) })).await }
    };
    let failed = answering(|| "the provider is away".into()).await.unwrap_err();
    assert!(matches!(&failed, RunOnceError::Failed(failure) if failure.class == ErrorClass::Transient), "{failed:?}");
    let failed = answering(|| WorkError::failed(HandlerError::permanent("never"))).await.unwrap_err();
    assert!(matches!(&failed, RunOnceError::Failed(failure) if failure.class == ErrorClass::Permanent), "{failed:?}");
    assert!(store.recorded_keys().is_empty(), "what failed is free to be asked for again");
    for key in ["", "a key\n"] {
        let refused = pay(&payments, key, &runs).await.unwrap_err();
        assert!(matches!(refused, RunOnceError::Refused(_)), "{refused:?}");
    }
    // One more on a new connection, in case an idle one was lost.
    for _ in 0..2 {
        store.inject(Operation::Begin, Fault::Error(ErrorClass::Infrastructure));
    }
    let down = pay(&payments, "order-1", &runs).await.unwrap_err();
    assert!(matches!(down, RunOnceError::Unavailable(_)), "{down:?}");
    let told = down.to_string();
    assert!(!told.contains("idem waits") && told.ends_with("; ask again with the same key"), "{told}");
    assert!(!pay(&payments, "order-1", &runs).await.unwrap().is_replayed());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn work_publishes_and_knows_its_message_and_tenant() {
    let store = Arc::new(MemoryStore::new());
    let of_tenant = |message: &Message| Tenant::new(message.headers().text("tenant")?).ok();
    let builder = RunOnce::builder(Arc::clone(&store), "payments").effects(Effects::InTransaction);
    let payments = builder.tenant_from(of_tenant).publish_to(["ledger"]).build().unwrap();
    for tenant in ["acme", "globex"] {
        let message = idem_testkit::message("order-1", "p").with_header("tenant", tenant);
        let ran = payments.run(message, |tx| {
            Box::pin(async move {
                let message = tx.message().ok_or("a call has one message")?;
                let event = idem_core::Event::to("ledger").label("paid").body("1177");
                tx.publish(message, event)?;
                Ok(ResultBody::new(message.tenant().map(|tenant| tenant.as_str().to_owned()).unwrap_or_default()))
            })
        });
        let ran = ran.await.unwrap();
        assert_eq!((&ran.result().body, ran.is_replayed()), (&tenant.into(), false));
    }
    assert_eq!(store.events().len(), 2);
}

mod step_by_step {
    use super::*;

    async fn first(payments: &RunOnce<MemoryStore>, key: &str) -> idem_core::once::Operation<MemoryStore> {
        match payments.begin(Request::new(key, key)).await.unwrap() {
            Begun::First(run) => run,
            Begun::Known(ran) => panic!("{ran:?}"),
        }
    }

    async fn write(run: &mut idem_core::once::Operation<MemoryStore>, row: &'static str) {
        run.tx().unwrap().tx().connection().append("payments", row, "").await.unwrap();
    }

    #[tokio::test]
    async fn steps_are_one_transaction_and_their_outcome_is_known_afterwards() {
        let store = Arc::new(MemoryStore::new());
        let payments = payments(&store);
        let mut run = first(&payments, "order-1").await;
        write(&mut run, "one").await;
        write(&mut run, "two").await;
        assert!(store.rows("payments").is_empty() && store.recorded_keys().is_empty());
        let ran = run.finish(ResultBody::new("paid")).await.unwrap();
        assert_eq!((store.rows("payments").len(), ran.is_replayed()), (2, false));
        let Begun::Known(known) = payments.begin(Request::new("order-1", "order-1")).await.unwrap() else {
            panic!("it is known")
        };
        assert_eq!((known.result(), known.is_replayed()), (ran.result(), true));
        let other = payments.begin(Request::new("order-1", "other")).await;
        assert!(matches!(other, Err(RunOnceError::Conflict { .. })));
    }

    #[tokio::test]
    async fn what_is_dropped_leaves_nothing_and_what_is_refused_its_refusal() {
        let store = Arc::new(MemoryStore::new());
        let payments = payments(&store);
        let mut run = first(&payments, "order-1").await;
        write(&mut run, "one").await;
        drop(run);
        let mut run = first(&payments, "order-1").await;
        write(&mut run, "one").await;
        let refused = run.refuse(ResultBody::new("no funds")).await.unwrap();
        assert!(refused.is_refused() && store.rows("payments").is_empty());
        let Begun::Known(known) = payments.begin(Request::new("order-1", "order-1")).await.unwrap() else {
            panic!("it is known")
        };
        assert_eq!((known.result(), known.is_refused()), (refused.result(), true));
    }

    /// Callers that come meanwhile wait, and get the answer of the first one.
    #[tokio::test]
    async fn the_second_caller_waits_for_the_first() {
        let store = Arc::new(MemoryStore::new());
        let payments = payments(&store);
        let run = first(&payments, "order-1").await;
        let second = tokio::spawn({
            let payments = payments.clone();
            async move { payments.begin(Request::new("order-1", "order-1")).await }
        });
        tokio::task::yield_now().await;
        run.finish(ResultBody::new("paid")).await.unwrap();
        assert!(matches!(second.await.unwrap(), Ok(Begun::Known(ran)) if &ran.result().body[..] == b"paid"));
    }

    /// V1, A5, A6: steps cannot be repeated, so a commit that did not happen is the caller's to repeat; one that did is known.
    #[tokio::test]
    async fn v1_a_lost_answer_to_the_commit_is_found_out() {
        for (fault, is_kept, cause) in [
            (Fault::AnswerLost, true, ""),
            (Fault::ConnectionLost, false, "the answer to the commit was lost"),
            (Fault::Error(ErrorClass::RunUnitAgain), false, "conflicted with another transaction while committing"),
        ] {
            let store = Arc::new(MemoryStore::new());
            let payments = payments(&store);
            let mut run = first(&payments, "order-1").await;
            write(&mut run, "one").await;
            store.inject(Operation::Commit, fault);
            let ended = run.finish(ResultBody::new("paid")).await;
            assert_eq!((ended.is_ok(), store.rows("payments").len()), (is_kept, usize::from(is_kept)), "{ended:?}");
            if let Err(error) = ended {
                let text = error.to_string();
                assert!(text.contains("its steps cannot be repeated") && text.contains(cause), "{text}");
            }
            let again = payments.begin(Request::new("order-1", "order-1")).await.unwrap();
            assert_eq!(matches!(again, Begun::Known(_)), is_kept);
        }
    }

    /// An operation whose transaction something else holds is not committed, and ends when that comes back.
    #[tokio::test]
    async fn a_lent_operation_is_not_finished() {
        let store = Arc::new(MemoryStore::new());
        let builder = RunOnce::builder(Arc::clone(&store), "payments").effects(Effects::InTransaction);
        let payments = builder.lanes(1).build().unwrap();
        let run = first(&payments, "order-1").await;
        let lender = run.lender();
        let mut lent = lender.lend().unwrap();
        assert_eq!(lender.lend().unwrap_err(), Whereabouts::Lent);
        let Err(RunOnceError::Failed(failure)) = run.finish(ResultBody::new("paid")).await else {
            panic!("it is done")
        };
        assert_eq!(failure.class, ErrorClass::Permanent, "{failure}");
        lent.connection().append("payments", "late", "").await.unwrap();
        drop(lent);
        // On the only connection.
        let mut again = first(&payments, "order-1").await;
        assert_eq!(lender.lend().unwrap_err(), Whereabouts::Ended);
        write(&mut again, "one").await;
        again.finish(ResultBody::new("paid")).await.unwrap();
        assert_eq!(store.rows("payments").len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_ends_at_its_deadline() {
        let store = Arc::new(MemoryStore::new());
        let builder = RunOnce::builder(Arc::clone(&store), "payments").effects(Effects::InTransaction);
        let payments = builder.handler_deadline(Duration::from_secs(1)).build().unwrap();
        let mut run = first(&payments, "order-1").await;
        write(&mut run, "one").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(run.tx().is_err());
        assert!(matches!(run.finish(ResultBody::new("paid")).await, Err(RunOnceError::Failed(_))));
        assert!(store.rows("payments").is_empty() && store.recorded_keys().is_empty());
    }
}

/// S58: an operator forgets a key, and the operation runs again. The answer of before, put in the place of the new one, is refused.
#[tokio::test]
async fn s58_the_answer_before_a_forget_is_refused_after_it() {
    let (store, runs) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let builder = RunOnce::builder(Arc::clone(&store), "payments").effects(Effects::InTransaction);
    let payments = builder.encrypt_results(ResultKeys::new(1, [(1, [1; 32])]).unwrap()).build().unwrap();
    pay(&payments, "order-1", &runs).await.unwrap();
    let before = store.results().remove(0);
    assert!(store.forget(before.scope, &before.key));
    pay(&payments, "order-1", &runs).await.unwrap();
    assert!(pay(&payments, "order-1", &runs).await.unwrap().is_replayed());
    store.replace_result(before);
    let refused = pay(&payments, "order-1", &runs).await.unwrap_err();
    assert!(matches!(&refused, RunOnceError::NotKept { why: NotKept::Altered { number: 1 }, .. }), "{refused:?}");
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

/// V8: a caller without the key that a result is sealed with is refused, and nothing runs again.
#[tokio::test]
async fn v8_a_missing_key_is_refused_and_nothing_runs_again() {
    let (store, runs) = (Arc::new(MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let sealing = |current, keys: &[(u16, [u8; 32])]| {
        let builder = RunOnce::builder(Arc::clone(&store), "payments").effects(Effects::InTransaction);
        builder.encrypt_results(ResultKeys::new(current, keys.iter().copied()).unwrap()).build().unwrap()
    };
    let (old, new) = ((1, [1; 32]), (2, [2; 32]));
    let first = pay(&sealing(1, &[old]), "order-1", &runs).await.unwrap();
    let kept = store.results().remove(0);
    assert_eq!(kept.sealed_with, 1);
    assert!(!kept.result.body.windows(first.result().body.len()).any(|part| part == first.result().body));
    let rotated = pay(&sealing(2, &[old, new]), "order-1", &runs).await.unwrap();
    assert_eq!((rotated.result(), rotated.is_replayed()), (first.result(), true));
    for without in [sealing(2, &[new]), payments(&store)] {
        let refused = pay(&without, "order-1", &runs).await.unwrap_err();
        assert!(matches!(&refused, RunOnceError::NotKept { why: NotKept::NoKey { number: 1 }, .. }), "{refused:?}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
