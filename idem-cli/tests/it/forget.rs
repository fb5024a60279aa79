//! `idem forget`: the only way to let a message take effect once more.

use crate::fixture::{Fixture, command};

const WHY: &str = "--consumer orders --reason bad-deploy";

#[tokio::test]
async fn forget_lets_a_message_take_effect_once_more_and_is_written_down() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.deliver(&["order-1", "order-2"]).await, "PP");
    let epoch = "SELECT coalesce(max(epoch), 0) FROM controls";
    assert_eq!(fixture.texts(epoch).await, ["0"]);
    assert!(fixture.idem(&format!("forget order-1 {WHY} --dry-run")).ok().contains("1 record of orders would be"));
    fixture.idem(&format!("forget order-1 {WHY}")).refused("1 record of orders: if their messages come again");
    assert_eq!(fixture.deliver(&["order-1"]).await, "D");
    let answer = fixture.idem(&format!("forget order-1 {WHY} --yes")).ok();
    assert!(answer.contains("1 forgotten") && answer.contains("2 seconds"), "{answer}");
    assert_eq!(fixture.texts(epoch).await, ["1"], "running workers' caches are emptied");
    assert_eq!(fixture.trail().await, ["ada forget order-1 bad-deploy"]);
    assert_eq!(fixture.deliver(&["order-1", "order-2"]).await, "PD");
    fixture.drop().await;
}

/// S57: a worker's login may write the highest epoch, and the operator's next one begins again.
#[tokio::test]
async fn s57_an_epoch_at_its_end_stops_no_operator() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.deliver(&["order-1"]).await, "P");
    fixture.run("INSERT INTO controls (consumer, epoch) SELECT id, 1099511627775 FROM consumers").await;
    fixture.idem(&format!("forget order-1 {WHY} --yes")).ok();
    assert_eq!(fixture.texts("SELECT epoch FROM controls").await, ["0"]);
    assert_eq!(fixture.deliver(&["order-1"]).await, "P");
    fixture.drop().await;
}

/// S8: a worker's login can look and pause, and has no right to permit a second effect.
#[tokio::test]
async fn s8_a_workers_login_may_look_and_not_forget() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    let (url, login) = fixture.worker_login().await;
    let idem = |arguments: &str| {
        let variables = [("DATABASE_URL", url.as_str()), ("IDEM_SCHEMA", &fixture.schema)];
        command(&variables, &arguments.split_whitespace().collect::<Vec<_>>())
    };
    for allowed in
        ["show order-1", "stats", "workers", "stuck", "dead-letters list", "consumers pause orders --reason x"]
    {
        idem(allowed).ok();
    }
    idem(&format!("forget order-1 {WHY} --yes")).refused("lacks a right");
    idem("retention set orders 1h --existing --yes").refused("lacks a right");
    idem("cleanup").refused("idem_cleanup");
    assert_eq!(fixture.deliver(&["order-1"]).await, "D");
    fixture.run(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
    fixture.drop().await;
}

#[tokio::test]
async fn forget_says_what_is_missing() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture.idem("forget order-1 --consumer orders").refused("--reason");
    fixture.idem_with(&["forget", "order-1", "--consumer", "orders", "--reason", " "]).refused("say why");
    fixture.idem(&format!("forget {WHY}")).refused("required");
    fixture.idem("forget order-1 --consumer ordres --reason x --yes").refused("no consumer \"ordres\"");
    fixture.idem(&format!("forget --from yesterday {WHY}")).refused("no time with a zone");
    fixture.idem(&format!("forget --from 2026-11-21T20:00:00 {WHY}")).refused("no time with a zone");
    fixture.idem(&format!("forget --keys /nowhere {WHY}")).refused("/nowhere cannot be read");
    fixture.idem(&format!("forget order-1 --run 1 {WHY}")).refused("cannot be used with");
    fixture.idem(&format!("forget order-9 {WHY} --yes")).refused("nothing was forgotten: 0 records of orders");
    assert!(fixture.idem(&format!("forget order-9 {WHY} --dry-run")).ok().contains("0 records of orders would be"));
    assert_eq!(fixture.deliver(&["order-1"]).await, "D");
    fixture.drop().await;
}

