//! Whether a PostgreSQL server can keep the promise, and warnings for a person.

use std::{
    future::Future,
    sync::atomic::{AtomicU8, Ordering},
};

use idem_core::StoreError;

use crate::{
    check::errors::{read_only, unreadable},
    text::name::SchemaName,
};

/// PostgreSQL 14: TID range scans, `pg_current_xact_id`, `client_connection_check_interval`.
const VERSION_MIN: i32 = 140_000;

/// The settings with which a session begins, where no pooler stands in between.
///
/// Only idem's own BEGIN may write. A server whose client has died ends a running statement, and with it the
/// transaction that holds keys, within seconds instead of at the statement's end or after hours.
pub const SESSION_SETTINGS: [(&str, &str); 3] =
    [("default_transaction_read_only", "on"), ("client_connection_check_interval", "2s"), ("tcp_user_timeout", "30s")];

/// The setting among [`SESSION_SETTINGS`] that keeps statements after a handler's own ROLLBACK from being committed.
const FENCE: &str = SESSION_SETTINGS[0].0;

/// Which of [`SESSION_SETTINGS`] a server, or the pooler before it, takes at the start of a connection.
#[derive(Debug)]
pub struct SessionSettings(AtomicU8);

impl Default for SessionSettings {
    fn default() -> Self {
        Self(AtomicU8::new((1 << SESSION_SETTINGS.len()) - 1))
    }
}

impl SessionSettings {
    /// Those that were not refused yet.
    #[must_use]
    pub fn taken(&self) -> Vec<(&'static str, &'static str)> {
        let bits = self.0.load(Ordering::Relaxed);
        let is_taken = |place: &usize| bits & (1 << place) != 0;
        (0..SESSION_SETTINGS.len()).filter(is_taken).map(|place| SESSION_SETTINGS[place]).collect()
    }

    /// One of them was refused: connections begin without it from now on.
    pub fn refused(&self, name: &str) {
        if let Some(place) = SESSION_SETTINGS.iter().position(|(known, _)| *known == name) {
            self.0.fetch_and(!(1 << place), Ordering::Relaxed);
        }
    }
}

/// Opens and closes the connections of a driver, for [`connect_lane`].
pub trait Connecting: Sync {
    /// A connection.
    type Connection: Send;

    /// Opens one that begins with these settings, within the time for it.
    fn connect(
        &self,
        settings: &[(&'static str, &'static str)],
    ) -> impl Future<Output = Result<Self::Connection, StoreError>> + Send;

    /// Closes it in good order.
    fn close(&self, connection: Self::Connection) -> impl Future<Output = ()> + Send;
}

/// Opens a connection with the settings of a session, as far as they are taken.
///
/// # Errors
/// Those of connecting.
pub async fn connect_lane<C: Connecting>(driver: &C, known: &SessionSettings) -> Result<C::Connection, StoreError> {
    let settings = known.taken();
    match driver.connect(&settings).await {
        Err(StoreError::Refused { .. }) if !settings.is_empty() => {}
        connected => return connected,
    }
    // PgBouncer refuses settings that it cannot keep apart by client, and a server those that its system does not
    // offer: asking for each alone shows which.
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for setting in settings {
        match driver.connect(&[setting]).await {
            Ok(alone) => {
                driver.close(alone).await;
                taken.push(setting);
            }
            Err(error @ StoreError::Refused { .. }) => refused.push((setting.0, error)),
            Err(other) => return Err(other),
        }
    }
    let connected = driver.connect(&taken).await?;
    // Only now is it known that nothing else was wrong.
    for (name, error) in refused {
        known.refused(name);
        tracing::warn!(setting = name, %error, "the server refuses a setting of a session");
    }
    Ok(connected)
}

/// Whether a session's default comes from its role or database. A server's own default, or one that was set by hand, is a
/// fence around an old primary instead, and is never overruled.
#[must_use]
pub(crate) fn is_by_role(source: &str) -> bool {
    matches!(source, "user" | "database" | "database user")
}

/// The fence: it keeps a handler that has ended its unit from writing on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// The session is read only by a setting of its own, so it is this client's alone.
    Session,
    /// The role or the database is read only by default, as it has to be behind a pooler in transaction mode.
    Role,
    /// Nothing: a handler's writes after its own ROLLBACK are committed statement by statement.
    Missing,
}

/// A value of `synchronous_commit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durability(usize);

/// From the weakest to the strongest.
const DURABILITIES: [&str; 5] = ["off", "local", "remote_write", "on", "remote_apply"];

