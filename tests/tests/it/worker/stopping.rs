//! How a worker stops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use idem_core::{
    Handler, Message, Source, SourceError, Tx, Worker, handler_fn,
    source::{Attached, Received, Settle, Settled, SourceCapabilities},
    worker::WorkerError,
};
use idem_testkit::{MemoryStore, memory::MemorySource};
use tokio::sync::Semaphore;

use super::fixture::{Fixture, Running, drain, within};

/// J1: a stop finishes what is running, gives the rest back, and nothing is lost or doubled. On one thread, so that the worker
/// hears of the stop before its handler goes on.
#[tokio::test]
async fn j1_a_stop_finishes_what_runs_and_gives_the_rest_back() {
    let fixture = Fixture::new();
    let first = fixture.publish("first", "block");
    (0..100).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    let running = Running::new(fixture.worker());
    fixture.script.blocked().await;
    running.cancel();
    fixture.script.unblock();
    running.ended().await.unwrap();
    assert_eq!(fixture.queue.history(&first).acknowledged, 1, "what was running is finished");
    let stats = fixture.queue.stats();
    assert_eq!((stats.in_flight, stats.ready + stats.delayed), (0, 100), "the rest went back");
    // The next worker takes it up.
    let running = Running::new(fixture.worker());
    within("draining the queue", fixture.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(fixture.counted().len(), 101);
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// J1: repeated stops under load.
#[tokio::test(flavor = "multi_thread")]
async fn j1_many_stops_under_load_lose_nothing() {
    let fixture = Fixture::new();
    (0..2_000).for_each(|n| drop(fixture.publish(&format!("k{n}"), if n % 100 == 0 { "fail once" } else { "ok" })));
    while !fixture.queue.is_drained() {
        let running = Running::new(fixture.worker().batch(10));
        let before = running.view.summary().processed;
        running
            .until("some progress", |running| {
                running.view.summary().processed > before + 50 || fixture.queue.is_drained()
            })
            .await;
        running.stop().await.unwrap();
    }
    assert_eq!(fixture.counted().len(), 2_000);
    assert!(fixture.counted().values().all(|count| *count == 1));
}

/// A handler that outlives the drain deadline: the worker says so, and its message comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_deadline_that_passes_is_reported() {
    let fixture = Fixture::new();
    fixture.publish("1", "block");
    let running = Running::new(fixture.worker().drain(Duration::from_millis(20)));
    fixture.script.blocked().await;
    let error = running.stop().await.unwrap_err();
    assert!(matches!(error, WorkerError::DrainDeadline { in_flight: 1, .. }), "{error:?}");
}

/// Tells when it is dropped.
struct Told(Arc<Semaphore>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// Handles a message whose first run hangs, and signals its begin and its end.
fn hangs_once(runs: &Arc<AtomicUsize>, begun: &Arc<Semaphore>, ended: &Arc<Semaphore>) -> impl Handler<MemoryStore> {
    let (runs, begun, ended) = (Arc::clone(runs), Arc::clone(begun), Arc::clone(ended));
    handler_fn(async move |message: &Message, tx: &mut Tx<'_, MemoryStore>| {
        let _told = Told(Arc::clone(&ended));
        let key = message.key().map(ToString::to_string).unwrap_or_default();
        tx.connection().append("effects", &key, "written").await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            begun.add_permits(1);
            std::future::pending::<()>().await;
        }
        Ok(())
    })
}

/// G46: a call of `run` that is dropped leaves no task behind: running work ends without a commit, nothing is acknowledged, and
/// the next worker handles everything once.
#[tokio::test(flavor = "multi_thread")]
async fn g46_a_dropped_run_ends_its_tasks_and_acknowledges_nothing() {
    let fixture = Fixture::new();
    let (runs, begun, ended) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let origins = ["1", "2", "3"].map(|key| fixture.publish(key, "ok"));
    let worker = || {
        let consumer = fixture.consumer().handler(hangs_once(&runs, &begun, &ended)).build().unwrap();
        fixture.worker_of(consumer).batch(1)
    };
    let running = Running::new(worker());
    within("the first run", begun.acquire()).await.unwrap().forget();
    running.drop_run().await;
    within("the end of the handler", ended.acquire()).await.unwrap().forget();
    assert_eq!(fixture.effects(), []);
    assert!(origins.iter().all(|origin| fixture.queue.history(origin).acknowledged == 0));
    drain(&fixture, worker()).await;
    assert_eq!(fixture.counted(), ["1", "2", "3"].map(|key| (key.to_owned(), 1)).into());
    assert_eq!(runs.load(Ordering::Relaxed), 4, "nothing of the first worker ran on");
}

/// G46: work past the drain deadline does not go on behind the caller's back: it has ended when the call does. On one thread,
/// so that nothing else runs between the two.
#[tokio::test]
async fn g46_what_passed_the_drain_deadline_does_not_go_on() {
    let fixture = Fixture::new();
    let (runs, begun, ended) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let origin = fixture.publish("1", "ok");
    let consumer = fixture.consumer().handler(hangs_once(&runs, &begun, &ended)).build().unwrap();
    let worker = fixture.worker_of(consumer).drain(Duration::from_millis(20)).build().unwrap();
    let stop = async { begun.acquire().await.unwrap().forget() };
    let error = within("the run", worker.run(stop)).await.unwrap_err();
    assert_eq!(ended.available_permits(), 1, "the handler has ended");
    assert!(matches!(error, WorkerError::DrainDeadline { in_flight: 1, .. }), "{error:?}");
    assert_eq!((fixture.effects(), fixture.queue.history(&origin).acknowledged), (vec![], 0));
}

/// The run ends by itself once everything is settled.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_until_idle_ends_when_everything_is_settled() {
    let fixture = Fixture::new();
    (0..50).for_each(|n| drop(fixture.publish(&format!("k{n}"), "ok")));
    let summary = Running::new(fixture.worker().until_idle(Duration::from_millis(20))).ended().await.unwrap();
    assert_eq!(summary.processed, 50);
    assert!(fixture.queue.is_drained());
}

/// Breaks in the settler's hands.
struct Broken(MemorySource);

impl Source for Broken {
    type Handle = <MemorySource as Source>::Handle;

    fn capabilities(&self) -> SourceCapabilities {
        self.0.capabilities()
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.0.attach().await
    }

    async fn receive(&self, max: usize) -> Result<Received<Self::Handle>, SourceError> {
        self.0.receive(max).await
    }

    async fn settle(&self, _: Vec<(Self::Handle, Settle)>) -> Vec<Settled> {
        panic!("the source breaks, as it should in this test")
    }

    async fn is_idle(&self) -> bool {
        self.0.is_idle().await
    }

    fn stop(&self) {
        self.0.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.0.close(deadline).await;
    }
}

/// J11: a task of the worker that dies stops the worker, instead of leaving it standing in silence.
#[tokio::test(flavor = "multi_thread")]
async fn j11_a_task_that_dies_stops_the_worker() {
    let fixture = Fixture::new();
    fixture.publish("1", "ok");
    let consumer = fixture.consumer().build().unwrap();
    let worker = Worker::builder(consumer, Broken(fixture.queue.source())).build().unwrap();
    let ended = within("the worker's end", worker.run(std::future::pending())).await;
    assert!(matches!(ended, Err(WorkerError::TaskDied { task: "settler" })), "{ended:?}");
    assert_eq!(fixture.counted(), [("1".to_owned(), 1)].into());
}
