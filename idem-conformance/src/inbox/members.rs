//! Cases: workers that share an inbox come and go (N15).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    CancellationToken, Message, Source as _,
    inbox::{Inbox as _, InboxSource, NewInboxRow},
    message::{OrderingKey, Origin},
    source::Received,
};
use tokio::{task::JoinHandle, time::Instant};

use super::{
    InboxUnderTest, SlotChange,
    broker::{name, settings},
    receiving::Outage,
    slots::opened,
};
use idem_testkit::{
    rng,
    source_driver::{SourceDriver, payloads, within},
};

/// Contract 5: while one member has many and another few, one slot after the other goes over, and nothing else.
pub async fn slots_go_one_by_one_to_a_member_that_has_fewer<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let (id, lease) = (opened(&*inbox, 5).await.id, Duration::from_secs(100));
    let hold = async |holder: &str| inbox.hold_slots(id, holder, lease, true).await.unwrap();
    let mut first = hold("first").await;
    assert!(first.len() == 5 && first.iter().all(|one| !one.is_wanted));
    for theirs in 0..2 {
        assert_eq!(hold("second").await.len(), theirs);
        assert_eq!(hold("second").await.len(), theirs, "asking again wants no second slot");
        first = hold("first").await;
        let wanted: Vec<_> = first.iter().filter(|one| one.is_wanted).map(|one| one.held).collect();
        assert_eq!(wanted.len(), 1, "{first:?}");
        inbox.release_slots(id, "first", &wanted).await.unwrap();
        assert_eq!(hold("first").await.len(), first.len() - 1, "it does not take back what another one wants");
    }
    assert_eq!(hold("second").await.len(), 2);
    assert_eq!(hold("third").await.len(), 0);
    let first = inbox.hold_slots(id, "first", lease, false).await.unwrap();
    let by_third = first.iter().filter(|one| one.is_wanted).count();
    assert_eq!((first.len(), by_third), (3, 1), "the third has none, and waits for one of the member with the most");
}

/// A source that is closed while it takes slots releases those too: otherwise they wait for the end of their leases.
pub async fn slots_taken_while_a_source_closes_are_released<T: InboxUnderTest>(subject: &T) {
    let inbox = Outage::of(subject.inbox());
    let open = opened(&*inbox, 3).await;
    let lease = Duration::from_secs(100);
    let others = inbox.hold_slots(open.id, "another", lease, true).await.unwrap();
    let source = InboxSource::with_settings(Arc::clone(&inbox) as _, name("orders"), settings().lease(lease));
    let driver = SourceDriver::join(source).await;
    inbox.holds_grants.store(true, Ordering::SeqCst);
    let others: Vec<_> = others.iter().map(|one| one.held).collect();
    inbox.release_slots(open.id, "another", &others).await.unwrap();
    let taken = async {
        loop {
            inbox.granted.notified().await;
            if subject.holders(open.id).await == [(driver.source.holder().to_owned(), 3)] {
                break;
            }
            inbox.lets_through.notify_one();
        }
    };
    within("slots that are taken", taken).await;
    let lets_through = async {
        tokio::task::yield_now().await;
        inbox.lets_through.notify_one();
    };
    tokio::join!(driver.close(), lets_through);
    assert_eq!(subject.holders(open.id).await, []);
}

/// The effects of all members, as records in one database would have them.
#[derive(Debug, Default)]
struct Ledger {
    last: BTreeMap<String, usize>,
    effects: usize,
    disorder: Vec<String>,
}

type Shared = Arc<Mutex<Ledger>>;

fn apply(ledger: &Shared, payload: &str) {
    let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let (key, number) = payload.split_once(':').unwrap();
    let number: usize = number.parse().unwrap();
    let last = ledger.last.entry(key.to_owned()).or_default();
    if number == *last + 1 {
        *last = number;
        ledger.effects += 1;
    } else if number > *last {
        let found = format!("{payload} after {last}");
        ledger.disorder.push(found);
    }
}

struct Member {
    holder: String,
    stop: CancellationToken,
    /// Dropped without a word.
    dies: CancellationToken,
    task: JoinHandle<()>,
}

