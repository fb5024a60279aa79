//! Faults of the "server" of a [`MemoryStore`] as a whole: restarts, failovers, restores, another clock; and operators'
//! changes of its records.

use std::{collections::BTreeMap, time::Duration};

use idem_core::{
    ConsumerName, IdempotencyKey,
    results::NewResult,
    store::{Recorded, ScopeId, StoreIdentity},
};

use super::{
    MemoryStore,
    bookkeeping::Books,
    inbox::Inboxes,
    outbox::Events,
    results::ResultRow,
    state::{RecordKey, Rows, State},
};

/// Everything that was committed at some moment: the data of a standby or of a backup.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    records: BTreeMap<RecordKey, Recorded>,
    tables: BTreeMap<String, Rows>,
    books: Books,
    events: Events,
    inboxes: Inboxes,
}

impl MemoryStore {
    /// The committed state as it is now, for [`MemoryStore::go_back_to`].
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        let State { records, tables, books, events, inboxes, .. } = &*self.shared.state();
        let (records, tables, books) = (records.clone(), tables.clone(), books.clone());
        Checkpoint { records, tables, books, events: events.clone(), inboxes: inboxes.clone() }
    }

    /// Ends every session, as a restart of the server does: uncommitted work is gone, and every session finds its connection
    /// lost.
    pub fn end_sessions(&self) {
        self.shared.state().end_sessions();
        self.shared.ended.notify_waiters();
    }

    /// Another server answers from now on, and it has what was committed at the checkpoint and nothing else: a standby that
    /// was promoted before it had received everything, or a backup that was restored. Every session ends. Workers notice by
    /// the server's [identity](idem_core::store::Control::identity), which is a new one. The numbers of consumers and tenants
    /// in the database may be lost too.
    pub fn go_back_to(&self, checkpoint: &Checkpoint) {
        let mut state = self.shared.state();
        state.end_sessions();
        let Checkpoint { records, tables, books, events, inboxes } = checkpoint.clone();
        (state.records, state.tables, state.inboxes) = (records, tables, inboxes);
        state.books = books;
        state.events.go_back_to(events);
        state.server += 1;
        drop(state);
        self.shared.ended.notify_waiters();
    }

    /// Moves this store's clock back, as a server's clock that is set right does.
    pub fn set_back(&self, by: Duration) {
        self.shared.state().set_back += by;
    }

    /// Gives a consumer another name, as `idem consumers rename` does it; its workers must not run meanwhile. Answers whether it was
    /// done: there is a consumer `from`, and none `to`.
    pub fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> bool {
        self.shared.state().books.rename(from, to, self.shared.defect)
    }

    /// Gives these numbers to tenants of this consumer (J97).
    pub fn take_numbers(&self, consumer: &ConsumerName, numbers: impl IntoIterator<Item = ScopeId>) {
        self.shared.state().books.take_numbers(consumer, numbers);
    }

    /// Forgets what a consumer is bound to, as `idem consumers rebind` does it: its next start binds it anew.
    pub fn rebind(&self, consumer: &ConsumerName) {
        self.shared.state().books.rebind(consumer);
    }

    /// Forgets the record of a key, as an operator does so that its message takes effect again, and empties every cache
    /// of committed keys; its answer goes with it. Answers whether there was one.
    pub fn forget(&self, scope: ScopeId, key: &IdempotencyKey) -> bool {
        let mut state = self.shared.state();
        let own = (scope, key.clone());
        state.events.results.remove(&own);
        let is_gone = state.records.remove(&own).is_some();
        if is_gone {
            state.books.forgotten(scope, key);
        }
        is_gone
    }

    /// Puts a result into the table in place of that of its key, as a login with the right to write there could.
    pub fn replace_result(&self, result: NewResult) {
        let mut state = self.shared.state();
        let (key, now) = ((result.scope, result.key.clone()), state.now());
        state.events.results.insert(key, ResultRow::new(result, now));
    }
}

impl State {
    fn end_sessions(&mut self) {
        self.era += 1;
        self.held.clear();
        self.events.held.clear();
        self.locked.clear();
        self.waits.clear();
        self.writer = None;
    }

    /// The identity that distinguishes this server from the one that answered before.
    pub(super) fn identity(&self) -> StoreIdentity {
        match self.server {
            0 => StoreIdentity::default(),
            number => StoreIdentity::new(format!("server {number}")),
        }
    }
}
