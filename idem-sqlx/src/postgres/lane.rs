//! A lane: one connection, owned by whoever runs units on it.

use std::fmt;

use idem_core::StoreError;
use sqlx::PgConnection;

use super::{Postgres, error};

/// A connection for units of work, with what has to be known of its session. Dropping it closes it.
pub struct PostgresLane {
    pub(super) connection: PgConnection,
    /// The session's own limits, which a claim puts back when it is done with idem's.
    pub(super) lock_timeout: String,
    pub(super) statement_timeout: String,
    /// The server process, where it stays the same: behind a pooler it may be another in each transaction.
    pub(super) backend_pid: Option<i32>,
    /// Whether nobody knows any more what the connection's state is. The next unit opens another.
    pub(super) is_spent: bool,
}

impl fmt::Debug for PostgresLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLane").field("backend_pid", &self.backend_pid).finish_non_exhaustive()
    }
}

impl PostgresLane {
    /// The connection, for whoever handed it over; it is in no transaction.
    #[must_use]
    pub fn into_connection(self) -> PgConnection {
        self.connection
    }
}

impl Postgres {
    /// Makes a lane of a connection of one's own, for [`DedupConsumer::process_on`](idem_core::DedupConsumer::process_on).
    /// [`PostgresLane::into_connection`] gives it back.
    ///
    /// It must be in no transaction, and connected to the database that holds idem's schema. Its settings are left alone,
    /// so the protection against writes after a handler's own ROLLBACK is as strong as the connection's
    /// `default_transaction_read_only`: see [`Postgres`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the connection is broken or its server is a standby, [`StoreError::Refused`]
    /// where it is in a transaction.
    ///
    /// # Cancel safety
    /// Cancel safe: the connection is closed with a dropped call.
    pub async fn lane_from(&self, mut connection: PgConnection) -> Result<PostgresLane, StoreError> {
        if sqlx::Connection::is_in_transaction(&connection) {
            return Err(StoreError::Refused {
                problem: "the connection for a lane is in a transaction".to_owned(),
                cure: "End the transaction before the connection is handed over".to_owned(),
            });
        }
        let doing = "opening a lane";
        // Not prepared: it runs once a connection, and a pooler may hand the next statement to another server process.
        let facts = sqlx::raw_sql(sqlx::AssertSqlSafe(std::sync::Arc::clone(&self.sql().server_facts)));
        let row = self.within(doing, facts.fetch_one(&mut connection)).await?;
        // The simple protocol answers in texts.
        if error::text(&row, "in_recovery")? == "t" {
            return Err(idem_schema::read_only(doing));
        }
        let pid = error::text(&row, "backend_pid")?.parse().ok();
        Ok(PostgresLane {
            lock_timeout: error::text(&row, "lock_timeout")?,
            statement_timeout: error::text(&row, "statement_timeout")?,
            backend_pid: pid.filter(|_| self.is_direct()),
            connection,
            is_spent: false,
        })
    }
}
