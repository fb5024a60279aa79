//! The fixture that the suite needs of a store on PostgreSQL, beyond idem's own traits.

use std::{error::Error, future::Future, time::Duration};

use idem_core::{Concurrency, Store, Tx, store::ScopeId};

use super::super::store::{Arrangement, taken_numbers};

/// How long a case waits for anything before it is red.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The tables that the cases write to, for the subject's schema.
pub const EFFECTS: &str = "
    CREATE TABLE effects (key text NOT NULL, payload bytea NOT NULL, note text NOT NULL);
    CREATE TABLE taken (name text PRIMARY KEY);
    INSERT INTO taken VALUES ('taken');
    CREATE TABLE deferred (name text UNIQUE DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO deferred VALUES ('taken');";

/// A store with a migrated schema of its own, in which are the tables [`EFFECTS`], and the means by which the suite looks into
/// it.
///
/// All sessions find the schema by their `search_path`.
pub trait PostgresUnderTest: Sized + Send + Sync + 'static {
    /// The store.
    type Store: Store + Clone;

    /// The error of its driver in a handler.
    type Error: Error + Send + Sync + 'static;

    /// The store on this schema.
    fn store(&self) -> &Self::Store;

    /// Another store on this schema, whose sessions begin with these settings; on this port of `127.0.0.1` in place of the server's
    /// own, if one is given. On that port a proxy reads the traffic, so the connection is made without TLS.
    fn another(&self, port: Option<u16>, settings: &[(&str, &str)]) -> Self::Store;

    /// `host:port` of the server.
    fn server(&self) -> String;

    /// Inserts a row of this key into `effects`, with a value for each column that is bound to the statement.
    fn write(tx: &mut Tx<'_, Self::Store>, key: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Runs one statement in a handler as the driver runs prepared ones.
    fn execute(tx: &mut Tx<'_, Self::Store>, text: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Sends a text in a handler as it is, which may be several statements. Called where handlers run in order alone.
    fn send(tx: &mut Tx<'_, Self::Store>, text: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Runs statements as an administrator, over a connection of its own.
    fn run(&self, statements: &str) -> impl Future<Output = ()> + Send;

    /// The first column of what a query answers, as texts, over a connection of its own. PostgreSQL's own form
    /// of a truth is `t` or `f`.
    fn texts(&self, query: &str) -> impl Future<Output = Vec<String>> + Send;

    /// How handlers run, so that a store that shares its transaction goes through every case either way.
    fn concurrency(&self) -> Concurrency {
        Concurrency::InOrder
    }

    /// The round trips to the server that the store's documentation promises. Only the cases on a server of their own ask for
    /// them.
    fn round_trips(&self) -> RoundTrips {
        panic!("this store says nothing of its round trips")
    }

    /// Removes the schema. Called after a case that went well; the schema of a red case is kept for a look at it.
    fn discard(self) -> impl Future<Output = ()> + Send;
}

/// How often a store goes to the server and back, once its statements are prepared.
#[derive(Debug, Clone, Copy)]
pub struct RoundTrips {
    /// In a unit of so many new messages, whose handlers write one effect each.
    pub unit: fn(usize) -> usize,
    /// Added where so many handlers of a unit publish an event each.
    pub events: fn(usize) -> usize,
    /// In a unit of duplicates.
    pub duplicates: usize,
    /// In a call of `run_once` that writes one effect.
    pub first_run: usize,
    /// In its repeat, where none is expected.
    pub unexpected_repeat: usize,
}

/// Whether the store has an outbox and keeps results; the suite's cases ask for both at once.
pub(super) fn offers(subject: &impl PostgresUnderTest) -> bool {
    let capabilities = subject.store().capabilities();
    capabilities.outbox && capabilities.results
}

/// The keys of the effects that are committed, sorted.
pub(super) async fn effects(subject: &impl PostgresUnderTest) -> Vec<String> {
    subject.texts("SELECT key FROM effects ORDER BY key").await
}

/// The keys that have a record, sorted.
pub(super) async fn recorded(subject: &impl PostgresUnderTest) -> Vec<String> {
    subject.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await
}

/// Takes back what a case has written so far, so that it can begin again.
pub(super) async fn forget(subject: &impl PostgresUnderTest) {
    subject.run("DELETE FROM effects; DELETE FROM processed_messages; DELETE FROM message_attempts").await;
}

/// Asks until the server answers with true. It reports no changes of its sessions by itself, so there is no event to wait for.
pub(super) async fn until(subject: &impl PostgresUnderTest, query: &str) {
    let asking = async {
        while subject.texts(query).await != ["t"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never true: {query}"));
}

/// A text that no other test and no other run has.
pub(super) fn unique(name: &str) -> String {
    format!("{name}-{:016x}", fastrand::u64(..))
}

/// The statements that make an [`Arrangement`] of the suite of every store on PostgreSQL, for `StoreUnderTest::arrange`.
#[must_use]
pub fn arrangement_sql(arrangement: Arrangement) -> String {
    match arrangement {
        Arrangement::Age(by) => age(by),
        Arrangement::SwallowRecords => "
            CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
            CREATE TRIGGER swallow BEFORE INSERT ON processed_messages FOR EACH ROW EXECUTE FUNCTION swallow();"
            .to_owned(),
        Arrangement::HideRecords => "ALTER TABLE processed_messages RENAME TO hidden_messages".to_owned(),
        Arrangement::Restore => "
            ALTER TABLE IF EXISTS hidden_messages RENAME TO processed_messages;
            DROP FUNCTION IF EXISTS swallow() CASCADE;"
            .to_owned(),
        Arrangement::EraseKeys => "UPDATE processed_messages SET idempotency_key = ''".to_owned(),
        Arrangement::DropUniqueKey => {
            "ALTER TABLE processed_messages DROP CONSTRAINT processed_messages_pkey".to_owned()
        }
        Arrangement::DropSeal => "DROP TRIGGER refuse_unsealed_commit ON units".to_owned(),
        Arrangement::Rename => {
            "UPDATE consumers SET name = 'purchases', derives_as = coalesce(derives_as, name) WHERE name = 'orders'"
                .to_owned()
        }
        Arrangement::TakeNumbers => {
            let row = |number: &ScopeId| format!("({0}, '{0}', 'others', '', '', '', '', NULL)", number.0);
            let rows = taken_numbers().iter().map(row).collect::<Vec<_>>().join(", ");
            format!(
                "INSERT INTO consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention) \
                 OVERRIDING SYSTEM VALUE VALUES {rows}"
            )
        }
    }
}

/// Puts every instant that idem has stored this far into the past.
fn age(by: Duration) -> String {
    let columns: [(&str, &[&str]); 8] = [
        ("processed_messages", &["processed_at", "expires_at"]),
        ("units", &["at"]),
        ("message_attempts", &["first_at", "last_at"]),
        ("dead_letters", &["first_at", "last_at", "published_at", "due_at", "taken_at", "replayed_at"]),
        ("audit", &["at"]),
        ("outbox", &["created_at", "not_before", "first_sent_at"]),
        ("outbox_destinations", &["relayed_until", "relay_lost_at"]),
        ("processed_results", &["stored_at", "answer_until"]),
    ];
    let update = |(table, columns): (&str, &[&str])| {
        let change = |column: &&str| format!("{column} = {column} - {} * interval '1 microsecond'", by.as_micros());
        format!("UPDATE {table} SET {};", columns.iter().map(change).collect::<Vec<_>>().join(", "))
    };
    columns.map(update).concat()
}
