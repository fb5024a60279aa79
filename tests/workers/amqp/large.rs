//! Large messages, and how much memory a worker takes for them.

use lapin::types::AMQPValue;

use super::{
    fixture::{Fixture, Ledger},
    purchase::Purchase,
};

const LARGE: usize = 8 << 20;

/// The memory limit of a worker in the Kubernetes example.
const MEMORY_MAX: u64 = 512 << 20;

/// J56: small messages have earned all of the prefetch when as many large ones come as do not fit into the worker's memory.
#[tokio::test(flavor = "multi_thread")]
async fn j56_a_flood_of_large_messages_stays_within_the_memory_of_the_deployment() {
    const SMALL: i64 = 100;
    const ALL: i64 = SMALL + 60;
    let lazy = ("x-queue-mode", AMQPValue::LongString("lazy".into()));
    let fixture = Fixture::with("large", &[lazy]).await;
    fixture.send(0..SMALL).await;
    for number in SMALL..ALL {
        fixture.queue.send_text(&Purchase::number(number).json_with_note(LARGE)).await;
    }
    let worker = fixture.start(&["--payload-max", "16MiB", "--delivery-limit", "none"]);
    fixture.until_purchases(ALL).await;
    let memory = worker.memory_max();
    let ended = worker.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    assert_eq!(fixture.ledger().await, Ledger::of(0..ALL));
    println!("the worker took {} MiB at most", memory >> 20);
    assert!(memory < MEMORY_MAX, "the worker took {} MiB", memory >> 20);
    fixture.remove().await;
}
