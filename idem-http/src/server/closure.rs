//! Handlers that are given their transaction: the way in for any server that speaks `tower`.

use std::{fmt, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use idem_core::{
    BoxError, Call, ConfigError, HandlerError, Working,
    store::{Store, Tx},
};
use tower_service::Service;

use super::{
    Idempotency, Shared,
    error::HttpError,
    flight::Progress,
    gates::Admitted,
    made::Last,
    problem::Problem,
    route::{RouteName, RouteSettings, route_setters},
    run::{Ended, Run, Runs},
    sharing::{REQUESTS_MAX, Sharing},
};
use crate::service::always_answers;

/// The type of a handler's future.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

/// A protected route: a [`tower` service](Service) around a handler that is given the request and its open transaction.
///
/// [`Idempotency::route`] makes it. It never fails, and is mounted as it is: `.route_service("/transactions", route)` in axum.
///
/// Every request to it needs a key, but for those by safe methods, such as GET, which are answered with 405: a client that is redirected
/// with 301 goes on with GET and the same key, and would have the operation done under another scope of keys.
pub struct IdempotentRoute<S: Store, H> {
    shared: Arc<Shared<S>>,
    template: Arc<str>,
    handler: Arc<H>,
    settings: RouteSettings,
    sharing: Option<Arc<Sharing<S>>>,
}

impl<S: Store, H> Clone for IdempotentRoute<S, H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            template: Arc::clone(&self.template),
            handler: Arc::clone(&self.handler),
            settings: self.settings.clone(),
            sharing: self.sharing.clone(),
        }
    }
}

impl<S: Store, H> fmt::Debug for IdempotentRoute<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentRoute").field("template", &self.template).finish_non_exhaustive()
    }
}

impl<S: Store, H> IdempotentRoute<S, H> {
    route_setters!();

    /// Lets requests of one tenant that come together share a transaction, at most this many, from 2 to 16. Many clients at once then
    /// pay one commit for several requests. None waits for company: a request runs at once, alone, unless requests of its tenant run
    /// here already, and then it is in the next transaction with those that came meanwhile.
    ///
    /// Each handler runs behind a savepoint of its own, so that a [`Final`](HttpError::Final) answer takes back the writes of its own
    /// handler only. After any other failure (an error, a panic, no end in time, an answer that is not kept, a deadlock, a commit
    /// without an answer) nothing of that transaction is kept, and each of its requests runs again, alone.
    ///
    /// What it costs: an answer comes once the slowest of its transaction has ended, and rows stay locked until then; a handler may run
    /// again for a neighbour's sake. A handler's settings for its transaction (`SET LOCAL`, a role, a search path) are put back before
    /// the next one runs; advisory locks, temporary tables and the modes of constraints are not, and `now()` is the same for all. On
    /// PostgreSQL behind a pooler in transaction mode every request runs alone.
    ///
    /// ```
    /// # use idem_core::{ConfigError, store::Store};
    /// # use idem_http::{Idempotency, IdempotentRoute};
    /// # fn transfers<S: Store>(idempotency: &Idempotency<S>) -> Result<(), ConfigError> {
    /// let transfers = idempotency
    ///     .route("/transfers", |_request, tx| {
    ///         Box::pin(async move {
    ///             let _connection = tx.connection(); // the store's own: run statements on it
    ///             Ok(http::Response::new("done".into()))
    ///         })
    ///     })
    ///     .shares_units(16)?;
    /// # drop(transfers);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] for another number, and if the [engine](super::IdempotencyBuilder::engine) was given
    /// [`Effects::Outside`](idem_core::Effects::Outside) or units of one: a call to another system must not be repeated for a
    /// neighbour's sake.
    pub fn shares_units(mut self, requests_max: usize) -> Result<Self, ConfigError> {
        if !(2..=REQUESTS_MAX).contains(&requests_max) {
            return Err(ConfigError::new("shares_units", requests_max, "it must be from 2 to 16"));
        }
        self.shared.engine.check_sharing()?;
        self.sharing = Some(Arc::new(Sharing::new(requests_max)));
        Ok(self)
    }
}

