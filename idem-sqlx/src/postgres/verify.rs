//! Whether server and schema can keep the promise: looked at before the first message.

use idem_core::StoreError;
use idem_schema::{SchemaFacts, SchemaProblem, ServerFacts, verify_schema};

use super::{Postgres, books, error::get};

impl Postgres {
    pub(super) async fn server_facts(&self) -> Result<ServerFacts, StoreError> {
        let doing = "looking at the server";
        let rows = self.rows(doing, || self.statement(&self.sql().server_facts)).await?;
        let row = books::only(&rows, doing)?;
        Ok(ServerFacts {
            version: get(row, "version_num")?,
            in_recovery: get(row, "in_recovery")?,
            read_only: get(row, "read_only")?,
            encoding: get(row, "encoding")?,
            role: get(row, "role")?,
            synchronous_commit: get(row, "synchronous_commit")?,
            idle_timeout: get(row, "idle_in_transaction_session_timeout")?,
            isolation: get(row, "default_transaction_isolation")?,
        })
    }

    pub(super) async fn verify_all(&self) -> Result<(), StoreError> {
        self.refuse_forgetful_pooler().await?;
        self.server_facts().await?.verify()?;
        let facts = self.schema_facts().await?;
        verify_schema(&facts).map_err(|problems| SchemaProblem::refusal(&problems))
    }

    async fn schema_facts(&self) -> Result<SchemaFacts, StoreError> {
        let doing = "looking at the schema";
        let schema = self.schema();
        let rows = self.rows(doing, || self.statement(&self.sql().schema_facts).bind(schema.as_str())).await?;
        let row = books::only(&rows, doing)?;
        let mut facts = SchemaFacts {
            schema: schema.clone(),
            migrations_table: get(row, "migrations_table")?,
            version: None,
            oldest_worker: None,
            table_kind: get(row, "table_kind")?,
            columns: get(row, "columns")?,
            indexes: get(row, "indexes")?,
            seal_trigger: get(row, "seal_trigger")?,
            suppressors: get(row, "suppressors")?,
            functions: get(row, "functions")?,
            missing_privileges: get(row, "missing_privileges")?,
            triggers_fire: get(row, "triggers_fire")?,
        };
        // Without these rights the version cannot be read, and the missing right is what has to be told.
        let is_closed = |privilege: &String| privilege.starts_with("USAGE") || privilege == "SELECT on migrations";
        if facts.missing_privileges.iter().any(is_closed) {
            return Err(StoreError::Schema {
                problem: format!("the worker's role lacks {} in schema {schema}", facts.missing_privileges.join(", ")),
                cure: "Run the role script, then GRANT idem_worker TO the role that the worker connects as".to_owned(),
            });
        }
        if facts.migrations_table {
            let rows = self.rows(doing, || self.statement(&self.sql().schema_version)).await?;
            if let Some(row) = rows.first() {
                facts.version = u32::try_from(get::<i32>(row, "version")?).ok();
                facts.oldest_worker = get(row, "oldest_worker")?;
            }
        }
        Ok(facts)
    }

    /// What a person should know, each with its cure.
    pub(super) fn warnings(&self, facts: &ServerFacts) -> Vec<String> {
        let mut warnings = facts.warnings();
        if self.shared.options.is_plaintext_abroad() {
            warnings.push(
                "the connection to the database may be in plaintext: set sslmode=verify-full and sslrootcert"
                    .to_owned(),
            );
        }
        warnings
    }
}
