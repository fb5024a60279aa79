//! Servers that refuse, and schemas that change.

use std::{sync::Arc, time::Duration};

use idem_core::{
    ErrorClass, Event, HandlerError, Message, Store as _, StoreError, Tx,
    outbox::EventEnd,
    store::{Bookkeeping as _, UnitOfWork as _},
};

use super::{
    consumers::{builder, claim_of, keys, messages, msg, options, process, registration},
    handlers::{Act, Write, acting, consumer, write},
    subject::{PATIENCE, PostgresUnderTest, effects, offers, until},
};
use idem_testkit::proxy::postgres::PostgresProxy;

/// A23: an old primary that is fenced by a setting takes no new lane.
pub async fn a23_a_fenced_primary_is_refused<T: PostgresUnderTest>(subject: &T) {
    let store = subject.another(None, &[("default_transaction_read_only", "on")]);
    assert!(matches!(store.bookkeeping().verify().await, Err(StoreError::Refused { .. })));
    let Err(error) = store.open().await else { panic!("a lane was taken") };
    assert_eq!(error.class(), ErrorClass::Infrastructure);
}

/// A27: the schema is gone for a moment of a deploy.
pub async fn a27_a_table_that_is_gone_and_back<T: PostgresUnderTest>(subject: &T) {
    let consumer = consumer(subject, Write::<T>::new());
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    for table in ["processed_messages", "effects"] {
        subject.run(&format!("ALTER TABLE {table} RENAME TO hidden")).await;
        assert_eq!(process(&consumer, vec![msg(table)]).await, "i", "{table}");
        subject.run(&format!("ALTER TABLE hidden RENAME TO {table}")).await;
        assert_eq!(process(&consumer, vec![msg(table)]).await, "P", "{table}");
    }
    assert_eq!(effects(subject).await, ["a", "effects", "processed_messages"]);
}

/// Reads by `*`, which is what a changed table breaks.
struct Reads;

impl Act for Reads {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        T::execute(tx, "SELECT * FROM prices").await?;
        Ok(write::<T>(tx, message).await?)
    }
}

/// A27: a plan that was cached before a table was altered fails once a connection, and is then made anew.
pub async fn a27_a_table_altered_under_prepared_statements<T: PostgresUnderTest>(subject: &T) {
    let consumer = builder(subject.store().clone(), acting::<T, _>(Reads)).lanes(1);
    let consumer = consumer.handlers(subject.concurrency()).build().unwrap();
    subject.run("CREATE TABLE prices (name text); INSERT INTO prices VALUES ('x')").await;
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PPP");
    subject.run("ALTER TABLE prices ADD COLUMN cents int; ALTER TABLE processed_messages ADD COLUMN note text").await;
    assert_eq!(process(&consumer, messages(&keys(6))).await, "DDDPPP");
    subject.run("ALTER TABLE processed_messages DROP COLUMN note; ALTER TABLE prices DROP COLUMN cents").await;
    assert_eq!(process(&consumer, messages(&keys(9))).await, "DDDDDDPPP");
    assert_eq!(effects(subject).await, keys(9));
}

/// Writes down how its session began.
struct Tells;

impl Act for Tells {
    async fn act<T: PostgresUnderTest>(&self, _: &Message, tx: &mut Tx<'_, T::Store>) -> Result<(), HandlerError> {
        let told = "INSERT INTO effects SELECT current_setting('default_transaction_read_only') || ' '
            || current_setting('tcp_user_timeout') || ' ' || current_setting('client_connection_check_interval'), '', ''";
        Ok(T::execute(tx, told).await?)
    }
}

/// A44: a server that cannot take one setting of a session is given the others, the fence above all.
pub async fn a44_a_setting_that_the_server_refuses_leaves_the_others<T: PostgresUnderTest>(subject: &T) {
    let proxy = PostgresProxy::refusing(&subject.server(), "client_connection_check_interval").await.unwrap();
    let store = subject.another(Some(proxy.port()), &[]);
    let consumer = builder(store, acting::<T, _>(Tells)).lanes(1).handlers(subject.concurrency()).build().unwrap();
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    let told = effects(subject).await;
    let [told] = told.as_slice() else { panic!("one row, not {told:?}") };
    // How a time is written is the client's business. A store that sets it by a statement of its own has it all the same.
    assert!(told.starts_with("on 30") && (told.ends_with(" 0") || told.ends_with(" 2s")), "{told}");
}

/// Publishes events of one ordering key.
struct Orders;

impl Act for Orders {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        tx.publish(message, Event::to("payments").body("paid").ordering_key("account"))?;
        Ok(write::<T>(tx, message).await?)
    }
}

/// O70: a relay that waits for the lock of an operator who skips an event sees, once it has it, that the event is gone; with the
/// snapshot of before, as other isolation levels have it, it would put the next one behind it for ever.
pub async fn o70_what_was_skipped_holds_nothing_back_at_any_isolation<T: PostgresUnderTest>(subject: &T) {
    if !offers(subject) {
        return;
    }
    let orders = builder(subject.store().clone(), acting::<T, _>(Orders)).publish_to(["payments"]).lanes(1);
    let orders = orders.handlers(subject.concurrency()).build().unwrap();
    let default = [("default_transaction_isolation", "serializable")];
    let outbox = Arc::new(subject.another(None, &default)).outbox().unwrap();
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    assert_eq!(process(&orders, messages(&keys(2))).await, "PP");
    let all = outbox.next(id, 10, 1_000).await.unwrap();
    let failed = EventEnd::Failed { error: "never".to_owned(), may_be_sent: false };
    outbox.settle(id, &[(&all[0], failed)]).await.unwrap();
    let lane = subject.store().open().await.unwrap();
    let options = options(claim_of(subject.store(), "skipping").await.1, PATIENCE);
    let mut skipping = subject.store().begin(lane, options).await.unwrap();
    skipping.claim(&[]).await.unwrap();
    for statement in ["SELECT FROM outbox_destinations FOR NO KEY UPDATE", "DELETE FROM outbox WHERE state = 2"] {
        T::execute(&mut skipping.tx(), statement).await.unwrap();
    }
    let schema = subject.texts("SELECT current_schema()").await.concat();
    let waits = format!(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%mark_behind%')"
    );
    let skipped = async {
        until(subject, &waits).await;
        skipping.commit().await.1.unwrap();
    };
    let (looked, ()) = tokio::join!(outbox.next(id, 10, 1_000), skipped);
    looked.unwrap();
    let free = tokio::time::timeout(Duration::from_secs(30), outbox.next(id, 10, 1_000)).await.unwrap().unwrap();
    assert_eq!(free.iter().map(|event| &event.key).collect::<Vec<_>>(), [&all[1].key]);
}

/// Warnings about weak settings name the cure.
pub async fn weak_settings_are_warned_about<T: PostgresUnderTest>(subject: &T) {
    let weak =
        [("search_path", "public"), ("synchronous_commit", "off"), ("default_transaction_isolation", "serializable")];
    let store = subject.another(None, &weak);
    let warnings = store.bookkeeping().register(&registration()).await.unwrap().warnings.join("\n");
    for word in ["synchronous_commit is off", "default_transaction_isolation", "\"serializable\""] {
        assert!(warnings.contains(word), "{word}: {warnings}");
    }
    let warnings = subject.store().bookkeeping().register(&registration()).await.unwrap().warnings;
    assert!(warnings.iter().all(|warning| warning.contains("idem's own schema")), "{warnings:?}");
}
