//! How a worker stops.

use std::time::Duration;

use idem_core::{
    Attached, CancellationToken, Received, Settle, Settled, Source, SourceCapabilities, SourceError, Worker,
    WorkerError,
};
use idem_testkit::memory::MemorySource;

use super::scene::{Running, Scene, within};

/// J1: a stop finishes what is running, gives the rest back, and nothing is lost or doubled.
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_stop_finishes_what_runs_and_gives_the_rest_back() {
    let scene = Scene::new();
    let first = scene.publish("first", "block");
    (0..100).for_each(|n| drop(scene.publish(&format!("k{n}"), "ok")));
    let running = Running::new(scene.worker());
    scene.script.blocked().await;
    running.cancel();
    scene.script.unblock();
    running.ended().await.unwrap();
    assert_eq!(scene.queue.history(&first).acknowledged, 1, "what was running is finished");
    let stats = scene.queue.stats();
    assert_eq!((stats.in_flight, stats.ready + stats.delayed), (0, 100), "the rest went back");
    // The next worker takes it up.
    let running = Running::new(scene.worker());
    within("draining the queue", scene.queue.drained()).await;
    running.stop().await.unwrap();
    assert_eq!(scene.counted().len(), 101);
    assert!(scene.counted().values().all(|count| *count == 1));
}

/// J1: repeated stops under load.
#[tokio::test(flavor = "multi_thread")]
async fn j1_many_stops_under_load_lose_nothing() {
    let scene = Scene::new();
    (0..2_000).for_each(|n| drop(scene.publish(&format!("k{n}"), if n % 100 == 0 { "fail once" } else { "ok" })));
    while !scene.queue.is_drained() {
        let running = Running::new(scene.worker().batch(10));
        let before = running.view.summary().processed;
        running
            .until("some progress", |running| {
                running.view.summary().processed > before + 50 || scene.queue.is_drained()
            })
            .await;
        running.stop().await.unwrap();
    }
    assert_eq!(scene.counted().len(), 2_000);
    assert!(scene.counted().values().all(|count| *count == 1));
}

/// A handler that outlives the drain deadline: the worker says so, and its message comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_deadline_that_passes_is_reported() {
    let scene = Scene::new();
    scene.publish("1", "block");
    let running = Running::new(scene.worker().drain(Duration::from_millis(20)));
    scene.script.blocked().await;
    let error = running.stop().await.unwrap_err();
    assert!(matches!(error, WorkerError::DrainDeadline { in_flight: 1, .. }), "{error:?}");
}

/// The run ends by itself once everything is settled.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_until_idle_ends_when_everything_is_settled() {
    let scene = Scene::new();
    (0..50).for_each(|n| drop(scene.publish(&format!("k{n}"), "ok")));
    let summary = Running::new(scene.worker().until_idle(Duration::from_millis(20))).ended().await.unwrap();
    assert_eq!(summary.processed, 50);
    assert!(scene.queue.is_drained());
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
    let scene = Scene::new();
    scene.publish("1", "ok");
    let consumer = scene.consumer().build().unwrap();
    let worker = Worker::builder(consumer, Broken(scene.queue.source())).build().unwrap();
    let ended = within("the worker's end", worker.run(CancellationToken::new())).await;
    assert!(matches!(ended, Err(WorkerError::TaskDied { task: "settler" })), "{ended:?}");
    assert_eq!(scene.counted(), [("1".to_owned(), 1)].into());
}
