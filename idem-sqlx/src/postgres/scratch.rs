//! Databases on a server, for tests that spoil them.

use std::{
    collections::hash_map::RandomState,
    fmt,
    future::Future,
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_core::{
    BoxError, StoreError, Tx,
    scratch::{Row, Scratch, Tables},
};
use idem_sql::{SchemaName, unreadable_url};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::sync::OnceCell;

use super::PostgresStore;

type Prepare = dyn Fn(PgConnectOptions) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync;

/// How often a copy of the template is tried while a session is still connected to it.
const COPIES_TRIED: u32 = 50;

/// Makes databases on a PostgreSQL server for `idem_testkit::prove`, and drops them. With the feature `failpoints`.
///
/// The first one is migrated and prepared, and each further one is a copy of it, or one that is put back. Their names begin with `idem_prove_`; the
/// database of the URL itself is only connected to, by a login that may create databases (`ALTER ROLE … CREATEDB`).
///
/// ```no_run
/// # use idem_sqlx::PostgresScratch;
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let databases = PostgresScratch::new("postgres://orders@127.0.0.1/orders", async |options| {
///     use sqlx::{ConnectOptions as _, Executor as _};
///     // Or the application's own migrations.
///     options.connect().await?.execute("CREATE TABLE purchases (customer text, cents bigint)").await?;
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresScratch {
    server: PgConnectOptions,
    schema: SchemaName,
    prepare: Box<Prepare>,
    template: OnceCell<Template>,
    made: AtomicU32,
    /// Databases that are done with, and can be put back.
    free: Mutex<Vec<PgConnectOptions>>,
}

/// The template that each database is a copy of.
#[derive(Debug)]
struct Template {
    name: String,
    /// The tables that are idem's. The application's may stand in the same schema, as they do where the role has its name.
    own: Vec<String>,
}

impl fmt::Debug for PostgresScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // PgConnectOptions would print the password.
        f.debug_struct("PostgresScratch").field("template", &self.template).finish_non_exhaustive()
    }
}

impl PostgresScratch {
    /// Databases on the server of this URL. `prepare` makes the application's tables, and whatever else must be there before
    /// the first message, in the database whose URL it is given; it closes its connections.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the URL cannot be read. Its text does not repeat it.
    pub fn new<F>(
        url: &str,
        prepare: impl Fn(PgConnectOptions) -> F + Send + Sync + 'static,
    ) -> Result<Self, StoreError>
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let server: PgConnectOptions = url.parse().map_err(|_: sqlx::Error| unreadable_url())?;
        Ok(Self {
            server: server.disable_statement_logging(),
            schema: SchemaName::default(),
            prepare: Box::new(move |options| Box::pin(prepare(options))),
            template: OnceCell::new(),
            made: AtomicU32::new(0),
            free: Mutex::default(),
        })
    }

    /// The schema for idem's tables. Defaults to `idem`.
    #[must_use]
    pub fn schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    fn store(&self, options: &PgConnectOptions) -> Result<PostgresStore, StoreError> {
        PostgresStore::with_options(options.clone()).schema(self.schema.clone()).build()
    }

    /// Runs a statement beside the databases.
    async fn run(&self, statement: String) -> Result<(), sqlx::Error> {
        let mut connection = self.server.connect().await?;
        let done = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await;
        let _ = connection.close().await;
        done.map(drop)
    }

    async fn make_template(&self) -> Result<Template, BoxError> {
        let name = format!("idem_prove_{:016x}", RandomState::new().hash_one(std::process::id()));
        self.run(format!("CREATE DATABASE {name} TEMPLATE template0")).await.map_err(|error| {
            format!("the login of the URL must be one that may create databases (ALTER ROLE … CREATEDB): {error}")
        })?;
        let options = self.server.clone().database(&name);
        let store = self.store(&options)?;
        let migrated = store.migrate().await;
        store.disconnect().await;
        migrated?;
        let mut connection = options.connect().await?;
        let own = names(&mut connection).await;
        let _ = connection.close().await;
        let own = own?.into_iter().map(|(_, quoted)| quoted).collect();
        (self.prepare)(options.clone()).await?;
        let mut connection = options.connect().await?;
        let saved = sqlx::raw_sql(SAVE).execute(&mut connection).await;
        let _ = connection.close().await;
        saved?;
        Ok(Template { name, own })
    }

    async fn drop_database(&self, address: &PgConnectOptions) {
        if let Some(name) = address.get_database() {
            // A database that stays behind does no harm, and its name says what it is.
            let _ = self.run(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        }
    }

    /// Puts a database back as it was made. It costs the server far less than another one.
    async fn put_back(&self, address: &PgConnectOptions) -> Result<(), sqlx::Error> {
        let mut connection = address.connect().await?;
        let done = sqlx::raw_sql(PUT_BACK).execute(&mut connection).await;
        let _ = connection.close().await;
        done.map(drop)
    }

    fn free(&self) -> MutexGuard<'_, Vec<PgConnectOptions>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the template. The server copies no database that has connections, and ends connections a moment after they
    /// were closed.
    async fn copy(&self, template: &str, name: &str) -> Result<(), BoxError> {
        let mut tried = 0;
        loop {
            match self.run(format!("CREATE DATABASE {name} TEMPLATE {template}")).await {
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55006") => {
                    tried += 1;
                    if tried == COPIES_TRIED {
                        return Err(format!("a connection to {template} was left open by `prepare`: close it").into());
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                done => return Ok(done?),
            }
        }
    }
}

/// The tables' short names, and their names in full. A partition is a part of its table.
const TABLES: &str = "
SELECT c.oid::regclass::text, pg_catalog.format('%I.%I', n.nspname, c.relname)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname <> 'information_schema'
    AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'idem_prove_saved'";

/// Copies every table, idem's too.
const SAVE: &str = "
CREATE SCHEMA idem_prove_saved;
CREATE TABLE idem_prove_saved.tables AS
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, 't' || c.oid AS saved,
    (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(attname), ', ' ORDER BY attnum) FROM pg_catalog.pg_attribute
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS columns
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
    AND n.nspname <> 'idem_prove_saved';
DO $$ DECLARE t record; BEGIN
    FOR t IN SELECT * FROM idem_prove_saved.tables LOOP
        EXECUTE pg_catalog.format('CREATE TABLE idem_prove_saved.%I AS TABLE %s', t.saved, t.name);
    END LOOP;
END $$";

/// Ends what is still connected, empties every table and fills it from its copy, without triggers and in any order, which is why a
/// login needs more than CREATEDB for it.
const PUT_BACK: &str = "
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid();
SET session_replication_role = replica;
DO $$ DECLARE t record; BEGIN
    FOR t IN SELECT * FROM idem_prove_saved.tables LOOP
        EXECUTE pg_catalog.format('DELETE FROM %s', t.name);
        IF t.columns IS NOT NULL THEN
            EXECUTE pg_catalog.format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM idem_prove_saved.%I', t.name, t.columns,
                t.columns, t.saved);
        END IF;
    END LOOP;
END $$";

const DISTURB: &str = "
SELECT pg_catalog.setval(pg_catalog.format('%I.%I', schemaname, sequencename)::regclass, coalesce(last_value, 0) + 1000)
FROM pg_catalog.pg_sequences";

/// A row from its JSON.
fn row(text: &str) -> Result<Row, BoxError> {
    let columns: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)?;
    let text = |value: serde_json::Value| match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text),
        other @ (serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_)) => Some(other.to_string()),
    };
    Ok(columns.into_iter().map(|(name, value)| (name, text(value))).collect())
}

