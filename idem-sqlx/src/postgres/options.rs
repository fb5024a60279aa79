//! The settings of the store on PostgreSQL.

use std::fmt;

use idem_core::StoreError;
use idem_sql::{Pooler, PostgresSettings, is_this_machine, unreadable_url};
use sqlx::{
    ConnectOptions as _,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};

use super::PostgresStore;

/// The settings of a [`PostgresStore`].
///
/// `Debug` prints no password. With [`Pooler::Transaction`](crate::Pooler::Transaction), the handlers' own queries need `persistent(false)` too.
#[derive(Clone)]
#[must_use]
pub struct PostgresOptions {
    pub(super) connection: PgConnectOptions,
    pub(super) cleanup: Option<PgConnectOptions>,
    pub(super) settings: PostgresSettings,
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
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl From<PgConnectOptions> for PostgresOptions {
    fn from(connection: PgConnectOptions) -> Self {
        Self::new(connection)
    }
}

impl PostgresOptions {
    /// Settings for these options of sqlx's, whose statement logging is kept as it is.
    pub fn new(connection: PgConnectOptions) -> Self {
        // sqlx keeps the brackets of a URL's IPv6 address, with which no resolver finds it.
        let connection = match connection.get_host().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => connection.clone().host(address),
            None => connection,
        };
        let connection = match connection.get_application_name() {
            Some(_) => connection,
            None => connection.application_name("idem"),
        };
        Self { connection, cleanup: None, settings: PostgresSettings::default() }
    }

    /// Settings for a URL. sqlx's own logging of statements is off: it would call every claim that waits slow.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where it cannot be read. Its text does not repeat the URL, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let connection: PgConnectOptions = match url.parse() {
            Ok(connection) => connection,
            Err(_) if has_several_hosts(url) => return Err(several_hosts()),
            Err(_) => return Err(unreadable_url()),
        };
        if connection.get_host().contains(',') {
            return Err(several_hosts());
        }
        Ok(Self::new(connection.disable_statement_logging()))
    }

    idem_sql::postgres_setters!();

    /// This program's name in the server's list of activities. Defaults to `idem`.
    pub fn application_name(mut self, name: &str) -> Self {
        self.connection = self.connection.application_name(name);
        self.cleanup = self.cleanup.map(|options| options.application_name(name));
        self
    }

    /// Another login for cleanup, because the worker's role has no DELETE. Defaults to the worker's own. Of these options only the
    /// connection is used.
    ///
    /// ```
    /// # fn options() -> Result<idem_sqlx::PostgresOptions, idem_core::StoreError> {
    /// use idem_sqlx::PostgresOptions;
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

    /// How a connection of one's own reaches the same database, as sqlx takes it.
    pub fn connection(&self) -> &PgConnectOptions {
        &self.connection
    }

    /// The store. Nothing is connected yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names the setting, its value and the rule.
    pub fn build(mut self) -> Result<PostgresStore, StoreError> {
        self.settings.check()?;
        if self.settings.pooler == Pooler::Transaction {
            // Poolers refuse this setting of sqlx's, which only changes how a float is printed.
            self.connection = self.connection.extra_float_digits(None);
            self.cleanup = self.cleanup.map(|options| options.extra_float_digits(None));
        }
        Ok(PostgresStore::from_options(self))
    }

    pub(super) fn pool_options(&self, connections: u32) -> PgPoolOptions {
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(self.settings.answer_timeout)
            // A connection is looked at before its use, so that old ones do no harm; and without these limits the pool
            // needs no task of its own.
            .idle_timeout(None)
            .max_lifetime(None)
    }

    /// Whether the traffic could be read on its way to the server.
    pub(super) fn is_plaintext_abroad(&self) -> bool {
        let is_here = self.connection.get_socket().is_some() || is_this_machine(self.connection.get_host());
        let is_encrypted = match self.connection.get_ssl_mode() {
            PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => false,
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
        };
        !is_here && !is_encrypted
    }
}

/// Whether a comma stands where the URL names its host, as libpq allows it.
fn has_several_hosts(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(','))
}

fn several_hosts() -> StoreError {
    StoreError::refused(
        "the database URL names several hosts, and sqlx connects to one (the URL is not shown)".to_owned(),
        "Name one host that always leads to the primary, such as a DNS name or a proxy. The store of idem-tokio-postgres tries several",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_a_password_is_in_no_debug_text_and_no_error() {
        let options = PostgresOptions::parse("postgres://u:hunter2@db.internal/x").unwrap();
        assert!(!format!("{options:?}").contains("hunter2"));
        assert!(options.is_plaintext_abroad());
        for url in [
            "postgres://u:hunter2@a:5432,b:5432/x",
            "postgres://u:hunter2@a,b/x",
            "postgres:///x?host=a,b&password=hunter2",
        ] {
            let error = PostgresOptions::parse(url).unwrap_err().to_string();
            assert!(error.contains("several hosts") && !error.contains("hunter2"), "{url}: {error}");
        }
        for url in ["postgres://u:hunter2@host:notaport/x", "postgres://u:hunter2@h/x?sslmode=hunter2", "hunter2"] {
            let error = PostgresOptions::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn s9_only_this_machine_and_tls_are_private() {
        let private = [
            "postgres://u@127.0.0.1/x",
            "postgres://u@localhost/x",
            "postgres://u@[::1]/x",
            "postgres://u@db/x?sslmode=verify-full",
        ];
        for url in private {
            assert!(!PostgresOptions::parse(url).unwrap().is_plaintext_abroad(), "{url}");
        }
        assert!(PostgresOptions::parse("postgres://u@db/x?sslmode=prefer").unwrap().is_plaintext_abroad());
    }
}
