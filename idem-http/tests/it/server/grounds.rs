//! The stores on which the same statements are tested: an effect is a row of the table `paid`, which no constraint keeps from
//! standing there twice.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use idem_core::{BoxError, Store, Tx};
use idem_sql::SchemaName;
use idem_testkit::MemoryStore;
use sqlx::Connection as _;

/// The future of an effect.
pub(crate) type Paying<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;

/// A store, and how to have and to read effects in it.
pub(crate) trait Ground: Sized + 'static {
    type Store: Store;
    /// A fresh database.
    async fn new() -> Self;
    fn store(&self) -> Arc<Self::Store>;
    /// Writes one effect.
    fn pay<'a>(tx: &'a mut Tx<'_, Self::Store>, text: String) -> Paying<'a>;
    /// The committed effects, sorted.
    async fn paid(&self) -> Vec<String>;
}

/// A ground with foreign keys: `child` refers to `parent` at once, `late_child` at the commit.
pub(crate) trait Sql: Ground {
    fn execute<'a>(tx: &'a mut Tx<'_, Self::Store>, statement: &'static str) -> Paying<'a>;
}

/// A ground on PostgreSQL.
pub(crate) trait Server: Ground {
    fn schema(&self) -> &SchemaName;
}

const TABLES: &str = "CREATE TABLE paid (text text);
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE TABLE child (parent int REFERENCES parent);
    CREATE TABLE late_child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);";

fn fresh_name(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Seeded at random for each process: the rest of a red test must not meet this one.
    static RUN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    format!("{prefix}_{:016x}_{}", *RUN, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The server that the tests share.
pub(crate) fn url() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

pub(crate) struct Memory(Arc<MemoryStore>);

impl Ground for Memory {
    type Store = MemoryStore;

    async fn new() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }

    fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.0)
    }

    fn pay<'a>(tx: &'a mut Tx<'_, MemoryStore>, text: String) -> Paying<'a> {
        Box::pin(async move { Ok(tx.connection().append("paid", &fastrand::u64(..).to_string(), text).await?) })
    }

    async fn paid(&self) -> Vec<String> {
        let rows = self.0.rows("paid");
        let mut all: Vec<_> = rows.into_iter().map(|(_, text)| String::from_utf8(text.to_vec()).unwrap()).collect();
        all.sort();
        all
    }
}

pub(crate) struct Sqlite {
    store: Arc<idem_sqlx::SqliteStore>,
    path: PathBuf,
}

impl Ground for Sqlite {
    type Store = idem_sqlx::SqliteStore;

    async fn new() -> Self {
        let path = std::env::temp_dir().join(format!("{}.db", fresh_name("idem_http")));
        let store = idem_sqlx::SqliteStore::open(&path).await.unwrap();
        store.migrate().await.unwrap();
        let new = Self { store: Arc::new(store), path };
        sqlx::raw_sql(TABLES).execute(&mut new.connect().await).await.unwrap();
        new
    }

    fn store(&self) -> Arc<Self::Store> {
        Arc::clone(&self.store)
    }

    fn pay<'a>(tx: &'a mut Tx<'_, Self::Store>, text: String) -> Paying<'a> {
        Box::pin(async move {
            sqlx::query("INSERT INTO paid VALUES ($1)").bind(text).execute(tx.connection()).await?;
            Ok(())
        })
    }

    async fn paid(&self) -> Vec<String> {
        let rows = sqlx::query_scalar("SELECT text FROM paid ORDER BY text");
        rows.fetch_all(&mut self.connect().await).await.unwrap()
    }
}

impl Sql for Sqlite {
    fn execute<'a>(tx: &'a mut Tx<'_, Self::Store>, statement: &'static str) -> Paying<'a> {
        Box::pin(async move { Ok(sqlx::query(statement).execute(tx.connection()).await.map(drop)?) })
    }
}

impl Sqlite {
    pub(crate) async fn connect(&self) -> sqlx::SqliteConnection {
        sqlx::SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", self.path.display())).await.unwrap()
    }

    /// The bytes of the database and of its write-ahead log.
    pub(crate) fn files(&self) -> Vec<u8> {
        let read = |suffix| std::fs::read(format!("{}{suffix}", self.path.display())).unwrap();
        [read(""), read("-wal")].concat()
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", self.path.display()));
        }
    }
}

