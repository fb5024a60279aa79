//! The inboxes of the store.

use std::sync::Arc;

use idem_core::inbox::{Inbox, InboxStore};
use idem_sql::SqlInbox;

use super::SqliteStore;

impl InboxStore for SqliteStore {
    fn inbox(self: &Arc<Self>) -> Arc<dyn Inbox> {
        Arc::new(SqlInbox::new(Arc::clone(self.bookkeeping.driver())))
    }
}
