//! Cleanup on a connection of its own, under the role that may delete (S8).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    Backlog, Cleaner, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed, StoreError,
};
use idem_schema::{CleanupStatements, UnitLimits, begin_unit};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{Postgres, error, microseconds};

type Statement = Query<'static, sqlx::Postgres, PgArguments>;

const DOING: &str = "cleaning up";

/// What the client waits for an answer beyond the limit that the server was given.
const MARGIN: Duration = Duration::from_secs(5);

/// How long the looks before and after the steps may take; they read an index, or the end of the audit trail.
const LOOK: Duration = Duration::from_secs(10);

/// Cleanup of one schema: what [`Cleanup`](idem_core::Cleanup) runs on. See [`Postgres::cleaner`].
#[derive(Debug)]
pub struct PostgresCleaner {
    store: Postgres,
    statements: CleanupStatements,
    /// Nobody else uses it, and it is in no transaction.
    connection: Option<PgConnection>,
}

impl Postgres {
    /// Cleanup of this store's schema, on the login of [`cleanup_with`](super::PostgresOptions::cleanup_with) where one
    /// was given, else on the store's own. Nothing is connected yet.
    #[must_use]
    pub fn cleaner(&self) -> PostgresCleaner {
        let statements = CleanupStatements::new(self.schema());
        PostgresCleaner { store: self.clone(), statements, connection: None }
    }
}

impl PostgresCleaner {
    /// How many rows a cycle would remove now. Runs of workers are not among them: nobody looks who names them for this.
    ///
    /// # Errors
    /// As [`Cleaner::backlog`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        let mut query = sqlx::query(AssertSqlSafe(self.statements.preview.clone()));
        for kept in [settings.units_kept, settings.attempts_kept, settings.dead_letters_kept, settings.audit_kept] {
            query = query.bind(microseconds(kept));
        }
        let rows = self.look(query).await?;
        let row = only(&rows)?;
        let counted = Expiring::ALL.into_iter().filter(|kind| *kind != Expiring::Runs);
        counted.map(|kind| Ok((kind, count(row, kind.table())?))).collect()
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        let options = &self.store.shared.options;
        self.store.connect_with(options.cleanup.as_ref().unwrap_or(&options.connection)).await
    }

    /// One transaction of its own, which limits hold and a pooler does not part. `None` where another cleaner was elected.
    async fn transaction(
        &mut self,
        begin: String,
        limit: Duration,
        statement: Statement,
    ) -> Result<Option<Vec<PgRow>>, StoreError> {
        // What a dropped call leaves is closed, because it may be in a transaction.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let trip = async {
            let answer = run(&mut connection, begin, statement).await;
            let is_refusal = matches!(&answer, Err(sqlx::Error::Database(_)));
            // The lock goes with the transaction. A connection that is only closed holds it until the server notices,
            // and this very cleaner would take itself for another one.
            let is_sound = !is_refusal || sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.is_ok();
            (answer, is_sound)
        };
        match tokio::time::timeout(limit + MARGIN, trip).await {
            Ok((answer @ (Ok(_) | Err(sqlx::Error::Database(_))), true)) => {
                self.connection = Some(connection);
                answer.map_err(failed)
            }
            Ok((answer, _)) => answer.map_err(failed),
            Err(elapsed) => Err(StoreError::Unavailable { doing: DOING, source: Box::new(elapsed) }),
        }
    }

    /// A statement that removes nothing, so that nobody has to be elected for it.
    async fn look(&mut self, statement: Statement) -> Result<Vec<PgRow>, StoreError> {
        Ok(self.transaction(begin(LOOK), LOOK, statement).await?.unwrap_or_default())
    }

    fn removal(&self, removal: &Removal) -> Statement {
        let sql = self.store.sql();
        let query = |text: &Arc<str>| sqlx::query(AssertSqlSafe(Arc::clone(text)));
        let rows_max = i64::from(removal.rows_max);
        // What is kept for longer than an int8 of microseconds tells is kept for as long as that tells.
        let kept = microseconds(removal.kept).unwrap_or(i64::MAX);
        let text = match removal.kind {
            Expiring::Records => return query(&sql.delete_expired).bind(rows_max),
            Expiring::Units => &sql.delete_units,
            Expiring::Attempts => &sql.delete_attempts,
            Expiring::DeadLetters => &sql.delete_dead_letters,
            Expiring::Audit => &sql.delete_audit,
            Expiring::Runs => {
                let text = self.statements.delete_runs.clone();
                return sqlx::query(AssertSqlSafe(text)).bind(kept).bind(rows_max);
            }
        };
        query(text).bind(kept).bind(rows_max)
    }
}

