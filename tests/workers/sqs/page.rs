//! The worker's page, on SQS.

use super::{
    fixture::Fixture,
    shared_page::{sent, shows, until_behind, until_paused},
};

/// J80, J111: the queue stands on the page by its name, and the matters that need a person before everything else.
#[tokio::test(flavor = "multi_thread")]
async fn j80_the_page_shows_where_messages_come_from_and_what_asks_for_a_person() {
    let fixture = Fixture::new("page", "").await;
    fixture.queue.send_texts(sent().into_iter().map(|text| (text, String::new())).collect()).await;
    let worker = fixture.start(&["--admin", "0"]);
    until_paused(&fixture, &worker).await;
    let later = (1_000..1_003).map(|number| (super::purchase::Purchase::number(number).json(), String::new()));
    fixture.queue.send_texts(later.collect()).await;
    until_behind(&worker, &fixture.name, 3).await;
    let page = shows(&fixture, &worker, &["SQS ", &format!("queue {}", fixture.name)], None).await;
    page.says(&format!("{}\t3", fixture.name));
    worker.kill().await;
    fixture.remove().await;
}
