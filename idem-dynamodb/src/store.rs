//! The store itself.

use std::{error::Error, fmt, sync::Arc};

use aws_sdk_dynamodb::Client;
use idem_core::{
    ConfigError, ErrorClass, Store, StoreError,
    cleanup::Cleaner,
    internal::chain,
    store::{Claim, LookedUp, StoreCapabilities, UnitOptions},
};
use tokio::time::Instant;

use crate::{
    bookkeeping::DynamoBookkeeping,
    claim::is_free,
    cleaner::DynamoCleaner,
    client::{Requests, pause},
    error::DynamoError,
    item::At,
    options::DynamoOptions,
    tx::DynamoTx,
    unit::{DynamoUnit, read_all},
};

/// A store on one table of DynamoDB, for handlers that write to DynamoDB.
///
/// Clones share a client.
#[derive(Clone)]
pub struct DynamoStore {
    pub(crate) requests: Arc<Requests>,
    bookkeeping: DynamoBookkeeping,
}

impl fmt::Debug for DynamoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoStore").field("table", &self.requests.table).finish_non_exhaustive()
    }
}

impl DynamoStore {
    /// The store at `dynamodb:TABLE`, or `dynamodb:TABLE?endpoint=URL&region=NAME`. Region, endpoint and credentials otherwise come from
    /// where the AWS SDK looks for them. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ConfigError`] where the URL has another form, or there is no region.
    pub async fn connect(url: &str) -> Result<Self, ConfigError> {
        DynamoOptions::of_url(url).await?.build()
    }

    /// The options of a store on this table, over a client of the caller's.
    pub fn of(client: Client, table: impl Into<String>) -> DynamoOptions {
        DynamoOptions::new(client, table.into())
    }

    /// The client, for reads beside idem's. A write that is sent over it is no part of any unit.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.requests.client
    }

    /// The name of the table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.requests.table
    }

    pub(crate) fn new(requests: Requests) -> Self {
        let requests = Arc::new(requests);
        Self { bookkeeping: DynamoBookkeeping::new(Arc::clone(&requests)), requests }
    }

    /// Makes the table, if there is none, and has DynamoDB remove what has expired. It may be called at each start.
    ///
    /// # Errors
    /// Those of DynamoDB, and [`StoreError::Schema`] where there is another table of that name.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        crate::table::migrate(&self.requests).await
    }
}

impl Store for DynamoStore {
    type Bookkeeping = DynamoBookkeeping;
    type Session = ();
    type Connection<'t> = DynamoTx<'t>;
    type Unit = DynamoUnit;

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::server().results(true).messages_max(Some(1)).leases(true)
    }

    fn bookkeeping(&self) -> &DynamoBookkeeping {
        &self.bookkeeping
    }

    fn cleaner(self: &Arc<Self>) -> Box<dyn Cleaner> {
        Box::new(DynamoCleaner::new(Arc::clone(&self.requests), self.bookkeeping.clone()))
    }

    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self, (): ()) {}

    async fn begin(&self, (): (), options: UnitOptions) -> Result<DynamoUnit, StoreError> {
        Ok(DynamoUnit::new(Arc::clone(&self.requests), options))
    }

    async fn look_up(&self, (): (), _: UnitOptions, claims: &[Claim]) -> Result<LookedUp<Self>, StoreError> {
        Ok((Some(()), read_all(&self.requests, claims).await?))
    }

    async fn is_free(&self, (): (), options: UnitOptions, claim: &Claim) -> Result<(Option<()>, bool), StoreError> {
        let (until, mut tries) = (Instant::now() + options.busy_timeout, 0);
        loop {
            let item = self.requests.get(&At::record(claim.scope, &claim.key)).await;
            let item = item.map_err(|error| error.into_store("asking for a key"))?;
            match is_free(item.as_ref(), claim)? {
                Some(is_free) => return Ok((Some(()), is_free)),
                None if Instant::now() >= until => return Ok((Some(()), false)),
                None => tokio::time::sleep_until((Instant::now() + pause(tries)).min(until)).await,
            }
            tries += 1;
        }
    }

    fn reborrow<'a, 't: 'a>(connection: &'a mut DynamoTx<'t>) -> DynamoTx<'a> {
        DynamoTx { requests: connection.requests, writes: &mut *connection.writes }
    }

    fn classify(error: &(dyn Error + 'static)) -> Option<ErrorClass> {
        chain(error).find_map(|link| link.downcast_ref::<DynamoError>()).map(DynamoError::class)
    }

    fn describe(error: &(dyn Error + 'static)) -> Option<String> {
        error.downcast_ref::<DynamoError>().map(DynamoError::without_values)
    }

    fn code(error: &(dyn Error + 'static)) -> Option<String> {
        error.downcast_ref::<DynamoError>()?.code().map(str::to_owned)
    }
}
