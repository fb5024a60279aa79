//! Whether a pooler in transaction mode loses prepared statements (A28).

use idem_core::StoreError;
use idem_sql::{PostgresDriver as _, SeenPids, is_pooled};
use tokio_postgres::{Client, Error};

use crate::{Pooler, driver::Driver};

impl Driver {
    /// Refuses prepared statements under names where a pooler hands them to others. Looks once a store.
    pub(crate) async fn look_for_pooler_once(&self) -> Result<(), StoreError> {
        if self.naming() == Pooler::Transaction {
            return Ok(());
        }
        let look = || async {
            // One that keeps them apart is welcome.
            is_pooled(self.seen_pids().await).map(|_| ())
        };
        self.pooler.get_or_try_init(look).await.map(|_| ())
    }

    /// Through a pooler that does not keep them apart, what the first client has prepared is missing.
    pub(crate) async fn look_through_two(&self) -> Result<SeenPids, StoreError> {
        let options = &self.options;
        let first = self.connect_with(&options.connection).await?;
        let second = self.connect_with(&options.connection).await?;
        let seen = self.within("looking for a pooler", prepare_on_both(&first.client, &second.client)).await;
        // Closed in good order, so that a pooler can use its server connections again.
        second.close(options.settings.connect_timeout).await;
        first.close(options.settings.connect_timeout).await;
        seen
    }
}

async fn prepare_on_both(first: &Client, second: &Client) -> Result<SeenPids, Error> {
    let text = "SELECT pg_catalog.pg_backend_pid()";
    let mut rounds = 1;
    loop {
        let prepared = first.prepare(text).await?;
        let before = first.query_one(&prepared, &[]).await?.try_get(0)?;
        second.batch_execute("BEGIN").await?;
        let held = second.query_typed_one(text, &[]).await?.try_get(0)?;
        let again = first.query_one(&prepared, &[]).await?.try_get(0)?;
        second.batch_execute("ROLLBACK").await?;
        let seen = SeenPids { first: before, second: held, again };
        if seen.is_pooled() || rounds == SeenPids::ROUNDS {
            return Ok(seen);
        }
        rounds += 1;
    }
}
