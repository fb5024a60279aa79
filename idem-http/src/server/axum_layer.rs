//! The layer for existing routers of axum, and the extractor with which a handler gets its transaction.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::{FromRequestParts, MatchedPath},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use idem_core::{
    BoxError, CannotRepeat, Event, HandlerError, IdempotencyKey, WorkError, Working,
    store::{Store, Tx},
};
use tokio::sync::{mpsc, oneshot};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    error::Wish,
    flight::Progress,
    gates::Admitted,
    key::KEY_HEADER,
    made::Last,
    problem::Problem,
    request_key::RequestKey,
    route::{RouteName, RouteSettings, route_setters},
    run::{Ended, Run, Runs},
    state::{Idempotency, Shared},
    step_error::{OfStep, StepError},
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
    /// `PUT`, `DELETE` or `MKCOL`, is protected if it has one. A handler gets its transaction through the extractor [`Idem`]. The
    /// transaction is committed together with the answer, after the handler has answered and before the client gets the answer.
    ///
    /// | A handler responds | its effects | the response is kept | a repeat gets |
    /// |---|---|---|---|
    /// | with 2xx, 3xx or 4xx | committed | yes | the same response |
    /// | the same after [`Idem::refuse`] | rolled back | yes | the same response |
    /// | the same after [`Idem::discard`] | rolled back | no | a run |
    /// | with 4xx, and has not used its transaction: an extractor has refused the request | none | no | a run |
    /// | with 5xx | rolled back | no | a run |
    /// | with 1xx, or a number that is not a status of HTTP | rolled back | no: it is answered with 500 | a run |
    /// | with a [`StepError`], panics, or does not end in time | rolled back | no | a run |
    ///
    /// A decline that has effects of its own, such as a row that counts it, needs neither `refuse` nor `discard`. 401, 403, 408, 425 and
    /// 429 concern a request and not its operation. If they were kept, every repeat of the key would get them: call `discard` before. Without
    /// it they are refused in debug builds, and counted in others. The guide's page on HTTP has the table of all statuses.
    ///
    /// A handler under the layer must take [`Idem`]. If it does not, its 2xx and 3xx become a 500 that is not kept, because nothing that it does is
    /// protected. One that takes it and has nothing to write need not use it.
    ///
    /// Method and matched path scope the keys, so the layer belongs on routes. Put it on the methods of a route, and a method that the
    /// route does not have is answered with 405 before any key is claimed:
    ///
    /// ```
    /// # use idem_http::{Idem, Idempotency, StepError, core::store::Store};
    /// # async fn pay<S: Store>(idem: Idem<S>) -> Result<&'static str, StepError> { Ok("paid") }
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
    /// # use idem_http::{Idem, Idempotency, StepError, core::store::Store};
    /// # async fn pay<S: Store>(idem: Idem<S>) -> Result<&'static str, StepError> { Ok("paid") }
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
            let runs =
                OfLayer { inner: Arc::new(Mutex::new(Some(inner))), response_bytes_max: settings.response_bytes_max };
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

/// The transaction of a request, which a handler takes as an argument. `S` is the store's type.
///
/// ```
/// # use idem_http::{Idem, StepError};
/// # use idem_core::{BoxError, store::Store};
/// async fn pay<S: Store>(idem: Idem<S>, body: String) -> Result<String, StepError> {
///     idem.with(|tx| Box::pin(async move {
///         let _connection = tx.connection(); // the store's own: run statements on it
///         Ok::<_, BoxError>(())
///     }))
///     .await?;
///     Ok(format!("paid {body}"))
/// }
/// ```
pub struct Idem<S: Store>(Arc<Slot<S>>);

struct Slot<S: Store> {
    key: RequestKey,
    /// Where steps go, until the handler has answered.
    steps: Mutex<Option<mpsc::Sender<Box<StepFn<S>>>>>,
    /// Whether the handler has the transaction as an argument.
    is_taken: AtomicBool,
    /// Whether it has done a step in it.
    is_used: AtomicBool,
    is_refused: AtomicBool,
    /// Whether the handler asked for nothing to be kept.
    is_discarded: AtomicBool,
}

type StepFn<S> = dyn for<'a, 't> FnOnce(&'a mut Tx<'t, S>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> + Send;

impl<S: Store> Slot<S> {
    fn new(key: RequestKey, steps: mpsc::Sender<Box<StepFn<S>>>) -> Self {
        Self {
            key,
            steps: Mutex::new(Some(steps)),
            is_taken: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            is_discarded: AtomicBool::new(false),
        }
    }

    fn steps(&self) -> MutexGuard<'_, Option<mpsc::Sender<Box<StepFn<S>>>>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        drop(self.steps().take());
    }
}

