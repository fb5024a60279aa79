//! The ledger on DynamoDB, in idem's own table: `customer#NAME` has the total, and an item a purchase.

use idem_core::{
    Handler, HandlerError, Message, Tx,
    handler::{BatchAnswer, BatchHandler},
};
use idem_dynamodb::{
    DynamoStore, Item,
    aws_sdk_dynamodb::types::{
        AttributeValue::{N, S},
        Put, Update,
    },
};

use crate::{HANDLED_BY, Ledger, Purchase, key};

fn at(customer: &str, sort: String) -> Item {
    Item::from([("pk".to_owned(), S(format!("customer#{customer}"))), ("sk".to_owned(), S(sort))])
}

impl Handler<DynamoStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, DynamoStore>) -> Result<(), HandlerError> {
        let purchase = Purchase::read(message)?;
        let mut connection = tx.connection();
        let table = connection.table().to_owned();
        let total = Update::builder()
            .table_name(&table)
            .set_key(Some(at(&purchase.customer, "total".to_owned())))
            .update_expression("ADD purchases :one, cents :cents")
            .expression_attribute_values(":one", N("1".to_owned()))
            .expression_attribute_values(":cents", N(purchase.cents.to_string()))
            .build()?;
        // Drawn in each run, so that a double effect would show.
        let mut item = at(&purchase.customer, format!("purchase#{}#{}", key(message), idem_core::Uuid::new_v4()));
        item.extend([
            ("day".to_owned(), S(purchase.day.clone())),
            ("cds".to_owned(), N(purchase.cds.to_string())),
            ("cents".to_owned(), N(purchase.cents.to_string())),
            ("handled_by".to_owned(), S(HANDLED_BY.clone())),
        ]);
        connection.write(total);
        connection.write(Put::builder().table_name(&table).set_item(Some(item)).build()?);
        self.announce(message, &purchase, tx)
    }
}

/// Refused before it runs: each message is a unit of its own there.
impl BatchHandler<DynamoStore> for Ledger {
    async fn handle_batch(&self, _: &[&Message], _: &mut Tx<'_, DynamoStore>) -> Result<BatchAnswer, HandlerError> {
        Err(HandlerError::permanent("DynamoDB takes no batches"))
    }
}
