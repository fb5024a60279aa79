//! The layer for existing routers of axum.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::MatchedPath,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use idem_core::{
    ResultBody, Store,
    internal::Whereabouts,
    once::{Begun, Operation, RunOnceError},
};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answer,
    error::{self, Judged, Wish},
    flight::Progress,
    gates::Admitted,
    idempotent_tx::{Lending, Lent},
    key::KEY_HEADER,
    problem::Problem,
    route::{RouteName, RouteSettings, route_setters},
    run::{Ended, Run, Runs},
    state::{Idempotency, Shared},
    tx_error::OfTx,
};

/// Protects the routes of an existing router. See [`Idempotency::layer`].
pub struct IdempotencyLayer<S: Store> {
    shared: Arc<Shared<S>>,
    settings: RouteSettings,
}

impl<S: Store> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), settings: self.settings.clone() }
    }
}

impl<S: Store> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: Store> IdempotencyLayer<S> {
    route_setters!();
}

impl<S: Store> Idempotency<S> {
    /// A layer for routers of axum. A `POST` or a `PATCH` needs a key; a safe method, such as `GET` or `QUERY`, passes; any other, such as
    /// `PUT`, `DELETE` or `MKCOL`, is protected if it has one. A handler gets its transaction through the extractor
    /// [`IdempotentTx`](crate::IdempotentTx). The transaction is committed together with the answer, after the handler has answered and before the client gets the answer.
    ///
    /// | A handler responds | its effects | the response is kept | a repeat gets |
    /// |---|---|---|---|
    /// | with 2xx, 3xx or 4xx | committed | yes | the same response |
    /// | the same after [`refuse`](crate::IdempotentTx::refuse) | rolled back | yes | the same response |
    /// | the same after [`discard`](crate::IdempotentTx::discard) | rolled back | no | a run |
    /// | with 4xx, and has not used its transaction: an extractor has refused the request | none | no | a run |
    /// | with 5xx | rolled back | no | a run |
    /// | with 1xx, or a number that is not a status of HTTP | rolled back | no: it is answered with 500 | a run |
    /// | with a [`TxError`](crate::TxError), panics, or does not end in time | rolled back | no | a run |
    /// | and something else still holds its transaction, such as a task | rolled back | no: it is answered with 500 | a run |
    ///
    /// A decline that has effects of its own, such as a row that counts it, needs neither `refuse` nor `discard`. 401, 403, 408, 425 and
    /// 429 concern a request and not its operation. If they were kept, every repeat of the key would get them: call `discard` before. Without
    /// it they are refused in debug builds, and counted in others. The guide's page on HTTP has the table of all statuses.
    ///
    /// A handler under the layer must take [`IdempotentTx`](crate::IdempotentTx). If it does not, its 2xx and 3xx become a 500 that is not kept, because nothing that it does is
    /// protected. One that takes it and has nothing to write need not use it.
    ///
    /// Method and matched path scope the keys, so the layer belongs on routes. Put it on the methods of a route, and a method that the
    /// route does not have is answered with 405 before any key is claimed:
    ///
    /// ```
    /// # use idem_http::{Idempotency, IdempotentTx, idem_core::Store};
    /// # async fn pay<S: Store>(_: IdempotentTx<S>) -> &'static str { "paid" }
    /// # fn routes<S: Store>(idempotency: Idempotency<S>) -> axum::Router {
    /// use axum::{Router, routing::post};
    ///
    /// Router::new().route("/payments", post(pay::<S>).route_layer(idempotency.layer()))
    /// # }
    /// ```
    ///
    /// On the whole router (`.layer`, `.route_layer`) it protects the same, but axum wraps its own 405 too, which looks like any handler
    /// to a layer: it costs a claim and its rollback. A 405 that is set after the layer stands outside of it, and costs none:
    ///
    /// ```
    /// # use idem_http::{Idempotency, IdempotentTx, idem_core::Store};
    /// # async fn pay<S: Store>(_: IdempotentTx<S>) -> &'static str { "paid" }
    /// # fn routes<S: Store>(idempotency: Idempotency<S>) -> axum::Router {
    /// use axum::{Router, http::StatusCode, routing::post};
    ///
    /// Router::new()
    ///     .route("/payments", post(pay::<S>))
    ///     .layer(idempotency.layer())
    ///     .method_not_allowed_fallback(async || StatusCode::METHOD_NOT_ALLOWED)
    /// # }
    /// ```
    ///
    /// A path without a route claims nothing; a fallback that answers it with 2xx or 3xx is not protected, and gets a 500.
    ///
    /// Layers that change the response's bytes, such as compression, belong outside of it, and so does authorisation: a
    /// repeat gets the first answer from this layer, and layers inside of it do not run again. A decision that depends on the
    /// caller can also be made by [`tenant`](crate::IdempotencyBuilder::tenant), which is called each time.
    ///
    #[must_use]
    pub fn layer(&self) -> IdempotencyLayer<S> {
        IdempotencyLayer { shared: Arc::clone(&self.0), settings: RouteSettings::new(self.0.limits) }
    }
}

