//! The inbox suite on SQLite.

use std::sync::Arc;

use idem_conformance::inbox::{Commit, InboxUnderTest, SlotChange};
use idem_core::{
    inbox::{Inbox, InboxStore as _, NewInboxRow},
    store::ScopeId,
};
use idem_sqlx::SqliteStore;

use super::File;

struct Subject {
    file: File,
    store: Arc<SqliteStore>,
}

async fn fresh() -> Subject {
    let (file, store) = super::fresh().await;
    Subject { file, store }
}

/// Microseconds since the Unix epoch.
const NOW: &str = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)";

impl InboxUnderTest for Subject {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store.inbox()
    }

    async fn put_late(&self, _: ScopeId, _: NewInboxRow) -> Option<Commit> {
        None
    }

    async fn change_slots(&self, inbox: ScopeId, change: SlotChange<'_>) {
        let (set, of) = match change {
            SlotChange::Wanted => (format!("wanted_by = 'another', wanted_until = {NOW} + 700000"), String::new()),
            SlotChange::Lost => ("epoch = epoch + 1".to_owned(), String::new()),
            SlotChange::Expired(holder) => {
                ("held_by = NULL, held_until = NULL".to_owned(), format!("AND held_by = '{holder}'"))
            }
        };
        self.file.run(&format!("UPDATE idem_inbox_slots SET {set} WHERE consumer = {inbox} {of}")).await;
    }

    async fn holders(&self, inbox: ScopeId) -> Vec<(String, usize)> {
        let query = format!(
            "SELECT held_by || ' ' || count(*) FROM idem_inbox_slots WHERE consumer = {inbox} AND held_until > {NOW} GROUP BY held_by"
        );
        let holders = self.file.ask(&query).await;
        holders
            .iter()
            .map(|text| text.split_once(' ').unwrap())
            .map(|(by, slots)| (by.to_owned(), slots.parse().unwrap()))
            .collect()
    }
}

idem_conformance::inbox_conformance!(fresh);
