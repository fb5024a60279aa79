use std::process::ExitCode;

use idem_service::{
    idem_dynamodb::aws_sdk_dynamodb::types::{
        AttributeValue::{N, S},
        Update,
    },
    prelude::*,
};

#[derive(serde::Deserialize)]
struct Purchase {
    customer: String,
    cents: i64,
}

async fn buy(bought: Purchase, tx: &mut Tx<'_, DynamoStore>) -> Result<(), HandlerError> {
    let mut tx = tx.connection();
    let add = Update::builder()
        .table_name(tx.table())
        .key("pk", S(format!("customer#{}", bought.customer)))
        .key("sk", S("total".to_owned()))
        .update_expression("ADD cents :cents")
        .expression_attribute_values(":cents", N(bought.cents.to_string()))
        .build()?;
    tx.write(add);
    Ok(())
}

fn main() -> ExitCode {
    Service::<@BROKER@, DynamoStore>::new("@NAME@", Effects::InTransaction, json_fn(buy)).run()
}

#[cfg(test)]
mod tests;