/// The good deploy after the bad one: the keys that a run, a version or a time processed.
#[tokio::test]
async fn forget_in_bulk_takes_exactly_what_was_chosen() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture.deliver(&["order-2"]).await;
    fixture.run("UPDATE worker_runs SET version = '9.9.9' WHERE id = 2").await;
    fixture
        .run("UPDATE processed_messages SET processed_at = '2026-01-02T03:00:00Z' WHERE idempotency_key = 'order-2'")
        .await;
    for chosen in [
        "--run 2",
        "--version 9.9.9",
        "--from 2026-01-02T03:00:00Z --to 2026-01-02T03:00:01Z",
        "--to 2026-01-02T04:00:00+00:00",
    ] {
        let answer = fixture.idem(&format!("forget {chosen} {WHY} --dry-run")).ok();
        assert!(answer.contains("1 record "), "{chosen}: {answer}");
    }
    assert!(fixture.idem(&format!("forget --run 2 {WHY} --yes")).ok().contains("1 forgotten"));
    assert_eq!(fixture.deliver(&["order-1", "order-2"]).await, "DP");
    fixture.drop().await;
}

/// More than one chunk, from a file; each key has its line in the trail.
#[tokio::test]
async fn forget_goes_in_chunks() {
    let fixture = Fixture::new().await;
    let keys: Vec<String> = (0..2_500).map(|number| format!("order-{number}")).collect();
    fixture.deliver(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let file = std::env::temp_dir().join(format!("{}.keys", fixture.schema));
    std::fs::write(&file, keys[..2_400].join("\n")).unwrap();
    let answer = fixture.idem(&format!("forget --keys {} {WHY} --yes", file.display())).ok();
    assert!(answer.contains("2400 forgotten"), "{answer}");
    assert_eq!(fixture.texts("SELECT count(DISTINCT idempotency_key) FROM audit").await, ["2400"]);
    assert_eq!(fixture.texts("SELECT count(*) FROM processed_messages").await, ["100"]);
    std::fs::remove_file(file).unwrap();
    fixture.drop().await;
}

/// Until cleanup, forgetting is taken back, except where the message has run again meanwhile.
#[tokio::test]
async fn what_was_forgotten_is_taken_back_until_cleanup() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.deliver(&["order-1", "order-2"]).await, "PP");
    let before = fixture.texts("SELECT p::text FROM processed_messages AS p WHERE idempotency_key = 'order-2'").await;
    let answer = fixture.idem(&format!("forget order-1 order-2 {WHY} --yes")).ok();
    let batch = answer.trim().rsplit(' ').next().unwrap().to_owned();
    assert_eq!(fixture.deliver(&["order-1"]).await, "P", "it ran again");
    let listed = fixture.idem("forgotten list --json").json();
    let row = &listed["forgotten"][0];
    assert_eq!((&row["records"], &row["run_again"]), (&2.into(), &1.into()), "{listed}");
    fixture.idem("forgotten restore 1 --yes").refused("nothing waits");
    fixture.idem(&format!("forgotten restore {batch}")).refused("2 forgotten keys");
    let answer = fixture.idem(&format!("forgotten restore {batch} --yes")).ok();
    assert!(answer.contains("1 are records again; 1 have run again"), "{answer}");
    assert_eq!(
        fixture.texts("SELECT p::text FROM processed_messages AS p WHERE idempotency_key = 'order-2'").await,
        before
    );
    assert_eq!(fixture.deliver(&["order-1", "order-2"]).await, "DD");
    assert_eq!(fixture.texts("SELECT count(*) FROM forgotten").await, ["0"]);
    assert!(fixture.trail().await.contains(&format!("ada restore order-2 forgotten as {batch}")));
    // Cleanup removes forgotten rows that are too old.
    fixture.idem(&format!("forget order-1 {WHY} --yes")).ok();
    fixture.run("UPDATE forgotten SET forgotten_at = now() - interval '31 d'").await;
    fixture.idem("cleanup").ok();
    assert_eq!(fixture.texts("SELECT count(*) FROM forgotten").await, ["0"]);
    fixture.drop().await;
}
