//! Waiting messages are visible, and one message's failure makes no other wait.

use std::time::{Duration, SystemTime};

use idem_core::{
    ConsumerName, ErrorClass, Store as _, Tenant,
    config::{OlderThanRetention, OnConflict, RetryPolicy},
    consumer::Pause,
    dead_letter::Reason,
    store::{Bookkeeping as _, ControlState},
    worker::{IncidentKind, WaitCause, WorkerBuilder},
};
use idem_testkit::{Fault, MemoryStore, Operation, memory::MemorySource};

use super::fixture::{Fixture, Running, drain, message, within};

/// D22: a message that no handler could see does not count for the breaker, and has an alarm of its own.
#[tokio::test(flavor = "multi_thread")]
async fn d22_junk_does_not_open_the_breaker() {
    let fixture = Fixture::new();
    for _ in 0..60 {
        fixture.queue.publish(idem_core::Message::new("x")).unwrap();
    }
    let running = Running::new(fixture.worker());
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!(running.view.pause(), None);
    let told: Vec<String> = running.view.recent(IncidentKind::Error).into_iter().map(|told| told.text).collect();
    assert!(told.iter().any(|text| text.contains("could not be given to any handler")), "{told:?}");
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.dead_lettered, 60);
}

/// D23: while the breaker is open, what failed for good is kept and does not run again; once it closes, it is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn d23_an_open_breaker_runs_no_permanent_failure_again() {
    let fixture = Fixture::new();
    let given_back = runs_no_permanent_failure_again(&fixture, fixture.worker()).await;
    assert_eq!(given_back, 0);
}

/// D43: nor where messages that were not begun go back meanwhile to a broker that counts held ones: a message that has failed
/// for good stays, and keeps its reason, even with one attempt.
#[tokio::test(flavor = "multi_thread")]
async fn d43_what_failed_for_good_is_not_given_back() {
    let fixture = Fixture::new();
    let retry = RetryPolicy::new(1, Duration::from_millis(1), Duration::from_millis(5));
    let worker = fixture.worker().retry(retry).in_flight(150).give_back_after(Duration::from_millis(200));
    let given_back = runs_no_permanent_failure_again(&fixture, worker).await;
    assert!(given_back > 0, "nothing went back, so nothing was seen");
}

/// Thirty that fail for good, and a good one. Answers how many were given back.
async fn runs_no_permanent_failure_again(fixture: &Fixture, worker: WorkerBuilder<MemoryStore, MemorySource>) -> u64 {
    for number in 0..30 {
        fixture.publish(&format!("bad{number}"), "permanent");
    }
    let running = Running::new(worker);
    let kept = |running: &Running| {
        let waits = running.view.waits();
        waits.iter().find(|wait| wait.cause == WaitCause::Breaker).map_or(0, |wait| wait.messages)
    };
    running.until("the last of them to be kept", |running| kept(running) == 4).await;
    assert_eq!(running.view.pause(), Some(Pause::Breaker));
    fixture.publish("good", "ok");
    within("draining the queue", fixture.queue.drained()).await;
    assert_eq!((running.view.pause(), kept(&running)), (None, 0));
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (1, 30));
    for number in 0..30 {
        let key = format!("bad{number}");
        assert_eq!(fixture.script.runs_of(&key), 1, "{key}");
    }
    let letters = fixture.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.reason == Reason::Permanent), "{letters:?}");
    summary.released
}

/// D27: the wait that a handler asks for stands in place of the back-off, and is seen while it lasts.
#[tokio::test(flavor = "multi_thread")]
async fn d27_a_handler_says_when_it_wants_the_next_attempt() {
    let fixture = Fixture::new();
    fixture.publish("1", "in an hour");
    fixture.publish("2", "ok");
    let running = Running::new(fixture.worker());
    running
        .until("the good one, and the wait of the other", |running| {
            running.view.summary().processed == 1
                && running.view.waits().iter().any(|wait| (wait.cause, wait.messages) == (WaitCause::Retry, 1))
        })
        .await;
    // More messages pass, which the back-offs of a few milliseconds would not outlast.
    for number in 3..300 {
        fixture.publish(&number.to_string(), "ok");
    }
    running.until("the others", |running| running.view.summary().processed == 298).await;
    assert_eq!(fixture.script.runs_of("1"), 1);
    running.stop().await.unwrap();
}

/// J17: a halt is the consumer's, whichever tenant's message it met.
#[tokio::test(flavor = "multi_thread")]
async fn j17_a_halt_halts_every_tenant() {
    let fixture = Fixture::new();
    let tenant =
        |message: &idem_core::Message| message.headers().text("tenant").and_then(|tenant| Tenant::new(tenant).ok());
    let of = |tenant: &str, payload: &str| message("1", payload).with_header("tenant", tenant.to_owned());
    let consumer = || fixture.consumer().tenant_from(tenant).build().unwrap();
    fixture.queue.publish(of("acme", "ok")).unwrap();
    drain(&fixture, fixture.worker_of(consumer())).await;
    fixture.queue.publish(of("acme", "another")).unwrap();
    let running = Running::new(fixture.worker_of(consumer()).on_conflict(OnConflict::Halt));
    running
        .until("the halt", |running| matches!(running.view.pause(), Some(Pause::Control(ControlState::Halted, _))))
        .await;
    // The worker ends what it does before it has anything recorded.
    let books = fixture.store.bookkeeping();
    let whole = books.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    within("the halt of the whole consumer on record", async {
        while books.control(whole).await.unwrap().state != ControlState::Halted {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    running.stop().await.unwrap();
}

/// J17: a halt over a message that is too old is the consumer's too, and one that the database could not take yet is not ended
/// by the database's control: the message of the halt would run.
#[tokio::test(start_paused = true)]
async fn j17_a_halt_that_could_not_be_recorded_yet_holds() {
    let fixture = Fixture::new();
    let tenant =
        |message: &idem_core::Message| message.headers().text("tenant").and_then(|tenant| Tenant::new(tenant).ok());
    let of = |key: &str| message(key, "ok").with_header("tenant", "acme");
    let consumer = fixture.consumer().tenant_from(tenant).build().unwrap();
    let running = Running::new(fixture.worker_of(consumer).older_than_retention(OlderThanRetention::Halt));
    fixture.queue.publish(of("young")).unwrap();
    within("the young one", fixture.queue.drained()).await;
    (0..5).for_each(|_| fixture.store.inject(Operation::Bookkeeping, Fault::Error(ErrorClass::Transient)));
    fixture.queue.publish(of("old").with_sent_at(SystemTime::UNIX_EPOCH)).unwrap();
    // The clock is paused: this goes by once nothing else is left to do, so the controls were read many times.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.counted().into_keys().collect::<Vec<_>>(), ["young"]);
    assert!(matches!(running.view.pause(), Some(Pause::Control(ControlState::Halted, _))));
    let books = fixture.store.bookkeeping();
    let whole = books.scope(&ConsumerName::new("ledger").unwrap(), &Tenant::default()).await.unwrap();
    let control = books.control(whole).await.unwrap();
    assert_eq!(control.state, ControlState::Halted);
    assert!(control.reason.contains("older than the retention"), "{}", control.reason);
    running.stop().await.unwrap();
}