impl<S: Store> Clone for Idem<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for Idem<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idem").finish_non_exhaustive()
    }
}

/// The type of a step's future.
type Step<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

impl<S: Store> Idem<S> {
    /// The request's key and its scope, and the keys for others that follow from it.
    #[must_use]
    pub fn key(&self) -> &RequestKey {
        &self.0.key
    }

    /// Runs a step in the transaction, and returns its result. May be called several times.
    ///
    /// # Errors
    /// [`StepError`] if the step failed, or if the operation has ended at its deadline. As the handler's answer it becomes a 503, or a 500
    /// if it is [permanent](HandlerError::permanent), and nothing of the request is kept. Whether the transaction can go on after a failed statement depends on the database.
    ///
    /// # Cancel safety
    /// A step whose call was dropped is finished before the next step.
    pub async fn with<T, E, F>(&self, step: F) -> Result<T, StepError>
    where
        T: Send + 'static,
        E: Into<HandlerError> + Send + 'static,
        F: for<'a, 't> FnOnce(&'a mut Tx<'t, S>) -> Step<'a, T, E> + Send + 'static,
    {
        self.0.is_used.store(true, Ordering::Relaxed);
        let over = || StepError::of::<S>(HandlerError::transient("the operation has ended"));
        let (answer, answered) = oneshot::channel();
        let step: Box<StepFn<S>> = Box::new(move |tx| {
            Box::pin(async move {
                let done = step(tx).await.map_err(|error| StepError::of::<S>(error.into()));
                if let Err(error) = &done
                    && error.is_of_database
                {
                    tx.note_error(error.noted());
                }
                // The caller may have given up.
                let _ = answer.send(done);
            })
        });
        let steps = self.0.steps().clone().ok_or_else(over)?;
        steps.send(step).await.map_err(|_| over())?;
        // This sender would keep the operation open.
        drop(steps);
        answered.await.map_err(|_| over())?
    }

    /// Publishes an event, which is committed with the request's effects or not at all; see [`Tx::publish`].
    ///
    /// ```
    /// # use idem_http::{Idem, StepError, core::{Event, Store}};
    /// # #[derive(serde::Serialize)]
    /// # struct Paid { cents: u64 }
    /// async fn pay<S: Store>(idem: Idem<S>) -> Result<&'static str, StepError> {
    ///     idem.publish(Event::to("payments").event_type("Paid").json(&Paid { cents: 1_177 })?).await?;
    ///     Ok("paid")
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`with`](Self::with).
    ///
    /// # Cancel safety
    /// As for [`with`](Self::with).
    pub async fn publish(&self, event: Event) -> Result<IdempotencyKey, StepError> {
        self.with(|tx| {
            let published = match tx.message() {
                Some(message) => tx.publish(message, event).map_err(BoxError::from),
                None => Err("the operation has no message to publish for".into()),
            };
            Box::pin(std::future::ready(published))
        })
        .await
    }

    /// Marks the handler's answer as a permanent refusal: its writes are rolled back, and the answer is kept.
    pub fn refuse(&self) {
        self.0.is_refused.store(true, Ordering::Relaxed);
    }

    /// Marks the handler's response as one that is not kept: its writes are rolled back, and a repeat runs. Use it before a response that
    /// concerns the request and not the operation, such as 429.
    pub fn discard(&self) {
        self.0.is_discarded.store(true, Ordering::Relaxed);
    }
}

impl<S: Store, A: Send + Sync> FromRequestParts<A> for Idem<S> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &A) -> Result<Self, Response> {
        if let Some(idem) = parts.extensions.get::<Self>() {
            idem.0.is_taken.store(true, Ordering::Relaxed);
            return Ok(idem.clone());
        }
        tracing::error!(
            "a handler takes Idem<{}>, and its route has no idempotency layer on that store, or its method none without a key",
            std::any::type_name::<S>()
        );
        // A PUT without a key also comes here.
        let is_keyless = !parts.headers.contains_key(KEY_HEADER);
        let status = if is_keyless { StatusCode::BAD_REQUEST } else { StatusCode::INTERNAL_SERVER_ERROR };
        Err((status, "this operation needs the header Idempotency-Key").into_response())
    }
}

