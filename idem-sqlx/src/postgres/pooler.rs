//! Whether a pooler in transaction mode loses prepared statements (A28).

use std::sync::atomic::Ordering;

use idem_core::StoreError;
use sqlx::{PgConnection, Row as _};

use super::{Postgres, error};

/// Rounds of looking, because other clients of the pooler can take the server connection in between.
const ROUNDS: usize = 3;

impl Postgres {
    /// Whether the connection is the server process's own for as long as it lives.
    pub(super) fn is_direct(&self) -> bool {
        self.shared.takes_settings.load(Ordering::Relaxed)
    }

    /// Refuses prepared statements under names where a pooler hands them to others. Looks once a store.
    pub(super) async fn refuse_forgetful_pooler(&self) -> Result<(), StoreError> {
        if !self.is_named() {
            return Ok(());
        }
        self.shared.pooler.get_or_try_init(|| self.look_for_pooler()).await.map(|_| ())
    }

    /// A pooler in transaction mode gives the server connection that the first client has just used to the second, which
    /// holds it in a transaction: a name is then taken where it should be free, or free where it should be taken.
    async fn look_for_pooler(&self) -> Result<(), StoreError> {
        let options = &self.shared.options.connection;
        for _ in 0..ROUNDS {
            let mut first = self.connect_with(options).await?;
            let mut second = self.connect_with(options).await?;
            let seen = self.within("looking for a pooler", prepare_on_both(&mut first, &mut second)).await;
            // Closed in good order, so that a pooler can use its server connections again.
            let _ = sqlx::Connection::close(second).await;
            let _ = sqlx::Connection::close(first).await;
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

async fn prepare_on_both(first: &mut PgConnection, second: &mut PgConnection) -> Result<Pids, sqlx::Error> {
    let before = pid(first).await?;
    sqlx::raw_sql("BEGIN").execute(&mut *second).await?;
    let held = pid(second).await?;
    let again = pid(first).await?;
    sqlx::raw_sql("ROLLBACK").execute(&mut *second).await?;
    Ok(Pids { first: before, second: held, again })
}

async fn pid(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query("SELECT pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}
