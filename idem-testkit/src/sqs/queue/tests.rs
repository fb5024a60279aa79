use super::*;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn message(id: &str) -> Message {
    sent(id.to_owned(), id.to_owned(), Map::new(), 0)
}

fn grouped(id: &str, group: &str) -> Message {
    Message { group: Some(group.to_owned()), deduplication_id: Some(id.to_owned()), ..message(id) }
}

fn queue(name: &str, messages: impl IntoIterator<Item = Message>) -> Queue {
    let mut queue = Queue::new(name, QueueOptions::default());
    for message in messages {
        queue.send(seconds(0), seconds(0), message).unwrap();
    }
    queue
}

fn take(queue: &mut Queue, now: u64, max: usize) -> Vec<Message> {
    queue.receive(seconds(now), max, seconds(30), &mut Vec::new()).unwrap()
}

fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| &*message.id).collect()
}

#[test]
fn a_message_is_in_flight_until_its_visibility_passes_and_then_has_another_receipt() {
    let mut queue = queue("orders", [message("a")]);
    let first = take(&mut queue, 0, 10);
    assert!(take(&mut queue, 29, 10).is_empty());
    let second = take(&mut queue, 30, 10);
    assert_eq!((first[0].receives, second[0].receives), (1, 2));
    assert_eq!(queue.delete(seconds(31), &first[0].receipt()), Ok(()), "success");
    assert_eq!(queue.counts(seconds(31)).in_flight, 1, "that deleted nothing");
    assert_eq!(queue.delete(seconds(31), &second[0].receipt()), Ok(()));
    assert_eq!(queue.counts(seconds(31)), QueueCounts::default());
    assert_eq!(queue.resurrect(), 1);
    assert_eq!(take(&mut queue, 32, 10)[0].receives, 3);
}

#[test]
fn a_fifo_queue_refuses_a_receipt_that_has_expired() {
    let mut queue = queue("orders.fifo", [grouped("a", "1")]);
    let receipt = take(&mut queue, 0, 1)[0].receipt();
    assert_eq!(queue.delete(seconds(30), &receipt).unwrap_err().code, "InvalidParameterValue");
    assert_eq!(queue.delete(seconds(0), "x").unwrap_err().code, "ReceiptHandleIsInvalid");
    assert_eq!(queue.delete(seconds(29), &receipt), Ok(()));
}

#[test]
fn visibility_is_for_messages_in_flight_and_for_twelve_hours_in_all() {
    let mut queue = queue("orders", [message("a")]);
    let receipt = take(&mut queue, 100, 1)[0].receipt();
    let change = |queue: &mut Queue, now: u64, time| {
        queue.change_visibility(seconds(now), &receipt, time).map_err(|refusal| refusal.code)
    };
    assert_eq!(change(&mut queue, 110, 43_191), Err("InvalidParameterValue"), "refused, and not shortened");
    assert_eq!(change(&mut queue, 110, 43_190), Ok(()));
    assert_eq!(change(&mut queue, 110, 43_201), Err("InvalidParameterValue"));
    assert_eq!(change(&mut queue, 120, 0), Ok(()));
    assert_eq!(change(&mut queue, 120, 30), Err("MessageNotInflight"));
    take(&mut queue, 121, 1);
    assert_eq!(change(&mut queue, 122, 30), Err("InvalidParameterValue"), "another receipt is in flight");
}

#[test]
fn a_group_waits_while_anything_of_it_is_in_flight() {
    let mut queue =
        queue("orders.fifo", [grouped("a1", "a"), grouped("a2", "a"), grouped("b1", "b"), grouped("a3", "a")]);
    let first = take(&mut queue, 0, 2);
    assert_eq!(ids(&first), ["a1", "a2"]);
    assert_eq!(ids(&take(&mut queue, 0, 10)), ["b1"]);
    queue.change_visibility(seconds(1), &first[0].receipt(), 0).unwrap();
    assert!(take(&mut queue, 1, 10).is_empty(), "the second is still in flight");
    queue.change_visibility(seconds(1), &first[1].receipt(), 0).unwrap();
    assert_eq!(ids(&take(&mut queue, 1, 10)), ["a1", "a2", "a3"]);
}

