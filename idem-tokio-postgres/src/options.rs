//! The settings of the store.

use std::{fmt, net::IpAddr, str::FromStr as _, time::Duration};

use idem_core::{ConfigError, StoreError};
use idem_schema::SchemaName;
use rustls::ClientConfig;
use tokio_postgres::config::{Config, Host, SslMode};

use crate::{Postgres, tls};

/// Whether statements are prepared under names that stay with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Statements {
    /// Prepared once a connection: the fastest. Behind a pooler in transaction mode it needs prepared-statement support
    /// (PgBouncer 1.21 and later, with `max_prepared_statements`).
    #[default]
    Named,
    /// Nothing is kept prepared, for older poolers. A handler's text then costs a round trip more, unless it names the
    /// types of its parameters ([`PostgresConnection::execute_typed`](crate::PostgresConnection::execute_typed)).
    Unnamed,
}

/// The settings of a [`Postgres`] store.
///
/// `Debug` prints no password.
#[derive(Clone)]
#[must_use]
pub struct PostgresOptions {
    pub(crate) connection: Config,
    pub(crate) tls: Option<ClientConfig>,
    pub(crate) cleanup: Option<Config>,
    pub(crate) schema: SchemaName,
    pub(crate) statements: Statements,
    pub(crate) statements_max: usize,
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("hosts", &self.connection.get_hosts())
            .field("ports", &self.connection.get_ports())
            .field("user", &self.connection.get_user())
            .field("database", &self.connection.get_dbname())
            .field("ssl_mode", &self.connection.get_ssl_mode())
            .field("schema", &self.schema)
            .field("statements", &self.statements)
            .field("statements_max", &self.statements_max)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Settings for this configuration of tokio-postgres. A server's certificate is checked against the roots of
    /// webpki, and its name always: `SslMode::Require` is what libpq calls `verify-full`.
    pub fn new(mut connection: Config) -> Self {
        if connection.get_application_name().is_none() {
            connection.application_name("idem");
        }
        Self {
            connection,
            tls: None,
            cleanup: None,
            schema: SchemaName::default(),
            statements: Statements::default(),
            statements_max: 100,
            connections: 2,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
        }
    }

    /// Settings for a URL as libpq has it, with `sslmode` and `sslrootcert`, which is read here.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where it cannot be read. Its text does not repeat the URL, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let (url, root) = tls::take_parameters(url);
        let connection = Config::from_str(&url).map_err(|_| StoreError::Refused {
            problem: "the URL of the PostgreSQL store cannot be read".to_owned(),
            cure:
                "Write it as postgres://user:password@host:port/database?sslmode=verify-full, with special characters \
                   of the password percent-encoded"
                    .to_owned(),
        })?;
        let options = Self::new(connection);
        Ok(match root {
            Some(path) => options.tls(tls::config_with_root(&path)?),
            None => options,
        })
    }

    /// How a server's certificate is checked, and the client's own. Defaults to the roots of webpki.
    pub fn tls(mut self, config: ClientConfig) -> Self {
        self.tls = Some(config);
        self
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

    /// How many prepared statements a connection keeps, idem's own included. Beyond that the one that was not used for
    /// longest goes. Defaults to 100; from 10 to 10,000.
    pub fn statements_max(mut self, statements: usize) -> Self {
        self.statements_max = statements;
        self
    }

    /// How many connections are used outside of units of work. Defaults to 2; from 1 to 64. Each lane has its own
    /// beside them.
    pub fn connections(mut self, connections: usize) -> Self {
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
        self.connection.application_name(name);
        if let Some(cleanup) = &mut self.cleanup {
            cleanup.application_name(name);
        }
        self
    }

    /// Another login for cleanup, because the worker's role has no DELETE (S8). Defaults to the worker's own.
    pub fn cleanup_with(mut self, connection: Config) -> Self {
        self.cleanup = Some(connection);
        self
    }

    /// The store. Nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names the setting, its value and the rule.
    pub fn build(self) -> Result<Postgres, StoreError> {
        self.check().map_err(|error| StoreError::Refused {
            problem: error.to_string(),
            cure: "Change the setting of PostgresOptions".to_owned(),
        })?;
        Postgres::from_options(self)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let numbers = [
            ("connections", self.connections, 1..=64, "it must be from 1 to 64"),
            ("statements_max", self.statements_max, 10..=10_000, "it must be from 10 to 10,000"),
        ];
        for (field, value, range, rule) in numbers {
            if !range.contains(&value) {
                return Err(ConfigError { field, value: value.to_string(), rule });
            }
        }
        for (field, limit) in [("connect_timeout", self.connect_timeout), ("answer_timeout", self.answer_timeout)] {
            if !(Duration::from_millis(10)..=Duration::from_secs(300)).contains(&limit) {
                let rule = "it must be from 10 ms to 5 minutes";
                return Err(ConfigError { field, value: format!("{limit:?}"), rule });
            }
        }
        Ok(())
    }

    /// Whether somebody between here and the server could read along (S9).
    pub(crate) fn is_plaintext_abroad(&self) -> bool {
        let is_here = |host: &Host| match host {
            Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback()),
            #[cfg(unix)]
            Host::Unix(_) => true,
        };
        let is_abroad = !self.connection.get_hosts().iter().all(is_here)
            || !self.connection.get_hostaddrs().iter().all(IpAddr::is_loopback);
        is_abroad && self.connection.get_ssl_mode() != SslMode::Require
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
        for url in ["postgres://u@db/x?sslmode=prefer", "postgres://u@db/x", "host=/run,db user=u"] {
            assert!(PostgresOptions::parse(url).unwrap().is_plaintext_abroad(), "{url}");
        }
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
