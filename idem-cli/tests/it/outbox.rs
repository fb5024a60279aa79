//! `idem outbox`: the same on both databases.

use std::{sync::Arc, time::Duration};

use idem_core::{
    DedupConsumer, Effects, Event, Handler, HandlerError, Message, Store, Tx,
    outbox::{DestinationId, EventEnd, Leased, Outbox},
};
use idem_testkit::Decide as _;

use crate::fixture::{Answer, Fixture, PAYLOAD, message};

/// Publishes an event for each message, those of one customer in order.
pub(crate) struct Publishing;

impl<S: Store> Handler<S> for Publishing {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        let event = Event::to("payments").event_type("PaymentCharged").ordering_key("customer-7");
        tx.publish(message, event.body(format!("{PAYLOAD} told")))?;
        Ok(())
    }
}

/// A database with three events of one ordering key.
struct Subject<S> {
    outbox: Arc<dyn Outbox>,
    payments: DestinationId,
    store: Arc<S>,
}

impl<S: Store> Subject<S> {
    async fn new(store: S) -> Self {
        let store = Arc::new(store);
        let outbox = store.outbox().unwrap();
        let subject = Self { payments: outbox.declare(&["payments".into()]).await.unwrap()[0], outbox, store };
        subject.publish(&["a", "b", "c"]).await;
        subject
    }

    async fn publish(&self, keys: &[&str]) {
        let builder = DedupConsumer::builder_shared(Arc::clone(&self.store), "orders").publishes_to(["payments"]);
        let consumer = builder.handler(Publishing).effects(Effects::InTransaction).build().unwrap();
        let decisions = consumer.decisions(keys.iter().map(|key| message(key)).collect()).await.unwrap();
        assert!(decisions.iter().all(idem_core::Decision::is_processed), "{decisions:?}");
    }

    /// The numbers of the events that may go now.
    async fn next(&self) -> Vec<i64> {
        let next = self.outbox.next(self.payments, 100, 1 << 20).await.unwrap();
        next.iter().map(|event| event.number.0).collect()
    }

    async fn fail(&self, event: i64, error: &str) {
        let end = EventEnd::Failed { error: error.to_owned(), may_be_sent: true };
        let next = self.outbox.next(self.payments, 100, 1 << 20).await.unwrap();
        let event = next.iter().find(|next| next.number.0 == event).unwrap();
        self.outbox.settle(self.payments, &[(event, end)]).await.unwrap();
        assert_eq!(self.next().await, [0_i64; 0], "the others are behind it");
    }
}

