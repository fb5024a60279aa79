//! DynamoDB.

use idem_core::BoxError;
use idem_dynamodb::{DynamoOptions, DynamoStore};
use idem_redis::RedisCopies;
use idem_sql::SchemaName;

use super::open::{Database, DatabaseSettings};

impl Database for DynamoStore {
    type Store = Self;

    const CLIENT: &'static str = "aws-sdk-dynamodb";
    const SCHEMES: &'static [&'static str] = &["dynamodb"];
    const TAKES_COPIES: bool = true;

    async fn open(settings: DatabaseSettings<'_>) -> Result<DynamoStore, BoxError> {
        if settings.schema() != SchemaName::DEFAULT {
            return Err("--schema is for SQL databases: on DynamoDB, name another table in --database-url".into());
        }
        let mut options = DynamoOptions::of_url(settings.url()).await?.copies_plain(settings.copies_plain());
        if let Some(url) = settings.redis_url() {
            options = options.copies(RedisCopies::connect(url)?);
        }
        Ok(options.build()?)
    }

    async fn prepare(store: &DynamoStore, settings: DatabaseSettings<'_>, _: &str) -> Result<(), BoxError> {
        if settings.migrate() {
            store.migrate().await?;
        }
        Ok(())
    }

    compiled_here!();
}
