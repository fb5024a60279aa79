//! Both programs against PostgreSQL: a request that is sent twice is two orders without the key, and one with it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "anything unexpected in a test is a failure")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use idem_sqlx::PostgresStore;
use sqlx::{Connection as _, PgConnection};

/// A program on a database, which ends with this.
struct Running {
    address: String,
    process: Child,
}

impl Running {
    fn start(program: &str, url: &str) -> Self {
        let mut command = Command::new(program);
        command.env("DATABASE_URL", url).env("LISTEN", "127.0.0.1:0").env("HASH_SECRET", "0".repeat(64));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let line = BufReader::new(process.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        Self { address: line.strip_prefix("listening on ").unwrap().to_owned(), process }
    }

    /// The answer to an order of this shop.
    fn order(&self, shop: &str, key: &str, cents: u32) -> String {
        let body = format!("{{\"item\": \"a chair\", \"cents\": {cents}}}");
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nauthorization: Bearer token-of-{shop}\r\n"
        );
        let content = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        write!(connection, "{head}idempotency-key: \"{key}\"\r\n{content}").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is(answer: &str, status: u16, is_replayed: bool) {
    let is_marked = answer.to_ascii_lowercase().contains("idempotent-replayed: true");
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && is_marked == is_replayed, "{answer}");
}

/// The server that tests share.
fn server() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

async fn on_the_server(statement: String) {
    let mut connection = PgConnection::connect(&server()).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
}

/// The URL of a database of its own, and a connection to it.
async fn fresh(database: &str) -> (PgConnection, String) {
    on_the_server(format!("CREATE DATABASE {database}")).await;
    let url = format!("{}/{database}", server().rsplit_once('/').unwrap().0);
    (PgConnection::connect(&url).await.unwrap(), url)
}

async fn orders(connection: &mut PgConnection) -> (i64, i64) {
    let both = "SELECT (SELECT count(*) FROM orders), (SELECT credit FROM shops WHERE name = 'acme')";
    sqlx::query_as(both).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn the_key_makes_one_order_of_a_request_that_is_sent_twice() {
    let names = ["before", "after"].map(|name| format!("orders_{name}_{}", std::process::id()));
    let (mut connection, url) = fresh(&names[0]).await;
    let before = Running::start(env!("CARGO_BIN_EXE_orders-before"), &url);
    for _ in 0..2 {
        is(&before.order("acme", "k", 40_000), 201, false);
    }
    assert_eq!(orders(&mut connection).await, (2, 20_000), "each of them");

    let (mut connection, url) = fresh(&names[1]).await;
    PostgresStore::connect(&url).await.unwrap().migrate().await.unwrap();
    let after = Running::start(env!("CARGO_BIN_EXE_orders"), &url);
    is(&after.order("acme", "k", 40_000), 201, false);
    is(&after.order("acme", "k", 40_000), 201, true);
    assert_eq!(orders(&mut connection).await, (1, 60_000));
    // The application's own errors: one that is kept, one that is not, and one before the key is looked at.
    is(&after.order("globex", "k", 40_000), 402, false);
    is(&after.order("globex", "k", 40_000), 402, true);
    for _ in 0..2 {
        is(&after.order("acme", "l", 60_000), 400, false);
    }
    is(&after.order("initech", "k", 40_000), 401, false);
    assert_eq!(orders(&mut connection).await, (1, 60_000));
    drop((before, after));
    for name in names {
        on_the_server(format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }
}

/// T29: what is missing, or cannot be used, is one line with its fix.
#[test]
fn a_setting_that_cannot_be_used_is_one_line_with_its_fix() {
    let said = |program: &str, variables: &[(&str, &str)]| {
        let output = Command::new(program).env_clear().envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let url = server();
    let none = "orders: set the variable DATABASE_URL to the address of a PostgreSQL database\n";
    for program in [env!("CARGO_BIN_EXE_orders"), env!("CARGO_BIN_EXE_orders-before")] {
        assert_eq!(said(program, &[]), none);
    }
    let orders = env!("CARGO_BIN_EXE_orders");
    let none = "orders: set the variable HASH_SECRET to 32 or more random bytes, the same ones at each start\n";
    assert_eq!(said(orders, &[("DATABASE_URL", &url)]), none);
    let short = said(orders, &[("DATABASE_URL", &url), ("HASH_SECRET", "short")]);
    assert!(short.starts_with("orders: ") && short.contains("32") && short.lines().count() == 1, "{short:?}");
}
