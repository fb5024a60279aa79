//! The worker's page, on SQS.

use super::{
    fixture::Fixture,
    shared_page::{sent, shows, until_paused},
};

/// J80: the queue stands on the page by its name, and the matters that need a person before everything else.
#[tokio::test(flavor = "multi_thread")]
async fn j80_the_page_shows_where_messages_come_from_and_what_asks_for_a_person() {
    let fixture = Fixture::new("page", "").await;
    fixture.queue.send_texts(sent().into_iter().map(|text| (text, String::new())).collect()).await;
    let worker = fixture.start(&["--admin", "0"]);
    until_paused(&fixture, &worker).await;
    shows(&fixture, &worker, &["SQS ", &format!("queue {}", fixture.name)], None).await;
    worker.kill().await;
    fixture.remove().await;
}
