//! Events out through the server's log: what `deploy/debezium/outbox.sql` makes of the outbox. None of Debezium runs here; the guide says
//! with which versions the connector itself was run.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    DedupConsumer, Effects, Event, Handler, HandlerError, Message, Relay, Store as _, Tx,
    outbox::{EventError, EventPublisher, OutgoingEvent},
    store::Bookkeeping as _,
};
use idem_sqlx::PostgresStore;
use idem_testkit::{Decide as _, message};

use super::{consumers::write, fixture::Fixture, scratch::Scratch};

/// Publishes two events, and refuses a message without a payload.
struct Publishing;

impl Handler<PostgresStore> for Publishing {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        write(tx.connection(), message).await?;
        let body = message.payload().cloned().unwrap_or_default();
        let ordering_key: &[u8] = match &*body {
            b"4" => "Küche\\7".as_bytes(),
            b"5" => b"\xff\0",
            _ => b"account-7",
        };
        let first = Event::to("payments").event_type("Charged").ordering_key(ordering_key).header("region", "eu");
        tx.publish(message, first.content_type("text/plain").body(body.clone()))?;
        tx.publish(message, Event::to("mails").same_key())?;
        if body.is_empty() { Err(HandlerError::permanent("no payload")) } else { Ok(()) }
    }
}

/// A destination that takes everything.
struct Taking;

#[async_trait]
impl EventPublisher for Taking {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        events.iter().map(|_| Ok(())).collect()
    }
}

/// Why a relay of this outbox ends by itself; none where it goes on.
async fn refused(fixture: &Fixture) -> Option<String> {
    let relay =
        Relay::builder(Arc::new(fixture.store.clone()).outbox().unwrap()).to("payments", Taking).build().unwrap();
    let view = relay.view();
    let runs = async {
        while !view.reads_outbox() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = relay.run(runs);
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends or counts");
    ended.err().map(|error| idem_core::chain(&error).map(ToString::to_string).collect::<Vec<_>>().join(": "))
}

/// Of the event's source, tenant and consumer are percent-encoded as a relay does it.
const ATTRIBUTES: &str = "specversion[text]:'1.0' source[text]:'/idem/orders%2F%C3%A9%201'";

/// O81: M23 of the plan asks for Debezium's own names: the log has each committed event once, under them, and the tables stay empty.
#[tokio::test]
async fn the_log_has_each_committed_event_under_the_names_that_debezium_expects() {
    let scratch = Scratch::new("debezium").await;
    let fixture = Fixture::on(&scratch.url).await;
    fixture.run("ALTER SYSTEM SET wal_level = logical").await;
    scratch.crash().await;
    fixture.until("SELECT current_setting('wal_level') = 'logical'").await;
    let script = include_str!("../../../../deploy/debezium/outbox.sql");
    let script = script.replace("idem.", &format!("{}.", fixture.schema.quoted()));
    // As psql does, each in a transaction of its own: a slot is made in no other.
    let slot = "SELECT pg_create_logical_replication_slot('idem_outbox', 'pgoutput');";
    let (before, behind) = script.split_once(slot).unwrap();
    fixture.run(before).await;
    let without = sqlx::raw_sql(sqlx::AssertSqlSafe(behind.to_owned())).execute(&fixture.admin).await.unwrap_err();
    assert!(without.to_string().contains("no slot idem_outbox"), "O81: events would be lost: {without}");
    let triggers = "SELECT tgname::text FROM pg_trigger WHERE tgname = 'outbox_to_cdc'";
    assert_eq!(fixture.texts(triggers).await, [""; 0]);
    fixture.run(slot).await;
    fixture.run(behind).await;
    fixture.run("SELECT pg_create_logical_replication_slot('log', 'test_decoding')").await;

    let builder = DedupConsumer::builder(fixture.store.clone(), "orders/é 1").handler(Publishing);
    let consumer = builder.effects(Effects::InTransaction).publishes_to(["payments", "mails"]).build().unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let messages = vec![message("a", "it's"), message("b", ""), message("c", "3").with_header("traceparent", trace)];
    let decisions = consumer.decisions(messages.clone()).await.unwrap();
    assert_eq!(decisions.iter().map(|decision| decision.is_processed()).collect::<Vec<_>>(), [true, false, true]);
    // A duplicate says nothing again, and a unit of several messages what each has to say.
    consumer.decisions(messages).await.unwrap();
    // O105: by its first name.
    fixture.run("UPDATE consumers SET name = 'purchases', derives_as = name").await;
    let decisions = consumer.decisions(vec![message("d", "4"), message("e", "5")]).await.unwrap();
    assert!(decisions.iter().all(idem_core::Decision::is_processed), "{decisions:?}");
    assert_eq!(fixture.texts("SELECT event_key FROM outbox").await, [""; 0]);
    assert_eq!(fixture.texts("SELECT id FROM outbox_cdc").await, [""; 0]);

    let log = "SELECT data FROM pg_logical_slot_get_changes('log', NULL, NULL) WHERE data LIKE '%outbox_cdc: INSERT%'";
    let log: Vec<String> = fixture.texts(log).await;
    assert_eq!(log.len(), 8, "{log:#?}");
    for (number, key, parts) in [
        (
            0,
            "a",
            &["payload[bytea]:'\\x69742773'", "type[text]:'Charged'", "contenttype[text]:'text/plain'", ATTRIBUTES][..],
        ),
        (
            1,
            "a",
            &[
                "id[text]:'a'",
                "aggregatetype[text]:'mails'",
                "aggregateid[text]:'a'",
                "type[text]:null",
                "source[text]:null",
            ],
        ),
        (2, "c", &["payload[bytea]:'\\x33'", "aggregatetype[text]:'payments'", "aggregateid[text]:'account-7'"]),
        (3, "c", &["id[text]:'c'", "aggregatetype[text]:'mails'"]),
        // O77: the record's key is the relay's, where it is text.
        (4, "d", &["payload[bytea]:'\\x34'", "aggregateid[text]:'Küche\\7'", ATTRIBUTES]),
        (6, "e", &["payload[bytea]:'\\x35'", "aggregatetype[text]:'payments'", "aggregateid[text]:'\\377\\000'"]),
    ] {
        let of_key = [format!("correlationid[text]:'{key}'"), format!("causationid[text]:'{key}'")];
        for part in parts.iter().copied().chain(of_key.iter().map(String::as_str)) {
            assert!(log[number].contains(part), "{part} is not in {}", log[number]);
        }
        let traced = format!("traceparent[text]:'{trace}'");
        assert_eq!(log[number].contains(&traced), key == "c", "{}", log[number]);
    }
    assert!(fixture.store.bookkeeping().verify().await.is_ok(), "workers start on it");

    // O104: a relay would find nothing, for ever. It may go on once the trigger is gone, or is disabled.
    let why = refused(&fixture).await.unwrap_or_default();
    assert!(why.contains("outbox_to_cdc") && why.contains("--relay off"), "{why:?}");
    fixture.run("ALTER TABLE outbox DISABLE TRIGGER outbox_to_cdc").await;
    assert_eq!(refused(&fixture).await, None);
    fixture.run("DROP TRIGGER outbox_to_cdc ON outbox").await;
    assert_eq!(refused(&fixture).await, None);
    fixture.admin.close().await;
    scratch.down().await;
}
