//! Everything at once: purchases, their copies, other payloads under their keys, and anything else that a broker accepts,
//! while workers are killed, stopped, frozen and paused and hold what they cannot keep, and the topic or queue is created
//! again. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value as Json;
use sqlx::{query, query_as, query_scalar};
use tokio::time::timeout;

use super::{
    database::{Database, until},
    input::{Input, KEY, PAYLOAD_MAX, Value, draw},
    worker::Worker,
};

/// A broker's topic or queue with the workers on it.
pub(crate) trait Flooded {
    fn database(&self) -> &Database;

    fn start(&self, more: &[&str]) -> Worker;

    /// The flag by which workers publish dead letters, and where to.
    fn aside(&self) -> [String; 2];

    /// The part of an input that the broker carries, if it takes it at all.
    fn carried(&self, input: Input) -> Option<Input>;

    /// Whether idem can read the headers. Otherwise it keeps them as bytes, in one header.
    fn is_readable(&self, _input: &Input) -> bool {
        true
    }

    async fn put(&self, inputs: &[Input]);

    /// Everything that was published.
    async fn published(&self) -> Vec<Published>;

    /// Waits until a pause is longer than what makes the source give its deliveries back, or the broker take them.
    /// `before` is what the worker had logged when it began.
    async fn outlast_pause(&self, worker: &Worker, before: &str);

    /// Deletes the topic or queue, which has no consumers, and creates it again under its name.
    async fn create_again(&mut self);
}

/// A published dead letter.
pub(crate) struct Published {
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Value)>,
    pub(crate) key: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    Freeze,
    ShortPause,
    LongPause,
    Hold,
}

impl Fault {
    const ALL: [Self; 6] = [Self::Kill, Self::Stop, Self::Freeze, Self::ShortPause, Self::LongPause, Self::Hold];
}

/// How long all inputs may take to come after the last fault of a life.
const PATIENCE: Duration = Duration::from_secs(290);

/// How many faults are in each life of the topic or queue.
const EACH: usize = 3;

/// J26: two lives of a topic or queue with so many inputs in all, and each fault once, in any order. At the end each input is
/// in the ledger, or whole in the dead letters, and nothing else is in either. In the life without a hold dead letters are
/// published too, and there they are whole as well.
pub(crate) async fn flood(fixture: &mut impl Flooded, inputs: i64) {
    let mut rng = fastrand::Rng::with_seed(idem_testkit::seed());
    let mut faults = Fault::ALL;
    rng.shuffle(&mut faults);
    println!("faults: {faults:?}");
    let part = inputs / 2 / 6;
    let mut numbers = (0..).map(|part_number| part_number * part..(part_number + 1) * part);
    let (mut sent, mut published) = (Vec::new(), Vec::new());
    for (life, faults) in faults.chunks(EACH).enumerate() {
        if life > 0 {
            fixture.create_again().await;
        }
        let publishes = !faults.contains(&Fault::Hold);
        let (flags, mut now) = (if publishes { fixture.aside().to_vec() } else { Vec::new() }, Vec::new());
        let life = Life { fixture: &*fixture, flags };
        let mut workers = vec![life.start(&[]), life.start(&[])];
        for fault in faults {
            let mut half = || -> Vec<Input> {
                let drawn = draw(&mut rng, numbers.next().expect("they are endless"));
                drawn.into_iter().filter_map(|input| fixture.carried(input)).collect()
            };
            let halves = [half(), half()];
            now.extend(halves.iter().flatten().cloned());
            workers = life.meet(*fault, &halves, workers).await;
        }
        sent.extend(now.iter().cloned());
        life.until_all(&sent, publishes.then_some(&now)).await;
        for worker in workers {
            stop(worker).await;
        }
        if publishes {
            published = now;
        }
    }
    check(fixture, &sent).await;
    check_published(fixture, &published).await;
}

/// One life of a topic or queue.
struct Life<'s, S> {
    fixture: &'s S,
    flags: Vec<String>,
}

