//! Cleanup of a file.

use idem_testkit::Decide as _;
use std::time::Duration;

use idem_core::{
    Store as _,
    cleanup::{Cleanup, CleanupSettings},
};

use super::{consumer, fresh, messages, names};

/// S7, C1: every table has an end of its own; rows that have not expired or are still needed stay.
#[tokio::test(flavor = "multi_thread")]
async fn s7_every_table_has_an_end_and_what_is_still_needed_stays() {
    let (file, store) = fresh().await;
    let consumer = consumer(&store);
    consumer.decisions(messages(&[("old", "1"), ("live", "1")])).await.unwrap();
    file.run(
        "UPDATE idem_processed_messages SET expires_at = 1 WHERE idempotency_key = 'old';
         UPDATE idem_units SET at = 1;
         INSERT INTO idem_message_attempts VALUES (1, x'01', x'', 'a', 1, 1, 1);
         INSERT INTO idem_dead_letters (consumer, origin, last_origin, reason, attempts, error, payload_bytes, has_payload,
             first_at, last_at, state, due_at)
         VALUES (1, 'old', '', 'permanent', 1, '', 0, 0, 1, 1, 0, NULL), (1, 'awaits', '', 'permanent', 1, '', 0, 0, 1, 1, 1, 1);
         INSERT INTO idem_audit (at, who, action) VALUES (1, 'x', 'old');
         INSERT INTO idem_worker_runs (host, process, version, started_at) VALUES ('x', 1, '1', 1);
         UPDATE idem_worker_runs SET started_at = 1;",
    )
    .await;
    let mut cleaner = store.cleaner();
    assert!(cleaner.backlog().await.unwrap().lag > Duration::from_secs(3600));
    assert!(cleaner.last().await.unwrap().is_none());
    let settings = CleanupSettings::default().rows_max(1);
    let report = Cleanup::new(store.cleaner(), settings).unwrap().cycle().await.unwrap();
    assert_eq!(
        report.to_string(),
        "1 processed_messages, 1 units, 1 message_attempts, 1 dead_letters, 1 audit, 1 worker_runs"
    );
    assert_eq!(file.recorded().await, ["live"]);
    assert_eq!(file.ask("SELECT origin FROM idem_dead_letters").await, ["awaits"]);
    assert_eq!(file.ask("SELECT CAST(id AS TEXT) FROM idem_worker_runs").await, ["1"], "a record names it");
    let last = cleaner.last().await.unwrap().unwrap();
    assert!(last.ago < Duration::from_secs(60) && cleaner.backlog().await.unwrap().lag.is_zero());
    assert_eq!(
        names(&consumer.decisions(messages(&[("old", "1"), ("live", "1")])).await.unwrap()),
        ["processed", "duplicate"]
    );
}
