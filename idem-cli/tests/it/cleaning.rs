//! Cleanup that is stopped in the middle of a cycle, by itself and in a worker.

use std::{process::Stdio, time::Duration};

use idem_core::{CancellationToken, Worker, cleanup::CleanupSettings};
use idem_testkit::memory::{Broker, QueueOptions};
use sqlx::{Connection as _, PgConnection};
use tokio::{process::Command, time::timeout};

use crate::fixture::{Fixture, PATIENCE};

/// Ten records that have expired. Whoever removes them in steps of four waits in the second one, while this connection is open.
async fn ten_expired(fixture: &Fixture) -> PgConnection {
    fixture.deliver(&["o-0", "o-1", "o-2", "o-3", "o-4", "o-5", "o-6", "o-7", "o-8", "o-9"]).await;
    fixture
        .run("UPDATE processed_messages SET expires_at = now() - interval '1 h' + right(idempotency_key, 1)::int * interval '1 s'")
        .await;
    let mut holder = fixture.admin.acquire().await.unwrap().detach();
    let hold = "BEGIN; SELECT FROM processed_messages WHERE idempotency_key = 'o-5' FOR UPDATE";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    holder
}

async fn four_are_gone(fixture: &Fixture) {
    fixture.until("SELECT count(*)::text FROM processed_messages", "6").await;
}

async fn lines(fixture: &Fixture) -> Vec<String> {
    fixture.texts("SELECT action || ': ' || details FROM audit WHERE action LIKE 'cleanup%' ORDER BY id").await
}

/// C15: a SIGTERM in the middle of a cycle leaves nothing out of the trail that was removed before, and the next run does the rest.
#[tokio::test]
async fn c15_a_cleanup_that_is_stopped_writes_down_what_it_removed() {
    let fixture = Fixture::new().await;
    let holder = ten_expired(&fixture).await;
    let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
    idem.env_clear().envs([("DATABASE_URL", &fixture.url), ("IDEM_SCHEMA", &fixture.schema)]);
    idem.args(["cleanup", "--rows-max", "4"]).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let idem = idem.spawn().unwrap();
    four_are_gone(&fixture).await;
    let stop = format!("kill -TERM {}", idem.id().unwrap());
    assert!(Command::new("sh").args(["-c", &stop]).status().await.unwrap().success());
    let ended = timeout(PATIENCE, idem.wait_with_output()).await.unwrap().unwrap();
    holder.close().await.unwrap();
    let told = lines(&fixture).await;
    assert!(told.len() == 1 && told[0].starts_with("cleanup-part: 4 processed_messages"), "{told:?}");
    assert!(ended.status.success(), "{ended:?}");
    let out = String::from_utf8(ended.stdout).unwrap();
    assert!(out.contains("It was stopped: run it again for the rest."), "{out}");
    fixture.idem("cleanup").ok();
    assert!(lines(&fixture).await[1].starts_with("cleanup: 6 processed_messages"));
    fixture.drop().await;
}

/// C15: the same in a worker that has nothing else to wait for.
#[tokio::test]
async fn c15_a_worker_that_is_stopped_writes_down_what_its_cleanup_removed() {
    let fixture = Fixture::new().await;
    let holder = ten_expired(&fixture).await;
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    let settings = CleanupSettings::default().every(Duration::from_secs(1)).rows_max(4);
    let worker = Worker::builder(fixture.consumer(), queue.source()).cleanup(Some(settings)).build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    four_are_gone(&fixture).await;
    stop.cancel();
    timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    holder.close().await.unwrap();
    let told = lines(&fixture).await;
    assert!(told.len() == 1 && told[0].starts_with("cleanup-part: 4 processed_messages"), "{told:?}");
    fixture.drop().await;
}
