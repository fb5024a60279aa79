//! `idem dead-letters`, and their replay in a running worker.

use std::sync::Arc;

use idem_core::{CancellationToken, Effects, Worker};
use idem_testkit::memory::{Broker, QueueOptions};

use crate::scene::{Accepting, PATIENCE, PAYLOAD, Scene, message};

/// A scene with dead letters 1 and 2 of the keys order-1 and order-2, which the handler refused, and 3, a conflict with
/// order-3.
pub(crate) async fn scene() -> Scene {
    let scene = Scene::new().await;
    scene.refused.lock().unwrap().extend(["order-1".to_owned(), "order-2".to_owned()]);
    let broker = Broker::new();
    let queue = broker.create("orders", QueueOptions::default()).unwrap();
    for key in ["order-1", "order-2", "order-3"] {
        queue.publish(message(key)).unwrap();
    }
    let conflict = idem_core::Message::new(format!("{PAYLOAD} other")).with_header("idempotencykey", "order-3");
    work(&scene, &queue, async {
        queue.drained().await;
        queue.publish(conflict).unwrap();
        queue.drained().await;
    })
    .await;
    assert_eq!(
        scene.texts("SELECT reason FROM dead_letters ORDER BY id").await,
        ["permanent", "permanent", "conflict"]
    );
    scene
}

/// A worker that runs until this is done.
async fn work(scene: &Scene, queue: &idem_testkit::memory::Queue, until: impl Future<Output = ()>) {
    let consumer = idem_core::DedupConsumer::builder(scene.store.clone(), "orders").effects(Effects::InTransaction);
    let consumer = consumer.handler(Accepting(Arc::clone(&scene.refused))).lanes(1).build().unwrap();
    let worker = Worker::builder(consumer, queue.source()).cleanup(None).breaker(false).build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(worker.run(stop.clone()));
    tokio::time::timeout(PATIENCE, until).await.unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_listing_shows_no_payload_and_reading_one_is_written_down() {
    let scene = scene().await;
    let listed = scene.idem("dead-letters list --json").json();
    let letters = listed["dead_letters"].as_array().unwrap();
    assert_eq!(
        letters.iter().map(|letter| letter["key"].as_str().unwrap()).collect::<Vec<_>>(),
        ["order-3", "order-2", "order-1"]
    );
    let listed = scene.idem("dead-letters list --reason conflict --consumer orders").ok();
    assert!(listed.contains("order-3") && !listed.contains("order-1") && !listed.contains(PAYLOAD), "{listed}");
    assert!(scene.idem("dead-letters list --to 2020-01-01T00:00:00Z").ok().contains("no dead letters"));
    let shown = scene.idem("dead-letters show 1").ok();
    assert!(shown.contains("order-1") && !shown.contains(PAYLOAD), "{shown}");
    assert!(scene.trail().await.iter().all(|line| !line.contains("read-payload")));
    assert!(scene.idem("dead-letters show 1 --payload").ok().contains(PAYLOAD));
    assert!(scene.trail().await.contains(&"ada read-payload order-1 dead letter 1".to_owned()));
    scene.idem("dead-letters show 99").refused("no dead letter 99");
    scene.idem("dead-letters list --reason bad").refused("must be one of malformed");
    scene.drop().await;
}

/// C7: what was set aside left no record, so its replay runs, once, in a running worker.
#[tokio::test]
async fn c7_a_replay_runs_in_a_running_worker() {
    let scene = scene().await;
    scene.idem("dead-letters replay").refused("say which");
    scene.idem("dead-letters replay --consumer orders --yes").refused("--forget-first");
    scene.idem("dead-letters replay 1").refused("give --yes");
    assert!(scene.idem("dead-letters replay 1 2 --dry-run").ok().contains("2 would be replayed"));
    scene.refused.lock().unwrap().retain(|key| key == "order-2");
    assert!(scene.idem("dead-letters replay --consumer orders --reason permanent --yes").ok().contains("2 asked for"));
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&scene, &queue, async {
        scene.until("SELECT replay_outcome FROM dead_letters WHERE id = 1", "processed").await;
        scene.until("SELECT replayed_at IS NOT NULL FROM dead_letters WHERE id = 2", "t").await;
    })
    .await;
    assert_eq!(scene.deliver(&["order-1"]).await, "D", "it took effect once");
    let outcome = scene.texts("SELECT replay_outcome FROM dead_letters WHERE id = 2").await;
    assert!(outcome[0].starts_with("failed: permanent"), "{outcome:?}");
    let trail = scene.trail().await;
    assert!(trail.contains(&"ada replay order-1 dead letter 1".to_owned()), "{trail:?}");
    scene.drop().await;
}

