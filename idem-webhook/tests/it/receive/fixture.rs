//! A schema of its own for each test, a handler that does as its test asks, and a server in front of it.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx, consumer::DedupConsumerBuilder};
use idem_sql::SchemaName;
use idem_sqlx::PostgresStore;
use idem_webhook::receive::{Inbound, Sender};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, Row as _, postgres::PgConnectOptions};
use tokio::{net::TcpListener, sync::Notify};

/// The behaviour of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Write,
    /// Writes, and waits until it is let go.
    WriteAndWait,
    Fail,
    Refuse,
    /// Waits until it is let go, and refuses.
    WaitAndRefuse,
    /// Waits until it is let go, and fails for now.
    WaitAndFail,
}

/// A handler's orders.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(crate) act: Mutex<Act>,
    pub(crate) began: Notify,
    pub(crate) let_go: Notify,
    pub(crate) runs: AtomicU32,
}

struct Obey(Arc<Orders>);

impl Handler<PostgresStore> for Obey {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        self.0.runs.fetch_add(1, Ordering::Relaxed);
        let key = message.key().map_or("(none)", |key| key.as_str()).to_owned();
        let payload = message.payload().map(|payload| payload.to_vec());
        let query = sqlx::query("INSERT INTO effects (key, payload, type) VALUES ($1, $2, $3)");
        query.bind(key).bind(payload).bind(message.message_type().map(str::to_owned)).execute(tx.connection()).await?;
        let act = *self.0.act.lock().unwrap();
        match act {
            Act::Write => Ok(()),
            Act::WriteAndWait => {
                self.0.began.notify_one();
                self.0.let_go.notified().await;
                Ok(())
            }
            Act::WaitAndRefuse => {
                self.0.began.notify_one();
                self.0.let_go.notified().await;
                Err(HandlerError::permanent("no such account"))
            }
            Act::WaitAndFail => {
                self.0.began.notify_one();
                self.0.let_go.notified().await;
                Err(HandlerError::transient("the bank is closed"))
            }
            Act::Fail => Err(HandlerError::transient("the bank is closed")),
            Act::Refuse => Err(HandlerError::permanent("no such account")),
        }
    }
}

pub(crate) struct Fixture {
    pub(crate) store: PostgresStore,
    schema: SchemaName,
    admin: PgPool,
    pub(crate) orders: Arc<Orders>,
}

/// A name that no other test and no other run has.
fn fresh_name() -> SchemaName {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    static RUN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    SchemaName::new(format!("t_{:016x}_{}", *RUN, NEXT.fetch_add(1, Ordering::Relaxed))).unwrap()
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let url =
            std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
        let schema = fresh_name();
        let connection: PgConnectOptions = url.parse().unwrap();
        let connection = connection.disable_statement_logging().options([("search_path", schema.as_str())]);
        let admin =
            sqlx::postgres::PgPoolOptions::new().max_connections(2).connect_with(connection.clone()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {}", schema.quoted()))).execute(&admin).await.unwrap();
        let store = PostgresStore::with_options(connection).schema(schema.clone()).build().unwrap();
        store.migrate().await.unwrap();
        sqlx::raw_sql("CREATE TABLE effects (key text, payload bytea, type text)").execute(&admin).await.unwrap();
        let orders = Arc::new(Orders {
            act: Mutex::new(Act::Write),
            began: Notify::new(),
            let_go: Notify::new(),
            runs: AtomicU32::new(0),
        });
        Self { store, schema, admin, orders }
    }

    pub(crate) fn act(&self, act: Act) {
        *self.orders.act.lock().unwrap() = act;
    }

    pub(crate) fn runs(&self) -> u32 {
        self.orders.runs.load(Ordering::Relaxed)
    }

    /// The first column of a query's result, as texts.
    pub(crate) async fn texts(&self, query: &str) -> Vec<String> {
        let rows = sqlx::raw_sql(AssertSqlSafe(query.to_owned())).fetch_all(&self.admin).await.unwrap();
        rows.iter().map(|row| row.try_get_unchecked::<Option<String>, _>(0).unwrap().unwrap_or_default()).collect()
    }

    /// The keys of the committed effects, sorted.
    pub(crate) async fn effects(&self) -> Vec<String> {
        self.texts("SELECT key FROM effects ORDER BY 1").await
    }

    /// Reason, key and kept payload of each dead letter.
    pub(crate) async fn dead_letters(&self) -> Vec<String> {
        let query = "SELECT reason || '|' || coalesce(idempotency_key, '') || '|' || coalesce(convert_from(payload, 'UTF8'), 'not kept') \
                     FROM dead_letters ORDER BY 1";
        self.texts(query).await
    }

    pub(crate) fn consumer(
        &self,
        identify: impl FnOnce(DedupConsumerBuilder<PostgresStore>) -> DedupConsumerBuilder<PostgresStore>,
    ) -> DedupConsumer<PostgresStore> {
        let builder =
            identify(DedupConsumer::builder(self.store.clone(), "events")).handler(Obey(Arc::clone(&self.orders)));
        let builder = builder.effects(Effects::InTransaction).busy_timeout(Duration::from_millis(100));
        builder.handler_name("obey").build().unwrap()
    }

    /// Drops the schema. A red test does not come here, and its schema stays for a look.
    pub(crate) async fn drop(self) {
        self.store.disconnect().await;
        sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {} CASCADE", self.schema.quoted())))
            .execute(&self.admin)
            .await
            .unwrap();
    }
}

/// Serves, and answers the URL.
pub(crate) async fn serve<F: Sender>(service: Inbound<PostgresStore, F>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://127.0.0.1:{}/events", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    url
}

/// An answer: status, `Retry-After`, text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said(pub(crate) u16, pub(crate) Option<String>, pub(crate) String);

pub(crate) async fn post(url: &str, headers: &[(&str, String)], body: impl Into<reqwest::Body>) -> Said {
    let client = super::http_client();
    let request = headers.iter().fold(client.post(url), |request, (name, value)| request.header(*name, value));
    let response = request.body(body).send().await.unwrap();
    let after = response.headers().get("retry-after").map(|after| after.to_str().unwrap().to_owned());
    Said(response.status().as_u16(), after, response.text().await.unwrap())
}

/// Seconds since 1970.
#[allow(clippy::disallowed_methods, reason = "senders sign the time of their wall clock")]
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}
