//! Several units that want the same keys.

use std::{sync::Arc, time::Duration};

use idem_core::{
    DedupConsumer, Store,
    hash::{HashRules, JsonMembers, RawPayload},
    store::{ClaimError, Claimed, CommitError, Registered, UnitOfWork},
};

use super::{
    fixture::{Fixture, Kind, claim, msg, options, process, redeliver, write},
    gate::{Counter, PATIENCE, within},
    subject::StoreUnderTest,
};

/// How the holder of an uncommitted key ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commits,
    RollsBack,
}

/// Holds `keys` uncommitted over a connection of another process, runs `meanwhile`, and ends at a signal.
///
/// `meanwhile` gets a counter: raising it ends the holder.
async fn while_held<T, F>(fixture: &Fixture<'_, T>, registered: &Registered, keys: &[&str], end: End, meanwhile: F)
where
    T: StoreUnderTest,
    F: AsyncFnOnce(&Counter),
{
    let holder = fixture.elsewhere().await;
    let lane = holder.open().await;
    let mut unit = within("beginning", holder.store.begin(lane, options(registered.run))).await.unwrap();
    let claims: Vec<_> = keys.iter().map(|key| claim(registered, key, "paid")).collect();
    let claimed = within("claiming", unit.claim(&claims)).await.unwrap();
    assert!(claimed.iter().all(|answer| *answer == Claimed::Inserted), "{claimed:?}");
    let told = Counter::default();
    let ending = async {
        told.at_least(1, "the case ends the holder").await;
        match end {
            End::Commits => within("committing", unit.commit()).await.1.map_err(|error: CommitError| error.to_string()),
            End::RollsBack => {
                within("rolling back", unit.rollback()).await.map(drop).map_err(|error| error.to_string())
            }
        }
    };
    let (ended, ()) = tokio::join!(ending, meanwhile(&told));
    ended.unwrap();
}

/// Registers a consumer before a key is held: with a single writer, a registration would wait.
async fn started<S: Store>(consumer: &DedupConsumer<S>) {
    within("starting the consumer", consumer.start()).await.unwrap();
}

/// Starts `waiters` calls for `order-1`, waits until as many as can are at the claim, ends the holder, and answers
/// their outcomes.
async fn waiters<T: StoreUnderTest>(fixture: &Fixture<'_, T>, payload: &'static str, end: End) -> Vec<Kind> {
    let registered = fixture.register().await;
    let count = if fixture.waits_per_key() { 4 } else { 1 };
    let consumer = fixture.builder("orders", write).lanes(count).busy_timeout(PATIENCE / 2).build().unwrap();
    started(&consumer).await;
    let mut kinds = Vec::new();
    while_held(fixture, &registered, &["order-1"], end, async |told| {
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let consumer = consumer.clone();
                tokio::spawn(async move { process(&consumer, [msg("order-1", payload)]).await })
            })
            .collect();
        fixture.spy.claiming.at_least(count, "the waiters claim the key").await;
        told.add();
        for call in calls {
            kinds.extend(call.await.unwrap());
        }
    })
    .await;
    kinds
}

fn count(kinds: &[Kind], kind: Kind) -> usize {
    kinds.iter().filter(|other| **other == kind).count()
}

/// Several wait for a claim whose winner rolls back: exactly one of them runs.
pub async fn one_waiter_runs_when_the_winner_rolls_back<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let kinds = waiters(&fixture, "paid", End::RollsBack).await;
    assert_eq!((count(&kinds, Kind::Processed), count(&kinds, Kind::Duplicate)), (1, 3), "{kinds:?}");
    assert_eq!(fixture.runs.all().len(), 1);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// The waiters for a claim whose winner commits are duplicates, and none of them runs.
pub async fn every_waiter_is_a_duplicate_when_the_winner_commits<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let kinds = waiters(&fixture, "paid", End::Commits).await;
    assert_eq!(kinds, [Kind::Duplicate; 4]);
    assert!(fixture.runs.all().is_empty());
}

/// Waiters with another payload are conflicts when the winner commits.
pub async fn every_waiter_with_another_payload_is_a_conflict_when_the_winner_commits<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let kinds = waiters(&fixture, "refunded", End::Commits).await;
    assert_eq!(kinds, [Kind::Conflict; 4]);
    assert!(fixture.runs.all().is_empty());
}

