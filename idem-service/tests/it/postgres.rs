//! Workers on PostgreSQL.

use sqlx::{Connection as _, PgConnection};

use crate::{
    admin::Admin,
    place::{Place, purchase},
    process::Worker,
    worker::SET_BASED,
};

/// A database for one test; it is left behind where the test fails.
pub(crate) struct Database {
    name: String,
    server: String,
}

impl Database {
    pub(crate) async fn fresh() -> Self {
        let server = std::env::var("IDEM_POSTGRES_URL");
        let server = server.unwrap_or_else(|_| "postgres://idem@127.0.0.1:25432/idem".to_owned());
        let database = Self { name: format!("idem_service_{:08x}", fastrand::u32(..)), server };
        database.run(&format!("CREATE DATABASE {} TEMPLATE template0", database.name)).await;
        database
    }

    /// The server's URL with another database.
    fn url_of(&self, name: &str) -> String {
        let (base, query) = self.server.split_once('?').map_or((self.server.as_str(), None), |(b, q)| (b, Some(q)));
        let base = base.rsplit_once('/').expect("the URL names a database").0;
        format!("{base}/{name}{}", query.map(|query| format!("?{query}")).unwrap_or_default())
    }

    pub(crate) fn url(&self) -> String {
        self.url_of(&self.name)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }

    async fn run(&self, statement: &str) {
        let mut server = PgConnection::connect(&self.server).await.expect("PostgreSQL answers: ./servers up postgres");
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut server).await.unwrap();
    }

    pub(crate) async fn remove(self) {
        self.run(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

fn worker(database: &Database, place: &Place, arguments: &str) -> Worker {
    let (url, socket) = (database.url(), place.socket());
    Worker::bare(&format!("--database-url {url} --socket {socket} --consumer ledger {arguments}"))
}

/// Statements that create one table at once fail, and each of these workers has them.
#[tokio::test]
async fn workers_that_start_at_once_create_the_tables_one_after_the_other() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    worker(&database, &place, "--migrate --until-idle 10ms").run().await.with(0);
    let start = || worker(&database, &place, "--create-tables --until-idle 10ms").start();
    let workers: Vec<_> = std::iter::repeat_with(start).take(8).collect();
    for worker in workers {
        worker.ended().await.with(0);
    }
    database.remove().await;
    place.remove();
}

#[tokio::test]
async fn two_workers_share_a_queue() {
    for how in [
        "",
        "--batch-handler",
        "--store tokio-postgres",
        "--store tokio-postgres --batch-handler",
        "--store tokio-postgres --handlers pipelined",
    ] {
        let (database, place) = (Database::fresh().await, Place::new().await);
        for number in 0..200 {
            let customer = format!("{}", number % 7);
            place.publish(&format!("key-{number}"), &customer);
            place.publish(&format!("key-{number}"), &customer);
        }
        place.publish_text(&purchase("key-0", "0", 1));
        place.publish_text(&purchase("bad", "0", -1));
        let arguments = format!("--migrate --create-tables --schema books --lanes 2 --until-idle 300ms {how}");
        let start = || worker(&database, &place, &arguments).run();
        let (one, other) = tokio::join!(start(), start());
        let log = format!("{}{}", one.log, other.log);
        assert_eq!(log.contains(SET_BASED), how.contains("--batch-handler"), "{log}");
        let (one, other) = (one.with(0).summary(), other.with(0).summary());
        let sum = |name: &str| one[name].as_u64().unwrap() + other[name].as_u64().unwrap();
        assert_eq!((sum("processed"), sum("duplicates"), sum("conflicts"), sum("dead_lettered")), (200, 200, 1, 2));

        let mut connection = database.connect().await;
        let text = "SELECT count(*), count(DISTINCT idempotency_key), sum(cents)::bigint FROM purchases";
        let purchases: (i64, i64, i64) = sqlx::query_as(text).fetch_one(&mut connection).await.unwrap();
        assert_eq!(purchases, (200, 200, 200 * 1177));
        let text = "SELECT count(*), sum(purchases)::bigint, sum(cents)::bigint FROM customers";
        let customers: (i64, i64, i64) = sqlx::query_as(text).fetch_one(&mut connection).await.unwrap();
        assert_eq!(customers, (7, 200, 200 * 1177));
        let text = "SELECT count(*) FROM books.processed_messages";
        let records: i64 = sqlx::query_scalar(text).fetch_one(&mut connection).await.unwrap();
        assert_eq!(records, 200, "in the schema that was asked for");
        drop(connection);
        database.remove().await;
        place.remove();
    }
}

/// Handlers of one ordering key run in turn, so where a partition has one, nothing would run at once.
#[tokio::test]
async fn handlers_at_once_are_refused_where_a_whole_part_has_one_ordering_key() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    let start = "--migrate --store tokio-postgres --until-idle 10ms --ordered-by-part";
    worker(&database, &place, start).run().await.with(0);
    let ended = worker(&database, &place, &format!("{start} --handlers pipelined")).run().await.with(2);
    assert!(ended.why().contains("LaneBy::Key"), "{}", ended.why());
    database.remove().await;
    place.remove();
}

