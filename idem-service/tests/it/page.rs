//! The page at `/`, looked at in a real browser. On each broker the workers' own tests look at it again.

use crate::{
    admin::Admin,
    looks::look_at,
    place::{Place, purchase},
    process::Worker,
};

/// J80, J82: keys as long and as hostile as they may be, and everything that may stand on a page at once.
#[tokio::test]
async fn j80_j82_what_asks_for_a_person_stands_out_and_nothing_sticks_out_or_is_run() {
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
    let mut running = Worker::at(&place, "--admin 0 --schema shop").start();
    let admin = Admin::of(&mut running).await;
    place.orders.drained().await;
    let page = look_at(&place.folder, &format!("http://{}/", admin.address()), None).await;
    for shown in [
        "ledger\n",
        "consuming",
        "database up · breaker closed",
        "orders/0\t3",
        "duplicates skipped\t",
        "lanes that reach the database\n1 of 1",
        "messages\n0",
        "missing-key: the message has no idempotency key",
        "key order-2 · from orders/",
        "key <script>document.title=1</script> · from",
        &format!("key {long} · from"),
        concat!("ledger ", env!("CARGO_PKG_VERSION"), " · "),
        "run 1 · running for",
    ] {
        page.says(shown);
    }
    let count = |name: &str, wanted: &str| {
        let line = page.text().lines().find(|line| line.starts_with(&format!("{name}\t")));
        let count = line.and_then(|line| line.rsplit('\t').next());
        assert_eq!(count, Some(wanted), "{name}:\n{}", page.text());
    };
    for (name, wanted) in [("processed", "41"), ("duplicates skipped", "1"), ("conflicts", "2"), ("dead letters", "4")]
    {
        count(name, wanted);
    }
    assert_eq!(page.title(), "(1) ledger · idem");
    let [letters] = &page.matters()[..] else { panic!("{:?}", page.matters()) };
    assert!(letters.starts_with("4 dead letters, 2 of a conflict\nsince this process started, the last "), "{letters}");
    let commands = page.commands();
    for command in [
        "idem --schema shop dead-letters groups --consumer ledger",
        "idem --schema shop dead-letters show 4",
        "idem --schema shop show --consumer ledger order-2",
    ] {
        assert!(commands.contains(&command), "{command:?} is not among {commands:?}");
    }
    let links = page.links();
    for path in ["errors/conflict.md", "errors/missing-key.md", "errors/README.md#why-a-message-was-set-aside"] {
        assert!(links.iter().any(|link| link.ends_with(&format!("/blob/main/docs/{path}"))), "{path}: {links:?}");
    }
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

/// J80: a quiet worker says so in one line, and a pause comes before everything else.
#[tokio::test]
async fn j80_nothing_asks_for_a_person_or_a_pause_does() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    admin.readiness(|json| json["ready"] == true).await;
    let url = format!("http://{}/", admin.address());
    let page = look_at(&place.folder, &url, None).await;
    assert_eq!((page.title(), page.matters()), ("ledger · idem", vec![]));
    page.says("nothing asks for a person");

    place.control("paused", "ada", "their deploy").await;
    admin.readiness(|json| json["pause"].is_string()).await;
    let folder = place.folder.join("again");
    std::fs::create_dir(&folder).unwrap();
    let page = look_at(&folder, &url, None).await;
    assert_eq!(page.title(), "(1) ledger · idem");
    let [pause] = &page.matters()[..] else { panic!("{:?}", page.matters()) };
    assert!(pause.starts_with("paused by ada: their deploy\npaused for "), "{pause}");
    assert!(pause.contains("\nidem consumers resume ledger\n"), "{pause}");
    place.control("running", "", "").await;
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}
