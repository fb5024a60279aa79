//! Registration, attempts, dead letters, replays, controls and the audit trail.

use std::sync::Arc;

use idem_core::{
    Bytes, ConsumerName, ErrorClass, IdempotencyKey, Message, Store as _, StoreError, Tenant,
    dead_letter::{DeadLetter, DueEnd, DueFailure, DueRoom, FailureKind, Fingerprint, Reason},
    hash::PayloadHash,
    message::{Headers, Origin},
    store::{AuditEntry, Bookkeeping, ControlState, HashRuleId, RunId, ScopeId},
};
use idem_sqlx::{SqliteOptions, SqliteStore, Synchronous};

use super::{File, fresh, registered, registration};

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_bound_by_what_its_starts_say() {
    let (_file, store) = fresh().await;
    let first = store.bookkeeping().register(&registration()).await.unwrap();
    let bound = registration()
        .bound_to(Some("memory/q1".to_owned()))
        .handler(Some("ledger".to_owned()))
        .hash_rules(vec!["json/1".to_owned(), "raw/1".to_owned()]);
    // The first registration that names an open binding binds it; another current rule is fine while the former is
    // known.
    let second = store.bookkeeping().register(&bound).await.unwrap();
    assert_eq!((first.scope, first.hash_rules[0]), (second.scope, second.hash_rules[1]));
    assert!(second.run > first.run);
    let unbound = registration().hash_rules(bound.hash_rules.clone());
    store.bookkeeping().register(&unbound).await.unwrap();
    for (change, what, recorded, found) in [
        (bound.clone().bound_to(Some("memory/q2".to_owned())), "source", "memory/q1", "memory/q2"),
        (bound.clone().handler(Some("other".to_owned())), "handler", "ledger", "other"),
        (bound.clone().key_rule("body".to_owned()), "key rules", "header", "body"),
        (bound.clone().hash_rules(vec!["raw/1".to_owned()]), "hash rules", "json/1", "raw/1"),
    ] {
        let error = store.bookkeeping().register(&change).await.unwrap_err();
        let StoreError::Bound { what: part, .. } = &error else { panic!("{error}") };
        assert_eq!(*part, what);
        let text = error.to_string();
        assert!(text.contains(recorded) && text.contains(found), "{text}");
    }
}

/// O78: after a restore from before its rename, a consumer begins anew on the source of the one that it was.
#[tokio::test(flavor = "multi_thread")]
async fn o78_a_second_consumer_of_one_source_is_warned_of() {
    let (_file, store) = fresh().await;
    let of = |name: &str, source: &str| {
        registration().consumer(ConsumerName::new(name).unwrap()).bound_to(Some(source.to_owned()))
    };
    let is_told = async |name: &str, source: &str| {
        let registered = store.bookkeeping().register(&of(name, source)).await.unwrap();
        registered.warnings.iter().any(|warning| warning.contains("consumer orders is bound to memory/q1 too"))
    };
    assert!(!is_told("orders", "memory/q1").await);
    assert!(!is_told("orders", "memory/q1").await, "it is the only one");
    assert!(!is_told("mails", "memory/q2").await, "it has another source");
    assert!(is_told("purchases", "memory/q1").await);
}

