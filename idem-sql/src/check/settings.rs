//! The settings of every PostgreSQL store, beside how to connect.

use std::{net::IpAddr, time::Duration};

use idem_core::{ConfigError, StoreError, internal::Exactly};

use crate::text::name::SchemaName;

/// The bytes of a record with its indexes, where keys are UUIDs in text; `./bench --growth` measures it.
pub const RECORD_BYTES: u64 = 210;

/// The pooler in front of the server, by which statements are prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooler {
    /// There is none, or one that keeps prepared statements: each is prepared once a connection, which is the fastest. In transaction mode
    /// that is PgBouncer 1.21 and later, with `max_prepared_statements`.
    #[default]
    None,
    /// One in transaction mode that keeps no prepared statements, such as PgBouncer before 1.21. The store's documentation says how the
    /// handlers' own statements must follow.
    Transaction,
}

/// The settings; a store's options document each.
#[derive(Debug, Clone)]
pub struct PostgresSettings {
    /// Defaults to `idem`.
    pub schema: SchemaName,
    /// Defaults to [`Pooler::None`].
    pub pooler: Pooler,
    /// Defaults to 2; from 1 to 64.
    pub connections: u32,
    /// Defaults to 5 s; from 10 ms to 5 minutes.
    pub connect_timeout: Duration,
    /// Defaults to 10 s; from 10 ms to 5 minutes.
    pub answer_timeout: Duration,
}

impl Default for PostgresSettings {
    fn default() -> Self {
        Self {
            schema: SchemaName::default(),
            pooler: Pooler::default(),
            connections: 2,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

impl PostgresSettings {
    /// Refuses values that break a rule.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names the setting, its value and the rule.
    pub fn check(&self) -> Result<(), StoreError> {
        check_number("connections", self.connections as usize, 1, 64, "it must be from 1 to 64")?;
        for (field, limit) in [("connect_timeout", self.connect_timeout), ("answer_timeout", self.answer_timeout)] {
            if !(Duration::from_millis(10)..=Duration::from_secs(300)).contains(&limit) {
                return Err(refused(field, Exactly(limit).to_string(), "it must be from 10 ms to 5 minutes"));
            }
        }
        Ok(())
    }
}

/// Refuses a number that a store has a rule of its own for.
///
/// # Errors
/// As [`PostgresSettings::check`].
pub fn check_number(
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
    rule: &'static str,
) -> Result<(), StoreError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(refused(field, value.to_string(), rule)) }
}

fn refused(field: &'static str, value: String, rule: &'static str) -> StoreError {
    StoreError::Refused {
        problem: ConfigError::new(field, value, rule).to_string(),
        cure: "Change the setting of PostgresOptions".to_owned(),
    }
}

/// Refuses a URL without repeating it, because it may hold a password.
#[must_use]
pub fn unreadable_url() -> StoreError {
    StoreError::Refused {
        problem: "the URL of the PostgreSQL store cannot be read".to_owned(),
        cure:
            "Write it as postgres://user:password@host:port/database?sslmode=verify-full, with special characters of the \
               password percent-encoded"
                .to_owned(),
    }
}

/// Whether a host is this machine, so that no network carries the traffic.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.starts_with('/') || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The setters of the options of a store that keeps [`PostgresSettings`] in a field `settings`.
#[doc(hidden)]
#[macro_export]
macro_rules! postgres_setters {
    () => {
        $crate::postgres_setters! {
            /// The schema that holds idem's tables. Defaults to `idem`.
            schema: $crate::SchemaName,
            /// The pooler in front of the server. Defaults to [`Pooler::None`](crate::Pooler::None).
            pooler: $crate::Pooler,
            /// How many connections are used outside of units of work. Defaults to 2; from 1 to 64. Each lane has its own
            /// beside them.
            connections: u32,
            /// How long connecting may take. Defaults to 5 s; from 10 ms to 5 minutes.
            connect_timeout: ::std::time::Duration,
            /// How long one call outside of units of work may take, the wait for a connection included; the server ends its
            /// statement after this time too. Defaults to 10 s; from 10 ms to 5 minutes.
            answer_timeout: ::std::time::Duration,
        }
    };
    ($($(#[$doc:meta])+ $name:ident: $type:ty,)+) => {$(
        $(#[$doc])+
        pub fn $name(mut self, $name: $type) -> Self {
            self.settings.$name = $name;
            self
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let error = PostgresSettings { connections: 0, ..PostgresSettings::default() }.check().unwrap_err();
        assert!(error.to_string().contains("connections is 0, but it must be"), "{error}");
        let settings = PostgresSettings { answer_timeout: Duration::ZERO, ..PostgresSettings::default() };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains("answer_timeout is 0s"), "{error}");
    }

    #[test]
    fn s9_only_this_machine_is_private() {
        for host in ["localhost", "127.0.0.1", "127.8.0.1", "::1", "/run/postgresql"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["db", "db.internal", "10.0.0.1", "localhost.example.org", ""] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
