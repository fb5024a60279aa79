//! The worker's page with a true broker and a true database behind it, in a browser. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use sqlx::query;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    database::{Database, until},
    looks::{Seen, look_at},
    purchase::Purchase,
    worker::Worker,
};

/// The messages that are sent: forty purchases, one of them twice, one with another amount under its key, and one without a
/// key. Forty are handled and two are set aside.
pub(crate) fn sent() -> Vec<String> {
    let again = [Purchase::number(1), Purchase { cents: 999, ..Purchase::number(2) }];
    (1..=40).map(Purchase::number).chain(again).map(|purchase| purchase.json()).chain(["{}".to_owned()]).collect()
}

/// Waits until the worker has done with what was [`sent`], and pauses it.
pub(crate) async fn until_paused(database: &Database, worker: &Worker) {
    database.until_purchases(40).await;
    until("the dead letters", async || database.dead_letters().await.values().sum::<i64>() == 2).await;
    let text = r#"INSERT INTO idem.controls (consumer, state, "by", reason)
        SELECT id, 'paused', 'ada', 'the ledger is read only' FROM idem.consumers"#;
    query(text).execute(database.pool()).await.expect("a control");
    until("the pause", async || worker.logged().contains("the consumer's control changed")).await;
}

/// Where a worker with `--admin 0` serves its page.
pub(crate) fn address(worker: &Worker) -> Option<String> {
    let log = worker.logged();
    let line = log.lines().find(|line| line.contains("serving /metrics"))?;
    Some(line.split_once("address=")?.1.trim().trim_matches('"').to_owned())
}

/// The page as it is served.
pub(crate) async fn served(worker: &Worker) -> Option<String> {
    fetched(worker, "/").await
}

/// J111: waits until the metrics have this many messages behind in this part of the queue or topic.
pub(crate) async fn until_behind(worker: &Worker, part: &str, messages: u64) {
    let is_line = |line: &str| {
        line.starts_with("idem_behind_messages{")
            && line.contains(&format!("part=\"{part}\""))
            && line.ends_with(&format!("}} {messages}"))
    };
    until("the messages behind among the metrics", async || {
        fetched(worker, "/metrics").await.is_some_and(|metrics| metrics.lines().any(is_line))
    })
    .await;
}

pub(crate) async fn fetched(worker: &Worker, path: &str) -> Option<String> {
    let mut connection = TcpStream::connect(address(worker)?).await.ok()?;
    connection.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Looks at the page of a worker that is paused, in all ways, and at what it says on each broker alike.
pub(crate) async fn shows(database: &Database, worker: &Worker, place: &[&str], picture: Option<&str>) -> Seen {
    // The worker reads the tables every few seconds.
    let letters = async || served(worker).await.is_some_and(|page| page.contains("2 open dead letters"));
    until("the dead letters on the page", letters).await;
    let folder = std::env::temp_dir().join(&database.name);
    std::fs::create_dir(&folder).expect("a folder");
    let page = look_at(&folder, &format!("http://{}/", address(worker).expect("its address")), picture).await;
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    let name = &database.name;
    let [pause, letters] = &page.matters()[..] else { panic!("{:?}", page.matters()) };
    // Either may be the first: dead letters are urgent for a minute, and a pause is intended.
    let (pause, letters) = if pause.contains("paused") { (pause, letters) } else { (letters, pause) };
    assert!(pause.starts_with("paused by ada: the ledger is read only\nfor "), "{pause}");
    assert!(pause.contains(&format!("\nidem consumers resume {name}\n")), "{pause}");
    assert!(letters.starts_with("2 open dead letters, 1 of a conflict\n"), "{letters}");
    assert!(letters.contains(&format!("\nidem dead-letters groups --consumer {name}\n")), "{letters}");
    for shown in place.iter().copied().chain([
        "paused\n",
        "database up · breaker closed",
        "missing-key: the message has no idempotency key",
        "conflict: the key was recorded at run 1 with another payload",
        "key purchase-2 · from ",
        "idem dead-letters show 1",
        " · run 1 · running for ",
        // The program's name for itself.
        concat!("ledger ", env!("CARGO_PKG_VERSION"), " · "),
    ]) {
        page.says(shown);
    }
    let outcomes = [("processed", "40"), ("duplicates skipped", "1"), ("conflicts", "1"), ("dead letters", "2")];
    for (outcome, wanted) in outcomes {
        let line = page.text().lines().find(|line| line.starts_with(&format!("{outcome}\t")));
        let cells: Vec<_> = line.unwrap_or_default().split('\t').collect();
        assert!(matches!(cells[..], [_, rate, count] if rate != "0" && count == wanted), "{outcome}: {cells:?}");
    }
    page
}
