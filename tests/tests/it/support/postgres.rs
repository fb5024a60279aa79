//! A PostgreSQL database for one test.

use sqlx::{Connection, PgConnection, query};

/// Where the server is: `IDEM_POSTGRES_URL`, else what `./servers up postgres` starts.
pub(crate) fn server_url() -> String {
    std::env::var("IDEM_POSTGRES_URL").unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned())
}

/// A new, empty database. It stays where a test fails, for people to look at.
#[derive(Debug)]
pub(crate) struct FreshPostgres {
    name: String,
}

impl FreshPostgres {
    /// Creates one whose name begins with `label`.
    pub(crate) async fn create(label: &str) -> Self {
        let name = format!("{label}_{:08x}", fastrand::u32(..));
        // A template that somebody is connected to cannot be copied, and nobody connects to this one.
        run(&format!("CREATE DATABASE {name} TEMPLATE template0")).await;
        Self { name }
    }

    /// Lets commits answer before they are on disk, for tests in which the server itself stays up: what clients see of
    /// each other does not change, and nobody waits for the disk.
    pub(crate) async fn without_waiting_for_the_disk(self) -> Self {
        run(&format!("ALTER DATABASE {} SET synchronous_commit = off", self.name)).await;
        self
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        let server = server_url();
        let (head, tail) = server.split_once("://").expect("a URL");
        let (host, rest) = tail.split_once('/').unwrap_or((tail, ""));
        let options = rest.split_once('?').map_or(String::new(), |(_, options)| format!("?{options}"));
        format!("{head}://{host}/{}{options}", self.name)
    }

    /// Drops it, whoever is still connected.
    pub(crate) async fn remove(self) {
        run(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

async fn run(statement: &str) {
    let mut server = PgConnection::connect(&server_url()).await.expect("PostgreSQL answers: ./servers up postgres");
    query(sqlx::AssertSqlSafe(statement)).execute(&mut server).await.expect("the statement is allowed");
    server.close().await.expect("the connection closes");
}
