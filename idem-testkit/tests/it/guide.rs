use std::{error::Error, sync::Arc};

use idem_testkit::idem_core::{Decision, Handler, HandlerError, Message, Tx, dead_letter::Reason};
use idem_testkit::{MemoryStore, deliver, message};

struct Ledger;

impl Handler<MemoryStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let cents: u64 = message.json()?;
        Ok(tx.connection().append("purchases", "cents", cents.to_string()).await?)
    }
}

#[tokio::test]
async fn a_purchase_is_written_once() -> Result<(), Box<dyn Error>> {
    let (store, ledger) = (Arc::new(MemoryStore::new()), Arc::new(Ledger));
    let first = deliver(&store, &ledger, message("order-1", "250")).await?;
    assert!(first.is_processed());
    let again = deliver(&store, &ledger, message("order-1", "250")).await?;
    assert!(again.is_skipped());
    let other_payload = deliver(&store, &ledger, message("order-1", "999")).await?;
    assert!(matches!(other_payload, Decision::Conflict(..)));
    let broken = deliver(&store, &ledger, message("order-2", "two euros")).await?;
    assert!(matches!(broken, Decision::Failed(failure) if failure.reason == Reason::Malformed));
    assert_eq!(store.rows("purchases").len(), 1);
    Ok(())
}
