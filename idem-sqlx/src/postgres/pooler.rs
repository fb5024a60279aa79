//! Whether a pooler in transaction mode loses prepared statements (A28).

use idem_core::StoreError;
use idem_sql::{PostgresDriver as _, SeenPids, is_pooled};
use sqlx::{PgConnection, Row as _};

use super::Driver;

impl Driver {
    /// Refuses prepared statements under names where a pooler hands them to others. Looks once a store.
    pub(super) async fn look_for_pooler_once(&self) -> Result<(), StoreError> {
        if !self.is_named() {
            return Ok(());
        }
        let look = || async {
            // One that keeps them apart is welcome.
            is_pooled(self.seen_pids().await).map(|_| ())
        };
        self.pooler.get_or_try_init(look).await.map(|_| ())
    }

    /// Through a pooler that does not keep them apart, a name is taken here where it should be free, or free where it
    /// should be taken.
    pub(super) async fn look_through_two(&self) -> Result<SeenPids, StoreError> {
        let options = &self.options.connection;
        let mut first = self.connect_with(options).await?;
        let mut second = self.connect_with(options).await?;
        let seen = self.within("looking for a pooler", prepare_on_both(&mut first, &mut second)).await;
        // Closed in good order, so that a pooler can use its server connections again.
        let _ = sqlx::Connection::close(second).await;
        let _ = sqlx::Connection::close(first).await;
        seen
    }
}

async fn prepare_on_both(first: &mut PgConnection, second: &mut PgConnection) -> Result<SeenPids, sqlx::Error> {
    let mut rounds = 1;
    loop {
        let before = pid(first).await?;
        sqlx::raw_sql("BEGIN").execute(&mut *second).await?;
        let held = pid(second).await?;
        let again = pid(first).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut *second).await?;
        let seen = SeenPids { first: before, second: held, again };
        if seen.is_pooled() || rounds == SeenPids::ROUNDS {
            return Ok(seen);
        }
        rounds += 1;
    }
}

async fn pid(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query("SELECT pg_catalog.pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}
