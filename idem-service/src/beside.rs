//! The parts of an application beside its handlers or routes: destinations of events, routes on the admin port, and
//! hooks.

use std::{fmt, future::Future, pin::Pin};

use idem_core::{
    BoxError, Store,
    outbox::{CloudEvents, Destination},
    relay::Route,
    store,
};

use crate::{admin::OwnRoutes, exit::Failure};

/// A future that is made when it is wanted.
pub(crate) type Hook<T> = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = T> + Send>> + Send>;

/// The part that workers and services over HTTP have in common.
#[derive(Default)]
pub(crate) struct Beside {
    /// The destinations of the handlers' events.
    pub(crate) destinations: Vec<Destination>,
    /// How events get there, where that is not by the usual broker.
    pub(crate) relayed: Vec<Route>,
    /// How they are written.
    pub(crate) cloud_events: Option<CloudEvents>,
    admin_routes: OwnRoutes,
    on_start: Vec<Hook<Result<(), BoxError>>>,
    on_stop: Vec<Hook<()>>,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("destinations", &self.destinations).finish_non_exhaustive()
    }
}

impl Beside {
    pub(crate) fn publish_to(&mut self, destinations: impl IntoIterator<Item = impl Into<Destination>>) {
        self.destinations.extend(destinations.into_iter().map(Into::into));
    }

    pub(crate) fn relay(&mut self, route: Route) {
        self.relayed.push(route);
    }

    #[cfg(feature = "axum")]
    pub(crate) fn serves_admin(&mut self, routes: axum::Router) {
        self.admin_routes.add(routes);
    }

    pub(crate) fn on_start<F, R>(&mut self, hook: F)
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.on_start.push(Box::new(|| Box::pin(hook())));
    }

    pub(crate) fn on_stop<F, R>(&mut self, hook: F)
    where
        F: FnOnce() -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.on_stop.push(Box::new(|| Box::pin(hook())));
    }

    /// The application's own routes for the admin port, once.
    pub(crate) fn take_admin_routes(&mut self) -> OwnRoutes {
        std::mem::take(&mut self.admin_routes)
    }

    /// Takes the hooks out, so that the rest can be handed on.
    pub(crate) fn take_hooks(&mut self) -> Hooks {
        Hooks { on_start: std::mem::take(&mut self.on_start), on_stop: std::mem::take(&mut self.on_stop) }
    }
}

/// The hooks before the first message or request, and after the last one.
pub(crate) struct Hooks {
    on_start: Vec<Hook<Result<(), BoxError>>>,
    on_stop: Vec<Hook<()>>,
}

impl Hooks {
    /// Runs those of the start, one after the other.
    ///
    /// # Errors
    /// The first that fails, in the words of the store if they are its.
    pub(crate) async fn start<S: Store>(&mut self) -> Result<(), Failure> {
        for hook in self.on_start.drain(..) {
            hook().await.map_err(|error| Failure::refused(store::describe::<S>(&*error)))?;
        }
        Ok(())
    }

    /// Runs those of the end.
    pub(crate) async fn stop(self) {
        for hook in self.on_stop {
            hook().await;
        }
    }
}
