//! Files, for tests that spoil them.

use std::{
    collections::hash_map::RandomState,
    fmt, fs,
    future::Future,
    hash::BuildHasher as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use futures_util::future::BoxFuture;
use idem_core::{
    BoxError, Tx,
    scratch::{Row, Scratch, Tables},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqliteConnection, sqlite::SqliteConnectOptions,
};
use tokio::sync::OnceCell;

use super::{SqliteOptions, SqliteStore};

type Prepare = dyn Fn(PathBuf) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync;

/// Makes SQLite files for `idem_testkit::prove`, in a directory of its own under the system's temporary one, and removes them.
/// With the feature `failpoints`.
///
/// The first one is migrated and prepared, and each further one is a copy of it.
///
/// ```no_run
/// let databases = idem_sqlx::SqliteScratch::new(async |file| {
///     use sqlx::{Connection as _, Executor as _};
///     let mut connection = sqlx::SqliteConnection::connect(&format!("sqlite://{}", file.display())).await?;
///     connection.execute("CREATE TABLE purchases (customer TEXT, cents INTEGER)").await?;
///     Ok(connection.close().await?)
/// });
/// ```
pub struct SqliteScratch {
    directory: PathBuf,
    prepare: Box<Prepare>,
    template: OnceCell<PathBuf>,
    made: AtomicU32,
}

impl fmt::Debug for SqliteScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteScratch").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl SqliteScratch {
    /// `prepare` makes the application's tables, and whatever else must be there before the first message, in the file whose
    /// path it is given; it closes its connections.
    pub fn new<F>(prepare: impl Fn(PathBuf) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let name = format!("idem-prove-{:016x}", RandomState::new().hash_one(std::process::id()));
        Self {
            directory: std::env::temp_dir().join(name),
            prepare: Box::new(move |file| Box::pin(prepare(file))),
            template: OnceCell::new(),
            made: AtomicU32::new(0),
        }
    }

    async fn make_template(&self) -> Result<PathBuf, BoxError> {
        fs::create_dir_all(&self.directory)?;
        let file = self.directory.join("template.db");
        let store = SqliteStore::open(&file).await?;
        store.migrate().await?;
        drop(store);
        (self.prepare)(file.clone()).await?;
        // The write-ahead log goes into the file, so that the file alone is complete.
        let mut connection = connect(&file).await?;
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await?;
        connection.close().await?;
        Ok(file)
    }
}

async fn connect(file: &Path) -> Result<SqliteConnection, sqlx::Error> {
    SqliteConnectOptions::new().filename(file).disable_statement_logging().connect().await
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

const TABLES: &str = "
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
    AND substr(name, 1, length(?1)) <> ?1 ORDER BY name";

async fn read(connection: &mut SqliteConnection, prefix: &str) -> Result<Tables, BoxError> {
    let names: Vec<String> = sqlx::query_scalar(TABLES).bind(prefix).fetch_all(&mut *connection).await?;
    let mut tables = Tables::new();
    for name in names {
        let select = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden <> 1";
        let columns: Vec<String> = sqlx::query_scalar(select).bind(&name).fetch_all(&mut *connection).await?;
        let value = |column: &String| {
            let column = quoted(column);
            format!("CASE typeof({column}) WHEN 'blob' THEN quote({column}) ELSE CAST({column} AS TEXT) END")
        };
        let values: Vec<_> = columns.iter().map(value).collect();
        let query = format!("SELECT {} FROM {}", values.join(", "), quoted(&name));
        let rows = sqlx::query(AssertSqlSafe(query)).fetch_all(&mut *connection).await?;
        let mut of_table = Vec::with_capacity(rows.len());
        for row in rows {
            let mut told = Row::new();
            for (place, column) in columns.iter().enumerate() {
                told.insert(column.clone(), row.try_get(place)?);
            }
            of_table.push(told);
        }
        tables.insert(name, of_table);
    }
    Ok(tables)
}

impl Scratch for SqliteScratch {
    type Store = SqliteStore;
    type Address = PathBuf;

    async fn create(&self) -> Result<PathBuf, BoxError> {
        let template = self.template.get_or_try_init(|| self.make_template()).await?;
        let file = self.directory.join(format!("{}.db", self.made.fetch_add(1, Ordering::Relaxed)));
        fs::copy(template, &file)?;
        Ok(file)
    }

    fn describe(&self, address: &PathBuf) -> Option<String> {
        Some(format!("file {}", address.display()))
    }

    async fn connect(&self, address: &PathBuf) -> Result<Arc<SqliteStore>, BoxError> {
        Ok(Arc::new(SqliteStore::open(address).await?))
    }

    async fn tables(&self, address: &PathBuf) -> Result<Tables, BoxError> {
        let mut connection = connect(address).await?;
        let prefix = format!("{}_", SqliteOptions::new(address).schema);
        let tables = read(&mut connection, &prefix).await;
        connection.close().await?;
        tables
    }

    async fn disturb(&self, address: &PathBuf) -> Result<(), BoxError> {
        let mut connection = connect(address).await?;
        let counts = "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_sequence'";
        let has_sequences: i64 = sqlx::query_scalar(counts).fetch_one(&mut connection).await?;
        if has_sequences > 0 {
            sqlx::raw_sql("UPDATE sqlite_sequence SET seq = seq + 1000").execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    async fn spoil(&self, tx: &mut Tx<'_, SqliteStore>) {
        let _ = sqlx::raw_sql("PRAGMA query_only = ON").execute(tx.connection()).await;
    }

    async fn mend(&self, tx: &mut Tx<'_, SqliteStore>) {
        let _ = sqlx::raw_sql("PRAGMA query_only = OFF").execute(tx.connection()).await;
    }

    async fn remove(&self, address: PathBuf) {
        // A file that stays behind does no harm, and the directory's name says what it is.
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", address.display()));
        }
    }

    async fn finish(&self) {
        self.remove(self.directory.join("template.db")).await;
        // It stays while a database is left for a look.
        let _ = fs::remove_dir(&self.directory);
    }
}
