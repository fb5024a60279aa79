use futures_util::FutureExt;

use super::*;

const VISIBILITY: Duration = Duration::from_secs(60);

fn incoming(id: &str, receipt: &str) -> Incoming {
    let (message, attempt) = (Message::new(id.to_owned()), 1);
    Incoming { message, message_id: id.to_owned(), receipt: receipt.to_owned(), attempt, suspect: false }
}

fn grouped(id: &str, group: &'static str) -> Incoming {
    let incoming = incoming(id, id);
    Incoming { message: incoming.message.with_ordering_key(OrderingKey::new(group)), ..incoming }
}

/// An event that does not come fails the test, and does not hang it.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it comes")
}

async fn take(shared: &Shared) -> Vec<Delivery<SqsHandle>> {
    let Received::Deliveries(deliveries) = shared.receive(100).await.unwrap() else { panic!("messages wait") };
    deliveries
}

#[test]
fn f1_f7_a_delivery_is_extended_at_half_of_its_visibility_and_given_up_when_that_passes() {
    let received_at = Instant::now();
    let held = |hidden: u64, extend: u64| Held {
        receipt: String::new(),
        message_id: String::new(),
        group: None,
        received_at,
        hidden_until: received_at + Duration::from_secs(hidden),
        extend_at: Some(received_at + Duration::from_secs(extend)),
    };
    let care = |held: Held, after: u64| held.care(received_at + Duration::from_secs(after), VISIBILITY);
    assert_eq!(care(held(60, 30), 20), Care::Wait);
    assert_eq!(care(held(60, 30), 30), Care::Extend);
    assert_eq!(care(held(60, 30), 60), Care::GiveUp);
    // Twelve hours are 43,200 s: an extension at 43,140 s still ends in time.
    assert_eq!(care(held(43_170, 43_140), 43_140), Care::Extend);
    assert_eq!(care(held(43_170, 43_141), 43_141), Care::LastTime);
    assert_eq!(care(held(43_170, 43_170), 43_169), Care::LastTime);
    assert_eq!(care(held(43_170, 43_170), 43_170), Care::GiveUp);
}

#[tokio::test]
async fn f7_what_could_not_be_extended_is_announced_as_lost() {
    let visibility = Duration::from_secs(4);
    let shared = Shared::new(visibility);
    shared.deliver(0, vec![incoming("a", "a1"), incoming("b", "b1")]);
    let held = take(&shared).await;
    shared.until_due().await;
    let due: Vec<u64> = shared.due().into_iter().map(|(number, _)| number).collect();
    assert_eq!(due.len(), 2);
    let sent_at = Instant::now();
    shared.extended(sent_at, [(held[0].handle.number, Answer::Done), (held[1].handle.number, Answer::Again)]);
    // It is asked again and again, and at the end of its visibility it is given up.
    let is_held = |number: u64| shared.lock().held.contains_key(&number);
    within(async {
        while is_held(held[1].handle.number) {
            shared.until_due().await;
            let answers = shared.due().into_iter().map(|(number, _)| {
                let first = number == held[0].handle.number;
                (number, if first { Answer::Done } else { Answer::Again })
            });
            shared.extended(Instant::now(), answers.collect::<Vec<_>>());
        }
    })
    .await;
    assert!(sent_at.elapsed() >= visibility / 4, "not before that");
    let Received::Revoked(revocation) = within(shared.receive(0)).await.unwrap() else { panic!("it is lost") };
    assert_eq!(revocation.assignments, [held[1].assignment]);
    assert!(revocation.drained.is_none());
    assert!(shared.to_delete(&held[1].handle).is_none() && shared.to_delete(&held[0].handle).is_some());
}

/// No worker takes messages while the database is away. A receiver that went on waiting would wait for ever.
#[tokio::test]
async fn f7_what_is_lost_in_the_buffer_makes_room_for_receivers() {
    for is_gone in [true, false] {
        let shared = Shared::new(Duration::from_millis(10));
        shared.deliver(0, (0..10).map(|number| incoming(&number.to_string(), "receipt")).collect());
        let mut room = pin!(shared.room());
        assert!(room.as_mut().now_or_never().is_none(), "nothing is wanted");
        if is_gone {
            shared.extended(Instant::now(), (1..=10).map(|number| (number, Answer::Gone)));
        } else {
            within(async {
                shared.until_due().await;
                while !shared.due().is_empty() {
                    shared.until_due().await;
                }
            })
            .await;
        }
        assert_eq!(within(room).await, Some(10), "with empty hands it asks whether the queue is at its end");
    }
}

/// F15: messages that no worker asked for would wait here, hidden from others.
#[tokio::test]
async fn f15_only_as_many_are_asked_for_as_are_wanted() {
    let shared = Shared::new(VISIBILITY);
    assert_eq!(shared.room().now_or_never(), Some(Some(10)), "a queue's end is found with empty hands");
    assert_eq!(shared.room().now_or_never(), None);
    shared.answered(10);
    shared.deliver(0, vec![incoming("a", "a1")]);
    assert_eq!(shared.room().now_or_never(), None, "nobody wants more");
    let held = take(&shared).await;
    assert_eq!(shared.room().now_or_never(), None, "nor now");
    {
        let mut receive = pin!(shared.receive(25));
        assert!(receive.as_mut().now_or_never().is_none());
        let asked: Vec<_> = (0..4).map(|_| shared.room().now_or_never().flatten()).collect();
        assert_eq!(asked, [Some(10), Some(10), Some(5), None]);
        shared.answered(10);
        assert_eq!(shared.room().now_or_never(), Some(Some(10)), "a poll that brought nothing is followed by another");
    }
    shared.answered(10);
    assert_eq!(shared.room().now_or_never(), None, "whoever waited went away");
    drop(held);
}

