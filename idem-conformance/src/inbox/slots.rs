//! Cases: leases of slots, and the rows that a holder may read and remove.

use std::time::Duration;

use idem_core::{
    Message, StoreError,
    inbox::{HeldSlot, Inbox, InboxSettings, InboxSource, NewInboxRow, OpenInbox, Reading, Settling},
    message::Origin,
    source::{Received, Settled},
};

use super::{
    InboxUnderTest, SlotChange,
    broker::{name, settings},
};
use idem_testkit::source_driver::{SourceDriver, payloads};

/// So long that no lease of these cases runs out by itself.
const LEASE: Duration = Duration::from_secs(100);

pub(super) async fn opened(inbox: &dyn Inbox, slots: u16) -> OpenInbox {
    inbox.open(&name("orders"), Some("queue orders"), slots).await.unwrap()
}

pub(super) fn row(number: usize, slots: u16) -> NewInboxRow {
    let message = Message::new(number.to_string()).with_origin(Origin::new(&format!("orders/0/{number}")));
    NewInboxRow::new(message, None, slots)
}

async fn put(inbox: &dyn Inbox, open: &OpenInbox, numbers: std::ops::Range<usize>) {
    let rows: Vec<NewInboxRow> = numbers.map(|number| row(number, open.slots)).collect();
    inbox.put(open.id, &rows).await.unwrap();
}

async fn hold(inbox: &dyn Inbox, open: &OpenInbox, holder: &str) -> Vec<HeldSlot> {
    let granted = inbox.hold_slots(open.id, holder, LEASE, true).await.unwrap();
    granted.iter().map(|one| one.held).collect()
}

fn from_the_first(slots: &[HeldSlot]) -> Vec<(HeldSlot, i64)> {
    slots.iter().map(|held| (*held, 0)).collect()
}

async fn read(inbox: &dyn Inbox, open: &OpenInbox, slots: &[HeldSlot]) -> Vec<Settling> {
    let slots = from_the_first(slots);
    let rows = inbox.next(open.id, Reading::new(&slots)).await.unwrap();
    let epoch = |slot| slots.iter().find(|(held, _)| held.slot == slot).unwrap().0;
    rows.iter()
        .map(|row| Settling { held: epoch(row.slot), number: row.number, received_at: row.received_at })
        .collect()
}

async fn rows(inbox: &dyn Inbox, open: &OpenInbox) -> u64 {
    inbox.backlog(open.id, &[], 1_000_000).await.unwrap().rows
}

/// N14: numbers are drawn before they are committed, and a row that is committed behind the cursor is read all the same.
pub async fn late_commits_are_not_passed_by<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 1).await;
    let reader = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings())).await;
    let late = subject.put_late(open.id, row(0, 1)).await;
    put(&*inbox, &open, 1..3).await;
    assert_eq!(payloads(&reader.take(2).await), ["1", "2"]);
    let Some(commit) = late else {
        // A single writer commits in the order of the numbers.
        return;
    };
    commit().await;
    // The two others are in flight still, and are not read again.
    let found = tokio::time::timeout(Duration::from_secs(20), reader.take(1)).await;
    assert_eq!(payloads(&found.expect("a row that was committed late was passed by")), ["0"]);
}

/// Contract 2 and 3: under an epoch that is over nothing is read or removed.
pub async fn a_slot_has_one_holder<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 4).await;
    put(&*inbox, &open, 0..20).await;
    let first = hold(&*inbox, &open, "first").await;
    assert_eq!(first.len(), 4);
    assert_eq!(hold(&*inbox, &open, "second").await, [], "all slots are held");
    assert_eq!(hold(&*inbox, &open, "first").await, first, "a renewal does not raise the epoch");
    let theirs = read(&*inbox, &open, &first).await;
    assert_eq!(theirs.len(), 20);
    subject.change_slots(open.id, SlotChange::Expired("first")).await;
    let second = hold(&*inbox, &open, "second").await;
    assert!(second.iter().zip(&first).all(|(new, old)| new.slot == old.slot && new.epoch > old.epoch), "{second:?}");
    assert_eq!(read(&*inbox, &open, &first).await, []);
    assert_eq!(inbox.remove(open.id, "first", &theirs).await.unwrap(), []);
    let forged: Vec<Settling> =
        theirs.iter().map(|row| Settling { held: second[usize::from(row.held.slot)], ..*row }).collect();
    assert_eq!(inbox.remove(open.id, "first", &forged).await.unwrap(), [], "the epoch is another holder's");
    assert_eq!(rows(&*inbox, &open).await, 20);
    let mut removed = inbox.remove(open.id, "second", &read(&*inbox, &open, &second).await).await.unwrap();
    removed.sort_unstable();
    removed.dedup();
    assert_eq!(removed, second);
    assert_eq!(rows(&*inbox, &open).await, 0);
    inbox.release_slots(open.id, "first", &second).await.unwrap();
    assert_eq!(hold(&*inbox, &open, "second").await, second, "a member releases its own slots only");
    inbox.release_slots(open.id, "second", &second).await.unwrap();
    assert_eq!(inbox.backlog(open.id, &[], 1).await.unwrap().free_slots, 4);
}

