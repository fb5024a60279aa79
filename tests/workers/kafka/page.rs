//! The worker's page, on Kafka.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer as _},
};

use super::{
    fixture::{Fixture, until},
    shared_page::{sent, served, shows, until_behind, until_paused},
};

/// J80, J81, J111: a worker that is paused is behind by all that comes meanwhile, and its page says so, partition by partition.
#[tokio::test(flavor = "multi_thread")]
async fn j80_j81_the_page_shows_what_the_worker_has_and_how_far_it_is_behind() {
    let fixture = Fixture::new("orders", 2).await;
    let messages = sent();
    for text in &messages {
        // All of them in one partition.
        fixture.topic.send_text("one", text);
    }
    fixture.topic.flush().await;
    let worker = fixture.start(&["--reset", "earliest", "--admin", "0"]);
    until_paused(&fixture, &worker).await;
    let ends = fixture.topic.ends().await;
    for number in 1_000..1_025 {
        fixture.topic.send_text("one", &super::purchase::Purchase::number(number).json());
    }
    fixture.topic.flush().await;
    until("the lag on the page", async || {
        served(&worker).await.is_some_and(|page| page.contains("<td class=\"\">25</td>"))
    })
    .await;
    let name = &fixture.name;
    let place = format!("Kafka {} · topic {name} · group {name}", fixture.topic.brokers);
    let page = shows(&fixture, &worker, &[&place], Some("page")).await;
    for (partition, end) in &ends {
        let behind = if *end > 0 { 25 } else { 0 };
        page.says(&format!("{name}/{partition}\t{behind}"));
        until_behind(&worker, &format!("{name}/{partition}"), behind).await;
    }
    page.says("all 2\t25");
    worker.kill().await;
}

/// J113: a producer leaves a transaction open. What is behind it is not delivered, and the worker says so: its log, its metrics and its page.
#[tokio::test(flavor = "multi_thread")]
async fn j113_an_open_transaction_is_seen_and_counts_as_behind() {
    let fixture = Fixture::new("orders", 1).await;
    let worker = fixture.start(&["--reset", "earliest", "--admin", "0"]);
    let purchase = |number| super::purchase::Purchase::number(number).json();
    fixture.topic.send_text("one", &purchase(0));
    fixture.topic.flush().await;
    fixture.until_purchases(1).await;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &fixture.topic.brokers)
        .set("transactional.id", &fixture.name)
        .set("transaction.timeout.ms", "600000")
        .create()
        .expect("a producer");
    let patience = Duration::from_secs(60);
    producer.init_transactions(patience).expect("transactions");
    producer.begin_transaction().expect("a transaction");
    let open = purchase(1);
    producer.send(BaseRecord::to(&fixture.name).key("one").payload(&open)).expect("a record");
    producer.flush(patience).expect("the record is there");
    for number in 2..52 {
        fixture.topic.send_text("one", &purchase(number));
    }
    fixture.topic.flush().await;
    let words = "a producer's transaction has been open for over a minute";
    let page = include_str!("../../../docs/guide/signs.md");
    assert!(page.contains(&format!("`{words}`")), "the page on signs names it");
    until("the line in the log", async || worker.logged().contains(words)).await;
    until_behind(&worker, &format!("{}/0", fixture.name), 51).await;
    assert_eq!(fixture.purchases().await, 1);
    producer.abort_transaction(patience).expect("its end");
    fixture.until_purchases(51).await;
    // Behind the last record stands the marker of the transaction's end, which is passed with the next record.
    fixture.topic.send_text("one", &purchase(52));
    fixture.topic.flush().await;
    until_behind(&worker, &format!("{}/0", fixture.name), 0).await;
    worker.kill().await;
}
