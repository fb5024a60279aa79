//! Walks the table of docs/guide/signs.md: breaks a real server for each of its rows, and looks where the row says that it is seen.

use std::{path::Path, process::Output, time::Duration};

use futures_util::future::join_all;
use lapin::types::AMQPValue;
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tokio::process::Command;

use super::{
    fixture::{Fixture, until},
    queue::management_url,
    shared_page::fetched,
    worker::Worker,
};

const PAGE: &str = include_str!("../../../docs/guide/signs.md");

/// A row of the table.
struct Row {
    /// What its name is, in bold.
    name: &'static str,
    /// The words that are seen.
    words: &'static str,
    places: Vec<&'static str>,
    command: &'static str,
}

fn rows() -> Vec<Row> {
    let lines = PAGE.lines().filter(|line| line.starts_with("| **"));
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [sign, places, command, _cure] = cells[..] else { panic!("four cells: {line}") };
        let (name, words) = sign.split_once("**: `").expect("a name and words");
        Row {
            name: name.trim_start_matches("**"),
            words: words.trim_end_matches('`'),
            places: places.split(", ").collect(),
            command: command.trim_matches('`'),
        }
    };
    lines.map(row).collect()
}

/// The command `idem`, which lies beside the rig.
async fn idem(fixture: &Fixture, arguments: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_amqp-rig")).with_file_name("idem");
    let mut command = Command::new(&program);
    command.env_clear().env("DATABASE_URL", &fixture.owner_url).env("USER", "ada").args(arguments);
    command.output().await.unwrap_or_else(|error| panic!("{}: {error}; build the whole workspace", program.display()))
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).join("\n")
}

/// What a place shows.
async fn shown(fixture: &Fixture, worker: &Worker, place: &str) -> String {
    let served = async |path| fetched(worker, path).await.unwrap_or_default().replace("&#39;", "'");
    match place {
        "page" => served("/").await,
        "readyz" => served("/readyz").await,
        "metrics" => served("/metrics").await,
        "log" => worker.logged(),
        place => text(&idem(fixture, &[place]).await),
    }
}

impl Row {
    /// Waits until each place has the words, and runs the command.
    async fn is_seen(&self, fixture: &Fixture, worker: &Worker) {
        for place in &self.places {
            let what = format!("{:?} in {place}, for {}", self.words, self.name);
            until(&what, async || shown(fixture, worker, place).await.contains(self.words)).await;
        }
        self.answers(fixture).await;
    }

    /// Runs the command, where it is one of idem's.
    async fn answers(&self, fixture: &Fixture) -> String {
        let Some(arguments) = self.command.strip_prefix("idem ") else { return String::new() };
        let arguments: Vec<&str> =
            arguments.split(' ').map(|word| if word == "ORDERS" { &fixture.name } else { word }).collect();
        let output = idem(fixture, &arguments).await;
        // 1 says that there is something to see.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {}", self.command, text(&output));
        text(&output)
    }

    /// Breaks something, sees it, and sees it go with the cure.
    async fn walk(&self) {
        match self.name {
            "queue drops messages" => return self.dropping().await,
            "crash loop" => return self.crashing().await,
            _ => {}
        }
        let fixture = Fixture::new("signs").await;
        let worker = fixture.start(&["--admin", "0"]);
        fixture.send(0..1).await;
        fixture.until_purchases(1).await;
        if !self.through_messages(&fixture, &worker).await {
            self.through_the_database(&fixture, &worker).await;
        }
        worker.kill().await;
        fixture.remove().await;
    }

