//! One transaction on a session.

use std::{
    fmt,
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use idem_core::{
    Recorded, StoreError, Tx, failpoint,
    store::{Claim, ClaimError, Claimed, CommitError, UnitOfWork, UnitOptions},
};
use idem_schema::{
    ClaimColumns, ClaimedId, PostgresStatements, claim_answers, claimed_ids, in_claim_order, key_id, retention,
};
use sqlx::{
    AssertSqlSafe, Connection as _, Postgres as Db,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use sqlx_core::transaction::TransactionManager as _;

use super::{Driver, Manager, PostgresSession, PostgresStore, driver, error};

/// Nested transactions that a handler may have left open; beyond that the connection is not worth the round trips.
const NESTED_MAX: usize = 64;

/// A unit of work: one open transaction on a [`PostgresSession`].
pub struct PostgresUnit<'l> {
    driver: &'l Driver,
    session: &'l mut PostgresSession,
    options: UnitOptions,
    /// The transaction's id, where a claim inserted something: only this transaction may be committed.
    xid: Option<String>,
    /// The server process that runs this transaction, as the claim saw it.
    backend_pid: Option<i32>,
    /// Whether a claim has put the session's own limits back.
    limits_are_back: bool,
}

impl fmt::Debug for PostgresUnit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresUnit").field("xid", &self.xid).finish_non_exhaustive()
    }
}

impl<'l> PostgresUnit<'l> {
    pub(super) fn new(driver: &'l Driver, session: &'l mut PostgresSession, options: UnitOptions) -> Self {
        let backend_pid = session.backend.map(|(pid, _)| pid);
        Self { driver, session, options, xid: None, backend_pid, limits_are_back: false }
    }

    fn sql(&self) -> &'l PostgresStatements {
        &self.driver.statements
    }

    fn query<'q>(&self, text: &Arc<str>) -> Query<'q, Db, PgArguments> {
        sqlx::query(AssertSqlSafe(Arc::clone(text))).persistent(self.driver.is_named())
    }

    fn depth(&self) -> usize {
        Manager::get_transaction_depth(&self.session.connection)
    }

    /// A second claim in one unit waits under idem's limit too.
    async fn limit_again(&mut self) -> Result<(), sqlx::Error> {
        let limit = self.options.busy_timeout.as_millis().clamp(1, 2_147_483_647);
        let text = format!("SET LOCAL statement_timeout = {limit}");
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.session.connection).await.map(|_| ())
    }

    async fn claim_one(&mut self, claim: &Claim) -> Result<Claimed, ClaimError> {
        let query = self.query(&self.sql().claim_one).bind(claim.scope.0).bind(key_id(claim.key.as_str()));
        let query = query
            .bind(claim.key.as_str())
            .bind(claim.hash.as_bytes().as_slice())
            .bind(claim.hash_rule.0)
            .bind(retention(claim.retention));
        let row = self.run_claim(query).await?;
        let xid: Option<&str> = error::get(&row, "xid")?;
        Ok(if xid.is_some() { Claimed::Inserted } else { Claimed::NotInserted })
    }

    async fn claim_many(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let (scopes, key_ids) = claimed_ids(claims);
        let ClaimColumns { keys, hashes, rules, retentions } = ClaimColumns::of(claims);
        let query = self.query(&self.sql().claim).bind(&scopes).bind(&key_ids);
        let row = self.run_claim(query.bind(keys).bind(hashes).bind(rules).bind(retentions)).await?;
        let won_consumers: Vec<i32> = error::get(&row, "won_consumers")?;
        let won_key_ids: Vec<_> = error::get(&row, "won_key_ids")?;
        let won: Vec<ClaimedId> = won_consumers.into_iter().zip(won_key_ids).collect();
        Ok(claim_answers(&scopes, &key_ids, &won))
    }

    /// Runs a claim that has its keys, and notes what its row says of the transaction.
    async fn run_claim(&mut self, keys: Query<'_, Db, PgArguments>) -> Result<PgRow, ClaimError> {
        let query = keys
            .bind(self.options.run.0)
            .bind(self.options.lane)
            .bind(&*self.session.lock_timeout)
            .bind(&*self.session.statement_timeout);
        let row = query.fetch_one(&mut self.session.connection).await.map_err(error::claiming)?;
        self.limits_are_back = true;
        if let Some(xid) = error::get::<Option<String>>(&row, "xid")? {
            self.xid = Some(xid);
        }
        self.backend_pid = Some(error::get(&row, "backend_pid")?);
        Ok(row)
    }

    /// Permits the COMMIT, or fails where it would be a lie.
    async fn seal(&mut self) -> Result<(), StoreError> {
        self.check()?;
        let query = match self.xid.take() {
            Some(xid) => self.query(&self.sql().seal).bind(xid),
            None => {
                // Nothing was claimed, so no trigger guards the COMMIT; handlers of unprotected messages may have written.
                let idle = self.options.idle_timeout.as_millis().clamp(1, 2_147_483_647);
                self.query(&self.sql().guard).bind(i64::try_from(idle).unwrap_or(i64::MAX))
            }
        };
        let query = query.bind(&*self.session.synchronous_commit);
        query.execute(&mut self.session.connection).await.map(|_| ()).map_err(error::sealing)
    }

    /// Sends COMMIT and waits for the answer.
    async fn send_commit(&mut self) -> Result<(), CommitError> {
        let mut commit = pin!(Manager::commit(&mut self.session.connection));
        // The first poll puts COMMIT on the wire, so that the failpoint lies between it and its answer.
        let first = poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx))).await;
        failpoint!(COMMIT_SENT).map_err(|injected| CommitError::Unknown(Box::new(injected)))?;
        match first {
            Poll::Ready(answer) => answer.map_err(error::committing),
            Poll::Pending => commit.await.map_err(error::committing),
        }
    }
}

