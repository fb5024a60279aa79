//! `idem dead-letters`, and their replay in a running worker.

use std::sync::Arc;

use idem_core::{CancellationToken, Effects, Store as _, Worker, dead_letter::Reason, store::Bookkeeping as _};
use idem_testkit::memory::{Broker, QueueOptions};

use crate::fixture::{Accepting, Fixture, PATIENCE, PAYLOAD, message, orders};

/// A fixture with dead letters 1 and 2 of the keys order-1 and order-2, which the handler refused, and 3, a conflict with
/// order-3.
pub(crate) async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.refused.lock().unwrap().extend(["order-1".to_owned(), "order-2".to_owned()]);
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    for key in ["order-1", "order-2", "order-3"] {
        queue.publish(message(key)).unwrap();
    }
    let conflict = idem_core::Message::new(format!("{PAYLOAD} other")).with_header("idempotencykey", "order-3");
    work(&fixture, &queue, async {
        queue.drained().await;
        queue.publish(conflict).unwrap();
        queue.drained().await;
    })
    .await;
    assert_eq!(
        fixture.texts("SELECT reason FROM dead_letters ORDER BY id").await,
        ["permanent", "permanent", "conflict"]
    );
    fixture
}

/// A worker that runs until this is done.
async fn work(fixture: &Fixture, queue: &idem_testkit::memory::Queue, until: impl Future<Output = ()>) {
    let consumer = idem_core::DedupConsumer::builder(fixture.store.clone(), "orders").effects(Effects::InTransaction);
    let consumer = consumer.handler(Accepting(Arc::clone(&fixture.refused))).lanes(1).build().unwrap();
    let worker = Worker::builder(consumer, queue.source()).cleanup(None).breaker(false).build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    tokio::time::timeout(PATIENCE, until).await.unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_listing_shows_no_payload_and_reading_one_is_written_down() {
    let fixture = fixture().await;
    let listed = fixture.idem("dead-letters list --json").json();
    let letters = listed["dead_letters"].as_array().unwrap();
    assert_eq!(
        letters.iter().map(|letter| letter["key"].as_str().unwrap()).collect::<Vec<_>>(),
        ["order-3", "order-2", "order-1"]
    );
    let listed = fixture.idem("dead-letters list --reason conflict --consumer orders").ok();
    assert!(listed.contains("order-3") && !listed.contains("order-1") && !listed.contains(PAYLOAD), "{listed}");
    assert!(fixture.idem("dead-letters list --to 2020-01-01T00:00:00Z").ok().contains("no dead letters"));
    let shown = fixture.idem("dead-letters show 1").ok();
    assert!(shown.contains("order-1") && !shown.contains(PAYLOAD), "{shown}");
    assert!(fixture.trail().await.iter().all(|line| !line.contains("read-payload")));
    assert!(fixture.idem("dead-letters show 1 --payload").ok().contains(PAYLOAD));
    assert!(fixture.trail().await.contains(&"ada read-payload order-1 dead letter 1".to_owned()));
    fixture.idem("dead-letters show 99").refused("no dead letter 99");
    fixture.idem("dead-letters list --reason bad").refused("must be one of malformed");
    fixture.drop().await;
}

/// W160: nothing of a key in progress can be seen before its commit. Who looks at it is told so, and who wants it forgotten first is refused.
#[tokio::test(flavor = "multi_thread")]
async fn w160_a_key_in_progress_is_told_and_not_forgotten_first() {
    let fixture = fixture().await;
    let looks = |key: &str| tokio::task::block_in_place(|| fixture.idem(&format!("show {key} --consumer orders")).ok());
    assert!(looks("order-1").contains("A redelivery is handled"));
    // Another worker's unit, before its commit.
    let mut unit = fixture.admin.acquire().await.unwrap();
    let claim = "BEGIN; CREATE TEMP TABLE claim ON COMMIT DROP AS SELECT * FROM processed_messages WHERE idempotency_key = 'order-3';
        UPDATE claim SET idempotency_key = 'order-1', key_id = key_id('order-1');
        INSERT INTO processed_messages SELECT * FROM claim";
    sqlx::raw_sql(claim).execute(&mut *unit).await.unwrap();
    let shown = looks("order-1");
    assert!(shown.contains("The key is in progress") && !shown.contains("is handled"), "{shown}");
    assert!(looks("order-3").contains("is skipped as a duplicate"), "its record stands");
    let trail = fixture.trail().await;
    let why = "the key \"order-1\" cannot be forgotten first: the key is in progress";
    tokio::task::block_in_place(|| fixture.idem("dead-letters replay 1 --forget-first --yes").refused(why));
    assert_eq!(fixture.trail().await, trail, "nothing was changed");
    sqlx::raw_sql("ROLLBACK").execute(&mut *unit).await.unwrap();
    assert!(looks("order-1").contains("A redelivery is handled"));
    assert!(fixture.idem("dead-letters replay 1 --forget-first --yes").ok().contains("1 asked for"));
    fixture.drop().await;
}

/// C7: a message that was set aside left no record, so its replay runs, once, in a running worker.
#[tokio::test]
async fn c7_a_replay_runs_in_a_running_worker() {
    let fixture = fixture().await;
    fixture.idem("dead-letters replay").refused("say which");
    fixture.idem("dead-letters replay --consumer orders --yes").refused("--forget-first");
    fixture.idem("dead-letters replay 1").refused("give --yes");
    assert!(fixture.idem("dead-letters replay 1 2 --dry-run").ok().contains("2 would be replayed"));
    fixture.refused.lock().unwrap().retain(|key| key == "order-2");
    assert!(
        fixture.idem("dead-letters replay --consumer orders --reason permanent --yes").ok().contains("2 asked for")
    );
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&fixture, &queue, async {
        fixture.until("SELECT replay_outcome FROM dead_letters WHERE id = 1", "processed").await;
        fixture.until("SELECT replayed_at IS NOT NULL FROM dead_letters WHERE id = 2", "t").await;
    })
    .await;
    assert_eq!(fixture.deliver(&["order-1"]).await, "D", "it took effect once");
    let outcome = fixture.texts("SELECT replay_outcome FROM dead_letters WHERE id = 2").await;
    assert!(outcome[0].starts_with("failed: permanent"), "{outcome:?}");
    let trail = fixture.trail().await;
    assert!(trail.contains(&"ada replay order-1 dead letter 1".to_owned()), "{trail:?}");
    fixture.drop().await;
}

