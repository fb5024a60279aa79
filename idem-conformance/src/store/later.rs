//! Messages that wait for a later try: their times, one row for one message, and how they end.

use std::time::Duration;

use idem_core::{
    ConsumerName, Store as _,
    dead_letter::{DeadLetter, DueEnd, DueFailure, DueRoom, PutAside, Reason},
    store::{Bookkeeping as _, Registered},
};

use super::{
    failures::{from, letter, listed, store_dead_letter, take},
    fixture::{Fixture, key_from},
    gate::within,
    subject::{Arrangement, StoreUnderTest},
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

fn failed(registered: &Registered, reason: Reason) -> DeadLetter {
    letter(registered, from("q/1", "order-1", "p"), Some("order-1"), reason)
}

/// Puts a message aside for an hour; `None` where the store keeps none, and refuses to.
async fn put_aside<T: StoreUnderTest>(fixture: &Fixture<'_, T>, letter: &DeadLetter) -> Option<PutAside> {
    let row = within("putting a message aside", fixture.store.bookkeeping().put_aside(letter, HOUR)).await;
    if fixture.store.capabilities().sets_aside {
        return Some(row.unwrap_or_else(|error| panic!("not put aside: {error}")));
    }
    let Err(refused) = row else { panic!("it says that it keeps none, and has kept {row:?}") };
    let refused = refused.to_string();
    assert!(refused.contains("orders"), "{refused}");
    None
}

/// How the try of a row failed, after so many attempts.
fn failure(reason: Reason, attempts: u32) -> DueFailure {
    DueFailure { attempts, ..DueFailure::new(reason, "sold out") }
}

/// A message that is put aside runs at its time and not before it, with the attempts that were made. While it runs, and once it is handled,
/// it is taken by no other worker; then its row is gone.
pub async fn what_is_put_aside_runs_at_its_time<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let letter = failed(&registered, Reason::AttemptsExhausted);
    let Some(row) = put_aside(&fixture, &letter).await else { return };
    assert!(matches!(row, PutAside::Written(_)), "{row:?}");
    let kept = listed(&fixture).await.remove(0);
    assert_eq!((kept.id, kept.attempts, kept.reason, kept.copies), (row.id(), 5, Reason::AttemptsExhausted, 1));
    let waits = kept.waits_until.unwrap().duration_since(kept.first_at).unwrap();
    assert!(waits >= HOUR - MINUTE && waits <= HOUR + MINUTE, "{waits:?}");
    if !fixture.arrange(Arrangement::Age(HOUR - MINUTE)).await {
        return;
    }
    assert!(take(&fixture, &registered).await.is_empty(), "before its time");
    fixture.arrange(Arrangement::Age(MINUTE * 2)).await;
    let rows = take(&fixture, &registered).await;
    let [due] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((due.id, due.attempts, due.was_taken, due.scope), (row.id(), 5, false, registered.scope));
    assert_eq!((due.key.as_ref(), due.message.payload()), (Some(&key_from("order-1")), letter.message.payload()));
    assert!(take(&fixture, &fixture.register().await).await.is_empty(), "it runs");
    fixture.store.bookkeeping().end_due(registered.run, &[(due.id, DueEnd::Processed)]).await.unwrap();
    assert!(listed(&fixture).await.is_empty(), "nothing is left of what went well");
}

/// A message that waits is one row, whatever it fails of and however often it is delivered: put aside again or dead-lettered, it goes on
/// waiting as it did, and the count of its attempts goes on. Another payload under its key is another message.
pub async fn a_message_that_waits_is_one_row<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let books = fixture.store.bookkeeping();
    let letter = failed(&registered, Reason::AttemptsExhausted);
    let (key, hash) = (key_from("order-1"), letter.payload_hash().0);
    assert_eq!(books.count_attempt(registered.scope, &key, hash).await.unwrap(), 1);
    let Some(row) = put_aside(&fixture, &letter).await else { return };
    let before = listed(&fixture).await;
    for reason in [Reason::AttemptsExhausted, Reason::Deadline] {
        let again = DeadLetter { attempts: 9, ..failed(&registered, reason) };
        assert_eq!(put_aside(&fixture, &again).await, Some(PutAside::Known(row.id())), "{reason}");
        let stored = store_dead_letter(&fixture, &again).await;
        assert_eq!((stored.id, stored.waits_until.is_some(), stored.attempts), (row.id(), true, 5), "{reason}");
    }
    assert_eq!(listed(&fixture).await, before);
    assert_eq!(books.count_attempt(registered.scope, &key, hash).await.unwrap(), 2, "the count goes on");
    let other = DeadLetter { message: from("q/1", "order-1", "other"), ..letter };
    let other = DeadLetter { hash: failed_hash(&other, &registered), ..other };
    assert_ne!(put_aside(&fixture, &other).await.map(PutAside::id), Some(row.id()));
}

fn failed_hash(
    of: &DeadLetter,
    registered: &Registered,
) -> Option<(idem_core::hash::PayloadHash, idem_core::store::HashRuleId)> {
    letter(registered, of.message.clone(), Some("order-1"), of.reason).hash
}