impl Durability {
    /// Reads the setting. A value that no release of PostgreSQL has yet counts as the weakest, so that nothing is refused.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(DURABILITIES.iter().position(|known| *known == name).unwrap_or_default())
    }

    fn name(self) -> Option<&'static str> {
        DURABILITIES.get(self.0).copied()
    }

    /// The values that are no weaker, which a [seal](crate::PostgresStatements::seal) lets pass.
    #[must_use]
    pub fn no_weaker(self) -> &'static [&'static str] {
        DURABILITIES.get(self.0..).unwrap_or_default()
    }
}

/// The facts of its server that a new session reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    /// The session's own limits, which a claim puts back.
    pub lock_timeout: String,
    /// See `lock_timeout`.
    pub statement_timeout: String,
    /// The server process and when it began, in µs since the Unix epoch.
    pub backend: (i32, i64),
    /// See [`Fence`].
    pub fence: Fence,
    role: String,
    synchronous_commit: Durability,
    synchronous_commit_default: Durability,
}

impl SessionFacts {
    /// Reads them from the texts of [`server_facts`](crate::PostgresStatements::server_facts), by their columns.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] on a standby, and where an answer cannot be read.
    pub fn read(text: impl Fn(&str) -> Result<String, StoreError>) -> Result<Self, StoreError> {
        if text("in_recovery")? == "t" {
            return Err(read_only("opening a session"));
        }
        let number = |column: &str| text(column)?.parse::<i64>().map_err(unreadable);
        let fence = match (text(FENCE)?.as_str(), is_by_role(&text("read_only_source")?)) {
            ("on", true) => Fence::Role,
            ("on", false) => Fence::Session,
            _ => Fence::Missing,
        };
        Ok(Self {
            lock_timeout: text("lock_timeout")?,
            statement_timeout: text("statement_timeout")?,
            backend: (i32::try_from(number("backend_pid")?).map_err(unreadable)?, number("backend_start")?),
            fence,
            role: text("role")?,
            synchronous_commit: Durability::of(&text("synchronous_commit")?),
            synchronous_commit_default: Durability::of(&text("synchronous_commit_default")?),
        })
    }

    /// The server process, where it serves this session alone.
    #[must_use]
    pub fn own_backend(&self) -> Option<(i32, i64)> {
        (self.fence == Fence::Session).then_some(self.backend)
    }

    /// The durability that a commit of this session waits for, unless a handler sets another. Behind a pooler that is the
    /// value after a RESET: another client may have set one for all clients of this server process.
    #[must_use]
    pub fn durability(&self) -> Durability {
        if self.own_backend().is_some() { self.synchronous_commit } else { self.synchronous_commit_default }
    }

    /// The value to which each BEGIN has to set `synchronous_commit`, where the session is not this client's alone.
    #[must_use]
    pub fn shared_durability(&self) -> Option<&'static str> {
        if self.own_backend().is_some() { None } else { self.durability().name() }
    }

    /// Refuses a session without a fence.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the statement to run.
    pub fn refuse_unfenced(&self) -> Result<(), StoreError> {
        if self.fence != Fence::Missing {
            return Ok(());
        }
        let role = self.role.replace('"', "\"\"");
        Err(StoreError::refused(
            format!(
                "{FENCE} is off and cannot be set for the session alone, because a pooler hands it to others: \
                 writes of a handler after a ROLLBACK, its own or its driver's, would be committed without its record"
            ),
            format!(
                "Run ALTER ROLE \"{role}\" SET {FENCE} = on, and have the pooler connect anew (RECONNECT in PgBouncer's \
                 console): idem's own transactions say READ WRITE. Or connect past the pooler"
            ),
        ))
    }
}

/// Refuses a claim that another server process has answered than the one that serves its session alone: a pooler in transaction mode passes
/// the session's settings on, so that it looks like one of its own (A57).
///
/// # Errors
/// [`StoreError::Refused`] with the pooler's setting.
pub fn refuse_other_backend(own: Option<i32>, answered: i32) -> Result<(), StoreError> {
    match own {
        Some(pid) if pid != answered => Err(StoreError::refused(
            format!(
                "a session that set {FENCE} for itself began on server process {pid}, and process {answered} has answered its claim: a \
                 pooler in transaction mode gives it to others, and limits that idem sets would be theirs"
            ),
            format!(
                "Take {FENCE} out of PgBouncer's track_extra_parameters, or pool by session, or connect past the pooler"
            ),
        )),
        _ => Ok(()),
    }
}