/// A conflict can be replayed once its key was forgotten: the payload that was refused then takes effect.
#[tokio::test]
async fn a_conflict_is_replayed_after_its_key_was_forgotten() {
    let fixture = fixture().await;
    fixture.idem("dead-letters replay 3 --yes").refused("another payload");
    fixture.idem("forget order-3 --consumer orders --reason the-other-is-right --yes").ok();
    fixture.idem("dead-letters replay 3 --yes").ok();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&fixture, &queue, fixture.until("SELECT replay_outcome FROM dead_letters WHERE id = 3", "processed")).await;
    fixture.drop().await;
}

/// What is over comes last, and `--open` leaves it out. A group of conflicts is let in by one command.
#[tokio::test]
async fn open_dead_letters_come_first_and_a_group_of_conflicts_is_replayed_together() {
    let fixture = fixture().await;
    let closed = "SET replayed_at = now(), replay_outcome = 'processed' WHERE id = 3";
    fixture.run(&format!("UPDATE dead_letters {closed}")).await;
    let ids = |arguments: &str| {
        let listed = fixture.idem(&format!("dead-letters list --json {arguments}")).json();
        let letters = listed["dead_letters"].as_array().unwrap();
        letters.iter().map(|letter| letter["id"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((ids(""), ids("--open")), (vec![2, 1, 3], vec![2, 1]));
    for newest in ["", "--newest"] {
        let groups = fixture.idem(&format!("dead-letters groups --json {newest}")).json();
        let open = groups["groups_of_dead_letters"].as_array().unwrap().iter().map(|group| group["open"].as_i64());
        assert_eq!(open.collect::<Vec<_>>(), [Some(2), Some(0)], "{newest}");
    }
    // It failed again, so it is open.
    fixture.run("UPDATE dead_letters SET replay_outcome = 'failed: conflict' WHERE id = 3").await;
    let group = fixture.texts("SELECT fingerprint FROM dead_letters WHERE id = 3").await.remove(0);
    let replay = format!("dead-letters replay --group {group} --forget-first");
    assert!(fixture.idem(&format!("{replay} --dry-run")).ok().contains("1 would be replayed"));
    fixture.idem("dead-letters replay --consumer orders --forget-first --yes").refused("by their ids or --group");
    assert!(fixture.idem(&format!("{replay} --yes")).ok().contains("idem forgotten restore"));
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&fixture, &queue, fixture.until("SELECT replay_outcome FROM dead_letters WHERE id = 3", "processed")).await;
    // What has taken effect does not run again with its group, nor is a record forgotten that no conflict met.
    let records = "SELECT idempotency_key FROM processed_messages ORDER BY 1";
    fixture.refused.lock().unwrap().clear();
    assert_eq!(fixture.deliver(&["order-1"]).await, "P");
    let others = fixture.texts("SELECT fingerprint FROM dead_letters WHERE id = 1").await.remove(0);
    fixture.idem(&format!("{replay} --yes")).refused("no such dead letter has the group");
    fixture.idem(&format!("dead-letters replay --group {others} --forget-first --yes")).refused("no conflicts");
    assert_eq!(fixture.texts(records).await, ["order-1", "order-3"]);
    fixture.drop().await;
}

#[tokio::test]
async fn dropped_dead_letters_are_gone_and_written_down() {
    let fixture = fixture().await;
    fixture.idem("dead-letters drop 1 --yes").refused("--because");
    fixture.idem("dead-letters drop 1 --because test-data").refused("1 dead letters for good");
    fixture.idem("dead-letters drop --because x --yes").refused("say which");
    assert!(fixture.idem("dead-letters drop 1 --because test-data --yes").ok().contains("1 dropped"));
    assert_eq!(fixture.texts("SELECT id FROM dead_letters ORDER BY id").await, ["2", "3"]);
    assert!(fixture.trail().await.contains(&"ada drop order-1 dead letter 1: test-data".to_owned()));
    fixture.drop().await;
}

/// A replay that would only fail again is refused by its reason, with the option that changes that.
#[tokio::test]
async fn a_replay_that_would_fail_again_is_refused_with_the_option_that_helps() {
    let fixture = fixture().await;
    let row = "(consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload, headers)";
    let orders = orders().0;
    fixture
        .run(&format!(
            "INSERT INTO dead_letters {row} VALUES ({orders}, 'o/4', 'o/4', 'missing-key', 1, '', 'x', 1, true, NULL),
                 ({orders}, 'o/5', 'o/5', 'malformed', 1, '', '{{', 1, true, '[[\"idempotencykey\", \"order-5\"]]'),
                 ({orders}, 'o/6', 'o/6', 'too-large', 1, '', NULL, 9, true, NULL)"
        ))
        .await;
    for (id, option) in [(3, "--forget-first"), (4, "--key KEY"), (5, "--payload FILE"), (6, "too large to keep")] {
        fixture.idem(&format!("dead-letters replay {id} --yes")).refused(option);
    }
    fixture.idem("dead-letters replay 3 4 --key order-9 --yes").refused("for one dead letter");
    fixture.idem("dead-letters replay --consumer orders --forget-first --yes").refused("by their ids");
    let file = std::env::temp_dir().join(format!("{}.json", fixture.schema));
    std::fs::write(&file, "{}").unwrap();
    fixture.idem(&format!("dead-letters replay 5 --payload {} --dry-run", file.display())).ok();
    assert_eq!(fixture.texts("SELECT convert_from(payload, 'UTF8') FROM dead_letters WHERE id = 5").await, ["{"]);
    fixture.idem(&format!("dead-letters replay 5 --payload {} --yes", file.display())).ok();
    fixture.idem("dead-letters replay 4 --key order-4 --yes").ok();
    let answer = fixture.idem("dead-letters replay 3 --forget-first --yes").ok();
    assert!(answer.contains("idem forgotten restore"), "{answer}");
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&fixture, &queue, async {
        for id in [3, 4, 5] {
            fixture.until(&format!("SELECT replay_outcome FROM dead_letters WHERE id = {id}"), "processed").await;
        }
    })
    .await;
    let keys = fixture.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await;
    assert_eq!(keys, ["order-3", "order-4", "order-5"]);
    std::fs::remove_file(file).unwrap();
    fixture.drop().await;
}

/// A29: a dead letter that was given another payload no longer has the message that it was. A copy of that one, from elsewhere,
/// is another dead letter, or it would be acknowledged and be nowhere.
#[tokio::test]
async fn a29_a_dead_letter_with_another_payload_is_another_message() {
    let fixture = fixture().await;
    let first = letter(&fixture, "o/8", "as it was", Reason::Permanent).await;
    let file = std::env::temp_dir().join(format!("{}-other.json", fixture.schema));
    std::fs::write(&file, "mended").unwrap();
    fixture.idem(&format!("dead-letters replay {} --payload {} --yes", first.id.0, file.display())).ok();
    let again = letter(&fixture, "o/8", "as it was", Reason::Permanent).await;
    assert_ne!(again.id, first.id);
    let payloads = "SELECT convert_from(payload, 'UTF8') FROM dead_letters WHERE origin = 'o/8' ORDER BY id";
    assert_eq!(fixture.texts(payloads).await, ["mended", "as it was"]);
    std::fs::remove_file(file).unwrap();
    fixture.drop().await;
}

/// A conflict that is another message is replayed under a key of its own; the record of the first stays.
#[tokio::test]
async fn a_conflict_is_replayed_under_a_new_key() {
    let fixture = fixture().await;
    fixture.idem("dead-letters replay 3 --new-key order-3b --yes").ok();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&fixture, &queue, fixture.until("SELECT replay_outcome FROM dead_letters WHERE id = 3", "processed")).await;
    let keys = fixture.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await;
    assert_eq!(keys, ["order-3", "order-3b"]);
    assert!(fixture.trail().await.contains(&"ada change-key order-3b dead letter 3".to_owned()));
    fixture.drop().await;
}

