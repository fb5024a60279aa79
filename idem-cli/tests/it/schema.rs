//! `idem migrate`, `idem cleanup`, `idem retention`.

use crate::scene::{Scene, command};

#[tokio::test]
async fn migrate_goes_up_once_and_says_where_it_stands() {
    let scene = Scene::empty().await;
    assert!(scene.idem("migrate status").ok().contains("to come"));
    scene.idem("stats").refused("idem migrate up");
    assert!(scene.idem("migrate up").ok().contains("migration 1 was applied"));
    assert!(scene.idem("migrate up").ok().contains("up to date"));
    let status = scene.idem("migrate status --json").json();
    assert_eq!(
        (&status["migrations"][0]["state"], &status["migrations"][0]["version"]),
        (&"applied".into(), &1.into())
    );
    scene.drop().await;
}

/// J12: what was processed is never dropped by a migration.
#[tokio::test]
async fn migrate_down_asks_and_keeps_records() {
    let scene = Scene::new().await;
    scene.idem("migrate down").refused("Nothing was done: give --yes");
    scene.deliver(&["order-1"]).await;
    assert!(scene.idem("migrate down --yes").ok().contains("migration 6 was taken back"), "the seal stays one");
    assert!(scene.idem("migrate down --yes").ok().contains("migration 5 was taken back"), "no unit is open");
    assert!(scene.idem("migrate down --yes").ok().contains("migration 4 was taken back"), "counts go back");
    assert!(scene.idem("migrate down --yes").ok().contains("migration 3 was taken back"), "nothing was set aside");
    assert!(scene.idem("migrate down --yes").ok().contains("migration 2 was taken back"), "nothing is forgotten");
    scene.idem("migrate down --yes").refused("still holds records");
    scene.idem("migrate up").ok();
    assert_eq!(scene.deliver(&["order-1"]).await, "D");
    scene.run("TRUNCATE processed_messages").await;
    for _ in 0..5 {
        scene.idem("migrate down --yes").ok();
    }
    assert!(scene.idem("migrate down --yes").ok().contains("migration 1 was taken back"));
    scene.drop().await;
}

#[tokio::test]
async fn migrate_print_is_what_migrate_up_does() {
    let scene = Scene::empty().await;
    let script = scene.idem("migrate print").ok();
    scene.run(&script).await;
    assert!(scene.idem("migrate up").ok().contains("up to date"));
    scene.deliver(&["order-1"]).await;
    scene.grant_roles().await;
    scene.drop().await;
}

async fn with_expired(keys: &[&str]) -> Scene {
    let scene = Scene::new().await;
    scene.deliver(keys).await;
    scene
        .run("UPDATE processed_messages SET expires_at = now() - interval '1 s' WHERE idempotency_key <> 'order-3'")
        .await;
    scene
}

#[tokio::test]
async fn cleanup_counts_removes_and_is_written_down() {
    let scene = with_expired(&["order-1", "order-2", "order-3"]).await;
    let preview = scene.idem("cleanup --dry-run --json").json();
    assert_eq!(preview["rows"][0]["rows"], 2);
    assert_eq!(scene.texts("SELECT count(*) FROM processed_messages").await, ["3"]);
    let removed = scene.idem("cleanup --json").json();
    assert_eq!((&removed["rows"][0]["table"], &removed["rows"][0]["rows"]), (&"processed_messages".into(), &2.into()));
    assert_eq!(scene.texts("SELECT idempotency_key FROM processed_messages").await, ["order-3"]);
    assert_eq!(scene.texts("SELECT action FROM audit").await, ["cleanup"]);
    scene.idem("cleanup --attempts-kept 1h").refused("--attempts-kept is 3600s, but it must be at least 1 day");
    scene.idem("cleanup --rows-max 0").refused("--rows-max is 0");
    scene.drop().await;
}

#[tokio::test]
async fn cleanup_as_a_script_removes_the_same() {
    let scene = with_expired(&["order-1", "order-2", "order-3"]).await;
    let script = scene.idem("cleanup --print-sql").ok();
    scene.run(&script).await;
    assert_eq!(scene.texts("SELECT idempotency_key FROM processed_messages").await, ["order-3"]);
    // It connects to nothing.
    assert_eq!(command(&[("IDEM_SCHEMA", &scene.schema)], &["cleanup", "--print-sql"]).ok(), script);
    scene.drop().await;
}

#[tokio::test]
async fn retention_of_existing_records_is_rewritten_as_a_claim_would() {
    let scene = Scene::new().await;
    scene.deliver(&["order-1", "order-2"]).await;
    let kept = "SELECT DISTINCT (expires_at - date_trunc('minute', processed_at))::text FROM processed_messages";
    scene.idem("retention set orders 24h").refused("--existing");
    scene.idem("retention set orders 24h --existing").refused("2 records of orders");
    scene.idem("retention set orders 5s --existing --yes").refused("from 1 minute to 10 years");
    scene.idem("retention set ordres 24h --existing --yes").refused("no consumer \"ordres\"");
    assert!(scene.idem("retention set orders 24h --existing --yes").ok().contains("2 rewritten"));
    let minutes = scene.texts(kept).await;
    assert!(minutes.iter().all(|kept| kept.as_str() == "1 day 00:01:00"), "{minutes:?}");
    assert_eq!(scene.trail().await, ["ada retention 86400 s for records that are there"]);
    scene.drop().await;
}
