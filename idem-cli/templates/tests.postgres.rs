use std::{error::Error, sync::Arc, time::UNIX_EPOCH};

use idem_service::idem_core::Decision;
use idem_testkit::{deliver, message};
use sqlx::{Connection, PgConnection};

use super::*;

/// The handler itself, on the database of `DATABASE_URL`. No broker is needed.
#[tokio::test]
async fn a_purchase_counts_once() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL")?;
    let store = Arc::new(PostgresStore::connect(&url).await?);
    store.migrate().await?;
    let mut database = PgConnection::connect(&url).await?;
    sqlx::raw_sql(TABLES).execute(&mut database).await?;

    // A key and a customer of this run's own: the database remembers those of the last one.
    let me = format!("test-{}", UNIX_EPOCH.elapsed()?.as_nanos());
    let bought = |cents| message(&me, format!(r#"{{"customer":"{me}","cents":{cents}}}"#));
    let handler = Arc::new(json_fn(buy));
    assert!(deliver(&store, &handler, bought(250)).await?.is_processed());
    assert!(deliver(&store, &handler, bought(250)).await?.is_skipped());
    let other_payload = deliver(&store, &handler, bought(999)).await?;
    assert!(matches!(other_payload, Decision::Conflict(..)));

    let cents = "SELECT cents FROM customers WHERE customer = $1";
    let cents = sqlx::query_scalar::<_, i64>(cents).bind(&me);
    assert_eq!(cents.fetch_one(&mut database).await?, 250);
    Ok(())
}
