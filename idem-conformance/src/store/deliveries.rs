//! One message at a time: first deliveries, duplicates, conflicts.

use std::{sync::Arc, time::SystemTime};

use idem_core::{
    Decision, Message, Tenant, consumer::ConflictKind, dead_letter::Reason, hash::PayloadHash, message::Origin,
};

use super::{
    fixture::{Fixture, Kind, Step, decide, msg, process, write},
    gate::{DEADLINE, Gate, within},
    subject::StoreUnderTest,
};

/// A first delivery is handled, once, and its effect and record are there.
pub async fn processes_exactly_once_on_first_delivery<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let decisions = decide(&fixture.consumer(write), [msg("order-1", "paid")]).await;
    assert!(decisions[0].is_processed() && !decisions[0].is_skipped());
    assert_eq!(fixture.runs.all(), ["order-1"]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A2: a second delivery is skipped without an error, and the handler does not run.
pub async fn skips_duplicate_silently<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    decide(&consumer, [msg("order-1", "paid")]).await;
    let decisions = decide(&consumer, [msg("order-1", "paid")]).await;
    assert!(!decisions[0].is_processed() && decisions[0].is_skipped());
    assert_eq!(fixture.runs.all(), ["order-1"]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

async fn same_message<T: StoreUnderTest>(subject: &T, times: usize) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let mut kinds = Vec::new();
    for _ in 0..times {
        kinds.extend(process(&consumer, [msg("order-1", "paid")]).await);
    }
    assert_eq!(kinds[0], Kind::Processed);
    assert!(kinds[1..].iter().all(|kind| *kind == Kind::Duplicate), "{kinds:?}");
    assert_eq!(fixture.runs.all().len(), 1);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// The same message twice.
pub async fn same_message_2_times<T: StoreUnderTest>(subject: &T) {
    same_message(subject, 2).await;
}

/// The same message ten times.
pub async fn same_message_10_times<T: StoreUnderTest>(subject: &T) {
    same_message(subject, 10).await;
}

/// Five deliveries at once, while the handler takes its time: one runs, the others are duplicates, none fails.
pub async fn concurrent_duplicates<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let gate = Gate::new();
    let inside = gate.clone();
    let consumer = fixture.consumer(move |_, _| vec![Step::Write(""), Step::Pass(inside.clone())]);
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let consumer = consumer.clone();
            tokio::spawn(async move { process(&consumer, [msg("order-1", "paid")]).await })
        })
        .collect();
    gate.arrived(1).await;
    // The others now wait for the key, or for a lane to wait on.
    let lanes = fixture.store_lanes().min(5);
    fixture.spy.claiming.at_least(lanes, "every lane claims the key").await;
    gate.open();
    let mut kinds = Vec::new();
    for call in calls {
        kinds.extend(call.await.unwrap());
    }
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Processed).count(), 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Duplicate).count(), 4, "{kinds:?}");
    assert_eq!(fixture.runs.all().len(), 1);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// Copies of ten messages through four consumers, each in a process of its own.
pub async fn with_several_parallel_consumers<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let mut consumers = Vec::new();
    for _ in 0..4 {
        let elsewhere = fixture.elsewhere().await;
        consumers.push((elsewhere.consumer(write), elsewhere));
    }
    let calls: Vec<_> = consumers
        .iter()
        .map(|(consumer, _)| {
            let consumer = consumer.clone();
            tokio::spawn(async move {
                let mut kinds = Vec::new();
                for number in 0..10 {
                    kinds.extend(process(&consumer, [msg(&format!("order-{number}"), "paid")]).await);
                }
                kinds
            })
        })
        .collect();
    let mut kinds = Vec::new();
    for call in calls {
        kinds.extend(call.await.unwrap());
    }
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Processed).count(), 10, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Duplicate).count(), 30, "{kinds:?}");
    let keys: Vec<_> = (0..10).map(|number| format!("order-{number}")).collect();
    fixture.assert_effects(keys.iter().map(|key| (key.as_str(), "paid"))).await;
}

