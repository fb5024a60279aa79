//! Calls for one message each that share units.

use std::{pin::Pin, task::Poll};

use idem_core::{DedupConsumer, Message, StoreError, Tenant, consumer::Decided};

use super::{
    batches::TRANSIENT,
    fixture::{Fixture, Kind, Seen, Step, msg, process, redeliver},
    gate::{Gate, within},
    subject::StoreUnderTest,
};

type Call<'c> = Pin<Box<dyn Future<Output = Result<Decided, StoreError>> + Send + 'c>>;

/// Calls that wait while the first message's handler is held, one unit at a time.
struct Held<'c> {
    calls: Vec<Call<'c>>,
    gate: Gate,
}

impl<'c> Held<'c> {
    /// The first message runs alone, and the others come while it does.
    async fn begin<T: StoreUnderTest>(
        consumer: &'c DedupConsumer<Seen<T>>,
        gate: Gate,
        first: Message,
        others: impl IntoIterator<Item = Message>,
    ) -> Self {
        within("starting", consumer.start()).await.unwrap();
        let mut held = Self { calls: vec![Box::pin(consumer.process_one(first))], gate };
        let arrived = held.gate.clone();
        tokio::select! {
            done = &mut held.calls[0] => panic!("a handler was not held: {done:?}"),
            () = arrived.arrived(1) => {}
        }
        for message in others {
            let mut call: Call<'c> = Box::pin(consumer.process_one(message));
            let polled = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
            assert!(polled.is_pending(), "it waits for a unit");
            held.calls.push(call);
        }
        held
    }

    async fn decided(self) -> Vec<Kind> {
        self.gate.open();
        let mut decided = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            decided.push(Kind::of(&within("a shared unit", call).await.unwrap().decision));
        }
        decided
    }
}

fn keys() -> Vec<String> {
    (0..12).map(|number| format!("order-{number:02}")).collect()
}

/// One unit at a time, of at most ten messages, whose first handler is held; `None` where the store takes no such units.
fn consumer<T: StoreUnderTest>(fixture: &Fixture<'_, T>, gate: &Gate) -> Option<DedupConsumer<Seen<T>>> {
    let gate = gate.clone();
    let builder = fixture.builder("orders", move |message: &Message, run| match message.payload().map(|it| &**it) {
        Some(b"held") if run == 1 => vec![Step::Pass(gate.clone()), Step::Write("")],
        Some(b"bad") => vec![Step::Write("half"), Step::Fail],
        _ => vec![Step::Write("")],
    });
    let tenant_from = |message: &Message| match message.headers().text("tenant") {
        Some(tenant) => Tenant::new(tenant).ok(),
        None => Some(Tenant::default()),
    };
    let built = builder.lanes(1).coalesce_calls(10).tenant_from(tenant_from).build();
    if fixture.units_hold_one() {
        assert_eq!(built.unwrap_err().field, "coalesce_calls");
        return None;
    }
    Some(built.unwrap())
}

/// No call waits for company: the first runs at once, and calls that came meanwhile share the next units.
pub async fn calls_that_come_together_share_a_unit<T: StoreUnderTest>(subject: &T) {
    let (fixture, gate) = (Fixture::new(subject), Gate::new());
    let Some(consumer) = consumer(&fixture, &gate) else { return };
    let keys = keys();
    let others = keys.iter().map(|key| msg(key, "paid"));
    let held = Held::begin::<T>(&consumer, gate, msg("first", "held"), others).await;
    assert_eq!(held.decided().await, [Kind::Processed; 13]);
    assert_eq!(fixture.spy.claimed().iter().map(Vec::len).collect::<Vec<_>>(), [1, 10, 2]);
    let mut expected: Vec<_> = keys.iter().map(|key| (key.as_str(), "paid")).collect();
    expected.push(("first", "held"));
    fixture.assert_effects(expected).await;
    redeliver(&consumer, keys.iter().map(|key| msg(key, "paid")).collect()).await;
    assert_eq!(fixture.runs.all().len(), 13);
}

/// Where one fails, each of its unit runs alone; copies and conflicts among them are what they are in a batch.
pub async fn a_failure_in_a_shared_unit_is_its_own<T: StoreUnderTest>(subject: &T) {
    let (fixture, gate) = (Fixture::new(subject), Gate::new());
    let Some(consumer) = consumer(&fixture, &gate) else { return };
    let others = [msg("a", "paid"), msg("b", "bad"), msg("a", "paid"), msg("c", "paid"), msg("c", "refunded")];
    let held = Held::begin::<T>(&consumer, gate, msg("first", "held"), others).await;
    let decided = held.decided().await;
    assert_eq!(decided[..1], [Kind::Processed]);
    // Alone they run side by side, so either of two payloads of a key may come first.
    let (a, c) = (&mut [decided[1], decided[3]], &mut [decided[4], decided[5]]);
    a.sort_by_key(|kind| *kind != Kind::Processed);
    c.sort_by_key(|kind| *kind != Kind::Processed);
    assert_eq!((&*a, &*c), (&[Kind::Processed, Kind::Duplicate], &[Kind::Processed, Kind::Conflict]));
    assert_eq!(decided[2], TRANSIENT);
    assert!(["a", "c"].into_iter().all(|key| fixture.runs.of(key) <= 2), "{:?}", fixture.runs);
    let effects = fixture.effects().await;
    let keys: Vec<&str> = effects.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a", "c", "first"]);
}

/// A tenant's messages are not committed or rolled back with another's.
pub async fn tenants_share_no_unit<T: StoreUnderTest>(subject: &T) {
    let (fixture, gate) = (Fixture::new(subject), Gate::new());
    let Some(consumer) = consumer(&fixture, &gate) else { return };
    let of = |tenant: &str, key| msg(key, "paid").with_header("tenant", tenant.to_owned());
    // The first message of a tenant asks for its number.
    process(&consumer, [of("red", "begins"), of("blue", "begins")]).await;
    let before = fixture.spy.claimed().len();
    let others = ["red", "blue", "red", "blue"].into_iter().zip(["a", "b", "c", "d"]);
    let others = others.map(|(tenant, key)| of(tenant, key));
    let held = Held::begin::<T>(&consumer, gate, msg("first", "held"), others).await;
    assert_eq!(held.decided().await, [Kind::Processed; 5]);
    let units: Vec<Vec<String>> = fixture.spy.claimed()[before..]
        .iter()
        .map(|unit| unit.iter().map(|(_, key)| key.to_string()).collect())
        .collect();
    assert_eq!(units, [vec!["first"], vec!["a", "c"], vec!["b", "d"]]);
}

/// A16: a call that is dropped before its message was begun has no effect; one that leads a unit has the unit finished.
pub async fn a16_a_call_that_is_dropped_takes_nobody_with_it<T: StoreUnderTest>(subject: &T) {
    let (fixture, gate) = (Fixture::new(subject), Gate::new());
    let Some(consumer) = consumer(&fixture, &gate) else { return };
    let others = ["a", "b", "c"].map(|key| msg(key, "paid"));
    let mut held = Held::begin::<T>(&consumer, gate, msg("first", "held"), others).await;
    drop(held.calls.remove(2));
    // The one that leads; a task finishes its unit.
    drop(held.calls.remove(0));
    assert_eq!(held.decided().await, [Kind::Processed; 2]);
    assert_eq!(process(&consumer, [msg("first", "held")]).await, [Kind::Duplicate]);
    fixture.assert_effects([("first", "held"), ("a", "paid"), ("c", "paid")]).await;
}
