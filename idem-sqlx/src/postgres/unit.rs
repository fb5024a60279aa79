//! One transaction on a session.

use std::{fmt, future::poll_fn, sync::Arc, task::Poll, time::SystemTime};

use futures_util::StreamExt as _;
use idem_core::{
    StoreError, Tx, failpoint,
    message::OrderingKey,
    outbox::{AppendError, Appended, NewEvent},
    results::{KeptResult, NewResult},
    store::{Ahead, Claim, ClaimError, Claimed, CommitError, Found, Recorded, ScopeId, UnitOfWork, UnitOptions},
};
use idem_sql::{
    ClaimColumns, ClaimedId, PostgresStatements, claim_answers, claimed_ids, from_microseconds, in_claim_order, key_id,
    ordering_keys, refuse_other_backend, retention, rows_ahead, unreadable,
};
use sqlx::{
    AssertSqlSafe, Connection as _, Either, Postgres as Db, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use sqlx_core::transaction::TransactionManager as _;

use super::{Driver, Manager, PostgresSession, PostgresStore, append, driver, error};

/// Whether this is the answer to the seal of that transaction, or to the guard where there is none.
fn is_answer(row: &PgRow, xid: Option<&str>) -> bool {
    row.try_get_unchecked::<&str, _>(0).is_ok_and(|sealed| sealed == xid.unwrap_or("1"))
}

fn other_answer() -> CommitError {
    CommitError::Unknown("the answer to the seal was another statement's".into())
}

/// A statement of idem's own with literals in place of its two parameters, and the COMMIT behind it.
fn literal(statement: &str, first: &str, second: &str) -> String {
    format!("{}; COMMIT", statement.replace("$1", first).replace("$2", second))
}

/// Nested transactions that a handler may have left open; beyond that the connection is not worth the round trips.
const NESTED_MAX: usize = 64;

/// A unit of work: one open transaction on a [`PostgresSession`].
pub struct PostgresUnit {
    pub(super) driver: Arc<Driver>,
    pub(super) session: PostgresSession,
    options: UnitOptions,
    /// The transaction's id, where a claim inserted something: only this transaction may be committed.
    xid: Option<String>,
    /// When its records were processed, in µs since the Unix epoch.
    processed_at: Option<i64>,
    /// The server process that runs this transaction, as the claim saw it.
    backend_pid: Option<i32>,
    /// Events that are written before the seal.
    pub(super) events: Vec<NewEvent>,
    /// Answers that the seal writes.
    pub(super) results: Vec<NewResult>,
    /// Whether a claim has put the session's own limits back.
    limits_are_back: bool,
    /// Whether rows of any ordering key of the claimed consumers are not over.
    waits: bool,
}

impl fmt::Debug for PostgresUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresUnit").field("xid", &self.xid).finish_non_exhaustive()
    }
}

impl PostgresUnit {
    pub(super) fn new(driver: Arc<Driver>, session: PostgresSession, options: UnitOptions) -> Self {
        let backend_pid = session.backend.map(|(pid, _)| pid);
        Self {
            driver,
            session,
            options,
            xid: None,
            processed_at: None,
            backend_pid,
            events: Vec::new(),
            results: Vec::new(),
            limits_are_back: false,
            waits: false,
        }
    }

    pub(super) fn sql(&self) -> &PostgresStatements {
        &self.driver.statements
    }

    pub(super) fn query<'q>(&self, text: &Arc<str>) -> Query<'q, Db, PgArguments> {
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
            .bind(retention(claim.retention))
            .bind(self.options.run.0);
        Ok(if self.run_claim(query).await?.is_some() { Claimed::Inserted } else { Claimed::NotInserted })
    }