impl<S: Store> Idempotency<S> {
    /// A protected route. `template` is the path as the router knows it, such as `/accounts/{id}/transfers`: with the request's
    /// method it scopes the keys.
    ///
    /// The handler is called again if its transaction lost against another one (a deadlock), or if the answer to the commit was
    /// lost and nothing had been committed, so it must not consume what it captures. Writes through its transaction take effect
    /// once; its other actions may be repeated.
    pub fn route<H>(&self, template: &str, handler: H) -> IdempotentRoute<S, H>
    where
        H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
    {
        let settings = RouteSettings::new(self.0.limits);
        let (shared, template, handler) = (Arc::clone(&self.0), template.into(), Arc::new(handler));
        IdempotentRoute { shared, template, handler, settings, sharing: None }
    }
}

impl<S, H, B> Service<Request<B>> for IdempotentRoute<S, H>
where
    S: Store,
    H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    always_answers!();

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { shared, template, handler, settings, sharing } = self.clone();
        Box::pin(async move {
            let route = RouteName::new(request.method(), &template);
            let runs = OfClosure { handler, response_bytes_max: settings.response_bytes_max, sharing };
            Ok(shared.serve(request, &route, &settings, runs).await.map(Full::new))
        })
    }
}

struct OfClosure<S: Store, H> {
    handler: Arc<H>,
    response_bytes_max: usize,
    /// The company of this request; `None` once it has to run alone.
    sharing: Option<Arc<Sharing<S>>>,
}

impl<S, H> Runs<S> for OfClosure<S, H>
where
    S: Store,
    H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
{
    fn has_company(&self) -> bool {
        self.sharing.is_some()
    }

    fn run<'a>(
        &'a mut self,
        shared: &'a Arc<Shared<S>>,
        admitted: &'a Arc<Admitted>,
        progress: &'a Arc<Progress>,
    ) -> Run<'a> {
        let last = Arc::<Last>::default();
        let work = Arc::new(self.work(shared, admitted, progress, &last));
        Box::pin(async move {
            let in_company = match self.sharing.take() {
                Some(sharing) => {
                    let work = Arc::clone(&work);
                    let call = Call::new(admitted.message(), move |tx| work(tx));
                    sharing.run(&shared.engine, admitted, call).await
                }
                None => None,
            };
            let ran = match in_company {
                Some(ran) => ran,
                None => {
                    // The shared run kept nothing, or its outcome is unknown: this run finds out.
                    last.take();
                    let Some(_connection) = admitted.in_hand.run().await else {
                        return Ok(Ended::Not(Problem::Overloaded));
                    };
                    shared.engine.run_message(admitted.message(), move |tx| work(tx)).await
                }
            };
            last.ended(ran)
        })
    }
}

impl<S, H> OfClosure<S, H>
where
    S: Store,
    H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
{
    /// The handler as work of the engine, which leaves the response of its last run in `last`.
    fn work(
        &self,
        shared: &Arc<Shared<S>>,
        admitted: &Arc<Admitted>,
        progress: &Arc<Progress>,
        last: &Arc<Last>,
    ) -> impl for<'a, 't> Fn(&'a mut Tx<'t, S>) -> Working<'a> + Send + Sync + 'static + use<S, H> {
        let (shared, last, progress) = (Arc::clone(shared), Arc::clone(last), Arc::clone(progress));
        let (handler, admitted) = (Arc::clone(&self.handler), Arc::clone(admitted));
        let response_bytes_max = self.response_bytes_max;
        move |tx| {
            let request = tx.message().map(|message| admitted.request(admitted.request_key(message)));
            let (shared, last, progress) = (Arc::clone(&shared), Arc::clone(&last), Arc::clone(&progress));
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                progress.runs();
                let answered = match request {
                    Some(request) => handler(request, tx).await,
                    None => Err(HandlerError::permanent("the operation has no message").into()),
                };
                last.judge(answered, &shared, response_bytes_max)
            })
        }
    }
}
