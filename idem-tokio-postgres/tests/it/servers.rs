//! Servers that restart, stand by or refuse.

use idem_testkit::Decide as _;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    ErrorClass, Store as _, StoreError,
    cleanup::{Expiring, Removal, Removed},
    store::Bookkeeping as _,
};
use idem_tokio_postgres::{
    PostgresStore,
    tokio_postgres::{Config, NoTls},
};

use crate::{
    consumers::{BOTH, Write, builder, consumer, keys, letters, messages, process, process_until_done},
    fixture::{Fixture, PATIENCE, url},
    scratch::Scratch,
};

#[tokio::test]
async fn a23_a_standby_is_refused_at_start_and_infrastructure_later() {
    let primary = Scratch::new("a23").await;
    let fixture = Fixture::on(&primary.url).await;
    let standby = Scratch::standby_of("a23s", &primary).await;
    let config: Config = standby.url.parse().unwrap();
    let store = fixture.options_of(config.clone()).build().unwrap();
    assert!(
        matches!(store.bookkeeping().verify().await, Err(StoreError::Refused { problem, .. }) if problem.contains("standby"))
    );
    assert_eq!(store.open().await.unwrap_err().class(), ErrorClass::Infrastructure);
    let (client, connection) = config.connect(NoTls).await.unwrap();
    assert_eq!(store.session_from(client, connection).await.unwrap_err().class(), ErrorClass::Infrastructure);
    standby.down().await;
    fixture.drop().await;
    primary.down().await;
}

/// A connection of one's own becomes a lane, and comes back after the work.
#[tokio::test]
async fn a_lane_is_made_of_a_connection_of_ones_own() {
    let fixture = Fixture::new().await;
    let (client, connection) = fixture.config.connect(NoTls).await.unwrap();
    let lane = fixture.store.session_from(client, connection).await.unwrap();
    let consumer = consumer(fixture.store.clone(), Write);
    let (lane, decisions) = consumer.decisions_on(lane, messages(&keys(2))).await.unwrap();
    assert_eq!(letters(&decisions), "PP");
    let (lane, decisions) = consumer.decisions_on(lane.unwrap(), messages(&keys(2))).await.unwrap();
    assert_eq!(letters(&decisions), "DD");
    fixture.store.close(lane.unwrap()).await;
    assert_eq!(fixture.effects().await, keys(2));
    fixture.drop().await;
}

/// A25: the server crashes again and again under load; everything is handled once, and no message is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_server_that_crashes_under_load() {
    let scratch = Scratch::new("a25").await;
    let fixture = Fixture::on(&scratch.url).await;
    let done = Arc::new(AtomicBool::new(false));
    let all = keys(100);
    let workers = BOTH.into_iter().map(|handlers| {
        let consumer = builder(fixture.another(), Write).handlers(handlers);
        let consumer = consumer.busy_timeout(Duration::from_secs(2)).build().unwrap();
        tokio::spawn(process_until_done(consumer, all.clone(), Arc::clone(&done)))
    });
    let workers: Vec<_> = workers.collect();
    for _ in 0..4 {
        scratch.crash().await;
        fixture.until_it_answers().await;
    }
    done.store(true, Ordering::SeqCst);
    for worker in workers {
        tokio::time::timeout(PATIENCE * 3, worker).await.expect("both come to an end").unwrap();
    }
    assert_eq!(fixture.effects().await, all, "each effect once");
    assert_eq!(fixture.text("SELECT count(*) FROM message_attempts").await, "0");
    fixture.drop().await;
    scratch.down().await;
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_and_a_wrong_login_is_refused() {
    let error = PostgresStore::connect("postgres://u:hunter2@127.0.0.1:1/x").await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Infrastructure);
    assert!(!format!("{error:?}").contains("hunter2"));
    let fixture = Fixture::new().await;
    let mut config: Config = url().parse().unwrap();
    config.user("nobody_here");
    let store = fixture.options_of(config).build().unwrap();
    assert!(matches!(store.bookkeeping().verify().await, Err(StoreError::Refused { .. })));
    fixture.drop().await;
}

/// S8: a worker's role has no right to delete, and says who has.
#[tokio::test]
async fn s8_a_worker_needs_no_more_than_its_role() {
    let fixture = Fixture::new().await;
    let script = idem_sql::postgres_roles(&fixture.schema);
    // Roles are the cluster's, and two scripts at once would meet on the same rows of the catalogue.
    fixture.run(format!("BEGIN; SELECT pg_advisory_xact_lock(4711); {script}; COMMIT")).await;
    let login = |group: &str| format!("{}_{group}", fixture.schema);
    fixture.run("GRANT SELECT, INSERT ON effects TO idem_worker").await;
    let mut configs = Vec::new();
    for group in ["idem_worker", "idem_cleanup"] {
        fixture.run(format!("CREATE ROLE {} LOGIN IN ROLE {group}", login(group))).await;
        let mut config = fixture.config.clone();
        configs.push(config.user(login(group)).clone());
    }
    let worker = fixture.options_of(configs[0].clone()).build().unwrap();
    worker.bookkeeping().verify().await.unwrap();
    assert_eq!(process(&consumer(worker.clone(), Write), messages(&keys(2))).await, "PP");
    let removal =
        Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 10, timeout: Duration::from_secs(30) };
    let refused = Arc::new(worker.clone()).cleaner().remove(&removal).await;
    assert!(matches!(refused, Err(StoreError::Refused { cure, .. }) if cure.contains("idem_cleanup")));
    let store = fixture.options_of(configs[0].clone()).cleanup_login(configs[1].clone()).build().unwrap();
    fixture.run("UPDATE processed_messages SET expires_at = now() - interval '1 minute'").await;
    assert_eq!(Arc::new(store.clone()).cleaner().remove(&removal).await.unwrap(), Removed::Rows(2));
    worker.disconnect().await;
    store.disconnect().await;
    for group in ["idem_worker", "idem_cleanup"] {
        fixture.run(format!("DROP OWNED BY {0}; DROP ROLE {0}", login(group))).await;
    }
    fixture.drop().await;
}
