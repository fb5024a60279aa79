//! The stores that a worker has handlers for, as a list of types: others are not linked.

use std::{fmt, future::Future, sync::Arc};

use crate::{
    broker::{Broker, Built},
    database::Database,
    exit::Failure,
    kinds::{Kind, other_url},
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
