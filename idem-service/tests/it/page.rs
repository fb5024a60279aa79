//! The page at `/`, looked at in a real browser.

use std::path::PathBuf;

use base64::Engine as _;

use crate::{
    admin::Admin,
    browser::{self, Browser},
    place::{Place, purchase},
    process::Worker,
};

/// Everything that is wider than the page or sticks out of it.
const STICKS_OUT: &str = "[...document.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > \
                          innerWidth || e.getBoundingClientRect().left < 0).map(e => e.outerHTML)";

#[tokio::test]
async fn a_phone_shows_the_state_and_nothing_sticks_out_or_is_run() {
    browser::is_installed().await;
    let place = Place::new().await;
    // As long as a key may be, and without a place to break it.
    let long = "k".repeat(255);
    for number in 0..40 {
        place.publish(&format!("order-{number}"), "1");
    }
    place.publish("order-1", "1");
    place.publish_text(&purchase("order-2", "1", 990));
    place.publish_text(&purchase(&long, "1", 5));
    place.publish_text(&purchase(&long, "1", 6));
    place.publish_text(r#"{"idempotencykey":"<script>document.title=1</script>"}"#);
    place.publish_text("{}");
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    place.orders.drained().await;

    let mut browser = Browser::start(&place.folder).await;
    browser.open(&format!("http://{}/", admin.address())).await;
    let text = browser.evaluate("document.body.innerText").await;
    let text = text.as_str().expect("a text");
    for shown in [
        "ledger\n",
        "consuming",
        "database up · breaker closed",
        "partitions: orders/0",
        "processed\n41\n",
        "duplicates skipped\n1\n",
        "conflicts\n2\n",
        "dead letters\n4\n",
        "lanes that reach the database\n1 of 1\n",
        "messages in flight\n0\n",
        "missing-key: the message has no idempotency key",
        "key order-2 · from orders/",
        "key <script>document.title=1</script> · from",
        &format!("key {long} · from"),
    ] {
        assert!(text.contains(shown), "{shown:?} is not shown:\n{text}");
    }
    assert_eq!(browser.evaluate("document.title").await, "ledger · idem");
    assert_eq!(browser.evaluate("document.scripts.length").await, 0);
    assert_eq!(browser.evaluate("getComputedStyle(document.querySelector('dl')).display").await, "grid");
    assert_eq!(browser.evaluate("innerWidth").await, 390);
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth").await, 390);
    assert_eq!(browser.evaluate(STICKS_OUT).await, serde_json::json!([]));
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());

    let picture = base64::engine::general_purpose::STANDARD.decode(browser.screenshot().await).unwrap();
    // Where the documentation's picture is made anew.
    let picture_file = std::env::var_os("PAGE_PICTURE").map_or_else(|| place.folder.join("page.png"), PathBuf::from);
    std::fs::write(picture_file, picture).unwrap();
    browser.close().await;
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}
