//! The settings of the store.

use std::{fmt, net::IpAddr, str::FromStr as _};

use idem_core::StoreError;
use idem_sql::{PostgresSettings, check_number, is_this_machine, unreadable_url};
use rustls::ClientConfig;
use tokio_postgres::config::{Config, Host, SslMode};

use crate::{PostgresStore, tls};

/// The settings of a [`PostgresStore`].
///
/// `Debug` prints no password. With [`Pooler::Transaction`](crate::Pooler::Transaction), a handler's text costs a round trip more unless it names the
/// types of its parameters ([`PostgresConnection::execute_typed`](crate::PostgresConnection::execute_typed)).
#[derive(Clone)]
#[must_use]
pub struct PostgresOptions {
    pub(crate) connection: Config,
    pub(crate) tls: Option<ClientConfig>,
    pub(crate) cleanup: Option<Config>,
    pub(crate) settings: PostgresSettings,
    pub(crate) statements_max: usize,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("hosts", &self.connection.get_hosts())
            .field("ports", &self.connection.get_ports())
            .field("user", &self.connection.get_user())
            .field("database", &self.connection.get_dbname())
            .field("ssl_mode", &self.connection.get_ssl_mode())
            .field("settings", &self.settings)
            .field("statements_max", &self.statements_max)
            .finish_non_exhaustive()
    }
}

impl From<Config> for PostgresOptions {
    fn from(connection: Config) -> Self {
        Self::new(connection)
    }
}

impl PostgresOptions {
    /// Settings for this configuration of tokio-postgres. A server's certificate is checked against the roots of
    /// webpki, and its name always: `SslMode::Require` is what libpq calls `verify-full`.
    pub fn new(mut connection: Config) -> Self {
        if connection.get_application_name().is_none() {
            connection.application_name("idem");
        }
        Self { connection, tls: None, cleanup: None, settings: PostgresSettings::default(), statements_max: 100 }
    }

    /// Settings for a URL as libpq has it, with `sslmode` and `sslrootcert`, which is read here.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where it cannot be read. Its text does not repeat the URL, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let (url, root) = tls::take_parameters(url);
        let connection = Config::from_str(&url).map_err(|_| unreadable_url())?;
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

    idem_sql::postgres_setters!();

    /// How many prepared statements a connection keeps, idem's own included. Beyond that the one that was not used for
    /// longest goes. Defaults to 100; from 10 to 10,000.
    pub fn statements_max(mut self, statements: usize) -> Self {
        self.statements_max = statements;
        self
    }

    /// This program's name in the server's list of activities. Defaults to `idem`.
    pub fn application_name(mut self, name: &str) -> Self {
        self.connection.application_name(name);
        if let Some(cleanup) = &mut self.cleanup {
            cleanup.application_name(name);
        }
        self
    }

    /// Another login for cleanup, because the worker's role has no DELETE. Defaults to the worker's own. Of these options only the
    /// connection is used; TLS is that of the store itself.
    ///
    /// ```
    /// # fn options() -> Result<idem_tokio_postgres::PostgresOptions, idem_core::StoreError> {
    /// use idem_tokio_postgres::PostgresOptions;
    ///
    /// let cleanup = PostgresOptions::parse("postgres://idem_cleanup@localhost/payments")?;
    /// let options = PostgresOptions::parse("postgres://worker@localhost/payments")?.cleanup_login(cleanup);
    /// # Ok(options)
    /// # }
    /// # options().unwrap();
    /// ```
    pub fn cleanup_login(mut self, login: impl Into<Self>) -> Self {
        self.cleanup = Some(login.into().connection);
        self
    }

    /// The store. Nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names the setting, its value and the rule.
    pub fn build(self) -> Result<PostgresStore, StoreError> {
        self.settings.check()?;
        check_number("statements_max", self.statements_max, 10, 10_000, "it must be from 10 to 10,000")?;
        PostgresStore::from_options(self)
    }

    /// Whether the traffic could be read on its way to the server.
    pub(crate) fn is_plaintext_abroad(&self) -> bool {
        let is_here = |host: &Host| match host {
            Host::Tcp(name) => is_this_machine(name),
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
}
