use std::{error::Error, sync::Arc, time::UNIX_EPOCH};

use idem_service::idem_core::Decision;
use idem_testkit::{deliver, message};

use super::*;

/// The handler itself, on the table of `DATABASE_URL`. No broker is needed.
#[tokio::test]
async fn a_purchase_counts_once() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL")?;
    let store = Arc::new(DynamoStore::connect(&url).await?);
    store.migrate().await?;

    // A key and a customer of this run's own: the table remembers those of the last one.
    let me = format!("test-{}", UNIX_EPOCH.elapsed()?.as_nanos());
    let bought = |cents| message(&me, format!(r#"{{"customer":"{me}","cents":{cents}}}"#));
    let handler = Arc::new(json_fn(buy));
    assert!(deliver(&store, &handler, bought(250)).await?.is_processed());
    assert!(deliver(&store, &handler, bought(250)).await?.is_skipped());
    let other_payload = deliver(&store, &handler, bought(999)).await?;
    assert!(matches!(other_payload, Decision::Conflict(..)));

    let total = store
        .client()
        .get_item()
        .table_name(store.table())
        .key("pk", S(format!("customer#{me}")))
        .key("sk", S("total".to_owned()))
        .consistent_read(true);
    let total = total.send().await?.item.ok_or("there is no total")?;
    assert_eq!(total["cents"], N("250".to_owned()));
    Ok(())
}
