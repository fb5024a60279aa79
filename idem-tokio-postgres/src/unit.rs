//! One transaction on a session.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use futures_util::{TryStreamExt as _, join};
use idem_core::{
    ErrorClass, StoreError, Tx, failpoint,
    message::OrderingKey,
    outbox::{AppendError, Appended, NewEvent},
    results::{KeptResult, NewResult},
    store::{Ahead, Claim, ClaimError, Claimed, CommitError, Found, Recorded, ScopeId, UnitOfWork, UnitOptions},
};
use idem_sql::{
    ClaimColumns, ClaimedId, EventColumns, ResultColumns, ResultRow, claim_answers, claimed_ids, from_microseconds,
    in_claim_order, key_id, ordering_keys, refuse_other_backend, retention, rows_ahead, unreadable,
};
use tokio_postgres::{Error, Row, SimpleQueryMessage, SimpleQueryStream, types::Type};

use crate::{
    PostgresConnection, PostgresSession, PostgresStore,
    append::{new_events, new_result, new_results},
    claim,
    driver::{self, Driver},
    error::{self, get},
    link::{Parameter, Parameters},
};

/// A unit of work: one open transaction on a [`PostgresSession`].
pub struct PostgresUnit {
    pub(crate) driver: Arc<Driver>,
    pub(crate) session: PostgresSession,
    options: UnitOptions,
    /// The answer to BEGIN, which is read with that of the first statement.
    pub(crate) begun: Option<Begun>,
    /// The transaction's id, where a claim inserted something: only this transaction may be committed.
    xid: Option<String>,
    /// When its records were processed, in µs since the Unix epoch.
    processed_at: Option<i64>,
    /// The server process that runs this transaction.
    backend_pid: Option<i32>,
    /// Events that are written with the seal.
    pub(crate) events: Vec<NewEvent>,
    /// Answers that the seal writes.
    pub(crate) results: Vec<NewResult>,
    /// Whether a claim has put the session's own limits back.
    limits_are_back: bool,
    /// Whether rows of any ordering key of the claimed consumers are not over.
    waits: bool,
    /// Whether handlers had the connection.
    is_lent: AtomicBool,
    /// How many nested transactions of handlers are open.
    nested: AtomicUsize,
}

pub(crate) type Begun = Pin<Box<SimpleQueryStream>>;

impl fmt::Debug for PostgresUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresUnit").field("xid", &self.xid).finish_non_exhaustive()
    }
}

impl PostgresUnit {
    pub(crate) fn new(
        driver: Arc<Driver>,
        session: PostgresSession,
        options: UnitOptions,
        begun: SimpleQueryStream,
    ) -> Self {
        Self {
            backend_pid: session.backend.map(|(pid, _)| pid),
            driver,
            session,
            options,
            begun: Some(Box::pin(begun)),
            xid: None,
            processed_at: None,
            events: Vec::new(),
            results: Vec::new(),
            limits_are_back: false,
            waits: false,
            is_lent: AtomicBool::new(false),
            nested: AtomicUsize::new(0),
        }
    }

