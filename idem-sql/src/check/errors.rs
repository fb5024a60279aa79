//! The meaning of a PostgreSQL driver's error, by the place where it happened.

use std::error::Error;

use idem_core::{
    BoxError, ErrorClass, StoreError,
    store::{ClaimError, CommitError},
};

use crate::check::sqlstate::{CommitOutcome, UNSEALED_COMMIT, WEAKER_COMMIT, commit_outcome};

/// The cure where a pooler loses prepared statements.
pub const POOLER_CURE: &str = "Let the pooler track prepared statements (PgBouncer 1.21 and later, `max_prepared_statements`), or pool \
                               by session; a program of your own can set its store's `statements` to `Unnamed` instead";

/// An error of prepared statements, which only a pooler causes.
#[derive(Debug, thiserror::Error)]
#[error("a prepared statement is not on the server connection that a pooler handed out. {POOLER_CURE}")]
struct PoolerError(#[source] BoxError);

/// The server takes no writes.
#[derive(Debug, thiserror::Error)]
#[error("the server is a standby, or was fenced by default_transaction_read_only: connect to the primary")]
struct ReadOnlyError;

/// The server takes no writes, as it turned out while `doing` something.
#[must_use]
pub fn read_only(doing: &'static str) -> StoreError {
    StoreError::Unavailable { doing, source: Box::new(ReadOnlyError) }
}

/// A claim waited as long as it may, and not for one of its keys.
#[derive(Debug, thiserror::Error)]
#[error(
    "the claim waited for as long as it may, and for no key: a lock on the whole table of the keys keeps it waiting, as CREATE INDEX without \
     CONCURRENTLY takes one (pg_locks shows it), or the server is too slow"
)]
struct NoKeyError(#[source] BoxError);

/// Whether the context of an error says that its statement waited for a key which another transaction holds: it then names the place of
/// that one's row, in any language (`while inserting index tuple (0,7) in relation "processed_messages"`). A wait for the
/// table has no such context.
#[must_use]
pub fn waited_for_key(context: &str) -> bool {
    let is_place = |rest: &str| {
        let place = rest.split_once(')').and_then(|(place, _)| place.split_once(','));
        place.is_some_and(|(block, row)| block.parse::<u32>().is_ok() && row.parse::<u16>().is_ok())
    };
    context.lines().any(|line| line.contains("processed_messages") && line.split('(').skip(1).any(is_place))
}

/// The server's `lock_timeout` is over.
const WAITED_FOR_LOCK: &str = "55P03";

/// The server's `statement_timeout` is over, or an operator has canceled the statement.
const CANCELED: &str = "57014";

/// A row of the same key is there: of a statement of idem's own, which does nothing on a conflict, another transaction was first.
/// `ON CONFLICT` knows the valid unique indexes alone. Next to one that is not valid, as a running REINDEX CONCURRENTLY has it and a
/// cancelled one leaves it, the loser of a race meets that index and gets this error (A55).
pub(crate) const TAKEN: &str = "23505";

const CLAIMING: &str = "claiming keys";

/// The name of an append in the texts of its errors.
pub const WRITING: &str = "writing events and results";

/// The limits that a session has of its own, as texts of the server. If it has none, a limit that an append meets is a handler's.
#[derive(Debug, Clone, Copy)]
pub struct AppendLimits<'s> {
    /// `lock_timeout`.
    pub lock: &'s str,
    /// `statement_timeout`.
    pub statement: &'s str,
    /// Whether the role of the session may write to the tables, as another connection has found it: where it may, a handler
    /// has set another role.
    pub may_append: bool,
}

/// An append failed because of a handler's setting.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
struct LeftByHandlerError {
    cause: &'static str,
    source: BoxError,
}

