//! `idem outbox relay`, from a plain outbox to a real RabbitMQ (`IDEM_AMQP_URL`, as `./servers url rabbitmq` prints it) and to an
//! endpoint over HTTP.

#[cfg(all(feature = "kafka", feature = "sqs"))]
mod brokers;
mod languages;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use idem_core::Event;
use idem_testkit::proxy::Proxy;
use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::FieldTable,
};
use serde_json::Value;
use sqlx::Connection as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStderr, Command},
};

use crate::{
    fixture::{Fixture, PATIENCE},
    receiver::{Answer, Receiver},
    unread::full_pipe,
};

const INVOICES: usize = 200;
const SECRETS: [&str; 2] = ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];

struct Queue {
    name: String,
    url: String,
    connection: Connection,
    channel: Channel,
}

impl Queue {
    async fn new(name: &str) -> Self {
        let url = std::env::var("IDEM_AMQP_URL");
        let url = url.unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:25673/%2f".to_owned());
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.into(), durable, FieldTable::default()).await.unwrap();
        Self { name: name.to_owned(), url, connection, channel }
    }

    async fn messages(&self) -> u32 {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.channel.queue_declare(self.name.as_str().into(), passive, FieldTable::default()).await;
        queue.unwrap().message_count()
    }

    /// The ids of the messages, whose two places agree, and the payloads.
    async fn take(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        while let Some(got) =
            self.channel.basic_get(self.name.as_str().into(), BasicGetOptions { no_ack: true }).await.unwrap()
        {
            let properties = &got.delivery.properties;
            let id = properties.message_id().as_ref().unwrap().as_str().to_owned();
            let headers = properties.headers().as_ref().unwrap();
            let header = headers.inner().get("idempotencykey").unwrap().as_long_string().unwrap();
            assert_eq!(header.as_bytes(), id.as_bytes());
            all.push((id, String::from_utf8(got.delivery.data.clone()).unwrap()));
        }
        all
    }

    async fn remove(self) {
        self.channel.queue_delete(self.name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        self.connection.close(200, "done".into()).await.unwrap();
    }
}

