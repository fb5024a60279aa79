//! Cleanup on PostgreSQL: written once for every driver, and the same as a script for a scheduler of the database's own.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idem_core::{
    StoreError,
    cleanup::{Backlog, Cleaner, CleanupReport, CleanupSettings, Expiring, LastCleanup, Removal, Removed},
    internal::chain,
};

use crate::{
    check::errors::unreadable,
    run::{
        driver::{Parameter, PostgresDriver},
        host::host_name,
        row::{Row, microseconds, session},
    },
    text::{
        cleanup::CleanupStatements,
        postgres::{UnitLimits, begin_unit},
    },
};

/// How long the looks before and after the steps may take; they read an index, or the end of the audit trail.
const LOOK: Duration = Duration::from_secs(10);

/// How long a count of the rows to remove may take, which reads whole tables.
const COUNT: Duration = Duration::from_secs(600);

/// How long the server lets the connection idle in a step's transaction.
const IDLE: Duration = Duration::from_secs(5);

/// Cleanup of one schema, on the login for cleanup where one was given, else on the store's own.
#[derive(Debug)]
pub struct PostgresCleaner<D> {
    driver: Arc<D>,
    statements: CleanupStatements,
}

impl<D: PostgresDriver> PostgresCleaner<D> {
    /// Cleanup through this driver. Nothing is connected yet.
    pub fn new(driver: Arc<D>) -> Self {
        let statements = CleanupStatements::new(driver.schema());
        Self { driver, statements }
    }

    async fn rows(&self, limit: Duration, text: &Arc<str>, values: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        let limits = UnitLimits { lock: limit, statement: limit, idle_in_transaction: limit + IDLE };
        let begin = begin_unit(Some(limits), None);
        self.driver.clean_once(&begin, limit, text, values).await.map_err(no_right_to_delete::<D>)
    }

    async fn row(&self, limit: Duration, text: &Arc<str>, values: &[Parameter<'_>]) -> Result<Row, StoreError> {
        let rows = self.rows(limit, text, values).await?;
        rows.into_iter().next().ok_or_else(|| unreadable("no row came of cleaning up"))
    }
}

#[async_trait]
impl<D: PostgresDriver + 'static> Cleaner for PostgresCleaner<D> {
    async fn may_delete(&mut self) -> Result<bool, StoreError> {
        self.row(LOOK, &self.statements.may_delete, &[]).await?.get("may")
    }

    async fn remove(&mut self, removal: &Removal) -> Result<Removed, StoreError> {
        let parameters = [i64::from(removal.rows_max).into(), kept(removal.kept).into()];
        let text = self.statements.remove(removal.kind);
        let row = self.row(removal.timeout, text, &parameters).await?;
        if !row.get("elected")? {
            return Ok(Removed::Elsewhere);
        }
        let held = number(&row, "held")?;
        if held > 0 {
            let holders = row.get::<Option<&str>>("holders")?.unwrap_or("sessions that are not known");
            tracing::warn!(
                table = %removal.kind, rows = held, holders,
                "expired rows are locked by other sessions and stay for the next cycle; end these sessions if they do not end by themselves"
            );
        }
        Ok(Removed::Rows(number(&row, "removed")?))
    }

    async fn preview(&mut self, settings: &CleanupSettings) -> Result<Vec<(Expiring, u64)>, StoreError> {
        let mut counts = Vec::with_capacity(Expiring::ALL.len());
        for kind in Expiring::ALL {
            let parameters = [0_i64.into(), kept(settings.kept(kind).unwrap_or_default()).into()];
            let row = self.row(COUNT, self.statements.count(kind), &parameters).await?;
            counts.push((kind, number(&row, "rows")?));
        }
        Ok(counts)
    }

    async fn backlog(&mut self) -> Result<Backlog, StoreError> {
        let row = self.row(LOOK, &self.statements.backlog, &[]).await?;
        Ok(Backlog { lag: Duration::from_micros(number(&row, "lag")?) })
    }

    async fn last(&mut self) -> Result<Option<LastCleanup>, StoreError> {
        let rows = self.rows(LOOK, &self.statements.last, &[]).await?;
        let last =
            |row: &Row| Ok(LastCleanup { who: row.get("who")?, ago: Duration::from_micros(number(row, "ago")?) });
        rows.first().map(last).transpose()
    }

    async fn note(&mut self, report: &CleanupReport) -> Result<(), StoreError> {
        let who = format!("{}, process {}", host_name(), std::process::id());
        let details = report.to_string();
        let parameters = [who.as_str().into(), details.as_str().into(), report.action().into()];
        self.rows(LOOK, &self.statements.note, &parameters).await.map(|_| ())
    }

    async fn holder(&mut self) -> Result<Option<String>, StoreError> {
        let rows = self.rows(LOOK, &self.statements.holder, &[]).await?;
        let named = |row: &Row| Ok(format!("{}, transaction {}", session(row)?, row.get::<&str>("transaction")?));
        rows.first().map(named).transpose()
    }

    async fn rest(&mut self) {
        self.driver.rest().await;
    }
}

/// A time beyond an `int8` of microseconds counts as the longest that fits.
fn kept(time: Duration) -> i64 {
    microseconds(time).unwrap_or(i64::MAX)
}

fn number(row: &Row, column: &str) -> Result<u64, StoreError> {
    Ok(u64::try_from(row.get::<i64>(column)?).unwrap_or(0))
}

/// A worker's role has no DELETE (S8): another role cleans up, and trying again does not change that.
fn no_right_to_delete<D: PostgresDriver>(error: StoreError) -> StoreError {
    let code = chain(&error).find_map(D::sqlstate);
    if code.as_deref() != Some("42501") {
        return error;
    }
    StoreError::Refused {
        problem: "this role may not remove expired rows".to_owned(),
        cure: "Run the role script and use a login in idem_cleanup (PostgresOptions::cleanup_login), or turn the \
               worker's cleanup off and run `idem cleanup` elsewhere"
            .to_owned(),
    }
}