/// A row that failed again waits again, for as long as its end says. One that fails for good is a dead letter like any other: with its last
/// failure, no replay, and a count that begins again.
pub async fn a_row_waits_again_and_goes_dead<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let books = fixture.store.bookkeeping();
    let letter = failed(&registered, Reason::AttemptsExhausted);
    let (key, hash) = (key_from("order-1"), letter.payload_hash().0);
    let Some(row) = put_aside(&fixture, &letter).await else { return };
    books.count_attempt(registered.scope, &key, hash).await.unwrap();
    if !fixture.arrange(Arrangement::Age(HOUR * 2)).await {
        return;
    }
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    let again = DueEnd::Again { after: HOUR, failure: failure(Reason::Deadline, 6) };
    let other = fixture.register().await;
    books.end_due(other.run, &[(row.id(), again.clone())]).await.unwrap();
    assert_eq!(listed(&fixture).await[0].attempts, 5, "another run's failure counts for nothing");
    books.end_due(registered.run, &[(row.id(), again)]).await.unwrap();
    let waiting = listed(&fixture).await.remove(0);
    assert_eq!((waiting.attempts, waiting.reason, &*waiting.error), (6, Reason::Deadline, "sold out"));
    assert!(waiting.waits_until.is_some() && waiting.replayed.is_none(), "{waiting:?}");
    assert!(take(&fixture, &other).await.is_empty(), "before its next time");
    fixture.arrange(Arrangement::Age(HOUR + MINUTE)).await;
    let rows = take(&fixture, &other).await;
    assert_eq!(rows.iter().map(|row| (row.attempts, row.was_taken)).collect::<Vec<_>>(), [(6, false)]);
    assert_eq!(books.count_attempt(registered.scope, &key, hash).await.unwrap(), 2, "the count went on");
    let dead = DueEnd::Failed(failure(Reason::Permanent, 7));
    books.end_due(other.run, &[(row.id(), dead)]).await.unwrap();
    let dead = listed(&fixture).await.remove(0);
    assert_eq!((dead.id, dead.attempts, dead.reason, &*dead.error), (row.id(), 7, Reason::Permanent, "sold out"));
    assert!(dead.waits_until.is_none() && dead.replayed.is_none(), "{dead:?}");
    assert_eq!(books.count_attempt(registered.scope, &key, hash).await.unwrap(), 1, "its count has ended");
    assert!(take(&fixture, &other).await.is_empty(), "it is over");
    let back = put_aside(&fixture, &DeadLetter { attempts: 5, ..failed(&registered, Reason::AttemptsExhausted) }).await;
    assert_eq!(back, Some(PutAside::Written(row.id())), "a dead letter that is put aside waits in its row");
}

/// An operator has a message that waits run now: with all of its attempts, as any replay, whose outcome is noted. One that runs is left
/// alone.
pub async fn an_operator_need_not_wait<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    let books = fixture.store.bookkeeping();
    let letter = failed(&registered, Reason::AttemptsExhausted);
    let (key, hash) = (key_from("order-1"), letter.payload_hash().0);
    let Some(row) = put_aside(&fixture, &letter).await else { return };
    books.count_attempt(registered.scope, &key, hash).await.unwrap();
    assert_eq!(books.due_now(&[row.id()], "ann").await.unwrap(), 1);
    assert_eq!(books.due_now(&[row.id()], "bob").await.unwrap(), 0, "it is asked for already");
    assert_eq!(books.count_attempt(registered.scope, &key, hash).await.unwrap(), 1, "it has all attempts again");
    let rows = take(&fixture, &registered).await;
    assert_eq!(rows.iter().map(|row| (row.id, row.attempts)).collect::<Vec<_>>(), [(row.id(), 0)]);
    assert_eq!(books.due_now(&[row.id()], "ann").await.unwrap(), 0, "it runs");
    books.end_due(registered.run, &[(row.id(), DueEnd::Processed)]).await.unwrap();
    let listed = listed(&fixture).await.remove(0);
    assert_eq!((listed.replayed.as_deref(), listed.waits_until), (Some("processed"), None));
}

/// A replay that fails may have later tries too: it waits, and is no replay any more.
pub async fn a_replay_that_fails_may_wait<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    let registered = fixture.register().await;
    if !fixture.store.capabilities().sets_aside {
        return;
    }
    let books = fixture.store.bookkeeping();
    let id = store_dead_letter(&fixture, &failed(&registered, Reason::Permanent)).await.id;
    assert_eq!(books.due_now(&[id], "ann").await.unwrap(), 1);
    assert_eq!(take(&fixture, &registered).await.len(), 1);
    let again = DueEnd::Again { after: HOUR, failure: failure(Reason::AttemptsExhausted, 5) };
    books.end_due(registered.run, &[(id, again)]).await.unwrap();
    let waiting = listed(&fixture).await.remove(0);
    assert!(waiting.waits_until.is_some() && waiting.replayed.is_none(), "{waiting:?}");
    let orders = ConsumerName::new("orders").unwrap();
    assert!(books.take_due(&orders, registered.run, DueRoom::rows(10)).await.unwrap().is_empty());
    if fixture.arrange(Arrangement::Age(HOUR + MINUTE)).await {
        let rows = take(&fixture, &registered).await;
        assert_eq!(rows.iter().map(|row| (row.id, row.attempts)).collect::<Vec<_>>(), [(id, 5)]);
    }
}
