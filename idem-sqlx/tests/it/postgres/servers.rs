//! Servers that restart, stand by or refuse.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{ErrorClass, Store as _, StoreError, store::Bookkeeping as _};
use idem_sqlx::PostgresStore;
use sqlx::ConnectOptions as _;

use super::{
    consumers::{Write, builder, keys, process_until_done},
    fixture::{Fixture, url},
    scratch::Scratch,
};

#[tokio::test]
async fn a23_a_standby_is_refused_at_start_and_infrastructure_later() {
    let primary = Scratch::new("a23").await;
    let fixture = Fixture::on(&primary.url).await;
    let standby = Scratch::standby_of("a23s", &primary).await;
    let options: sqlx::postgres::PgConnectOptions = standby.url.parse().unwrap();
    let store = fixture.options_of(options.clone()).build().unwrap();
    assert!(
        matches!(store.bookkeeping().verify().await, Err(StoreError::Refused { problem, .. }) if problem.contains("standby"))
    );
    assert_eq!(store.open().await.unwrap_err().class(), ErrorClass::Infrastructure);
    let connection = options.connect().await.unwrap();
    assert_eq!(store.session_from(connection).await.unwrap_err().class(), ErrorClass::Infrastructure);
    standby.down().await;
    fixture.drop().await;
    primary.down().await;
}

/// A25: the server crashes again and again under load; everything is handled once, and no message is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_server_that_crashes_under_load() {
    let scratch = Scratch::new("a25").await;
    let fixture = Fixture::on(&scratch.url).await;
    let done = Arc::new(AtomicBool::new(false));
    let all = keys(100);
    let workers = (0..2).map(|_| {
        let consumer = builder(fixture.another(), Write).busy_timeout(Duration::from_secs(2)).build().unwrap();
        tokio::spawn(process_until_done(consumer, all.clone(), Arc::clone(&done)))
    });
    let workers: Vec<_> = workers.collect();
    for _ in 0..4 {
        scratch.crash().await;
        // Some work gets through between two crashes.
        fixture.forget_connections().await;
        fixture.run("DELETE FROM processed_messages WHERE false").await;
    }
    done.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
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
    let options: sqlx::postgres::PgConnectOptions = url().parse().unwrap();
    let store = fixture.options_of(options.username("nobody_here")).build().unwrap();
    assert!(matches!(store.bookkeeping().verify().await, Err(StoreError::Refused { .. })));
    fixture.drop().await;
}

/// S9: a server that is not plainly this machine is worth a warning, unless TLS is demanded.
#[tokio::test]
async fn s9_plaintext_beyond_this_machine_is_warned_about() {
    let fixture = Fixture::new().await;
    // A name of this machine that idem does not take for one.
    let abroad = fixture.connection.clone().host("LOCALHOST");
    let store = fixture.options_of(abroad).build().unwrap();
    let warnings = store.bookkeeping().register(&super::consumers::registration()).await.unwrap().warnings.join("\n");
    assert!(warnings.contains("plaintext") && warnings.contains("sslmode=verify-full"), "{warnings}");
    fixture.drop().await;
}

/// S26: with a login of the schema's name, what a handler makes without a schema comes into idem's own, which only that login
/// finds.
#[tokio::test]
async fn s26_a_login_whose_tables_come_into_idems_own_schema_is_told() {
    let fixture = Fixture::new().await;
    let registration = super::consumers::registration();
    for (path, is_told) in [(fixture.schema.as_str(), true), ("public", false)] {
        let options: sqlx::postgres::PgConnectOptions = url().parse().unwrap();
        let store = fixture.options_of(options.options([("search_path", path)])).build().unwrap();
        let warnings = store.bookkeeping().register(&registration).await.unwrap().warnings.join("\n");
        assert_eq!(warnings.contains("come into idem's own schema"), is_told, "{path}: {warnings}");
        assert_eq!(warnings.contains("SET search_path = public"), is_told, "{path}: {warnings}");
    }
    fixture.drop().await;
}
