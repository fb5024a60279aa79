//! A schema of its own for each test, dropped when the test is green.

#[path = "../../../idem-sql/tests/shared/reused.rs"]
mod reused;

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_conformance::postgres::EFFECTS;
use idem_sql::SchemaName;
use idem_tokio_postgres::{
    PostgresOptions, PostgresStore,
    tokio_postgres::{
        Client, Config, NoTls, SimpleQueryMessage,
        config::{Host, SslMode},
    },
};
use tokio::sync::Mutex;

use crate::scratch::Scratch;

/// How long a test waits for anything before it is red.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The server that the tests share.
pub(crate) fn url() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

/// A connection of its own, driven by a task.
pub(crate) async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A schema with idem's tables and a table of effects, and a way to look into it.
pub(crate) struct Fixture {
    pub(crate) store: PostgresStore,
    pub(crate) schema: SchemaName,
    pub(crate) config: Config,
    /// For looking and arranging, as an administrator does. A connection costs the server more than most statements.
    admin: Mutex<Option<Arc<Client>>>,
    /// Whether another case has it after this one.
    is_reused: bool,
    /// Its server, where it has one of its own.
    own_server: Option<Scratch>,
}

/// A name that no other test and no other run has.
fn fresh_name() -> SchemaName {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // Seeded at random for each process: the leftovers of a red test must not meet this one.
    static RUN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    SchemaName::new(format!("p_{:016x}_{next}", *RUN)).unwrap()
}

impl Fixture {
    /// A migrated schema on the shared server.
    pub(crate) async fn new() -> Self {
        Self::on(&url()).await
    }

    /// `host:port` of its server.
    pub(crate) fn authority(&self) -> String {
        let Host::Tcp(host) = &self.config.get_hosts()[0] else { panic!("the tests' servers are reached over TCP") };
        format!("{host}:{}", self.config.get_ports()[0])
    }

    /// How to reach this schema by this port, on which a proxy stands in front of its server.
    pub(crate) fn through(&self, port: u16) -> Config {
        let server = &self.config;
        let mut config = Config::new();
        config.host("127.0.0.1").port(port).ssl_mode(SslMode::Disable);
        config.user(server.get_user().unwrap()).dbname(server.get_dbname().unwrap());
        config.options(format!("-c search_path={}", self.schema));
        config
    }

    /// A migrated schema on this server.
    pub(crate) async fn on(url: &str) -> Self {
        let fixture = Self::unmade(url.parse().unwrap(), fresh_name(), None, false);
        fixture.make().await;
        fixture
    }