/// O30: failed events are seen, sent again, skipped, and each act stands in the trail.
async fn o30_events_are_seen_sent_and_skipped<S: Store>(subject: &Subject<S>, idem: impl Fn(&[&str]) -> Answer) {
    let ask = |line: &str| idem(&line.split_whitespace().collect::<Vec<_>>());
    let events = subject.next().await;
    let [first, second, third] = events[..] else { panic!("{events:?}") };
    let listed = ask("outbox list --json").json();
    assert_eq!(listed["destinations"][0]["pending"], 3, "{listed}");
    assert_eq!(listed["events"][2]["event"], third, "{listed}");
    assert!(ask("outbox list --limit 1").ok().contains("1 of 3, the oldest"));
    ask("outbox list --destination nowhere").refused("there is no destination \"nowhere\"");
    ask("outbox list --state lost").refused("must be one of pending, waiting, failed, behind");

    subject.fail(first, "the topic takes 1000 bytes").await;
    let listed = ask("outbox list --state failed --json").json();
    assert_eq!(listed["events"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["events"][0]["error"], "the topic takes 1000 bytes", "{listed}");
    assert_eq!(listed["destinations"][0]["behind"], 2, "{listed}");
    let doctor = ask("doctor");
    assert!(doctor.status == 1 && doctor.out.contains("nobody relays payments"), "{doctor:?}");
    assert!(doctor.out.contains("1 events for payments have failed, and 2 wait behind them"), "{doctor:?}");

    assert!(!ask(&format!("outbox show {first}")).ok().contains(PAYLOAD), "only where it is asked for");
    let shown = ask(&format!("outbox show {first} --payload")).ok();
    assert!(shown.contains(&format!("{PAYLOAD} told")) && shown.contains("customer-7"), "{shown}");
    ask("outbox show 999").refused("there is no event 999");

    ask("outbox retry 999 --yes").refused("there is no event 999");
    ask(&format!("outbox retry {second} --yes")).refused("none of them waits for its next try or has failed");
    ask("outbox retry --failed nowhere --yes").refused("there is no destination \"nowhere\"");
    ask("outbox retry --yes").refused("required");
    ask(&format!("outbox retry {first}")).refused("Nothing was done: give --yes");
    assert!(ask(&format!("outbox retry {first} --dry-run")).ok().contains("1 would be sent"));
    assert!(ask("outbox retry --failed payments --yes").ok().contains("1 may go"));
    ask("outbox retry --failed payments --yes").refused("no event for \"payments\" has failed");
    assert_eq!(subject.next().await[..1], [first]);

    subject.fail(first, "stale: a copy of it may have been sent 8 days ago").await;
    ask(&format!("outbox retry {first} --yes")).refused("1 of them are stale");
    ask(&format!("outbox retry {first} --stale --yes")).ok();
    let next = subject.outbox.next(subject.payments, 1, 1 << 20).await.unwrap();
    assert_eq!(next[0].first_sent_ago, None, "or the relay would set it aside again");

    subject.fail(first, "again").await;
    // O25: a copy may have been sent, and for all that is known its receivers have forgotten it.
    assert_eq!(ask("outbox list --json").json()["destinations"][0]["first_sent"], "0 s");
    ask(&format!("outbox retry {first} --receiver-keeps 1h --yes")).refused("1 of them are stale");
    assert!(ask(&format!("outbox retry {first} --dry-run")).ok().contains("1 would be sent"));
    ask(&format!("outbox skip {first} --yes")).refused("--because");
    let why = ["outbox", "skip", &first.to_string(), "--because", "paid by hand", "--yes"];
    assert!(idem(&why).ok().contains("1 skipped"));
    assert_eq!(subject.next().await, [second, third], "they go at once");

    ask("outbox pause nowhere --reason deploy").refused("there is no destination \"nowhere\"");
    ask("outbox pause payments --reason their-deploy").ok();
    let lease = async || subject.outbox.lease(subject.payments, "a", Duration::from_secs(60)).await.unwrap();
    assert_eq!(lease().await, Leased::Paused);
    assert!(ask("doctor").out.contains("payments is paused, and 2 events wait"));
    ask("outbox resume payments").ok();
    assert_eq!(lease().await, Leased::Mine);

    // O40: an event that may go is in the hands of the relay that has the destination, paused or not, until it lets go.
    let why = ["outbox", "skip", &second.to_string(), "--because", "sent by hand", "--yes"];
    let on_its_way = "1 of them may be on their way at this moment, because a relay has payments";
    idem(&why).refused(on_its_way);
    ask("outbox pause payments --reason skipping").ok();
    idem(&why).refused(on_its_way);
    subject.outbox.release(subject.payments, "a").await.unwrap();
    let skipped = idem(&why).ok();
    assert!(skipped.contains("1 skipped") && !skipped.contains("a copy of"), "{skipped}");
    ask("outbox resume payments").ok();
    assert_eq!(subject.next().await, [third]);
    // A relay whose lease ran out may have sent the events that could go by then.
    let brief = Duration::from_millis(1);
    assert_eq!(subject.outbox.lease(subject.payments, "a", brief).await.unwrap(), Leased::Mine);
    let told = || ask(&format!("outbox skip {third} --because it-was-sent --dry-run"));
    assert!((0..1_000).any(|_| told().status == 0), "its lease does not run out");
    assert!(told().ok().contains("1 would be skipped; a copy of 1 may have been sent before"));
}

/// The trail's lines about it: actor, act, and the event.
fn trail([first, second]: [i64; 2]) -> Vec<String> {
    let event = format!("event {first} for payments");
    [
        format!("read-event {event}"),
        format!("read-event-payload {event}"),
        format!("retry-event {event}"),
        format!("retry-stale-event {event}"),
        format!("skip-event {event}: paid by hand"),
        "pause-outbox payments: their-deploy".to_owned(),
        "resume-outbox payments".to_owned(),
        "pause-outbox payments: skipping".to_owned(),
        format!("skip-event event {second} for payments: sent by hand"),
        "resume-outbox payments".to_owned(),
    ]
    .to_vec()
}

const TRAIL: &str =
    "SELECT action || ' ' || details FROM {audit} WHERE who = 'ada' AND action <> 'migrate' ORDER BY id";

#[tokio::test]
async fn o30_on_postgres() {
    let fixture = Fixture::new().await;
    let subject = Subject::new(fixture.store.clone()).await;
    let [first, second, _] = subject.next().await[..] else { panic!("three events") };
    o30_events_are_seen_sent_and_skipped(&subject, |arguments| fixture.idem_with(arguments)).await;
    assert_eq!(fixture.texts(&TRAIL.replace("{audit}", "audit")).await, trail([first, second]));
    let keys = "SELECT DISTINCT idempotency_key IS NULL FROM audit WHERE action LIKE '%-event%'";
    assert_eq!(fixture.texts(keys).await, ["f"], "with the events' keys");
    fixture.drop().await;
}

#[tokio::test]
async fn o30_on_sqlite() {
    let file = crate::sqlite::File::new();
    file.idem("migrate up").ok();
    let subject = Subject::new(file.store().await).await;
    let [first, second, _] = subject.next().await[..] else { panic!("three events") };
    o30_events_are_seen_sent_and_skipped(&subject, |arguments| file.idem_with(arguments)).await;
    assert_eq!(file.texts(&TRAIL.replace("{audit}", "idem_audit")).await, trail([first, second]));
}

/// A build without a broker's client says so, and how to get one that has it.
#[cfg(not(feature = "relay"))]
#[tokio::test]
async fn a_relay_needs_a_build_that_links_a_broker() {
    let answer = crate::fixture::command(&[], &["outbox", "relay", "--config", "relay.toml"]);
    answer.refused("cargo install idem-cli --features kafka");
}

/// idem-service tests the relay itself; this is the way to it.
#[cfg(feature = "relay")]
#[tokio::test]
async fn a_relay_names_what_is_wrong_with_its_file() {
    let answer = crate::fixture::command(&[], &["outbox", "relay", "--config", "/nowhere/relay.toml"]);
    assert_eq!(answer.status, 2, "{answer:?}");
    assert!(answer.err.contains("the file /nowhere/relay.toml of --config cannot be read"), "{answer:?}");
}