impl<S: Flooded> Life<'_, S> {
    fn start(&self, more: &[&str]) -> Worker {
        let payload_max = PAYLOAD_MAX.to_string();
        let own = ["--payload-max", &payload_max, "--attempts", "100", "--batch", "20"].into_iter();
        self.fixture
            .start(&own.chain(self.flags.iter().map(String::as_str)).chain(more.iter().copied()).collect::<Vec<_>>())
    }

    /// Sends the first half, and the second one while the fault lasts, of which the first of the workers has most.
    async fn meet(&self, fault: Fault, halves: &[Vec<Input>; 2], mut workers: Vec<Worker>) -> Vec<Worker> {
        let (fixture, database) = (self.fixture, self.fixture.database());
        self.put(&halves[0]).await;
        match fault {
            Fault::Kill => workers.remove(0).kill().await,
            Fault::Stop => stop(workers.remove(0)).await,
            Fault::Freeze => {
                let frozen = workers.remove(0);
                frozen.signal("STOP").await;
                workers.push(self.start(&[]));
                self.put(&halves[1]).await;
                frozen.signal("CONT").await;
                stop(frozen).await;
                return workers;
            }
            Fault::ShortPause | Fault::LongPause => {
                let before: Vec<String> = workers.iter().map(Worker::logged).collect();
                set_control(database, "paused").await;
                until_told(&workers, &before, "paused").await;
                fixture.put(&halves[1]).await;
                if fault == Fault::LongPause {
                    for (worker, before) in workers.iter().zip(&before) {
                        fixture.outlast_pause(worker, before).await;
                    }
                }
                set_control(database, "running").await;
                until_told(&workers, &before, "running").await;
                return workers;
            }
            Fault::Hold => {
                for worker in workers.drain(..) {
                    stop(worker).await;
                }
                // It has no room for dead letters, and no other worker is there to take the messages that it holds.
                let holds = self.start(&["--dead-letters-bytes-max", "1KiB"]);
                fixture.put(&halves[1]).await;
                let text = "a message cannot be kept and is held";
                until("a message that is held", async || holds.logged().contains(text)).await;
                stop(holds).await;
                return vec![self.start(&[]), self.start(&[])];
            }
        }
        fixture.put(&halves[1]).await;
        workers.push(self.start(&[]));
        workers
    }

    /// Sends these, and waits until some have come.
    async fn put(&self, inputs: &[Input]) {
        let database = self.fixture.database();
        let before = rows(database).await;
        self.fixture.put(inputs).await;
        until("some of a round", async || rows(database).await > before).await;
    }

    /// Waits until each of the inputs has its row, whole, and is published where it has to be.
    async fn until_all(&self, sent: &[Input], published: Option<&Vec<Input>>) {
        let database = self.fixture.database();
        let (takes_effect, set_aside) = expected(sent);
        let unpublished = published.map_or(0, |published| expected(published).1);
        let text = "SELECT count(*) FILTER (WHERE has_payload AND payload IS NULL), count(published_at) FROM idem.dead_letters";
        let all = until("all inputs", async || {
            let pool = database.pool();
            let (cut, published): (i64, i64) = query_as(text).fetch_one(pool).await.expect("the dead letters");
            rows(database).await >= (takes_effect, set_aside) && cut == 0 && published >= unpublished
        });
        if timeout(PATIENCE, all).await.is_err() {
            // This names what is missing.
            check(self.fixture, sent).await;
            panic!("not everything was published within {PATIENCE:?}");
        }
    }
}

async fn stop(worker: Worker) {
    let ended = worker.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
}

/// How many purchases take effect, and how many dead letters there have to be.
fn expected(sent: &[Input]) -> (i64, i64) {
    let purchases = sent.iter().filter_map(|input| input.purchase.as_ref());
    let payloads: BTreeSet<_> = purchases.map(|purchase| (&purchase.key, purchase.cents)).collect();
    let keys: BTreeSet<_> = payloads.iter().map(|(key, _)| key).collect();
    let bad = sent.iter().filter(|input| input.purchase.is_none()).count();
    let count = |count: usize| i64::try_from(count).expect("a count");
    (count(keys.len()), count(bad + payloads.len() - keys.len()))
}

/// How many purchases and dead letters there are.
async fn rows(database: &Database) -> (i64, i64) {
    let text = "SELECT count(*) FROM idem.dead_letters";
    (database.purchases().await, query_scalar(text).fetch_one(database.pool()).await.expect("the dead letters"))
}

