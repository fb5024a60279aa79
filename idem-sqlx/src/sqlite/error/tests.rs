use std::{error::Error as StdError, fmt};

use sqlx::{Connection, SqliteConnection};

use super::*;

const GOLDEN: &str = include_str!("../../../golden/sqlite_codes.tsv");

fn golden() -> impl Iterator<Item = (i32, &'static str, &'static str)> {
    GOLDEN.lines().map(|line| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap();
        (next().parse().unwrap(), next(), next())
    })
}

/// J15: every code that SQLite 3.51 defines, from its header.
#[test]
fn j15_every_result_code_has_its_class() {
    assert_eq!(golden().count(), 113);
    let mut errors = 0;
    for (code, name, class) in golden() {
        if class == "none" {
            assert!(codes::CODES.iter().all(|entry| entry.0 != code), "{name}");
            continue;
        }
        errors += 1;
        assert_eq!(codes::class_of(code).map(|class| class.to_string()).as_deref(), Some(class), "{name}");
        assert_eq!(codes::name_of(code), name);
    }
    assert_eq!(codes::CODES.len(), errors);
    assert!(codes::CODES.is_sorted_by_key(|entry| entry.0), "the look-up is a binary search");
}

#[test]
fn j15_an_unknown_code_takes_the_class_of_its_primary_code_or_none() {
    assert_eq!(codes::class_of(10 + 256 * 99), Some(ErrorClass::Infrastructure));
    assert_eq!(codes::class_of(5 + 256 * 99), Some(ErrorClass::RunUnitAgain));
    assert_eq!(codes::class_of(99), None);
    assert_eq!(codes::name_of(99), "an unknown code");
}

async fn error_of(sql: &'static str) -> Error {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap_err()
}

#[tokio::test]
async fn errors_of_sqlite_are_told_apart() {
    for (sql, class) in [
        ("SELECT * FROM missing", ErrorClass::Infrastructure),
        ("CREATE TABLE t (a); SELECT b FROM t", ErrorClass::Infrastructure),
        ("CREATE TABLE t (a); INSERT INTO t (b) VALUES (1)", ErrorClass::Infrastructure),
        ("SELEC 1", ErrorClass::Permanent),
        ("COMMIT", ErrorClass::Transient),
        ("CREATE TABLE t (a UNIQUE); INSERT INTO t VALUES (1), (1)", ErrorClass::Permanent),
        ("CREATE TABLE t (a CHECK (a > 0)); INSERT INTO t VALUES (0)", ErrorClass::Permanent),
        ("CREATE TABLE t (a INTEGER) STRICT; INSERT INTO t VALUES ('x')", ErrorClass::Permanent),
        (
            "PRAGMA foreign_keys = ON; CREATE TABLE p (a PRIMARY KEY); CREATE TABLE t (a REFERENCES p); \
             INSERT INTO t VALUES (1)",
            ErrorClass::Transient,
        ),
        (
            "CREATE TABLE t (a); CREATE TRIGGER r BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'no'); END; \
             INSERT INTO t VALUES (1)",
            ErrorClass::Transient,
        ),
    ] {
        let error = error_of(sql).await;
        assert_eq!(classify(&error), Some(class), "{sql}: {error}");
    }
    assert_eq!(classify(&Error::WorkerCrashed), Some(ErrorClass::Infrastructure));
    assert_eq!(classify(&Error::RowNotFound), Some(ErrorClass::Transient));
    assert_eq!(classify(&fmt::Error), None);
}

#[derive(Debug)]
struct Wrapped(Box<dyn StdError + Send + Sync>);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrapped")
    }
}

impl StdError for Wrapped {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

#[tokio::test]
async fn the_class_is_found_under_whatever_wraps_it() {
    let fresh = || error_of("CREATE TABLE t (a UNIQUE); INSERT INTO t VALUES (1), (1)");
    let wrapped = Wrapped(Box::new(Wrapped(Box::new(fresh().await))));
    assert_eq!(classify(&wrapped), Some(ErrorClass::Permanent));
    let boxed: Box<dyn DatabaseError> = fresh().await.into_database_error().unwrap();
    assert_eq!(classify(&Wrapped(Box::new(boxed))), Some(ErrorClass::Permanent));
    let bare: Box<SqliteError> = fresh().await.into_database_error().unwrap().downcast();
    assert_eq!(classify(&Wrapped(bare)), Some(ErrorClass::Permanent));
}

/// S4: the canary is a value that stands in the statement's text or in a row, and no description may hold it.
#[tokio::test]
async fn s4_descriptions_hold_no_value() {
    for (sql, text) in [
        ("SELECT * FROM 'canary'", "a table is missing (SQLITE_ERROR, code 1)"),
        ("SELECT \"canary\" FROM (SELECT 1 AS a)", ""),
        ("SELECT 1 'canary' 'canary'", "SQLite answered SQLITE_ERROR (code 1)"),
        (
            "CREATE TABLE t (a UNIQUE); INSERT INTO t VALUES ('canary'), ('canary')",
            "UNIQUE constraint failed: t.a (SQLITE_CONSTRAINT_UNIQUE, code 2067)",
        ),
        (
            "CREATE TABLE t (a INTEGER) STRICT; INSERT INTO t VALUES ('canary')",
            "cannot store TEXT value in INTEGER column t.a (SQLITE_CONSTRAINT_DATATYPE, code 3091)",
        ),
        (
            "CREATE TABLE t (a); CREATE TRIGGER r BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'canary'); END; \
             INSERT INTO t VALUES (1)",
            "SQLite answered SQLITE_CONSTRAINT_TRIGGER (code 1811)",
        ),
    ] {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        // Some builds of SQLite take a double-quoted word that names nothing for a text.
        let Err(error) = sqlx::raw_sql(sql).execute(&mut connection).await else { continue };
        let description = describe(&error).unwrap();
        assert!(!description.contains("canary"), "{description}");
        assert!(text.is_empty() || description == text, "{description}");
    }
    let decode = Error::Decode("canary".into());
    assert!(!describe(&decode).unwrap().contains("canary"));
    assert!(!describe(&Error::Protocol("canary".into())).unwrap().contains("canary"));
    assert_eq!(describe(&fmt::Error), None);
}
