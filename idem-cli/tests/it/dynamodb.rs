//! The commands on DynamoDB, at `IDEM_DYNAMODB_URL`, as `./servers url dynamodb` prints it. What they did is read back from the table.

use std::sync::{Arc, Mutex};

use idem_core::{CancellationToken, DedupConsumer, Effects, Worker};
use idem_dynamodb::{DynamoStore, Item, aws_sdk_dynamodb::Client};
use idem_testkit::memory::{Broker, Queue, QueueOptions};

use crate::{
    dynamodb_fixture::{client, number, string, unique, url},
    fixture::{Accepting, Answer, PATIENCE, PAYLOAD, command, message},
};

/// A name that no other test has, and the command on the table of that name.
struct Table {
    name: String,
    client: Client,
    queue: Queue,
    /// Messages that the handler refuses for good.
    refused: Arc<Mutex<Vec<String>>>,
}

impl Table {
    fn new() -> Self {
        let queue = Broker::new().create("orders", QueueOptions::default()).unwrap();
        Self { name: unique("cli"), client: client(&url()), queue, refused: Arc::default() }
    }

    /// One that is there.
    fn made() -> Self {
        let table = Self::new();
        table.idem("migrate up").ok();
        table
    }

    /// The command with these arguments, which hold no blanks.
    fn idem(&self, arguments: &str) -> Answer {
        let database = format!("dynamodb:{}?endpoint={}&region=eu-central-1", self.name, url());
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("DATABASE_URL", &database),
            ("IDEM_OPERATOR", "ada"),
        ];
        command(&variables, &arguments.split_whitespace().collect::<Vec<_>>())
    }

    /// Has a worker take these messages, and what is due, until this is done.
    async fn work(&self, keys: &[&str], until: impl Future<Output = ()>) {
        let store = DynamoStore::of(self.client.clone(), &self.name).build().unwrap();
        let consumer = DedupConsumer::builder(store, "orders").effects(Effects::InTransaction);
        let consumer = consumer.handler(Accepting(Arc::clone(&self.refused))).version("1.2.3").build().unwrap();
        for key in keys {
            self.queue.publish(message(key)).unwrap();
        }
        let worker = Worker::builder(consumer, self.queue.source()).cleanup(None).breaker(false).build().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
        tokio::time::timeout(PATIENCE, until).await.unwrap();
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    async fn deliver(&self, keys: &[&str]) {
        self.work(keys, self.queue.drained()).await;
    }

    /// The items whose partition begins so, in their order.
    async fn items(&self, prefix: &str) -> Vec<Item> {
        let scan = self.client.scan().table_name(&self.name).consistent_read(true).send().await.unwrap();
        assert!(scan.last_evaluated_key.is_none(), "one page holds what a test writes");
        let mut items = scan.items.unwrap_or_default();
        items.retain(|item| string(item, "pk").starts_with(prefix));
        items.sort_by_key(|item| (string(item, "pk").to_owned(), string(item, "sk").to_owned()));
        items
    }

    /// What there is of keys whose operation is done.
    async fn records(&self) -> Vec<Item> {
        let mut items = self.items("k#").await;
        items.retain(|item| string(item, "st") == "C");
        items
    }

    /// The record of the only key, or what is left of it.
    async fn record(&self) -> Item {
        let mut items = self.items("k#").await;
        items.retain(|item| string(item, "sk") == "-");
        let [record] = <[Item; 1]>::try_from(items).unwrap();
        record
    }

    /// The operator's lines of the audit trail: who did what to which key.
    async fn trail(&self) -> Vec<String> {
        let line = |item: &Item| ["who", "action", "key", "details"].map(|name| string(item, name)).join(" ");
        let mut lines: Vec<_> = self.items("audit#orders").await.iter().map(line).collect();
        lines.retain(|line| line.starts_with("ada "));
        lines
    }

    /// The numbers of the dead letters in the table, the first one first.
    async fn letters(&self) -> Vec<i64> {
        self.items("dead#orders").await.iter().map(|item| number(item, "id")).collect()
    }

    async fn drop(self) {
        self.client.delete_table().table_name(&self.name).send().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_the_table_is_made_and_examined() {
    let table = Table::new();
    let missing = table.idem("doctor");
    assert_eq!(missing.status, 1, "{missing:?}");
    assert!(missing.out.contains("there is no table"), "{missing:?}");
    table.idem("--schema other migrate up").refused("--schema is for SQL databases");
    for _ in 0..2 {
        assert!(table.idem("migrate up").ok().contains("is up to date"));
    }
    let made = table.client.describe_time_to_live().table_name(&table.name).send().await.unwrap();
    assert_eq!(made.time_to_live_description.unwrap().attribute_name.as_deref(), Some("ttl"));
    assert!(table.idem("doctor").ok().contains("All is well"));
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_a_key_is_shown_and_forgotten() {
    let table = Table::made();
    table.deliver(&["order-1", "order-1"]).await;
    let shown = table.idem("show order-1 --json").json();
    assert_eq!((&shown["records"][0]["consumer"], &shown["records"][0]["run"]), (&"orders".into(), &1.into()));
    assert!(shown["messages"][0].as_str().unwrap().contains("skipped as a duplicate by orders"), "{shown}");
    assert!(table.idem("show order-9").ok().contains("there is no record of this key"));
    table.idem("show order-1 --consumer mistyped").refused("there is no consumer \"mistyped\"");

    let forget = |more: &str| table.idem(&format!("forget order-1 order-9 --consumer orders --reason ticket-7 {more}"));
    assert!(forget("--dry-run").ok().contains("1 record of orders would be forgotten"));
    forget("").refused("give --yes");
    table.idem("forget order-9 --consumer orders --reason x --yes").refused("nothing was forgotten");
    assert_eq!(string(&table.record().await, "st"), "C");
    assert!(forget("--yes").ok().contains("1 forgotten"));
    let record = table.record().await;
    assert_eq!((string(&record, "st"), record.contains_key("h"), record.contains_key("key")), ("A", false, false));
    assert_eq!(number(&table.items("control#").await[0], "epoch"), 1, "caches of running workers are emptied");
    let handled = table.items("runs#orders").await.len();
    table.deliver(&["order-1"]).await;
    let record = table.record().await;
    assert_eq!((string(&record, "st"), number(&record, "by")), ("C", handled as i64 + 1), "it took effect again");
    let id = |key: &str| format!("key id {}", idem_sql::key_id(key));
    assert_eq!(
        table.trail().await,
        [
            format!("ada read-key order-1 {}", id("order-1")),
            format!("ada read-key  {}", id("order-9")),
            "ada forget order-1 ticket-7".to_owned(),
        ]
    );
    assert!(table.idem("show order-1").ok().contains("ticket-7"));
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_an_erased_key_is_nowhere_and_stays_a_duplicate() {
    let table = Table::made();
    table.refused.lock().unwrap().push("order-1".to_owned());
    table.deliver(&["order-1"]).await;
    table.refused.lock().unwrap().clear();
    table.deliver(&["order-1"]).await;
    table.idem("show order-1").ok();
    let all = format!("{:?}", table.items("").await);
    assert!(all.contains("order-1") && table.items("deadpart#").await.len() == 1, "{all}");
    table.idem("erase order-1 --reason request-4711").refused("give --yes");
    assert!(table.idem("erase order-1 --reason request-4711 --yes").ok().contains("3 rows erased"));
    let all = format!("{:?}", table.items("").await);
    assert!(!all.contains("order-1") && table.items("deadpart#").await.is_empty(), "{all}");
    let record = table.record().await;
    table.deliver(&["order-1"]).await;
    assert_eq!(table.record().await, record, "a redelivery is still skipped");
    assert_eq!(table.idem("show order-1 --json").json()["records"][0]["erased"], true);
    let all = format!("{:?}", table.items("audit#").await);
    assert!(!all.contains("\"order-1\""), "what was erased does not come back because an operator asks for it: {all}");
    let id = table.letters().await[0];
    table.idem(&format!("dead-letters replay {id} --yes")).refused("cannot be replayed: its payload");
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_a_consumer_is_paused_and_resumed() {
    let table = Table::made();
    table.deliver(&["order-1"]).await;
    table.idem("pause mistyped --reason audit").refused("there is no consumer \"mistyped\"");
    table.idem("pause orders --reason audit").ok();
    let control = table.items("control#").await;
    assert_eq!((string(&control[0], "state"), string(&control[0], "by")), ("paused", "ada"));
    let listed = table.idem("consumers list --json").json();
    let row = &listed["consumers"][0];
    assert_eq!(
        (&row["consumer"], &row["state"], &row["reason"]),
        (&"orders".into(), &"paused".into(), &"audit".into())
    );
    let found = table.idem("doctor");
    assert!(found.status == 1 && found.out.contains("consumer orders is paused by ada: audit"), "{found:?}");
    let paused = async {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        assert_eq!(table.records().await.len(), 1, "a paused worker takes nothing");
        tokio::task::block_in_place(|| table.idem("consumers resume orders").ok());
        table.queue.drained().await;
    };
    table.work(&["order-2"], paused).await;
    assert_eq!(table.records().await.len(), 2);
    assert_eq!(string(&table.items("control#").await[0], "state"), "running");
    assert!(table.idem("doctor").ok().contains("All is well"));
    assert_eq!(table.trail().await, ["ada pause  audit", "ada resume  "]);
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_dead_letters_are_listed_replayed_and_dropped() {
    let table = Table::made();
    table.refused.lock().unwrap().extend(["order-1".to_owned(), "order-2".to_owned()]);
    table.deliver(&["order-1", "order-2", "order-3"]).await;
    let listed = table.idem("dead-letters list --consumer orders --reason permanent --json").json();
    let ids: Vec<_> = ["order-1", "order-2"]
        .map(|key| {
            listed["dead_letters"].as_array().unwrap().iter().find(|row| row["key"] == key).unwrap()["id"].clone()
        })
        .into();
    assert_eq!((table.letters().await.len(), &listed["dead_letters"][0]["attempts"]), (2, &1.into()), "{listed}");
    let (one, two) = (ids[0].as_i64().unwrap(), ids[1].as_i64().unwrap());
    let shown = table.idem(&format!("dead-letters show {one}")).ok();
    assert!(shown.contains("there is no such customer") && !shown.contains(PAYLOAD), "{shown}");
    let shown = table.idem(&format!("dead-letters show {one} --payload --json")).json();
    let content = &shown["payload"][0];
    assert_eq!(content["payload"], format!("{PAYLOAD} order-1"), "{shown}");
    assert_eq!(content["headers"][0], serde_json::json!(["idempotencykey", "order-1"]), "{shown}");
    table.idem("dead-letters show 99").refused("there is no dead letter 99");

    table.idem("dead-letters replay --yes").refused("say which");
    table.idem("dead-letters replay --consumer orders").refused("give --yes");
    assert!(table.idem("dead-letters replay --consumer orders --dry-run").ok().contains("2 would be replayed"));
    assert!(table.items("due#").await.is_empty());
    assert!(table.idem(&format!("dead-letters replay {one} --yes")).ok().contains("1 asked for"));
    assert_eq!(table.items("due#orders").await.len(), 1);
    table.idem(&format!("dead-letters replay {one} --yes")).refused("awaits a replay already");
    assert_eq!(table.idem(&format!("dead-letters show {one} --json")).json()["dead_letter"][0]["replay"], "awaited");
    table.refused.lock().unwrap().clear();
    let over = async {
        let waited = format!("dead-letters replay {two} --wait --yes");
        assert!(tokio::task::block_in_place(|| table.idem(&waited).ok()).contains("1 replayed in"));
        while !table.items("due#").await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    table.work(&[], over).await;
    assert_eq!(table.records().await.len(), 3, "both took effect");
    assert!(table.items("dead#orders").await.iter().all(|letter| string(letter, "replayed") == "processed"));
    assert_eq!(table.idem("dead-letters list --open --json").json()["dead_letters"], serde_json::json!([]));

    table.idem("dead-letters drop --because done --yes").refused("say which");
    assert!(table.idem(&format!("dead-letters drop {one} --because done --yes")).ok().contains("1 dropped"));
    assert_eq!((table.letters().await, table.items("deadpart#").await.len()), (vec![two], 1));
    let trail = table.trail().await;
    for (line, key, letter) in [
        ("read-dead-letter", "order-1", one),
        ("read-payload", "order-1", one),
        ("replay", "order-1", one),
        ("replay", "order-2", two),
        ("drop", "order-1", one),
    ] {
        let line = format!("ada {line} {key} dead letter {letter}");
        assert!(trail.iter().any(|of| of.starts_with(&line)), "{line}: {trail:?}");
    }
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_what_makes_no_sense_is_refused_by_name() {
    let table = Table::made();
    for refused in
        ["migrate status", "cleanup", "stats", "workers", "stuck", "waiting", "forgotten list", "outbox list"]
    {
        let name = refused.split_once(' ').map_or(refused, |(name, _)| name);
        table.idem(refused).refused(&format!("`idem {name}` in this form is not for DynamoDB"));
    }
    table.idem("dead-letters replay 1 --forget-first --yes").refused("`idem dead-letters replay` in this form");
    table.idem("consumers rename orders bills --yes").refused("`idem consumers` in this form");
    table.drop().await;
}