/// A schema with the table of effects on the shared server.
async fn schema() -> (SchemaName, sqlx::PgConnection) {
    let schema = SchemaName::new(fresh_name("h")).unwrap();
    let mut connection = sqlx::PgConnection::connect(&url()).await.unwrap();
    let create = format!("CREATE SCHEMA {0}; SET search_path = {0}; {TABLES}", schema.quoted());
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
    (schema, connection)
}

async fn paid_in(schema: &SchemaName) -> Vec<String> {
    let mut connection = sqlx::PgConnection::connect(&url()).await.unwrap();
    let rows = format!("SELECT text FROM {}.paid ORDER BY text", schema.quoted());
    sqlx::query_scalar(sqlx::AssertSqlSafe(rows)).fetch_all(&mut connection).await.unwrap()
}

/// Drops the schema in a thread of its own, as a test's runtime may be the current one's.
fn drop_schema(schema: &SchemaName) {
    if std::thread::panicking() {
        return;
    }
    let drop = format!("DROP SCHEMA {} CASCADE", schema.quoted());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = sqlx::PgConnection::connect(&url()).await.unwrap();
            let _ = sqlx::raw_sql("SET lock_timeout = '2s'").execute(&mut connection).await;
            let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut connection).await;
        });
    });
    let _ = thread.join();
}

pub(crate) struct Postgres {
    store: Arc<idem_sqlx::PostgresStore>,
    pub(crate) schema: SchemaName,
}

impl Ground for Postgres {
    type Store = idem_sqlx::PostgresStore;

    async fn new() -> Self {
        let (schema, _) = schema().await;
        let options: sqlx::postgres::PgConnectOptions = url().parse().unwrap();
        // So that handlers name their tables as people do, and connections can be counted.
        let options = options.options([("search_path", schema.to_string())]).application_name(&schema.to_string());
        let store = idem_sqlx::PostgresStore::with_options(options).schema(schema.clone());
        let store = store.application_name(&schema.to_string()).build().unwrap();
        store.migrate().await.unwrap();
        Self { store: Arc::new(store), schema }
    }

    fn store(&self) -> Arc<Self::Store> {
        Arc::clone(&self.store)
    }

    fn pay<'a>(tx: &'a mut Tx<'_, Self::Store>, text: String) -> Paying<'a> {
        Box::pin(async move {
            sqlx::query("INSERT INTO paid VALUES ($1)").bind(text).execute(tx.connection()).await?;
            Ok(())
        })
    }

    async fn paid(&self) -> Vec<String> {
        paid_in(&self.schema).await
    }
}

impl Sql for Postgres {
    fn execute<'a>(tx: &'a mut Tx<'_, Self::Store>, statement: &'static str) -> Paying<'a> {
        Box::pin(async move { Ok(sqlx::query(statement).execute(tx.connection()).await.map(drop)?) })
    }
}

impl Server for Postgres {
    fn schema(&self) -> &SchemaName {
        &self.schema
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop_schema(&self.schema);
    }
}

pub(crate) struct TokioPostgres {
    store: Arc<idem_tokio_postgres::PostgresStore>,
    pub(crate) schema: SchemaName,
}

impl Ground for TokioPostgres {
    type Store = idem_tokio_postgres::PostgresStore;

    async fn new() -> Self {
        let (schema, _) = schema().await;
        let mut config: tokio_postgres::Config = url().parse().unwrap();
        config.options(format!("-c search_path={schema}"));
        let store = idem_tokio_postgres::PostgresStore::with_options(config).schema(schema.clone()).build().unwrap();
        store.migrate().await.unwrap();
        Self { store: Arc::new(store), schema }
    }

    fn store(&self) -> Arc<Self::Store> {
        Arc::clone(&self.store)
    }

    fn pay<'a>(tx: &'a mut Tx<'_, Self::Store>, text: String) -> Paying<'a> {
        Box::pin(async move {
            tx.connection().execute("INSERT INTO paid VALUES ($1)", &[&text]).await?;
            Ok(())
        })
    }

    async fn paid(&self) -> Vec<String> {
        paid_in(&self.schema).await
    }
}

impl Sql for TokioPostgres {
    fn execute<'a>(tx: &'a mut Tx<'_, Self::Store>, statement: &'static str) -> Paying<'a> {
        Box::pin(async move { Ok(tx.connection().execute(statement, &[]).await.map(drop)?) })
    }
}

impl Server for TokioPostgres {
    fn schema(&self) -> &SchemaName {
        &self.schema
    }
}

impl Drop for TokioPostgres {
    fn drop(&mut self) {
        drop_schema(&self.schema);
    }
}
