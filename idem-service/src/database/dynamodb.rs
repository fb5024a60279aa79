//! DynamoDB.

use idem_core::BoxError;
use idem_dynamodb::DynamoStore;
use idem_sql::SchemaName;

use super::open::{Database, DatabaseSettings};

impl Database for DynamoStore {
    type Store = Self;

    const CLIENT: &'static str = "aws-sdk-dynamodb";
    const SCHEMES: &'static [&'static str] = &["dynamodb"];

    async fn open(settings: DatabaseSettings<'_>) -> Result<DynamoStore, BoxError> {
        if settings.schema() != SchemaName::DEFAULT {
            return Err("--schema is for SQL databases: on DynamoDB, name another table in --database-url".into());
        }
        Ok(DynamoStore::connect(settings.url()).await?)
    }

    async fn prepare(store: &DynamoStore, settings: DatabaseSettings<'_>, _: &str) -> Result<(), BoxError> {
        if settings.migrate() {
            store.migrate().await?;
        }
        Ok(())
    }

    compiled_here!();
}
