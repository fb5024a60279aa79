//! Dead letters whose payload takes several items.

use idem_core::{
    ConsumerName, ErrorClass, Message, Retention, Store as _, Tenant,
    dead_letter::{DeadLetter, DueRoom, FailureKind, Fingerprint, Reason},
    message::Origin,
    store::{Bookkeeping as _, Registered, Registration},
};

use super::fixture::Table;

pub(crate) fn orders() -> ConsumerName {
    ConsumerName::new("orders").unwrap()
}

/// A start of a worker.
pub(crate) async fn registered(table: &Table) -> Registered {
    let (key_rule, rules) = ("header:k".to_owned(), vec!["raw/1".to_owned()]);
    let registration = Registration::new(orders(), Tenant::default(), key_rule, rules, Retention::Forever);
    table.store.bookkeeping().register(&registration).await.unwrap()
}

pub(crate) fn letter(registered: &Registered, payload: &[u8], origin: &str) -> DeadLetter {
    DeadLetter {
        consumer: orders(),
        scope: registered.scope,
        message: Message::new(payload.to_vec()).with_origin(Origin::new(origin)),
        key: None,
        hash: None,
        reason: Reason::Malformed,
        attempts: 1,
        error: "it failed".to_owned(),
        fingerprint: Fingerprint::of(&FailureKind::new(Reason::Malformed, ErrorClass::Permanent)),
        keep_payload: true,
        payload_omitted: None,
    }
}

/// A payload of several items is replayed byte for byte, and one that no transaction takes is not kept: a publisher must have it.
#[tokio::test]
async fn a_large_payload_is_kept_in_parts_and_a_larger_one_not_at_all() {
    let table = Table::new("letters").await;
    let registered = registered(&table).await;
    let books = table.store.bookkeeping();
    for (number, size) in [0, 1, 350 << 10, (350 << 10) + 1, 3_500 << 10].into_iter().enumerate() {
        let payload: Vec<u8> = (0..size).map(|at: usize| (at % 251) as u8).collect();
        let stored = books.store_dead_letter(&letter(&registered, &payload, &format!("q/{number}"))).await.unwrap();
        assert!(stored.payload_kept, "{size}");
        assert_eq!(books.due_now(&[stored.id], "ann").await.unwrap(), 1);
        let rows = books.take_due(&orders(), registered.run, DueRoom::rows(10)).await.unwrap();
        let row = rows.iter().find(|row| row.id == stored.id).unwrap();
        assert!(row.message.payload().is_some_and(|replayed| *replayed == payload), "{size}");
    }
    let larger = letter(&registered, &vec![0; (3_500 << 10) + 1], "q/large");
    let stored = books.store_dead_letter(&larger).await.unwrap();
    assert!(!stored.payload_kept);
    assert_eq!(books.due_now(&[stored.id], "ann").await.unwrap(), 0);
    table.drop().await;
}
