//! The classes of the server's errors, raised by a real server.

use idem_core::{ErrorClass, Store as _};
use idem_sql::SQLSTATES;
use idem_tokio_postgres::PostgresStore;

use crate::fixture::Fixture;

/// J15: every code of the table, as tokio-postgres reports it.
#[tokio::test]
async fn j15_every_sqlstate_has_its_class() {
    let fixture = Fixture::new().await;
    let client = fixture.connect().await;
    let mut seen = 0;
    for line in SQLSTATES.lines() {
        let mut columns = line.split('\t');
        let (Some(code), Some(name), Some(class)) = (columns.next(), columns.next(), columns.next()) else {
            panic!("{line}")
        };
        // Successes and warnings cannot be raised as errors; whether 25006 is a standby's depends on where it was
        // raised.
        if matches!(&code[..2], "00" | "01" | "02") || code == "25006" {
            continue;
        }
        let text = format!("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$");
        let error = client.batch_execute(&text).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some(code));
        let classified = PostgresStore::classify(&error).map(|class| class.to_string());
        assert_eq!(classified.as_deref(), Some(class), "{code} {name}");
        seen += 1;
    }
    assert!(seen > 200, "{seen}");
    fixture.drop().await;
}

#[tokio::test]
async fn a23_a_handlers_write_after_its_own_rollback_is_its_own_fault() {
    let fixture = Fixture::new().await;
    let client = fixture.connect().await;
    client.batch_execute("BEGIN READ ONLY").await.unwrap();
    let error = client.execute("INSERT INTO taken VALUES ('x')", &[]).await.unwrap_err();
    assert_eq!(PostgresStore::classify(&error), Some(ErrorClass::Transient));
    drop(client);
    fixture.drop().await;
}

/// The driver's own errors: of the connection, or of one statement.
#[tokio::test]
async fn errors_of_the_drivers_own_are_told_apart() {
    let fixture = Fixture::new().await;
    let client = fixture.connect().await;
    let wrong_type = client.execute("INSERT INTO taken VALUES ($1)", &[&1_i64]).await.unwrap_err();
    let wrong_count = client.execute("INSERT INTO taken VALUES ($1)", &[]).await.unwrap_err();
    let no_row = client.query_one("SELECT 1 WHERE false", &[]).await.unwrap_err();
    let nul = client.batch_execute("SELECT '\0'").await.unwrap_err();
    for error in [wrong_type, wrong_count, no_row, nul] {
        assert_eq!(PostgresStore::classify(&error), Some(ErrorClass::Transient), "{error:?}");
    }
    let killed = client.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await.unwrap_err();
    let closed = client.batch_execute("SELECT 1").await.unwrap_err();
    for error in [killed, closed] {
        assert_eq!(PostgresStore::classify(&error), Some(ErrorClass::Infrastructure), "{error:?}");
    }
    fixture.drop().await;
}

/// S4: the server's report quotes the row, ours does not.
#[tokio::test]
async fn s4_a_description_names_the_constraint_and_no_value() {
    let fixture = Fixture::new().await;
    fixture.run("INSERT INTO taken VALUES ('canary-4111')").await;
    let client = fixture.connect().await;
    let error = client.execute("INSERT INTO taken VALUES ('canary-4111')", &[]).await.unwrap_err();
    assert!(format!("{error:?}").contains("canary-4111"), "the server quotes it");
    let text = PostgresStore::describe(&error).unwrap();
    assert_eq!(text, "SQLSTATE 23505 constraint taken_pkey table taken");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(PostgresStore::describe(source).unwrap(), text);
    fixture.drop().await;
}