/// B2: a claim gives up after its busy time-out, and the message comes back without a run.
pub async fn a_held_key_is_busy_within_the_busy_timeout<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let consumer = fixture.builder("orders", write).busy_timeout(Duration::from_millis(200)).build().unwrap();
    started(&consumer).await;
    while_held(&fixture, &registered, &["order-1"], End::RollsBack, async |told| {
        // The holder goes on holding until both have come back.
        assert_eq!(process(&consumer, [msg("order-1", "paid"), msg("order-1", "paid")]).await, [Kind::Busy; 2]);
        told.add();
    })
    .await;
    assert!(fixture.runs.all().is_empty());
    redeliver(&consumer, vec![msg("order-1", "paid")]).await;
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// B18, B19: one busy key of a batch keeps its own message back and no other. A store with a single writer
/// holds them all back, and settles none.
pub async fn a_busy_key_spares_its_neighbours<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let consumer = fixture.builder("orders", write).busy_timeout(Duration::from_secs(1)).build().unwrap();
    started(&consumer).await;
    let batch = || ["k-1", "k-2", "k-3"].map(|key| msg(key, "paid"));
    let per_key = fixture.waits_per_key();
    while_held(&fixture, &registered, &["k-2"], End::RollsBack, async |told| {
        let free = if per_key { Kind::Processed } else { Kind::Busy };
        assert_eq!(process(&consumer, batch()).await, [free, Kind::Busy, free]);
        told.add();
    })
    .await;
    redeliver(&consumer, batch().to_vec()).await;
    fixture.assert_effects(["k-1", "k-2", "k-3"].map(|key| (key, "paid"))).await;
}

/// Contract of UnitOfWork: a claim waits for uncommitted twins, and only for those. Where the capability
/// `waits_per_key` is off, the claim of any other key is refused as held.
pub async fn a_claim_waits_for_twins_only<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    while_held(&fixture, &registered, &["order-1"], End::RollsBack, async |told| {
        let lane = fixture.open().await;
        let limits = options(registered.run).busy_timeout(Duration::from_secs(1));
        let mut unit = within("beginning", fixture.store.begin(lane, limits)).await.unwrap();
        let answer = within("claiming another key", unit.claim(&[claim(&registered, "order-2", "paid")])).await;
        if fixture.waits_per_key() {
            assert_eq!(answer.unwrap(), [Claimed::Inserted]);
        } else {
            assert!(matches!(answer, Err(ClaimError::Held)), "{answer:?}");
        }
        within("rolling back", unit.rollback()).await.unwrap();
        told.add();
    })
    .await;
}

/// Contract of Store 6, W138: a key is free or not, as a claim would find it, and asking leaves nothing behind.
pub async fn w138_a_question_leaves_nothing_behind<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let asked = claim(&registered, "order-1", "paid");
    let limits = options(registered.run).busy_timeout(Duration::from_millis(500)).alone(true);
    let mut lane = Some(fixture.open().await);
    let mut is_free = async || {
        let session = lane.take().unwrap_or_else(|| panic!("each question gives the lane back"));
        let (session, is_free) = within("asking", fixture.store.is_free(session, limits, &asked)).await.unwrap();
        lane = session;
        is_free
    };
    assert!(is_free().await);
    assert!(is_free().await, "asked again");
    while_held(&fixture, &registered, &["order-1"], End::RollsBack, async |told| {
        assert!(!is_free().await, "held");
        told.add();
    })
    .await;
    assert!(is_free().await, "on the same lane");
    assert_eq!(fixture.recorded().await, Vec::<String>::new());
    while_held(&fixture, &registered, &["order-1"], End::Commits, async |told| told.add()).await;
    assert!(!is_free().await, "recorded");
    assert_eq!(fixture.recorded().await, ["order-1"]);
}

/// Contract of UnitOfWork 2, B3: a twin that is not committed is never found, neither by the claim nor by a read.
pub async fn an_uncommitted_twin_is_never_found<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let claims = [claim(&registered, "order-1", "paid")];
    while_held(&fixture, &registered, &["order-1"], End::RollsBack, async |told| {
        let lane = fixture.open().await;
        let limits = options(registered.run).busy_timeout(Duration::from_millis(500));
        let mut unit = within("beginning", fixture.store.begin(lane, limits)).await.unwrap();
        assert_eq!(within("reading", unit.read(&claims)).await.unwrap(), [None]);
        let answer = within("claiming", unit.claim(&claims)).await;
        assert!(matches!(answer, Err(ClaimError::Held)), "{answer:?}");
        let lane =
            within("rolling back", unit.rollback()).await.unwrap().unwrap_or_else(|| panic!("the lane survives"));
        let mut unit = within("beginning again", fixture.store.begin(lane, options(registered.run))).await.unwrap();
        told.add();
        assert_eq!(within("claiming again", unit.claim(&claims)).await.unwrap(), [Claimed::Inserted]);
        within("rolling back again", unit.rollback()).await.unwrap();
    })
    .await;
}

/// Contract of UnitOfWork 2, L29: a key whose operation is not done is held, also where its payload was hashed by a former rule. A record
/// would be compared by that rule, and the message acknowledged as a duplicate of an effect that may never come.
pub async fn l29_what_is_not_done_is_held_under_a_former_hash_rule_too<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let rules = HashRules::new(JsonMembers::without(["/sent_at"]).unwrap()).and_formerly(RawPayload);
    let builder = fixture.builder("orders", write).hash_rules(rules).busy_timeout(Duration::from_millis(500));
    let consumer = builder.build().unwrap();
    started(&consumer).await;
    let (formerly, now) = (r#"{"cents":1,"sent_at":1}"#, r#"{"cents":1,"sent_at":2}"#);
    let holder = fixture.elsewhere().await;
    let mut unit = within("beginning", holder.store.begin(holder.open().await, options(registered.run))).await.unwrap();
    let claims = [claim(&registered, "order-1", formerly)];
    assert_eq!(within("claiming", unit.claim(&claims)).await.unwrap(), [Claimed::Inserted]);
    assert_eq!(process(&consumer, [msg("order-1", formerly)]).await, [Kind::Busy]);
    within("rolling back", unit.rollback()).await.unwrap();
    assert_eq!(process(&consumer, [msg("order-1", formerly)]).await, [Kind::Processed]);
    assert_eq!(process(&consumer, [msg("order-1", now)]).await, [Kind::Duplicate]);
    fixture.assert_effects([("order-1", formerly)]).await;
}