fn relay(config: &Path, variables: &[(&str, &str)]) -> Child {
    let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
    idem.args(["outbox", "relay", "--config"]).arg(config).env_clear().envs(variables.iter().copied());
    idem.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

/// Stops it, and answers its summary and its log.
async fn ended(relay: Child) -> (Value, String) {
    let stop = format!("kill -TERM {}", relay.id().unwrap());
    assert!(Command::new("sh").args(["-c", &stop]).status().await.unwrap().success());
    let ended = tokio::time::timeout(PATIENCE, relay.wait_with_output()).await.unwrap().unwrap();
    let (out, log) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    assert!(ended.status.success(), "{log}");
    (serde_json::from_str(out.lines().last().unwrap()).unwrap(), log)
}

/// Writes an invoice, and an event of it for each of two destinations.
async fn issue(fixture: &Fixture, queue: &str) {
    let outbox = fixture.store.plain_outbox("billing", [queue, "partner"]).await.unwrap();
    let mut connection = fixture.admin.acquire().await.unwrap();
    for is_issued in [false, true] {
        let mut transaction = connection.begin().await.unwrap();
        for number in 0..INVOICES {
            // Under other keys, so that one of them would be seen.
            let key = if is_issued { format!("invoice-{number}") } else { format!("withdrawn-{number}") };
            for destination in [queue, "partner"] {
                let event = Event::to(destination).event_type("InvoiceIssued").json(&number).unwrap();
                outbox.publish(&mut transaction, &key, event).await.unwrap();
            }
        }
        if is_issued {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }
}

/// O2, O19: events of a plain outbox are brought to a queue and to an endpoint by a relay of its own, and by the next one after a
/// kill; under the keys that their writer gave them, and signed.
#[tokio::test(flavor = "multi_thread")]
async fn o2_o19_a_relay_alone_brings_events_to_a_queue_and_to_an_endpoint() {
    let fixture = Fixture::new().await;
    let queue = Queue::new(&fixture.schema).await;
    // It wants the first try once more.
    let partner = Receiver::new([Answer::With(503, "retry-after", "1".to_owned())]).await;
    issue(&fixture, &queue.name).await;
    let folder = std::env::temp_dir().join(format!("idem-relay-{}", fixture.schema));
    std::fs::create_dir(&folder).unwrap();
    let secret = folder.join("secret");
    std::fs::write(&secret, format!("{}\n", SECRETS[0])).unwrap();
    let config = folder.join("relay.toml");
    let text = format!(
        "database-url = {:?}\nschema = {:?}\n\
         [amqp]\nurl = {:?}\n\
         [[destination]]\nname = {:?}\nevent-source = \"urn:example:bank\"\n\
         [[destination]]\nname = \"partner\"\nevent-format = \"binary\"\nevent-source = \"urn:example:web\"\n\
         [destination.webhook]\nendpoint = {:?}\nsecrets = [\"@{}\", {:?}]\nprivate-networks = true\nplaintext = true\n",
        fixture.url,
        fixture.schema,
        queue.url,
        queue.name,
        partner.url("/hooks"),
        secret.display(),
        SECRETS[1],
    );
    std::fs::write(&config, text).unwrap();

    let mut killed = relay(&config, &[]);
    let begun = async {
        while queue.messages().await == 0 || partner.posts().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    killed.kill().await.unwrap();
    let relay = relay(&config, &[]);
    fixture.until("SELECT count(*) FROM outbox", "0").await;
    let (summary, log) = ended(relay).await;
    assert!(summary["published"].as_u64().unwrap() > 0, "{summary}");
    assert!(SECRETS.iter().all(|secret| !log.contains(secret)) && !log.contains("/hooks"), "{log}");

    let keys: BTreeSet<String> = (0..INVOICES).map(|number| format!("invoice-{number}")).collect();
    let came = queue.take().await;
    assert_eq!(came.iter().map(|(id, _)| id.clone()).collect::<BTreeSet<_>>(), keys);
    assert!(came.iter().all(|(id, payload)| *id == format!("invoice-{payload}")), "{came:?}");
    let posts = partner.posts();
    assert!(posts.len() > INVOICES, "the first was to come again");
    let mut posted = BTreeSet::new();
    for post in &posts {
        for secret in SECRETS {
            standardwebhooks::Webhook::new(secret).unwrap().verify(&post.body, &post.headers).unwrap();
        }
        // As an event of CloudEvents too.
        assert_eq!(post.headers["ce-type"], "InvoiceIssued");
        assert_eq!(post.headers["ce-source"], "urn:example:web");
        let id = post.headers["webhook-id"].to_str().unwrap().to_owned();
        assert_eq!(id, format!("invoice-{}", String::from_utf8_lossy(&post.body)));
        posted.insert(id);
    }
    assert_eq!(posted, keys);
    std::fs::remove_dir_all(&folder).unwrap();
    queue.remove().await;
    fixture.drop().await;
}

/// A relay of one endpoint, which nobody posts to, from this database and schema.
struct Alone {
    folder: PathBuf,
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    admin: Option<String>,
}

impl Alone {
    fn new(url: &str, schema: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("idem-relay-{schema}-{:08x}", fastrand::u32(..)));
        std::fs::create_dir(&folder).unwrap();
        let config = folder.join("relay.toml");
        let text = format!(
            "database-url = {url:?}\nschema = {schema:?}\nadmin = \"0\"\n[[destination]]\nname = \"partner\"\n\
             [destination.webhook]\nendpoint = \"https://partner.example/\"\nsecrets = [{:?}]\n",
            SECRETS[0]
        );
        std::fs::write(&config, text).unwrap();
        let mut child = relay(&config, &[]);
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { folder, child, log, admin: None }
    }

    /// The next line of the log with this text.
    async fn line(&mut self, text: &str) -> String {
        let mut before = String::new();
        let looking = async {
            loop {
                let line = self.log.next_line().await.unwrap().unwrap_or_else(|| panic!("no {text:?} in\n{before}"));
                if let Some((_, address)) = line.split_once("address=") {
                    self.admin = Some(address.split_whitespace().next().unwrap().to_owned());
                }
                if line.contains(text) {
                    return line;
                }
                before = format!("{before}{line}\n");
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap()
    }

    /// Asks `/readyz` until it answers with this status, and what it says of the database.
    async fn is_ready(&self, status: u16, database: &str) {
        let address = self.admin.as_deref().unwrap();
        let asking = async {
            loop {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                let says = format!("\"database\":\"{database}\"");
                if answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(&says) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap();
    }

    async fn stop(&self) {
        let stop = format!("kill -TERM {}", self.child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &stop]).status().await.unwrap().success());
    }

    /// Its exit status and the rest of its log.
    async fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        let reading = async {
            while let Some(line) = self.log.next_line().await.unwrap() {
                rest = format!("{rest}{line}\n");
            }
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(PATIENCE, reading).await.expect("it ends");
        std::fs::remove_dir_all(&self.folder).unwrap();
        (status.code(), rest)
    }
}

/// O64: where a worker refuses to start, a relay does, with the same line; it did not wait there for ever.
#[tokio::test(flavor = "multi_thread")]
async fn o64_a_relay_alone_is_refused_where_a_worker_is() {
    let empty = Fixture::empty().await;
    let fixture = Fixture::new().await;
    let stranger = format!("{}_stranger", fixture.schema);
    fixture.run(&format!("CREATE ROLE {stranger} LOGIN")).await;
    let nobody = fixture.url.replace("idem:", "no_such_login:");
    let elsewhere = format!("{}_no_database", fixture.url);
    let without_rights = fixture.url.replace("idem:", &format!("{stranger}:"));
    let places = [
        (&elsewhere, &fixture.schema, "does not exist"),
        (&nobody, &fixture.schema, "knows no such login"),
        (&fixture.url, &empty.schema, "idem migrate"),
        (&without_rights, &fixture.schema, "lacks USAGE on schema"),
    ];
    for (url, schema, why) in places {
        let (status, log) = Alone::new(url, schema).ended().await;
        assert!(status == Some(2) && log.contains(why), "{status:?}, not {why:?}:\n{log}");
    }
    fixture.run(&format!("DROP ROLE {stranger}")).await;
    fixture.drop().await;
}

/// O64: a relay whose database cannot be reached says why, waits, and is not ready; no more than one that loses it later.
#[tokio::test(flavor = "multi_thread")]
async fn o64_a_relay_without_its_database_says_why_and_is_not_ready() {
    let fixture = Fixture::new().await;
    let (login, server) = fixture.url.split_once('@').unwrap();
    let (server, database) = server.split_once('/').unwrap();
    let proxy = Proxy::to(server).await.unwrap();
    proxy.refuse(true);
    let url = format!("{login}@{}/{database}", proxy.address());
    let mut relay = Alone::new(&url, &fixture.schema);
    let line = relay.line("the database cannot be reached yet").await;
    assert!(line.contains("error=") && !line.contains("canary"), "{line}");
    relay.is_ready(503, "down").await;
    proxy.refuse(false);
    relay.is_ready(200, "up").await;
    proxy.refuse(true);
    proxy.cut().await;
    relay.is_ready(503, "down").await;
    proxy.refuse(false);
    relay.is_ready(200, "up").await;
    relay.stop().await;
    let (status, log) = relay.ended().await;
    assert_eq!(status, Some(0), "{log}");
    fixture.drop().await;
}

/// J93: a relay alone whose log and summary nothing reads brings its events, and ends at a signal in time.
#[tokio::test(flavor = "multi_thread")]
async fn j93_a_relay_alone_whose_log_nothing_reads_relays_and_ends() {
    let fixture = Fixture::new().await;
    let queue = Queue::new(&fixture.schema).await;
    let outbox = fixture.store.plain_outbox("billing", [queue.name.as_str()]).await.unwrap();
    let mut connection = fixture.admin.acquire().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    for number in 0..INVOICES {
        let event = Event::to(queue.name.as_str()).event_type("InvoiceIssued").json(&number).unwrap();
        outbox.publish(&mut transaction, &format!("invoice-{number}"), event).await.unwrap();
    }
    transaction.commit().await.unwrap();
    drop(connection);
    let config = std::env::temp_dir().join(format!("idem-relay-{}.toml", fixture.schema));
    let text = format!(
        "database-url = {:?}\nschema = {:?}\n[amqp]\nurl = {:?}\n[[destination]]\nname = {:?}\n",
        fixture.url, fixture.schema, queue.url, queue.name
    );
    std::fs::write(&config, text).unwrap();
    let ((_out, out), (_log, log)) = (full_pipe(), full_pipe());
    let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
    idem.args(["outbox", "relay", "--config"]).arg(&config).env_clear().env("RUST_LOG", "trace");
    let mut relay = idem.stdin(Stdio::null()).stdout(out).stderr(log).kill_on_drop(true).spawn().unwrap();
    fixture.until("SELECT count(*) FROM outbox", "0").await;
    assert_eq!(queue.take().await.len(), INVOICES);
    let stop = format!("kill -TERM {}", relay.id().unwrap());
    assert!(Command::new("sh").args(["-c", &stop]).status().await.unwrap().success());
    let status = tokio::time::timeout(PATIENCE, relay.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(0));
    std::fs::remove_file(&config).unwrap();
    queue.remove().await;
    fixture.drop().await;
}