/// The facts of the server that start-up reads, by [`server_facts`](crate::PostgresStatements::server_facts).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version_num`.
    pub version: i32,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// Whether transactions are read only unless they say otherwise.
    pub read_only: bool,
    /// The source of that setting, as `pg_settings` has it.
    pub read_only_source: String,
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
    /// The schema of tables that are made without a schema's name; empty where they cannot be made.
    pub current_schema: String,
}

impl ServerFacts {
    /// Decides whether a worker may start on this server.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the cure.
    pub fn verify(&self) -> Result<(), StoreError> {
        if self.version < VERSION_MIN {
            let found = format!("{}.{}", self.version / 10_000, self.version % 10_000);
            return Err(StoreError::refused(format!("the server is PostgreSQL {found}"), "Use PostgreSQL 14 or later"));
        }
        if self.in_recovery {
            return Err(StoreError::refused(
                "the server is a standby (in recovery)".to_owned(),
                "Connect to the primary",
            ));
        }
        if self.read_only && !is_by_role(&self.read_only_source) {
            return Err(StoreError::refused(
                format!("default_transaction_read_only is on (by {})", self.read_only_source),
                "Connect to the primary; if this is it, turn the setting off for the server. For the role or the database \
                 alone it may be on",
            ));
        }
        if self.encoding != "UTF8" {
            return Err(StoreError::refused(
                format!("server_encoding is {}", self.encoding),
                "Keep idem's schema in a database with the encoding UTF8, because keys are compared as bytes of UTF-8",
            ));
        }
        Ok(())
    }

    /// Warnings for a person, each with its cure.
    #[must_use]
    pub fn warnings(&self, schema: &SchemaName) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.current_schema == schema.as_str() {
            warnings.push(format!(
                "tables that a handler or --create-tables makes and names without a schema come into idem's own schema \
                 {schema}, where a worker with another login does not find them: name the schema in your statements, or run \
                 ALTER ROLE {} SET search_path = public",
                self.role
            ));
        }
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn facts(read_only: &str, source: &str) -> Result<SessionFacts, StoreError> {
        let texts: HashMap<&str, &str> = [
            ("in_recovery", "f"),
            ("default_transaction_read_only", read_only),
            ("read_only_source", source),
            ("lock_timeout", "0"),
            ("statement_timeout", "0"),
            ("synchronous_commit", "local"),
            ("synchronous_commit_default", "on"),
            ("backend_pid", "7"),
            ("backend_start", "1"),
            ("role", "o\"brien"),
        ]
        .into();
        SessionFacts::read(|column| Ok(texts[column].to_owned()))
    }

    /// A44: a server that refuses one setting keeps the others, above all the fence.
    #[test]
    fn a44_a_setting_that_is_refused_leaves_the_others() {
        let settings = SessionSettings::default();
        settings.refused("client_connection_check_interval");
        let names: Vec<&str> = settings.taken().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["default_transaction_read_only", "tcp_user_timeout"]);
        settings.refused("no such setting");
        assert_eq!(settings.taken().len(), 2);
    }

    #[test]
    fn a40_only_a_session_or_its_role_fences_a_lane() {
        for (read_only, source, fence, own) in [
            ("on", "client", Fence::Session, Some((7, 1))),
            ("on", "session", Fence::Session, Some((7, 1))),
            ("on", "user", Fence::Role, None),
            ("on", "database", Fence::Role, None),
            ("on", "database user", Fence::Role, None),
            ("off", "default", Fence::Missing, None),
            ("off", "user", Fence::Missing, None),
        ] {
            let facts = facts(read_only, source).expect("it can be read");
            assert_eq!((facts.fence, facts.own_backend()), (fence, own), "{read_only} {source}");
            // A value that another client of a pooler has set is not the session's.
            let (durability, shared) = if own.is_some() { ("local", None) } else { ("on", Some("on")) };
            assert_eq!((facts.durability(), facts.shared_durability()), (Durability::of(durability), shared));
            assert_eq!(facts.refuse_unfenced().is_err(), fence == Fence::Missing, "{read_only} {source}");
        }
        let refused = facts("off", "default").and_then(|facts| facts.refuse_unfenced()).expect_err("it has no fence");
        assert!(
            refused.to_string().contains("ALTER ROLE \"o\"\"brien\" SET default_transaction_read_only = on"),
            "{refused}"
        );
    }
}
