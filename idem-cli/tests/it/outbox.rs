//! `idem outbox`: the same on both databases.

use std::{sync::Arc, time::Duration};

use idem_core::{
    DedupConsumer, Effects, Event, Handler, HandlerError, Message, Store, Tx,
    outbox::{
        DestinationId, DestinationLimits, EventEnd, EventName, LeaseRequest, Leased, Outbox, OutgoingEvent,
        RECEIVER_KEEPS, UNDER_WAY,
    },
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
        let subject = Self { payments: outbox.declare(&["payments".into()]).await.unwrap()[0].id, outbox, store };
        subject.publish(&["a", "b", "c"]).await;
        subject
    }

    async fn publish(&self, keys: &[&str]) {
        let builder = DedupConsumer::builder(Arc::clone(&self.store), "orders").publish_to(["payments"]);
        let consumer = builder.handler(Publishing).effects(Effects::InTransaction).build().unwrap();
        let decisions = consumer.decisions(keys.iter().map(|key| message(key)).collect()).await.unwrap();
        assert!(decisions.iter().all(idem_core::Decision::is_processed), "{decisions:?}");
    }

    /// The events that may go now.
    async fn next(&self) -> Vec<EventName> {
        let next = self.outbox.next(self.payments, 100, 1 << 20).await.unwrap();
        next.iter().map(OutgoingEvent::name).collect()
    }

    async fn fail(&self, event: &EventName, error: &str) {
        let end = EventEnd::Failed { error: error.to_owned(), may_be_sent: true };
        let next = self.outbox.next(self.payments, 100, 1 << 20).await.unwrap();
        let event = next.iter().find(|next| next.name() == *event).unwrap();
        self.outbox.settle(self.payments, &[(event, end)]).await.unwrap();
        assert!(self.next().await.is_empty(), "the others are behind it");
    }

    /// A relay has the destination, with this setting, and lets go of it.
    async fn relayed(&self, receiver_keeps: Duration) {
        let limits = DestinationLimits::new("sqs").message_bytes_max(Some(256 << 10));
        let request =
            LeaseRequest::new("a", Duration::from_secs(60)).receiver_keeps(receiver_keeps).limits(Some(&limits));
        assert_eq!(self.outbox.lease(self.payments, request).await.unwrap(), Leased::Mine);
        self.outbox.release(self.payments, "a").await.unwrap();
    }
}

/// A moment ago, as `outbox list --json` says.
#[track_caller]
fn a_copy_may_have_been_sent(listed: Answer) {
    let first_sent = &listed.json()["destinations"][0]["first_sent"];
    assert!(first_sent.as_str().is_some_and(|ago| ago.ends_with(" s")), "{first_sent}");
}