    /// A migrated schema on an empty server of its own, which goes with it.
    pub(crate) async fn on_own_server() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let server = Scratch::new(&format!("own{}", NEXT.fetch_add(1, Ordering::Relaxed))).await;
        let mut fixture = Self::on(&server.url).await;
        fixture.own_server = Some(server);
        fixture
    }

    /// A migrated schema on the shared server that is emptied for the next case, where this one does not change what is defined in it.
    pub(crate) async fn reused() -> Self {
        let server: Config = url().parse().unwrap();
        let admin = connect(&server).await;
        admin.batch_execute(reused::LIST).await.unwrap();
        let taken = admin.simple_query(&reused::take()).await.unwrap().into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(SchemaName::new(row.get(0).unwrap()).unwrap()),
            _ => None,
        });
        let is_made = taken.is_some();
        let schema = taken.unwrap_or_else(fresh_name);
        admin.batch_execute(&format!("SET search_path = {}", schema.quoted())).await.unwrap();
        let fixture = Self::unmade(server, schema, Some(Arc::new(admin)), true);
        if !is_made {
            fixture.make().await;
            fixture.run(reused::enter(&fixture.schema)).await;
        }
        fixture
    }

    fn unmade(mut config: Config, schema: SchemaName, admin: Option<Arc<Client>>, is_reused: bool) -> Self {
        // So that handlers name their tables without a schema, as usual.
        config.options(format!("-c search_path={schema}"));
        let store = PostgresStore::with_options(config.clone()).schema(schema.clone()).build().unwrap();
        Self { store, schema, config, admin: Mutex::new(admin), is_reused, own_server: None }
    }

    async fn make(&self) {
        self.run(format!("CREATE SCHEMA {}", self.schema.quoted())).await;
        self.store.migrate().await.unwrap();
        self.run(EFFECTS).await;
    }

    /// Settings of another store on the same schema.
    pub(crate) fn options(&self) -> PostgresOptions {
        self.options_of(self.config.clone())
    }

    /// Settings of a store on the same schema with another login.
    pub(crate) fn options_of(&self, config: Config) -> PostgresOptions {
        PostgresStore::with_options(config).schema(self.schema.clone())
    }

    /// Another store on the same schema, as another process has it.
    pub(crate) fn another(&self) -> PostgresStore {
        self.options().build().unwrap()
    }

    /// A connection of its own, as an administrator has it.
    pub(crate) async fn connect(&self) -> Client {
        connect(&self.config).await
    }

    /// The administrator's connection, a new one where the server has ended it.
    pub(crate) async fn admin(&self) -> Arc<Client> {
        let mut admin = self.admin.lock().await;
        if let Some(client) = admin.as_ref().filter(|client| !client.is_closed()) {
            return Arc::clone(client);
        }
        Arc::clone(admin.insert(Arc::new(self.connect().await)))
    }

    /// Runs statements as an administrator.
    pub(crate) async fn run(&self, statements: impl AsRef<str>) {
        self.admin().await.batch_execute(statements.as_ref()).await.unwrap();
    }

    /// The rows that a query answers, as texts.
    pub(crate) async fn table(&self, query: impl AsRef<str>) -> Vec<Vec<String>> {
        let messages = self.admin().await.simple_query(query.as_ref()).await.unwrap();
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| (0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect()).collect()
    }

    /// The first column of what a query answers.
    pub(crate) async fn texts(&self, query: impl AsRef<str>) -> Vec<String> {
        self.table(query).await.into_iter().map(|mut row| row.swap_remove(0)).collect()
    }

    /// The only value of a query.
    pub(crate) async fn text(&self, query: impl AsRef<str>) -> String {
        self.texts(query).await.into_iter().next().unwrap_or_default()
    }

    /// The keys of the effects that are committed, sorted.
    pub(crate) async fn effects(&self) -> Vec<String> {
        self.texts("SELECT key FROM effects ORDER BY key").await
    }

    /// The keys that have a record, sorted.
    pub(crate) async fn recorded(&self) -> Vec<String> {
        self.texts("SELECT idempotency_key FROM processed_messages ORDER BY 1").await
    }

    /// Waits until the server answers a query with `true`.
    pub(crate) async fn until(&self, query: &str) {
        let waiting = async {
            while self.text(query).await != "t" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never true: {query}"));
    }

    /// Waits until the server answers again after a restart.
    pub(crate) async fn until_it_answers(&self) {
        let waiting = async {
            while self.config.connect(NoTls).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the server comes back");
        *self.admin.lock().await = None;
    }

    /// Settings of a login that is read only by default, as a pooler in transaction mode needs it. It goes with
    /// [`Self::drop_pooled`].
    pub(crate) async fn pooled(&self, mut pooler: Config) -> Config {
        let name = format!("{}_pooled", self.schema);
        let role =
            format!("CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET default_transaction_read_only = on");
        self.run(role).await;
        pooler.user(name);
        pooler
    }

    /// Drops the schema and the login behind the pooler, which keeps its connections.
    pub(crate) async fn drop_pooled(self) {
        let name = format!("{}_pooled", self.schema);
        self.run(format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'")).await;
        self.run(format!("DROP ROLE {name}")).await;
        self.drop().await;
    }

    /// Drops the schema. A red test does not come here, and its schema stays for a look.
    pub(crate) async fn drop(self) {
        self.store.disconnect().await;
        let end = match self.is_reused {
            true => reused::give_back(&self.schema),
            false => format!("DROP SCHEMA {} CASCADE", self.schema.quoted()),
        };
        self.run(end).await;
        if let Some(server) = self.own_server {
            server.down().await;
        }
    }
}