/// U6: a mistyped number or group is refused, and does not look like a success that found nothing to do.
#[tokio::test]
async fn u6_what_is_not_there_is_refused() {
    let fixture = fixture().await;
    for command in
        ["replay 99999 --yes", "replay 1 99999 --dry-run", "replay --yes -- -1", "drop 99999 --because x --yes"]
    {
        let missing = if command.contains("-1") { "-1" } else { "99999" };
        fixture.idem(&format!("dead-letters {command}")).refused(&format!("there is no dead letter {missing}"));
    }
    let nobody = "--group f1-0123456789abcdef";
    fixture.idem(&format!("dead-letters replay {nobody} --yes")).refused("idem dead-letters groups");
    fixture.idem(&format!("dead-letters drop {nobody} --because x --yes")).refused("idem dead-letters groups");
    fixture.idem("dead-letters list --group small").refused("16 hexadecimal digits");
    assert_eq!(fixture.texts("SELECT count(*) FROM dead_letters WHERE state = 0").await, ["3"]);
    fixture.drop().await;
}

/// Further dead letters of the consumer, each with this error and fingerprint.
async fn add(fixture: &Fixture, count: i64, group: &str, error: &str) {
    let orders = orders().0;
    let text = format!(
        "INSERT INTO dead_letters (consumer, origin, last_origin, reason, attempts, error, fingerprint, payload, payload_bytes,
             has_payload, identity)
         SELECT {orders}, 'o/{group}/' || n, 'o/{group}/' || n, 'permanent', 1, '{error}', '{group}', 'x', 1, true,
             sha256(('{group}' || n)::bytea) FROM generate_series(1, {count}) AS n"
    );
    fixture.run(&text).await;
}