async fn set_control(database: &Database, state: &str) {
    let text = "INSERT INTO idem.controls (consumer, state) SELECT id, $1 FROM idem.consumers
         ON CONFLICT (consumer) DO UPDATE SET state = excluded.state, epoch = controls.epoch + 1, at = now()";
    query(text).bind(state).execute(database.pool()).await.expect("a control");
}

/// Waits until the last that each worker has logged of its control since then is this state.
async fn until_told(workers: &[Worker], before: &[String], state: &str) {
    for (worker, before) in workers.iter().zip(before) {
        until("the control", async || {
            let log = worker.logged();
            let mut told = log[before.len()..].lines().filter(|line| line.contains("the consumer's control changed"));
            told.next_back().is_some_and(|line| line.contains(state))
        })
        .await;
    }
}

/// A row of dead letters.
#[derive(Debug)]
struct Row {
    headers: Vec<(String, Value)>,
    record_key: Option<Vec<u8>>,
    reason: String,
}

type RawRow = (Option<Vec<u8>>, bool, String, Option<Vec<u8>>, String);

/// All rows, by their payloads.
async fn dead_letters(database: &Database) -> BTreeMap<Option<Vec<u8>>, Vec<Row>> {
    let text = "SELECT payload, has_payload, coalesce(headers::text, '[]'), record_key, reason FROM idem.dead_letters";
    let read: Vec<RawRow> = query_as(text).fetch_all(database.pool()).await.expect("the dead letters");
    let mut rows: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for (payload, has_payload, headers, record_key, reason) in read {
        assert_eq!(payload.is_some(), has_payload, "a payload is missing");
        let headers: Vec<Json> = serde_json::from_str(&headers).expect("a list of headers");
        let row = Row { headers: headers.iter().map(header).collect(), record_key, reason };
        rows.entry(payload).or_default().push(row);
    }
    rows
}

/// Reads what stands in the column: a name, and nothing, a text, or bytes in hexadecimal.
fn header(pair: &Json) -> (String, Value) {
    let bytes = |digits: &str| -> Vec<u8> {
        let pairs = (0..digits.len()).step_by(2);
        pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits")).collect()
    };
    let value = match (&pair[1], pair[1]["hex"].as_str()) {
        (Json::Null, _) => Value::Absent,
        (Json::String(text), _) => Value::Bytes(text.clone().into_bytes()),
        (_, Some(digits)) => Value::Bytes(bytes(digits)),
        (other, None) => panic!("{other} is no header"),
    };
    (pair[0].as_str().expect("a name").to_owned(), value)
}

/// Everything that was sent is in the ledger once, or in a row of its own, and no row is left.
async fn check(fixture: &impl Flooded, sent: &[Input]) {
    let text = "SELECT idempotency_key, customer, cents FROM purchases";
    let bought: Vec<(String, String, i64)> =
        query_as(text).fetch_all(fixture.database().pool()).await.expect("the ledger");
    let ledger: BTreeSet<_> = bought.iter().cloned().collect();
    let keys: BTreeSet<_> = bought.iter().map(|(key, ..)| key).collect();
    assert_eq!(keys.len(), bought.len(), "a key took effect twice");
    let mut rows = dead_letters(fixture.database()).await;
    let (mut seen, mut matched) = (BTreeSet::new(), 0);
    for input in sent {
        if let Some(purchase) = &input.purchase {
            let row = (purchase.key.clone(), purchase.customer.clone(), purchase.cents);
            if !seen.insert(row.clone()) {
                continue;
            }
            if ledger.contains(&row) {
                matched += 1;
                continue;
            }
        }
        let same = rows.get_mut(&input.payload).unwrap_or_else(|| panic!("{} is nowhere", shown(input)));
        let place = same
            .iter()
            .position(|row| row.record_key == input.group && fits(fixture, input, &row.headers, Seen::InRow));
        let place = place.unwrap_or_else(|| panic!("{} is not whole in {same:?}", shown(input)));
        let row = same.swap_remove(place);
        // One payload of a key takes effect, and another is a conflict.
        assert_eq!(
            row.reason == "conflict",
            input.purchase.is_some(),
            "{} is set aside as {}",
            shown(input),
            row.reason
        );
    }
    rows.retain(|_, rows| !rows.is_empty());
    assert!(rows.is_empty(), "nobody sent these, or not as often: {rows:?}");
    assert_eq!(matched, bought.len(), "nobody sent some of the ledger");
    println!("{} inputs: {matched} in the ledger", sent.len());
}