struct OfLayer<T> {
    /// Taken by its run: a handler's own steps cannot be repeated.
    inner: Arc<Mutex<Option<T>>>,
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
        let last = Arc::<Last>::default();
        let work = self.work(shared, admitted, progress, &last);
        Box::pin(async move {
            let Some(_connection) = admitted.in_hand.run().await else { return Ok(Ended::Not(Problem::Overloaded)) };
            last.ended(shared.engine.run_message(admitted.message(), work).await)
        })
    }
}

impl<T> OfLayer<T> {
    /// The handler as work of the engine, which leaves its response in `last`.
    fn work<S>(
        &self,
        shared: &Arc<Shared<S>>,
        admitted: &Arc<Admitted>,
        progress: &Arc<Progress>,
        last: &Arc<Last>,
    ) -> impl for<'a, 't> Fn(&'a mut Tx<'t, S>) -> Working<'a> + Send + Sync + 'static + use<S, T>
    where
        S: Store,
        T: Service<Request<Body>, Error = Infallible> + Send + 'static,
        T::Response: IntoResponse,
        T::Future: Send + 'static,
    {
        let (shared, last, progress) = (Arc::clone(shared), Arc::clone(last), Arc::clone(progress));
        let (inner, admitted) = (Arc::clone(&self.inner), Arc::clone(admitted));
        let response_bytes_max = self.response_bytes_max;
        move |tx| {
            let (shared, last, progress) = (Arc::clone(&shared), Arc::clone(&last), Arc::clone(&progress));
            let inner = inner.lock().unwrap_or_else(PoisonError::into_inner).take();
            let key = tx.message().map(|message| admitted.request_key(message));
            let admitted = Arc::clone(&admitted);
            Box::pin(async move {
                progress.runs();
                let inner = inner.ok_or(CannotRepeat)?;
                tx.runs_once();
                let key = key.ok_or_else(|| WorkError::from("the operation has no message"))?;
                let mut request = admitted.request(key.clone()).map(Body::from);
                let (steps, to_do) = mpsc::channel(1);
                let slot = Arc::new(Slot::new(key, steps));
                request.extensions_mut().insert(Idem(Arc::clone(&slot)));
                let handled = async {
                    let response = collected(inner, request, response_bytes_max).await;
                    // A copy of `Idem` that the handler has kept finds the operation ended.
                    slot.close();
                    response
                };
                let response = match both(handled, steps_of(to_do, tx)).await {
                    Ok(response) => response,
                    Err(what) => return last.roll_back(Ended::Not(Problem::ResponseRefused(what))),
                };
                if let Some(OfStep(problem)) = response.extensions().get() {
                    return last.roll_back(Ended::Not(problem.clone()));
                }
                match wish(response.status(), &slot, &shared) {
                    Some(wish) => last.judge(response, wish, &shared, response_bytes_max),
                    None => last.roll_back(Ended::Not(Problem::Unprotected)),
                }
            })
        }
    }
}

/// Does the handler's steps until there are no more.
async fn steps_of<S: Store>(mut to_do: mpsc::Receiver<Box<StepFn<S>>>, tx: &mut Tx<'_, S>) {
    while let Some(step) = to_do.recv().await {
        step(tx).await;
    }
}

/// Polls a handler and its steps side by side, in the handler's own task, until both have ended.
async fn both<R>(handled: impl Future<Output = R>, steps: impl Future<Output = ()>) -> R {
    let (mut handled, mut steps) = (pin!(handled), pin!(steps));
    let (mut answered, mut are_done) = (None, false);
    poll_fn(|context| {
        if answered.is_none()
            && let Poll::Ready(response) = handled.as_mut().poll(context)
        {
            answered = Some(response);
        }
        are_done = are_done || steps.as_mut().poll(context).is_ready();
        match answered.take_if(|_| are_done) {
            Some(response) => Poll::Ready(response),
            None => Poll::Pending,
        }
    })
    .await
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

/// The treatment of a handler's response. `None` if the handler did not take its transaction and answered as if it had done something.
fn wish<S: Store>(status: StatusCode, slot: &Slot<S>, shared: &Shared<S>) -> Option<Wish> {
    let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
    if is(&slot.is_discarded) {
        return Some(Wish::Drop);
    }
    if is(&slot.is_refused) {
        return Some(Wish::Refuse);
    }
    if is(&slot.is_used) || status.is_server_error() {
        return Some(Wish::Commit);
    }
    if status.is_client_error() {
        return Some(Wish::Drop);
    }
    shared.counts.untaken.increment(1);
    if !is(&slot.is_taken) {
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
