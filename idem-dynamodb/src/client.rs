//! The requests to idem's table: each within a time, and those outside of a commit again while that may help.

use std::{future::Future, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::{retry::RetryConfig, timeout::TimeoutConfig},
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        query::builders::QueryFluentBuilder, update_item::UpdateItemError,
        update_item::builders::UpdateItemFluentBuilder,
    },
    types::{AttributeValue, Delete, Put, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update},
};
use tokio::time::Instant;

use crate::{
    copies::Near,
    error::DynamoError,
    item::{At, Item},
    options::Limits,
    reasons::{Cancelled, of_transaction},
};

/// How long a request is repeated that is not answered, or refused for DynamoDB's load.
const AGAIN_FOR: Duration = Duration::from_secs(6);

/// The pauses before a request is repeated.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The client, and the table.
pub(crate) struct Requests {
    pub(crate) client: Client,
    pub(crate) table: String,
    pub(crate) limits: Limits,
    pub(crate) near: Option<Near>,
}

/// The answer to a write with a condition.
pub(crate) enum Conditional<T> {
    Done(T),
    /// The condition failed, on this item; `None` where there is none.
    Failed(Option<Item>),
}

/// The parts of an expression.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    pub(crate) update: String,
    pub(crate) condition: Option<String>,
    pub(crate) names: Vec<(&'static str, &'static str)>,
    pub(crate) values: Vec<(&'static str, AttributeValue)>,
}

impl Change {
    pub(crate) fn new(update: impl Into<String>) -> Self {
        Self { update: update.into(), ..Self::default() }
    }

    pub(crate) fn on(mut self, condition: impl Into<String>) -> Self {
        self.condition = Some(condition.into());
        self
    }

    pub(crate) fn name(mut self, placeholder: &'static str, name: &'static str) -> Self {
        self.names.push((placeholder, name));
        self
    }

    pub(crate) fn value(mut self, placeholder: &'static str, value: AttributeValue) -> Self {
        self.values.push((placeholder, value));
        self
    }
}

/// How long to wait before the try with this number, from 0, with full jitter.
pub(crate) fn pause(tries: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX).mul_f64(fastrand::f64())
}

impl Requests {
    pub(crate) fn new(client: &Client, table: String, limits: Limits, near: Option<Near>) -> Self {
        let config = client.config();
        let timeouts = config.timeout_config().map_or_else(TimeoutConfig::builder, TimeoutConfig::to_builder);
        let timeouts = timeouts.operation_attempt_timeout(limits.attempt).operation_timeout(limits.attempt).build();
        let config = config.to_builder().retry_config(RetryConfig::disabled()).timeout_config(timeouts);
        Self { client: Client::from_conf(config.build()), table, limits, near }
    }

    /// Repeats a request that does the same each time.
    pub(crate) async fn again<T, E, F>(
        &self,
        operation: &'static str,
        mut request: impl FnMut() -> F + Send,
    ) -> Result<T, DynamoError>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E>>> + Send,
    {
        let until = Instant::now() + AGAIN_FOR;
        let mut tries = 0;
        loop {
            let error = match request().await {
                Ok(answer) => return Ok(answer),
                Err(error) => DynamoError::of(operation, error),
            };
            if !error.passes() || Instant::now() >= until {
                return Err(error);
            }
            tokio::time::sleep(pause(tries)).await;
            tries += 1;
        }
    }

    /// Reads an item, with every write that was acknowledged before.
    pub(crate) async fn get(&self, at: &At) -> Result<Option<Item>, DynamoError> {
        let get =
            || self.client.get_item().table_name(&self.table).set_key(Some(at.attributes())).consistent_read(true);
        Ok(self.again("GetItem", || get().send()).await?.item)
    }

