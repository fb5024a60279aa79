//! Commits whose answer is lost or late, and the costs of a unit.

use std::time::Duration;

use idem_core::{
    Decision, DedupConsumer, Effects, ErrorClass, Event, HandlerError, Message, ResultBody, RunOnce, Store as _, Tx,
    consumer::DedupConsumerBuilder,
    message::Headers,
    once::{Outcome, Request, RunOnceError},
    store::UnitOfWork as _,
};

use super::{
    consumers::{builder, claim_of, keys, messages, msg, options, process},
    handlers::{Act, Write, acting, write},
    subject::{PATIENCE, PostgresUnderTest, effects, forget, offers, recorded, unique, until},
};
use idem_testkit::{
    Decide as _,
    proxy::postgres::{Cut, PostgresProxy},
};

/// One message, then a batch of a hundred (D6), each with as many cuts in a row as `times`; with effects alone, and with events too.
async fn cut<T: PostgresUnderTest>(subject: &T, cut: Cut, times: usize, expected: char) {
    for (count, announces) in [(1, false), (100, false), (1, true), (100, true)] {
        if announces && !offers(subject) {
            continue;
        }
        let proxy = PostgresProxy::cutting(&subject.server(), cut, times).await.unwrap();
        let store = subject.another(Some(proxy.port()), &[]);
        let consumer = if announces {
            builder(store, acting::<T, _>(Announces)).publish_to(["payments"])
        } else {
            builder(store, Write::<T>::new())
        };
        let consumer = consumer.lanes(1).handlers(subject.concurrency()).build().unwrap();
        let keys = keys(count);
        assert_eq!(process(&consumer, messages(&keys)).await, expected.to_string().repeat(count));
        assert_eq!(proxy.left(), 0, "every cut has happened");
        assert_eq!(effects(subject).await, keys, "each effect once");
        assert_eq!(process(&consumer, messages(&keys)).await, "D".repeat(count));
        assert_eq!(effects(subject).await, keys);
        let events = if announces { count } else { 0 };
        assert_eq!(subject.texts("SELECT count(*)::text FROM outbox").await, [events.to_string()], "each event once");
        subject.run("DELETE FROM outbox").await;
        forget(subject).await;
    }
}

/// A5, D6: the answer to the COMMIT is lost, and the record that was read decides.
pub async fn a5_d6_cut_after_the_server_committed<T: PostgresUnderTest>(subject: &T) {
    cut(subject, Cut::After, 1, 'D').await;
}

/// A6, D6: the server never got the COMMIT, and the messages run again.
pub async fn a6_d6_cut_before_the_server_got_the_commit<T: PostgresUnderTest>(subject: &T) {
    cut(subject, Cut::Before, 1, 'P').await;
    cut(subject, Cut::Before, 2, 'P').await;
}

/// Writes an effect and publishes an event.
struct Announces;

impl Act for Announces {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        write::<T>(tx, message).await?;
        tx.publish(message, Event::to("payments").body("paid"))?;
        Ok(())
    }
}

/// O43: an outbox that takes no row, here because of a trigger, has its units committed with nothing of them.
pub async fn o43_a_unit_whose_event_is_suppressed_commits_nothing<T: PostgresUnderTest>(subject: &T) {
    if !offers(subject) {
        return;
    }
    let consumer = builder(subject.store().clone(), acting::<T, _>(Announces)).publish_to(["payments"]);
    let consumer = consumer.lanes(1).handlers(subject.concurrency()).build().unwrap();
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP");
    forget(subject).await;
    subject.run("DELETE FROM outbox").await;
    subject.run("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'").await;
    subject.run("CREATE TRIGGER nothing BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION nothing()").await;
    for count in [1, 3] {
        let decisions = consumer.decisions(messages(&keys(count))).await.unwrap();
        let says =
            |decision: &Decision| matches!(decision, Decision::Failed(why) if why.text.contains("suppresses rows"));
        assert!(decisions.len() == count && decisions.iter().all(says), "{decisions:?}");
        assert_eq!((effects(subject).await, recorded(subject).await), (vec![], vec![]), "{count}");
    }
    subject.run("DROP TRIGGER nothing ON outbox").await;
    assert_eq!(process(&consumer, messages(&keys(3))).await, "PPP");
    assert_eq!(subject.texts("SELECT count(*)::text FROM outbox").await, ["3"]);
}

