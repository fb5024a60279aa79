//! The settings of the store on PostgreSQL.

use std::{fmt, time::Duration};

use idem_core::{ConfigError, StoreError};
use idem_schema::SchemaName;
use sqlx::{
    ConnectOptions as _, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::Postgres;

/// Whether idem's statements are prepared under names that stay with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Statements {
    /// Prepared once a connection: the fastest. Behind a pooler in transaction mode it needs prepared-statement support
    /// (PgBouncer 1.21 and later, with `max_prepared_statements`).
    #[default]
    Named,
    /// Prepared anew each time, for older poolers. The handlers' own queries need `persistent(false)` too.
    Unnamed,
}

/// The settings of a [`Postgres`] store.
///
/// `Debug` prints no password.
#[derive(Clone)]
#[must_use]
pub struct PostgresOptions {
    pub(super) connection: PgConnectOptions,
    pub(super) cleanup: Option<PgConnectOptions>,
    pub(super) schema: SchemaName,
    pub(super) statements: Statements,
    pub(super) connections: u32,
    pub(super) connect_timeout: Duration,
    pub(super) answer_timeout: Duration,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // PgConnectOptions would print the password.
        f.debug_struct("PostgresOptions")
            .field("host", &self.connection.get_host())
            .field("port", &self.connection.get_port())
            .field("user", &self.connection.get_username())
            .field("database", &self.connection.get_database())
            .field("ssl_mode", &self.connection.get_ssl_mode())
            .field("schema", &self.schema)
            .field("statements", &self.statements)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Settings for these options of sqlx's, whose statement logging is kept as it is.
    pub fn new(connection: PgConnectOptions) -> Self {
        let connection = match connection.get_application_name() {
            Some(_) => connection,
            None => connection.application_name("idem"),
        };
        Self {
            connection,
            cleanup: None,
            schema: SchemaName::default(),
            statements: Statements::default(),
            connections: 2,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
        }
    }

    /// Settings for a URL. sqlx's own logging of statements is off: it would call every claim that waits slow.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where it cannot be read. Its text does not repeat the URL, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let connection: PgConnectOptions = url.parse().map_err(|_: sqlx::Error| StoreError::Refused {
            problem: "the URL of the PostgreSQL store cannot be read".to_owned(),
            cure:
                "Write it as postgres://user:password@host:port/database?sslmode=verify-full, with special characters \
                   of the password percent-encoded"
                    .to_owned(),
        })?;
        Ok(Self::new(connection.disable_statement_logging()))
    }

    /// The schema that holds idem's tables. Defaults to `idem`.
    pub fn schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    /// Whether statements are prepared under names. Defaults to [`Statements::Named`].
    pub fn statements(mut self, statements: Statements) -> Self {
        self.statements = statements;
        self
    }

    /// How many connections are used outside of units of work. Defaults to 2; from 1 to 64. Each lane has its own
    /// beside them.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// How long connecting may take. Defaults to 5 s; from 10 ms to 5 minutes.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long one call outside of units of work may take, the wait for a connection included. Defaults to 10 s; from
    /// 10 ms to 5 minutes.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// What the server's list of activities calls this program. Defaults to `idem`.
    pub fn application_name(mut self, name: &str) -> Self {
        self.connection = self.connection.application_name(name);
        self.cleanup = self.cleanup.map(|options| options.application_name(name));
        self
    }

    /// Another login for cleanup, because the worker's role has no DELETE (S8). Defaults to the worker's own.
    pub fn cleanup_with(mut self, connection: PgConnectOptions) -> Self {
        self.cleanup = Some(connection);
        self
    }

    /// The store. Nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names the setting, its value and the rule.
    pub fn build(mut self) -> Result<Postgres, StoreError> {
        self.check().map_err(|error| StoreError::Refused {
            problem: error.to_string(),
            cure: "Change the setting of PostgresOptions".to_owned(),
        })?;
        if self.statements == Statements::Unnamed {
            // Poolers refuse this setting of sqlx's, which only changes how a float is printed.
            self.connection = self.connection.extra_float_digits(None);
            self.cleanup = self.cleanup.map(|options| options.extra_float_digits(None));
        }
        Ok(Postgres::from_options(self))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !(1..=64).contains(&self.connections) {
            let rule = "it must be from 1 to 64";
            return Err(ConfigError { field: "connections", value: self.connections.to_string(), rule });
        }
        for (field, limit) in [("connect_timeout", self.connect_timeout), ("answer_timeout", self.answer_timeout)] {
            if !(Duration::from_millis(10)..=Duration::from_secs(300)).contains(&limit) {
                let rule = "it must be from 10 ms to 5 minutes";
                return Err(ConfigError { field, value: format!("{limit:?}"), rule });
            }
        }
        Ok(())
    }

    pub(super) fn pool(&self, connection: &PgConnectOptions, connections: u32) -> PgPool {
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(self.answer_timeout)
            // A connection is looked at before its use, so that old ones do no harm; and without these limits the pool
            // needs no task of its own.
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(connection.clone())
    }

    /// Whether somebody between here and the server could read along (S9).
    pub(super) fn is_plaintext_abroad(&self) -> bool {
        let host = self.connection.get_host();
        let is_here = self.connection.get_socket().is_some()
            || host.starts_with('/')
            || host == "localhost"
            || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        let is_encrypted = match self.connection.get_ssl_mode() {
            PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => false,
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
        };
        !is_here && !is_encrypted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_a_password_is_in_no_debug_text_and_no_error() {
        let options = PostgresOptions::parse("postgres://u:hunter2@db.internal/x").unwrap();
        assert!(!format!("{options:?}").contains("hunter2"));
        assert!(options.is_plaintext_abroad());
        for url in ["postgres://u:hunter2@host:notaport/x", "postgres://u:hunter2@h/x?sslmode=hunter2", "hunter2"] {
            let error = PostgresOptions::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn s9_only_this_machine_and_tls_are_private() {
        for url in ["postgres://u@127.0.0.1/x", "postgres://u@localhost/x", "postgres://u@db/x?sslmode=verify-full"] {
            assert!(!PostgresOptions::parse(url).unwrap().is_plaintext_abroad(), "{url}");
        }
        assert!(PostgresOptions::parse("postgres://u@db/x?sslmode=prefer").unwrap().is_plaintext_abroad());
    }

    #[test]
    fn wrong_settings_are_named() {
        let options = || PostgresOptions::parse("postgres://u@127.0.0.1/x").unwrap();
        let error = options().connections(0).build().unwrap_err().to_string();
        assert!(error.contains("connections is 0, but it must be"), "{error}");
        let error = options().answer_timeout(Duration::ZERO).build().unwrap_err().to_string();
        assert!(error.contains("answer_timeout is 0ns"), "{error}");
    }
}
