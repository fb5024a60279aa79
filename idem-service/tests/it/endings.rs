//! How workers end: exit status, summary, what is in the ledger.

use std::time::SystemTime;

use idem_core::Message;
use serde_json::json;

use crate::{
    place::{Place, purchase},
    process::Worker,
    worker::{BLOCKED, IN_HANDLER, STUCK},
};

#[tokio::test]
async fn an_idle_worker_ends_with_0_and_its_last_line_is_the_summary() {
    let place = Place::new().await;
    for (key, customer) in [("a", "1"), ("b", "2"), ("c", "1"), ("a", "1")] {
        place.publish(key, customer);
    }
    place.publish_text(&purchase("b", "2", 999));
    place.publish_text("{}");
    let ended = Worker::at(&place, "--until-idle 200ms --dead-letter-queue dead").run().await.with(0);
    let mut summary = ended.summary();
    assert!(summary["seconds"].take().as_f64().is_some_and(|seconds| seconds > 0.0), "{summary}");
    let expected = json!({
        "processed": 3, "duplicates": 1, "conflicts": 1, "dead_lettered": 2, "retries": 0, "busy": 0,
        "unknown_resolved": 0, "published": 0, "seconds": null,
    });
    assert_eq!(summary, expected);
    assert_eq!(place.customers().await, [("1".to_owned(), 2, 2354), ("2".to_owned(), 1, 1177)]);
    assert_eq!(place.purchases().await, ["a", "b", "c"]);
    assert_eq!(place.broker.queue("dead").unwrap().stats().published, 2);
    assert!(place.orders.stats().is_drained());
    place.remove();
}

#[tokio::test]
async fn the_policies_of_the_flags_are_followed() {
    for (arguments, dead_lettered) in
        [("", [1, 0]), ("--on-conflict acknowledge", [0, 0]), ("--older-than-retention dead-letter", [1, 1])]
    {
        let place = Place::new().await;
        place.publish_text(&purchase("a", "1", 1));
        place.publish_text(&purchase("a", "1", 2));
        let old = Message::new(purchase("old", "1", 1)).with_sent_at(SystemTime::UNIX_EPOCH);
        place.orders.publish(old).unwrap();
        let ended = Worker::at(&place, &format!("--until-idle 200ms {arguments}")).run().await.with(0);
        let [conflicts, old] = dead_lettered;
        let expected = json!({ "processed": 2 - old, "conflicts": 1, "dead_lettered": conflicts + old });
        let summary = ended.summary();
        for (name, count) in expected.as_object().unwrap() {
            assert_eq!(&summary[name], count, "{arguments} {name}: {summary}");
        }
        place.remove();
    }
}

#[tokio::test]
async fn sigterm_and_sigint_drain_and_end_with_0() {
    for signal in ["TERM", "INT"] {
        let place = Place::new().await;
        let running = Worker::at(&place, "").start();
        place.publish("a", "1");
        place.orders.drained().await;
        running.signal(signal).await;
        let ended = running.ended().await.with(0);
        assert_eq!(ended.summary()["processed"], 1);
        assert!(ended.log.contains("stopping"), "{}", ended.log);
        place.remove();
    }
}

