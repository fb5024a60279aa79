//! Whether server and schema can keep the promise: looked at before the first message.

use idem_core::StoreError;
use idem_schema::{SchemaFacts, verify_schema};
use sqlx::postgres::PgRow;

use super::{Postgres, books, error::get};

/// PostgreSQL 14: TID range scans, `pg_current_xact_id`, `client_connection_check_interval`.
const VERSION_MIN: i32 = 140_000;

/// What start-up wants to know of the server.
pub(super) struct ServerFacts {
    version: i32,
    in_recovery: bool,
    read_only: bool,
    encoding: String,
    role: String,
    synchronous_commit: String,
    idle_timeout: String,
    isolation: String,
}

impl ServerFacts {
    fn read(row: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
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
}

fn refused(problem: String, cure: &str) -> StoreError {
    StoreError::Refused { problem, cure: cure.to_owned() }
}

impl Postgres {
    pub(super) async fn server_facts(&self) -> Result<ServerFacts, StoreError> {
        let doing = "looking at the server";
        let rows = self.rows(doing, || self.statement(&self.sql().server_facts)).await?;
        ServerFacts::read(books::only(&rows, doing)?)
    }

    pub(super) async fn verify_all(&self) -> Result<(), StoreError> {
        self.refuse_forgetful_pooler().await?;
        self.verify_server().await?;
        let facts = self.schema_facts().await?;
        verify_schema(&facts).map_err(|problems| {
            let (problems, cures): (Vec<_>, Vec<_>) =
                problems.into_iter().map(|problem| (problem.problem, problem.cure)).unzip();
            StoreError::Schema { problem: problems.join("; "), cure: distinct(cures).join(". ") }
        })
    }

    async fn verify_server(&self) -> Result<(), StoreError> {
        let facts = self.server_facts().await?;
        if facts.version < VERSION_MIN {
            let found = format!("{}.{}", facts.version / 10_000, facts.version % 10_000);
            return Err(refused(format!("the server is PostgreSQL {found}"), "Use PostgreSQL 14 or later"));
        }
        if facts.in_recovery {
            return Err(refused("the server is a standby (in recovery)".to_owned(), "Connect to the primary"));
        }
        if facts.read_only {
            return Err(refused(
                format!("default_transaction_read_only is on for the role {}", facts.role),
                "Connect to the primary; if this is it, turn the setting off for the server, the database and the role",
            ));
        }
        if facts.encoding != "UTF8" {
            return Err(refused(
                format!("server_encoding is {}", facts.encoding),
                "Keep idem's schema in a database with the encoding UTF8, because keys are compared as bytes of UTF-8",
            ));
        }
        Ok(())
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
        let mut warnings = Vec::new();
        if let weak @ ("off" | "local") = facts.synchronous_commit.as_str() {
            warnings.push(format!(
                "synchronous_commit is {weak}: a crash or failover can lose a commit whose message is already acknowledged; \
                 set it to on for the role {}",
                facts.role
            ));
        }
        if self.shared.options.is_plaintext_abroad() {
            warnings.push(
                "the connection to the database may be in plaintext: set sslmode=verify-full and sslrootcert"
                    .to_owned(),
            );
        }
        if facts.isolation != "read committed" {
            warnings.push(format!(
                "default_transaction_isolation is {:?}: units run at READ COMMITTED all the same, and your handlers with them",
                facts.isolation
            ));
        }
        if facts.idle_timeout != "0" {
            warnings.push(format!(
                "idle_in_transaction_session_timeout is {} for the role {}: units set their own, the handler's deadline \
                 and 5 s",
                facts.idle_timeout, facts.role
            ));
        }
        warnings
    }
}

fn distinct(texts: Vec<String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::with_capacity(texts.len());
    for text in texts {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cures_are_told_once() {
        let texts = ["a", "b", "a"].map(str::to_owned).to_vec();
        assert_eq!(distinct(texts), ["a", "b"]);
    }
}