async fn names(connection: &mut PgConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as(TABLES).fetch_all(connection).await
}

async fn read(connection: &mut PgConnection, own: &[String]) -> Result<Tables, BoxError> {
    let mut tables = Tables::new();
    for (name, quoted) in names(connection).await?.into_iter().filter(|(_, quoted)| !own.contains(quoted)) {
        let query = format!("SELECT pg_catalog.to_jsonb(t)::text FROM {quoted} AS t");
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(&mut *connection).await?;
        tables.insert(name, rows.iter().map(|text| row(text)).collect::<Result<_, _>>()?);
    }
    Ok(tables)
}

impl Scratch for PostgresScratch {
    type Store = PostgresStore;
    type Address = PgConnectOptions;

    async fn create(&self) -> Result<PgConnectOptions, BoxError> {
        let template = self.template.get_or_try_init(|| self.make_template()).await?;
        let free = self.free().pop();
        if let Some(address) = free {
            match self.put_back(&address).await {
                Ok(()) => return Ok(address),
                // Its login may not do that, or a table has something of its own: another copy takes longer, and does as well.
                Err(_) => self.drop_database(&address).await,
            }
        }
        let name = format!("{}_{}", template.name, self.made.fetch_add(1, Ordering::Relaxed));
        self.copy(&template.name, &name).await?;
        Ok(self.server.clone().database(&name))
    }

    fn describe(&self, address: &PgConnectOptions) -> Option<String> {
        address.get_database().map(|name| format!("database {name}"))
    }

    async fn connect(&self, address: &PgConnectOptions) -> Result<Arc<PostgresStore>, BoxError> {
        Ok(Arc::new(self.store(address)?))
    }

    async fn tables(&self, address: &PgConnectOptions) -> Result<Tables, BoxError> {
        let mut connection = address.connect().await?;
        let own = self.template.get().map_or(&[][..], |template| &template.own);
        let tables = read(&mut connection, own).await;
        let _ = connection.close().await;
        tables
    }

    async fn disturb(&self, address: &PgConnectOptions) -> Result<(), BoxError> {
        let mut connection = address.connect().await?;
        let done = sqlx::query(DISTURB).execute(&mut connection).await;
        let _ = connection.close().await;
        Ok(done.map(drop)?)
    }

    async fn spoil(&self, tx: &mut Tx<'_, PostgresStore>) {
        // The error is wanted: after it this transaction takes no other statement.
        let _ = sqlx::raw_sql("SELECT 1 / 0").execute(tx.connection()).await;
    }

    async fn mend(&self, _: &mut Tx<'_, PostgresStore>) {}

    async fn remove(&self, address: PgConnectOptions) {
        self.free().push(address);
    }

    async fn finish(&self) {
        let free = std::mem::take(&mut *self.free());
        for address in free {
            self.drop_database(&address).await;
        }
        if let Some(template) = self.template.get() {
            let _ = self.run(format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", template.name)).await;
        }
    }
}