    /// What messages and an operator's hand bring about.
    async fn through_messages(&self, fixture: &Fixture, worker: &Worker) -> bool {
        match self.name {
            "paused" => {
                assert!(
                    idem(fixture, &["consumers", "pause", &fixture.name, "--reason", "a test"]).await.status.success()
                );
                self.is_seen(fixture, worker).await;
                assert!(idem(fixture, &["consumers", "resume", &fixture.name]).await.status.success());
                fixture.send(1..2).await;
                fixture.until_purchases(2).await;
            }
            "breaker" => {
                let refused = |number| format!(r#"{{"idempotencykey":"refused-{number}"}}"#);
                fixture.queue.send_texts(&(0..60).map(refused).collect::<Vec<_>>()).await;
                self.is_seen(fixture, worker).await;
                fixture.send(1..2).await;
                fixture.until_purchases(2).await;
                until("the breaker to close", async || !shown(fixture, worker, "page").await.contains(self.words))
                    .await;
            }
            "dead letters" => {
                fixture.queue.send_texts(&["{}".to_owned(), "[]".to_owned()]).await;
                self.is_seen(fixture, worker).await;
            }
            "falling behind" => {
                assert!(
                    idem(fixture, &["consumers", "pause", &fixture.name, "--reason", "a test"]).await.status.success()
                );
                until("the pause", async || worker.logged().contains("the consumer's control changed")).await;
                fixture.send(1..4).await;
                self.is_seen(fixture, worker).await;
            }
            _ => return false,
        }
        true
    }

    /// What the database does.
    async fn through_the_database(&self, fixture: &Fixture, worker: &Worker) {
        let run = async |statement: &str| {
            raw_sql(AssertSqlSafe(statement.to_owned())).execute(fixture.pool()).await.expect(statement);
        };
        match self.name {
            "lock" => {
                let mut holder = PgConnection::connect(&fixture.owner_url).await.expect("a session");
                raw_sql("BEGIN; LOCK TABLE purchases").execute(&mut holder).await.expect("a lock");
                let pid: i32 =
                    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holder).await.expect("a pid");
                fixture.send(1..2).await;
                self.is_seen(fixture, worker).await;
                let stuck = self.answers(fixture).await;
                assert!(stuck.contains(&pid.to_string()), "{pid}: {stuck}");
                run(&format!("SELECT pg_terminate_backend({pid})")).await;
                fixture.until_purchases(2).await;
            }
            "disk full" => {
                run("CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                        RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'could not extend file: No space left on device';
                    END $$; CREATE TRIGGER full_disk BEFORE INSERT ON purchases EXECUTE FUNCTION full_disk()")
                .await;
                fixture.send(1..2).await;
                self.is_seen(fixture, worker).await;
                run("DROP TRIGGER full_disk ON purchases").await;
                fixture.until_purchases(2).await;
            }
            "login refused" => {
                let name = &fixture.name;
                run(&format!(
                    "ALTER ROLE {name} NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'"
                ))
                .await;
                fixture.send(1..2).await;
                self.is_seen(fixture, worker).await;
                run(&format!("ALTER ROLE {name} LOGIN")).await;
                fixture.until_purchases(2).await;
            }
            "invalid index" => {
                run("CREATE UNIQUE INDEX processed_messages_pkey_ccnew ON idem.processed_messages (consumer, key_id);
                    UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idem.processed_messages_pkey_ccnew'::regclass")
                .await;
                self.is_seen(fixture, worker).await;
                run("DROP INDEX CONCURRENTLY idem.processed_messages_pkey_ccnew").await;
                assert!(!self.answers(fixture).await.contains(self.words));
            }
            "sequence behind" => {
                run("INSERT INTO idem.audit (who, action) SELECT 'x', 'x' FROM generate_series(1, 20);
                    ALTER SEQUENCE idem.audit_id_seq RESTART WITH 1")
                .await;
                self.is_seen(fixture, worker).await;
                assert!(idem(fixture, &["migrate", "up"]).await.status.success());
                assert!(!self.answers(fixture).await.contains(self.words));
            }
            name => panic!("no test breaks anything for the row {name:?}"),
        }
    }

    /// A queue that drops its oldest messages is refused at the start.
    async fn dropping(&self) {
        let arguments =
            [("x-max-length", AMQPValue::LongInt(10)), ("x-overflow", AMQPValue::LongString("drop-head".into()))];
        let fixture = Fixture::with("signs", &arguments).await;
        let management = management_url();
        let ended = fixture.start(&["--management-url", &management]).ended().await;
        assert_eq!((ended.status.code(), ended.log.contains(self.words)), (Some(2), true), "{}", ended.log);
        fixture.remove().await;
    }

    /// Processes that are killed soon after their start, three times.
    async fn crashing(&self) {
        let fixture = Fixture::new("signs").await;
        for run in 0..3 {
            let worker = fixture.start(&[]);
            fixture.send(run..run + 1).await;
            fixture.until_purchases(run + 1).await;
            worker.kill().await;
        }
        let worker = fixture.start(&["--admin", "0"]);
        self.is_seen(&fixture, &worker).await;
        worker.kill().await;
        fixture.remove().await;
    }
}

/// Each row of the page on signs: the words are seen where it says, its command answers, and the cure cures.
#[tokio::test(flavor = "multi_thread")]
async fn j112_each_sign_is_seen_where_the_page_says() {
    let rows = rows();
    assert!(rows.len() >= 12, "the page has fewer rows than before");
    // What only Kafka has is walked with Kafka's worker.
    let walks = rows.iter().filter(|row| row.name != "open transaction at Kafka").map(|row| Box::pin(row.walk()));
    tokio::time::timeout(Duration::from_secs(500), join_all(walks)).await.expect("every row is seen in time");
}