    async fn claim_many(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let (scopes, key_ids) = claimed_ids(claims);
        let ClaimColumns { keys, hashes, rules, retentions } = ClaimColumns::of(claims);
        let query = self.query(&self.sql().claim).bind(&scopes).bind(&key_ids);
        let query = query.bind(keys).bind(hashes).bind(rules).bind(retentions);
        let row = self.run_claim(query.bind(self.options.run.0).bind(self.options.lane)).await?;
        let row = row.ok_or_else(|| unreadable("the claim answered no row"))?;
        let won_consumers: Vec<i32> = error::get(&row, "won_consumers")?;
        let won_key_ids: Vec<_> = error::get(&row, "won_key_ids")?;
        let won: Vec<ClaimedId> = won_consumers.into_iter().zip(won_key_ids).collect();
        Ok(claim_answers(&scopes, &key_ids, &won))
    }

    /// Runs a claim that lacks the session's limits, and notes what its row says of the transaction.
    async fn run_claim(&mut self, query: Query<'_, Db, PgArguments>) -> Result<Option<PgRow>, ClaimError> {
        let query = query.bind(&*self.session.lock_timeout).bind(&*self.session.statement_timeout);
        let row = query.fetch_optional(&mut self.session.connection).await.map_err(error::claiming)?;
        if let Some(row) = &row {
            self.limits_are_back = true;
            self.session.limits.ran_under(error::get::<&str>(row, "limited_to")?);
            if let Some(xid) = error::get::<Option<String>>(row, "xid")? {
                self.xid = Some(xid);
            }
            let backend_pid = error::get(row, "backend_pid")?;
            refuse_other_backend(self.session.backend.map(|(pid, _)| pid), backend_pid)?;
            self.backend_pid = Some(backend_pid);
            self.processed_at = Some(error::get(row, "processed_at")?);
            self.waits = error::get(row, "waits")?;
        }
        Ok(row)
    }

    /// The seal, which permits the COMMIT or fails where it would be a lie, and the COMMIT behind it. Its values come from the server and
    /// from idem.
    fn seal_and_commit(&self) -> String {
        let durable = format!("'{{{}}}'", self.session.durability.no_weaker().join(","));
        match &self.xid {
            Some(xid) if self.session.backend.is_some() => format!("EXECUTE idem_seal('{xid}', {durable}); COMMIT"),
            Some(xid) => literal(&self.sql().seal, &format!("'{xid}'"), &durable),
            None => {
                // Nothing was claimed, so no trigger guards the COMMIT; handlers of unprotected messages may have written.
                format!("{}; COMMIT", self.sql().guard.replace("$1", &durable))
            }
        }
    }

    /// Rolls back whatever is open. Answers whether the connection can be used again.
    async fn roll_back(&mut self) -> Result<bool, StoreError> {
        let doing = "rolling back";
        for _ in 0..NESTED_MAX {
            if self.depth() <= 1 {
                break;
            }
            match Manager::rollback(&mut self.session.connection).await {
                Ok(()) => {}
                // A handler has ended the transaction under sqlx's savepoints, which only sqlx could forget.
                Err(sqlx::Error::Database(_)) => break,
                Err(source) => return Err(error::store(doing, source)),
            }
        }
        // sqlx's count of a handler's own transactions is forgotten with the connection.
        let is_spent = self.depth() != 1;
        let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut self.session.connection).await;
        rollback.map_err(|source| error::store(doing, source))?;
        if is_spent {
            return Ok(false);
        }
        if self.xid.is_some() && self.session.connection.cached_statements_size() > 0 {
            // A handler failed, perhaps because a table was altered under a prepared statement, which then fails each
            // time it runs on this connection (A27).
            let clear = self.session.connection.clear_cached_statements().await;
            clear.map_err(|source| error::store(doing, source))?;
        }
        Ok(true)
    }

    /// Sends the seal with COMMIT and waits for the answer. Where the seal fails, the server does not come to the COMMIT.
    async fn send_commit(&mut self) -> Result<(), CommitError> {
        if !self.events.is_empty() {
            self.write_events().await.map_err(CommitError::RolledBack)?;
        }
        let expected = self.xid.clone();
        let (text, mut is_sealed) = match &expected {
            Some(xid) if !self.results.is_empty() => {
                let answer = self.seal_results(xid).await.map_err(CommitError::RolledBack)?;
                if !answer.is_some_and(|row| is_answer(&row, Some(xid))) {
                    return Err(other_answer());
                }
                ("COMMIT".to_owned(), true)
            }
            _ => (self.seal_and_commit(), false),
        };
        let mut answers = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(&mut self.session.connection);
        // The first poll puts both on the wire, so that the failpoint lies between them and their answers.
        let mut next = poll_fn(|cx| Poll::Ready(answers.as_mut().poll_next(cx))).await;
        failpoint!(COMMIT_SENT).map_err(|injected| CommitError::Unknown(Box::new(injected)))?;
        loop {
            let answer = match next {
                Poll::Ready(answer) => answer,
                Poll::Pending => answers.next().await,
            };
            match answer {
                None if is_sealed => return Ok(()),
                None => return Err(other_answer()),
                Some(Ok(Either::Left(_))) => {}
                Some(Ok(Either::Right(row))) => is_sealed = is_answer(&row, expected.as_deref()),
                Some(Err(source)) if is_sealed => return Err(error::committing(source)),
                Some(Err(source)) => return Err(error::sealing(source)),
            }
            next = Poll::Pending;
        }
    }
}

