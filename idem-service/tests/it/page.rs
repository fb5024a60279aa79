//! The page at `/`, looked at in a real browser. On each broker the workers' own tests look at it again.

use std::time::{Duration, SystemTime};

use idem_core::standing::{Condition, Fact, Level, rows};

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
    admin.readiness(|json| json["conditions"][0]["what"] == "4 open dead letters, 2 of a conflict").await;
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
    assert!(
        letters.starts_with("4 open dead letters, 2 of a conflict\nfor ") && letters.contains("; the last "),
        "{letters}"
    );
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
    page.says("nothing needs an operator");

    place.control("paused", "ada", "their deploy").await;
    admin.readiness(|json| json["pause"].is_string()).await;
    let folder = place.folder.join("again");
    std::fs::create_dir(&folder).unwrap();
    let page = look_at(&folder, &url, None).await;
    assert_eq!(page.title(), "(1) ledger · idem");
    let [pause] = &page.matters()[..] else { panic!("{:?}", page.matters()) };
    assert!(pause.starts_with("paused by ada: their deploy\nfor "), "{pause}");
    assert!(pause.contains("\nidem consumers resume ledger\n"), "{pause}");
    place.control("running", "", "").await;
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

/// J80, J110: every condition, with texts as long as they come, is on the page in the words of the command, worst first, and fits.
#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "another worker's facts have times of the database, which is a file here")]
async fn j80_j110_every_condition_is_on_the_page_and_fits() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    admin.readiness(|json| json["ready"] == true).await;
    let long =
        "connection to server at \"db-0.example.internal\" (10.0.0.7), port 5432 failed: ".repeat(3) + &"x".repeat(90);
    let since = SystemTime::now().checked_sub(Duration::from_secs(3_600));
    let named = [
        "task-died",
        "crash-loop",
        "database-down",
        "broker-down",
        "breaker-open",
        "database-refuses",
        "unkeepable",
        "dead-letters-full",
        "key-held",
        "open-transaction",
        "events-failed",
        "events-blocked",
        "dead-letters",
        "replays-wait",
        "unpublished",
        "cleanup-fails",
        "events-paused",
    ];
    let fact = |name: &str| {
        let condition: Condition = serde_json::from_value(name.into()).unwrap();
        Fact::of(condition).count(12_345_u64).subject("a-destination").detail(&long).since(since)
    };
    let facts: Vec<Fact> = named.into_iter().map(fact).collect();
    place.report(&facts).await;
    place.control("halted", "run 1", "a conflict on key order-1").await;
    admin.readiness(|json| json["conditions"].as_array().is_some_and(|all| all.len() == named.len() + 1)).await;
    let page = look_at(&place.folder, &format!("http://{}/", admin.address()), Some("conditions")).await;
    assert_eq!(page.title(), format!("({}) ledger · idem", named.len() + 1));
    page.says("broken\n");
    page.says("halted by run 1: a conflict on key order-1");
    page.says("database down · breaker open");
    let rows = rows("ledger", facts, SystemTime::now());
    let matters = page.matters();
    let mut places = Vec::new();
    for row in &rows {
        let place = matters.iter().position(|matter| matter.starts_with(&format!("{}\nfor ", row.what)));
        let place = place.unwrap_or_else(|| panic!("{row:?} is not among {matters:?}"));
        let fix = row.fix.as_ref().map(|fix| format!("idem {fix}"));
        assert!(fix.is_none_or(|fix| matters[place].contains(&fix)), "{row:?}: {matters:?}");
        places.push(place);
    }
    assert!(places.is_sorted() && rows[0].level == Level::Error, "worst first: {matters:?}");
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}