/// Writes an effect, publishes an event, answers, and sets this for its transaction.
struct Sets(&'static str, &'static str);

impl Act for Sets {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        let Self(name, value) = self;
        Announces.act::<T>(message, tx).await?;
        tx.set_result(message, ResultBody::new("an answer").with_status(201))?;
        Ok(T::execute(tx, &format!("SELECT set_config('{name}', '{value}', true)")).await?)
    }
}

fn setting<T: PostgresUnderTest>(
    subject: &T,
    store: T::Store,
    name: &'static str,
    value: &'static str,
) -> DedupConsumer<T::Store> {
    let consumer = builder(store, acting::<T, _>(Sets(name, value))).publish_to(["payments"]).keep_results(100);
    consumer.lanes(1).handlers(subject.concurrency()).build().unwrap()
}

async fn failure<T: PostgresUnderTest>(consumer: &DedupConsumer<T::Store>, key: &str) -> (ErrorClass, String) {
    let mut decisions = consumer.decisions(vec![msg(key)]).await.unwrap();
    match decisions.pop() {
        Some(Decision::Failed(failure)) => (failure.class, failure.text.to_string()),
        other => panic!("{other:?}"),
    }
}

/// O22: a setting of a handler for its transaction stops its own message, with the cause, and no intake; or it does not matter.
pub async fn o22_events_are_written_in_whatever_a_handler_has_set<T: PostgresUnderTest>(subject: &T) {
    if !offers(subject) {
        return;
    }
    let store = || subject.store().clone();
    for (key, name, value) in
        [("a", "work_mem", "8MB"), ("b", "search_path", "pg_catalog"), ("c", "row_security", "off")]
    {
        assert_eq!(process(&setting(subject, store(), name, value), vec![msg(key)]).await, "P", "{name}");
    }
    let counts = "SELECT concat_ws(' ', (SELECT count(*) FROM effects), (SELECT count(*) FROM processed_messages), \
        (SELECT count(*) FROM outbox), (SELECT count(*) FROM processed_results WHERE status = 201))";
    assert_eq!(subject.texts(counts).await, ["3 3 3 3"]);
    for (name, value, class, words) in [
        ("role", "pg_monitor", ErrorClass::Permanent, "set a role"),
        ("statement_timeout", "50ms", ErrorClass::Permanent, "statement_timeout"),
        ("lock_timeout", "50ms", ErrorClass::Permanent, "lock_timeout"),
        ("transaction_read_only", "on", ErrorClass::Transient, "read only"),
    ] {
        let lane = subject.store().open().await.unwrap();
        let options = options(claim_of(subject.store(), "locking").await.1, PATIENCE);
        let mut locking = subject.store().begin(lane, options).await.unwrap();
        locking.claim(&[]).await.unwrap();
        if name.ends_with("_timeout") {
            T::execute(&mut locking.tx(), "LOCK TABLE outbox IN SHARE MODE").await.unwrap();
        }
        let (seen, text) = failure::<T>(&setting(subject, store(), name, value), "red").await;
        assert_eq!(seen, class, "{name}: {text}");
        assert!(text.contains(words), "{name}: {text}");
        locking.rollback().await.unwrap();
    }
    assert_eq!(subject.texts(counts).await, ["3 3 3 3"]);
}

/// Publishes and answers with texts that mean something to SQL, and with bytes that are no text.
struct Quotes {
    body: Vec<u8>,
}

impl Quotes {
    const TEXT: &str = r#"it's a \ and a \' and "$1", é; COMMIT; --"#;
}

impl Act for Quotes {
    async fn act<T: PostgresUnderTest>(
        &self,
        message: &Message,
        tx: &mut Tx<'_, T::Store>,
    ) -> Result<(), HandlerError> {
        write::<T>(tx, message).await?;
        let event = Event::to("payments")
            .event_type(Self::TEXT)
            .header("note", Self::TEXT)
            .ordering_key(self.body[..9].to_vec());
        tx.publish(message, event.content_type("text/plain; a='b'").body(self.body.clone()))?;
        let mut headers = Headers::with_capacity(1);
        headers.push("note", Some(Self::TEXT.into()));
        let answer = ResultBody::new(self.body.clone()).with_status(201).with_headers(headers);
        tx.set_result(message, answer.with_content_type(Self::TEXT).with_reference(Self::TEXT))?;
        Ok(())
    }
}