/// O30: failed events are seen, sent again, skipped, and each act stands in the trail.
async fn o30_events_are_seen_sent_and_skipped<S: Store>(subject: &Subject<S>, idem: impl Fn(&[&str]) -> Answer) {
    let ask = |line: &str| idem(&line.split_whitespace().collect::<Vec<_>>());
    let events = subject.next().await;
    let [first, second, third] = &events[..] else { panic!("{events:?}") };
    let listed = ask("outbox list --json").json();
    assert_eq!(listed["destinations"][0]["pending"], 3, "{listed}");
    assert_eq!(listed["events"][2]["event"], third.to_string(), "{listed}");
    assert!(ask("outbox list --limit 1").ok().contains("1 of 3, the oldest"));
    ask("outbox list --destination nowhere").refused("there is no destination \"nowhere\"");
    ask("outbox list --state lost").refused("must be one of pending, waiting, failed, behind");

    subject.fail(first, "the topic takes 1000 bytes").await;
    let listed = ask("outbox list --state failed --json").json();
    assert_eq!(listed["events"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["events"][0]["error"], "the topic takes 1000 bytes", "{listed}");
    assert_eq!(listed["destinations"][0]["behind"], 2, "{listed}");
    let doctor = ask("doctor");
    assert!(doctor.status == 1 && doctor.out.contains("nobody relays payments, and 3 events wait"), "{doctor:?}");
    assert!(doctor.out.contains("1 events for payments have failed, and 2 wait behind them"), "{doctor:?}");

    assert!(!ask(&format!("outbox show {first}")).ok().contains(PAYLOAD), "only where it is asked for");
    let shown = ask(&format!("outbox show {first} --payload")).ok();
    assert!(shown.contains(&format!("{PAYLOAD} told")) && shown.contains("customer-7"), "{shown}");
    ask("outbox show 999:key").refused("there is no event 999:key");

    ask("outbox retry 999:key --yes").refused("there is no event 999:key");
    ask(&format!("outbox retry {} --yes", first.number)).refused("named by its number and its key");
    ask(&format!("outbox retry {second} --yes")).refused("none of them waits for its next try or has failed");
    ask("outbox retry --failed nowhere --yes").refused("there is no destination \"nowhere\"");
    ask("outbox retry --yes").refused("required");
    ask(&format!("outbox retry {first}")).refused("Nothing was done: give --yes");
    assert!(ask(&format!("outbox retry {first} --dry-run")).ok().contains("1 would be sent"));
    assert!(ask("outbox retry --failed payments --yes").ok().contains("1 may go"));
    ask("outbox retry --failed payments --yes").refused("no event for \"payments\" has failed");
    assert_eq!(subject.next().await[0], *first);

    subject.fail(first, "stale: a copy of it may have been sent 8 days ago").await;
    ask(&format!("outbox retry {first} --yes")).refused("1 of them are stale");
    ask(&format!("outbox retry {first} --stale --yes")).ok();
    let next = subject.outbox.next(subject.payments, 1, 1 << 20).await.unwrap();
    let ago = next[0].first_sent_ago;
    assert!(ago.is_some_and(|ago| ago < Duration::from_secs(60)), "or the relay would set it aside again: {ago:?}");
    o101_a_copy_of_a_stale_event_is_not_forgotten(subject, first, ask).await;

    subject.fail(first, "again").await;
    // O54: what is not stale stays sent.
    ask(&format!("outbox retry {first} --stale --yes")).ok();
    let next = subject.outbox.next(subject.payments, 1, 1 << 20).await.unwrap();
    assert!(next[0].first_sent_ago.is_some(), "its copy was not forgotten");
    subject.fail(first, "again").await;
    // O25: a copy may have been sent, and for all that is known its receivers have forgotten it.
    a_copy_may_have_been_sent(ask("outbox list --json"));
    // O51: as the relay that had the destination last knows it.
    subject.relayed(Duration::from_secs(3_600)).await;
    let known = &ask("outbox list --json").json()["destinations"][0];
    assert_eq!(known["receiver_keeps"], "60 min");
    assert_eq!((&known["kind"], &known["message_bytes_max"]), (&"sqs".into(), &(256 << 10).into()), "O107");
    ask(&format!("outbox retry {first} --yes")).refused("1 of them are stale");
    subject.relayed(Duration::from_secs(7_200)).await;
    assert!(ask(&format!("outbox retry {first} --dry-run")).ok().contains("1 would be sent"));
    ask(&format!("outbox skip {first} --yes")).refused("--because");
    let why = ["outbox", "skip", &first.to_string(), "--because", "paid by hand", "--yes"];
    assert!(idem(&why).ok().contains("1 skipped, and what waited behind nothing else may go"));
    assert_eq!(subject.next().await, [second.clone(), third.clone()], "they go at once");

    ask("outbox pause nowhere --reason deploy").refused("there is no destination \"nowhere\"");
    ask("outbox pause payments --reason their-deploy").ok();
    let request = LeaseRequest::new("a", Duration::from_secs(60));
    let lease = async || subject.outbox.lease(subject.payments, request).await.unwrap();
    assert_eq!(lease().await, Leased::Paused);
    assert!(ask("doctor").out.contains("payments is paused, and 2 events wait"));
    let listed = ask("outbox list --json").json();
    assert_eq!(listed["destinations"][0]["paused_because"], "their-deploy", "{listed}");
    assert!(ask(&format!("outbox show {second}")).ok().contains("their-deploy"));
    ask("outbox resume payments").ok();
    assert!(!ask("outbox list").ok().contains("their-deploy"), "it is over");
    assert_eq!(lease().await, Leased::Mine);

    o40_what_a_relay_may_have_in_hand_is_not_skipped(subject, idem, second, third).await;
}

/// O117: events that cannot be read are listed with the reason, beside the others.
#[tokio::test]
async fn o117_a_damaged_event_hides_no_other() {
    let fixture = Fixture::new().await;
    let subject = Subject::new(fixture.store.clone()).await;
    let next = subject.next().await;
    fixture.run("UPDATE outbox SET headers = '[1]' WHERE number = (SELECT min(number) FROM outbox)").await;
    let listed = fixture.idem("outbox list --json").json();
    let events = listed["events"].as_array().unwrap();
    assert_eq!(events.len(), 3, "{listed}");
    assert_eq!(events[0]["event"], next[0].to_string());
    assert!(events[0]["error"].as_str().unwrap().contains("headers"), "{listed}");
    assert!(events[1]["error"].is_null() && events[2]["error"].is_null(), "{listed}");
    fixture.idem_with(&["outbox", "skip", &next[0].to_string(), "--because", "damaged", "--yes"]).ok();
    fixture.drop().await;
}

/// O101: the receivers' time begins anew when a stale event is to go, and its copy may be with them all the same.
async fn o101_a_copy_of_a_stale_event_is_not_forgotten<S: Store>(
    subject: &Subject<S>,
    event: &EventName,
    ask: impl Fn(&str) -> Answer,
) {
    let shown = ask(&format!("outbox show {event} --json")).json();
    assert!(shown["event"][0]["first_sent_at"].is_string(), "{shown}");
    assert_eq!(shown["event"][0]["error"], serde_json::Value::Null, "it is stale no longer: {shown}");
    a_copy_may_have_been_sent(ask("outbox list --json"));
    let skip = ask(&format!("outbox skip {event} --because tried --dry-run")).ok();
    assert!(skip.contains("a copy of 1 may have been sent before"), "{skip}");
    // It fails before anything is sent, and waits for longer than its receivers remember the copy of before.
    let end = EventEnd::Failed { error: "too large".to_owned(), may_be_sent: false };
    let next = subject.outbox.next(subject.payments, 1, 1 << 20).await.unwrap();
    subject.outbox.settle(subject.payments, &[(&next[0], end)]).await.unwrap();
    subject.relayed(Duration::from_secs(3_600)).await;
    ask("outbox retry --failed payments --yes").refused("1 of them are stale");
    subject.relayed(RECEIVER_KEEPS).await;
    ask("outbox retry --failed payments --yes").ok();
}

/// O40: an event that may go is in the hands of the relay that has the destination, paused or not, until it lets go.
async fn o40_what_a_relay_may_have_in_hand_is_not_skipped<S: Store>(
    subject: &Subject<S>,
    idem: impl Fn(&[&str]) -> Answer,
    second: &EventName,
    third: &EventName,
) {
    let ask = |line: &str| idem(&line.split_whitespace().collect::<Vec<_>>());
    let why = ["outbox", "skip", &second.to_string(), "--because", "sent by hand", "--yes"];
    let on_its_way = "1 of them may be on their way at this moment, because a relay has payments";
    idem(&why).refused(on_its_way);
    ask("outbox pause payments --reason skipping").ok();
    idem(&why).refused(on_its_way);
    subject.outbox.release(subject.payments, "a").await.unwrap();
    let skipped = idem(&why).ok();
    assert!(skipped.contains("1 skipped") && !skipped.contains("a copy of"), "{skipped}");
    ask("outbox resume payments").ok();
    assert_eq!(subject.next().await, std::slice::from_ref(third));
    // A relay whose lease ran out may have sent the events that could go by then.
    let brief = LeaseRequest::new("a", Duration::from_millis(1));
    assert_eq!(subject.outbox.lease(subject.payments, brief).await.unwrap(), Leased::Mine);
    let told = || ask(&format!("outbox skip {third} --because it-was-sent --dry-run"));
    assert!((0..1_000).any(|_| told().status == 0), "its lease does not run out");
    assert!(told().ok().contains("1 would be skipped; a copy of 1 may have been sent before"));
    // One that is noted as under way is in its hands too; one that waits for its next try is not.
    let request = LeaseRequest::new("a", Duration::from_secs(60));
    assert_eq!(subject.outbox.lease(subject.payments, request).await.unwrap(), Leased::Mine);
    for (error, is_in_hand) in [(UNDER_WAY, true), ("refused", false)] {
        let next = subject.outbox.next(subject.payments, 1, 1 << 20).await.unwrap();
        let end = |after| EventEnd::Later { after, error: error.to_owned(), may_be_sent: true, counted: false };
        subject.outbox.settle(subject.payments, &[(&next[0], end(Duration::from_secs(600)))]).await.unwrap();
        match is_in_hand {
            true => {
                told().refused(on_its_way);
                // O75: nor is it let go with the lease, as of a relay that was killed.
                subject.outbox.release(subject.payments, "a").await.unwrap();
                told().refused(on_its_way);
                assert_eq!(subject.outbox.lease(subject.payments, request).await.unwrap(), Leased::Mine);
            }
            false => assert!(told().ok().contains("1 would be skipped")),
        }
        subject.outbox.settle(subject.payments, &[(&next[0], end(Duration::ZERO))]).await.unwrap();
    }
}

/// The trail's lines about it: actor, act, and the event.
fn trail([first, second]: [&EventName; 2]) -> Vec<String> {
    let event = format!("event {} for payments", first.number);
    [
        format!("read-event {event}"),
        format!("read-event-payload {event}"),
        format!("retry-event {event}"),
        format!("retry-stale-event {event}"),
        format!("read-event {event}"),
        format!("retry-event {event}"),
        format!("retry-event {event}"),
        format!("skip-event {event}: paid by hand"),
        "pause-outbox payments: their-deploy".to_owned(),
        format!("read-event event {} for payments", second.number),
        "resume-outbox payments".to_owned(),
        "pause-outbox payments: skipping".to_owned(),
        format!("skip-event event {} for payments: sent by hand", second.number),
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
    let [first, second, _] = &subject.next().await[..] else { panic!("three events") };
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
    let [first, second, _] = &subject.next().await[..] else { panic!("three events") };
    o30_events_are_seen_sent_and_skipped(&subject, |arguments| file.idem_with(arguments)).await;
    assert_eq!(file.texts(&TRAIL.replace("{audit}", "idem_audit")).await, trail([first, second]));
}

/// Whoever asked for it must notice that nothing was done, as where a relay was quicker.
#[tokio::test]
async fn what_skips_nothing_is_no_success() {
    let fixture = Fixture::new().await;
    let subject = Subject::new(fixture.store.clone()).await;
    let [first, ..] = &subject.next().await[..] else { panic!("three events") };
    // The statement finds nothing of what the look before it has found.
    fixture.run("DELETE FROM outbox_destinations").await;
    let why = ["outbox", "skip", &first.to_string(), "--because", "paid by hand", "--yes"];
    fixture.idem_with(&why).refused("nothing was skipped: they had gone meanwhile");
    fixture.drop().await;
}

/// O50: since the failover that the operator waited for, a lost event's number is another one's.
async fn o50_an_operator_names_an_event_by_its_number_and_its_key<S: Store>(
    subject: &Subject<S>,
    idem: impl Fn(&[&str]) -> Answer,
    run: impl AsyncFn(String),
    outbox: &str,
) {
    let [lost, new, _] = &subject.next().await[..] else { panic!("three events") };
    run(format!("DELETE FROM {outbox} WHERE number = {}", lost.number)).await;
    run(format!("UPDATE {outbox} SET number = {} WHERE number = {}", lost.number, new.number)).await;
    let new = &EventName { number: lost.number, key: new.key.clone() };
    let skip = |event: &EventName| idem(&["outbox", "skip", &event.to_string(), "--because", "paid by hand", "--yes"]);
    skip(lost).refused(&format!("there is no event {lost}"));
    idem(&["outbox", "show", &lost.to_string(), "--payload"]).refused(&format!("there is no event {lost}"));
    subject.fail(new, "the topic takes 1000 bytes").await;
    idem(&["outbox", "retry", &lost.to_string(), "--yes"]).refused(&format!("there is no event {lost}"));
    assert!(subject.next().await.is_empty(), "nothing was let go");
    assert!(skip(new).ok().contains("1 skipped"));
    assert_eq!(subject.next().await.len(), 1);
}

const SKIPPED: &str = "SELECT count(*) FROM {audit} WHERE action LIKE '%-event%' AND action <> 'skip-event'";

#[tokio::test]
async fn o50_on_postgres() {
    let fixture = Fixture::new().await;
    let subject = Subject::new(fixture.store.clone()).await;
    let idem = |arguments: &[&str]| fixture.idem_with(arguments);
    let run = async |statement: String| fixture.run(&statement).await;
    o50_an_operator_names_an_event_by_its_number_and_its_key(&subject, idem, run, "outbox").await;
    assert_eq!(fixture.texts(&SKIPPED.replace("count(*)", "count(*)::text").replace("{audit}", "audit")).await, ["0"]);
    fixture.drop().await;
}

#[tokio::test]
async fn o50_on_sqlite() {
    let file = crate::sqlite::File::new();
    file.idem("migrate up").ok();
    let subject = Subject::new(file.store().await).await;
    let idem = |arguments: &[&str]| file.idem_with(arguments);
    let run = async |statement: String| file.run(&statement).await;
    o50_an_operator_names_an_event_by_its_number_and_its_key(&subject, idem, run, "idem_outbox").await;
    let skipped = SKIPPED.replace("count(*)", "CAST(count(*) AS TEXT)").replace("{audit}", "idem_audit");
    assert_eq!(file.texts(&skipped).await, ["0"]);
}

/// O32: looks have passed a failed event by, and the command lets it go.
#[tokio::test]
async fn o32_an_event_that_an_operator_lets_go_is_found() {
    let fixture = Fixture::new().await;
    let subject = Subject::new(fixture.store.clone()).await;
    let first = subject.next().await.remove(0);
    subject.fail(&first, "the topic takes 1000 bytes").await;
    fixture.run("UPDATE outbox_destinations SET pending_from = (SELECT last_value FROM outbox_numbers)").await;
    assert!(fixture.idem(&format!("outbox retry {first} --yes")).ok().contains("1 may go"));
    assert_eq!(subject.next().await[0], first);
    fixture.drop().await;
}

/// Forwards each message under its own key.
struct Forwarding;

impl<S: Store> Handler<S> for Forwarding {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        tx.publish(message, Event::to("payments").same_key().body(PAYLOAD))?;
        Ok(())
    }
}

/// O52, O53: a reader that forgets its events' keys too soon, and two writers whose events have one key.
async fn o52_o53_a_chain_that_runs_twice_or_not_at_all_is_found<S: Store>(
    subject: &Subject<S>,
    doctor: impl Fn() -> Answer,
    run: impl AsyncFn(String),
    [consumers, day]: [&str; 2],
) {
    subject.relayed(Duration::from_secs(7 * 86_400)).await;
    let forgets = "orders keeps its records for 24 h, and reads payments, whose events may come again for 7 days";
    run(format!("UPDATE {consumers} SET bound_to = 'kafka:cluster/payments/group', retention = {day}")).await;
    let told = doctor();
    assert!(told.status == 1 && told.out.contains(forgets), "{told:?}");
    assert!(!told.out.contains("under the same keys"), "{told:?}");
    run(format!("UPDATE {consumers} SET retention = 7 * {day}")).await;
    assert!(!doctor().out.contains("and reads payments"));
    run(format!("UPDATE {consumers} SET bound_to = 'kafka:cluster/purchases/group', retention = {day}")).await;
    assert!(!doctor().out.contains("and reads payments"));

    for name in ["billing", "ledger"] {
        let builder = DedupConsumer::builder(Arc::clone(&subject.store), name).publish_to(["payments"]);
        let consumer = builder.handler(Forwarding).effects(Effects::InTransaction).build().unwrap();
        let keys: &[&str] = if name == "billing" { &["a", "b", "c"] } else { &["b", "c", "d"] };
        consumer.decisions(keys.iter().map(|key| message(key)).collect()).await.unwrap();
    }
    let told = doctor();
    let collide = "billing, ledger send events under the same keys to payments, 2 of those that wait";
    assert!(told.out.contains(collide), "{told:?}");
}

#[tokio::test]
async fn o52_o53_on_postgres() {
    let fixture = Fixture::new().await;
    let subject = Subject::new(fixture.store.clone()).await;
    let run = async |statement: String| fixture.run(&statement).await;
    let names = ["consumers", "interval '1 day'"];
    o52_o53_a_chain_that_runs_twice_or_not_at_all_is_found(&subject, || fixture.idem("doctor"), run, names).await;
    fixture.drop().await;
}

#[tokio::test]
async fn o52_o53_on_sqlite() {
    let file = crate::sqlite::File::new();
    file.idem("migrate up").ok();
    let subject = Subject::new(file.store().await).await;
    let run = async |statement: String| file.run(&statement).await;
    let names = ["idem_consumers", "86400000000"];
    o52_o53_a_chain_that_runs_twice_or_not_at_all_is_found(&subject, || file.idem("doctor"), run, names).await;
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
