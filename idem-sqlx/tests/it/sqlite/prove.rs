//! `idem_testkit::prove` on SQLite: it holds a good handler for good, and says of each bad one what is wrong with it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx, Worker, failpoint, scratch::Scratch as _};
use idem_sqlx::{SqliteScratch, SqliteStore};
use idem_testkit::{
    NotProven, Promise, Proven,
    memory::{Broker, QueueOptions},
    message, prove,
};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

const TABLES: &str = "
CREATE TABLE customers (name TEXT PRIMARY KEY, cents INTEGER NOT NULL) STRICT;
INSERT INTO customers VALUES ('ann', 0), ('bob', 100);
CREATE TABLE purchases (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, cents INTEGER NOT NULL, raw BLOB) STRICT";

fn databases() -> SqliteScratch {
    SqliteScratch::new(async |file: PathBuf| {
        let mut connection = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await?;
        sqlx::raw_sql(TABLES).execute(&mut connection).await?;
        Ok(connection.close().await?)
    })
}

async fn proved<H: Handler<SqliteStore>>(
    handler: impl Fn(&PathBuf) -> H + Send + Sync + 'static,
) -> Result<Proven, NotProven> {
    let messages = [("order-1", "250"), ("order-2", "990"), ("order-3", "5"), ("order-4", "250")];
    prove(databases(), handler).messages(messages.map(|(key, payload)| message(key, payload))).run().await
}

/// The broken promise, and the text, which names the file that is left; that is removed here.
fn broken(proved: Result<Proven, NotProven>) -> (Promise, String) {
    let error = proved.unwrap_err();
    let NotProven::Broken { promise, .. } = &error else { panic!("{error}") };
    let (promise, text) = (*promise, error.to_string());
    if let Some(file) = text.split("The file ").nth(1).and_then(|rest| rest.split(' ').next()) {
        std::fs::remove_dir_all(Path::new(file).parent().unwrap()).unwrap();
    }
    (promise, text)
}

fn key(message: &Message) -> &str {
    message.key().map(|key| key.as_str()).unwrap_or_default()
}

async fn buy(message: &Message, connection: &mut SqliteConnection) -> Result<(), HandlerError> {
    let cents: i64 = message.json()?;
    let insert = sqlx::query("INSERT INTO purchases (key, cents, raw) VALUES (?, ?, x'00ff')");
    insert.bind(key(message)).bind(cents).execute(&mut *connection).await?;
    let credit = sqlx::query("UPDATE customers SET cents = cents + ? WHERE name = 'ann'").bind(cents);
    credit.execute(connection).await?;
    Ok(())
}

struct Ledger;

impl Handler<SqliteStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        buy(message, tx.connection()).await
    }
}

#[tokio::test]
async fn j62_a_handler_that_writes_through_its_transaction_is_proved() {
    let proven = proved(|_| Ledger).await.unwrap();
    let points: BTreeSet<_> = failpoint::ALL.iter().copied().chain(["handler_waits"]).collect();
    let spared: Vec<_> =
        points.difference(&proven.died_at).filter(|point| !failpoint::OF_A_RELAY.contains(point)).collect();
    assert_eq!(spared, [&"appended", &"clean_chunk"], "the handler publishes nothing: {proven}");
    assert_eq!(proven.not_compared, ["purchases.id"]);
    eprintln!("{proven}");
}

/// Writes to the same file over a connection of its own, which waits for the handler's own transaction.
struct Elsewhere(PathBuf);

impl Handler<SqliteStore> for Elsewhere {
    async fn handle(&self, message: &Message, _: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let options = SqliteConnectOptions::new().filename(&self.0).busy_timeout(Duration::from_millis(10));
        buy(message, &mut options.connect().await?).await
    }
}

#[tokio::test]
async fn j62_a_write_over_another_connection_is_told() {
    let text = proved(|file| Elsewhere(file.clone())).await.unwrap_err().to_string();
    assert!(text.contains("write over a connection that is not `tx`?"), "{text}");
}

struct CommitsItself;

impl Handler<SqliteStore> for CommitsItself {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        buy(message, tx.connection()).await?;
        let _ = sqlx::raw_sql("COMMIT").execute(tx.connection()).await;
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_handler_that_ends_its_transaction_is_told_so() {
    let text = proved(|_| CommitsItself).await.unwrap_err().to_string();
    assert!(text.contains("Your handler ends the transaction that it was given"), "{text}");
}

/// Takes what fails for done. SQLite commits the rest of such a transaction, so this loses effects.
struct Swallows;

impl Handler<SqliteStore> for Swallows {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let _ = buy(message, tx.connection()).await;
        Ok(())
    }
}

#[tokio::test]
async fn j62_a_swallowed_error_is_told_with_its_message() {
    let (promise, text) = broken(proved(|_| Swallows).await);
    assert_eq!(promise, Promise::HandsErrorsOn, "{text}");
    assert!(text.contains("your handler answered Ok for message order-1 although its statements had failed"), "{text}");
}

/// Remembers what it has seen, although that was rolled back.
#[derive(Default)]
struct Remembers(Mutex<BTreeSet<String>>);

impl Handler<SqliteStore> for Remembers {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        if !self.0.lock().unwrap().insert(key(message).to_owned()) {
            return Ok(());
        }
        buy(message, tx.connection()).await
    }
}

#[tokio::test]
async fn j62_state_that_outlives_an_attempt_is_told() {
    let (promise, text) = broken(proved(|_| Remembers::default()).await);
    assert_eq!(promise, Promise::ForgetsAttempts, "{text}");
    assert!(text.contains("Does your handler keep something in memory between attempts"), "{text}");
}

/// Tests have the failpoints compiled in, and threads with little stack: the whole worker fits into one mebibyte.
#[test]
fn j62_failpoints_that_are_not_armed_cost_no_stack() {
    let worker = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let databases = databases();
            let file = databases.create().await.unwrap();
            let store = databases.connect(&file).await.unwrap();
            let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
            for (number, payload) in ["1", "2", "junk", "3"].iter().enumerate() {
                queue.publish(message(&format!("order-{number}"), *payload)).unwrap();
            }
            let consumer = DedupConsumer::builder(store, "ledger").handler(Ledger);
            let consumer = consumer.effects(Effects::InTransaction).build().unwrap();
            let worker =
                Worker::builder(consumer, queue.source()).until_idle(Duration::from_millis(20)).build().unwrap();
            worker.run(std::future::pending()).await.unwrap();
            assert_eq!(databases.tables(&file).await.unwrap()["purchases"].len(), 3);
            databases.remove(file).await;
            databases.finish().await;
        });
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(worker).unwrap().join().unwrap();
}

/// The guide's program is `proving_page.rs`, which is compiled and runs here.
#[test]
fn the_page_shows_the_test_that_runs() {
    let page = include_str!("../../../../docs/guide/proving-your-handler.md");
    assert!(page.contains(include_str!("proving_page.rs")), "proving-your-handler.md and proving_page.rs differ");
}
