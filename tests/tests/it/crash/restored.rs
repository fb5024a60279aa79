//! O13: a database is restored from a backup that was made while a relay was in the middle of its work. The messages since then
//! come again, as after any restore.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Stdio},
};

use idem_core::failpoint;
use idem_testkit::memory::{Order, QueueOptions};
use idem_tests::{
    plan::{Plan, Relaying},
    told::{Told, read},
};

use super::{fixture::Fixture, matrix::BATCH, relays::by_ordering_key};
use crate::support::{
    database::{Database, Kind},
    postgres,
};

async fn runs(fixture: &mut Fixture, plan: &Plan) {
    let ended = fixture.start(plan, "").ended().await.expect("it ends");
    assert!(ended.status.success(), "{:?}", ended.unexpected::<()>("settled everything"));
}

/// Some of the events are published, and the relay is gone.
async fn relays_some(fixture: &mut Fixture, plan: &Plan) {
    let waiting = fixture.database.outbox().await.len();
    let armed = format!("{}=1*abort", failpoint::RELAY_SETTLED);
    let ended = fixture.start(plan, &armed).ended().await.expect("it ends");
    assert!(ended.aborted(), "{:?}", ended.unexpected::<()>("died"));
    let left = fixture.database.outbox().await.len();
    assert!(0 < left && left < waiting, "{left} of {waiting} are left");
}

/// Runs this test in a process with a cluster of its own if `pg_dump` is older than the server, which it refuses then. Answers whether it did.
async fn runs_where_pg_dump_can_read(test: &str) -> bool {
    let text = Command::new("pg_dump").arg("--version").output().expect("pg_dump").stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let version = text.split_whitespace().nth(2).and_then(|version| version.split('.').next()).expect("a version");
    let major = "SELECT current_setting('server_version_num')::int4 / 10000";
    let of_the_server: i32 = sqlx::query_scalar(major).fetch_one(&mut postgres::server().await).await.unwrap();
    if version.parse::<i32>().expect(&text) >= of_the_server {
        return false;
    }
    let servers = |arguments: &[&str]| {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../servers"));
        command.args(arguments).env("IDEM_POSTGRES_VERSION", version);
        command
    };
    // The cluster outlives the script, so it must not have our pipe.
    assert!(servers(&["scratch", "idem_tests_dumped"]).stdout(Stdio::null()).status().unwrap().success());
    let url = String::from_utf8(servers(&["url", "idem_tests_dumped"]).output().unwrap().stdout).unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    let again = again.args([test, "--exact"]).env("IDEM_POSTGRES_URL", url.trim()).status().unwrap();
    assert!(again.success(), "on PostgreSQL {version}");
    assert!(servers(&["scratch-down", "idem_tests_dumped"]).status().unwrap().success());
    true
}

/// O13: by pg_dump and pg_restore. What waited at the time of the backup goes again under its ids and numbers; what was committed later is
/// committed again under the ids that it had, and under numbers behind those; nothing is lost, and no other id comes.
#[tokio::test]
async fn o13_a_dumped_outbox_is_restored_postgres() {
    if runs_where_pg_dump_can_read("crash::restored::o13_a_dumped_outbox_is_restored_postgres").await {
        return;
    }
    let options = QueueOptions::default().order(Order::ByKey);
    let mut fixture = Fixture::new("postgres-restored", Kind::PostgresStore, BATCH, options).await;
    let (to, backup) = (fixture.folder().join("told"), fixture.folder().join("backup"));
    let relaying = |fixture: &Fixture| {
        let relay = Relaying { to: to.clone(), event_ms: 0, deadline_ms: 10_000 };
        Plan { relay: Some(relay), ..fixture.plan.clone() }
    };
    let (consuming, both) = (fixture.plan.clone(), relaying(&fixture));
    fixture.publish_wave();
    runs(&mut fixture, &consuming).await;
    let first = fixture.database.outbox().await;
    relays_some(&mut fixture, &both).await;
    let at_the_backup = fixture.database.numbered_events().await;
    fixture.database.dump(&backup).await;

    runs(&mut fixture, &both).await;
    let sent_until_then = fixture.ledger.sent().count();
    fixture.publish_wave();
    runs(&mut fixture, &consuming).await;
    let second = fixture.database.outbox().await;
    relays_some(&mut fixture, &both).await;
    let told_before = read(&to).expect("lines").len();

    let restored = Database::restored(&backup).await;
    std::mem::replace(&mut fixture.database, restored).remove().await;
    fixture.plan.store = fixture.database.plan();
    assert_eq!(fixture.database.numbered_events().await, at_the_backup);
    let (consuming, both) = (fixture.plan.clone(), relaying(&fixture));
    for sent in fixture.ledger.sent().skip(sent_until_then) {
        fixture.queue.publish(sent.message()).expect("the queue has room");
    }
    runs(&mut fixture, &consuming).await;
    let now = fixture.database.numbered_events().await;
    assert_eq!(now[..at_the_backup.len()], at_the_backup, "in the order of their numbers, these are first");
    assert_eq!(now.len(), at_the_backup.len() + second.len());
    runs(&mut fixture, &both).await;
    assert_eq!(fixture.database.outbox().await, []);

    let told = read(&to).expect("lines");
    let content = |told: &Told| (told.id.clone(), told.ordering_key.clone(), told.payload.clone());
    let committed: BTreeSet<_> = first.iter().chain(&second).map(content).collect();
    assert_eq!(told.iter().map(content).collect::<BTreeSet<_>>(), committed);
    let mut since: Vec<&str> = told[told_before..].iter().map(|told| told.id.as_str()).collect();
    let mut again: Vec<&str> = at_the_backup.iter().map(|(_, id)| id.as_str()).collect();
    again.extend(second.iter().map(|told| told.id.as_str()));
    since.sort_unstable();
    again.sort_unstable();
    assert_eq!(since, again, "each once, and none of those that were published before the backup");
    let mut seen = BTreeSet::new();
    let firsts = told.iter().filter(|told| seen.insert(told.id.clone()));
    assert_eq!(by_ordering_key(firsts), by_ordering_key(first.iter().chain(&second)));

    let mut effects: BTreeMap<String, usize> = BTreeMap::new();
    for effect in fixture.database.effects().await {
        *effects.entry(effect.message_key).or_default() += 1;
    }
    let once: BTreeMap<String, usize> = committed.into_iter().map(|(_, _, key)| (key, 1)).collect();
    assert_eq!(effects, once, "an effect for each event");
    fixture.remove().await;
}
