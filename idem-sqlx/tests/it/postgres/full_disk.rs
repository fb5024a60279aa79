//! A disk that is really full: all tables lie in a tablespace on a small one.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use idem_core::{
    CancellationToken, Message, Worker,
    config::RetryPolicy,
    worker::{IncidentKind, WaitCause},
};
use idem_testkit::memory::{Broker, QueueOptions};

use super::{
    consumers::{Write, builder, keys},
    fixture::{Fixture, PATIENCE},
    scratch::Scratch,
};

/// A cluster whose database has all its tables on a disk of this size, and that disk.
async fn small(size: &str) -> (Scratch, Fixture, PathBuf) {
    let scratch = Scratch::new("j6").await;
    let disk = scratch.disk(size).await;
    let before = Fixture::empty_on(&scratch.url).await;
    before.run(format!("CREATE TABLESPACE small LOCATION '{}'", disk.display())).await;
    before.run("ALTER DATABASE idem SET default_tablespace = small").await;
    before.drop().await;
    let fixture = Fixture::on(&scratch.url).await;
    fixture.run("ALTER TABLE effects ALTER payload SET STORAGE EXTERNAL").await;
    (scratch, fixture, disk)
}

/// Fills the disk to the last byte, until what is answered is removed.
fn fill(disk: &Path) -> PathBuf {
    let ballast = disk.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    ballast
}

/// So much that no page which is there already has room for it.
fn large(key: &str) -> Message {
    Message::new(vec![b'x'; 20_000]).with_header("idempotencykey", key.to_owned())
}

/// J6: while the disk is full a worker waits, says for what, charges no attempts and sets nothing aside. Once there is
/// room it goes on by itself, and each effect is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j6_a_worker_waits_until_a_full_disk_has_room() {
    let (scratch, fixture, disk) = small("16m").await;
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    let keys = keys(14);
    let (first, rest) = keys.split_at(10);
    let consumer = builder(fixture.another(), Write).lanes(2).build().unwrap();
    // The second attempt would be the last.
    let mut twice = RetryPolicy::default();
    twice.attempts = 2;
    let worker = Worker::builder(consumer, queue.source()).cleanup(None).retry(twice).build().unwrap();
    let (view, stop) = (worker.view(), CancellationToken::new());
    first.iter().for_each(|key| drop(queue.publish(large(key)).unwrap()));
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    tokio::time::timeout(PATIENCE, queue.drained()).await.unwrap();

    let ballast = fill(&disk);
    rest.iter().for_each(|key| drop(queue.publish(large(key)).unwrap()));
    // More transactions than all messages have attempts are rolled back.
    let rolled_back = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let before = fixture.text(rolled_back).await;
    fixture.until(&format!("SELECT ({rolled_back}) > {before} + 8")).await;
    let waits = view.waits();
    assert!(waits.iter().any(|wait| wait.cause == WaitCause::Database) || view.pause().is_some(), "{waits:?}");
    let told = view.recent(IncidentKind::Error);
    assert!(
        told.iter().any(|incident| incident.text.contains("SQLSTATE 53100, the database's disk is full")),
        "{told:?}"
    );
    assert_eq!(fixture.effects().await, first);
    assert_eq!((queue.is_drained(), fixture.recorded().await.as_slice()), (false, first));

    fs::remove_file(ballast).unwrap();
    tokio::time::timeout(PATIENCE, queue.drained()).await.unwrap();
    stop.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.dead_lettered), (14, 0));
    assert_eq!(summary.retries, 0, "no run on the full disk counts");
    assert_eq!(fixture.effects().await, keys, "each effect once");
    assert_eq!(fixture.recorded().await, keys);
    assert_eq!(fixture.text("SELECT count(*) FROM dead_letters").await, "0");
    assert_eq!(fixture.text("SELECT max(attempts) FROM message_attempts").await, "0", "what went well leaves no count");
    assert_eq!(view.pause(), None);
    fixture.drop().await;
    scratch.down().await;
}