impl<S: Store, T> Layer<T> for IdempotencyLayer<S> {
    type Service = Idempotent<S, T>;

    fn layer(&self, inner: T) -> Idempotent<S, T> {
        Idempotent { layer: self.clone(), inner }
    }
}

/// A router behind an [`IdempotencyLayer`].
pub struct Idempotent<S: Store, T> {
    layer: IdempotencyLayer<S>,
    inner: T,
}

impl<S: Store, T: Clone> Clone for Idempotent<S, T> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), inner: self.inner.clone() }
    }
}

impl<S: Store, T> fmt::Debug for Idempotent<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("layer", &self.layer).finish_non_exhaustive()
    }
}

impl<S, T> Service<Request<Body>> for Idempotent<S, T>
where
    S: Store,
    T: Service<Request<Body>, Error = Infallible> + Clone + Send + 'static,
    T::Response: IntoResponse,
    T::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Call the instance that was polled ready.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let IdempotencyLayer { shared, settings } = self.layer.clone();
        Box::pin(async move {
            if !is_protected(&request) {
                return Ok(inner.call(request).await?.into_response());
            }
            let Some(path) = request.extensions().get::<MatchedPath>() else {
                return Ok(shared.unrouted(inner.call(request).await?.into_response()));
            };
            let route = RouteName::new(request.method(), path.as_str());
            let runs = OfLayer { inner: Some(inner), response_bytes_max: settings.response_bytes_max };
            Ok(shared.serve(request, &route, &settings, runs).await.map(Body::from))
        })
    }
}

impl<S: Store> Shared<S> {
    /// The answer where no route was found. It comes from a router's fallback, for which no key is claimed; if it says that
    /// something was done, nothing of that was protected.
    fn unrouted(&self, response: Response) -> Response {
        if response.status().is_client_error() || response.status().is_server_error() {
            return response;
        }
        tracing::error!(
            { idem.consumer = %self.engine.name() },
            "a request met the idempotency layer where no route was found, so nothing that was done is protected: put the layer on \
             the router's routes, and not around the router or its fallback"
        );
        Problem::Unprotected.response(&self.profile, &self.problem_types).map(Body::from)
    }
}

/// Methods that the registry of IANA calls safe, beside those that [`Method::is_safe`] knows.
const SAFE: [&str; 4] = ["QUERY", "PROPFIND", "REPORT", "SEARCH"];

/// A method that nobody knows may change something, so with a key it is protected.
fn is_protected<B>(request: &Request<B>) -> bool {
    let method = request.method();
    let is_safe = method.is_safe() || SAFE.contains(&method.as_str());
    let needs_key = [Method::POST, Method::PATCH].contains(method);
    needs_key || !is_safe && request.headers().contains_key(KEY_HEADER)
}

struct OfLayer<T> {
    /// Taken by its run: a handler cannot run twice.
    inner: Option<T>,
    response_bytes_max: usize,
}

impl<S, T> Runs<S> for OfLayer<T>
where
    S: Store,
    T: Service<Request<Body>, Error = Infallible> + Send + 'static,
    T::Response: IntoResponse,
    T::Future: Send + 'static,
{
    fn run<'a>(
        &'a mut self,
        shared: &'a Arc<Shared<S>>,
        admitted: &'a Arc<Admitted>,
        progress: &'a Arc<Progress>,
    ) -> Run<'a> {
        Box::pin(async move {
            let Some(_connection) = admitted.in_hand.run().await else { return Ok(Ended::Not(Problem::Overloaded)) };
            let operation = match shared.engine.begin_attended(admitted.message()).await? {
                Begun::Known(ran) => return Ok(Ended::Done(ran, None)),
                Begun::First(operation) => operation,
            };
            progress.runs();
            let Some(inner) = self.inner.take() else {
                // The handler ran, and the outcome of its commit could not be learned in time.
                operation.give_up().await;
                return Ok(Ended::Not(Problem::FailedForNow));
            };
            first(shared, admitted, operation, inner, self.response_bytes_max).await
        })
    }
}

