//! The order within a key, under any failure.

use idem_testkit::memory::{Order, QueueOptions};

use super::fixture::{Fixture, drain};

/// D7, E14: messages behind a failing one in its ordering key wait for it, and other keys go on.
#[tokio::test(flavor = "multi_thread")]
async fn d7_a_failing_message_holds_its_own_key_and_no_other() {
    for warm_up in [0, 100] {
        let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey));
        (0..warm_up).for_each(|n| drop(fixture.publish_ordered("warm", &format!("warm-{n}"), "ok")));
        for n in 0..30 {
            for order in ["a", "b", "c"] {
                let payload = if (order, n) == ("b", 3) { "fail once" } else { "ok" };
                fixture.publish_ordered(order, &format!("{order}{n:02}"), payload);
            }
        }
        let summary = drain(&fixture, fixture.worker().batch(20)).await;
        assert_eq!(summary.processed, 90 + warm_up);
        for order in ["a", "b", "c"] {
            let committed: Vec<String> =
                fixture.effects().into_iter().map(|(key, _)| key).filter(|key| key.starts_with(order)).collect();
            let expected: Vec<String> = (0..30).map(|n| format!("{order}{n:02}")).collect();
            assert_eq!(committed, expected, "the order of {order}");
        }
    }
}

/// After a dead letter its ordering key goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordering_key_goes_on_after_a_dead_letter() {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKeyOneAtATime));
    for n in 0..5 {
        fixture.publish_ordered("a", &format!("a{n}"), if n == 2 { "permanent" } else { "ok" });
    }
    let summary = drain(&fixture, fixture.worker()).await;
    assert_eq!((summary.processed, summary.dead_lettered), (4, 1));
    let committed: Vec<String> = fixture.effects().into_iter().map(|(key, _)| key).collect();
    assert_eq!(committed, ["a0", "a1", "a3", "a4"]);
}

/// Lanes run side by side, and each key stays in one.
#[tokio::test(flavor = "multi_thread")]
async fn several_lanes_keep_the_order_of_every_key() {
    let fixture = Fixture::with(QueueOptions::default().order(Order::ByKey));
    for n in 0..100 {
        for order in ["a", "b", "c", "d", "e"] {
            fixture.publish_ordered(order, &format!("{order}{n:03}"), if n % 17 == 3 { "fail once" } else { "ok" });
        }
    }
    let consumer = fixture.consumer().lanes(4).build().unwrap();
    let summary = drain(&fixture, fixture.worker_of(consumer).batch(10)).await;
    assert_eq!(summary.processed, 500);
    for order in ["a", "b", "c", "d", "e"] {
        let committed: Vec<String> =
            fixture.effects().into_iter().map(|(key, _)| key).filter(|key| key.starts_with(order)).collect();
        assert!(committed.is_sorted() && committed.len() == 100, "the order of {order}: {committed:?}");
    }
}