/// A2: a consumer that starts anew, in another process, knows what was handled.
pub async fn a_duplicate_is_known_after_a_restart<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    process(&fixture.consumer(write), [msg("order-1", "paid")]).await;
    let restarted = fixture.elsewhere().await;
    let consumer = restarted.consumer(write);
    assert_eq!(
        process(&consumer, [msg("order-1", "paid"), msg("order-1", "refunded")]).await,
        [Kind::Duplicate, Kind::Conflict]
    );
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// B13, S3: another payload under a known key is never handled, and never called a duplicate.
pub async fn other_payload_is_a_conflict_and_never_handled<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    let decisions = decide(&consumer, [msg("order-1", "refunded")]).await;
    assert!(matches!(decisions[0], Decision::Conflict(_, ConflictKind::OtherPayload)), "{decisions:?}");
    assert_eq!(fixture.runs.all().len(), 1);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// B13: a conflict leaves the record as it was, however often it comes.
pub async fn a_conflict_leaves_the_record_untouched<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    process(&consumer, [msg("order-1", "paid")]).await;
    for _ in 0..2 {
        assert_eq!(process(&consumer, [msg("order-1", "refunded")]).await, [Kind::Conflict]);
        assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Duplicate]);
    }
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// S3: a duplicate and a conflict carry the winner's record: key, hash, rule, when, by which run, until when.
pub async fn duplicates_and_conflicts_carry_the_winners_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let first = fixture.register().await;
    process(&fixture.consumer(write), [msg("order-1", "paid")]).await;
    let consumer = fixture.elsewhere().await.consumer(write);
    let decisions = decide(&consumer, [msg("order-1", "paid"), msg("order-1", "refunded")]).await;
    let last = fixture.register().await;
    let (Decision::Duplicate(duplicate, _), Decision::Conflict(conflict, _)) = (&decisions[0], &decisions[1]) else {
        panic!("{decisions:?}");
    };
    assert_eq!(duplicate, conflict);
    assert_eq!(duplicate.key.as_str(), "order-1");
    assert_eq!((duplicate.hash, duplicate.hash_rule), (PayloadHash::of(b"paid"), first.hash_rules[0]));
    assert!(duplicate.processed_by > first.run && duplicate.processed_by < last.run, "{duplicate:?}");
    let (from, until) = (whole_seconds(first.now), whole_seconds(last.now) + 1);
    let at = whole_seconds(duplicate.processed_at);
    assert!((from..=until).contains(&at), "by the database's clock: {from} <= {at} <= {until}");
    assert!(duplicate.expires_at.is_some_and(|at| at > duplicate.processed_at));
}

fn whole_seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// B11: two consumers with one database and the same key both run, and neither sees the other's conflicts.
pub async fn two_consumers_with_the_same_key_both_run<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let billing = fixture.builder("billing", |_, _| vec![Step::Write("billing")]).build().unwrap();
    let shipping = fixture.builder("shipping", |_, _| vec![Step::Write("shipping")]).build().unwrap();
    assert_eq!(process(&billing, [msg("order-1", "paid")]).await, [Kind::Processed]);
    assert_eq!(process(&shipping, [msg("order-1", "sent")]).await, [Kind::Processed]);
    assert_eq!(process(&billing, [msg("order-1", "paid")]).await, [Kind::Duplicate]);
    assert_eq!(process(&shipping, [msg("order-1", "sent")]).await, [Kind::Duplicate]);
    let mut notes: Vec<_> = subject.effects().await.into_iter().map(|effect| effect.note).collect();
    notes.sort();
    assert_eq!(notes, ["billing", "shipping"]);
    assert_eq!(fixture.recorded().await, ["order-1", "order-1"]);
}