/// The error of an append whose SQLSTATE shows that a handler caused it; otherwise `source` unchanged.
fn left_by_handler(code: &str, limits: AppendLimits<'_>, source: BoxError) -> Result<StoreError, BoxError> {
    let cause = match code {
        "42501" if limits.may_append => {
            "a handler has set a role or row_security for its transaction, under which events and results cannot be written: \
             publish nothing there, or put both back before the handler returns"
        }
        "57014" if limits.statement == "0" => {
            "a handler has set a statement_timeout that was too short for writing events and results, or somebody has \
             cancelled the statement: put the setting back before the handler returns"
        }
        "55P03" if limits.lock == "0" => {
            "a handler has set a lock_timeout that was too short for writing events: put it back before the handler returns"
        }
        _ => return Err(source),
    };
    Ok(StoreError::failed(WRITING, ErrorClass::Permanent, LeftByHandlerError { cause, source }))
}

/// A driver's error, with the facts that a store's errors depend on.
#[derive(Debug)]
pub struct DriverError {
    code: String,
    class: ErrorClass,
    source: BoxError,
}

impl DriverError {
    /// `code` is the SQLSTATE that the server reported, empty where the error is the driver's own.
    pub fn new(code: impl Into<String>, class: ErrorClass, source: impl Error + Send + Sync + 'static) -> Self {
        Self { code: code.into(), class, source: Box::new(source) }
    }

    /// Of a statement of idem's own.
    #[must_use]
    pub fn doing(self, doing: &'static str) -> StoreError {
        let Self { code, class, source } = self;
        match class {
            _ if matches!(code.as_str(), "26000" | "42P05") => {
                StoreError::Unavailable { doing, source: Box::new(PoolerError(source)) }
            }
            // The winner has committed, so the next run finds its row.
            _ if code == TAKEN => StoreError::Contended { doing, source },
            ErrorClass::Infrastructure => StoreError::Unavailable { doing, source },
            ErrorClass::RunUnitAgain => StoreError::Contended { doing, source },
            ErrorClass::Transient | ErrorClass::Permanent | ErrorClass::Fatal => {
                StoreError::Failed { doing, class, source }
            }
        }
    }

    /// Of BEGIN.
    #[must_use]
    pub fn beginning(self) -> StoreError {
        let doing = "beginning a transaction";
        match self.code.as_str() {
            // "Cannot set transaction read-write mode during recovery" (A23).
            "0A000" | "25006" => read_only(doing),
            // Any other error here is about the server or the connection, not about a message.
            _ => {
                let error = self.doing(doing);
                if let StoreError::Failed { source, .. } = error {
                    StoreError::Unavailable { doing, source }
                } else {
                    error
                }
            }
        }
    }

    /// Of a claim, by a driver that shows the error's context, which is empty where the server gave none.
    #[must_use]
    pub fn claiming_with(self, context: &str) -> ClaimError {
        if matches!(self.code.as_str(), WAITED_FOR_LOCK | CANCELED) && !waited_for_key(context) {
            let source = Box::new(NoKeyError(self.source));
            return StoreError::Failed { doing: CLAIMING, class: ErrorClass::Infrastructure, source }.into();
        }
        self.claiming()
    }

    /// Of a claim, where a lock on the whole table, or the server's slowness, would pass for a key that is held: see
    /// [`claiming_with`](Self::claiming_with). A driver that does not show the context has to lock the table before the claim, in the
    /// mode that the claim needs (`LOCK TABLE … IN ROW EXCLUSIVE MODE`).
    #[must_use]
    pub fn claiming(self) -> ClaimError {
        let doing = CLAIMING;
        match self.code.as_str() {
            // A key was held for as long as a claim waits (B2).
            WAITED_FOR_LOCK | CANCELED => ClaimError::Held,
            "25006" => read_only(doing).into(),
            _ => self.doing(doing).into(),
        }
    }

