//! A plain outbox on tokio-postgres.

use idem_core::{Event, outbox::AppendError};
use idem_tokio_postgres::PublishPlainError;

use crate::fixture::{Fixture, connect};

/// An event is committed with its caller's writes, and known by the caller's key.
#[tokio::test]
async fn a_plain_outbox_commits_with_its_callers_transaction() {
    let fixture = Fixture::new().await;
    let plain = fixture.store.plain_outbox("billing", ["payments"]).await.unwrap();
    let mut client = connect(&fixture.config).await;
    let event = |body: &'static str| Event::to("payments").ordering_key("acct-7").body(body);
    let transaction = client.transaction().await.unwrap();
    plain.publish(&transaction, "invoice-1", event("rolled back")).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    plain.publish(&transaction, "invoice-1", event("1")).await.unwrap();
    plain.publish(&transaction, "invoice-1", event("1")).await.unwrap();
    let refused = plain.publish(&transaction, "k", Event::to("nowhere")).await.unwrap_err();
    assert!(matches!(refused, PublishPlainError::Refused(_)), "{refused:?}");
    let other = plain.publish(&transaction, "invoice-1", event("2")).await.unwrap_err();
    assert!(matches!(other, PublishPlainError::Append(AppendError::Conflict { event: 0 })), "{other:?}");
    transaction.commit().await.unwrap();
    let rows = client.query("SELECT event_key, payload FROM outbox", &[]).await.unwrap();
    let rows: Vec<(String, Vec<u8>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [("invoice-1".to_owned(), b"1".to_vec())]);
    fixture.drop().await;
}