/// S2: the same consumer and key of two tenants are two scopes.
#[tokio::test(flavor = "multi_thread")]
async fn s2_tenants_and_consumers_have_scopes_of_their_own() {
    let (_file, store) = fresh().await;
    let scope = registered(&store).await;
    let (orders, tenant) = (ConsumerName::new("orders").unwrap(), Tenant::new("acme").unwrap());
    let acme = store.bookkeeping().scope(&orders, &tenant).await.unwrap();
    assert_ne!(acme, scope);
    assert_eq!(store.bookkeeping().scope(&orders, &tenant).await.unwrap(), acme);
    assert_eq!(store.bookkeeping().scope(&orders, &Tenant::default()).await.unwrap(), scope);
    let other = registration().consumer(ConsumerName::new("other").unwrap());
    assert_ne!(store.bookkeeping().register(&other).await.unwrap().scope, scope);
    let error = store.bookkeeping().scope(&ConsumerName::new("nobody").unwrap(), &tenant).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    // Attempts of one scope are not another's.
    assert_eq!(store.bookkeeping().count_attempt(scope, &key("a"), PayloadHash::NONE).await.unwrap(), 1);
    assert_eq!(store.bookkeeping().count_attempt(acme, &key("a"), PayloadHash::NONE).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weak_setting_is_a_warning_of_every_start() {
    let file = File::new();
    for (synchronous, warnings) in [(Synchronous::Full, 0), (Synchronous::Normal, 1)] {
        let store = SqliteStore::connect(SqliteOptions::new(file.path()).synchronous(synchronous)).await.unwrap();
        store.migrate().await.unwrap();
        assert_eq!(store.bookkeeping().register(&registration()).await.unwrap().warnings.len(), warnings);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_per_key_and_payload() {
    let (_file, store) = fresh().await;
    let scope = registered(&store).await;
    let (one, two) = (PayloadHash::of(b"1"), PayloadHash::of(b"2"));
    let count = async |hash| store.bookkeeping().count_attempt(scope, &key("a"), hash).await.unwrap();
    assert_eq!((count(one).await, count(one).await, count(one).await), (1, 2, 3));
    store.bookkeeping().uncount_attempt(scope, &key("a"), one).await.unwrap();
    assert_eq!(count(one).await, 3);
    assert_eq!(count(two).await, 1, "another payload is another message");
    for _ in 0..3 {
        store.bookkeeping().uncount_attempt(scope, &key("a"), two).await.unwrap();
    }
    assert_eq!(count(two).await, 1, "never below zero");
    store.bookkeeping().uncount_attempt(scope, &key("unknown"), one).await.unwrap();
}

pub(super) fn letter(scope: ScopeId, origin: &str, key_text: Option<&str>, reason: Reason) -> DeadLetter {
    let mut headers = Headers::default();
    headers.push("a", Some(Bytes::from_static(b"1")));
    headers.push("a", None);
    headers.push("binary", Some(Bytes::from_static(&[0xff, 0])));
    DeadLetter {
        consumer: ConsumerName::new("orders").unwrap(),
        scope,
        message: Message::new(vec![0, 0xff, b'x'])
            .with_headers(headers)
            .with_id("id-1")
            .with_type("created")
            .with_record_key(vec![1, 0])
            .with_origin(Origin::new(origin)),
        key: key_text.map(key),
        hash: Some((PayloadHash::of(b"x"), HashRuleId(1))),
        reason,
        attempts: 5,
        error: "the handler failed".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(reason, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_one_row_an_origin_and_counts_its_equals() {
    let (_file, store) = fresh().await;
    let scope = registered(&store).await;
    let first =
        store.bookkeeping().store_dead_letter(&letter(scope, "q/1", Some("a"), Reason::Permanent)).await.unwrap();
    assert_eq!((first.copies, first.attempts, first.reason), (1, 5, Reason::Permanent));
    assert_eq!(
        store.bookkeeping().store_dead_letter(&letter(scope, "q/1", Some("a"), Reason::Permanent)).await.unwrap(),
        first
    );
    let copy =
        store.bookkeeping().store_dead_letter(&letter(scope, "q/2", Some("a"), Reason::Permanent)).await.unwrap();
    assert_eq!((copy.id, copy.copies, copy.origin.as_str()), (first.id, 2, "q/1"));
    let again =
        store.bookkeeping().store_dead_letter(&letter(scope, "q/2", Some("a"), Reason::Permanent)).await.unwrap();
    assert_eq!((again.id, again.copies), (first.id, 2), "what a crash brings back is not counted");
    // Another reason, and a message without a key, are rows of their own.
    let conflict =
        store.bookkeeping().store_dead_letter(&letter(scope, "q/3", Some("a"), Reason::Conflict)).await.unwrap();
    let keyless = store.bookkeeping().store_dead_letter(&letter(scope, "q/4", None, Reason::MissingKey)).await.unwrap();
    let other = store.bookkeeping().store_dead_letter(&letter(scope, "q/5", None, Reason::MissingKey)).await.unwrap();
    assert!(first.id < conflict.id && conflict.id < keyless.id && keyless.id < other.id);
    assert_eq!(keyless.key, None);
    store.bookkeeping().mark_published(conflict.id).await.unwrap();
    let listed = store.bookkeeping().dead_letters(&ConsumerName::new("orders").unwrap(), 2).await.unwrap();
    assert_eq!(listed.iter().map(|letter| letter.id).collect::<Vec<_>>(), [other.id, keyless.id]);
    let all = store.bookkeeping().dead_letters(&ConsumerName::new("orders").unwrap(), 100).await.unwrap();
    let published: Vec<_> = all.iter().filter(|letter| letter.published_at.is_some()).map(|letter| letter.id).collect();
    assert_eq!(published, [conflict.id]);
    assert!(store.bookkeeping().dead_letters(&ConsumerName::new("other").unwrap(), 100).await.unwrap().is_empty());
}

/// A replay gives the message back as it was delivered, to one worker, and a released one to the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_taken_once_and_whole() {
    let (file, store) = fresh().await;
    let scope = registered(&store).await;
    let orders = ConsumerName::new("orders").unwrap();
    let stored =
        store.bookkeeping().store_dead_letter(&letter(scope, "q/1", Some("a"), Reason::Permanent)).await.unwrap();
    let tombstone = DeadLetter {
        message: Message::tombstone().with_origin(Origin::new("q/2")),
        ..letter(scope, "q/2", Some("b"), Reason::Permanent)
    };
    let empty = store.bookkeeping().store_dead_letter(&tombstone).await.unwrap();
    let dropped = DeadLetter { keep_payload: false, ..letter(scope, "q/3", Some("c"), Reason::TooLarge) };
    let dropped = store.bookkeeping().store_dead_letter(&dropped).await.unwrap();
    assert!(
        store.bookkeeping().take_due(&orders, RunId(1), DueRoom::rows(10)).await.unwrap().is_empty(),
        "nobody asked"
    );
    assert_eq!(
        store.bookkeeping().due_now(&[stored.id, empty.id, dropped.id], "ann").await.unwrap(),
        2,
        "one has no payload"
    );
    assert_eq!(store.bookkeeping().due_now(&[stored.id], "ann").await.unwrap(), 0, "it is asked for already");
    let (one, two) = tokio::join!(
        store.bookkeeping().take_due(&orders, RunId(1), DueRoom::rows(10)),
        store.bookkeeping().take_due(&orders, RunId(2), DueRoom::rows(10))
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.len() + two.len(), 2);
    let taken: Vec<_> = one.into_iter().chain(two).collect();
    assert_eq!(taken.iter().map(|replay| replay.id).collect::<Vec<_>>(), [stored.id, empty.id]);
    let original = letter(scope, "q/1", Some("a"), Reason::Permanent);
    assert_eq!(taken[0].message, original.message);
    assert_eq!((taken[0].key.clone(), taken[0].scope), (original.key, scope));
    assert_eq!(taken[1].message.payload(), None);
    let takers = [RunId(1), RunId(2)];
    for run in takers {
        store.bookkeeping().release_due(run, &[stored.id]).await.unwrap();
    }
    assert_eq!(store.bookkeeping().take_due(&orders, RunId(3), DueRoom::rows(10)).await.unwrap().len(), 1);
    store.bookkeeping().end_due(RunId(3), &[(stored.id, DueEnd::Processed)]).await.unwrap();
    let failed = DueEnd::Failed(DueFailure::new(Reason::Permanent, "again"));
    for run in takers {
        store.bookkeeping().end_due(run, &[(empty.id, failed.clone())]).await.unwrap();
    }
    let listed = store.bookkeeping().dead_letters(&orders, 10).await.unwrap();
    let replayed = |id| listed.iter().find(|letter| letter.id == id).unwrap().replayed.clone();
    assert_eq!(replayed(stored.id).as_deref(), Some("processed"));
    assert_eq!(replayed(empty.id).as_deref(), Some("failed: permanent: again"));
    assert_eq!(replayed(dropped.id), None);
    // A replay whose worker died can be taken again after a while.
    assert_eq!(store.bookkeeping().due_now(&[empty.id], "ann").await.unwrap(), 1);
    assert_eq!(store.bookkeeping().take_due(&orders, RunId(4), DueRoom::rows(10)).await.unwrap().len(), 1);
    assert!(store.bookkeeping().take_due(&orders, RunId(5), DueRoom::rows(10)).await.unwrap().is_empty());
    file.run("UPDATE idem_dead_letters SET taken_at = 1 WHERE taken_at IS NOT NULL").await;
    assert_eq!(store.bookkeeping().take_due(&orders, RunId(5), DueRoom::rows(10)).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn controls_and_the_audit_trail_are_kept() {
    let (file, store) = fresh().await;
    let scope = registered(&store).await;
    let control = store.bookkeeping().control(scope).await.unwrap();
    assert_eq!((control.state, control.epoch, control.by.as_str()), (ControlState::Running, 0, ""));
    store.bookkeeping().set_control(scope, ControlState::Paused, "ann", "a deploy").await.unwrap();
    let control = store.bookkeeping().control(scope).await.unwrap();
    assert_eq!(
        (control.state, control.by.as_str(), control.reason.as_str()),
        (ControlState::Paused, "ann", "a deploy")
    );
    store.bookkeeping().set_control(scope, ControlState::Halted, "run 1", "conflict").await.unwrap();
    assert_eq!(store.bookkeeping().control(scope).await.unwrap().state, ControlState::Halted);
    store.bookkeeping().set_control(scope, ControlState::Running, "ann", "done").await.unwrap();
    let control = store.bookkeeping().control(scope).await.unwrap();
    assert_eq!((control.state, control.by.as_str()), (ControlState::Running, ""));
    let entry = AuditEntry::new("run 1".to_owned(), "conflict", scope, "both hashes".to_owned()).key(Some(key("a")));
    store.bookkeeping().audit(&entry).await.unwrap();
    store.bookkeeping().audit(&entry.key(None).action("halt")).await.unwrap();
    let lines = file.ask("SELECT action || ' ' || ifnull(idempotency_key, '-') FROM idem_audit ORDER BY id").await;
    assert_eq!(lines, ["conflict a", "halt -"]);
}

/// Calls that are dropped at any point leave the store able to serve the next.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_leave_no_lock_behind() {
    let (_file, store) = fresh().await;
    let scope = registered(&store).await;
    for polls in 0..40 {
        let store = Arc::clone(&store);
        let letter = letter(scope, &format!("q/{polls}"), Some("a"), Reason::Permanent);
        let mut call = Box::pin(async move { store.bookkeeping().store_dead_letter(&letter).await });
        for _ in 0..polls {
            if poll_once(call.as_mut()).await {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let last =
        store.bookkeeping().store_dead_letter(&letter(scope, "q/last", Some("z"), Reason::Permanent)).await.unwrap();
    assert_eq!(last.copies, 1);
}

/// Polls a future once, and says whether it is done.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// S20: the file and those beside it are readable by their owner alone under any umask: they hold payloads of dead
/// letters.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn s20_the_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let (file, store) = fresh().await;
    super::consumer(&store).process(vec![super::message("a", "1")]).await.unwrap();
    let folder = file.path().parent().unwrap();
    let modes: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name(), entry.metadata().unwrap().permissions().mode() & 0o777)
        })
        .collect();
    assert!(modes.len() >= 2 && modes.iter().all(|(_, mode)| *mode == 0o600), "{modes:?}");
    // SQLite makes the file that a link leads to.
    let (link, target) = (folder.join("link.db"), folder.join("behind/target.db"));
    std::fs::create_dir(folder.join("behind")).unwrap();
    std::os::unix::fs::symlink("behind/target.db", &link).unwrap();
    SqliteStore::open(&link).await.unwrap();
    assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    // One that is there already is left as it is.
    let other = folder.join("other.db");
    std::fs::write(&other, "").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o640)).unwrap();
    SqliteStore::open(&other).await.unwrap();
    assert_eq!(std::fs::metadata(&other).unwrap().permissions().mode() & 0o777, 0o640);
}