#[test]
fn repetitions_are_dropped_for_five_minutes() {
    let mut queue = queue("orders.fifo", [grouped("a", "1")]);
    let again = || Message { id: "b".to_owned(), ..grouped("a", "1") };
    assert_eq!(queue.send(seconds(299), seconds(0), again()).unwrap(), "a");
    assert_eq!(queue.send(seconds(300), seconds(0), again()).unwrap(), "b");
    assert_eq!(ids(&take(&mut queue, 301, 10)), ["a", "b"]);
    assert_eq!(queue.send(seconds(0), seconds(0), message("c")).unwrap_err().code, "MissingParameter");
}

#[test]
fn limits_hold_messages_back_or_move_them_away() {
    let mut queue = queue("orders", ["a", "b", "c"].map(message));
    queue.options.in_flight_max = 2;
    assert_eq!(take(&mut queue, 0, 10).len(), 2);
    assert!(queue.receive(seconds(0), 10, seconds(30), &mut Vec::new()).is_none());
    queue.options = QueueOptions { redrive: Some((1, "dead".to_owned())), ..QueueOptions::default() };
    let mut dead = Vec::new();
    let rest = queue.receive(seconds(30), 10, seconds(30), &mut dead).unwrap();
    assert_eq!((rest.len(), dead.len()), (1, 2));
}

#[test]
fn what_sqs_cannot_carry_is_refused() {
    let mut queue = queue("orders", []);
    let mut code = |message| queue.send(seconds(0), seconds(0), message).unwrap_err().code;
    assert_eq!(code(message("")), "MissingParameter");
    assert_eq!(code(message("\u{1}")), "InvalidMessageContents");
    assert_eq!(code(message(&"x".repeat((1 << 20) + 1))), "InvalidParameterValue");
    let attributes = |count: usize, value: &str| -> Map<String, Value> {
        let of = |number| (format!("a{number}"), serde_json::json!({ "DataType": "String", "StringValue": value }));
        (0..count).map(of).collect()
    };
    assert_eq!(code(Message { attributes: attributes(11, "x"), ..message("a") }), "InvalidParameterValue");
    assert_eq!(code(Message { attributes: attributes(1, ""), ..message("a") }), "InvalidParameterValue");
    assert!(queue.send(seconds(0), seconds(0), Message { attributes: attributes(10, "x"), ..message("a") }).is_ok());
}

#[test]
fn a_receive_that_is_repeated_gets_the_same_messages_while_all_of_them_are_in_flight() {
    let mut queue = queue("orders.fifo", [grouped("a", "1"), grouped("b", "1")]);
    let first = take(&mut queue, 0, 10);
    queue.attempted(seconds(0), "x".to_owned(), &first);
    let again = queue.receive_again(seconds(20), seconds(30), "x").unwrap();
    assert_eq!((ids(&again), again[0].receipt()), (vec!["a", "b"], first[0].receipt()));
    assert_eq!(queue.counts(seconds(49)).in_flight, 2, "their visibility began anew");
    assert!(queue.receive_again(seconds(20), seconds(30), "y").is_none());
    assert_eq!(queue.delete(seconds(21), &first[0].receipt()), Ok(()));
    assert!(queue.receive_again(seconds(22), seconds(30), "x").is_none());
}

#[test]
fn a_fifo_queue_takes_no_delay_of_a_message_and_messages_expire() {
    let mut fifo = queue("a.fifo", []);
    let refused = fifo.send(seconds(0), seconds(1), grouped("a", "1")).unwrap_err();
    assert!(refused.code == "InvalidParameterValue" && refused.text.contains("DelaySeconds"), "{refused:?}");
    let mut queue = queue("a", [message("a")]);
    let kept = queue.options.retention.as_secs();
    queue.send(seconds(1), seconds(0), message("b")).unwrap();
    queue.expire(seconds(kept - 1));
    assert_eq!(queue.counts(seconds(kept - 1)).waiting, 2);
    queue.expire(seconds(kept));
    assert_eq!(ids(&take(&mut queue, kept, 10)), ["b"]);
}

#[test]
fn the_first_receive_is_remembered_and_a_visibility_may_lapse() {
    let mut queue = queue("a.fifo", [grouped("a", "1"), grouped("b", "1")]);
    assert_eq!(ids(&take(&mut queue, 1, 10)), ["a", "b"]);
    assert_eq!(queue.lapse(seconds(2), 1), 1);
    assert!(take(&mut queue, 3, 10).is_empty(), "the other one of the group is in flight");
    let again = take(&mut queue, 40, 1);
    assert_eq!((again[0].receives, again[0].since_the_first_receive(seconds(41))), (2, Some(seconds(40))));
}