    pub(crate) async fn put(&self, at: &At, mut item: Item, condition: Option<&str>) -> Result<bool, DynamoError> {
        item.extend(at.attributes());
        let put = || {
            let put = self.client.put_item().table_name(&self.table).set_item(Some(item.clone()));
            put.set_condition_expression(condition.map(str::to_owned)).send()
        };
        match self.again("PutItem", put).await {
            Ok(_) => Ok(true),
            Err(error) if error.is("ConditionalCheckFailedException") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends one update, once.
    pub(crate) async fn update_once(&self, at: &At, change: &Change) -> Result<Conditional<Option<Item>>, DynamoError> {
        match self.update_request(at, change).send().await {
            Ok(answer) => Ok(Conditional::Done(answer.attributes)),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Conditional::Failed(failed.item.clone()))
                }
                Some(_) | None => Err(DynamoError::of("UpdateItem", error)),
            },
        }
    }

    /// The same, again while that may help. It must do the same each time, or its condition must show which time it was.
    pub(crate) async fn update(&self, at: &At, change: &Change) -> Result<Conditional<Option<Item>>, DynamoError> {
        let until = Instant::now() + AGAIN_FOR;
        let mut tries = 0;
        loop {
            match self.update_once(at, change).await {
                Err(error) if error.passes() && Instant::now() < until => tokio::time::sleep(pause(tries)).await,
                answer => return answer,
            }
            tries += 1;
        }
    }

    fn update_request(&self, at: &At, change: &Change) -> UpdateItemFluentBuilder {
        let mut request = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(at.attributes()))
            .update_expression(&change.update)
            .set_condition_expression(change.condition.clone())
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        for (placeholder, name) in &change.names {
            request = request.expression_attribute_names(*placeholder, *name);
        }
        for (placeholder, value) in &change.values {
            request = request.expression_attribute_values(*placeholder, value.clone());
        }
        request
    }

    pub(crate) async fn delete(&self, at: &At) -> Result<(), DynamoError> {
        let delete = || self.client.delete_item().table_name(&self.table).set_key(Some(at.attributes())).send();
        self.again("DeleteItem", delete).await.map(drop)
    }

    /// A query of one partition, from its beginning.
    pub(crate) fn query(&self, partition: &str) -> QueryFluentBuilder {
        self.client
            .query()
            .table_name(&self.table)
            .consistent_read(true)
            .key_condition_expression("pk = :pk")
            .expression_attribute_values(":pk", AttributeValue::S(partition.to_owned()))
    }

    /// All items of a query, up to `max`.
    pub(crate) async fn all(&self, query: QueryFluentBuilder, max: usize) -> Result<Vec<Item>, DynamoError> {
        let (mut items, mut from) = (Vec::new(), None);
        loop {
            let page = || query.clone().set_exclusive_start_key(from.clone()).send();
            let page = self.again("Query", page).await?;
            items.extend(page.items.unwrap_or_default());
            from = page.last_evaluated_key;
            if items.len() >= max || from.is_none() {
                items.truncate(max);
                return Ok(items);
            }
        }
    }

    /// Sends a transaction, once.
    pub(crate) async fn transact_once(&self, actions: &[TransactWriteItem], token: &str) -> Result<(), Cancelled> {
        let request = self.client.transact_write_items().client_request_token(token);
        request.set_transact_items(Some(actions.to_vec())).send().await.map(drop).map_err(of_transaction)
    }

    /// A transaction of bookkeeping, again with the same token while that may help. Answers whether its conditions held.
    pub(crate) async fn transact(&self, actions: &[TransactWriteItem]) -> Result<bool, DynamoError> {
        let (until, mut tries, mut token) = (Instant::now() + AGAIN_FOR, 0, token());
        loop {
            match self.transact_once(actions, &token).await {
                Ok(()) => return Ok(true),
                Err(cancelled) if cancelled.is_condition() => return Ok(false),
                Err(cancelled) if cancelled.passes() && Instant::now() < until => {
                    // A transaction that was cancelled can be sent under another token, and must be where DynamoDB remembers its end.
                    if !cancelled.is_unknown() {
                        token = self::token();
                    }
                    tokio::time::sleep(pause(tries)).await;
                    tries += 1;
                }
                Err(cancelled) => return Err(cancelled.into_error()),
            }
        }
    }

    /// An update as an action of a transaction.
    pub(crate) fn update_action(&self, at: &At, change: &Change) -> Result<TransactWriteItem, DynamoError> {
        let mut update = Update::builder()
            .table_name(&self.table)
            .set_key(Some(at.attributes()))
            .update_expression(&change.update)
            .set_condition_expression(change.condition.clone())
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        for (placeholder, name) in &change.names {
            update = update.expression_attribute_names(*placeholder, *name);
        }
        for (placeholder, value) in &change.values {
            update = update.expression_attribute_values(*placeholder, value.clone());
        }
        let update =
            update.build().map_err(|error| DynamoError::own("TransactWriteItems", "Unbuilt", error.to_string()))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    pub(crate) fn put_action(
        &self,
        at: &At,
        mut item: Item,
        condition: Option<&str>,
    ) -> Result<TransactWriteItem, DynamoError> {
        item.extend(at.attributes());
        let put = Put::builder().table_name(&self.table).set_item(Some(item));
        let put = put.set_condition_expression(condition.map(str::to_owned)).build();
        let put = put.map_err(|error| DynamoError::own("TransactWriteItems", "Unbuilt", error.to_string()))?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    pub(crate) fn delete_action(&self, at: &At) -> Result<TransactWriteItem, DynamoError> {
        self.delete_action_on(at, &Change::default())
    }

    /// The same on the condition of `on`, which changes nothing itself.
    pub(crate) fn delete_action_on(&self, at: &At, on: &Change) -> Result<TransactWriteItem, DynamoError> {
        let mut delete = Delete::builder().table_name(&self.table).set_key(Some(at.attributes()));
        delete = delete.set_condition_expression(on.condition.clone());
        for (placeholder, name) in &on.names {
            delete = delete.expression_attribute_names(*placeholder, *name);
        }
        for (placeholder, value) in &on.values {
            delete = delete.expression_attribute_values(*placeholder, value.clone());
        }
        let delete =
            delete.build().map_err(|error| DynamoError::own("TransactWriteItems", "Unbuilt", error.to_string()))?;
        Ok(TransactWriteItem::builder().delete(delete).build())
    }
}

/// A new token of a transaction, or of a claim.
pub(crate) fn token() -> String {
    uuid::Uuid::new_v4().to_string()
}