    /// Of an append, which runs in the state that the handlers have left: their roles and limits, or no transaction at all.
    #[must_use]
    pub fn appending(self, limits: AppendLimits<'_>) -> StoreError {
        let Self { code, class, source } = self;
        let problem = match code.as_str() {
            "25P02" => Some("a handler has swallowed the error of a statement"),
            // Outside of the unit's own transaction a session is read only.
            "25006" => Some("a handler has ended the transaction that claimed the keys, or made it read only"),
            _ => None,
        };
        if let Some(problem) = problem {
            return StoreError::Unsealed { problem: problem.to_owned(), source: Some(source) };
        }
        match left_by_handler(&code, limits, source) {
            Ok(error) => error,
            Err(source) => Self { code, class, source }.doing(WRITING),
        }
    }

    /// Of the seal, which certainly failed.
    #[must_use]
    pub fn sealing(self) -> StoreError {
        let problem = match self.code.as_str() {
            "22012" => "a handler has ended the transaction that claimed the keys",
            "25P02" => "a handler has swallowed the error of a statement",
            FORGOTTEN => "a handler has deallocated the session's prepared statements",
            WEAKER_COMMIT => {
                "a handler has set synchronous_commit to a weaker value than its session began with: leave it to the role, the \
                 database or the server, because a unit commits the effects of several messages"
            }
            _ => "a statement of a handler failed after the handler had stopped reading its answer",
        };
        let unsealed = |source| StoreError::Unsealed { problem: problem.to_owned(), source: Some(source) };
        if matches!(self.code.as_str(), FORGOTTEN | TAKEN) {
            return unsealed(self.source);
        }
        let error = self.doing("sealing the transaction");
        if let StoreError::Failed { source, .. } = error { unsealed(source) } else { error }
    }

    /// Of a seal behind which a COMMIT was sent. Where the server refused the seal, it took the COMMIT for a ROLLBACK;
    /// otherwise the outcome is unknown.
    #[must_use]
    pub fn sealing_with_commit(self) -> CommitError {
        match commit_outcome(&self.code) {
            CommitOutcome::Unknown => CommitError::Unknown(self.source),
            CommitOutcome::RolledBack => CommitError::RolledBack(self.sealing()),
        }
    }

    /// While COMMIT was outstanding.
    #[must_use]
    pub fn committing(self) -> CommitError {
        match commit_outcome(&self.code) {
            CommitOutcome::Unknown => CommitError::Unknown(self.source),
            CommitOutcome::RolledBack if self.code == UNSEALED_COMMIT => {
                CommitError::RolledBack(StoreError::Unsealed {
                    problem: "the server holds another transaction than the one that was sealed".to_owned(),
                    source: Some(self.source),
                })
            }
            // A deferred constraint of the application's: idem has none.
            CommitOutcome::RolledBack if self.code == TAKEN => {
                let Self { class, source, .. } = self;
                CommitError::RolledBack(StoreError::Failed { doing: "committing", class, source })
            }
            CommitOutcome::RolledBack => CommitError::RolledBack(self.doing("committing")),
        }
    }
}

/// A prepared statement does not exist. Elsewhere it is a pooler's doing; the claim of the same transaction was there.
const FORGOTTEN: &str = "26000";

/// Whether a seal that [writes](crate::PostgresStatements::seal_results) answers has failed with this code as a seal, or with its connection
/// where the code is empty, and not because they could not be written.
#[must_use]
pub fn is_of_seal(code: &str) -> bool {
    matches!(code, "" | "22012" | "25P02" | FORGOTTEN | WEAKER_COMMIT)
}

/// A row that is missing, or holds something else than idem's statements answer.
pub fn unreadable(source: impl Into<BoxError>) -> StoreError {
    let (doing, source) = ("reading the database's answer", source.into());
    StoreError::Failed { doing, class: ErrorClass::Transient, source }
}

/// A row of this table is not as idem writes it.
pub(crate) fn damaged_in(table: &str, what: &str) -> StoreError {
    StoreError::schema(
        format!("a row of {table} holds a damaged {what}"),
        "Restore the table from a backup: somebody else has written to it",
    )
}