/// U36: after a bad deploy, thousands of dead letters are a few groups, and a group is replayed or dropped as one.
#[tokio::test]
async fn u36_what_failed_alike_is_counted_listed_replayed_and_dropped_together() {
    let fixture = fixture().await;
    let (small, large) = ("f1-00000000000000aa", "f1-00000000000000bb");
    add(&fixture, 3, small, "SQLSTATE 23514 constraint small").await;
    add(&fixture, 3005, large, "SQLSTATE 22003").await;
    let listed = fixture.idem("dead-letters list").ok();
    assert!(listed.contains("50 of 3,011; --limit N"), "{listed}");
    assert!(!fixture.idem("dead-letters list --limit 5000").ok().contains(" of 3,011"));

    let groups = fixture.idem("dead-letters groups --json").json();
    let groups = groups["groups_of_dead_letters"].as_array().unwrap();
    let row = |group: &str| groups.iter().find(|row| row["group"] == group).unwrap();
    assert_eq!((&groups[0]["group"], &groups[0]["dead_letters"]), (&large.into(), &3005.into()));
    let of_small = row(small);
    assert_eq!((&of_small["consumer"], &of_small["reason"]), (&"orders".into(), &"permanent".into()));
    assert_eq!((&of_small["dead_letters"], &of_small["open"], &of_small["copies"]), (&3.into(), &3.into(), &3.into()));
    assert_eq!(of_small["error"], "SQLSTATE 23514 constraint small");
    assert!(of_small["first_at"].is_string() && of_small["last_at"].is_string());
    // Those of the handler are one group, and the conflict is another, with the facts that the worker knew of them.
    let reasons: Vec<_> =
        groups.iter().map(|row| (row["reason"].as_str().unwrap(), row["dead_letters"].as_i64())).collect();
    assert!(reasons.contains(&("permanent", Some(2))) && reasons.contains(&("conflict", Some(1))), "{reasons:?}");
    assert!(groups.iter().all(|row| row["group"].is_string()), "{groups:?}");
    fixture.idem("dead-letters groups --consumer nobody").refused("no consumer");
    let newest = fixture.idem("dead-letters groups --newest --limit 1 --json").json();
    assert_eq!(newest["groups_of_dead_letters"][0]["group"], large);

    let listed = fixture.idem(&format!("dead-letters list --group {small}")).ok();
    assert!(listed.matches("constraint small").count() == 3 && !listed.contains("22003"), "{listed}");
    let replayed = fixture.idem(&format!("dead-letters replay --group {small} --consumer orders --yes")).ok();
    assert!(replayed.contains("3 asked for"), "{replayed}");
    assert!(
        fixture.idem(&format!("dead-letters drop --group {large} --because x --yes")).ok().contains("3005 dropped")
    );
    assert_eq!(fixture.texts("SELECT count(*) FROM dead_letters").await, ["6"]);
    let asked = "SELECT count(*) FROM dead_letters WHERE state <> 0";
    assert_eq!(fixture.texts(asked).await, ["3"]);
    fixture.drop().await;
}

