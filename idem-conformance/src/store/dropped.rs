//! Futures that are dropped midway, at every poll: they leave all or nothing.

use std::{future::Future, pin::Pin, task::Poll, time::Duration};

use idem_core::{
    Store, Tx,
    store::{Claimed, Registered, UnitOfWork},
};

use super::{
    fixture::{Fixture, Kind, Seen, claim, msg, options, process, redeliver, write},
    gate::within,
    subject::{Effect, StoreUnderTest},
};

/// More polls than any of these calls takes.
const POLLS_MAX: usize = 200;

/// Polls `future` at most `polls` times, each time it asks for it; `None` where it was not ready by then. It is dropped
/// either way.
async fn polled<F: Future>(mut future: Pin<&mut F>, polls: usize) -> Option<F::Output> {
    let mut left = polls;
    let call = std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    within("a call that is polled a few times", call).await
}

/// A16: a call of `process` that is dropped after any number of polls lets the work finish or never begin; when the
/// message comes again, its effect is there once.
pub async fn process_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let mut expected = Vec::new();
    for polls in 0..POLLS_MAX {
        let consumer = fixture.consumer(write);
        let batch: Vec<_> = (0..3).map(|number| format!("order-{polls:03}-{number}")).collect();
        let messages: Vec<_> = batch.iter().map(|key| msg(key, "paid")).collect();
        let done = {
            let call = consumer.process(messages.clone());
            tokio::pin!(call);
            polled(call, polls).await
        };
        redeliver(&consumer, messages.clone()).await;
        assert_eq!(process(&consumer, messages).await, [Kind::Duplicate; 3]);
        expected.extend(batch);
        if done.is_some() {
            assert!(polls > 0);
            fixture.assert_effects(expected.iter().map(|key| (key.as_str(), "paid"))).await;
            return;
        }
    }
    panic!("process needs more than {POLLS_MAX} polls");
}

/// A16: the same for `process_on`.
pub async fn process_on_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let mut expected = Vec::new();
    for polls in 0..POLLS_MAX {
        let consumer = fixture.consumer(write);
        let key = format!("order-{polls:03}");
        let lane = fixture.open().await;
        let done = {
            let call = consumer.process_on(lane, vec![msg(&key, "paid")]);
            tokio::pin!(call);
            polled(call, polls).await
        };
        redeliver(&consumer, vec![msg(&key, "paid")]).await;
        expected.push(key);
        if done.is_some() {
            fixture.assert_effects(expected.iter().map(|key| (key.as_str(), "paid"))).await;
            return;
        }
    }
    panic!("process_on needs more than {POLLS_MAX} polls");
}

/// The call that is dropped, in a unit that is run by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dropped {
    Begin,
    Claim,
    Write,
    Commit,
    Rollback,
}

/// Runs a unit up to a call that is dropped after `polls` polls; whether the call was done by then.
async fn unit_dropped_at<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    registered: &Registered,
    key: &str,
    what: Dropped,
    polls: usize,
) -> bool {
    let lane = fixture.open().await;
    let claims = [claim(registered, key, "paid")];
    let limit = if what == Dropped::Begin { polls } else { usize::MAX };
    let begun = {
        let call = fixture.store.begin(lane, options(registered.run));
        tokio::pin!(call);
        polled(call, limit).await
    };
    let Some(begun) = begun else { return false };
    let mut unit = begun.unwrap();
    if what == Dropped::Begin {
        return true;
    }
    let limit = if what == Dropped::Claim { polls } else { usize::MAX };
    let claimed = {
        let call = unit.claim(&claims);
        tokio::pin!(call);
        polled(call, limit).await
    };
    match claimed {
        None => return false,
        Some(answers) => assert_eq!(answers.unwrap(), [Claimed::Inserted]),
    }
    if what == Dropped::Claim {
        return true;
    }
    let limit = if what == Dropped::Write { polls } else { usize::MAX };
    let written = {
        let mut seen: Tx<'_, Seen<T>> = unit.tx();
        let mut tx: Tx<'_, T::Store> = Tx::new(seen.connection());
        let effect = Effect { key: key.to_owned(), payload: b"paid".to_vec(), note: String::new() };
        let call = T::write(&mut tx, &effect);
        tokio::pin!(call);
        polled(call, limit).await
    };
    if what == Dropped::Write || written.is_none() {
        return written.is_some();
    }
    written.into_iter().for_each(Result::unwrap);
    if what == Dropped::Commit {
        let call = unit.commit();
        tokio::pin!(call);
        return polled(call, polls).await.map(|(_, committed)| committed.unwrap()).is_some();
    }
    let call = unit.rollback();
    tokio::pin!(call);
    polled(call, polls).await.map(Result::unwrap).is_some()
}

/// Drops a call after every number of polls, the lane with it. Each time the effect and the record are there both or
/// not at all, the key is free soon, and the message, delivered again, is there once.
async fn dropped_at_every_poll<T: StoreUnderTest>(subject: &T, what: Dropped) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let consumer = fixture.builder("orders", write).busy_timeout(Duration::from_secs(10)).build().unwrap();
    let mut expected = Vec::new();
    for polls in 0..POLLS_MAX {
        let key = format!("order-{polls:03}");
        let done = unit_dropped_at(&fixture, &registered, &key, what, polls).await;
        redeliver(&consumer, vec![msg(&key, "paid")]).await;
        expected.push(key);
        fixture.assert_effects(expected.iter().map(|key| (key.as_str(), "paid"))).await;
        if done {
            return;
        }
    }
    panic!("{what:?} needs more than {POLLS_MAX} polls");
}

/// A15, contract of Store 2: a dropped `begin`.
pub async fn begin_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    dropped_at_every_poll(subject, Dropped::Begin).await;
}

/// A16: a dropped `claim`.
pub async fn claim_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    dropped_at_every_poll(subject, Dropped::Claim).await;
}

/// A16: a handler's statement that is dropped, and the unit with it.
pub async fn statement_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    dropped_at_every_poll(subject, Dropped::Write).await;
}

/// A16, D6: a dropped `commit` has happened or not, with all that belongs to it.
pub async fn commit_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    dropped_at_every_poll(subject, Dropped::Commit).await;
}

/// A16: a dropped `rollback` commits nothing.
pub async fn rollback_dropped_at_every_poll<T: StoreUnderTest>(subject: &T) {
    dropped_at_every_poll(subject, Dropped::Rollback).await;
}

/// Contract of Store 3, A1: a unit that is dropped with its lane after all its work leaves nothing, and frees its keys.
pub async fn a_dropped_unit_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    assert!(unit_dropped_at(&fixture, &registered, "order-1", Dropped::Write, usize::MAX).await);
    fixture.assert_effects([]).await;
    let consumer = fixture.builder("orders", write).busy_timeout(Duration::from_secs(10)).build().unwrap();
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}