/// O73: an event and an answer hold what the handler gave them, whatever it means to SQL and however they are sent.
pub async fn o73_texts_that_mean_something_to_sql_are_kept_as_they_are<T: PostgresUnderTest>(subject: &T) {
    if !offers(subject) {
        return;
    }
    let short = vec![0, 1, b'\'', b'"', b'\\', b'$', b'1', 255, 10, b';'];
    let long: Vec<u8> = short.iter().copied().cycle().take(20_000).collect();
    let store = |settings: &[(&str, &str)]| subject.another(None, settings);
    let stores = [store(&[]), store(&[("standard_conforming_strings", "off")]), store(&[("backslash_quote", "off")])];
    for (at, store) in stores.into_iter().enumerate() {
        for body in [&short, &long] {
            let consumer = builder(store.clone(), acting::<T, _>(Quotes { body: body.clone() }));
            let consumer = consumer.publish_to(["payments"]).keep_results(100_000).lanes(1);
            let consumer = consumer.handlers(subject.concurrency()).build().unwrap();
            let key = format!("{at}'\\{}", body.len());
            assert_eq!(process(&consumer, vec![msg(&key)]).await, "P", "{key}");
            let text = Quotes::TEXT;
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            let event = "SELECT concat_ws('|', event_type, content_type, headers->0->>1, encode(ordering_key, 'hex'), encode(payload, 'hex')) FROM outbox";
            assert_eq!(
                subject.texts(event).await,
                [format!("{text}|text/plain; a='b'|{text}|{}|{hex}", &hex[..18])],
                "{key}"
            );
            let answer = "SELECT concat_ws('|', status, content_type, headers->0->>1, reference, encode(body, 'hex')) FROM processed_results";
            assert_eq!(subject.texts(answer).await, [format!("201|{text}|{text}|{text}|{hex}")], "{key}");
            assert_eq!(recorded(subject).await, [key]);
            subject.run("DELETE FROM outbox; DELETE FROM processed_results").await;
            forget(subject).await;
        }
    }
}