/// A conflict can be replayed once its key was forgotten: the payload that was refused then takes effect.
#[tokio::test]
async fn a_conflict_is_replayed_after_its_key_was_forgotten() {
    let scene = scene().await;
    scene.idem("dead-letters replay 3 --yes").refused("another payload");
    scene.idem("forget order-3 --consumer orders --reason the-other-is-right --yes").ok();
    scene.idem("dead-letters replay 3 --yes").ok();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&scene, &queue, scene.until("SELECT replay_outcome FROM dead_letters WHERE id = 3", "processed")).await;
    scene.drop().await;
}

#[tokio::test]
async fn dropped_dead_letters_are_gone_and_written_down() {
    let scene = scene().await;
    scene.idem("dead-letters drop 1 --yes").refused("--because");
    scene.idem("dead-letters drop 1 --because test-data").refused("1 dead letters for good");
    scene.idem("dead-letters drop --because x --yes").refused("say which");
    assert!(scene.idem("dead-letters drop 1 --because test-data --yes").ok().contains("1 dropped"));
    assert_eq!(scene.texts("SELECT id FROM dead_letters ORDER BY id").await, ["2", "3"]);
    assert!(scene.trail().await.contains(&"ada drop order-1 dead letter 1: test-data".to_owned()));
    scene.drop().await;
}

/// A replay that would only fail again is refused by its reason, with the option that changes that.
#[tokio::test]
async fn a_replay_that_would_fail_again_is_refused_with_the_option_that_helps() {
    let scene = scene().await;
    let row = "(consumer, origin, last_origin, reason, attempts, error, payload, payload_bytes, has_payload, headers)";
    scene
        .run(&format!(
            "INSERT INTO dead_letters {row} VALUES (1, 'o/4', 'o/4', 'missing-key', 1, '', 'x', 1, true, NULL),
                 (1, 'o/5', 'o/5', 'malformed', 1, '', '{{', 1, true, '[[\"idempotencykey\", \"order-5\"]]'),
                 (1, 'o/6', 'o/6', 'too-large', 1, '', NULL, 9, true, NULL)"
        ))
        .await;
    for (id, option) in [(3, "--forget-first"), (4, "--key KEY"), (5, "--payload FILE"), (6, "too large to keep")] {
        scene.idem(&format!("dead-letters replay {id} --yes")).refused(option);
    }
    scene.idem("dead-letters replay 3 4 --key order-9 --yes").refused("for one dead letter");
    scene.idem("dead-letters replay --consumer orders --forget-first --yes").refused("by their ids");
    let file = std::env::temp_dir().join(format!("{}.json", scene.schema));
    std::fs::write(&file, "{}").unwrap();
    scene.idem(&format!("dead-letters replay 5 --payload {} --dry-run", file.display())).ok();
    assert_eq!(scene.texts("SELECT convert_from(payload, 'UTF8') FROM dead_letters WHERE id = 5").await, ["{"]);
    scene.idem(&format!("dead-letters replay 5 --payload {} --yes", file.display())).ok();
    scene.idem("dead-letters replay 4 --key order-4 --yes").ok();
    let answer = scene.idem("dead-letters replay 3 --forget-first --yes").ok();
    assert!(answer.contains("idem forgotten restore"), "{answer}");
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&scene, &queue, async {
        for id in [3, 4, 5] {
            scene.until(&format!("SELECT replay_outcome FROM dead_letters WHERE id = {id}"), "processed").await;
        }
    })
    .await;
    let keys = scene.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await;
    assert_eq!(keys, ["order-3", "order-4", "order-5"]);
    std::fs::remove_file(file).unwrap();
    scene.drop().await;
}

/// A conflict that is another message is replayed under a key of its own; the record of the first stays.
#[tokio::test]
async fn a_conflict_is_replayed_under_a_new_key() {
    let scene = scene().await;
    scene.idem("dead-letters replay 3 --new-key order-3b --yes").ok();
    let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
    work(&scene, &queue, scene.until("SELECT replay_outcome FROM dead_letters WHERE id = 3", "processed")).await;
    let keys = scene.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await;
    assert_eq!(keys, ["order-3", "order-3b"]);
    assert!(scene.trail().await.contains(&"ada change-key order-3b dead letter 3".to_owned()));
    scene.drop().await;
}
