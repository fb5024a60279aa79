//! Whether a server of PostgreSQL and its schema can keep the promise: looked at before the first message.

use idem_core::StoreError;

use crate::{
    check::{
        server::ServerFacts,
        verify::{SEQUENCES_BEHIND, SchemaFacts, SchemaProblem, verify_schema},
    },
    run::{
        bookkeeping::sequences,
        driver::{BookkeepingDriver, PostgresDriver, refused_login, row},
    },
};

pub(crate) async fn verify<D: PostgresDriver>(driver: &D) -> Result<(), StoreError> {
    verify_all(driver).await.map_err(|error| refused_login::<D>(&error).unwrap_or(error))
}

async fn verify_all(driver: &impl PostgresDriver) -> Result<(), StoreError> {
    driver.refuse_forgetful_pooler().await?;
    server_facts(driver).await?.verify()?;
    driver.refuse_unfenced().await?;
    let facts = schema_facts(driver).await?;
    verify_schema(&facts).map_err(|problems| SchemaProblem::refusal(&problems))
}

async fn server_facts(driver: &impl PostgresDriver) -> Result<ServerFacts, StoreError> {
    let row = row(driver, "looking at the server", &driver.statements().server_facts, &[]).await?;
    Ok(ServerFacts {
        version: row.get("version_num")?,
        in_recovery: row.get("in_recovery")?,
        read_only: row.get("read_only")?,
        read_only_source: row.get("read_only_source")?,
        encoding: row.get("encoding")?,
        role: row.get("role")?,
        synchronous_commit: row.get("synchronous_commit")?,
        idle_timeout: row.get("idle_in_transaction_session_timeout")?,
        isolation: row.get("default_transaction_isolation")?,
        current_schema: row.get("current_schema")?,
    })
}

async fn schema_facts(driver: &impl PostgresDriver) -> Result<SchemaFacts, StoreError> {
    let (doing, schema) = ("looking at the schema", driver.schema());
    let row = row(driver, doing, &driver.statements().schema_facts, &[schema.as_str().into()]).await?;
    let mut facts = SchemaFacts {
        schema: schema.clone(),
        migrations_table: row.get("migrations_table")?,
        version: None,
        oldest_worker: None,
        table_kind: row.get("table_kind")?,
        columns: row.get("columns")?,
        indexes: row.get("indexes")?,
        seal_triggers: row.get("seal_triggers")?,
        suppressors: row.get("suppressors")?,
        functions: row.get("functions")?,
        missing_privileges: row.get("missing_privileges")?,
        triggers_fire: row.get("triggers_fire")?,
        sequences_behind: Vec::new(),
    };
    // Without these rights the version cannot be read, and the missing right is the problem to report.
    let is_closed = |privilege: &String| privilege.starts_with("USAGE") || privilege == "SELECT on migrations";
    if facts.missing_privileges.iter().any(is_closed) {
        return Err(StoreError::Schema {
            problem: format!("the worker's role lacks {} in schema {schema}", facts.missing_privileges.join(", ")),
            cure: "Run the role script, then GRANT idem_worker TO the role that the worker connects as".to_owned(),
        });
    }
    if facts.migrations_table
        && let Some(row) = driver.rows(doing, &driver.statements().schema_version, &[]).await?.first()
    {
        facts.version = u32::try_from(row.get::<i32>("version")?).ok();
        facts.oldest_worker = row.get("oldest_worker")?;
    }
    // Without the function or the right to it, that is the problem to report.
    if facts.functions.iter().any(|function| function == SEQUENCES_BEHIND) && facts.missing_privileges.is_empty() {
        facts.sequences_behind = sequences::behind(driver).await?;
    }
    Ok(facts)
}

/// Warnings for a person, each with its cure.
pub(crate) async fn warnings(driver: &impl PostgresDriver) -> Result<Vec<String>, StoreError> {
    let facts = server_facts(driver).await?;
    let mut warnings = facts.warnings(driver.schema());
    if driver.is_plaintext_abroad() {
        warnings.push(
            "the connection to the database may be in plaintext: set sslmode=verify-full and sslrootcert".to_owned(),
        );
    }
    Ok(warnings)
}