/// Each dead letter of these inputs was published whole, and nothing else was. Crashes may publish one twice.
async fn check_published(fixture: &impl Flooded, sent: &[Input]) {
    let text = "SELECT idempotency_key, cents FROM purchases";
    let rows: Vec<(String, i64)> = query_as(text).fetch_all(fixture.database().pool()).await.expect("the ledger");
    let ledger: BTreeSet<_> = rows.into_iter().collect();
    let mut published: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for Published { payload, headers, key } in fixture.published().await {
        published.entry(payload).or_default().push((headers, key));
    }
    let fit = |input: &Input, (headers, key): &(Vec<(String, Value)>, Option<Vec<u8>>)| {
        *key == input.group && fits(fixture, input, headers, Seen::Published)
    };
    let mut bad: BTreeMap<_, Vec<&Input>> = BTreeMap::new();
    for input in sent {
        let bought = |purchase: &super::purchase::Purchase| ledger.contains(&(purchase.key.clone(), purchase.cents));
        if !input.purchase.as_ref().is_some_and(bought) {
            bad.entry(&input.payload).or_default().push(input);
        }
    }
    for (payload, inputs) in &bad {
        let same = published.get(*payload).map(Vec::as_slice).unwrap_or_default();
        for input in inputs {
            assert!(same.iter().any(|letter| fit(input, letter)), "{} is not whole in {same:?}", shown(input));
        }
    }
    for (payload, letters) in &published {
        let inputs = bad.get(payload).map(Vec::as_slice).unwrap_or_default();
        for letter in letters {
            assert!(inputs.iter().any(|input| fit(input, letter)), "nobody sent what was published: {letter:?}");
        }
    }
    println!("{} were published", published.values().map(Vec::len).sum::<usize>());
}

/// The name of the one header that has those as bytes that could not be read.
const UNREADABLE: &str = "idem-unreadable";

/// Where headers are read again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The column has texts and bytes. Of a table it has the name.
    InRow,
    /// Facts about the dead letter stand beside them, in place of those that have their names.
    Published,
}

/// Whether these are the input's headers.
fn fits(fixture: &impl Flooded, input: &Input, headers: &[(String, Value)], seen: Seen) -> bool {
    if !fixture.is_readable(input) {
        let kept = headers.iter().find(|(name, _)| name == UNREADABLE);
        return matches!(kept, Some((_, Value::Bytes(bytes))) if holds(bytes, input));
    }
    let has_key = input.headers.iter().any(|(name, _)| name == KEY);
    // A key of the producer's own that is malformed is no fact, and stays.
    let is_fact = |name: &str| name == "idem" || name.starts_with("idem-") || (name == KEY && !has_key);
    let is_own = |name: &str| seen == Seen::InRow || !is_fact(name);
    let sent = |value: &Value| match (value, seen) {
        (Value::Tables(_), Seen::InRow) => Value::Absent,
        (value, _) => value.clone(),
    };
    let theirs = headers.iter().filter(|(name, _)| is_own(name)).cloned();
    let own = input.headers.iter().filter(|(name, _)| is_own(name));
    own.map(|(name, value)| (name.clone(), sent(value))).eq(theirs)
}

/// Whether these bytes have what the headers say, some names and values of many.
fn holds(bytes: &[u8], input: &Input) -> bool {
    let has = |part: &[u8]| part.is_empty() || bytes.windows(part.len()).any(|window| window == part);
    input.headers.iter().step_by(1 + input.headers.len() / 50).all(|(name, value)| {
        has(name.as_bytes())
            && match value {
                Value::Absent => true,
                Value::Bytes(value) => has(value),
                // Each but the outermost is called `t`.
                Value::Tables(depth) => bytes.windows(3).filter(|window| window == b"\x01tF").count() + 1 == *depth,
            }
    })
}

/// An input for people, whose bytes may be many.
fn shown(input: &Input) -> String {
    let mut text =
        format!("{:?} {:?}", input.payload.as_ref().map(|bytes| bytes.escape_ascii().to_string()), input.headers);
    let end = text.floor_char_boundary(2_000);
    text.truncate(end);
    text
}
