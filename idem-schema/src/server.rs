//! Whether a PostgreSQL server can keep the promise, and what a person should know of it.

use idem_core::StoreError;

/// PostgreSQL 14: TID range scans, `pg_current_xact_id`, `client_connection_check_interval`.
const VERSION_MIN: i32 = 140_000;

/// What a lane's session begins with, where no pooler stands in between.
///
/// Only idem's own BEGIN may write (A12). A server whose client has died ends a running statement, and with it the
/// transaction that holds keys, within seconds instead of at the statement's end or after hours (M27, M28).
pub const LANE_SETTINGS: [(&str, &str); 3] =
    [("default_transaction_read_only", "on"), ("client_connection_check_interval", "2s"), ("tcp_user_timeout", "30s")];

/// What start-up wants to know of the server, by [`server_facts`](crate::PostgresStatements::server_facts).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version_num`.
    pub version: i32,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// Whether transactions are read only unless they say otherwise.
    pub read_only: bool,
    /// `server_encoding`.
    pub encoding: String,
    /// The role of the connection.
    pub role: String,
    /// `synchronous_commit`.
    pub synchronous_commit: String,
    /// `idle_in_transaction_session_timeout`.
    pub idle_timeout: String,
    /// `default_transaction_isolation`.
    pub isolation: String,
}

fn refused(problem: String, cure: &str) -> StoreError {
    StoreError::Refused { problem, cure: cure.to_owned() }
}

impl ServerFacts {
    /// Decides whether a worker may start on this server.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the cure.
    pub fn verify(&self) -> Result<(), StoreError> {
        if self.version < VERSION_MIN {
            let found = format!("{}.{}", self.version / 10_000, self.version % 10_000);
            return Err(refused(format!("the server is PostgreSQL {found}"), "Use PostgreSQL 14 or later"));
        }
        if self.in_recovery {
            return Err(refused("the server is a standby (in recovery)".to_owned(), "Connect to the primary"));
        }
        if self.read_only {
            return Err(refused(
                format!("default_transaction_read_only is on for the role {}", self.role),
                "Connect to the primary; if this is it, turn the setting off for the server, the database and the role",
            ));
        }
        if self.encoding != "UTF8" {
            return Err(refused(
                format!("server_encoding is {}", self.encoding),
                "Keep idem's schema in a database with the encoding UTF8, because keys are compared as bytes of UTF-8",
            ));
        }
        Ok(())
    }

    /// What a person should know, each with its cure.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let weak @ ("off" | "local") = self.synchronous_commit.as_str() {
            warnings.push(format!(
                "synchronous_commit is {weak}: a crash or failover can lose a commit whose message is already acknowledged; \
                 set it to on for the role {}",
                self.role
            ));
        }
        if self.isolation != "read committed" {
            warnings.push(format!(
                "default_transaction_isolation is {:?}: units run at READ COMMITTED all the same, and your handlers with them",
                self.isolation
            ));
        }
        if self.idle_timeout != "0" {
            warnings.push(format!(
                "idle_in_transaction_session_timeout is {} for the role {}: units set their own, the handler's deadline \
                 and 5 s",
                self.idle_timeout, self.role
            ));
        }
        warnings
    }
}