/// A response that is kept, and its part that the engine keeps.
struct Kept {
    response: http::Response<Bytes>,
    value: ResultBody,
    is_refused: bool,
}

/// Runs the handler in its operation, and ends that as the response asks.
async fn first<S, T>(
    shared: &Shared<S>,
    admitted: &Admitted,
    operation: Operation<S>,
    inner: T,
    response_bytes_max: usize,
) -> Result<Ended, RunOnceError>
where
    S: Store,
    T: Service<Request<Body>, Error = Infallible> + Send + 'static,
    T::Response: IntoResponse,
    T::Future: Send + 'static,
{
    let key = admitted.request_key(operation.message());
    let mut request = admitted.request(key.clone()).map(Body::from);
    let lending = Arc::new(Lending::of(&operation, key));
    request.extensions_mut().insert(Lent(Arc::clone(&lending)));
    let handled = async {
        let response = collected(inner, request, response_bytes_max).await;
        judged(shared, &lending, response, response_bytes_max)
    };
    let (operation, judged) = operation.attend(handled).await?;
    let (ran, response) = match judged {
        Ok(Kept { response, value, is_refused: false }) => (operation.finish(value).await?, response),
        Ok(Kept { response, value, is_refused: true }) => (operation.refuse(value).await?, response),
        Err(ended) => {
            // Where the transaction was moved out of the handler, it is ended when it comes back.
            operation.give_up().await;
            return Ok(ended);
        }
    };
    Ok(Ended::Done(ran, Some(response)))
}

/// The handler's response, with its body up to the limit.
async fn collected<T>(
    mut inner: T,
    request: Request<Body>,
    bytes_max: usize,
) -> Result<http::Response<Bytes>, &'static str>
where
    T: Service<Request<Body>, Error = Infallible> + Send,
    T::Response: IntoResponse,
    T::Future: Send,
{
    let Ok(response) = inner.call(request).await;
    let (parts, body) = response.into_response().into_parts();
    match Limited::new(body, bytes_max).collect().await {
        Ok(body) => Ok(http::Response::from_parts(parts, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err("it is larger than what is kept of one answer"),
        Err(_) => Err("its body broke off"),
    }
}

/// How the operation ends with this response. An error is one of which nothing is kept.
#[expect(clippy::result_large_err, reason = "it is passed on as it came, once a request")]
fn judged<S: Store>(
    shared: &Shared<S>,
    lending: &Lending<S>,
    response: Result<http::Response<Bytes>, &'static str>,
    response_bytes_max: usize,
) -> Result<Kept, Ended> {
    let is_used = match lending.whereabouts() {
        Whereabouts::Here { is_used } => is_used,
        Whereabouts::Lent | Whereabouts::Ended => return Err(Ended::Not(Problem::TransactionMoved)),
    };
    let response = response.map_err(|what| Ended::Not(Problem::ResponseRefused(what)))?;
    if let Some(of_tx) = response.extensions().get::<OfTx>() {
        return Err(Ended::Not(of_tx.problem::<S>()));
    }
    let wish = wish(response.status(), lending, is_used, shared).ok_or(Ended::Not(Problem::Unprotected))?;
    let limits = error::Limits::new(response_bytes_max, &shared.counts.misplaced);
    let (response, is_refused) = match error::judge(response, wish, limits) {
        Judged::Keep(response) => (response, false),
        Judged::Refuse(response) => (response, true),
        Judged::Drop(response) => return Err(Ended::Dropped(response)),
        Judged::Unfit(what) => return Err(Ended::Not(Problem::ResponseRefused(what))),
    };
    let value = answer::kept(&response, &shared.kept_headers);
    Ok(Kept { response, value, is_refused })
}

/// The treatment of a handler's response. `None` if the handler did not take its transaction and answered as if it had done something.
fn wish<S: Store>(status: StatusCode, lending: &Lending<S>, is_used: bool, shared: &Shared<S>) -> Option<Wish> {
    if lending.is_discarded() {
        return Some(Wish::Drop);
    }
    if lending.is_refused() {
        return Some(Wish::Refuse);
    }
    if is_used || status.is_server_error() {
        return Some(Wish::Commit);
    }
    if status.is_client_error() {
        return Some(Wish::Drop);
    }
    shared.counts.untaken.increment(1);
    if !lending.is_taken() {
        return None;
    }
    shared.told_of_unused.call_once(|| {
        tracing::warn!(
            { idem.consumer = %shared.engine.name() },
            "a protected handler answered {status} and did not use its transaction: its effects, if it has any, are not protected"
        );
    });
    Some(Wish::Commit)
}
