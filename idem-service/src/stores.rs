//! The stores that a worker has handlers for, as a list of types: others are not linked.

use std::{fmt, future::Future, sync::Arc};

use crate::{
    broker::{Broker, Built},
    database::Database,
    exit::Failure,
    run,
    service::{Handlers, Parts},
    settings::Settings,
    status::Status,
};

/// The stores that a [`Service`](crate::Service) has handlers for. [`Service::store`](crate::Service::store) adds one.
pub trait Stores: sealed::Sealed {}

impl<L: sealed::Sealed> Stores for L {}

/// One store of the list, and its handlers.
#[derive(Debug)]
pub struct On<D: Database>(Handlers<D::Store>);

impl<D: Database> On<D> {
    pub(crate) fn new(handlers: Handlers<D::Store>) -> Self {
        Self(handlers)
    }
}

/// The facts of a store before it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub(crate) database: &'static str,
    pub(crate) client: &'static str,
    pub(crate) schemes: &'static [&'static str],
    pub(crate) shares_transaction: bool,
}

impl Kind {
    pub(crate) fn of<D: Database>() -> Self {
        Self {
            database: D::DATABASE,
            client: D::CLIENT,
            schemes: D::SCHEMES,
            shares_transaction: D::SHARES_TRANSACTION,
        }
    }
}

/// The index of the store for URLs of this scheme that is on this client; without one, of that on sqlx, as most are.
///
/// # Errors
/// One line that names the flags and the cure.
pub(crate) fn chosen(kinds: &[Kind], scheme: &str, client: Option<&str>) -> Result<usize, String> {
    let of_url = |kind: &Kind| kind.schemes.contains(&scheme);
    let on = |client: &str| kinds.iter().position(|kind| of_url(kind) && kind.client == client);
    let found = match client {
        Some(client) => on(client),
        None => on("sqlx").or_else(|| kinds.iter().position(of_url)),
    };
    found.ok_or_else(|| match client {
        Some(client) if kinds.iter().any(of_url) => other_client(kinds, client),
        Some(_) | None => other_url(kinds),
    })
}

fn other_client(kinds: &[Kind], client: &str) -> String {
    if let Some(other) = kinds.iter().find(|kind| kind.client == client) {
        return format!("--store {client} needs a --database-url of {}: leave it out", other.database);
    }
    let mut clients: Vec<&str> = kinds.iter().map(|kind| kind.client).collect();
    clients.sort_unstable();
    clients.dedup();
    format!("--store is {client:?}, and must be {}", clients.join(" or "))
}

fn other_url(kinds: &[Kind]) -> String {
    let mut schemes: Vec<String> = Vec::new();
    for scheme in kinds.iter().filter_map(|kind| kind.schemes.first()).map(|scheme| format!("{scheme}://")) {
        if !schemes.contains(&scheme) {
            schemes.push(scheme);
        }
    }
    if schemes.is_empty() {
        return "there is nothing for any database here: give the service handlers or routes for one".to_owned();
    }
    format!("--database-url must begin with {} (its value is not shown)", schemes.join(" or "))
}

/// A worker that has read its settings, and whose broker is built.
pub struct Started<B: Broker> {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) parts: Parts,
    pub(crate) settings: Settings,
    pub(crate) built: Built<B::Source, B::Publisher>,
    pub(crate) status: Arc<Status>,
}

impl<B: Broker> fmt::Debug for Started<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started").field("settings", &self.settings).finish_non_exhaustive()
    }
}

pub(crate) mod sealed {
    use super::{Broker, Database, Failure, Future, Kind, On, Started, other_url, run};

    pub trait Sealed: Send + Sized + 'static {
        /// Each store, in the order in which they were added.
        fn kinds() -> Vec<Kind>;

        /// Runs the worker on the store of this index.
        fn consume<B: Broker>(
            self,
            index: usize,
            started: Started<B>,
        ) -> impl Future<Output = Result<(), Failure>> + Send;
    }

    impl Sealed for () {
        fn kinds() -> Vec<Kind> {
            Vec::new()
        }

        async fn consume<B: Broker>(self, _: usize, _: Started<B>) -> Result<(), Failure> {
            Err(Failure::refused(other_url(&[])))
        }
    }

    impl<L: Sealed, D: Database> Sealed for (L, On<D>) {
        fn kinds() -> Vec<Kind> {
            let mut kinds = L::kinds();
            kinds.push(Kind::of::<D>());
            kinds
        }

        async fn consume<B: Broker>(self, index: usize, started: Started<B>) -> Result<(), Failure> {
            let (others, On(handlers)) = self;
            if index + 1 == Self::kinds().len() {
                Box::pin(run::consume::<D, B>(handlers, started)).await
            } else {
                Box::pin(others.consume(index, started)).await
            }
        }
    }
}
