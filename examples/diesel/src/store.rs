//! A store whose sessions are Diesel's connections.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use diesel::{
    QueryableByName, sql_query,
    sql_types::{Array, BigInt, Bytea, Integer, Nullable, Text, Uuid as SqlUuid},
};
use diesel_async::{
    AnsiTransactionManager as Manager, AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _,
    SimpleAsyncConnection as _, TransactionManager as _,
};
use idem_core::{
    ErrorClass, Store, StoreError, Tx, cleanup::Cleaner,
    store::{Claim, ClaimError, Claimed, CommitError, Recorded, StoreCapabilities, UnitOfWork, UnitOptions},
};
use idem_sql::{
    ClaimColumns, Durability, Parameter, PostgresDriver, PostgresStatements, Row, SESSION_SETTINGS, UnitLimits, Value,
    begin_unit, claim_answers, claimed_ids, in_claim_order, refuse_fenced, refuse_other_backend, unreadable,
};
use idem_tokio_postgres::PostgresStore;
use uuid::Uuid;

use crate::error;

/// PostgreSQL by way of diesel-async.
///
/// A handler's `tx.connection()` is `&mut AsyncPgConnection`: queries, inserts and nested `transaction`s work. These do not:
///
/// - handlers at once (`Concurrency::Pipelined`): Diesel's connection is taken mutably;
/// - errors by SQLSTATE, which Diesel hides: see `error.rs`;
/// - a claim costs two round trips instead of one, because Diesel prepares an `sql_query` each time it runs;
/// - TLS, as written here: `AsyncPgConnection::establish` connects without. Give `try_from_client_and_connection` a
///   client of your own.
#[derive(Debug, Clone)]
pub struct DieselPostgres {
    /// For everything outside of units of work, over connections of its own.
    outside: PostgresStore,
    url: String,
}

impl DieselPostgres {
    /// `outside` and the sessions must be of one database.
    pub fn new(outside: PostgresStore, url: impl Into<String>) -> Self {
        Self { outside, url: url.into() }
    }

    fn driver(&self) -> &impl PostgresDriver {
        &**self.outside.bookkeeping().driver()
    }

    fn statements(&self) -> &PostgresStatements {
        self.driver().statements()
    }
}

/// A connection for units of work. Dropping it closes it.
pub struct DieselSession {
    /// In a lock because [`UnitOfWork::check`] has only `&self`, and Diesel shows its depth only through `&mut`.
    connection: Mutex<AsyncPgConnection>,
    lock_timeout: String,
    statement_timeout: String,
    durability: Durability,
    /// The server process, which serves this session alone.
    backend_pid: i32,
}

impl fmt::Debug for DieselSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DieselSession")
    }
}

#[derive(QueryableByName)]
struct Limits {
    #[diesel(sql_type = Text)]
    lock_timeout: String,
    #[diesel(sql_type = Text)]
    statement_timeout: String,
    #[diesel(sql_type = Text)]
    synchronous_commit: String,
    #[diesel(sql_type = Integer)]
    backend_pid: i32,
}

