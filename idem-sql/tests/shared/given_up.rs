//! A54: a statement that the client has given up ends at the server too. Every PostgreSQL store's tests include this file.

use std::time::Duration;

use idem_core::{
    StoreError,
    outbox::{EventEnd, LeaseRequest, Outbox},
};
use idem_testkit::outgoing_event;

/// How long the client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);

/// Ten times a client waits for a row that another session has locked, and gives up: while it is still locked, no session waits
/// for it any more. `blocker` runs a statement in that session, and `until` waits until a query says true.
pub(crate) async fn nothing_piles_up(
    outbox: &dyn Outbox,
    schema: &str,
    mut blocker: impl AsyncFnMut(&'static str),
    until: impl AsyncFnOnce(String),
) {
    let id = outbox.declare(&["payments".into()]).await.unwrap()[0].id;
    blocker("BEGIN; SELECT FROM outbox_destinations FOR UPDATE").await;
    let event = outgoing_event("event-1", "");
    let ends = [(&event, EventEnd::Published)];
    for _ in 0..10 {
        let (settled, leased) = tokio::join!(
            outbox.settle(id, &ends),
            outbox.lease(id, LeaseRequest::new("relay", Duration::from_secs(1)))
        );
        assert!(matches!(settled, Err(StoreError::Unavailable { .. })), "{settled:?}");
        assert!(matches!(leased, Err(StoreError::Unavailable { .. })), "{leased:?}");
    }
    let waiting = "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until(format!("{waiting} AND query LIKE '%{schema}%'")).await;
    blocker("ROLLBACK").await;
    outbox.settle(id, &ends).await.unwrap();
}