/// F17: a lost message takes with it those behind it in its group, which would overtake it, and no others.
#[tokio::test]
async fn f17_what_follows_a_lost_message_in_its_group_goes_back_with_it() {
    let shared = Shared::new(VISIBILITY);
    let of = |id: &str| grouped(id, if id.starts_with('a') { "a" } else { "b" });
    shared.deliver(0, ["a0", "a1", "b0", "a2", "a3"].map(of).into());
    let held = take(&shared).await;
    assert!(shared.to_delete(&held[4].handle).is_some(), "this one is being deleted");
    shared.extended(Instant::now(), [(held[1].handle.number, Answer::Gone)]);
    let Received::Revoked(revocation) = within(shared.receive(0)).await.unwrap() else { panic!("they are lost") };
    assert_eq!(revocation.assignments, [held[1].assignment, held[3].assignment]);
    let given_up: Vec<_> = shared.given_up().into_iter().map(|item| (item.receipt, item.change)).collect();
    assert_eq!(given_up, [("a2".to_owned(), Change::Visible(0))]);
    assert!(shared.given_up().is_empty());
    assert!(
        shared.has(held[0].handle.number) && shared.has(held[2].handle.number) && shared.has(held[4].handle.number)
    );
}

/// F19: rights that are not known everywhere yet, and a clock that is set after a sleep, pass.
#[tokio::test]
async fn f19_a_refusal_while_it_runs_is_an_outage_first_and_ends_it_when_it_stays() {
    let shared = Shared::new(VISIBILITY);
    let denied = || SourceError::Refused { problem: "you may not".to_owned(), cure: "Ask".to_owned() };
    assert_eq!(shared.unreachable_for(), None);
    shared.receive_failed(denied());
    let Err(SourceError::Unavailable { source, .. }) = within(shared.receive(1)).await else { panic!("an outage") };
    assert_eq!(source.to_string(), "you may not. Ask");
    assert!(shared.unreachable_for().is_some());
    let long_ago = Instant::now().checked_sub(REFUSAL_GRACE);
    shared.lock().refused_since = long_ago;
    shared.receive_failed(denied());
    assert!(matches!(within(shared.receive(1)).await, Err(SourceError::Refused { .. })));
    shared.receive_answered();
    assert_eq!(shared.unreachable_for(), None);
    shared.receive_failed(denied());
    assert!(matches!(within(shared.receive(1)).await, Err(SourceError::Unavailable { .. })), "it begins anew");
}

#[tokio::test]
async fn f7_a_message_that_is_being_deleted_is_not_lost() {
    let shared = Shared::new(VISIBILITY);
    shared.deliver(0, vec![incoming("a", "a1")]);
    let held = take(&shared).await.remove(0);
    assert!(shared.to_delete(&held.handle).is_some());
    // An extension that was under way meets the delete.
    shared.extended(Instant::now(), [(held.handle.number, Answer::Gone)]);
    assert!(shared.lock().revocations.is_empty() && shared.due().is_empty());
    shared.forget([held.handle.number]);
    assert!(shared.to_delete(&held.handle).is_none());
}

#[tokio::test]
async fn f2_a_receipt_is_void_once_its_message_came_again() {
    let shared = Shared::new(VISIBILITY);
    shared.deliver(0, vec![incoming("a", "a1")]);
    let first = take(&shared).await;
    shared.deliver(0, vec![incoming("a", "a2")]);
    shared.deliver(0, vec![incoming("a", "a3")]);
    let again = take(&shared).await;
    assert_eq!(again.len(), 1, "what waited with an older receipt is not handed over");
    assert!(shared.to_delete(&first[0].handle).is_none());
    assert_eq!(shared.to_delete(&again[0].handle).unwrap().receipt, "a3");
}

#[tokio::test]
async fn f6_what_is_given_back_is_in_the_order_of_its_receive() {
    let shared = Shared::new(VISIBILITY);
    shared.deliver(0, (0..30).map(|number| incoming(&number.to_string(), &number.to_string())).collect());
    let receipts: Vec<String> = shared.all_to_release().into_iter().map(|item| item.receipt).collect();
    assert_eq!(receipts, (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(shared.all_to_release().is_empty());
}

#[tokio::test]
async fn only_polls_without_a_change_in_between_prove_that_it_is_quiet() {
    let shared = Shared::new(VISIBILITY);
    let began = shared.changes();
    shared.deliver(began, Vec::new());
    assert!(!shared.is_quiet());
    shared.deliver(began, Vec::new());
    assert!(shared.is_quiet());
    shared.deliver(began, vec![incoming("a", "a1")]);
    let held = take(&shared).await.remove(0);
    shared.deliver(shared.changes(), Vec::new());
    shared.deliver(shared.changes(), Vec::new());
    assert!(!shared.is_quiet(), "something is in hand");
    let before = shared.changes();
    let item = shared.to_release(&held.handle, Duration::from_secs(50_000)).unwrap();
    assert_eq!(item.change, Change::Visible(43_199), "at most what is left of twelve hours");
    assert!(!shared.is_quiet(), "it comes back");
    shared.deliver(before, Vec::new());
    shared.deliver(before, Vec::new());
    assert!(!shared.is_quiet(), "those polls began before it was given back");
}