/// S52: a start that waits for another session's lock of the migrations ends in its time, and says whose lock it is.
#[tokio::test]
async fn s52_a_start_that_waits_for_the_lock_of_migrations_ends_in_its_time() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    worker(&database, &place, "--migrate --until-idle 10ms").run().await.with(0);
    let mut holder = database.connect().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE idem.migrations IN SHARE MODE").execute(&mut holder).await.unwrap();
    let start = "--migrate --startup-timeout 8s";
    let (sqlx, tokio_postgres) = tokio::join!(
        worker(&database, &place, start).run(),
        worker(&database, &place, &format!("{start} --store tokio-postgres")).run()
    );
    for ended in [sqlx, tokio_postgres] {
        let ended = ended.with(3);
        let why = "the database was not ready for 8s: preparing the migration failed: process ";
        assert!(
            ended.why().contains(why) && ended.why().contains("holds the lock of the migrations"),
            "{}",
            ended.why()
        );
    }
    drop(holder);
    database.remove().await;
    place.remove();
}

#[tokio::test]
async fn a_login_or_a_database_that_the_server_refuses_ends_it_at_once() {
    let (database, place) = (Database::fresh().await, Place::new().await);
    let url = database.url_of("idem_absent");
    for arguments in ["--migrate", "", "--store tokio-postgres"] {
        let arguments = format!("--database-url {url} --socket {} --consumer ledger {arguments}", place.socket());
        let ended = Worker::bare(&arguments).run().await.with(2);
        assert!(ended.why().contains("3D000"), "{}", ended.why());
        assert!(!ended.log.contains("cannot be reached yet"), "{}", ended.log);
    }
    let ended = worker(&database, &place, "").run().await.with(2);
    assert!(ended.why().contains("schema"), "no tables: {}", ended.why());
    database.remove().await;
    place.remove();
}

/// For planning `max_connections` and a disk: the first log line says how many connections there will be, and there are
/// never more; and how many records the retention makes.
#[tokio::test]
async fn the_start_says_how_many_connections_it_opens() {
    for store in ["sqlx", "tokio-postgres"] {
        for (arguments, connections, said) in [
            ("--lanes 3", 6, "6 (lanes 3, control and bookkeeping 2, cleanup 1)"),
            ("--lanes 2 --cleanup-every off", 4, "4 (lanes 2, control and bookkeeping 2, cleanup 0)"),
        ] {
            let (database, place) = (Database::fresh().await, Place::new().await);
            let arguments = format!("--migrate --create-tables --store {store} --admin 0 {arguments}");
            let mut running = worker(&database, &place, &arguments).start();
            let line = running.line("starting").await;
            assert!(line.contains(&format!("connections=\"{said}\"")), "{line}");
            assert!(line.contains("forecast=\"604800 records and 127 MB for each message a second\""), "{line}");
            let admin = Admin::of(&mut running).await;
            admin.readiness(|json| json["ready"] == true).await;
            (0..500).for_each(|number| place.publish(&format!("order-{number}"), &format!("{number}")));
            place.orders.drained().await;
            let mut connection = database.connect().await;
            let count = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
            let open: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await.unwrap();
            assert!((2..=connections).contains(&open), "{open} connections are open, and {connections} were told");
            running.signal("TERM").await;
            running.ended().await.with(0);
            connection.close().await.unwrap();
            database.remove().await;
            place.remove();
        }
    }
}