impl UnitOfWork<PostgresStore> for PostgresUnit {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        if self.limits_are_back {
            self.limit_again().await.map_err(error::claiming)?;
        }
        match claims {
            [claim] if self.options.alone => Ok(vec![self.claim_one(claim).await?]),
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

    fn anything_waits(&self) -> bool {
        self.waits
    }

    async fn ahead(&mut self, keys: &[(ScopeId, OrderingKey)]) -> Result<Vec<Ahead>, StoreError> {
        let (scopes, keys) = ordering_keys(keys);
        let query = self.query(&self.sql().rows_ahead).bind(scopes).bind(keys);
        let row = query.fetch_one(&mut self.session.connection).await;
        let row = row.map_err(|source| error::store("asking what waits in an ordering key", source))?;
        Ok(rows_ahead(error::get(&row, "ahead")?))
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

    async fn append(&mut self, appended: &Appended) -> Result<(), AppendError> {
        idem_sql::append(self, appended).await
    }

    fn processed_at(&self, _: &Claim) -> Option<SystemTime> {
        self.processed_at.map(from_microseconds)
    }

    async fn read_results(&mut self, claims: &[Claim]) -> Result<Vec<Option<KeptResult>>, StoreError> {
        self.kept_results(claims).await
    }

    async fn look_up(&mut self, claims: &[Claim]) -> Result<Vec<Option<Found>>, StoreError> {
        append::found(&self.driver, &mut self.session.connection, claims).await
    }

    async fn commit(mut self) -> (Option<PostgresSession>, Result<(), CommitError>) {
        let committed = match self.check() {
            // Nothing is asked of the connection afterwards: its own count of transactions says nothing about the server, and the
            // seal has refused everything that this COMMIT must not commit.
            Ok(()) => self.send_commit().await,
            Err(error) => Err(CommitError::RolledBack(error)),
        };
        let is_sound = match &committed {
            Ok(()) => true,
            Err(CommitError::RolledBack(StoreError::Unsealed { .. })) => self.roll_back().await.unwrap_or(false),
            Err(_) => false,
        };
        (is_sound.then_some(self.session), committed)
    }

    async fn rollback(mut self) -> Result<Option<PostgresSession>, StoreError> {
        let is_sound = self.roll_back().await?;
        Ok(is_sound.then_some(self.session))
    }

    async fn abandon(self) {
        let Some(pid) = self.backend_pid else { return };
        // The same role may do this. A cancel would not do: the handler's next statement may be on its way.
        let own = self.session.backend.filter(|(own, _)| *own == pid).map(|(_, start)| start);
        let terminate = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql().terminate_unit)));
        let terminate = terminate.bind(pid).bind(own).bind(self.xid.as_deref());
        let terminated = self.driver.once(None, terminate);
        if let Err(error) = self.driver.within("ending an abandoned transaction", terminated).await {
            tracing::warn!(%error, "an abandoned transaction could not be ended; it ends when the server notices the closed connection");
        }
    }
}