#[tokio::test]
async fn a_stop_before_the_start_is_over_ends_with_0() {
    let mut place = Place::new().await;
    place.stop_serving();
    let nowhere = "--socket /nowhere --database-url postgres://idem@127.0.0.1:1/idem --consumer ledger";
    for worker in [Worker::at(&place, ""), Worker::bare(nowhere)] {
        let mut running = worker.start();
        running.line("cannot be reached yet").await;
        running.signal("TERM").await;
        assert_eq!(running.ended().await.with(0).summary()["processed"], 0);
    }
    place.remove();
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_even_while_a_handler_blocks_its_thread() {
    for customer in [STUCK, BLOCKED] {
        let place = Place::new().await;
        let mut running = Worker::at(&place, "--drain 10m --handler-deadline 10m").start();
        place.publish("a", customer);
        running.line(IN_HANDLER).await;
        running.signal("TERM").await;
        running.line("stopping").await;
        running.signal("INT").await;
        let ended = running.ended().await.with(128 + 2);
        assert_eq!(ended.output, "", "nothing was finished that could be summed up");
        assert!(place.purchases().await.is_empty());
        place.remove();
    }
}

#[tokio::test]
async fn a_drain_deadline_that_passes_ends_it_with_4() {
    for customer in [STUCK, BLOCKED] {
        let place = Place::new().await;
        let mut running = Worker::at(&place, "--drain 300ms --handler-deadline 10m").start();
        place.publish("a", customer);
        running.line(IN_HANDLER).await;
        running.signal("TERM").await;
        let ended = running.ended().await.with(4);
        assert!(ended.why().contains("drain deadline of 300ms passed with 1 messages in flight"), "{}", ended.why());
        assert_eq!(ended.summary()["processed"], 0);
        assert!(place.purchases().await.is_empty());
        place.remove();
    }
}

#[tokio::test]
async fn a_halt_ends_it_with_5_only_where_it_would_end_when_idle() {
    let place = Place::new().await;
    place.publish_text(&purchase("a", "1", 1));
    place.publish_text(&purchase("a", "1", 2));
    let ended = Worker::at(&place, "--on-conflict halt --until-idle 200ms").run().await.with(5);
    assert!(ended.why().contains("halted"), "{}", ended.why());
    assert_eq!(ended.summary()["processed"], 1);
    // It is halted still, and stays up until it is stopped.
    let mut running = Worker::at(&place, "--admin 0").start();
    crate::admin::Admin::of(&mut running).await.readiness(|json| json["pause"].is_string()).await;
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

#[tokio::test]
async fn what_cannot_be_reached_ends_it_with_3_and_says_what() {
    let mut place = Place::new().await;
    place.stop_serving();
    let ended = Worker::at(&place, "--startup-timeout 500ms").run().await.with(3);
    assert!(ended.why().contains("the broker could not be reached"), "{}", ended.why());
    for asked in ["--migrate --create-tables", ""] {
        let nowhere = "--socket /nowhere --database-url postgres://idem@127.0.0.1:1/idem";
        let arguments = format!("{nowhere} --consumer ledger --startup-timeout 500ms {asked}");
        let ended = Worker::bare(&arguments).run().await.with(3);
        assert!(ended.why().contains("the database could not be reached for 500ms"), "{}", ended.why());
        assert_eq!(ended.summary()["processed"], 0);
    }
    place.remove();
}

#[tokio::test]
async fn a_bug_ends_it_with_70() {
    let place = Place::new().await;
    for at in ["build", "receive"] {
        let ended = Worker::at(&place, "--panic-at").argument(at).run().await.with(70);
        assert!(ended.why().contains("bug in idem"), "{}", ended.why());
        assert_eq!(ended.summary()["processed"], 0);
    }
    place.remove();
}

#[tokio::test]
async fn a_log_in_json_is_json_to_the_last_line() {
    let place = Place::new().await;
    let ended = Worker::at(&place, "--log-format json --queue absent").run().await.with(2);
    for line in ended.log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    assert!(ended.log.lines().last().is_some_and(|line| line.contains("absent")), "{}", ended.log);
    let ended = Worker::at(&place, "--until-idle 50ms").variable("RUST_LOG", "off").run().await.with(0);
    assert_eq!(ended.log, "");
    let ended = Worker::at(&place, "--queue absent").variable("RUST_LOG", "off").run().await.with(2);
    assert!(ended.why().contains("absent"), "nothing silences why it ended: {}", ended.log);
    let ended = Worker::at(&place, "").variable("RUST_LOG", "info=what=ever").run().await.with(2);
    assert!(ended.why().starts_with("RUST_LOG"), "{}", ended.why());
    place.remove();
}