/// A dead letter without a key, as a worker sets one aside. One that is too large is not kept.
async fn letter(
    fixture: &Fixture,
    origin: &str,
    payload: &str,
    reason: Reason,
) -> idem_core::dead_letter::StoredDeadLetter {
    let letter = failed(fixture, origin, payload, reason).await;
    fixture.store.bookkeeping().store_dead_letter(&letter).await.unwrap()
}

async fn failed(fixture: &Fixture, origin: &str, payload: &str, reason: Reason) -> idem_core::dead_letter::DeadLetter {
    use idem_core::{
        ErrorClass, Tenant,
        dead_letter::{FailureKind, Fingerprint},
        message::Origin,
    };

    let name = idem_core::ConsumerName::new("orders").unwrap();
    idem_core::dead_letter::DeadLetter {
        scope: fixture.store.bookkeeping().scope(&name, &Tenant::default()).await.unwrap(),
        consumer: name,
        message: idem_core::Message::new(payload.to_owned()).with_origin(Origin::new(origin)),
        key: None,
        hash: None,
        reason,
        attempts: 1,
        error: format!("it is {reason}"),
        fingerprint: Fingerprint::of(&FailureKind::new(reason, ErrorClass::Permanent)),
        keep_payload: reason != Reason::TooLarge,
        payload_omitted: None,
    }
}

/// A39: a message that can be kept nowhere waits in plain sight, and is given up only with a reason; the
/// trail keeps how much it was and its hash.
#[tokio::test]
async fn a39_a_held_message_is_shown_and_given_up_only_by_name() {
    let fixture = fixture().await;
    let (one, two) = (
        letter(&fixture, "q/7", "first", Reason::TooLarge).await,
        letter(&fixture, "q/8", "second", Reason::TooLarge).await,
    );
    let other = letter(&fixture, "q/8", "third", Reason::TooLarge).await;
    let stuck = fixture.idem("stuck --json").json();
    let held = stuck["held_dead_letters"].as_array().unwrap();
    assert_eq!(
        held.iter().map(|row| row["id"].as_i64()).collect::<Vec<_>>(),
        [one.id, two.id, other.id].map(|id| Some(id.0))
    );
    assert_eq!((&held[0]["origin"], &held[0]["bytes"]), (&"q/7".into(), &5.into()));
    assert!(held[0]["since"].is_string());
    assert!(fixture.idem("stuck").ok().contains("accept-loss"));

    fixture.idem("dead-letters accept-loss q/7 --yes").refused("--reason");
    fixture.idem("dead-letters accept-loss q/7 --reason junk").refused("give --yes");
    fixture.idem("dead-letters accept-loss 1 --reason junk --yes").refused("dead letter 1 is not held");
    fixture.idem("dead-letters accept-loss 99 --reason junk --yes").refused("there is no dead letter 99");
    fixture.idem("dead-letters accept-loss q/9 --reason junk --yes").refused("no dead letter from \"q/9\" is held");
    fixture.idem("dead-letters accept-loss q/8 --reason junk --yes").refused("say which by id");
    assert!(!letter(&fixture, "q/7", "first", Reason::TooLarge).await.loss_accepted);

    assert!(fixture.idem("dead-letters accept-loss q/7 --reason junk --yes").ok().contains("1 accepted"));
    fixture.idem(&format!("dead-letters accept-loss {} --reason junk --yes", two.id.0)).ok();
    let accepted = letter(&fixture, "q/7", "first", Reason::TooLarge).await;
    assert!(accepted.loss_accepted && !accepted.payload_kept && accepted.id == one.id, "{accepted:?}");
    assert!(
        !letter(&fixture, "q/8", "third", Reason::TooLarge).await.loss_accepted,
        "nobody gave up the other message of that origin"
    );
    let hash = idem_core::hash::PayloadHash::of(b"first");
    let line = format!("ada accept-loss dead letter {} from q/7, 5 bytes with the hash {hash} (raw/1): junk", one.id.0);
    let trail = fixture.trail().await;
    assert!(trail.contains(&line), "{trail:?}");
    fixture.idem("dead-letters accept-loss q/7 --reason junk --yes").refused("is held");
    let held = fixture.idem("stuck --json").json();
    assert_eq!(held["held_dead_letters"].as_array().unwrap().len(), 1);
    let seen =
        fixture.texts("SELECT loss_accepted_by FROM dead_letters_view WHERE payload_kept IS FALSE ORDER BY id").await;
    assert_eq!(seen, ["ada", "ada", ""]);
    fixture.drop().await;
}