impl Store for DieselPostgres {
    type Bookkeeping = <PostgresStore as Store>::Bookkeeping;
    type Session = DieselSession;
    type Connection<'t> = &'t mut AsyncPgConnection;
    type Unit = DieselUnit;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::server()
    }

    fn bookkeeping(&self) -> &Self::Bookkeeping {
        self.outside.bookkeeping()
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(self.bookkeeping().cleaner())
    }

    async fn open(&self) -> Result<DieselSession, StoreError> {
        refuse_fenced(self.driver()).await?;
        let mut connection = AsyncPgConnection::establish(&self.url).await.map_err(error::connecting)?;
        let settings: String =
            SESSION_SETTINGS.iter().map(|(name, value)| format!("SET {name} = '{value}';")).collect();
        let opening = |source| StoreError::Unavailable { doing: "opening a session", source: Box::new(source) };
        connection.batch_execute(&settings).await.map_err(opening)?;
        let facts = sql_query(&*self.statements().server_facts);
        let limits: Limits = facts.get_result(&mut connection).await.map_err(opening)?;
        let Limits { lock_timeout, statement_timeout, synchronous_commit, backend_pid } = limits;
        let (connection, durability) = (Mutex::new(connection), Durability::of(&synchronous_commit));
        Ok(DieselSession { connection, lock_timeout, statement_timeout, durability, backend_pid })
    }

    async fn close(&self, session: DieselSession) {
        drop(session);
    }

    async fn begin(&self, mut session: DieselSession, options: UnitOptions) -> Result<DieselUnit, StoreError> {
        // Diesel does not show the context of an error, by which a wait for a key is told from one for the whole table; so the table is
        // locked here, where no key is waited for.
        let schema = self.driver().schema().quoted();
        let lock = format!("LOCK TABLE {schema}.processed_messages, {schema}.units IN ROW EXCLUSIVE MODE");
        let text = format!("{}; {lock}", begin_unit(Some(UnitLimits::of(options)), None));
        let begun = Manager::begin_transaction_sql(session.connection(), &text).await;
        begun.map_err(|source| error::of(source).beginning())?;
        Ok(DieselUnit { store: self.clone(), session, options, xid: None, backend_pid: None })
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut &'t mut AsyncPgConnection) -> &'a mut AsyncPgConnection {
        connection
    }

    fn classify(error: &(dyn std::error::Error + 'static)) -> Option<ErrorClass> {
        error::classify(error)
    }

    fn describe(error: &(dyn std::error::Error + 'static)) -> Option<String> {
        error::describe(error)
    }
}

impl DieselSession {
    fn connection(&mut self) -> &mut AsyncPgConnection {
        self.connection.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

fn depth(connection: &mut AsyncPgConnection) -> Option<u32> {
    let status = Manager::transaction_manager_status_mut(connection);
    status.transaction_depth().ok().map(|depth| depth.map_or(0, u32::from))
}

/// One transaction on a [`DieselSession`].
pub struct DieselUnit {
    store: DieselPostgres,
    session: DieselSession,
    options: UnitOptions,
    /// The transaction's id, where a claim inserted something: only this transaction may be committed.
    xid: Option<String>,
    backend_pid: Option<i32>,
}

impl fmt::Debug for DieselUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DieselUnit").field("xid", &self.xid).finish_non_exhaustive()
    }
}

#[derive(QueryableByName)]
struct Won {
    #[diesel(sql_type = Array<Integer>)]
    won_consumers: Vec<i32>,
    #[diesel(sql_type = Array<SqlUuid>)]
    won_key_ids: Vec<Uuid>,
    #[diesel(sql_type = Nullable<Text>)]
    xid: Option<String>,
    #[diesel(sql_type = Integer)]
    backend_pid: i32,
}

#[derive(QueryableByName)]
struct Found {
    #[diesel(sql_type = Integer)]
    consumer: i32,
    #[diesel(sql_type = SqlUuid)]
    key_id: Uuid,
    #[diesel(sql_type = Text)]
    idempotency_key: String,
    #[diesel(sql_type = Bytea)]
    payload_hash: Vec<u8>,
    #[diesel(sql_type = Integer)]
    hash_id: i32,
    #[diesel(sql_type = BigInt)]
    processed_at: i64,
    #[diesel(sql_type = Integer)]
    processed_by: i32,
    #[diesel(sql_type = Nullable<BigInt>)]
    expires_at: Option<i64>,
}

impl Found {
    const COLUMNS: [&str; 8] = [
        "consumer",
        "key_id",
        "idempotency_key",
        "payload_hash",
        "hash_id",
        "processed_at",
        "processed_by",
        "expires_at",
    ];

    fn into_row(self, columns: &Arc<[String]>) -> Row {
        let values = vec![
            Value::Int4(self.consumer),
            Value::Uuid(self.key_id),
            Value::Text(self.idempotency_key),
            Value::Bytes(self.payload_hash),
            Value::Int4(self.hash_id),
            Value::Int8(self.processed_at),
            Value::Int4(self.processed_by),
            self.expires_at.map_or(Value::Null, Value::Int8),
        ];
        Row::new(Arc::clone(columns), values)
    }
}

impl DieselUnit {
    /// Permits the COMMIT, or fails where it would be a lie.
    async fn seal(&mut self) -> Result<(), StoreError> {
        let sql = self.store.statements();
        let durable = self.session.durability.no_weaker();
        let sealed = match self.xid.take() {
            Some(xid) => {
                let query = sql_query(&*sql.seal).bind::<Text, _>(xid).bind::<Array<Text>, _>(durable);
                query.execute(self.session.connection()).await
            }
            None => {
                let query = sql_query(&*sql.guard).bind::<Array<Text>, _>(durable);
                query.execute(self.session.connection()).await
            }
        };
        sealed.map(|_| ()).map_err(|source| error::of(source).sealing())
    }

    async fn try_commit(&mut self) -> Result<(), CommitError> {
        self.check().map_err(CommitError::RolledBack)?;
        self.seal().await.map_err(CommitError::RolledBack)?;
        let committed = Manager::commit_transaction(self.session.connection()).await;
        committed.map_err(|source| error::of(source).committing())?;
        if depth(self.session.connection()) != Some(0) {
            return Err(CommitError::Unknown(unreadable("a transaction is still open after COMMIT").into()));
        }
        Ok(())
    }
}

impl UnitOfWork<DieselPostgres> for DieselUnit {
    async fn claim(&mut self, claims: &[Claim]) -> Result<Vec<Claimed>, ClaimError> {
        let claiming = |source| error::of(source).claiming();
        if self.backend_pid.is_some() {
            // A second claim in one unit waits under idem's limits too.
            let limit = self.options.busy_timeout.as_millis().clamp(1, 2_147_483_647);
            let text = format!("SET LOCAL lock_timeout = {limit}; SET LOCAL statement_timeout = {limit}");
            self.session.connection().batch_execute(&text).await.map_err(claiming)?;
        }
        let (scopes, key_ids) = claimed_ids(claims);
        let ClaimColumns { keys, hashes, rules, retentions } = ClaimColumns::of(claims);
        let (lock_timeout, statement_timeout) =
            (self.session.lock_timeout.clone(), self.session.statement_timeout.clone());
        let query = sql_query(&*self.store.statements().claim)
            .bind::<Array<Integer>, _>(&scopes)
            .bind::<Array<SqlUuid>, _>(&key_ids)
            .bind::<Array<Text>, _>(keys)
            .bind::<Array<Bytea>, _>(hashes)
            .bind::<Array<Integer>, _>(rules)
            .bind::<Array<Nullable<BigInt>>, _>(retentions)
            .bind::<Integer, _>(self.options.run.0)
            .bind::<Integer, _>(self.options.lane)
            .bind::<Text, _>(lock_timeout)
            .bind::<Text, _>(statement_timeout);
        let won: Won = query.get_result(self.session.connection()).await.map_err(claiming)?;
        refuse_other_backend(Some(self.session.backend_pid), won.backend_pid)?;
        if won.xid.is_some() {
            self.xid = won.xid;
        }
        self.backend_pid = Some(won.backend_pid);
        let won: Vec<_> = won.won_consumers.into_iter().zip(won.won_key_ids).collect();
        Ok(claim_answers(&scopes, &key_ids, &won))
    }

    async fn read(&mut self, claims: &[Claim]) -> Result<Vec<Option<Recorded>>, StoreError> {
        let (scopes, key_ids) = claimed_ids(claims);
        let query = sql_query(&*self.store.statements().read);
        let query = query.bind::<Array<Integer>, _>(&scopes).bind::<Array<SqlUuid>, _>(&key_ids);
        let rows: Result<Vec<Found>, _> = query.load(self.session.connection()).await;
        let rows = rows.map_err(|source| error::of(source).doing("reading who has the keys"))?;
        let columns: Arc<[String]> = Found::COLUMNS.map(str::to_owned).into();
        let found: Vec<Row> = rows.into_iter().map(|found| found.into_row(&columns)).collect();
        in_claim_order(claims, &key_ids, &found)
    }

    fn tx(&mut self) -> Tx<'_, DieselPostgres> {
        Tx::new(self.session.connection())
    }

    fn check(&self) -> Result<(), StoreError> {
        let problem = match depth(&mut self.session.connection.lock().unwrap_or_else(PoisonError::into_inner)) {
            Some(1) => return Ok(()),
            Some(0) | None => "a handler has ended the transaction",
            Some(_) => "a handler has left a nested transaction open",
        };
        Err(StoreError::Unsealed { problem: problem.to_owned(), source: None })
    }

    async fn commit(mut self) -> (Option<DieselSession>, Result<(), CommitError>) {
        match self.try_commit().await {
            Ok(()) => (Some(self.session), Ok(())),
            Err(error @ CommitError::RolledBack(StoreError::Unsealed { .. })) => {
                (self.rollback().await.unwrap_or_default(), Err(error))
            }
            Err(error) => (None, Err(error)),
        }
    }

    async fn rollback(mut self) -> Result<Option<DieselSession>, StoreError> {
        let is_open = depth(self.session.connection()) == Some(1);
        let rolled_back = if is_open {
            Manager::rollback_transaction(self.session.connection()).await
        } else {
            // The transaction's state after a handler is unknown: the server ends it with the connection.
            self.session.connection().batch_execute("ROLLBACK").await
        };
        rolled_back.map_err(|source| error::of(source).doing("rolling back"))?;
        Ok(is_open.then_some(self.session))
    }

    async fn abandon(self) {
        let Some(pid) = self.backend_pid else { return };
        // The same role may do this. A cancel would not do: the handler's next statement may be on its way.
        // By its transaction, so that no other session is ended that has got the process meanwhile.
        let (doing, text) = ("ending an abandoned transaction", &self.store.statements().terminate_unit);
        let parameters = [pid.into(), Parameter::Int8(None), self.xid.as_deref().into()];
        if let Err(error) = self.store.driver().run_once(doing, text, &parameters).await {
            tracing::warn!(%error, "an abandoned transaction could not be ended; it ends with its connection");
        }
    }
}
