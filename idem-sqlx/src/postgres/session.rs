//! A session: one connection, owned by the caller who runs units on it.

use std::fmt;

use idem_core::StoreError;
use idem_sql::{Durability, Fence, PostgresStatements, SessionFacts, SessionLimits};
use sqlx::{AssertSqlSafe, PgConnection};
use sqlx_core::transaction::TransactionManager as _;

use super::{Driver, Manager, PostgresStore, error};

/// A connection for units of work, with the facts about its session. Dropping it closes it.
///
/// For sqlx it is in a transaction as long as it lives, so that nested ones are savepoints: the seal goes out together with
/// COMMIT, in one text that sqlx's own commit could not send, and BEGIN with its limits is a text too.
pub struct PostgresSession {
    pub(super) connection: PgConnection,
    /// The session's own limits, which a claim puts back when it is done with idem's.
    pub(super) lock_timeout: String,
    pub(super) statement_timeout: String,
    /// The limits of its units, as far as it has them already.
    pub(super) limits: SessionLimits,
    /// `synchronous_commit` before any handler, which the seal compares, and each BEGIN sets where others share the session.
    pub(super) durability: Durability,
    pub(super) shared_durability: Option<&'static str>,
    /// The server process and when it began, where it serves this session alone: behind a pooler it may be another in each
    /// transaction.
    pub(super) backend: Option<(i32, i64)>,
    /// Whether the connection was handed over, and made read only by default here.
    is_fenced_here: bool,
}

impl fmt::Debug for PostgresSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSession").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl PostgresSession {
    /// Makes the connection ready for units.
    pub(super) async fn prepare(
        mut connection: PgConnection,
        facts: SessionFacts,
        statements: &PostgresStatements,
    ) -> Result<Self, sqlx::Error> {
        Manager::begin(&mut connection, None).await?;
        // Where the session is another client's after each transaction, nothing can stay prepared.
        let seal = if facts.own_backend().is_some() { prepare_seal(statements) } else { String::new() };
        sqlx::raw_sql(AssertSqlSafe(format!("ROLLBACK; {seal}"))).execute(&mut connection).await?;
        Ok(Self::new(connection, facts))
    }

    pub(super) async fn begin(&mut self, text: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut self.connection).await.map(|_| ())
    }

    fn new(connection: PgConnection, facts: SessionFacts) -> Self {
        let (backend, durability, shared_durability) =
            (facts.own_backend(), facts.durability(), facts.shared_durability());
        let SessionFacts { lock_timeout, statement_timeout, .. } = facts;
        Self {
            connection,
            lock_timeout,
            statement_timeout,
            limits: SessionLimits::new(backend.is_some()),
            durability,
            shared_durability,
            backend,
            is_fenced_here: false,
        }
    }

    /// The connection, given back to its owner; it is in no transaction, and has the `default_transaction_read_only`
    /// that it came with.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the connection is broken; it is closed then.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed with a dropped call.
    pub async fn into_connection(mut self) -> Result<PgConnection, StoreError> {
        let leave = async {
            self.begin("BEGIN").await?;
            Manager::rollback(&mut self.connection).await?;
            let forget = if self.backend.is_some() { FORGET_SEAL } else { "" };
            let reset = if self.is_fenced_here { "RESET default_transaction_read_only" } else { "" };
            sqlx::raw_sql(AssertSqlSafe(format!("{forget}{reset}"))).execute(&mut self.connection).await
        };
        leave.await.map_err(|source| error::store("giving a connection back", source))?;
        Ok(self.connection)
    }
}

/// The name under which the seal is prepared, in SQL: sqlx has no way to send one of its own statements with a COMMIT.
const FORGET_SEAL: &str = "DEALLOCATE idem_seal; ";

fn prepare_seal(statements: &PostgresStatements) -> String {
    format!("PREPARE idem_seal (text, text[]) AS {}", statements.seal)
}

impl PostgresStore {
    /// Makes a session of a connection of one's own, for [`DedupConsumer::process_on`](idem_core::DedupConsumer::process_on).
    /// [`PostgresSession::into_connection`] gives it back.
    ///
    /// It must be in no transaction, and connected as the store is, to the database that holds idem's schema. Until it is
    /// given back it has `default_transaction_read_only` on, so that nothing is committed that a handler writes after a
    /// ROLLBACK of its own: see [`PostgresStore`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the connection is broken or its server is a standby, [`StoreError::Refused`]
    /// where it is in a transaction, or behind a pooler with a role that is not read only by default.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed with a dropped call.
    pub async fn session_from(&self, mut connection: PgConnection) -> Result<PostgresSession, StoreError> {
        if sqlx::Connection::is_in_transaction(&connection) {
            return Err(StoreError::Refused {
                problem: "the connection for a session is in a transaction".to_owned(),
                cure: "End the transaction before the connection is handed over".to_owned(),
            });
        }
        let mut facts = self.driver().session_facts(&mut connection).await?;
        // Through a pooler, SET would be the next client's.
        let is_fenced_here = facts.fence == Fence::Missing && self.driver().is_direct().await?;
        if is_fenced_here {
            let fence = sqlx::raw_sql("SET default_transaction_read_only = on").execute(&mut connection);
            self.driver().within("opening a session", fence).await?;
            facts.fence = Fence::Session;
        }
        facts.refuse_unfenced()?;
        let prepare = PostgresSession::prepare(connection, facts, &self.driver().statements);
        let session = self.driver().within("opening a session", prepare).await?;
        // Its owner gets it back as it was.
        Ok(PostgresSession { is_fenced_here, limits: SessionLimits::new(false), ..session })
    }
}

impl Driver {
    /// Looks at the server of a new session.
    pub(super) async fn session_facts(&self, connection: &mut PgConnection) -> Result<SessionFacts, StoreError> {
        // Not prepared: it runs once a connection, and a pooler may hand the next statement to another server process.
        let facts = sqlx::raw_sql(sqlx::AssertSqlSafe(std::sync::Arc::clone(&self.statements.server_facts)));
        let row = self.within("opening a session", facts.fetch_one(connection)).await?;
        // The simple protocol answers in texts.
        SessionFacts::read(|column| error::text(&row, column))
    }
}