/// S2, B8: two tenants with the same key both run, whether they share a worker or not; so does the empty tenant.
pub async fn two_tenants_with_the_same_key_both_run<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let tenant = |name: &str| Tenant::new(name).unwrap();
    let of_header = |message: &Message| message.headers().text("tenant").map(|name| Tenant::new(name).unwrap());
    let shared = fixture.builder("orders", write).tenant_from(of_header).build().unwrap();
    let of = |name: &str| msg("order-1", name).with_header("tenant", name.to_owned());
    let both = [of("acme"), of("globex"), of("acme"), msg("order-1", "no tenant")];
    assert_eq!(
        process(&shared, both).await,
        [Kind::Processed, Kind::Processed, Kind::Duplicate, Kind::Failed(idem_core::ErrorClass::Permanent)]
    );
    let alone = fixture.builder("orders", write).tenant(tenant("acme")).build().unwrap();
    assert_eq!(process(&alone, [msg("order-1", "acme")]).await, [Kind::Duplicate]);
    assert_eq!(process(&fixture.consumer(write), [msg("order-1", "empty")]).await, [Kind::Processed]);
    let expected = [("order-1", "acme"), ("order-1", "empty"), ("order-1", "globex")];
    let effects = fixture.effects().await;
    assert_eq!(effects, expected.map(|(key, payload)| (key.to_owned(), payload.to_owned())));
}

/// E11: a message without a payload and one with an empty payload are two messages.
pub async fn a_tombstone_and_an_empty_payload_differ<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let tombstone = |key: &str| Message::tombstone().with_header("idempotencykey", key.to_owned());
    let messages =
        [tombstone("k-1"), msg("k-1", ""), tombstone("k-1"), msg("k-2", ""), tombstone("k-2"), msg("k-2", "")];
    assert_eq!(
        process(&consumer, messages).await,
        [Kind::Processed, Kind::Conflict, Kind::Duplicate, Kind::Processed, Kind::Conflict, Kind::Duplicate]
    );
    let mut notes: Vec<_> = subject.effects().await.into_iter().map(|effect| (effect.key, effect.note)).collect();
    notes.sort();
    assert_eq!(notes, [("k-1".to_owned(), "tombstone".to_owned()), ("k-2".to_owned(), String::new())]);
}

/// S10: the largest payload is handled, one byte more is refused, and a neighbour is unharmed.
pub async fn a_payload_of_one_mebibyte_is_handled_and_a_larger_one_refused<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let (largest, too_large) = ("x".repeat(1 << 20), "x".repeat((1 << 20) + 1));
    let decisions = decide(&consumer, [msg("large", &largest), msg("larger", &too_large), msg("small", "p")]).await;
    assert!(matches!(&decisions[1], Decision::Failed(failure) if failure.reason == Reason::TooLarge), "{decisions:?}");
    assert_eq!(process(&consumer, [msg("large", &largest)]).await, [Kind::Duplicate]);
    fixture.assert_effects([("large", largest.as_str()), ("small", "p")]).await;
}

/// B14: a payload is bytes: NUL, invalid UTF-8 and every other value are hashed and handled as they are.
pub async fn a_payload_of_any_bytes_is_handled_as_it_is<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let every_byte: Vec<u8> = (0..=255).collect();
    let other = every_byte.iter().rev().copied().collect::<Vec<u8>>();
    let kinds =
        process(&consumer, [idem_testkit::message("bytes", every_byte.clone()), idem_testkit::message("bytes", other)])
            .await;
    assert_eq!(kinds, [Kind::Processed, Kind::Conflict]);
    let effects = subject.effects().await;
    assert_eq!(effects.len(), 1);
    assert_eq!(effects[0].payload, every_byte);
}

/// B12, B14: only key and payload distinguish messages, not the transport's data about a delivery.
pub async fn a_redelivery_with_other_headers_is_a_duplicate<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(write);
    let first = msg("order-1", "paid").with_origin(Origin::new("topic/0/1")).with_id("1");
    let resent = msg("order-1", "paid").with_header("trace", "2").with_origin(Origin::new("topic/3/9")).with_id("2");
    assert_eq!(process(&consumer, [first]).await, [Kind::Processed]);
    assert_eq!(process(&consumer, [resent]).await, [Kind::Duplicate]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

/// A type that opted out of protection runs each time, and leaves no record.
pub async fn an_unprotected_type_runs_each_time_without_a_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.builder("orders", write).unprotected_type("ping").build().unwrap();
    let ping = || Message::new("ping").with_type("ping");
    let kinds = process(&consumer, [ping(), msg("order-1", "paid"), ping()]).await;
    assert_eq!(kinds, [Kind::Processed; 3]);
    assert_eq!(process(&consumer, [ping()]).await, [Kind::Processed]);
    let pings = fixture.effects().await.into_iter().filter(|(key, _)| key == "(none)").count();
    assert_eq!(pings, 3);
    assert_eq!(fixture.recorded().await, ["order-1"]);
}

