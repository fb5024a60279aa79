//! The commands on SQLite.

use idem_testkit::Decide as _;
use std::{path::PathBuf, sync::Arc};

use idem_core::{
    ConsumerName, DedupConsumer, Effects, ErrorClass, Store as _, Tenant,
    dead_letter::{DeadLetter, FailureKind, Fingerprint, Reason},
    message::Origin,
    store::Bookkeeping as _,
};
use idem_sqlx::SqliteStore;
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use crate::fixture::{
    Accepting, Answer, PAYLOAD, agree_on_what_fails, attempt, command, leave_counts, message, see_what_is_stopped,
};

/// A file with idem's tables and the consumer `orders`.
pub(crate) struct File {
    path: PathBuf,
    pub(crate) url: String,
}

impl File {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("idem-cli-{:016x}.db", fastrand::u64(..)));
        let url = format!("sqlite://{}", path.display());
        Self { path, url }
    }

    pub(crate) fn idem(&self, arguments: &str) -> Answer {
        self.idem_with(&arguments.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn idem_with(&self, arguments: &[&str]) -> Answer {
        command(&[("DATABASE_URL", self.url.as_str()), ("IDEM_OPERATOR", "ada")], arguments)
    }

    pub(crate) async fn store(&self) -> SqliteStore {
        SqliteStore::open(&self.path).await.unwrap()
    }

    /// Delivers these keys, and answers whether each was processed (P) or skipped (D).
    pub(crate) async fn deliver(&self, keys: &[&str]) -> String {
        let store = SqliteStore::open(&self.path).await.unwrap();
        let builder = DedupConsumer::builder(store, "orders").effects(Effects::InTransaction);
        let consumer = builder.handler(Accepting(Arc::default())).version("1.2.3").build().unwrap();
        let decisions = consumer.decisions(keys.iter().map(|key| message(key)).collect()).await.unwrap();
        decisions.iter().map(|decision| if decision.is_processed() { 'P' } else { 'D' }).collect()
    }

    /// Sets a message aside, as a worker does.
    pub(crate) async fn set_aside(&self, key: &str) -> i64 {
        let store = SqliteStore::open(&self.path).await.unwrap();
        let name = ConsumerName::new("orders").unwrap();
        let message = message(key).with_origin(Origin::new(&format!("q/{key}")));
        let letter = DeadLetter {
            scope: store.bookkeeping().scope(&name, &Tenant::default()).await.unwrap(),
            consumer: name,
            key: Some(idem_core::IdempotencyKey::new(key).unwrap()),
            hash: None,
            message,
            reason: Reason::Permanent,
            attempts: 1,
            error: "there is no such customer".to_owned(),
            fingerprint: Fingerprint::of(&FailureKind::new(Reason::Permanent, ErrorClass::Permanent)),
            keep_payload: true,
            payload_omitted: None,
        };
        store.bookkeeping().store_dead_letter(&letter).await.unwrap().id.0
    }

    /// The first column of a query's result.
    pub(crate) async fn texts(&self, query: &str) -> Vec<String> {
        let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_all(&mut connection).await.unwrap()
    }

    pub(crate) async fn run(&self, statements: &str) {
        let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await.unwrap();
    }

    /// The lines of the trail: who did what to which key.
    async fn trail(&self) -> Vec<String> {
        let text = "SELECT who || ' ' || action || ' ' || ifnull(idempotency_key, '-') || ' ' || details FROM idem_audit \
                    WHERE who = 'ada' ORDER BY id";
        self.texts(text).await
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.path.display()));
        }
    }
}