    /// Runs a statement of idem's own, in one round trip with the BEGIN before it.
    pub(crate) async fn rows(
        &self,
        begun: Option<Begun>,
        text: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Result<Vec<Row>, Error>, StoreError> {
        let link = &self.session.link;
        let statement = async { link.ready(self.driver.naming(), text).await?.rows(parameters).await };
        let begin = async {
            match begun {
                Some(begun) => begun.try_for_each(|_| std::future::ready(Ok(()))).await,
                None => Ok(()),
            }
        };
        // Polled in this order, so the statement is on its way before any answer is waited for. Should BEGIN have failed
        // alone, the statement ran in a transaction of its own, whose commit the server has refused like any that is not
        // sealed.
        let (rows, began) = join!(statement, begin);
        began.map_err(error::beginning)?;
        Ok(rows)
    }

    /// A second claim in one unit waits under idem's limit too.
    async fn limit_again(&self) -> Result<(), Error> {
        let text = format!("SET LOCAL statement_timeout = {}", milliseconds(self.options.busy_timeout));
        self.session.link.client.batch_execute(&text).await
    }

    async fn claim_one(&mut self, claim: &Claim) -> Result<Claimed, ClaimError> {
        let begun = self.begun.take();
        let (key, hash, kept) = (claim.key.as_str(), claim.hash.as_bytes().as_slice(), retention(claim.retention));
        let id = key_id(key);
        let [run, _, lock_timeout, statement_timeout] = claim::of_unit(&self.options, &self.session);
        let parameters: [Parameter<'_>; 9] = [
            (&claim.scope.0, Type::INT4),
            (&id, Type::UUID),
            (&key, Type::TEXT),
            (&hash, Type::BYTEA),
            (&claim.hash_rule.0, Type::INT4),
            (&kept, Type::INT8),
            run,
            lock_timeout,
            statement_timeout,
        ];
        let rows = self.rows(begun, &self.driver.statements.claim_one, &parameters).await?;
        Ok(if self.claimed(rows)?.is_some() { Claimed::Inserted } else { Claimed::NotInserted })
    }

    async fn claim_many(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let begun = self.begun.take();
        let (scopes, key_ids) = claimed_ids(claims);
        let columns = ClaimColumns::of(claims);
        let parameters = claim::of_many(&scopes, &key_ids, &columns, &self.options, &self.session);
        let rows = self.rows(begun, &self.driver.statements.claim, &parameters).await?;
        let row = self.claimed(rows)?.ok_or_else(|| unreadable("the claim answered no row"))?;
        let won_consumers: Vec<i32> = get(&row, "won_consumers")?;
        let won_key_ids: Vec<_> = get(&row, "won_key_ids")?;
        let won: Vec<ClaimedId> = won_consumers.into_iter().zip(won_key_ids).collect();
        Ok(claim_answers(&scopes, &key_ids, &won))
    }

    /// The row that a claim has answered, noting what it says of the transaction.
    fn claimed(&mut self, rows: Result<Vec<Row>, Error>) -> Result<Option<Row>, ClaimError> {
        let row = rows.map_err(error::claiming)?.pop();
        if let Some(row) = &row {
            if let Some(xid) = get::<Option<String>>(row, "xid")? {
                self.xid = Some(xid);
            }
            let backend_pid = get(row, "backend_pid")?;
            refuse_other_backend(self.session.backend.map(|(pid, _)| pid), backend_pid)?;
            self.backend_pid = Some(backend_pid);
            self.processed_at = Some(get(row, "processed_at")?);
            self.waits = get(row, "waits")?;
            self.session.limits.ran_under(get::<&str>(row, "limited_to")?);
            self.limits_are_back = true;
        }
        Ok(row)
    }

    /// Sends the events, the seal, which permits the COMMIT or fails where it would be a lie, and the COMMIT with it.
    ///
    /// tokio-postgres does not expose whether the answer to a COMMIT was COMMIT or ROLLBACK (upstream #1342), not even
    /// where an error stands in a stream that was not read to its end (#1334). The seal does: it fails in a transaction
    /// that has failed, and its answer is compared, so that it cannot be another statement's.
    async fn seal_and_commit(&self) -> Result<(), CommitError> {
        let (link, sql) = (&self.session.link, &self.driver.statements);
        let (one, many);
        let (text, answers): (_, &Parameters<'_>) = match (&self.xid, &*self.results) {
            // Nothing was claimed, so no trigger guards the COMMIT; handlers of unprotected messages may have written.
            (None, _) => (&sql.guard, &[]),
            (Some(_), []) => (&sql.seal, &[]),
            (Some(_), [result]) => {
                one = ResultRow::of(result);
                (&sql.seal_result, &new_result(&one))
            }
            (Some(_), results) => {
                many = ResultColumns::of(results);
                (&sql.seal_results, &new_results(&many))
            }
        };
        let durable = self.session.durability.no_weaker();
        let durable: Parameter<'_> = (&durable, Type::TEXT_ARRAY);
        let parameters = match &self.xid {
            Some(xid) => {
                let own: [Parameter<'_>; 2] = [(xid, Type::TEXT), durable];
                [&own, answers].concat()
            }
            None => vec![durable],
        };
        let columns = EventColumns::new(&self.events);
        let (events, new_events) = (sql.inserting_before_seal(&columns), new_events(&columns));
        // Both are prepared before either is sent: what waits for an answer here would arrive behind the COMMIT.
        let inserting = match &*self.events {
            [] => None,
            _ => match link.ready(self.driver.naming(), events).await {
                Ok(inserting) => Some(inserting),
                Err(source) => return Err(self.events_not_written(source).await),
            },
        };
        let ready = match link.ready(self.driver.naming(), text).await {
            Ok(ready) => ready,
            Err(source) => return Err(self.not_sealed(source).await),
        };
        let writing = async {
            match &inserting {
                Some(inserting) => inserting.rows(&new_events).await.map(drop),
                None => Ok(()),
            }
        };
        // Polled in this order, which is that of the wire.
        let (sealing, committing) = (ready.rows(&parameters), link.client.batch_execute("COMMIT"));
        let (written, sealed, committed, passed) = join!(writing, sealing, committing, async {
            // All are on the wire once the connection's task has run.
            tokio::task::yield_now().await;
            failpoint!(COMMIT_SENT)
        });
        passed.map_err(|injected| CommitError::Unknown(Box::new(injected)))?;
        if let Err(source) = written {
            return Err(self.events_not_written(source).await);
        }
        let rows = match sealed {
            Ok(rows) => rows,
            Err(source) => return Err(self.not_sealed(source).await),
        };
        committed.map_err(error::committing)?;
        if !rows.first().is_some_and(|row| is_sealed(row, self.xid.as_ref())) {
            return Err(CommitError::Unknown("the answer to the seal was another statement's".into()));
        }
        Ok(())
    }

    /// Rolls back whatever is open. Answers whether the connection can be used again.
    async fn roll_back(&mut self) -> Result<bool, StoreError> {
        // This answer is not waited for any more, and must not hold up the next one.
        drop(self.begun.take());
        let session = &mut self.session;
        if !*self.is_lent.get_mut() {
            let answer = session.link.client.batch_execute("ROLLBACK").await;
            return answer.map(|()| true).map_err(|source| error::store("rolling back", source));
        }
        // A handler failed, perhaps because a table was altered under a prepared statement, which then fails each time it
        // runs on this connection (A27).
        session.link.cache.clear();
        session.asked += 1;
        let number = session.asked.to_string();
        let answer = session.link.client.simple_query(&format!("ROLLBACK; SELECT {number}")).await;
        let answer = match answer.map_err(|source| error::store("rolling back", source)) {
            Err(error) if error.class() == ErrorClass::Infrastructure => return Err(error),
            answer => answer.unwrap_or_default(),
        };
        // A COPY that went wrong, or one by way of `execute`, leaves the driver an answer ahead or behind. Only a
        // connection that answers this very statement may be used again.
        let is_ours = |message: &SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some(&number));
        Ok(answer.iter().any(is_ours))
    }

    /// The server refused the seal, or the answers that it writes.
    async fn not_sealed(&self, source: Error) -> CommitError {
        if self.results.is_empty() || error::is_of_seal(&source) {
            return error::sealing(source);
        }
        CommitError::RolledBack(self.explain(source).await)
    }
}

/// Milliseconds as PostgreSQL's settings take them: zero would switch the limit off.
fn milliseconds(limit: std::time::Duration) -> i64 {
    i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).clamp(1, 2_147_483_647)
}

