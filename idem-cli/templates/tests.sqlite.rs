use std::{error::Error, sync::Arc, time::UNIX_EPOCH};

use idem_service::idem_core::Decision;
use idem_testkit::{deliver, message};
use sqlx::{Connection, SqliteConnection};

use super::*;

/// The handler itself, on a file of its own. No broker is needed.
#[tokio::test]
async fn a_purchase_counts_once() -> Result<(), Box<dyn Error>> {
    let name = format!("@NAME@-{}.db", UNIX_EPOCH.elapsed()?.as_nanos());
    let path = std::env::temp_dir().join(name);
    let store = Arc::new(SqliteStore::open(&path).await?);
    store.migrate().await?;
    let mut database = SqliteConnection::connect(&format!("sqlite:{}", path.display())).await?;
    sqlx::raw_sql(TABLES).execute(&mut database).await?;

    let bought = |cents| message("order-1", format!(r#"{{"customer":"1","cents":{cents}}}"#));
    let handler = Arc::new(json_fn(buy));
    assert!(deliver(&store, &handler, bought(250)).await?.is_processed());
    assert!(deliver(&store, &handler, bought(250)).await?.is_skipped());
    let other_payload = deliver(&store, &handler, bought(999)).await?;
    assert!(matches!(other_payload, Decision::Conflict(..)));

    let cents = sqlx::query_scalar::<_, i64>("SELECT cents FROM customers WHERE customer = '1'");
    assert_eq!(cents.fetch_one(&mut database).await?, 250);
    Ok(())
}
