//! The table: made once by many, and refused where it is another one.

use std::{sync::Arc, time::Duration};

use idem_core::{
    ConsumerName, ErrorClass, Retention, Store as _, StoreError, Tenant,
    store::{Bookkeeping as _, Registration},
};
use idem_dynamodb::{
    DynamoStore,
    aws_sdk_dynamodb::types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TimeToLiveSpecification,
    },
};

use super::fixture::{client, unique, url};

fn store(name: &str) -> Arc<DynamoStore> {
    Arc::new(DynamoStore::of(client(&url()), name).build().unwrap())
}

/// A table with these keys, of type S, whose items expire by this attribute.
async fn table(keys: &[&str], expires_by: Option<&str>) -> String {
    let (name, client) = (unique("table"), client(&url()));
    let mut create = client.create_table().table_name(&name).billing_mode(BillingMode::PayPerRequest);
    for (key, kind) in keys.iter().zip([KeyType::Hash, KeyType::Range]) {
        let attribute = AttributeDefinition::builder().attribute_name(*key).attribute_type(ScalarAttributeType::S);
        create = create.attribute_definitions(attribute.build().unwrap());
        create = create.key_schema(KeySchemaElement::builder().attribute_name(*key).key_type(kind).build().unwrap());
    }
    create.send().await.unwrap();
    while client.describe_table().table_name(&name).send().await.unwrap().table.unwrap().table_status
        != Some(idem_dynamodb::aws_sdk_dynamodb::types::TableStatus::Active)
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Some(by) = expires_by {
        let by = TimeToLiveSpecification::builder().enabled(true).attribute_name(by).build().unwrap();
        client.update_time_to_live().table_name(&name).time_to_live_specification(by).send().await.unwrap();
    }
    name
}

async fn drop_table(name: &str) {
    client(&url()).delete_table().table_name(name).send().await.unwrap();
}

/// Workers that start together make one table, and each finds it usable.
#[tokio::test]
async fn a_table_is_made_once() {
    let name = unique("table");
    let error = store(&name).bookkeeping().verify().await.unwrap_err();
    assert!(matches!(error, StoreError::Schema { .. }) && error.to_string().contains("--migrate"), "{error}");
    let stores: Vec<_> = (0..4).map(|_| store(&name)).collect();
    for made in futures_util::future::join_all(stores.iter().map(|store| store.migrate())).await {
        made.unwrap();
    }
    store(&name).migrate().await.unwrap();
    store(&name).bookkeeping().verify().await.unwrap();
    drop_table(&name).await;
}

/// A table with other keys, or whose items expire by another attribute, is refused with the cure.
#[tokio::test]
async fn another_table_is_refused() {
    for (keys, expires_by, problem) in [
        (&["pk"][..], None, "has the keys"),
        (&["id", "sk"], None, "has the keys"),
        (&["pk", "sk"], Some("expires"), "expire by the attribute"),
    ] {
        let name = table(keys, expires_by).await;
        let error = store(&name).bookkeeping().verify().await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Fatal);
        assert!(error.to_string().contains(problem), "{error}");
        drop_table(&name).await;
    }
}

/// A table that nothing expires in is usable, and an operator is warned of its growth until it is set right.
#[tokio::test]
async fn a_table_without_expiry_is_warned_of() {
    let name = table(&["pk", "sk"], None).await;
    let warned = async || {
        let (store, orders) = (store(&name), ConsumerName::new("orders").unwrap());
        store.bookkeeping().verify().await.unwrap();
        let rules = vec!["raw/1".to_owned()];
        let orders = Registration::new(orders, Tenant::default(), "header:k".to_owned(), rules, Retention::Forever);
        store.bookkeeping().register(&orders).await.unwrap().warnings
    };
    let warnings = warned().await;
    assert!(warnings.len() == 1 && warnings[0].contains("do not expire"), "{warnings:?}");
    store(&name).migrate().await.unwrap();
    assert_eq!(warned().await, Vec::<String>::new());
    drop_table(&name).await;
}