/// A message that waits for a later try is no dead letter: it is listed for itself, and replayed, dropped and erased by name.
#[tokio::test]
async fn what_waits_for_a_later_try_is_no_dead_letter() {
    use std::time::Duration;

    use idem_core::{IdempotencyKey, store::HashRuleId};

    let fixture = fixture().await;
    let mut ids = Vec::new();
    for number in 0..4 {
        let mut letter = failed(&fixture, &format!("q/{number}"), "late", Reason::AttemptsExhausted).await;
        letter.key = Some(IdempotencyKey::new(&format!("late-{number}")).unwrap());
        letter.hash = Some((letter.payload_hash().0, HashRuleId(1)));
        let after = Duration::from_secs(3_600 * (5 - number));
        ids.push(fixture.store.bookkeeping().put_aside(&letter, after).await.unwrap().id().0);
    }
    let keys = |listed: &serde_json::Value, table: &str| -> Vec<String> {
        listed[table].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
    };
    let dead = fixture.idem("dead-letters list --json").json();
    assert_eq!(keys(&dead, "dead_letters"), ["order-3", "order-2", "order-1"]);
    let waiting = fixture.idem("waiting --consumer orders --json").json();
    assert_eq!(keys(&waiting, "waiting_messages"), ["late-3", "late-2", "late-1", "late-0"], "the next one first");
    assert!(waiting["waiting_messages"][0]["due_at"].is_string(), "{waiting}");
    let groups = |state: &str| fixture.idem(&format!("dead-letters groups --state {state} --json")).json();
    let counted = |state: &str| -> i64 {
        let groups = groups(state);
        let groups = groups["groups_of_dead_letters"].as_array().unwrap();
        groups.iter().map(|row| row["dead_letters"].as_i64().unwrap()).sum()
    };
    assert_eq!(["dead", "waiting", "all"].map(counted), [3, 4, 7]);
    let stats = fixture.idem("stats --json").json();
    assert_eq!((&stats["consumers"][0]["dead_letters"], &stats["consumers"][0]["waiting"]), (&3.into(), &4.into()));
    assert!(fixture.idem("stuck --json").json()["failing_keys"].as_array().is_none_or(Vec::is_empty));

    assert!(
        fixture.idem("dead-letters drop --consumer orders --dry-run --because x").ok().contains("3 would be dropped")
    );
    assert!(fixture.idem(&format!("dead-letters drop {} --because x --yes", ids[0])).ok().contains("1 dropped"));
    fixture.idem("erase late-1 --reason x --yes").ok();
    assert!(fixture.idem(&format!("dead-letters replay {} --yes", ids[2])).ok().contains("1 asked for"));
    let left = "SELECT concat_ws(' ', idempotency_key, state, due_at <= now(), due_by IS NOT NULL) FROM dead_letters
        WHERE idempotency_key LIKE 'late%' OR idempotency_key IS NULL ORDER BY id";
    assert_eq!(fixture.texts(left).await, ["late-2 1 t t", "late-3 1 f f"]);
    fixture.drop().await;
}