/// N16: a holder that was frozen past its lease wakes up with messages in flight that another one has handled meanwhile.
pub async fn a_holder_frozen_past_its_lease_settles_nothing<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 2).await;
    put(&*inbox, &open, 0..6).await;
    let frozen = hold(&*inbox, &open, "frozen").await;
    let in_flight = read(&*inbox, &open, &frozen).await;
    subject.change_slots(open.id, SlotChange::Expired("frozen")).await;
    let reader = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings())).await;
    let mut taken = reader.take(6).await;
    let rest = taken.split_off(3);
    reader.acknowledge(taken).await;
    // The frozen one wakes up here.
    assert_eq!(inbox.remove(open.id, "frozen", &in_flight).await.unwrap(), []);
    assert_eq!(read(&*inbox, &open, &frozen).await, []);
    assert_eq!(rows(&*inbox, &open).await, 3);
    reader.acknowledge(rest).await;
    assert_eq!(rows(&*inbox, &open).await, 0);
}

/// N16: by its own clock too, which goes on while a process stands still.
pub async fn a_source_frozen_past_its_lease_hands_over_nothing<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 1).await;
    put(&*inbox, &open, 0..4).await;
    let lease = Duration::from_secs(1);
    let settings = InboxSettings::default().lease(lease).hold_every(Duration::from_secs(3600));
    let frozen = SourceDriver::join(InboxSource::with_settings(subject.inbox(), name("orders"), settings)).await;
    let held = frozen.take(2).await;
    tokio::time::sleep(lease + Duration::from_millis(50)).await;
    let received = frozen.next(2).await;
    let Received::Revoked(lost) = received else { panic!("instead of a revocation came {received:?}") };
    assert!(lost.drained.is_none() && lost.assignments.contains(&held[0].assignment), "{lost:?}");
    assert_eq!(frozen.try_acknowledge(held).await, [Settled::Stale; 2]);
    assert_eq!(rows(&*inbox, &open).await, 4);
}

/// Contract 4: a server that lost its last commits gives their numbers to other rows.
pub async fn a_number_that_was_drawn_again_is_another_row<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 1).await;
    put(&*inbox, &open, 0..1).await;
    let held = hold(&*inbox, &open, "me").await;
    let row = read(&*inbox, &open, &held).await[0];
    let lost = Settling { received_at: row.received_at - Duration::from_secs(1), ..row };
    assert_eq!(inbox.remove(open.id, "me", &[lost]).await.unwrap(), held);
    assert_eq!(rows(&*inbox, &open).await, 1);
    assert_eq!(inbox.remove(open.id, "me", &[row]).await.unwrap(), held);
    assert_eq!(rows(&*inbox, &open).await, 0);
}

/// The order of a key rests on its slot.
pub async fn the_number_of_slots_stays<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let first = opened(&*inbox, 4).await;
    assert_eq!((first.slots, first.bound_to.as_str()), (4, "queue orders"));
    assert_eq!(opened(&*inbox, 32).await, first);
    assert_eq!(inbox.find(&name("orders")).await.unwrap(), Some(first));
    assert_eq!(inbox.find(&name("unknown")).await.unwrap(), None);
}

/// As a worker's start refuses another queue under a known name.
pub async fn an_inbox_is_bound_to_one_queue<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    opened(&*inbox, 1).await;
    let refused = inbox.open(&name("orders"), Some("queue another"), 1).await;
    assert!(matches!(refused, Err(StoreError::Bound { what: "source", .. })), "{refused:?}");
}

/// Contract 1 and the limits of a look: rows in their order, those of a slot without a gap.
pub async fn a_look_is_bounded_by_rows_and_bytes<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 4).await;
    put(&*inbox, &open, 0..40).await;
    let slots = from_the_first(&hold(&*inbox, &open, "me").await);
    let numbers = |rows: &[idem_core::inbox::InboxRow]| rows.iter().map(|row| row.number).collect::<Vec<_>>();
    let all = inbox.next(open.id, Reading::new(&slots)).await.unwrap();
    let payload =
        |row: &idem_core::inbox::InboxRow| String::from_utf8(row.message.payload().unwrap().to_vec()).unwrap();
    assert!(all.iter().map(payload).eq((0..40).map(|number| number.to_string())), "{all:?}");
    let some = inbox.next(open.id, Reading::new(&slots).rows_max(7)).await.unwrap();
    assert_eq!(numbers(&some), numbers(&all)[..7]);
    let one = inbox.next(open.id, Reading::new(&slots).bytes_max(0)).await.unwrap();
    assert_eq!(numbers(&one), numbers(&all)[..1], "one row at least");
    let bytes = inbox.next(open.id, Reading::new(&slots).bytes_max(12)).await.unwrap();
    assert_eq!(numbers(&bytes), numbers(&all)[..11], "ten of one byte and one of two");
    let except = numbers(&all)[..35].to_vec();
    let rest = inbox.next(open.id, Reading::new(&slots).except(&except)).await.unwrap();
    assert_eq!(numbers(&rest), numbers(&all)[35..]);
    assert_eq!(inbox.backlog(open.id, &except, 100).await.unwrap().rows, 5);
    assert_eq!(inbox.backlog(open.id, &[], 7).await.unwrap().rows, 7, "counted up to what is enough");
    let behind: Vec<_> = slots.iter().map(|(held, _)| (*held, all[19].number)).collect();
    assert_eq!(numbers(&inbox.next(open.id, Reading::new(&behind)).await.unwrap()), numbers(&all)[20..]);
}