#[test]
fn on_sqlite_what_makes_no_sense_is_refused_by_name() {
    let file = File::new();
    assert_ne!(file.idem("cleanup").status, 0, "a mistyped name makes no file");
    assert_ne!(file.idem("show order-1").status, 0);
    assert!(!file.path.exists());
    assert!(file.idem("migrate up").ok().contains("migration 1 was applied"));
    assert!(file.idem("migrate up").ok().contains("up to date"));
    assert!(file.idem("doctor").ok().contains("All is well"));
    let preview = file.idem("cleanup --dry-run --json").json();
    assert_eq!(preview["rows"][0]["table"], "processed_messages", "{preview}");
    assert!(file.idem("cleanup").ok().contains("audit"));
    file.idem("dead-letters list --consumer orders").refused("there is no consumer \"orders\"");
    file.idem("dead-letters replay 99 --yes").refused("there is no such dead letter");
    for refused in ["migrate status", "cleanup --print-sql"] {
        let name = refused.split_once(' ').map_or(refused, |(name, _)| name);
        file.idem(refused).refused(&format!("`idem {name}` in this form is for PostgreSQL"));
    }
}

/// S30: a person who reads a key stands in the trail, as on PostgreSQL.
#[tokio::test]
async fn s30_a_key_is_shown_forgotten_and_erased_on_sqlite() {
    let file = File::new();
    file.idem("migrate up").ok();
    assert_eq!(file.deliver(&["order-1", "order-2", "order-1"]).await, "PPD");
    let shown = file.idem("show order-1 --json").json();
    assert_eq!(
        (&shown["records"][0]["consumer"], &shown["records"][0]["version"]),
        (&"orders".into(), &"1.2.3".into())
    );
    assert!(shown["messages"][0].as_str().unwrap().contains("skipped as a duplicate by orders"), "{shown}");
    assert!(file.idem("show order-9").ok().contains("A redelivery is handled: there is no record"));
    file.idem("show order-1 --consumer nobody").refused("there is no consumer");
    let stats = file.idem("stats --json").json();
    assert_eq!(
        (&stats["consumers"][0]["records"], &stats["consumers"][0]["last_hour"]),
        (&2.into(), &2.into()),
        "{stats}"
    );

    let forget = |more: &str| file.idem(&format!("forget order-1 order-9 --consumer orders --reason ticket-7 {more}"));
    assert!(forget("--dry-run").ok().contains("1 record of orders would be forgotten"));
    file.idem("forget order-9 --consumer orders --reason x --yes").refused("nothing was forgotten: 0 records");
    forget("").refused("--yes");
    assert_eq!(file.deliver(&["order-1"]).await, "D");
    let epoch = "SELECT ifnull(sum(epoch), 0) || '' FROM idem_controls";
    assert_eq!(file.texts(epoch).await, ["0"]);
    assert!(forget("--yes").ok().contains("1 forgotten"));
    assert_eq!(file.texts(epoch).await, ["1"], "caches of running workers are emptied");
    assert_eq!(file.deliver(&["order-1", "order-2"]).await, "PD");
    for (chosen, records) in [
        ("--from 2020-01-01T00:00:00Z", "2 records"),
        ("--to 2020-01-01T00:00:00+01:00", "0 records"),
        ("--version 1.2.3", "2 records"),
        ("--run 99", "0 records"),
    ] {
        let answer = file.idem(&format!("forget --consumer orders --reason x --dry-run {chosen}")).ok();
        assert!(answer.contains(records), "{chosen}: {answer}");
    }
    file.idem("forget --consumer orders --reason x --from 2020-01-01").refused("no time with a zone");

    let id = file.set_aside("order-2").await;
    let erased = file.idem("erase order-2 --reason request-4711 --yes").ok();
    assert!(erased.contains("2 rows erased"), "{erased}");
    assert_eq!(file.deliver(&["order-2"]).await, "D", "a redelivery is still skipped");
    assert_eq!(file.idem("show order-2 --json").json()["records"][0]["erased"], 1);
    file.idem(&format!("dead-letters replay {id} --yes")).refused("none of them can be replayed");
    let rest = "SELECT ifnull(payload, '') || error || ifnull(headers, '') || ifnull(idempotency_key, '') FROM idem_dead_letters";
    assert_eq!(file.texts(rest).await, [""]);
    let id = |key: &str| format!("key id {}", idem_sql::key_id(key));
    assert_eq!(
        file.trail().await,
        [
            format!("ada read-key order-1 {}", id("order-1")),
            format!("ada read-key - {}", id("order-9")),
            "ada forget order-1 ticket-7".to_owned(),
            format!("ada erase - {}: request-4711", id("order-2")),
            format!("ada read-key - {}", id("order-2")),
        ],
        "what was erased does not come back because somebody asks for it"
    );
}

