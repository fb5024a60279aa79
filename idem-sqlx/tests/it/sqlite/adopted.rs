//! Units on a connection that the application hands over and gets back.

use idem_testkit::Decide as _;
use sqlx::Connection;

use super::{File, consumer, fresh, message, names};

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_comes_back_as_it_was() {
    let (file, store) = fresh().await;
    let lane = store.adopt(file.connect().await).await.unwrap();
    let (lane, decisions) = consumer(&store).decisions_on(lane, vec![message("a", "1")]).await.unwrap();
    assert_eq!(names(&decisions), ["processed"]);
    let mut connection = lane.unwrap().into_connection().await.unwrap();
    // Without the hooks the application commits as it likes.
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("INSERT INTO effects VALUES ('theirs', '')").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(file.effects().await, ["a=1", "theirs="]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_another_file_or_in_a_transaction_is_refused() {
    let (file, store) = fresh().await;
    let other = File::new();
    std::fs::write(other.path(), "").unwrap();
    let error = store.adopt(other.connect().await).await.unwrap_err().to_string();
    assert!(error.contains("another database"), "{error}");
    let mut connection = file.connect().await;
    std::mem::forget(connection.begin().await.unwrap());
    let error = store.adopt(connection).await.unwrap_err().to_string();
    assert!(error.contains("in a transaction"), "{error}");
}
