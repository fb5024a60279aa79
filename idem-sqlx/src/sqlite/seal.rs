//! The seal: SQLite calls a hook before each commit on a session, and only the one that idem sent passes.
//!
//! A handler's raw `COMMIT` in mid-batch would otherwise commit the claims of messages that never ran, and each of their
//! redeliveries would pass for a duplicate (A12). SQLite turns a refused commit into a rollback.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use sqlx::SqliteConnection;

/// No unit is under way.
const IDLE: u8 = 0;
/// A unit's transaction is open, and must not be committed yet.
const OPEN: u8 = 1;
/// The next commit is idem's.
const SEALED: u8 = 2;
/// SQLite asked, and the hook let it go on.
const COMMITTING: u8 = 3;
/// The unit's transaction was rolled back: by a handler, by a refused commit, or by SQLite because of an error.
const ENDED: u8 = 4;

/// How many steps of SQLite's machine lie between two looks at [`Guard::stop`]: about a tenth of a millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// The state of a session's transaction that SQLite's hooks read and write.
#[derive(Debug, Default)]
pub(super) struct Guard {
    state: AtomicU8,
    stop: AtomicBool,
}

/// The guard of a session, which interrupts with its end what still runs: a dropped connection closes once its thread is done with the
/// statement in hand, which may take long.
#[derive(Debug)]
pub(super) struct OwnGuard(Arc<Guard>);

impl Deref for OwnGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Drop for OwnGuard {
    fn drop(&mut self) {
        self.stop();
    }
}

impl OwnGuard {
    /// Has SQLite ask this guard from now on. A hook that the connection had is replaced.
    pub(super) async fn attach(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let guard = Arc::new(Guard::default());
        let mut handle = connection.lock_handle().await?;
        let (commit, rollback, progress) = (Arc::clone(&guard), Arc::clone(&guard), Arc::clone(&guard));
        handle.set_commit_hook(move || commit.may_commit());
        handle.set_rollback_hook(move || rollback.rolled_back());
        handle.set_progress_handler(STEPS_BETWEEN_LOOKS, move || !progress.stop.load(Ordering::Relaxed));
        Ok(Self(guard))
    }

    /// Takes the hooks off again.
    pub(super) async fn detach(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let mut handle = connection.lock_handle().await?;
        handle.remove_commit_hook();
        handle.remove_rollback_hook();
        handle.remove_progress_handler();
        Ok(())
    }
}

impl Guard {
    /// A unit begins: from here on no commit passes.
    pub(super) fn begin(&self) {
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// The unit is over.
    pub(super) fn end(&self) {
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Whether the transaction is still the one that was begun.
    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) == OPEN
    }

    /// Lets the next commit pass. Answers whether there is still a transaction to commit.
    #[must_use]
    pub(super) fn seal(&self) -> bool {
        self.state.compare_exchange(OPEN, SEALED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether SQLite asked for the commit and did not roll it back afterwards.
    pub(super) fn committed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == COMMITTING
    }

    /// Interrupts the statement that runs now, and every later one.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn may_commit(&self) -> bool {
        self.state.compare_exchange(SEALED, COMMITTING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn rolled_back(&self) {
        // Between units nothing is open, and nothing needs to be remembered.
        let ended = |state| (state != IDLE).then_some(ENDED);
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sealed_commit_passes_and_only_once() {
        let guard = Guard::default();
        assert!(!guard.may_commit(), "without a unit");
        guard.begin();
        assert!(!guard.may_commit() && guard.is_open());
        assert!(guard.seal() && guard.may_commit() && guard.committed());
        assert!(!guard.may_commit(), "a statement behind the commit");
        guard.end();
        assert!(!guard.may_commit());
    }

    #[test]
    fn what_was_rolled_back_cannot_be_sealed_again() {
        let guard = Guard::default();
        guard.begin();
        guard.rolled_back();
        assert!(!guard.is_open() && !guard.seal() && !guard.may_commit());
        guard.begin();
        assert!(guard.seal());
        guard.rolled_back();
        assert!(!guard.may_commit() && !guard.committed(), "rolled back after the seal");
    }
}
