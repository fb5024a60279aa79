//! Cleanup beside a worker.

use idem_sql::{SchemaName, postgres_roles};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{place::Place, process::Worker};

const PASSWORD: &str = "canary-password";

/// A schema in which two records have expired.
struct Fixture {
    schema: String,
    url: String,
    connection: PgConnection,
    place: Place,
}

impl Fixture {
    async fn new() -> Self {
        let url = std::env::var("IDEM_POSTGRES_URL");
        let url = url.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
        // The server trusts this machine, so that any password will do.
        let url = url.replace("idem@", &format!("idem:{PASSWORD}@"));
        let connection = PgConnection::connect(&url).await.expect("PostgreSQL answers: ./servers up postgres");
        let mut fixture =
            Self { schema: format!("w_{:016x}", fastrand::u64(..)), url, connection, place: Place::new().await };
        fixture.worker(&fixture.url, "--migrate --cleanup-every off --until-idle 10ms").run().await.with(0);
        let insert = format!(
            "INSERT INTO {0}.processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
             SELECT {0}.key_id('k' || n), now() - interval '1 s', 1, 1, 1, 'k' || n, sha256('') FROM generate_series(1, 2) AS n",
            fixture.schema
        );
        fixture.run(&insert).await;
        fixture
    }

    fn worker(&self, url: &str, arguments: &str) -> Worker {
        let (socket, schema) = (self.place.socket(), &self.schema);
        Worker::bare(&format!("--database-url {url} --schema {schema} --socket {socket} --consumer ledger {arguments}"))
    }

    async fn run(&mut self, statements: &str) {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut self.connection).await.unwrap();
    }

    async fn records(&mut self) -> i64 {
        let text = format!("SELECT count(*) FROM {}.processed_messages", self.schema);
        sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut self.connection).await.unwrap()
    }

    async fn remove(mut self) {
        self.run(&format!("DROP SCHEMA {} CASCADE", self.schema.clone())).await;
        self.place.remove();
    }
}

async fn metrics(address: &str) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_worker_removes_what_has_expired_and_tells_how_far_it_is() {
    let mut fixture = Fixture::new().await;
    let mut running = fixture.worker(&fixture.url, "--cleanup-every 1s --admin 0").start();
    let line = running.line("serving /metrics").await;
    let address = line.rsplit_once("address=").unwrap().1.trim().to_owned();
    running.line("cleanup is done").await;
    assert_eq!(fixture.records().await, 0);
    let metrics = metrics(&address).await;
    for sample in ["idem_cleaned_total", "idem_cleanup_lag_seconds", "idem_cleanup_failed_cycles", "idem_records"] {
        assert!(metrics.contains(&format!("{sample}{{consumer=\"ledger\"}}")), "{sample}: {metrics}");
    }
    assert!(metrics.contains("idem_cleaned_total{consumer=\"ledger\"} 2\n"), "{metrics}");
    running.signal("TERM").await;
    running.ended().await.with(0);
    fixture.remove().await;
}

/// S24: a worker reports the tables' sizes whether it cleans or not, and with every login.
#[tokio::test]
async fn s24_a_worker_without_cleanup_tells_the_tables_sizes() {
    let fixture = Fixture::new().await;
    let mut running =
        fixture.worker(&fixture.url, "--cleanup-every off --dead-letters-bytes-max 1GiB --admin 0").start();
    let line = running.line("serving /metrics").await;
    let address = line.rsplit_once("address=").unwrap().1.trim().to_owned();
    let told = async |sample: &str| loop {
        let metrics = metrics(&address).await;
        let start = format!("{sample}{{consumer=\"ledger\"}} ");
        match metrics.lines().find_map(|line| line.strip_prefix(&start)) {
            Some(value) if value != "0" => break value.parse::<f64>().unwrap(),
            Some(_) | None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    let all = async { (told("idem_record_bytes").await, told("idem_dead_letter_bytes").await) };
    let (records, letters) = tokio::time::timeout(std::time::Duration::from_secs(30), all).await.unwrap();
    assert!(records >= 8_192.0 && letters >= 8_192.0, "{records} {letters}");
    assert!((told("idem_dead_letter_quota_bytes").await - 1_073_741_824.0).abs() < 1.0);
    running.signal("TERM").await;
    running.ended().await.with(0);
    fixture.remove().await;
}

/// S8, S9: a worker's own login may not delete. Then cleanup is off and says who cleans, or it runs on another login, whose
/// password is never shown.
#[tokio::test]
async fn s8_cleanup_runs_on_a_login_that_may_delete_or_says_that_it_is_off() {
    let mut fixture = Fixture::new().await;
    let roles = postgres_roles(&SchemaName::new(&fixture.schema).unwrap());
    let login = format!("{}_worker", fixture.schema);
    fixture.run(&format!("BEGIN; SELECT pg_advisory_xact_lock(4711); {roles}; COMMIT")).await;
    fixture.run(&format!("CREATE ROLE {login} LOGIN IN ROLE idem_worker")).await;
    let url = fixture.url.replace(&format!("idem:{PASSWORD}@"), &format!("{login}@"));

    let mut running = fixture.worker(&url, "--cleanup-every 1s").start();
    let line = running.line("cleanup is off in this worker").await;
    assert!(line.contains("no cleanup has finished yet") && line.contains("--cleanup-database-url"), "{line}");
    running.signal("TERM").await;
    running.ended().await.with(0);
    assert_eq!(fixture.records().await, 2);

    let cleaner = format!("--cleanup-every 1s --cleanup-database-url {}", fixture.url);
    let mut running = fixture.worker(&url, &cleaner).start();
    running.line("cleanup is done").await;
    running.signal("TERM").await;
    let ended = running.ended().await.with(0);
    assert!(!ended.log.contains(PASSWORD), "{}", ended.log);
    assert_eq!(fixture.records().await, 0);

    let mut running = fixture.worker(&url, "").start();
    let line = running.line("cleanup is off in this worker").await;
    assert!(line.contains("was the last, 0 minutes ago"), "{line}");
    running.signal("TERM").await;
    running.ended().await.with(0);
    fixture.run(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
    fixture.remove().await;
}

#[tokio::test]
async fn what_is_wrong_with_cleanups_flags_is_told_without_the_url() {
    let fixture = Fixture::new().await;
    for (arguments, why) in [
        ("--cleanup-every 0s", "--cleanup-every is 0s, but it must be at least 1 s"),
        ("--cleanup-every never", "--cleanup-every is \"never\", but write a number"),
        (&format!("--cleanup-database-url postgres://u:{PASSWORD}@h:port/d"), "cannot be read"),
    ] {
        let ended = fixture.worker(&fixture.url, arguments).run().await.with(2);
        assert!(ended.why().contains(why), "{}", ended.log);
        assert!(!ended.log.contains(PASSWORD), "{}", ended.log);
    }
    fixture.remove().await;
}
