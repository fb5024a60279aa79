//! The classes of the server's errors, raised by a real server.

use idem_core::{ErrorClass, Store as _};
use idem_sql::SQLSTATES;
use idem_sqlx::PostgresStore;
use sqlx::Connection as _;

use super::fixture::Fixture;

/// J15: every code of the table, as sqlx reports it.
#[tokio::test]
async fn j15_every_sqlstate_has_its_class() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.connect().await;
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
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut connection).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some(code));
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
    let mut connection = fixture.connect().await;
    sqlx::raw_sql("BEGIN READ ONLY").execute(&mut connection).await.unwrap();
    let error = sqlx::query("INSERT INTO taken VALUES ('x')").execute(&mut connection).await.unwrap_err();
    assert_eq!(PostgresStore::classify(&error), Some(ErrorClass::Transient));
    connection.close().await.unwrap();
    fixture.drop().await;
}

/// S4: the server's report quotes the row, ours does not.
#[tokio::test]
async fn s4_a_description_names_the_constraint_and_no_value() {
    let fixture = Fixture::new().await;
    fixture.run("INSERT INTO taken VALUES ('canary-4111')").await;
    let query = sqlx::query("INSERT INTO taken VALUES ('canary-4111')");
    let error = query.execute(&fixture.admin).await.unwrap_err();
    assert!(format!("{error:?}").contains("canary-4111"), "the server quotes it");
    let text = PostgresStore::describe(&error).unwrap();
    assert_eq!(text, "SQLSTATE 23505 constraint taken_pkey table taken");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(PostgresStore::describe(source).unwrap(), text);
    fixture.drop().await;
}
