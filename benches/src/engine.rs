//! What the engine itself costs, with a store that does nothing, and whether its memory stays flat.

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
};

async fn nothing(_: &Message, _: &mut Tx<'_, NullStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn message(n: usize) -> Message {
    Message::new(r#"{"customer":"00001","day":"1997-01-01","cds":1,"cents":1177}"#)
        .with_header("idempotencykey", format!("order-{n}"))
}

fn consumer(store: NullStore) -> Result<DedupConsumer<NullStore>, ConfigError> {
    let consumer = DedupConsumer::builder(store, "bench").handler(handler_fn(nothing)).effects(Effects::InTransaction);
    consumer.busy_timeout(NEVER).lanes(1).build()
}

/// The framework's own cost a message, fresh and duplicate.
pub(crate) async fn cost(rounds: usize, messages: usize) -> Result<Value, Box<dyn Error>> {
    println!("\nThe engine's own cost, {messages} messages, a store and a handler that do nothing, one lane");
    let mut answers = Vec::new();
    let kinds = [("a fresh message", NullStore::EverythingIsNew), ("a duplicate", NullStore::EverythingIsRecorded)];
    for (name, store) in kinds {
        let mut costs = Vec::new();
        for _ in 0..rounds {
            let took = backlog::consume(consumer(store)?, 100, messages, message).await?;
            costs.push(took.as_secs_f64() * 1e6 / messages as f64);
        }
        costs.sort_by(f64::total_cmp);
        let median = costs.get(costs.len() / 2).copied().unwrap_or(f64::NAN);
        println!("  {name:<20} {median:>6.2} µs (of {rounds} rounds: {costs:.2?})");
        answers.push(json!({ "case": name, "rounds": costs, "median": median }));
    }
    Ok(json!({ "title": "engine", "cases": answers }))
}

/// Resident memory while messages run through one worker.
pub(crate) async fn memory(messages: usize) -> Result<Value, Box<dyn Error>> {
    let tenth = messages / 10;
    let mut sizes = Vec::new();
    let backlog = Arc::new(Backlog::new(messages, Box::new(message)));
    let worker =
        Worker::builder_shared(consumer(NullStore::EverythingIsNew)?, Arc::clone(&backlog)).cleanup(None).build()?;
    let (stop, started) = (CancellationToken::new(), Instant::now());
    let running = tokio::spawn(worker.run(stop.clone()));
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
