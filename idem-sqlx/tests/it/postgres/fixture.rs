//! A schema of its own for each test, dropped when the test is green.

#[path = "../../../../idem-sql/tests/shared/reused.rs"]
mod reused;

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_conformance::postgres::EFFECTS;
use idem_sql::SchemaName;
use idem_sqlx::{PostgresOptions, PostgresStore};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, PgConnection, PgPool, Row as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::scratch::Scratch;

/// The server that the tests share.
pub(super) fn url() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

/// A schema with idem's tables and a table of effects, and a way to look into it.
pub(super) struct Fixture {
    pub(super) store: PostgresStore,
    pub(super) schema: SchemaName,
    /// For looking and arranging, as an administrator does.
    pub(super) admin: PgPool,
    pub(super) connection: PgConnectOptions,
    /// Whether another case has it after this one.
    pub(super) is_reused: bool,
    /// Its server, where it has one of its own.
    pub(super) own_server: Option<Scratch>,
}

/// A name that no other test and no other run has.
fn fresh_name() -> SchemaName {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Seeded at random for each process: the leftovers of a red test must not meet this one.
    static RUN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    SchemaName::new(format!("t_{:016x}_{next}", *RUN)).unwrap()
}

/// How long anything may take that a test waits for. It only ends a test that hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until the server answers with `true`. It reports no changes of its sessions by itself, so there is no event to wait
/// for. While it restarts, its answers are errors.
pub(super) async fn until(pool: &PgPool, query: &str) {
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    let mut answer = Ok(false);
    let asking = async {
        while !matches!(answer, Ok(true)) {
            pace.tick().await;
            answer = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(pool).await;
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asking).await;
    asked.unwrap_or_else(|_| panic!("never true: {query}: {answer:?}"));
}

impl Fixture {
    /// A migrated schema on the shared server.
    pub(super) async fn new() -> Self {
        Self::on(&url()).await
    }

    /// A migrated schema on the shared server that is emptied for the next case, where this one does not change what is defined in it.
    pub(super) async fn reused() -> Self {
        let server: PgConnectOptions = url().parse().unwrap();
        let server = server.disable_statement_logging();
        let path = Arc::new(OnceLock::<SchemaName>::new());
        let found = Arc::clone(&path);
        let pool = PgPoolOptions::new().max_connections(4).after_connect(move |connection, _| {
            let path = found.get().map(|schema| AssertSqlSafe(format!("SET search_path = {}", schema.quoted())));
            Box::pin(async move {
                if let Some(path) = path {
                    sqlx::raw_sql(path).execute(connection).await?;
                }
                Ok(())
            })
        });
        let admin = pool.connect_with(server.clone()).await.unwrap();
        let mut first = admin.acquire().await.unwrap();
        sqlx::raw_sql(reused::LIST).execute(&mut *first).await.unwrap();
        let taken: Option<String> =
            sqlx::query_scalar(AssertSqlSafe(reused::take())).fetch_optional(&mut *first).await.unwrap();
        let is_made = taken.is_some();
        let schema = taken.map_or_else(fresh_name, |name| SchemaName::new(name).unwrap());
        path.set(schema.clone()).unwrap();
        let own = format!("CREATE SCHEMA IF NOT EXISTS {0}; SET search_path = {0}", schema.quoted());
        sqlx::raw_sql(AssertSqlSafe(own)).execute(&mut *first).await.unwrap();
        drop(first);
        let connection = server.options([("search_path", schema.as_str())]);
        let store = PostgresStore::with_options(connection.clone()).schema(schema.clone()).build().unwrap();
        let fixture = Self { store, schema, admin, connection, is_reused: true, own_server: None };
        if !is_made {
            fixture.store.migrate().await.unwrap();
            fixture.run(EFFECTS).await;
            fixture.run(reused::enter(&fixture.schema)).await;
        }
        fixture
    }

    /// A migrated schema on this server.
    pub(super) async fn on(url: &str) -> Self {
        let fixture = Self::empty_on(url).await;
        fixture.store.migrate().await.unwrap();
        fixture.run(EFFECTS).await;
        fixture
    }

    /// A migrated schema on an empty server of its own, which goes with it.
    pub(super) async fn on_own_server() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let server = Scratch::new(&format!("own{}", NEXT.fetch_add(1, Ordering::Relaxed))).await;
        let mut fixture = Self::on(&server.url).await;
        fixture.own_server = Some(server);
        fixture
    }

    /// A schema without idem's tables.
    pub(super) async fn empty_on(url: &str) -> Self {
        let schema = fresh_name();
        // So that handlers name their tables without a schema, as usual.
        let connection: PgConnectOptions = url.parse().unwrap();
        let connection = connection.disable_statement_logging().options([("search_path", schema.as_str())]);
        let admin = PgPoolOptions::new().max_connections(4).connect_with(connection.clone()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {}", schema.quoted()))).execute(&admin).await.unwrap();
        let store = PostgresStore::with_options(connection.clone()).schema(schema.clone()).build().unwrap();
        Self { store, schema, admin, connection, is_reused: false, own_server: None }
    }

    /// Settings of another store on the same schema.
    pub(super) fn options(&self) -> PostgresOptions {
        PostgresStore::with_options(self.connection.clone()).schema(self.schema.clone())
    }

    /// Settings of a store on the same schema with another login.
    pub(super) fn options_of(&self, connection: PgConnectOptions) -> PostgresOptions {
        PostgresStore::with_options(connection.disable_statement_logging()).schema(self.schema.clone())
    }

    /// Another store on the same schema, as another process has it.
    pub(super) fn another(&self) -> PostgresStore {
        self.options().build().unwrap()
    }

    /// A connection of its own.
    pub(super) async fn connect(&self) -> PgConnection {
        self.connection.connect().await.unwrap()
    }

    /// Runs statements as an administrator.
    pub(super) async fn run(&self, statements: impl Into<String>) {
        sqlx::raw_sql(AssertSqlSafe(statements.into())).execute(&self.admin).await.unwrap();
    }

    /// The first column of what a query answers, as texts.
    pub(super) async fn texts(&self, query: impl Into<String>) -> Vec<String> {
        let rows = sqlx::raw_sql(AssertSqlSafe(query.into())).fetch_all(&self.admin).await.unwrap();
        rows.iter().map(|row| row.try_get_unchecked::<Option<String>, _>(0).unwrap().unwrap_or_default()).collect()
    }

    /// The only value of a query.
    pub(super) async fn text(&self, query: impl Into<String>) -> String {
        self.texts(query).await.into_iter().next().unwrap_or_default()
    }

    /// The keys of the effects that are committed, sorted.
    pub(super) async fn effects(&self) -> Vec<String> {
        self.texts("SELECT key FROM effects ORDER BY key").await
    }

    /// The keys that have a record, sorted.
    pub(super) async fn recorded(&self) -> Vec<String> {
        self.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await
    }

    /// Waits until the server answers again after a restart, with new connections.
    pub(super) async fn forget_connections(&self) {
        self.until("SELECT true").await;
    }

    /// Waits until the server answers a query with `true`.
    pub(super) async fn until(&self, query: &str) {
        until(&self.admin, query).await;
    }

    /// A login that is read only by default, as a pooler in transaction mode needs it. It goes with [`Self::drop_pooled`].
    pub(super) async fn pooled(&self) -> String {
        let name = format!("{}_pooled", self.schema);
        let role =
            format!("CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET default_transaction_read_only = on");
        self.run(role).await;
        name
    }

    /// Drops the schema and the login behind the pooler, which keeps its connections.
    pub(super) async fn drop_pooled(self) {
        let name = format!("{}_pooled", self.schema);
        self.run(format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'")).await;
        self.run(format!("DROP ROLE {name}")).await;
        self.drop().await;
    }

    /// Drops the schema. A red test does not come here, and its schema stays for a look.
    pub(super) async fn drop(self) {
        self.store.disconnect().await;
        let end = match self.is_reused {
            true => reused::give_back(&self.schema),
            false => format!("DROP SCHEMA {} CASCADE", self.schema.quoted()),
        };
        self.run(end).await;
        self.admin.close().await;
        if let Some(server) = self.own_server {
            server.down().await;
        }
    }
}
