//! `idem erase`.

use std::sync::Arc;

use idem_core::{DedupConsumer, Effects, Store};
use idem_testkit::Decide as _;

use crate::{
    answers::on_sqlite,
    fixture::{Answer, Fixture, command, message},
    outbox::Publishing,
};

/// S4: after an erasure nothing that idem keeps holds the key or a payload, and a redelivery is still a duplicate, another
/// payload still a conflict.
#[tokio::test]
async fn s4_an_erased_key_is_nowhere_and_its_redelivery_is_still_a_duplicate() {
    let fixture = crate::dead_letters::fixture().await;
    // order-3 has a record, a dead letter of the conflict, and lines in the trail; order-1 a dead letter and attempts.
    fixture.idem("erase order-3").refused("--reason");
    fixture.idem("erase order-3 --reason art-17").refused("give --yes");
    fixture.idem("erase order-9 --reason art-17 --yes").ok();
    for key in ["order-1", "order-3"] {
        let answer = fixture.idem(&format!("erase {key} --reason art-17 --yes")).ok();
        assert!(answer.contains("rows erased"), "{answer}");
    }
    for table in [
        "processed_messages",
        "processed_results",
        "message_attempts",
        "dead_letters",
        "audit",
        "controls",
        "forgotten",
    ] {
        let rows = fixture.texts(&format!("SELECT t::text FROM {table} AS t")).await.join("\n");
        assert!(!rows.contains("order-1") && !rows.contains("order-3"), "{table}: {rows}");
    }
    let payloads = "SELECT count(*) FROM dead_letters WHERE payload IS NOT NULL OR headers IS NOT NULL";
    assert_eq!(fixture.texts(payloads).await, ["1"], "that of order-2");
    assert_eq!(fixture.deliver(&["order-3"]).await, "D");
    let other = idem_core::Message::new("other").with_header("idempotencykey", "order-3");
    let decisions = fixture.consumer().decisions(vec![other]).await.unwrap();
    assert!(matches!(decisions[0], idem_core::Decision::Conflict(..)), "{decisions:?}");
    let shown = fixture.idem("show order-3 --json").json();
    assert_eq!(shown["records"][0]["erased"], true, "{shown}");
    let trail = fixture.trail().await;
    assert!(trail.iter().any(|line| line.starts_with("ada erase key id ") && line.ends_with(": art-17")), "{trail:?}");
    // An erased dead letter can neither be listed with its key nor be replayed.
    assert!(!fixture.idem("dead-letters list").ok().contains("order-1"));
    fixture.idem("dead-letters replay 1 --yes").refused("was erased");
    fixture.drop().await;
}

/// S8: a worker's login may not erase.
#[tokio::test]
async fn s8_a_workers_login_may_not_erase() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    let (url, login) = fixture.worker_login().await;
    let variables = [("DATABASE_URL", url.as_str()), ("IDEM_SCHEMA", &fixture.schema)];
    command(&variables, &["erase", "order-1", "--reason", "x", "--yes"]).refused("lacks a right");
    assert_eq!(fixture.texts("SELECT idempotency_key FROM processed_messages").await, ["order-1"]);
    fixture.run(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
    fixture.drop().await;
}

/// O67: an event that waits is told of, although the record of its cause has expired, and by each key that it holds: its own, that of
/// the message whose handler published it, and that at the beginning of the chain.
async fn an_event_that_waits_is_told_of_by_each_key_it_holds<S: Store>(
    store: Arc<S>,
    idem: impl Fn(&[&str]) -> Answer,
    forget: impl AsyncFnOnce() -> String,
) {
    let consumer = DedupConsumer::builder(store, "mails").publish_to(["payments"]).handler(Publishing);
    let consumer = consumer.effects(Effects::InTransaction).build().unwrap();
    let message = message("charge-1").with_header("idemcause", "order-1");
    assert!(consumer.decisions(vec![message]).await.unwrap()[0].is_processed());
    let event_key = forget().await;
    // An event's own id, and its name, are told as what they are.
    for key in [event_key.clone(), format!("1:{event_key}")] {
        let told = idem(&["erase", &key, "--reason", "art-17", "--yes"]).ok();
        let begins = "0 rows hold this key. It is the id of an event that waits for payments, 1:";
        assert!(
            told.starts_with(&format!("{begins}{event_key}, which goes")) && told.contains("idemcausedby"),
            "{told}"
        );
    }
    let sent = ["7:f3c1b1f4-2f4e-8a6b-9f0e-0b5f6a1d2e34", "f3c1b1f4-2f4e-8a6b-9f0e-0b5f6a1d2e34"];
    for key in sent {
        let told = idem(&["erase", key, "--reason", "art-17", "--yes"]).ok();
        assert!(told.starts_with("0 rows hold this key. If it is the id of an event that was sent"), "{told}");
    }
    for key in ["charge-1", "order-1"] {
        let told = idem(&["erase", key, "--reason", "art-17", "--yes"]).ok();
        assert!(
            told.contains("0 rows hold this key. Of the events") && told.contains(" 1 wait in the outbox"),
            "{told}"
        );
    }
    let told = idem(&["erase", "order-9", "--reason", "art-17", "--yes"]).ok();
    assert_eq!(told.trim(), "0 rows hold this key.");
}

