use std::collections::HashMap;

use idem_core::message::OrderingKey;

use super::*;

const ORDERS: [Order; 3] = [Order::None, Order::ByKey, Order::ByKeyOneAtATime];

/// Messages are published, delivered, settled, released, revoked and expired in any order: nothing is lost, nothing
/// is in two places, the numbers add up, and a key's order and exclusiveness hold.
#[tokio::test(start_paused = true)]
async fn random_histories_keep_every_invariant() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let order = ORDERS[rng.usize(..3)];
        let mut options = QueueOptions::default().order(order).seed(seed);
        if rng.bool() {
            options = options.lease(Duration::from_secs(30));
        }
        random_history(QueueState::new("q", options), &mut rng, order);
    }
}

fn random_history(mut queue: QueueState, rng: &mut fastrand::Rng, order: Order) {
    let mut now = Instant::now();
    let (mut held, mut published, mut done): (Vec<Receipt>, u64, u64) = (Vec::new(), 0, 0);
    for _ in 0..200 {
        match rng.u8(0..8) {
            0 | 1 => {
                let key = rng.u8(0..4);
                let message = Message::new(vec![key]).with_ordering_key(OrderingKey::new(vec![key]));
                queue.publish(message).unwrap();
                published += 1;
            }
            2 | 3 => {
                let assignment = rng.u64(1..3);
                let handed = queue.take(assignment, rng.usize(1..5), now);
                check_handed(&handed, order);
                held.extend(handed.iter().map(|handed| handed.receipt));
            }
            4 | 5 if !held.is_empty() => {
                let receipt = held.swap_remove(rng.usize(..held.len()));
                let after = Duration::from_secs(rng.u64(0..3));
                let answers = [Answer::Acknowledge, Answer::DeadLetter, Answer::Release { after }];
                let answer = answers[rng.usize(..3)];
                let settled = queue.settle(receipt, answer, now);
                let removes = !matches!(answer, Answer::Release { .. });
                done += u64::from(removes && settled == Settled::Settled);
                // A receipt is good for one settlement.
                assert_eq!(queue.settle(receipt, answer, now), Settled::Stale);
            }
            6 => queue.end_assignment(rng.u64(1..3)),
            _ => now += Duration::from_secs(rng.u64(0..20)),
        }
        let stats = queue.stats();
        assert_eq!(stats.unsettled(), published - done);
        assert_eq!(stats.unsettled(), queue.entries.len() as u64);
        assert_eq!(queue.bytes, queue.entries.values().map(|entry| entry.message.bytes()).sum::<usize>());
    }
    // When all consumers leave and time passes, all that is not done can be delivered, and then the queue is empty.
    queue.end_assignment(1);
    queue.end_assignment(2);
    now += Duration::from_secs(60);
    loop {
        let handed = queue.take(9, 100, now);
        if handed.is_empty() {
            break;
        }
        for handed in handed {
            assert_eq!(queue.settle(handed.receipt, Answer::Acknowledge, now), Settled::Settled);
            done += 1;
        }
    }
    assert_eq!(done, published);
    assert_eq!((queue.bytes, queue.timers.len(), queue.held.len()), (0, 0, 0));
}

fn check_handed(handed: &[Handed], order: Order) {
    let mut last: HashMap<_, u64> = HashMap::new();
    for handed in handed {
        let key = handed.message.ordering_key().cloned();
        assert_eq!(key.is_some(), order != Order::None);
        let before = last.insert(key, handed.receipt.sequence);
        match order {
            Order::None => {}
            Order::ByKey => assert!(before < Some(handed.receipt.sequence), "a key went backwards"),
            Order::ByKeyOneAtATime => assert_eq!(before, None, "two of a key at once"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_by_count_and_by_bytes() {
    let mut queue = QueueState::new("q", QueueOptions::default().messages_max(2));
    queue.publish(Message::new("1")).unwrap();
    queue.publish(Message::new("2")).unwrap();
    assert!(matches!(queue.publish(Message::new("3")), Err(SourceError::Refused { .. })));
    let room = Message::new(vec![0; 1000]).bytes();
    let mut queue = QueueState::new("q", QueueOptions::default().bytes_max(room));
    queue.publish(Message::new(vec![0; 1000])).unwrap();
    assert!(queue.publish(Message::new("")).is_err());
    let receipt = queue.take(1, 1, Instant::now())[0].receipt;
    queue.settle(receipt, Answer::Acknowledge, Instant::now());
    queue.publish(Message::new("")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_history_is_bounded_and_forgets_the_oldest() {
    let mut queue = QueueState::new("q", QueueOptions::default().history_max(3));
    for _ in 0..10 {
        queue.publish(Message::new("")).unwrap();
    }
    let origins: Vec<_> = queue.history().map(|(origin, _)| origin.as_str().to_owned()).collect();
    assert_eq!(origins, ["q/8", "q/9", "q/10"]);
}

#[tokio::test(start_paused = true)]
async fn one_hand_over_is_bounded_by_bytes() {
    let mut queue = QueueState::new("q", QueueOptions::default());
    for _ in 0..20 {
        queue.publish(Message::new(vec![0; 1 << 20])).unwrap();
    }
    assert_eq!(queue.take(1, 100, Instant::now()).len(), 8);
    queue.publish(Message::new(vec![0; 20 << 20])).unwrap();
    assert_eq!(queue.take(1, 100, Instant::now()).len(), 8);
    assert_eq!(queue.take(1, 100, Instant::now()).len(), 5, "one that is larger than the bound goes all the same");
}