/// O22: a right that the login itself lacks is no fault of a message.
pub async fn o22_a_right_that_is_missing_is_infrastructure<T: PostgresUnderTest>(subject: &T) {
    if !offers(subject) {
        return;
    }
    let role = unique("worker").replace('-', "_");
    let schema = subject.texts("SELECT quote_ident(current_schema())").await.concat();
    let grants = ["TABLES", "SEQUENCES", "FUNCTIONS"]
        .map(|kind| format!("GRANT ALL ON ALL {kind} IN SCHEMA {schema} TO {role};"));
    // As a login of its own it would see when its own session began.
    let created = format!("CREATE ROLE {role} IN ROLE pg_read_all_stats");
    subject.run(&format!("{created}; GRANT USAGE ON SCHEMA {schema} TO {role}; {}", grants.concat())).await;
    let store = subject.another(None, &[("role", &role)]);
    let consumer = setting(subject, store, "work_mem", "8MB");
    assert_eq!(process(&consumer, vec![msg("a")]).await, "P");
    subject.run(&format!("REVOKE INSERT ON outbox FROM {role}")).await;
    let (class, text) = failure::<T>(&consumer, "b").await;
    assert_eq!(class, ErrorClass::Infrastructure, "{text}");
    assert_eq!(effects(subject).await, ["a"]);
    drop(consumer);
    subject.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// What goes between client and server in a unit of one message and in one of many, when it is new and when it is a duplicate.
pub async fn a_unit_costs_the_round_trips_that_the_store_says<T: PostgresUnderTest>(subject: &T) {
    let expected = subject.round_trips();
    let proxy = PostgresProxy::patient(&subject.server()).await.unwrap();
    let consumer = builder(subject.another(Some(proxy.port()), &[]), Write::<T>::new()).lanes(1);
    let consumer = consumer.handlers(subject.concurrency()).build().unwrap();
    // The claim of one key is another statement than that of many.
    assert_eq!(process(&consumer, messages(&keys(2))).await, "PP", "everything is prepared");
    assert_eq!(process(&consumer, messages(&keys(1))).await, "D", "and the claim of one key");
    for count in [1, 10, 100] {
        let keys: Vec<String> = keys(count).into_iter().map(|key| format!("{count}-{key}")).collect();
        proxy.round_trips();
        assert_eq!(process(&consumer, messages(&keys)).await, "P".repeat(count));
        assert_eq!(proxy.round_trips(), (expected.unit)(count), "{count} new ones");
        assert_eq!(process(&consumer, messages(&keys)).await, "D".repeat(count));
        assert_eq!(proxy.round_trips(), expected.duplicates, "{count} duplicates");
    }
    let consumer = builder(subject.another(Some(proxy.port()), &[]), acting::<T, _>(Announces)).lanes(1);
    let consumer = consumer.publish_to(["payments"]).handlers(subject.concurrency()).build().unwrap();
    for round in 0..2 {
        for count in [1, 10] {
            let keys: Vec<String> = keys(count).into_iter().map(|key| format!("{round}-of-{count}-{key}")).collect();
            proxy.round_trips();
            assert_eq!(process(&consumer, messages(&keys)).await, "P".repeat(count));
            let trips = proxy.round_trips();
            assert!(
                round == 0 || trips == (expected.unit)(count) + (expected.events)(count),
                "{count} with events: {trips}"
            );
        }
    }
}

/// Work that writes an effect and answers.
pub(super) async fn pay<T: PostgresUnderTest>(
    payments: &RunOnce<T::Store>,
    key: &str,
    payload: &str,
) -> Result<Outcome, RunOnceError> {
    let paying = payments.run(Request::new(key, payload), |tx| {
        Box::pin(async move {
            let message = tx.message().cloned().expect("the request");
            write::<T>(tx, &message).await?;
            Ok(ResultBody::new("paid").with_status(201))
        })
    });
    paying.await
}

/// V14, V15: a repeat costs one round trip where it is expected to be one, and a claim's where it is not; a first run pays for none
/// of that. Neither repeats nor uses of the key for something else write anything or take a transaction's number.
pub async fn v14_v15_repeats_and_conflicts_cost_one_round_trip_and_write_nothing<T: PostgresUnderTest>(subject: &T) {
    let expected = subject.round_trips();
    let proxy = PostgresProxy::patient(&subject.server()).await.unwrap();
    let instance = || {
        let builder = RunOnce::builder(subject.another(Some(proxy.port()), &[]), "payments");
        builder.effects(Effects::InTransaction).allow_final_errors().lanes(1).build().unwrap()
    };
    let (here, there) = (instance(), instance());
    let mut first_runs = Vec::new();
    for key in ["0", "1", "2", "3", "4", "5", "6"] {
        proxy.round_trips();
        assert!(!pay::<T>(&here, key, "p").await.unwrap().is_replayed());
        first_runs.push(proxy.round_trips());
    }
    assert_eq!(first_runs[1..], [expected.first_run; 6], "{first_runs:?}");
    assert!(pay::<T>(&here, "0", "p").await.unwrap().is_replayed(), "the look-up is prepared");
    assert!(matches!(pay::<T>(&here, "0", "other").await, Err(RunOnceError::Conflict { .. })), "it is noted");
    for payload in ["p", "other"] {
        proxy.round_trips();
        assert_eq!(pay::<T>(&here, "0", payload).await.is_ok(), payload == "p");
        assert_eq!(proxy.round_trips(), 1, "{payload}");
    }
    let mut repeats = Vec::new();
    for key in ["1", "2", "3", "4", "5", "6"] {
        proxy.round_trips();
        assert!(pay::<T>(&there, key, "p").await.unwrap().is_replayed());
        repeats.push(proxy.round_trips());
    }
    assert_eq!(repeats[1..4], [expected.unexpected_repeat; 3], "{repeats:?}");
    assert_eq!(repeats[4..], [1, 1], "{repeats:?}");
    // The server's other work, such as a checkpoint, may write meanwhile, and not each time.
    let written = "SELECT pg_current_wal_insert_lsn()::text || ' ' || pg_snapshot_xmax(pg_current_snapshot())";
    let mut seen = Vec::new();
    for _ in 0..20 {
        let before = subject.texts(written).await;
        for _ in 0..10 {
            assert!(pay::<T>(&here, "0", "p").await.unwrap().is_replayed());
            assert!(pay::<T>(&here, "0", "other").await.is_err());
        }
        if subject.texts(written).await == before {
            return;
        }
        seen.push(before);
    }
    panic!("something was written each time: {seen:?}");
}

/// With a synchronous standby that does not exist, every COMMIT hangs after it is written.
async fn hang_commits<T: PostgresUnderTest>(subject: &T, name: &str) {
    subject.run(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'")).await;
    subject.run("SELECT pg_reload_conf()").await;
    until(subject, &format!("SELECT current_setting('synchronous_standby_names') = '{name}'")).await;
}

/// A consumer with these limits.
fn limited<T: PostgresUnderTest>(
    subject: &T,
    limits: impl FnOnce(DedupConsumerBuilder<T::Store>) -> DedupConsumerBuilder<T::Store>,
) -> DedupConsumer<T::Store> {
    let consumer = builder(subject.another(None, &[]), Write::<T>::new()).lanes(1).handlers(subject.concurrency());
    limits(consumer).build().unwrap()
}

/// So long that nothing but the event that a case waits for ends a COMMIT.
fn patient<T: PostgresUnderTest>(subject: &T) -> DedupConsumer<T::Store> {
    limited(subject, |consumer| consumer.commit_timeout(PATIENCE).busy_timeout(PATIENCE))
}

/// A7: a COMMIT that hangs is unknown within its limit. The server still holds the keys, so they are busy; when it lets go, the
/// record answers.
pub async fn a7_a_commit_that_hangs_is_unknown_in_bounded_time<T: PostgresUnderTest>(subject: &T) {
    // Too short for any COMMIT that hangs.
    let hasty = limited(subject, |consumer| {
        consumer.commit_timeout(Duration::from_millis(500)).busy_timeout(Duration::from_secs(1))
    });
    hasty.start().await.unwrap();
    for count in [1, 3] {
        let keys: Vec<String> = keys(count).into_iter().map(|key| format!("{count}-{key}")).collect();
        hang_commits(subject, "nobody").await;
        let seen = tokio::time::timeout(PATIENCE, process(&hasty, messages(&keys))).await;
        assert_eq!(seen.expect("bounded"), "B".repeat(count), "held by a commit that hangs, and never acknowledged");
        let of_these = format!("SELECT count(*) = {count} FROM effects WHERE key LIKE '{count}-%'");
        assert_eq!(subject.texts(&of_these).await, ["f"], "invisible while it hangs");
        hang_commits(subject, "").await;
        until(subject, &of_these).await;
        assert_eq!(process(&patient(subject), messages(&keys)).await, "D".repeat(count));
        assert_eq!(subject.texts(&of_these).await, ["t"], "each effect once");
    }
}

/// Processes messages, and does this to their server process while it waits for the standby.
async fn while_it_hangs<T: PostgresUnderTest>(subject: &T, keys: &[String], act: &str) -> String {
    let consumer = patient(subject);
    consumer.start().await.unwrap();
    hang_commits(subject, "nobody").await;
    let acting = async {
        until(subject, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await;
        subject.texts(&format!("SELECT {act}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")).await
    };
    let (seen, _) = tokio::join!(process(&consumer, messages(keys)), acting);
    assert_eq!(effects(subject).await, keys);
    hang_commits(subject, "").await;
    seen
}

/// A10, D6: the backend is terminated while it waits: the client sees a broken connection, and the batch is committed.
pub async fn a10_d6_a_backend_terminated_during_commit_is_unknown_and_resolved<T: PostgresUnderTest>(subject: &T) {
    let seen = while_it_hangs(subject, &keys(100), "pg_terminate_backend").await;
    assert_eq!(seen, "D".repeat(100), "the record that was read decides");
}

/// A8: an operator cancels the wait. The server answers with success and a warning: a documented limit, pinned here.
pub async fn a8_a_cancelled_wait_for_a_standby_counts_as_committed<T: PostgresUnderTest>(subject: &T) {
    assert_eq!(while_it_hangs(subject, &keys(1), "pg_cancel_backend").await, "P");
}
