//! The cost of the engine itself, with a store that does nothing: time, allocations, instructions, and whether its
//! memory stays flat.

use std::{error::Error, sync::Arc, time::Duration};

use idem_core::{
    CancellationToken, ConfigError, DedupConsumer, Effects, HandlerError, Message, Tx, Worker, handler_fn,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    alone::{self, resident_mib},
    backlog::{self, Backlog},
    null::{NEVER, NullStore},
    report::{Line, RATE, Table},
};

async fn nothing(_: &Message, _: &mut Tx<'_, NullStore>) -> Result<(), HandlerError> {
    Ok(())
}

/// Making it is the broker's part, so neither its allocations nor its time are counted.
fn message(n: usize) -> Message {
    let mut message = None;
    allocation_counter::opt_out(|| {
        let payload = r#"{"customer":"00001","day":"1997-01-01","cds":1,"cents":1177}"#;
        message = Some(Message::new(payload).with_header("idempotencykey", format!("order-{n}")));
    });
    message.unwrap_or_else(|| Message::new(""))
}

fn consumer(store: NullStore) -> Result<DedupConsumer<NullStore>, ConfigError> {
    let consumer = DedupConsumer::builder(store, "bench").handler(handler_fn(nothing)).effects(Effects::InTransaction);
    let consumer = match store {
        NullStore::NewBesideAnOutbox => consumer.publish_to(["payments"]).keep_results(1_000),
        NullStore::EverythingIsNew | NullStore::EverythingIsRecorded => consumer,
    };
    consumer.busy_timeout(NEVER).lanes(1).build()
}

/// The names of the lines, and of the measurements in a process of their own.
pub(crate) const FRESH: &str = "a fresh message";
pub(crate) const SILENT: &str = "a fresh one of a handler that may publish and does not";
const DUPLICATE: &str = "a duplicate, as the store says";
pub(crate) const CACHED: &str = "a duplicate, from the cache of committed keys";
const KINDS: [&str; 4] = [FRESH, SILENT, DUPLICATE, CACHED];

/// Keys of a backlog that the cache answers for; it knows each after its first commit.
const CACHED_KEYS: usize = 2_000;

/// Runs so many messages on this thread alone.
pub(crate) fn on_one_thread(kind: &str, messages: usize) -> Result<Value, Box<dyn Error>> {
    let (store, cache, keys) = match kind {
        FRESH => (NullStore::EverythingIsNew, None, usize::MAX),
        SILENT => (NullStore::NewBesideAnOutbox, None, usize::MAX),
        DUPLICATE => (NullStore::EverythingIsRecorded, None, usize::MAX),
        CACHED => (NullStore::EverythingIsNew, Some(NEVER), CACHED_KEYS),
        _ => return Err(format!("{kind} is not one of {KINDS:?}").into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let consumer = consumer(store)?;
    let make = Box::new(move |n| message(n % keys));
    let mut took = Ok(Duration::ZERO);
    let counted = allocation_counter::measure(|| {
        took = runtime.block_on(backlog::consume(consumer, cache, messages, make));
    });
    Ok(json!({ "seconds": took?.as_secs_f64(), "allocations": counted.count_total, "bytes": counted.bytes_total }))
}

/// The cost of a message in time, on one thread, and in allocations.
pub(crate) async fn cost(rounds: usize, messages: usize) -> Result<Vec<Table>, Box<dyn Error>> {
    let (mut times, mut rates) = (KINDS.map(Line::new), Line::new(CACHED));
    for _ in 0..rounds {
        for (kind, line) in KINDS.iter().zip(&mut times) {
            let measured = alone::run(&["engine-on-one-thread", kind, &messages.to_string()]).await?;
            let seconds = measured["seconds"].as_f64().ok_or("no seconds")?;
            line.rounds.push(seconds * 1e6 / messages as f64);
            if *kind == CACHED {
                rates.note(messages, Duration::from_secs_f64(seconds));
            }
        }
    }
    let title =
        format!("The engine, {messages} messages on one thread, a store and a handler that do nothing, batches of 100");
    let engine = Table::print("engine", &title, "µs a message", times.into());
    let cached = Table::print("cached", "The same", RATE, vec![rates]);
    Ok(vec![engine, cached, allocations(messages.min(100_000)).await?])
}

/// Counted twice, so that the allocations of the start are left out.
async fn allocations(messages: usize) -> Result<Table, Box<dyn Error>> {
    let mut lines = KINDS.map(Line::new);
    for (kind, line) in KINDS.iter().zip(&mut lines) {
        let mut counts = [0.0; 2];
        for (times, count) in counts.iter_mut().enumerate() {
            let messages = (messages * (times + 1)).to_string();
            let measured = alone::run(&["engine-on-one-thread", kind, &messages]).await?;
            *count = measured["allocations"].as_f64().ok_or("no allocations")?;
        }
        line.rounds.push((counts[1] - counts[0]) / messages as f64);
    }
    Ok(Table::print("allocations", "The engine, what it allocates", "allocations a message", lines.into()))
}

/// Instructions a message, as valgrind counts them, which no other program on the machine disturbs. Under it the cache
/// answers nothing: everything is so slow that its entries are always too old.
pub(crate) async fn instructions(messages: usize) -> Result<Table, Box<dyn Error>> {
    let kinds = [FRESH, SILENT, DUPLICATE];
    let mut lines = kinds.map(Line::new);
    for (kind, line) in kinds.iter().zip(&mut lines) {
        let once = valgrind(kind, messages).await?;
        line.rounds.push((valgrind(kind, messages * 2).await? - once) / messages as f64);
    }
    Ok(Table::print("instructions", "The engine, what it executes", "instructions a message", lines.into()))
}

async fn valgrind(kind: &str, messages: usize) -> Result<f64, Box<dyn Error>> {
    let mut valgrind = tokio::process::Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    valgrind.args([alone::FLAG, "engine-on-one-thread", kind, &messages.to_string()]).kill_on_drop(true);
    let output = valgrind.output().await.map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    Ok(collected.ok_or_else(|| format!("valgrind: {text}"))?.1.trim().parse()?)
}

/// Resident memory while messages run through one worker.
pub(crate) async fn memory(messages: usize) -> Result<Value, Box<dyn Error>> {
    let tenth = messages / 10;
    let mut sizes = Vec::new();
    let backlog = Arc::new(Backlog::new(messages, Box::new(message)));
    let worker = Worker::builder(consumer(NullStore::EverythingIsNew)?, Arc::clone(&backlog)).cleanup(None).build()?;
    let (stop, started) = (CancellationToken::new(), Instant::now());
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    for step in 1..=10 {
        while backlog.settled() < step * tenth {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        sizes.push(resident_mib()?);
    }
    let seconds = started.elapsed().as_secs_f64();
    stop.cancel();
    running.await??;
    Ok(alone::answer(&sizes, messages, seconds))
}
