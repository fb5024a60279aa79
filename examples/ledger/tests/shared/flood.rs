//! Everything at once: purchases, their copies, other payloads under their keys, and junk of every kind, while workers are
//! killed, frozen, stopped and paused, and the topic or queue is created again. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sqlx::{query, query_as};

use super::{
    database::{Database, seed, until},
    purchase::Purchase,
    worker::Worker,
};

/// What a producer sends: a text, and what its ordering or partition goes by.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) group: String,
    pub(crate) text: String,
}

/// A broker's topic or queue with the workers on it.
pub(crate) trait Flooded {
    fn database(&self) -> &Database;

    fn start(&self) -> Worker;

    async fn put(&self, inputs: Vec<Input>);

    /// Deletes the topic or queue, which nobody consumes, and creates it again under its name.
    async fn create_again(&mut self);
}

/// J26: two lives of a topic or queue with so many inputs each. At the end each input is in the ledger, or whole in the dead
/// letters, and nothing else is in either.
pub(crate) async fn flood(stage: &mut impl Flooded, inputs: i64) {
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut sent = Sent::default();
    for life in 0..2 {
        if life > 0 {
            stage.create_again().await;
        }
        let mut workers = vec![stage.start(), stage.start()];
        for round in 0..ROUNDS {
            let first = (life * ROUNDS + round) * inputs / ROUNDS;
            let new = draw(&mut rng, first..first + inputs / ROUNDS);
            let before = sent.found(stage.database()).await;
            sent.0.extend(new.iter().map(|input| input.text.clone()));
            stage.put(new).await;
            let waits = async || until("some of a round", async || sent.found(stage.database()).await > before).await;
            waits().await;
            workers = fault(&mut rng, &*stage, workers).await;
        }
        until("all inputs", async || sent.found(stage.database()).await == sent.0.len()).await;
        for worker in workers {
            let ended = worker.stop().await;
            assert!(ended.status.success(), "{}", ended.log);
        }
    }
    sent.check(stage.database()).await;
}

const ROUNDS: i64 = 5;

/// Something happens to the first of two workers.
async fn fault(rng: &mut fastrand::Rng, stage: &impl Flooded, mut workers: Vec<Worker>) -> Vec<Worker> {
    let first = workers.remove(0);
    match rng.u8(..4) {
        0 => first.kill().await,
        1 => drop(first.stop().await),
        2 => {
            first.signal("STOP").await;
            workers.push(stage.start());
            first.signal("CONT").await;
            drop(first.stop().await);
            return workers;
        }
        _ => {
            pause(stage.database(), "paused").await;
            until("the pause", async || {
                let log = first.logged();
                log.lines().rfind(|line| line.contains("control changed")).is_some_and(|line| line.contains("aused"))
            })
            .await;
            pause(stage.database(), "running").await;
            workers.push(first);
            return workers;
        }
    }
    workers.push(stage.start());
    workers
}

async fn pause(database: &Database, state: &str) {
    let text = "INSERT INTO idem.controls (consumer, state) SELECT id, $1 FROM idem.consumers
         ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, epoch = controls.epoch + 1";
    query(text).bind(state).execute(database.pool()).await.expect("a control");
}

/// The inputs of these numbers, in any order.
fn draw(rng: &mut fastrand::Rng, numbers: std::ops::Range<i64>) -> Vec<Input> {
    let mut inputs = Vec::new();
    for number in numbers {
        let purchase = Purchase::number(number);
        let group = purchase.customer.clone();
        let mut put = |text: String| inputs.push(Input { group: group.clone(), text });
        match rng.u8(..20) {
            0..12 => put(purchase.json()),
            12..14 => (0..rng.u8(2..5)).for_each(|_| put(purchase.json())),
            14 => {
                put(purchase.json());
                put(Purchase { cents: number + 1_000_000, ..purchase }.json());
            }
            15 => put(json!({ "idempotencykey": format!("odd-{number}"), "customer": number }).to_string()),
            _ => put(junk(rng, number)),
        }
    }
    rng.shuffle(&mut inputs);
    inputs
}

