use std::io;

use idem_core::BoxError;

use super::*;

#[derive(Debug, thiserror::Error)]
#[error("the ledger: {0}")]
struct Own(#[source] sqlx::Error);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Transparent(#[from] sqlx::Error);

fn cut() -> sqlx::Error {
    sqlx::Error::Io(io::ErrorKind::ConnectionReset.into())
}

#[test]
fn a_broken_connection_is_found_in_the_chain() {
    for error in [Box::new(cut()) as BoxError, Box::new(Own(cut()))] {
        assert_eq!(classify(&*error), Some(ErrorClass::Infrastructure), "{error:?}");
    }
    let missing = Own(sqlx::Error::RowNotFound);
    assert_eq!(classify(&missing), Some(ErrorClass::Transient));
    // D25: an `io::Error` by itself may be a file's or a provider's, and a transparent link hides the driver's own.
    assert_eq!(classify(&io::Error::other("x")), None);
    assert_eq!(classify(&Transparent(cut())), None);
    assert_eq!(classify(&std::fmt::Error), None);
}

#[test]
fn only_the_connections_own_protocol_errors_are_infrastructure() {
    let arguments = sqlx::Error::Protocol("PgConnection::run(): too many arguments for query: 70000".to_owned());
    assert_eq!(classify(&arguments), Some(ErrorClass::Transient));
    let garbled = sqlx::Error::Protocol("unexpected message".to_owned());
    assert_eq!(classify(&garbled), Some(ErrorClass::Infrastructure));
}

#[test]
fn a10_without_a_code_of_the_server_a_commit_is_unknown() {
    assert!(matches!(committing(cut()), CommitError::Unknown(_)));
    assert!(matches!(committing(sqlx::Error::Protocol(String::new())), CommitError::Unknown(_)));
    assert!(matches!(sealing(cut()), CommitError::Unknown(_)));
}

#[test]
fn s4_a_description_holds_no_value() {
    let error = sqlx::Error::ColumnDecode { index: "2".to_owned(), source: "4111-1111".into() };
    assert_eq!(describe(&error).unwrap(), "the column 2 cannot be decoded");
    assert_eq!(
        describe(&sqlx::Error::Protocol("4111".to_owned())).unwrap(),
        "the database answered something unexpected"
    );
    assert_eq!(describe(&Own(cut())), None);
}
