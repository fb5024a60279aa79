//! The worker's page, on Kafka.

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