/// B17: eight batches of the same keys in opposite orders at once: no deadlock, and every effect once.
pub async fn batches_in_opposite_orders_never_deadlock<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let keys: Arc<Vec<String>> = Arc::new((0..50).map(|number| format!("order-{number:02}")).collect());
    let before = subject.deadlocks().await;
    let shared = fixture.consumer(write);
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let consumer = if fixture.waits_per_key() { fixture.consumer(write) } else { shared.clone() };
            let keys = Arc::clone(&keys);
            tokio::spawn(async move {
                let mut messages: Vec<_> = keys.iter().map(|key| msg(key, "paid")).collect();
                if number % 2 == 1 {
                    messages.reverse();
                }
                redeliver(&consumer, messages).await;
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(subject.deadlocks().await, before);
    assert_eq!(fixture.runs.all().len(), 50, "each handler ran once");
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// B1: sixteen consumers race for each of twenty keys; each effect is there once.
pub async fn many_consumers_race_for_one_key<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).lanes(if fixture.waits_per_key() { 8 } else { 1 }).build().unwrap();
    let keys: Vec<_> = (0..20).map(|number| format!("order-{number:02}")).collect();
    for key in &keys {
        let calls: Vec<_> = (0..16)
            .map(|_| {
                let (consumer, message) = (consumer.clone(), msg(key, "paid"));
                tokio::spawn(async move { process(&consumer, [message]).await[0] })
            })
            .collect();
        let mut kinds = Vec::new();
        for call in calls {
            kinds.push(call.await.unwrap());
        }
        assert_eq!((count(&kinds, Kind::Processed), count(&kinds, Kind::Duplicate)), (1, 15), "{key}: {kinds:?}");
    }
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// B13: of two payloads that race for one key one wins, and every other delivery agrees which.
pub async fn two_payloads_race_for_one_key<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).lanes(if fixture.waits_per_key() { 4 } else { 1 }).build().unwrap();
    for round in 0..10 {
        let key = format!("order-{round}");
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let payload = if number % 2 == 0 { "paid" } else { "refunded" };
                let (consumer, message) = (consumer.clone(), msg(&key, payload));
                tokio::spawn(async move { (payload, process(&consumer, [message]).await[0]) })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        let effects = fixture.effects().await;
        let won: Vec<_> = effects.iter().filter(|(other, _)| *other == key).collect();
        assert_eq!(won.len(), 1, "{won:?}");
        for (payload, kind) in answers {
            let expected = if payload == won[0].1 { kind.is_settled() } else { kind == Kind::Conflict };
            assert!(expected, "{payload} is {kind:?}, and {} won", won[0].1);
        }
    }
}

/// The capability `lanes_max`: where it is set, more lanes are refused when the consumer is built; where not, they run
/// side by side.
pub async fn more_lanes_than_the_store_has_are_refused<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let built = |lanes| fixture.builder("orders", write).lanes(lanes).build();
    match fixture.store.capabilities().lanes_max {
        Some(max) => {
            let error = built(max + 1).map(|_| ()).unwrap_err();
            assert_eq!((error.field, error.value), ("lanes", (max + 1).to_string()));
            let consumer = built(max).unwrap();
            assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
        }
        None => {
            let consumer = built(3).unwrap();
            let gate = super::gate::Gate::new();
            let inside = gate.clone();
            let waiting = fixture.builder("orders", move |_, _| vec![super::fixture::Step::Pass(inside.clone())]);
            let waiting = waiting.lanes(3).build().unwrap();
            let calls: Vec<_> = ["k-1", "k-2", "k-3"]
                .into_iter()
                .map(|key| {
                    let waiting = waiting.clone();
                    tokio::spawn(async move { process(&waiting, [msg(key, "paid")]).await })
                })
                .collect();
            gate.arrived(3).await;
            gate.open();
            for call in calls {
                assert_eq!(call.await.unwrap(), [Kind::Processed]);
            }
            assert_eq!(process(&consumer, [msg("k-1", "paid")]).await, [Kind::Duplicate]);
        }
    }
}

/// The capability `concurrent_handlers`: a handle for several handlers at once is there exactly where it is declared.
pub async fn a_shared_transaction_is_offered_only_where_declared<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let lane = fixture.open().await;
    let unit = within("beginning", fixture.store.begin(lane, options(registered.run))).await.unwrap();
    assert_eq!(unit.shared_tx().is_some(), fixture.store.capabilities().concurrent_handlers);
    within("rolling back", unit.rollback()).await.unwrap();
}
