//! What commands that take long say meanwhile, where no terminal shows a bar.

use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::fixture::{Fixture, PATIENCE};

/// A transaction that holds what this locks.
async fn holder(fixture: &Fixture, locks: &str) -> PgConnection {
    let mut holder = fixture.admin.acquire().await.unwrap().detach();
    sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {locks}"))).execute(&mut holder).await.unwrap();
    holder
}

/// Runs the command until it has said its first line, then lets it have what it waits for. Answers the line, and its report.
async fn said_meanwhile(fixture: &Fixture, arguments: &[&str], holder: PgConnection) -> (String, String) {
    let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
    idem.env_clear().envs([("DATABASE_URL", &fixture.url), ("IDEM_SCHEMA", &fixture.schema)]).args(arguments);
    idem.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut idem = idem.spawn().unwrap();
    let mut lines = BufReader::new(idem.stderr.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it ended without a line");
    holder.close().await.unwrap();
    let mut report = String::new();
    timeout(PATIENCE, idem.stdout.take().unwrap().read_to_string(&mut report)).await.unwrap().unwrap();
    assert!(idem.wait().await.unwrap().success(), "{line}\n{report}");
    (line, report)
}

#[tokio::test]
async fn a_cleanup_says_how_far_it_is() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["o-0", "o-1", "o-2", "o-3", "o-4", "o-5"]).await;
    let expire = "UPDATE processed_messages SET expires_at = now() - interval '1 h' + right(idempotency_key, 1)::int * interval '1 s'";
    fixture.run(expire).await;
    let holder = holder(&fixture, "SELECT FROM processed_messages WHERE idempotency_key = 'o-4' FOR UPDATE").await;
    let (line, report) = said_meanwhile(&fixture, &["cleanup", "--rows-max", "4"], holder).await;
    assert!(line.starts_with("4 of 6, ") && line.contains(" a second, about ") && line.ends_with(" left"), "{line}");
    assert!(report.contains("processed_messages"), "{report}");
    fixture.until("SELECT count(*)::text FROM processed_messages", "0").await;
    fixture.drop().await;
}

#[tokio::test]
async fn an_erasure_that_waits_says_for_how_long() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["o-0"]).await;
    let holder = holder(&fixture, "SELECT FROM processed_messages FOR UPDATE").await;
    let erase = ["erase", "o-0", "--reason", "asked for", "--yes"];
    let (line, _) = said_meanwhile(&fixture, &erase, holder).await;
    assert_eq!(line, "erasing the key, for 2 s by now; if it waits for another session, `idem doctor` names it");
    assert_eq!(fixture.texts("SELECT idempotency_key FROM processed_messages").await, [""]);
    fixture.drop().await;
}

#[tokio::test]
async fn a_migration_that_waits_says_for_how_long() {
    let fixture = Fixture::new().await;
    let holder = holder(&fixture, "LOCK TABLE migrations").await;
    let (line, report) = said_meanwhile(&fixture, &["migrate", "up"], holder).await;
    let begin = format!("migrating schema {}, for ", fixture.schema);
    assert!(line.starts_with(&begin) && report.contains("up to date"), "{line}\n{report}");
    fixture.drop().await;
}