/// What no handler can make sense of, each time another one.
fn junk(rng: &mut fastrand::Rng, number: i64) -> String {
    let key = |key: &str| json!({ "idempotencykey": key, "number": number }).to_string();
    match rng.u8(..9) {
        0 => format!("no JSON, number {number}"),
        1 => json!({ "customer": "00001", "number": number }).to_string(),
        2 => key(""),
        3 => key(&"k".repeat(300)),
        4 => key(&format!("line\nbreak {number}")),
        5 => format!(r#"{{"idempotencykey":"a","idempotencykey":"b-{number}"}}"#),
        6 => format!("{}{number}{}", "[".repeat(300), "]".repeat(300)),
        7 => format!("[{number}]"),
        _ => format!("{{\"x\":\"{}\", \"number\": {number}", "y".repeat(rng.usize(..40_000))),
    }
}

/// The texts of all that was sent.
#[derive(Default)]
struct Sent(BTreeSet<String>);

/// Keys with the customers and cents of their rows in the ledger, and the payloads of dead letters with their reasons.
struct Kept {
    ledger: BTreeMap<String, Vec<(String, i64)>>,
    dead: BTreeMap<String, BTreeSet<String>>,
}

impl Kept {
    async fn read(database: &Database) -> sqlx::Result<Self> {
        let mut kept = Self { ledger: BTreeMap::new(), dead: BTreeMap::new() };
        let rows =
            query_as("SELECT idempotency_key, customer, cents FROM purchases").fetch_all(database.pool()).await?;
        for (key, customer, cents) in rows {
            kept.ledger.entry(key).or_default().push((customer, cents));
        }
        let rows = "SELECT coalesce(convert_from(payload, 'UTF8'), ''), reason FROM idem.dead_letters";
        for (payload, reason) in query_as::<_, (String, String)>(rows).fetch_all(database.pool()).await? {
            kept.dead.entry(payload).or_default().insert(reason);
        }
        Ok(kept)
    }

    fn has_in_ledger(&self, text: &str) -> bool {
        let Ok(sent) = serde_json::from_str::<serde_json::Value>(text) else { return false };
        let (Some(key), Some(customer)) = (sent["idempotencykey"].as_str(), sent["customer"].as_str()) else {
            return false;
        };
        let row = (customer.to_owned(), sent["cents"].as_i64().unwrap_or(-1));
        self.ledger.get(key).is_some_and(|rows| rows.contains(&row))
    }
}

impl Sent {
    /// How many of them are in the ledger or in the dead letters.
    async fn found(&self, database: &Database) -> usize {
        // The tables are there once a worker has started.
        let Ok(kept) = Kept::read(database).await else { return 0 };
        self.0.iter().filter(|text| kept.has_in_ledger(text) || kept.dead.contains_key(*text)).count()
    }

    async fn check(&self, database: &Database) {
        let kept = Kept::read(database).await.expect("the ledger and the dead letters");
        for (key, rows) in &kept.ledger {
            assert!(rows.len() == 1, "{key} took effect {} times: {rows:?}", rows.len());
        }
        for (text, reasons) in &kept.dead {
            assert!(self.0.contains(text), "nobody sent {text:?}, which is set aside as {reasons:?}");
        }
        let good = |text: &&String| text.contains("\"cents\"");
        for text in self.0.iter().filter(good) {
            let (in_ledger, reasons) = (kept.has_in_ledger(text), kept.dead.get(text));
            match reasons {
                None => assert!(in_ledger, "{text} is nowhere"),
                // One payload of a key takes effect, and another is a conflict.
                Some(reasons) => {
                    assert!(!in_ledger, "{text} took effect, and is set aside as {reasons:?}");
                    assert_eq!(reasons.iter().collect::<Vec<_>>(), ["conflict"], "{text}");
                }
            }
        }
        let (rows, dead) = (kept.ledger.len(), kept.dead.len());
        println!("{} inputs: {rows} in the ledger, {dead} set aside", self.0.len());
    }
}
