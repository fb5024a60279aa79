//! The inboxes of the store.

use std::sync::Arc;

use idem_core::inbox::{Inbox, InboxStore};
use idem_sql::SqlInbox;

use super::PostgresStore;

impl InboxStore for PostgresStore {
    fn inbox(self: &Arc<Self>) -> Arc<dyn Inbox> {
        Arc::new(SqlInbox::new(Arc::clone(self.bookkeeping.driver())))
    }
}
