//! Each reason for which a message is set aside: it can be had, and has its page in `docs/errors`.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime},
};

use idem_core::{
    Event, HandlerError, IdempotencyKey, Message, Router, Store as _, Tenant, Tx,
    config::OlderThanRetention,
    dead_letter::Reason,
    handler_fn,
    hash::{HashRules, JsonMembers, RawPayload},
    store::Bookkeeping as _,
    worker::WorkerBuilder,
};
use idem_testkit::{Decide as _, Defect, MemoryStore, memory::MemorySource};

use super::fixture::{Fixture, drain, message};

/// Why the worker has set the messages of its fixture aside.
async fn reasons(fixture: &Fixture, worker: WorkerBuilder<MemoryStore, MemorySource>) -> Vec<Reason> {
    drain(fixture, worker.breaker(false)).await;
    fixture.dead_letters().await.into_iter().map(|letter| letter.reason).collect()
}

async fn reasons_of_one_worker() -> Vec<Reason> {
    let fixture = Fixture::new();
    fixture.queue.publish(Message::new("{}")).unwrap();
    fixture.queue.publish(message("old", "ok").with_sent_at(SystemTime::UNIX_EPOCH)).unwrap();
    for (key, payload) in [
        ("", "ok"),
        ("large", &"x".repeat(2 << 20)),
        ("twice", "paid"),
        ("twice", "refunded"),
        ("refused", "permanent"),
        ("failing", "fail"),
        ("slow", "block"),
    ] {
        fixture.publish(key, payload);
    }
    let consumer = fixture.consumer().handler_deadline(Duration::from_millis(50)).build().unwrap();
    reasons(&fixture, fixture.worker_of(consumer).older_than_retention(OlderThanRetention::DeadLetter)).await
}

/// The keys differ in case, and this store's ids do not.
async fn reasons_of_colliding_ids() -> Vec<Reason> {
    let mut fixture = Fixture::new();
    fixture.store = MemoryStore::with_defect(Defect::CollidesKeys);
    fixture.publish("order", "ok");
    fixture.publish("ORDER", "ok");
    reasons(&fixture, fixture.worker()).await
}

/// The third release has forgotten how the first one hashed.
async fn reasons_of_a_forgotten_hash() -> Vec<Reason> {
    let fixture = Fixture::new();
    let first = || JsonMembers::only(["/a"]).unwrap();
    let releases = [HashRules::new(first()), HashRules::new(RawPayload).and_formerly(first())];
    for (number, rules) in releases.into_iter().enumerate() {
        let release = fixture.consumer().hash_rules(rules).build().unwrap();
        release.decisions(vec![message(&format!("of-release-{number}"), r#"{"a":1}"#)]).await.unwrap();
    }
    fixture.publish("of-release-0", r#"{"a":1}"#);
    reasons(&fixture, fixture.worker()).await
}

async fn reasons_of_a_router() -> Vec<Reason> {
    let fixture = Fixture::new();
    fixture.queue.publish(message("new", "ok").with_type("not-yet-known")).unwrap();
    let consumer = fixture.consumer().handler(Router::new().on("known", fixture.script.clone())).build().unwrap();
    reasons(&fixture, fixture.worker_of(consumer)).await
}

/// A handler that gives another event for the same message than before it was forgotten.
async fn reasons_of_another_event() -> Vec<Reason> {
    async fn publish(message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let body = RUNS.fetch_add(1, Ordering::Relaxed).to_string();
        tx.publish(message, Event::to("payments").body(body))?;
        Ok(())
    }
    let fixture = Fixture::new();
    let consumer = fixture.consumer().publish_to(["payments"]).handler(handler_fn(publish)).build().unwrap();
    consumer.decisions(vec![message("order-1", "ok")]).await.unwrap();
    let scope = fixture.store.bookkeeping().scope(consumer.name(), &Tenant::default()).await.unwrap();
    assert!(fixture.store.forget(scope, &IdempotencyKey::new("order-1").unwrap()));
    fixture.publish("order-1", "ok");
    reasons(&fixture, fixture.worker_of(consumer)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reason_can_be_had() {
    let all = [
        reasons_of_one_worker().await,
        reasons_of_colliding_ids().await,
        reasons_of_a_forgotten_hash().await,
        reasons_of_a_router().await,
        reasons_of_another_event().await,
    ];
    let mut had: Vec<&str> = all.concat().iter().map(|reason| reason.as_str()).collect();
    // What is behind a row waits, and is dead for a reason of its own.
    had.push(Reason::Behind.as_str());
    had.sort_unstable();
    let mut wanted = Reason::ALL.map(Reason::as_str);
    wanted.sort_unstable();
    assert_eq!(had, wanted);
}

#[test]
fn every_reason_has_its_page_and_every_page_its_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors");
    let read = |name: &str| std::fs::read_to_string(folder.join(format!("{name}.md"))).unwrap();
    let index = read("README");
    for reason in Reason::ALL {
        let page = read(reason.as_str());
        assert!(page.starts_with(&format!("# {reason}\n")), "{page}");
        assert!(page.contains("\n## What happened\n") && page.contains("\n## What to do\n"), "{page}");
        assert!(index.contains(&format!("[`{reason}`]({reason}.md)")), "{index}");
    }
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = files.filter(|file| file != "README.md").collect();
    assert_eq!(pages, Reason::ALL.iter().map(|reason| format!("{reason}.md")).collect());
}
