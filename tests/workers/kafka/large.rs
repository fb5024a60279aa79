//! Large records, and how much memory a worker takes for them.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use super::{
    fixture::{Fixture, Ledger},
    purchase::Purchase,
};

/// The memory limit of a worker in the Kubernetes example.
const MEMORY_MAX: u64 = 512 << 20;

/// J59: less than a megabyte on the broker is 585 in memory. The client library unpacks a fetch at once, so the fetch is small.
#[tokio::test(flavor = "multi_thread")]
async fn j59_a_flood_of_compressed_records_stays_within_the_memory_of_the_deployment() {
    const COPIES: u64 = 650;
    let fixture = Fixture::new("large", 1).await;
    let packing: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &fixture.topic.brokers)
        .set("compression.type", "gzip")
        .set("batch.num.messages", "1")
        .create()
        .expect("a producer");
    // Copies, so that it is the fetches that take memory and not the work.
    let text = Purchase::number(0).json_with_note(900_000);
    let record = || FutureRecord::to(&fixture.topic.name).key("00000").payload(&text);
    for sent in 1..=COPIES {
        packing.send_result(record()).map_err(|(error, _)| error).expect("room in its queue");
        if sent % 50 == 0 {
            packing.flush(Duration::from_secs(60)).expect("the broker takes them");
        }
    }
    let worker = fixture.start(&["--reset", "earliest"]);
    fixture.until_settled().await;
    let memory = worker.memory_max();
    let ended = worker.stop().await;
    assert_eq!((ended.count("processed"), ended.count("duplicates")), (1, COPIES - 1));
    assert_eq!(fixture.ledger().await, Ledger::of(0..1));
    println!("the worker took {} MiB at most", memory >> 20);
    assert!(memory < MEMORY_MAX, "the worker took {} MiB", memory >> 20);
    fixture.remove().await;
}