/// The text that begins a transaction in which nothing takes longer than this.
fn begin(limit: Duration) -> String {
    begin_unit(UnitLimits { lock: limit, statement: limit, idle_in_transaction: limit + MARGIN })
}

/// Begins, runs the statement, commits. Where the beginning elects, its answer decides whether the statement runs.
async fn run(
    connection: &mut PgConnection,
    begin: String,
    statement: Statement,
) -> Result<Option<Vec<PgRow>>, sqlx::Error> {
    let begun = sqlx::raw_sql(AssertSqlSafe(begin)).fetch_all(&mut *connection).await?;
    let elected: Option<String> = begun.first().map(|row| row.try_get_unchecked(0)).transpose()?;
    let rows = match elected.as_deref() {
        // Not prepared under a name: a plan that is cached while the table is tiny would go on to sort the whole table.
        None | Some("t") => Some(statement.persistent(false).fetch_all(&mut *connection).await?),
        Some(_) => None,
    };
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(rows)
}

/// The only row of a statement that always answers one.
fn only(rows: &[PgRow]) -> Result<&PgRow, StoreError> {
    rows.first().ok_or_else(|| error::store(DOING, sqlx::Error::RowNotFound))
}

/// What a failed statement means. A role without DELETE (S8) is told the cure: trying again changes nothing.
fn failed(source: sqlx::Error) -> StoreError {
    let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code);
    if code.as_deref() != Some("42501") {
        return error::store(DOING, source);
    }
    StoreError::Refused {
        problem: "this role may not remove what has expired".to_owned(),
        cure: "Run the role script and use a login in idem_cleanup".to_owned(),
    }
}

fn count(row: &PgRow, column: &str) -> Result<u64, StoreError> {
    Ok(u64::try_from(error::get::<i64>(row, column)?).unwrap_or(0))
}

fn span(row: &PgRow, column: &str) -> Result<Duration, StoreError> {
    Ok(Duration::from_micros(count(row, column)?))
}

#[async_trait]
impl Cleaner for PostgresCleaner {
    async fn may_delete(&mut self) -> Result<bool, StoreError> {
        let rows = self.look(sqlx::query(AssertSqlSafe(self.statements.may_delete.clone()))).await?;
        error::get(only(&rows)?, "may")
    }

    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        let elect = format!("{}; {}", begin(removal.timeout), self.statements.elect);
        let rows = self.transaction(elect, removal.timeout, self.removal(removal)).await?;
        match rows {
            Some(rows) => Ok(Removed::Rows(count(only(&rows)?, "deleted")?)),
            None => Ok(Removed::Elsewhere),
        }
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        let rows = self.look(sqlx::query(AssertSqlSafe(self.statements.backlog.clone()))).await?;
        let row = only(&rows)?;
        let records: i64 = error::get(row, "records")?;
        Ok(Backlog { lag: span(row, "lag")?, records: u64::try_from(records).ok() })
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        let rows = self.look(sqlx::query(AssertSqlSafe(self.statements.last.clone()))).await?;
        let last = |row| Ok(LastCleanup { who: error::get(row, "who")?, ago: span(row, "ago")? });
        rows.first().map(last).transpose()
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        let who = format!("{}, process {}", idem_schema::host_name(), std::process::id());
        let query = sqlx::query(AssertSqlSafe(self.statements.note.clone())).bind(who).bind(report.to_string());
        self.look(query).await.map(|_| ())
    }

    async fn rest(&mut self) {
        if let Some(connection) = self.connection.take() {
            // A server that does not answer must not hold up the next cycle.
            let _ = tokio::time::timeout(MARGIN, connection.close()).await;
        }
    }
}