/// A handler gets the message to read; a change of its copy changes neither key nor hash.
pub async fn a_handler_that_changes_its_copy_changes_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let consumer = fixture.consumer(|message, _| {
        let changed = message.clone().with_header("idempotencykey", "other").with_id("other").with_type("other");
        assert_ne!(&changed, message);
        vec![Step::Write("")]
    });
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    assert_eq!(
        process(&consumer, [msg("order-1", "paid"), msg("other", "paid")]).await,
        [Kind::Duplicate, Kind::Processed]
    );
    fixture.assert_effects([("order-1", "paid"), ("other", "paid")]).await;
}

/// The connection that a caller hands over comes back after every normal end, and can be used again.
pub async fn process_on_gives_the_lane_back_after_a_normal_end<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let plan = |message: &Message, _| {
        if message.payload().is_some_and(|p| p == "bad") { vec![Step::Fail] } else { write(message, 0) }
    };
    let consumer = fixture.consumer(plan);
    let mut lane = fixture.open().await;
    let opened = fixture.spy.opened.get();
    let each = [("k-1", "p", Kind::Processed), ("k-1", "p", Kind::Duplicate), ("k-1", "q", Kind::Conflict)];
    let failed = ("k-2", "bad", Kind::Failed(idem_core::ErrorClass::Transient));
    for (key, payload, expected) in each.into_iter().chain([failed, ("k-3", "p", Kind::Processed)]) {
        let done = within("processing on a lane", consumer.process_on(lane, vec![msg(key, payload)])).await;
        let (back, decisions) = done.unwrap();
        assert_eq!(Kind::of(&decisions[0].decision), expected);
        lane = back.unwrap_or_else(|| panic!("the lane is gone after {expected:?}"));
    }
    assert_eq!(fixture.spy.opened.get(), opened, "no other lane was needed");
    fixture.assert_effects([("k-1", "p"), ("k-3", "p")]).await;
    fixture.store.inner_close(lane).await;
}

/// A15, A16, contract of Store 1: after an abnormal end the connection is closed, never handed back.
pub async fn process_on_keeps_the_lane_after_an_abnormal_end<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let builder = fixture
        .builder("orders", |_, run| if run == 1 { vec![Step::Write(""), Step::Hang] } else { vec![Step::Write("")] });
    let consumer = builder.handler_deadline(DEADLINE).build().unwrap();
    let lane = fixture.open().await;
    let done = within("a late handler", consumer.process_on(lane, vec![msg("order-1", "paid")])).await;
    let (back, decisions) = done.unwrap();
    assert!(back.is_none(), "a connection in an unknown state is closed");
    assert!(
        matches!(&decisions[0].decision, Decision::Failed(failure) if failure.reason == Reason::Deadline),
        "{decisions:?}"
    );
    fixture.assert_effects([]).await;
    assert_eq!(process(&consumer, [msg("order-1", "paid")]).await, [Kind::Processed]);
    fixture.assert_effects([("order-1", "paid")]).await;
}

impl<T: StoreUnderTest> Fixture<'_, T> {
    /// How many lanes a consumer has unless it says otherwise.
    fn store_lanes(&self) -> usize {
        use idem_core::Store as _;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        cores.min(4).min(self.store.capabilities().lanes_max.unwrap_or(usize::MAX))
    }
}

impl<S: idem_core::Store> super::observed::Observed<S> {
    async fn inner_close(self: &Arc<Self>, lane: S::Session) {
        idem_core::Store::close(&*self.inner, lane).await;
    }
}
