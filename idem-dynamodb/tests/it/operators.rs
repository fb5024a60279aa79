//! What operators read, erase and drop.

use idem_core::{
    IdempotencyKey, Store as _,
    dead_letter::{DeadLetter, DueRoom},
    store::{Bookkeeping as _, ControlState},
};

use super::{
    fixture::{Table, string},
    letters::{letter, orders, registered},
};

/// A consumer is listed in the scope of each tenant, so that a pause reaches all of its workers.
#[tokio::test]
async fn every_scope_of_a_consumer_is_listed() {
    let table = Table::new("operators").await;
    assert!(table.store.consumers().await.unwrap().is_empty());
    let first = registered(&table).await;
    let tenant = idem_core::Tenant::new("north").unwrap();
    let second = table.store.bookkeeping().scope(&orders(), &tenant).await.unwrap();
    table.store.bookkeeping().set_control(second, ControlState::Paused, "ann", "audit").await.unwrap();
    let all = table.another().consumers().await.unwrap();
    let seen: Vec<_> = all.iter().map(|of| (of.tenant.as_str(), of.scope, of.control.state)).collect();
    assert_eq!(seen, [("", first.scope, ControlState::Running), ("north", second, ControlState::Paused)]);
    assert!(all.iter().all(|of| of.consumer == orders() && of.first_started_at.is_some()), "{all:?}");
    table.drop().await;
}

/// Of an erased key no item keeps the text, a payload or an error; its letter is never replayed, and a later copy is a letter of its own.
/// A dropped letter leaves nothing, also where it was due.
#[tokio::test]
async fn erased_and_dropped_letters_leave_nothing() {
    let table = Table::new("operators").await;
    let (registered, key) = (registered(&table).await, IdempotencyKey::new("order-1").unwrap());
    let books = table.store.bookkeeping();
    let of_key = || DeadLetter { key: Some(key.clone()), ..letter(&registered, b"secret", "q/1") };
    let erased = books.store_dead_letter(&of_key()).await.unwrap().id;
    let other = books.store_dead_letter(&letter(&registered, b"other", "q/2")).await.unwrap().id;
    assert_eq!(books.due_now(&[erased, other], "ann").await.unwrap(), 2);
    assert_eq!(table.store.erase(registered.scope, &key, "ann", "she asked").await.unwrap(), 1);
    let held = table.store.dead_letter(erased).await.unwrap().unwrap();
    assert!(!held.letter.payload_kept && held.letter.key.is_none() && !held.is_due, "{held:?}");
    assert_eq!(table.store.dead_letter(other).await.unwrap().unwrap().message.payload().unwrap().as_ref(), b"other");
    let text = format!("{:?}", table.items().await);
    assert!(!text.contains("order-1"), "{text}");
    assert_eq!(table.items_of("deadpart#").await.len(), 1, "the other one's");
    let due = books.take_due(&orders(), registered.run, DueRoom::rows(10)).await.unwrap();
    assert_eq!(due.iter().map(|due| due.id).collect::<Vec<_>>(), [other]);
    assert_eq!(books.due_now(&[erased], "ann").await.unwrap(), 0);
    let copy = books.store_dead_letter(&of_key()).await.unwrap();
    assert!(copy.id != erased && copy.payload_kept, "{copy:?}");
    for id in [erased, other, copy.id] {
        assert!(table.store.drop_dead_letter(id).await.unwrap());
        assert!(!table.store.drop_dead_letter(id).await.unwrap());
    }
    for of in ["dead", "due#"] {
        assert!(table.items_of(of).await.is_empty(), "{of}");
    }
    let lines: Vec<_> = table.items_of("audit#").await.iter().map(|line| string(line, "details").to_owned()).collect();
    assert_eq!(lines, ["she asked"]);
    table.drop().await;
}