/// Whether this is the answer to the seal of that transaction, or to the guard where there is none.
fn is_sealed(row: &Row, xid: Option<&String>) -> bool {
    match xid {
        Some(xid) => row.try_get::<_, &str>(0).is_ok_and(|sealed| sealed == xid),
        None => row.try_get::<_, i32>(0).is_ok_and(|guarded| guarded == 1),
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
        let begun = self.begun.take();
        let (scopes, key_ids) = claimed_ids(claims);
        let parameters: [Parameter<'_>; 2] = [(&scopes, Type::INT4_ARRAY), (&key_ids, Type::UUID_ARRAY)];
        let rows = self.rows(begun, &self.driver.statements.read, &parameters).await?;
        let rows = rows.map_err(|source| error::store("reading who has the keys", source))?;
        in_claim_order(claims, &key_ids, &driver::read(&rows)?)
    }

    fn anything_waits(&self) -> bool {
        self.waits
    }

    async fn ahead(&mut self, keys: &[(ScopeId, OrderingKey)]) -> Result<Vec<Ahead>, StoreError> {
        let begun = self.begun.take();
        let (scopes, keys) = ordering_keys(keys);
        let parameters: [Parameter<'_>; 2] = [(&scopes, Type::INT4_ARRAY), (&keys, Type::BYTEA_ARRAY)];
        let rows = self.rows(begun, &self.driver.statements.rows_ahead, &parameters).await?;
        let rows = rows.map_err(|source| error::store("asking what waits in an ordering key", source))?;
        let row = rows.first().ok_or_else(|| unreadable("the question what waits answered no row"))?;
        Ok(rows_ahead(get(row, "ahead")?))
    }

    fn tx(&mut self) -> Tx<'_, PostgresStore> {
        self.is_lent.store(true, Ordering::Relaxed);
        Tx::new(PostgresConnection::in_order(&self.session.link, self.driver.naming(), &self.nested))
    }

    fn shared_tx(&self) -> Option<Tx<'_, PostgresStore>> {
        self.is_lent.store(true, Ordering::Relaxed);
        Some(Tx::new(PostgresConnection::shared(&self.session.link, self.driver.naming())))
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.nested.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        Err(StoreError::Unsealed { problem: "a handler has left a nested transaction open".to_owned(), source: None })
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
        self.found(claims).await
    }

    async fn commit(mut self) -> (Option<PostgresSession>, Result<(), CommitError>) {
        let committed = match self.check() {
            Ok(()) => self.seal_and_commit().await,
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
        let parameters: [Parameter<'_>; 3] = [(&pid, Type::INT4), (&own, Type::INT8), (&self.xid, Type::TEXT)];
        let (doing, text) = ("ending an abandoned transaction", &self.driver.statements.terminate_unit);
        if let Err(error) = self.driver.rows(doing, text, &parameters).await {
            let until = "it ends when the server notices the closed connection";
            tracing::warn!(%error, "an abandoned transaction could not be ended; {until}");
        }
    }
}