#[tokio::test]
async fn consumers_are_paused_renamed_and_rebound_on_sqlite() {
    let file = File::new();
    file.idem("migrate up").ok();
    assert_eq!(file.deliver(&["order-1"]).await, "P");
    file.idem("consumers pause orders --reason deploy").ok();
    let listed = file.idem("consumers list --json").json();
    assert_eq!(
        (&listed["consumers"][0]["state"], &listed["consumers"][0]["reason"]),
        (&"paused".into(), &"deploy".into())
    );
    file.idem("consumers resume orders").ok();
    file.idem("consumers pause nobody --reason x").refused("there is no consumer");
    file.idem("consumers rename orders orders --yes").refused("already");
    file.idem("consumers rename orders bills --yes").ok();
    file.idem("consumers rename bills orders --yes").ok();
    assert_eq!(file.texts("SELECT hash_rules FROM idem_consumers").await, ["raw/1"]);
    file.run(
        "INSERT INTO idem_consumers (id, tenant, name, bound_to, handler, key_rules, hash_rules, retention, first_started_at)
        VALUES (2147483646, 'acme', 'orders', '', '', '', 'raw/1', NULL, 0), (2147483647, 'globex', 'orders', '', '', '', 'raw/1', NULL, 0);
        INSERT INTO idem_controls (consumer, state, \"by\", reason, at) VALUES (2147483647, 'halted', '', '', 0)",
    )
    .await;
    file.idem("consumers prune orders").refused("--yes");
    file.idem("consumers prune orders --yes").ok();
    assert_eq!(file.texts("SELECT tenant FROM idem_consumers ORDER BY tenant").await, ["", "globex"]);
    file.run(
        "DELETE FROM idem_consumers WHERE tenant = 'globex'; DELETE FROM idem_controls WHERE consumer = 2147483647",
    )
    .await;
    file.idem("consumers rebind orders").refused("--yes");
    file.idem("consumers rebind orders --yes").ok();
    assert_eq!(file.texts("SELECT hash_rules FROM idem_consumers").await, [""]);
    assert_eq!(file.deliver(&["order-1"]).await, "D", "the next start binds it anew");
    assert_eq!(file.idem("workers --json").json()["workers"][0]["version"], "1.2.3");

    let store = SqliteStore::open(&file.path).await.unwrap();
    attempt(&store, "order-7", "x").await;
    assert_eq!(file.idem("stuck --json").json()["failing_keys"][0]["key"], "order-7");
    let trail = file.trail().await;
    let acts = trail.iter().map(|line| line.split(' ').nth(1).unwrap()).collect::<Vec<_>>();
    assert_eq!(acts, ["pause", "resume", "rename", "rename", "prune", "rebind"]);
    assert!(trail[5].contains("hashes raw/1"), "{trail:?}");
}

/// J16: as on PostgreSQL.
#[tokio::test]
async fn j16_stuck_on_sqlite_names_consumers_that_are_stopped_or_where_else_to_look() {
    let file = File::new();
    file.idem("migrate up").ok();
    file.deliver(&["order-1"]).await;
    let store = SqliteStore::open(&file.path).await.unwrap();
    see_what_is_stopped(&store, |arguments| file.idem(arguments)).await;
}

/// As on PostgreSQL.
#[tokio::test]
async fn on_sqlite_stats_and_stuck_agree_on_what_fails() {
    let file = File::new();
    file.idem("migrate up").ok();
    file.deliver(&["succeeded"]).await;
    let store = SqliteStore::open(&file.path).await.unwrap();
    attempt(&store, "expired", "x").await;
    file.run("UPDATE idem_message_attempts SET last_at = last_at - 365 * 86400000000").await;
    file.idem("cleanup").ok();
    leave_counts(&store).await;
    file.run("UPDATE idem_message_attempts SET attempts = 3, last_at = first_at WHERE idempotency_key = 'left'").await;
    agree_on_what_fails(&file.idem("stats --json").json(), &file.idem("stuck --json").json());
}

#[tokio::test]
async fn a_replay_on_sqlite_stands_in_the_trail() {
    let file = File::new();
    file.idem("migrate up").ok();
    file.deliver(&["order-1"]).await;
    let (one, two) = (file.set_aside("order-7").await, file.set_aside("order-8").await);
    let listed = file.idem("dead-letters list --consumer orders --reason permanent --json").json();
    assert_eq!((&listed["dead_letters"][0]["id"], &listed["dead_letters"][1]["key"]), (&two.into(), &"order-7".into()));
    let shown = file.idem(&format!("dead-letters show {one}")).ok();
    assert!(shown.contains("q/order-7") && !shown.contains(PAYLOAD), "{shown}");
    let shown = file.idem(&format!("dead-letters show {one} --payload --json")).json();
    assert!(shown["payload"][0]["payload"].as_str().unwrap().contains(PAYLOAD), "{shown}");
    file.idem("dead-letters show 99").refused("no dead letter 99");
    file.idem("dead-letters replay --yes").refused("say which");
    assert!(file.idem("dead-letters replay --consumer orders --dry-run").ok().contains("2 would be replayed"));
    assert!(file.idem(&format!("dead-letters replay {one} --yes")).ok().contains("1 asked for"));
    file.idem(&format!("dead-letters replay {one} --yes")).refused("awaits a replay already");
    assert!(file.idem(&format!("dead-letters drop {two} --because spam --yes")).ok().contains("1 dropped"));
    let listed = file.idem("dead-letters list --json").json();
    assert_eq!(
        (listed["dead_letters"].as_array().unwrap().len(), &listed["dead_letters"][0]["replay"]),
        (1, &"awaited".into())
    );
    assert_eq!(
        file.trail().await,
        [
            format!("ada read-dead-letter order-7 dead letter {one}"),
            format!("ada read-payload order-7 dead letter {one}"),
            format!("ada replay order-7 dead letter {one}"),
            format!("ada drop order-8 dead letter {two}: spam")
        ]
    );
}

/// A forgotten key waits, and is taken back, unless it has run again meanwhile; erasing reaches it too.
#[tokio::test]
async fn what_was_forgotten_is_taken_back_on_sqlite() {
    let file = File::new();
    file.idem("migrate up").ok();
    assert_eq!(file.deliver(&["order-1", "order-2", "order-3"]).await, "PPP");
    let records = "SELECT idempotency_key || hex(payload_hash) || expires_at FROM idem_processed_messages ORDER BY 1";
    let before = file.texts(records).await;
    let forgotten = file.idem("forget order-1 order-2 --consumer orders --reason bad-deploy --yes --json").json();
    let said = forgotten["messages"][0].as_str().unwrap().to_owned();
    let batch = said.rsplit(' ').next().unwrap();
    assert_eq!(file.deliver(&["order-1"]).await, "P", "it takes effect once more");
    let listed = file.idem("forgotten list --json").json();
    let waiting = &listed["forgotten"][0];
    assert_eq!((&waiting["records"], &waiting["run_again"]), (&2.into(), &1.into()), "{listed}");
    file.idem("forgotten restore 1 --yes").refused("nothing waits that was forgotten as 1");
    file.idem(&format!("forgotten restore {batch}")).refused("--yes");
    let restored = file.idem(&format!("forgotten restore {batch} --yes")).ok();
    assert!(restored.contains("1 are records again; 1 have run again"), "{restored}");
    assert_eq!(file.deliver(&["order-1", "order-2", "order-3"]).await, "DDD");
    assert_eq!(file.texts(records).await[1..], before[1..], "as they were");
    assert_eq!(file.texts("SELECT count(*) || '' FROM idem_forgotten").await, ["0"]);
    assert_eq!(file.trail().await[2..], [format!("ada restore order-2 forgotten as {batch}")]);

    file.idem("forget order-3 --consumer orders --reason x --yes").ok();
    file.idem("erase order-3 --reason art-17 --yes").ok();
    assert_eq!(file.texts("SELECT idempotency_key FROM idem_forgotten").await, [""]);
    file.run("UPDATE idem_forgotten SET forgotten_at = forgotten_at - 31 * 86400000000").await;
    file.idem("cleanup").ok();
    assert_eq!(file.texts("SELECT count(*) || '' FROM idem_forgotten").await, ["0"], "cleanup takes them in the end");
}

#[tokio::test]
async fn retention_is_rewritten_on_sqlite() {
    let file = File::new();
    file.idem("migrate up").ok();
    file.deliver(&["order-1"]).await;
    file.idem("retention set orders 1s --existing --yes").refused("from 1 minute to 10 years");
    assert!(file.idem("retention set orders 24h --existing --yes").ok().contains("1 rewritten"));
    let left = "SELECT (expires_at - processed_at - 86400000000 BETWEEN 0 AND 59999999 AND expires_at % 60000000 = 0) || '' \
                FROM idem_processed_messages";
    assert_eq!(file.texts(left).await, ["1"]);
    assert_eq!(file.texts("SELECT retention || '' FROM idem_consumers").await, ["86400000000"]);
    assert_eq!(file.trail().await, ["ada retention - 86400 s for records that are there"]);
}

#[tokio::test]
async fn groups_are_counted_and_losses_accepted_on_sqlite() {
    let file = File::new();
    file.idem("migrate up").ok();
    file.deliver(&["order-1"]).await;
    let (one, two) = (file.set_aside("order-7").await, file.set_aside("order-8").await);
    let groups = file.idem("dead-letters groups --consumer orders --json").json();
    let group = &groups["groups_of_dead_letters"][0];
    assert_eq!(
        (&group["dead_letters"], &group["open"], &group["reason"]),
        (&2.into(), &2.into(), &"permanent".into()),
        "{groups}"
    );
    let name = group["group"].as_str().unwrap();
    assert!(file.idem(&format!("dead-letters replay --group {name} --dry-run")).ok().contains("2 would be replayed"));

    file.idem(&format!("dead-letters accept-loss {one} --reason junk --yes")).refused("is not held");
    file.idem("dead-letters accept-loss 99 --reason junk --yes").refused("no dead letter 99");
    file.idem("dead-letters accept-loss q/order-9 --reason junk --yes")
        .refused("no dead letter from \"q/order-9\" is held");
    // As a payload that no row can keep is set aside.
    let held = format!("UPDATE idem_dead_letters SET payload = NULL WHERE id IN ({one}, {two})");
    let mut connection = SqliteConnection::connect(&file.url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(held)).execute(&mut connection).await.unwrap();
    assert_eq!(file.idem("stuck --json").json()["held_dead_letters"].as_array().unwrap().len(), 2);
    assert!(file.idem(&format!("dead-letters accept-loss {one} --reason junk --yes")).ok().contains("1 accepted"));
    assert!(file.idem("dead-letters accept-loss q/order-8 --reason junk --yes").ok().contains("1 accepted"));
    let lost = "SELECT loss_accepted_by FROM idem_dead_letters WHERE loss_accepted_at IS NOT NULL";
    assert_eq!(file.texts(lost).await, ["ada", "ada"]);
    let trail = file.trail().await;
    assert!(trail[0].starts_with(&format!("ada accept-loss order-7 dead letter {one} from q/order-7, ")), "{trail:?}");
    assert!(trail[0].contains("(raw/1): junk"), "{trail:?}");
}