/// The process ids that a driver saw through two connections at once: see [`is_pooled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenPids {
    /// The server process that the first connection prepared a statement on.
    pub first: i32,
    /// That of the second, which then held it in a transaction.
    pub second: i32,
    /// That of the first again, by the same prepared statement.
    pub again: i32,
}

impl SeenPids {
    /// Rounds of looking, because other clients of a pooler can take the server connection in between. All of them go over the same
    /// two connections: to a server without a pooler each further one is another process.
    pub const ROUNDS: usize = 3;

    /// Whether a pooler gave both connections a server process that only one of them would have without it.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.second == self.first || self.again != self.first
    }
}

/// Whether a pooler in transaction mode stands in between, which gives the server connection that a first client has
/// just used to a second one, and answers so where it keeps prepared statements apart.
///
/// # Errors
/// [`StoreError::Refused`] with the cure where it does not.
pub fn is_pooled(seen: Result<SeenPids, StoreError>) -> Result<bool, StoreError> {
    match seen {
        Ok(seen) => Ok(seen.is_pooled()),
        Err(StoreError::Unavailable { source, .. }) if source.is::<PoolerError>() => Err(StoreError::Refused {
            problem: "statements is Named, and a pooler in transaction mode loses prepared statements".to_owned(),
            cure: POOLER_CURE.to_owned(),
        }),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A55: a statement of idem's own that met a row of its key runs again, whatever it inserts. Where the error is a handler's, or of a
    /// deferred constraint of the application's, it stays what it was.
    #[test]
    fn a55_only_idems_own_statements_run_again_for_a_row_that_was_first() {
        let taken = || DriverError::new(TAKEN, ErrorClass::Permanent, std::io::Error::other("taken"));
        let limits = AppendLimits { lock: "0", statement: "0", may_append: true };
        let ClaimError::Store(claimed) = taken().claiming() else { panic!("it is no wait") };
        for error in [claimed, taken().doing("storing a dead letter"), taken().appending(limits)] {
            assert_eq!(error.class(), ErrorClass::RunUnitAgain, "{error:?}");
        }
        let CommitError::RolledBack(committed) = taken().committing() else { panic!("the server says why") };
        assert_eq!(committed.class(), ErrorClass::Permanent, "{committed:?}");
        assert!(matches!(taken().sealing(), StoreError::Unsealed { .. }));
    }

    /// W139: the contexts of PostgreSQL 14 to 18, in three languages, and others that an error may have.
    #[test]
    fn w139_a_wait_for_a_key_is_known_by_its_place() {
        for context in [
            "while inserting index tuple (0,7) in relation \"processed_messages\"",
            "beim Einfügen von Indextupel (4294967294,291) in Relation »processed_messages«\nPL/pgSQL function f() line 1",
            "リレーション\"processed_messages\"のインデックスタプル(12,1)の挿入中",
        ] {
            assert!(waited_for_key(context), "{context}");
        }
        for context in [
            "",
            "unnamed portal with parameters: $1 = '7'",
            "SQL function \"processed_messages(integer,integer)\" statement 1",
            "while updating tuple (0,1) in relation \"accounts\"",
            "relation \"processed_messages\" (0",
        ] {
            assert!(!waited_for_key(context), "{context}");
        }
    }

    fn code(code: &str, limit: &str, may_append: bool) -> Option<ErrorClass> {
        let limits = AppendLimits { lock: limit, statement: limit, may_append };
        left_by_handler(code, limits, "the driver's".into()).ok().map(|error| error.class())
    }

    #[test]
    fn o22_what_a_handler_has_set_is_permanent_and_an_overload_is_not() {
        for name in ["42501", "57014", "55P03"] {
            assert_eq!(code(name, "0", true), Some(ErrorClass::Permanent));
            assert_eq!(code(name, "30s", false), None, "the session's own limit, or a right that is missing");
        }
        assert_eq!(code("40P01", "0", true), None);
    }
}
