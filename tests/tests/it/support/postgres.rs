//! A PostgreSQL database for one test.

use sqlx::{Connection, PgConnection, query_scalar, raw_sql};

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
        // A template with connections cannot be copied, and this one never has any.
        Self::copy_of("template0", label).await
    }

    /// Creates a copy of another one. Commits answer before they are on disk, since the server itself stays up: the clients'
    /// views do not change, and no commit waits for the disk.
    pub(crate) async fn copy_of(template: &str, label: &str) -> Self {
        let name = format!("{label}_{:08x}", fastrand::u32(..));
        let mut server = server().await;
        let text = "SELECT current_setting('server_version_num')::int4 >= 150000";
        let is_newer: bool = query_scalar(text).fetch_one(&mut server).await.expect("an answer");
        // As files it takes half of the processor's time that it takes by way of the WAL, which is the newer ones' default.
        let strategy = if is_newer { " STRATEGY file_copy" } else { "" };
        for statement in [
            format!("CREATE DATABASE {name} TEMPLATE {template}{strategy}"),
            format!("ALTER DATABASE {name} SET synchronous_commit = off"),
        ] {
            raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut server).await.expect("the statement is allowed");
        }
        server.close().await.expect("the connection closes");
        Self { name }
    }

    /// Gives it a name that others know, as a template.
    pub(crate) async fn rename(self, name: &str) {
        run(&format!("ALTER DATABASE {} RENAME TO {name}", self.name)).await;
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        let server = server_url();
        let (head, tail) = server.split_once("://").expect("a URL");
        let (host, rest) = tail.split_once('/').unwrap_or((tail, ""));
        let options = rest.split_once('?').map_or(String::new(), |(_, options)| format!("?{options}"));
        format!("{head}://{host}/{}{options}", self.name)
    }

    /// Drops it, even with open connections.
    pub(crate) async fn remove(self) {
        run(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

/// Whether there is a database of this name.
pub(crate) async fn exists(name: &str) -> bool {
    let mut server = server().await;
    let text = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    query_scalar(text).bind(name).fetch_one(&mut server).await.expect("an answer")
}

/// A connection to the server's own database.
pub(crate) async fn server() -> PgConnection {
    PgConnection::connect(&server_url()).await.expect("PostgreSQL answers: ./servers up postgres")
}

async fn run(statement: &str) {
    let mut server = server().await;
    raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut server).await.expect("the statement is allowed");
    server.close().await.expect("the connection closes");
}
