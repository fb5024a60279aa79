//! The worker's page, on RabbitMQ.

use super::{
    fixture::Fixture,
    queue,
    shared_page::{sent, shows, until_behind, until_paused},
};

/// J80, J111: the queue and the broker stand on the page, and the password that leads there does not.
#[tokio::test(flavor = "multi_thread")]
async fn j80_the_page_shows_where_messages_come_from_and_what_asks_for_a_person() {
    let fixture = Fixture::new("page").await;
    fixture.queue.send_texts(&sent()).await;
    let worker = fixture.start(&["--admin", "0"]);
    until_paused(&fixture, &worker).await;
    let later: Vec<String> = (1_000..1_003).map(|number| super::purchase::Purchase::number(number).json()).collect();
    fixture.queue.send_texts(&later).await;
    until_behind(&worker, &fixture.name, 3).await;
    let host = queue::host(&fixture.queue.url);
    let page = shows(&fixture, &worker, &[&format!("RabbitMQ {host}"), &format!("queue {}", fixture.name)], None).await;
    page.says(&format!("{}\t3", fixture.name));
    assert!(!page.text().contains("guest"), "{}", page.text());
    worker.kill().await;
}
