//! Events of programs in Python and Go, as the pages have them, to a real RabbitMQ.

use std::path::Path;

use idem_core::Event;
use idem_sql::{SchemaName, postgres_roles};
use lapin::options::BasicGetOptions;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tokio::process::Command;

use super::{Queue, ended, relay};
use crate::fixture::Fixture;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The page's program in this language, on this schema and to this queue.
fn program(language: &str, fixture: &Fixture, queue: &str) -> String {
    let page = if language == "go" { "internals/publish" } else { "guide/other-languages" };
    let page = std::fs::read_to_string(format!("{ROOT}/docs/{page}.md")).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    let (program, _) = rest.split_once("\n```").unwrap();
    program
        .replace("idem.publish('invoices'", &format!("{}.publish('{queue}'", fixture.schema))
        .replace("INSERT INTO invoices", &format!("INSERT INTO {}.invoices", fixture.schema))
}

async fn run(mut command: Command, url: &str) {
    let output = command.env("DATABASE_URL", url).kill_on_drop(true).output().await;
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}; ./test tools installs what it needs"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn run_python(program: &str, url: &str) {
    let mut python = Command::new(format!("{ROOT}/target/cloudevents/bin/python"));
    python.args(["-c", program]);
    run(python, url).await;
}

/// Whether a toolchain of Go is there, which no test installs.
async fn has_go() -> bool {
    Command::new("go").arg("version").output().await.is_ok_and(|output| output.status.success())
}

async fn run_go(program: &str, url: &str, folder: &Path) {
    std::fs::write(folder.join("main.go"), program).unwrap();
    std::fs::write(folder.join("go.mod"), "module invoices\n\ngo 1.23.0\n\nrequire github.com/jackc/pgx/v5 v5.7.6\n")
        .unwrap();
    for arguments in [["mod", "tidy"], ["run", "."]] {
        let mut go = Command::new("go");
        go.args(arguments).current_dir(folder);
        run(go, url).await;
    }
}

/// All that a receiver sees, but the time and what RabbitMQ says of the delivery, each message with the key as its last part.
async fn received(queue: &Queue) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    let get = || queue.channel.basic_get(queue.name.as_str().into(), BasicGetOptions { no_ack: true });
    while let Some(got) = get().await.unwrap() {
        let properties = &got.delivery.properties;
        let key = properties.message_id().as_ref().unwrap().as_str().to_owned();
        let headers: serde_json::Map<String, Value> = properties
            .headers()
            .as_ref()
            .unwrap()
            .inner()
            .iter()
            .filter(|(name, _)| name.as_str() != "cloudEvents_time")
            .map(|(name, value)| {
                let text = value.as_long_string().unwrap_or_else(|| panic!("{name}: {value:?}"));
                (name.as_str().to_owned(), String::from_utf8_lossy(text.as_bytes()).replace(&key, "KEY").into())
            })
            .collect();
        let kind = properties.content_type().as_ref().map(|kind| kind.as_str().to_owned());
        all.push((
            key,
            json!({"headers": headers, "content type": kind, "payload": String::from_utf8_lossy(&got.delivery.data)}),
        ));
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// O118: programs in Python and Go publish by the schema's function, and a relay sends their events as it sends one of a plain outbox
/// in Rust: under the call's key, with the same headers and content.
#[tokio::test(flavor = "multi_thread")]
async fn o118_programs_in_other_languages_publish_as_one_in_rust() {
    let fixture = Fixture::new().await;
    let queue = Queue::new(&fixture.schema).await;
    let roles = postgres_roles(&SchemaName::new(&fixture.schema).unwrap());
    let (schema, login) = (&fixture.schema, format!("{}_billing", fixture.schema));
    for statement in [
        // Roles are the cluster's, and two scripts at once would meet on the same rows of the catalogue.
        format!("BEGIN; SELECT pg_advisory_xact_lock(4711); {roles}; COMMIT"),
        format!(
            "CREATE ROLE {login} LOGIN IN ROLE idem_writer; CREATE TABLE {schema}.invoices (id text PRIMARY KEY, cents int);
                GRANT INSERT ON {schema}.invoices TO {login}; SELECT {schema}.declare_destination('{}')",
            queue.name
        ),
    ] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&fixture.admin).await.unwrap();
    }
    let url = fixture.url.replace("idem:", &format!("{login}:"));
    assert_ne!(url, fixture.url);
    let mut keys = vec!["invoice-python-1", "invoice-rust-1"];
    run_python(&program("python", &fixture, &queue.name), &url).await;
    if has_go().await {
        let folder = std::env::temp_dir().join(format!("idem-go-{schema}"));
        std::fs::create_dir(&folder).unwrap();
        run_go(&program("go", &fixture, &queue.name), &url, &folder).await;
        std::fs::remove_dir_all(&folder).unwrap();
        keys.insert(0, "invoice-go-1");
    }
    // The writer is the login, and a program in Rust may have its name.
    let outbox = fixture.store.plain_outbox(&login, [queue.name.as_str()]).await.unwrap();
    let mut connection = fixture.admin.acquire().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let event = Event::to(&queue.name).event_type("InvoiceIssued").content_type("application/json");
    let event = event.ordering_key("customer-7").body(r#"{"cents": 1177}"#);
    outbox.publish(&mut transaction, "invoice-rust-1", event).await.unwrap();
    transaction.commit().await.unwrap();
    drop(connection);

    let config = std::env::temp_dir().join(format!("idem-relay-{schema}.toml"));
    let text = format!(
        "database-url = {:?}\nschema = {schema:?}\n[amqp]\nurl = {:?}\n[[destination]]\nname = {:?}\n",
        fixture.url, queue.url, queue.name
    );
    std::fs::write(&config, text).unwrap();
    let relay = relay(&config, &[]);
    fixture.until("SELECT count(*) FROM outbox", "0").await;
    let (summary, log) = ended(relay).await;
    assert_eq!(summary["published"], keys.len(), "{log}");
    let came = received(&queue).await;
    assert_eq!(came.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), keys);
    let (_, rust) = came.last().unwrap();
    assert_eq!(rust["headers"]["idempotencykey"], "KEY");
    assert_eq!(rust["headers"]["cloudEvents_source"], format!("/idem/{login}"));
    for (key, message) in &came {
        let mut message = message.clone();
        // Python and Rust have a blank there.
        message["payload"] = message["payload"].as_str().unwrap().replace(": ", ":").into();
        let mut rust = rust.clone();
        rust["payload"] = r#"{"cents":1177}"#.into();
        assert_eq!(message, rust, "{key}");
    }
    std::fs::remove_file(&config).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP OWNED BY {login}; DROP ROLE {login}")))
        .execute(&fixture.admin)
        .await
        .unwrap();
    queue.remove().await;
    fixture.drop().await;
}
