//! S8: what each role may do.

use std::{sync::Arc, time::Duration};

use idem_core::{Bookkeeping as _, Expiring, Removal, Removed, Store as _, StoreError};
use idem_schema::postgres_roles;
use sqlx::postgres::PgConnectOptions;

use super::{
    consumers::{Write, consumer, msg, process},
    fixture::{Fixture, url},
};

/// A login in one of the groups. Roles belong to the cluster, so its name is the schema's.
pub(super) async fn login(fixture: &Fixture, group: &str) -> PgConnectOptions {
    let name = format!("{}_{group}", fixture.schema);
    fixture.run(format!("CREATE ROLE {name} LOGIN IN ROLE {group}")).await;
    let options: PgConnectOptions = url().parse().unwrap();
    options.username(&name).options([("search_path", fixture.schema.as_str())])
}

pub(super) async fn arrange(fixture: &Fixture) {
    // Roles are the cluster's, and two scripts at once would meet on the same rows of the catalogue.
    fixture
        .run(format!("BEGIN; SELECT pg_advisory_xact_lock(4711); {}; COMMIT", postgres_roles(&fixture.schema)))
        .await;
    fixture.run("GRANT SELECT, INSERT ON effects TO idem_worker").await;
}

pub(super) async fn give_up(fixture: Fixture, groups: &[&str]) {
    for group in groups {
        fixture.run(format!("DROP OWNED BY {0}_{group}; DROP ROLE {0}_{group}", fixture.schema)).await;
    }
    fixture.drop().await;
}

#[tokio::test]
async fn s8_a_worker_needs_no_more_than_its_role_and_cannot_touch_a_record() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    let worker = login(&fixture, "idem_worker").await;
    let store = fixture.options_of(worker.clone()).build().unwrap();
    store.verify().await.unwrap();
    let consumer = consumer(store.clone(), Write);
    assert_eq!(process(&consumer, vec![msg("a"), msg("b")]).await, "PP");
    assert_eq!(process(&consumer, vec![msg("a"), msg("b")]).await, "DD");

    let mut connection = sqlx::ConnectOptions::connect(&worker).await.unwrap();
    for forbidden in [
        "DELETE FROM processed_messages",
        "UPDATE processed_messages SET expires_at = now()",
        "TRUNCATE processed_messages",
        "DELETE FROM units",
        "DELETE FROM dead_letters",
        "UPDATE consumers SET name = 'x'",
        "DELETE FROM audit",
        "ALTER TABLE units DISABLE TRIGGER refuse_unsealed_commit",
        "DROP TABLE processed_messages",
    ] {
        let error = sqlx::raw_sql(forbidden).execute(&mut connection).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{forbidden}");
    }
    let removal =
        Removal { kind: Expiring::Records, kept: Duration::ZERO, rows_max: 10, timeout: Duration::from_secs(30) };
    let refused = Arc::new(store.clone()).cleaner().remove(&removal).await;
    assert!(matches!(refused, Err(StoreError::Refused { cure, .. }) if cure.contains("idem_cleanup")));

    let cleaner = login(&fixture, "idem_cleanup").await;
    let store = fixture.options_of(worker).cleanup_with(cleaner).build().unwrap();
    fixture.run("UPDATE processed_messages SET expires_at = now() - interval '1 minute'").await;
    assert_eq!(Arc::new(store.clone()).cleaner().remove(&removal).await.unwrap(), Removed::Rows(2));
    drop((connection, consumer, store));
    give_up(fixture, &["idem_worker", "idem_cleanup"]).await;
}

#[tokio::test]
async fn s8_a_login_without_rights_is_refused_with_the_script() {
    let fixture = Fixture::new().await;
    arrange(&fixture).await;
    // The auditor may not even read the version of the schema, cleanup may.
    let groups = ["idem_auditor", "idem_cleanup"];
    for group in groups {
        let login = login(&fixture, group).await;
        let error = fixture.options_of(login).build().unwrap().verify().await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Schema { cure, .. } if cure.contains("role script")),
            "{group}: {error:?}"
        );
        assert!(error.to_string().contains("INSERT on processed_messages"), "{group}: {error}");
    }
    give_up(fixture, &groups).await;
}