impl UnitOfWork<PostgresStore> for PostgresUnit<'_> {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        if self.limits_are_back {
            self.limit_again().await.map_err(error::claiming)?;
        }
        match claims {
            [claim] => Ok(vec![self.claim_one(claim).await?]),
            _ => self.claim_many(claims).await,
        }
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        let (scopes, key_ids) = claimed_ids(claims);
        let query = self.query(&self.sql().read).bind(&scopes).bind(&key_ids);
        let rows = query.fetch_all(&mut self.session.connection).await;
        let rows = rows.map_err(|source| error::store("reading who has the keys", source))?;
        in_claim_order(claims, &key_ids, &driver::read(&rows)?)
    }

    fn tx(&mut self) -> Tx<'_, PostgresStore> {
        Tx::new(&mut self.session.connection)
    }

    fn check(&self) -> Result<(), StoreError> {
        let problem = match self.depth() {
            1 => return Ok(()),
            0 => "a handler has ended the transaction",
            _ => "a handler has left a nested transaction open",
        };
        Err(StoreError::Unsealed { problem: problem.to_owned(), source: None })
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        self.seal().await.map_err(CommitError::RolledBack)?;
        // Nothing is asked of the connection afterwards: its own count of transactions tells nothing of the server, and the
        // seal has refused whatever this COMMIT must not commit.
        self.send_commit().await
    }

    async fn rollback(self) -> Result<(), StoreError> {
        let doing = "rolling back";
        for _ in 0..NESTED_MAX {
            if self.depth() == 0 {
                break;
            }
            let is_nested = self.depth() > 1;
            match Manager::rollback(&mut self.session.connection).await {
                Ok(()) => {}
                // A handler has ended the transaction under sqlx's savepoints, which only sqlx could forget.
                Err(sqlx::Error::Database(_)) if is_nested => self.session.is_spent = true,
                Err(source) => return Err(error::store(doing, source)),
            }
            if self.session.is_spent {
                // The server's transaction ends with the connection, which the next unit replaces.
                return sqlx::raw_sql("ROLLBACK")
                    .execute(&mut self.session.connection)
                    .await
                    .map(|_| ())
                    .map_err(|source| error::store(doing, source));
            }
        }
        self.session.is_spent = self.depth() > 0;
        if self.xid.is_some() && self.session.connection.cached_statements_size() > 0 {
            // A handler failed, perhaps because a table was altered under a prepared statement, which then fails each
            // time it runs on this connection (A27).
            let clear = self.session.connection.clear_cached_statements().await;
            clear.map_err(|source| error::store(doing, source))?;
        }
        Ok(())
    }

    async fn abandon(self) {
        self.session.is_spent = true;
        let Some(pid) = self.backend_pid else { return };
        // The same role may do this. A cancel would not do: the handler's next statement may be on its way.
        let own = self.session.backend.filter(|(own, _)| *own == pid).map(|(_, start)| start);
        let terminate = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql().terminate_unit)));
        let terminate = terminate.bind(pid).bind(own).bind(self.xid.as_deref());
        let terminated = self.driver.once(&self.driver.framework, None, terminate);
        if let Err(error) = self.driver.within("ending an abandoned transaction", terminated).await {
            tracing::warn!(%error, "an abandoned transaction could not be ended; it ends when the server notices the closed connection");
        }
    }
}
