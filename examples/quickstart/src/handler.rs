//! The handler, a user's own code. Copy it.

use idem_core::{Handler, HandlerError, Message, Tx};
use idem_sqlx::SqliteStore;

#[derive(Clone, serde::Deserialize)]
pub(crate) struct Purchase {
    pub(crate) customer: String,
    pub(crate) day: String,
    pub(crate) cds: u32,
    pub(crate) cents: i64,
}

pub(crate) struct Ledger;

impl Handler<SqliteStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let purchase: Purchase = message.json()?; // not JSON, or a member missing: a dead letter that says so
        sqlx::query("INSERT INTO purchases (customer, day, cds, cents) VALUES (?, ?, ?, ?)")
            .bind(purchase.customer)
            .bind(purchase.day)
            .bind(purchase.cds)
            .bind(purchase.cents)
            .execute(tx.connection()) // the transaction that also records the message's key
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use idem_sqlx::SqliteScratch;
    use idem_testkit::{message, prove};

    use super::*;
    use crate::ledger;

    #[tokio::test]
    async fn the_ledger_is_proved() {
        let databases = SqliteScratch::new(async |file: PathBuf| ledger::create(&file).await);
        let purchase = |number: u32, cents: i64| {
            let payload = format!(r#"{{"customer":"0000{number}","day":"1997-01-01","cds":1,"cents":{cents}}}"#);
            message(&format!("order-{number}"), payload)
        };
        let messages = [purchase(1, 1177), purchase(2, 1200), purchase(3, 1177), purchase(4, 0)];
        let proven =
            prove(databases, |_| Ledger).messages(messages).run().await.unwrap_or_else(|error| panic!("{error}"));
        println!("{proven}");
        assert!(proven.kills > 20 && proven.not_compared.is_empty(), "{proven}");
    }
}