fn member<T: InboxUnderTest>(subject: &T, ledger: &Shared) -> Member {
    let source = InboxSource::with_settings(subject.inbox(), name("orders"), settings());
    let (holder, ledger) = (source.holder().to_owned(), Arc::clone(ledger));
    let (stop, dies) = (CancellationToken::new(), CancellationToken::new());
    let (stopped, dead) = (stop.clone(), dies.clone());
    let works = async move {
        let reader = SourceDriver::join(source).await;
        loop {
            let received = tokio::select! {
                received = reader.next(9) => received,
                () = stopped.cancelled() => {
                    reader.source.stop();
                    reader.next(9).await
                }
            };
            match received {
                Received::Deliveries(deliveries) => {
                    for payload in payloads(&deliveries) {
                        tokio::task::yield_now().await;
                        apply(&ledger, &payload);
                    }
                    // Those of slots that were lost meanwhile are stale, and come to another member.
                    reader.try_acknowledge(deliveries).await;
                }
                // Nothing is in flight between two receives.
                Received::Revoked(revocation) => drop(revocation),
                _ => break,
            }
        }
        reader.close().await;
    };
    let task = tokio::spawn(async move {
        tokio::select! {
            () = works => {}
            () = dead.cancelled() => {}
        }
    });
    Member { holder, stop, dies, task }
}

const KEYS: usize = 24;

const EACH: usize = 25;

/// The messages of all keys, each key's in its order.
fn numbered(slots: u16) -> VecDeque<NewInboxRow> {
    (1..=EACH)
        .flat_map(|number| (0..KEYS).map(move |key| (key, number)))
        .map(|(key, number)| {
            let message =
                Message::new(format!("k{key}:{number}")).with_origin(Origin::new(&format!("orders/{key}/{number}")));
            NewInboxRow::new(message.with_ordering_key(OrderingKey::new(format!("k{key}").into_bytes())), None, slots)
        })
        .collect()
}

/// N15: every message of every key takes effect once and in order while members join, leave, die and lose slots, and afterwards those that
/// are left share the slots evenly.
pub async fn members_come_and_go<T: InboxUnderTest>(subject: &T) {
    let inbox = subject.inbox();
    let open = opened(&*inbox, 16).await;
    let (ledger, mut random) = (Shared::default(), rng("members_come_and_go"));
    let mut members: VecDeque<Member> = (0..2).map(|_| member(subject, &ledger)).collect();
    let mut left = numbered(open.slots);
    let begun = Instant::now();
    let mut turn = 0;
    while !left.is_empty() || inbox.backlog(open.id, &[], 1).await.unwrap().rows > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "{:?}",
            ledger.lock().unwrap_or_else(PoisonError::into_inner)
        );
        let rows: Vec<NewInboxRow> = left.drain(..left.len().min(20)).collect();
        inbox.put(open.id, &rows).await.unwrap();
        turn += 1;
        // Late enough that something was taken over, and not so often that nothing is.
        if turn % 4 == 0 && !left.is_empty() {
            match random.u8(..5) {
                0 | 1 if members.len() < 4 => members.push_back(member(subject, &ledger)),
                2 if members.len() > 1 => {
                    let leaves = members.pop_front().unwrap();
                    leaves.stop.cancel();
                    within("the end of a member", leaves.task).await.unwrap();
                }
                3 if members.len() > 1 => {
                    let dies = members.pop_front().unwrap();
                    dies.dies.cancel();
                    within("the death of a member", dies.task).await.unwrap();
                    subject.change_slots(open.id, SlotChange::Expired(&dies.holder)).await;
                }
                _ => subject.change_slots(open.id, SlotChange::Lost).await,
            }
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    {
        let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(ledger.disorder, [""; 0]);
        assert_eq!(ledger.effects, KEYS * EACH);
    }
    let even = async {
        loop {
            let counts: Vec<usize> = subject.holders(open.id).await.iter().map(|(_, slots)| *slots).collect();
            let (least, most) = (counts.iter().min(), counts.iter().max());
            if counts.len() == members.len()
                && counts.iter().sum::<usize>() == 16
                && most <= least.map(|least| least + 1).as_ref()
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("an even share", even).await;
    for member in members {
        member.stop.cancel();
        within("the end", member.task).await.unwrap();
    }
    assert_eq!(subject.holders(open.id).await, [], "slots are released at the end");
}
