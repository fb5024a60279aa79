//! The table: it is made, and held against what this build needs.

use std::time::Duration;

use aws_sdk_dynamodb::{
    operation::create_table::CreateTableError,
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, MultiRegionConsistency, ScalarAttributeType,
        TableDescription, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
    },
};
use idem_core::{ErrorClass, StoreError};
use tokio::time::Instant;

use crate::{client::Requests, error::DynamoError, item::TTL};

/// How long a new table may take to become usable.
const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(200);

const MIGRATING: &str = "making the table";
const VERIFYING: &str = "verifying the table";

/// Makes the table, if there is none, and sets the attribute of expiry.
pub(crate) async fn migrate(requests: &Requests) -> Result<(), StoreError> {
    let is_there = describe(requests).await.map_err(|error| error.into_store(MIGRATING))?.is_some();
    if !is_there {
        create(requests).await?;
    }
    let table = ready(requests).await?;
    check_keys(requests, &table)?;
    if expires_by(requests).await.map_err(|error| error.into_store(MIGRATING))?.is_none() {
        let own = |error: String| StoreError::failed(MIGRATING, ErrorClass::Fatal, error);
        let by = TimeToLiveSpecification::builder().enabled(true).attribute_name(TTL).build();
        let by = by.map_err(|error| own(error.to_string()))?;
        let set = requests.client.update_time_to_live().table_name(&requests.table).time_to_live_specification(by);
        let set = set.send().await.map_err(|error| DynamoError::of("UpdateTimeToLive", error));
        // Another process may have been faster.
        if let Err(error) = set
            && !error.is("ValidationException")
        {
            return Err(error.into_store(MIGRATING));
        }
    }
    Ok(())
}

async fn create(requests: &Requests) -> Result<(), StoreError> {
    let mut create =
        requests.client.create_table().table_name(&requests.table).billing_mode(BillingMode::PayPerRequest);
    for (name, kind) in [("pk", KeyType::Hash), ("sk", KeyType::Range)] {
        let own = |error: aws_sdk_dynamodb::error::BuildError| {
            StoreError::failed(MIGRATING, ErrorClass::Fatal, error.to_string())
        };
        let key = KeySchemaElement::builder().attribute_name(name).key_type(kind).build().map_err(own)?;
        let attribute = AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
        create = create.key_schema(key).attribute_definitions(attribute.build().map_err(own)?);
    }
    match create.send().await {
        Ok(_) => Ok(()),
        // Another process makes it.
        Err(error) if matches!(error.as_service_error(), Some(CreateTableError::ResourceInUseException(_))) => Ok(()),
        Err(error) => Err(DynamoError::of("CreateTable", error).into_store(MIGRATING)),
    }
}

async fn ready(requests: &Requests) -> Result<TableDescription, StoreError> {
    let until = Instant::now() + READY_WITHIN;
    loop {
        match describe(requests).await.map_err(|error| error.into_store(MIGRATING))? {
            Some(table) if table.table_status == Some(TableStatus::Active) => return Ok(table),
            _ if Instant::now() >= until => {
                return Err(StoreError::unavailable(MIGRATING, "the table does not become active"));
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// `None` where there is no such table.
pub(crate) async fn describe(requests: &Requests) -> Result<Option<TableDescription>, DynamoError> {
    let describe = || requests.client.describe_table().table_name(&requests.table).send();
    match requests.again("DescribeTable", describe).await {
        Ok(answer) => Ok(answer.table),
        Err(error) if error.is("ResourceNotFoundException") => Ok(None),
        Err(error) => Err(error),
    }
}

/// The attribute by which items expire; `None` where they do not.
async fn expires_by(requests: &Requests) -> Result<Option<String>, DynamoError> {
    let describe = || requests.client.describe_time_to_live().table_name(&requests.table).send();
    let answer = requests.again("DescribeTimeToLive", describe).await?;
    let is_on = |status: Option<&TimeToLiveStatus>| {
        matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
    };
    Ok(answer
        .time_to_live_description
        .filter(|ttl| is_on(ttl.time_to_live_status()))
        .and_then(|ttl| ttl.attribute_name))
}

/// Refuses a table with which the promise cannot be kept. Answers warnings for an operator.
pub(crate) async fn verify(requests: &Requests) -> Result<Vec<String>, StoreError> {
    let name = &requests.table;
    let described = describe(requests).await.map_err(|error| error.into_store(VERIFYING))?;
    let Some(table) = described else {
        let cure = "Run the worker once with --migrate, or call DynamoStore::migrate";
        return Err(StoreError::schema(format!("there is no table {name:?}"), cure));
    };
    check_keys(requests, &table)?;
    if !table.replicas().is_empty() {
        let consistency = table.multi_region_consistency.as_ref().map_or("eventual", MultiRegionConsistency::as_str);
        let problem = format!("the table {name:?} is a global table, of consistency {consistency}");
        let cure = "Use a table of one region: a transaction of another region would not see a claim, or is refused";
        return Err(StoreError::refused(problem, cure));
    }
    let mut warnings = Vec::new();
    match expires_by(requests).await.map_err(|error| error.into_store(VERIFYING))? {
        Some(by) if by == TTL => {}
        Some(by) => {
            let problem = format!("the items of the table {name:?} expire by the attribute {by:?}, not by {TTL:?}");
            return Err(StoreError::schema(problem, format!("Set the time to live of the table to the attribute {TTL}")));
        }
        None => warnings.push(format!(
            "the items of the table {name:?} do not expire, and it grows: set its time to live to the attribute {TTL}, or \
             call DynamoStore::migrate"
        )),
    }
    let provisioned = table.provisioned_throughput().and_then(|units| units.write_capacity_units).unwrap_or_default();
    if (1..5).contains(&provisioned) {
        warnings.push(format!("the table {name:?} has {provisioned} write units a second: a message takes at least 3"));
    }
    Ok(warnings)
}

fn check_keys(requests: &Requests, table: &TableDescription) -> Result<(), StoreError> {
    let keys: Vec<_> = table.key_schema().iter().map(|key| (key.attribute_name(), key.key_type().as_str())).collect();
    let are_texts = table.attribute_definitions().iter().all(|attribute| {
        !["pk", "sk"].contains(&attribute.attribute_name()) || attribute.attribute_type() == &ScalarAttributeType::S
    });
    if keys == [("pk", "HASH"), ("sk", "RANGE")] && are_texts {
        return Ok(());
    }
    let problem = format!("the table {:?} has the keys {keys:?}, not pk and sk of type S", requests.table);
    Err(StoreError::schema(problem, "Give the store a table of its own, which DynamoStore::migrate makes"))
}
