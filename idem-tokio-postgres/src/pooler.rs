//! Whether a pooler in transaction mode loses prepared statements (A28).

use std::sync::atomic::Ordering;

use idem_core::StoreError;
use tokio_postgres::{Client, Error};

use crate::{Postgres, Statements, error};

/// Rounds of looking, because other clients of the pooler can take the server connection in between.
const ROUNDS: usize = 3;

impl Postgres {
    /// Whether the connection is the server process's own for as long as it lives.
    pub(crate) fn is_direct(&self) -> bool {
        self.shared.takes_settings.load(Ordering::Relaxed)
    }

    /// Refuses prepared statements under names where a pooler hands them to others. Looks once a store.
    pub(crate) async fn refuse_forgetful_pooler(&self) -> Result<(), StoreError> {
        if self.statements() == Statements::Unnamed {
            return Ok(());
        }
        self.shared.pooler.get_or_try_init(|| self.look_for_pooler()).await.map(|_| ())
    }

    /// A pooler in transaction mode gives the server connection that the first client has just used to the second, which
    /// holds it in a transaction: what the first has prepared is then missing.
    async fn look_for_pooler(&self) -> Result<(), StoreError> {
        let (config, limit) = (&self.shared.options.connection, self.shared.options.connect_timeout);
        for _ in 0..ROUNDS {
            let first = self.connect_with(config).await?;
            let second = self.connect_with(config).await?;
            let seen = self.within("looking for a pooler", prepare_on_both(&first.client, &second.client)).await;
            // Closed in good order, so that a pooler can use its server connections again.
            second.close(limit).await;
            first.close(limit).await;
            match seen {
                Ok(Pids { first, second, again }) if second == first || again != first => {
                    // A pooler it is, and one that keeps the names.
                    self.shared.takes_settings.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(_) => {}
                Err(StoreError::Unavailable { source, .. }) if error::is_pooler(&*source) => {
                    return Err(StoreError::Refused {
                        problem: "statements is Named, and a pooler in transaction mode loses prepared statements"
                            .to_owned(),
                        cure: error::POOLER_CURE.to_owned(),
                    });
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

/// The server processes that answered: the first client's, the second's, and the first's again.
struct Pids {
    first: i32,
    second: i32,
    again: i32,
}

async fn prepare_on_both(first: &Client, second: &Client) -> Result<Pids, Error> {
    let text = "SELECT pg_backend_pid()";
    let prepared = first.prepare(text).await?;
    let before = first.query_one(&prepared, &[]).await?.try_get(0)?;
    second.batch_execute("BEGIN").await?;
    let held = second.query_typed_one(text, &[]).await?.try_get(0)?;
    let again = first.query_one(&prepared, &[]).await?.try_get(0)?;
    second.batch_execute("ROLLBACK").await?;
    Ok(Pids { first: before, second: held, again })
}
