//! How long the server works on a statement outside of units of work.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{check::settings::Pooler, run::role_default::RoleDefault, text::postgres::milliseconds};

/// The limit of statements outside of units of work: the server ends them about when their client gives them up, so that one that
/// is slow piles up no sessions (A54).
///
/// A session of a client's own begins with the limit. Behind a pooler in transaction mode there is no such session: there each
/// statement has a transaction that begins with it.
#[derive(Debug)]
pub struct StatementLimit {
    milliseconds: i32,
    is_sessions: AtomicBool,
}

impl StatementLimit {
    /// As long as the client waits. Without names for statements the server is taken to be behind a pooler, which refuses settings of
    /// a session.
    #[must_use]
    pub fn new(limit: Duration, pooler: Pooler) -> Self {
        Self { milliseconds: milliseconds(limit), is_sessions: AtomicBool::new(pooler == Pooler::None) }
    }

    /// The setting with which a connection is to begin.
    #[must_use]
    pub fn setting(&self) -> Option<(&'static str, String)> {
        self.is_sessions.load(Ordering::Relaxed).then(|| ("statement_timeout", self.milliseconds.to_string()))
    }

    /// The query for a connection that began with it, in the simple protocol: a pooler may have dropped it without a word. Where none
    /// has, the session is READ COMMITTED from now on, whatever the default is, because a function that waits for a lock must see the
    /// work of the session that had it. Result, one row: `t` or `f`.
    #[must_use]
    pub fn question(&self) -> Option<String> {
        let limit = self.milliseconds;
        self.setting().map(|(name, _)| {
            format!(
                "SELECT CASE WHEN source = 'client' AND setting = '{limit}' \
                    THEN pg_catalog.set_config('default_transaction_isolation', 'read committed', false) <> '' ELSE false END \
                FROM pg_catalog.pg_settings WHERE name = '{name}'"
            )
        })
    }

    /// Notes that no session can have it here, from now on.
    pub fn refused(&self) {
        self.is_sessions.store(false, Ordering::Relaxed);
    }

    /// How a statement begins on a connection that was made ready for it; `None` where it is a transaction by itself.
    #[must_use]
    pub fn begin(&self, role_default: &RoleDefault) -> Option<String> {
        let (begin, limit) = (role_default.begin(), self.milliseconds);
        let is_by_itself = self.is_sessions.load(Ordering::Relaxed) && !role_default.is_read_only();
        (!is_by_itself).then(|| format!("{begin}; SET LOCAL statement_timeout = {limit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a54_where_no_session_has_the_limit_each_transaction_has_it() {
        let (second, by_role) = (Duration::from_secs(1), RoleDefault::default());
        let limit = StatementLimit::new(second, Pooler::None);
        assert_eq!(limit.setting(), Some(("statement_timeout", "1000".to_owned())));
        assert_eq!(limit.begin(&by_role), None);
        limit.refused();
        for limit in [limit, StatementLimit::new(second, Pooler::Transaction)] {
            assert_eq!((limit.setting(), limit.question()), (None, None));
            let begin = limit.begin(&by_role).unwrap();
            assert_eq!(begin, "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 1000");
        }
    }
}