#[tokio::test]
async fn o67_an_event_that_waits_is_told_of_by_each_key_it_holds_on_postgres() {
    let fixture = Fixture::new().await;
    let forget = async || {
        fixture.run("DELETE FROM processed_messages").await;
        fixture.texts("SELECT event_key FROM outbox").await.remove(0)
    };
    let store = Arc::new(fixture.store.clone());
    an_event_that_waits_is_told_of_by_each_key_it_holds(store, |words| fixture.idem_with(words), forget).await;
    fixture.drop().await;
}

#[tokio::test]
async fn o67_an_event_that_waits_is_told_of_by_each_key_it_holds_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let forget = async || {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            sqlx::raw_sql("DELETE FROM idem_processed_messages").execute(&mut connection).await.unwrap();
            sqlx::query_scalar("SELECT event_key FROM idem_outbox").fetch_one(&mut connection).await.unwrap()
        };
        an_event_that_waits_is_told_of_by_each_key_it_holds(store, idem, forget).await;
    })
    .await;
}

/// O76: a message that the key has caused is a dead letter of the next consumer, and holds it where a broker's event does.
async fn dead_letters_of_what_it_caused_are_told_of(
    idem: impl Fn(&[&str]) -> Answer,
    run: impl AsyncFn(String),
    letter: &str,
    payload: impl Fn(&str) -> String,
) {
    let told = |key: &str| idem(&["erase", key, "--reason", "art-17", "--yes"]).ok();
    let has = async |headers: &str, content: &str| {
        run(format!("UPDATE {letter} SET headers = '{headers}', payload = {}", payload(content))).await;
    };
    for (headers, content) in [
        (r#"[["idempotencykey", "e-1"], ["idemcause", "anna@example.org"]]"#, ""),
        (r#"[["cloudEvents_causationid", "anna@example.org"]]"#, ""),
        (r#"[["ce", "{\"id\":\"e-1\",\"correlationid\":\"anna@example.org\"}"]]"#, ""),
        (r#"[["content-type", "application/cloudevents+json"]]"#, r#"{"idemcause":"anna@example.org"}"#),
    ] {
        has(headers, content).await;
        let told = told("anna@example.org");
        assert!(
            told.contains("0 rows hold this key. Of the messages") && told.contains(" 1 are dead letters"),
            "{told}"
        );
    }
    has(r#"[["idemcause", "hanna@example.org"]]"#, "anna@example.org.uk").await;
    assert_eq!(told("anna@example.org").trim(), "0 rows hold this key.");
    // Its own are blanked with the key.
    has(r#"[["idemcause", "order-1"]]"#, "").await;
    let own = told("order-1");
    assert!(own.contains("rows erased") && !own.contains("are dead letters"), "{own}");
}

#[tokio::test]
async fn o76_dead_letters_of_what_a_key_caused_are_told_of_on_postgres() {
    let fixture = crate::dead_letters::fixture().await;
    fixture.run("DELETE FROM dead_letters WHERE idempotency_key <> 'order-1'").await;
    let run = async |statement: String| fixture.run(&statement).await;
    let payload = |content: &str| format!("convert_to('{content}', 'UTF8')");
    dead_letters_of_what_it_caused_are_told_of(|words| fixture.idem_with(words), run, "dead_letters", payload).await;
    fixture.drop().await;
}

#[tokio::test]
async fn o76_dead_letters_of_what_a_key_caused_are_told_of_on_sqlite() {
    let file = crate::sqlite::File::new();
    file.idem("migrate up").ok();
    file.deliver(&["order-0"]).await;
    file.set_aside("order-1").await;
    let run = async |statement: String| file.run(&statement).await;
    let payload = |content: &str| format!("CAST('{content}' AS BLOB)");
    dead_letters_of_what_it_caused_are_told_of(|words| file.idem_with(words), run, "idem_dead_letters", payload).await;
}
