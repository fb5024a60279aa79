//! D38 and J73: settlements are at the broker before a message runs that may kill the process, and before its attempts begin anew.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Source, SourceError,
    config::RetryPolicy,
    source::{Attached, Received, Settle, Settled, SourceCapabilities},
    worker::{IncidentKind, WaitCause, WorkerBuilder},
};
use idem_testkit::{MemoryStore, memory::MemorySource};

use super::{
    attempts::next_attempt,
    fixture::{Fixture, Running, within},
};

/// A source whose settlements reach the broker later, if at all.
struct Late {
    inner: MemorySource,
    broker: Arc<LateBroker>,
}

#[derive(Default)]
struct LateBroker {
    takes: AtomicBool,
    /// A message before all others is not finished.
    holds_back: AtomicBool,
    asked: AtomicU32,
}

impl Source for Late {
    type Handle = <MemorySource as Source>::Handle;

    fn capabilities(&self) -> SourceCapabilities {
        self.inner.capabilities()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.inner.attach().await
    }

    async fn receive(&self, max: usize) -> Result<Received<Self::Handle>, SourceError> {
        self.inner.receive(max).await
    }

    async fn settle(&self, settlements: Vec<(Self::Handle, Settle)>) -> Vec<Settled> {
        self.inner.settle(settlements).await
    }

    async fn flush(&self) -> Result<(), SourceError> {
        self.broker.asked.fetch_add(1, Ordering::SeqCst);
        if self.broker.takes.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(SourceError::unavailable("committing positions", std::io::Error::other("the group is busy")))
    }

    fn is_held_back(&self, _handle: &Self::Handle) -> bool {
        self.broker.holds_back.load(Ordering::SeqCst)
    }

    async fn is_idle(&self) -> bool {
        self.inner.is_idle().await
    }

    fn stop(&self) {
        self.inner.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.inner.close(deadline).await;
    }
}

/// A message that becomes a dead letter, and behind it one that runs alone, as everything does after a start.
fn fixture() -> (Fixture, Arc<LateBroker>, WorkerBuilder<MemoryStore, Late>) {
    let (fixture, broker) = (Fixture::new(), Arc::new(LateBroker::default()));
    fixture.publish("first", "permanent");
    fixture.publish("second", "ok");
    let source = Late { inner: fixture.queue.source(), broker: Arc::clone(&broker) };
    let worker = fixture.worker_on(source, fixture.consumer().build().unwrap());
    (fixture, broker, worker)
}

fn waits_for_broker(running: &Running) -> bool {
    running.view.waits().iter().any(|wait| (wait.cause, wait.messages) == (WaitCause::Broker, 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn d38_a_message_that_may_kill_waits_until_the_broker_has_what_is_settled() {
    let (fixture, broker, worker) = fixture();
    let running = Running::new(worker);
    let asked = || broker.asked.load(Ordering::SeqCst);
    running.until("the second to wait", |running| waits_for_broker(running) && asked() > 3).await;
    assert_eq!(fixture.script.runs(), ["first"]);
    let incidents = running.view.recent(IncidentKind::Error);
    assert!(incidents.iter().any(|incident| incident.text.contains("the group is busy")), "{incidents:?}");
    broker.takes.store(true, Ordering::SeqCst);
    within("the second", fixture.queue.drained()).await;
    let before = asked();
    fixture.publish("third", "ok");
    within("the third", fixture.queue.drained()).await;
    assert_eq!(asked(), before, "no dead letter was settled since");
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (2, 1));
    assert_eq!(fixture.script.runs(), ["first", "second", "third"]);
}

/// While it waits it has not run: another message may end the process meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn d38_a_message_that_waits_for_the_broker_is_not_charged() {
    let (fixture, _, worker) = fixture();
    let minute = Duration::from_secs(60);
    let running = Running::new(worker.retry(RetryPolicy::new(3, minute, minute)));
    running.until("the second to wait", waits_for_broker).await;
    running.drop_run().await;
    assert_eq!(next_attempt(&fixture, "second", "ok").await, 1);
}

/// A broker that takes nothing for as long as a message may wait does not stop it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn d38_the_wait_for_the_broker_has_a_bound() {
    let (fixture, broker, worker) = fixture();
    let running = Running::new(worker.database_wait_max(Duration::from_millis(50)));
    within("the second", fixture.queue.drained()).await;
    assert_eq!((running.stop().await.unwrap().processed, broker.takes.load(Ordering::SeqCst)), (1, false));
}

/// A message that has ended its process in each of its attempts, behind another that is not finished.
async fn held_back() -> (Fixture, Arc<LateBroker>, WorkerBuilder<MemoryStore, Late>) {
    let (fixture, broker) = (Fixture::new(), Arc::new(LateBroker::default()));
    fixture.publish("kills", "ok");
    for attempt in 1..=3 {
        assert_eq!(next_attempt(&fixture, "kills", "ok").await, attempt);
    }
    broker.takes.store(true, Ordering::SeqCst);
    broker.holds_back.store(true, Ordering::SeqCst);
    let source = Late { inner: fixture.queue.source(), broker: Arc::clone(&broker) };
    let worker = fixture.worker_on(source, fixture.consumer().build().unwrap());
    (fixture, broker, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn j73_what_has_no_attempt_left_is_set_aside_once_the_broker_can_pass_it() {
    let (fixture, broker, worker) = held_back().await;
    let running = Running::new(worker);
    running.until("it to wait", waits_for_broker).await;
    fixture.publish("other", "ok");
    running.until("the other", |_| fixture.script.runs() == ["other"]).await;
    assert!(waits_for_broker(&running) && fixture.dead_letters().await.is_empty());
    broker.holds_back.store(false, Ordering::SeqCst);
    within("its dead letter", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (1, 1));
    assert_eq!((fixture.script.runs(), next_attempt(&fixture, "kills", "ok").await), (vec!["other".to_owned()], 1));
}

/// Another message ends the process meanwhile: this one has no attempt more than it had.
#[tokio::test(flavor = "multi_thread")]
async fn j73_what_waits_without_an_attempt_left_has_none_in_the_next_process() {
    let (fixture, _, worker) = held_back().await;
    let running = Running::new(worker);
    running.until("it to wait", waits_for_broker).await;
    running.drop_run().await;
    assert!(next_attempt(&fixture, "kills", "ok").await > 3);
}

/// A message that is never finished holds back nothing for ever.
#[tokio::test(flavor = "multi_thread")]
async fn j73_the_wait_for_those_before_it_has_a_bound() {
    let (fixture, broker, worker) = held_back().await;
    let running = Running::new(worker.database_wait_max(Duration::from_millis(50)));
    within("its dead letter", fixture.queue.drained()).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.dead_lettered, broker.holds_back.load(Ordering::SeqCst)), (1, true));
    assert!(fixture.script.runs().is_empty());
}
