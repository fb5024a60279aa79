//! The layer for existing routers of axum, and the extractor with which a handler gets its transaction.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
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
use http::{HeaderValue, Method, Request, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use idem_core::{
    BoxError, ErrorClass, Event, HandlerError, IdempotencyKey, Once, PublishError, RunOnceError, Running,
    store::{Store, Tx, describe},
};
use tokio::sync::Mutex;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Idempotency, Shared, answer,
    error::{self, HttpError, Judged},
    flight::Progress,
    gates::Admitted,
    key::KEY_HEADER,
    request_key::RequestKey,
    route::{RouteName, RouteSettings, route_setters},
    run::{Again, Ended, Run, Runs},
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
    /// A layer for routers of axum. A `POST` or a `PATCH` needs a key; a `PUT` or a `DELETE` is protected if it has one; other
    /// methods pass. A handler gets its transaction through the extractor [`Idem`]. The transaction is committed together with the
    /// answer, after the handler has answered and before the client gets the answer.
    ///
    /// [`HttpError`]'s table says which answers are kept; every answer of an axum handler counts as `Ok` there. In addition, a 4xx of a
    /// handler that has not used its transaction is not kept, because an extractor has refused the request.
    /// [`Idem::refuse`] keeps such an answer, and rolls back the handler's writes.
    ///
    /// Method and matched path scope the keys, so the layer belongs on the router (`.layer` or `.route_layer`). Layers that change
    /// the response's bytes, such as compression, belong outside of it.
    ///
    /// Requests under a layer share no transactions. A handler here runs once a key, and what it has done in its own steps cannot be
    /// repeated for a neighbour's sake: [`IdempotentRoute::shares_units`](crate::IdempotentRoute::shares_units) is for handlers that may
    /// run again.
    ///
    /// ```compile_fail,E0599
    /// # fn shared<S: idem_core::Store>(idempotency: idem_http::Idempotency<S>) {
    /// let _ = idempotency.layer().shares_units(16);
    /// # }
    /// ```
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
            let route = match request.extensions().get::<MatchedPath>() {
                Some(path) => RouteName::new(request.method(), path.as_str()),
                None => RouteName::unmatched(request.method(), request.uri().path()),
            };
            let runs = OfLayer { inner, settings: settings.clone() };
            Ok(shared.serve(request, &route, &settings, runs).await.map(Body::from))
        })
    }
}

fn is_protected<B>(request: &Request<B>) -> bool {
    match *request.method() {
        Method::POST | Method::PATCH => true,
        Method::PUT | Method::DELETE => request.headers().contains_key(KEY_HEADER),
        _ => false,
    }
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
    running: Mutex<Option<Running<S>>>,
    is_taken: AtomicBool,
    is_refused: AtomicBool,
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
        self.0.is_taken.store(true, Ordering::Relaxed);
        let mut running = self.0.running.lock().await;
        let over = || StepError::of::<S>(HandlerError::transient("the operation has ended"));
        let run = running.as_mut().ok_or_else(over)?;
        let done =
            run.with(step).await.map_err(|error| StepError::of::<S>(HandlerError::transient(error.to_string())))?;
        done.map_err(|error| StepError::of::<S>(error.into()))
    }

    /// Publishes an event, which is committed with the request's effects or not at all; see [`Tx::publish`].
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
}

/// Why a step in a transaction failed. As a handler's answer it is 503 with `Retry-After` if another try may succeed, as errors that
/// nobody has classed may, and otherwise 500 without; both as problems, in the words of the service's profile.
///
/// `Display` has the error without any value of a statement or row; [`handler_error`](Self::handler_error) is the error itself.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct StepError {
    error: HandlerError,
    class: ErrorClass,
    text: String,
}

/// Marks the response of a [`StepError`], for the layer around the handler.
#[derive(Debug, Clone, Copy)]
struct OfStep(Again);

impl StepError {
    fn of<S: Store>(error: HandlerError) -> Self {
        // What was refused of an event is refused each time.
        let is_refused = error.downcast_ref::<PublishError>().is_some();
        let class = if is_refused { ErrorClass::Permanent } else { error.class_by(S::classify) };
        Self { text: describe::<S>(error.inner()), class, error }
    }

    /// The error below.
    #[must_use]
    pub fn handler_error(&self) -> &HandlerError {
        &self.error
    }

    fn again(&self) -> Again {
        match self.class {
            ErrorClass::Permanent | ErrorClass::Fatal => Again::Never,
            ErrorClass::RunUnitAgain | ErrorClass::Transient | ErrorClass::Infrastructure => Again::Maybe,
        }
    }
}

impl IntoResponse for StepError {
    fn into_response(self) -> Response {
        tracing::warn!("a step of a request failed: {self}");
        let again = self.again();
        let mut response = match again {
            Again::Maybe => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, HeaderValue::from_static("1"))])
                .into_response(),
            Again::Never => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        };
        response.extensions_mut().insert(OfStep(again));
        response
    }
}

impl<S: Store, A: Send + Sync> FromRequestParts<A> for Idem<S> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &A) -> Result<Self, Response> {
        if let Some(idem) = parts.extensions.get::<Self>() {
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
    inner: T,
    settings: RouteSettings,
}

impl<S, T> Runs<S> for OfLayer<T>
where
    S: Store,
    T: Service<Request<Body>, Error = Infallible> + Clone + Send + 'static,
    T::Response: IntoResponse,
    T::Future: Send + 'static,
{
    fn run<'a>(
        &'a mut self,
        shared: &'a Shared<S>,
        admitted: &'a Arc<Admitted>,
        progress: &'a Arc<Progress>,
    ) -> Run<'a> {
        let message = admitted.message();
        // Called at most once: not at all while the key is held.
        let inner = &mut self.inner;
        let bytes_max = self.settings.response_bytes_max;
        Box::pin(async move {
            let _connection = admitted.in_hand.run().await;
            let running = match shared.engine.once_message(message).await? {
                Once::Known(ran) => return Ok(Ended::Done(ran, None)),
                Once::First(running) => running,
            };
            progress.runs();
            let key = admitted.request_key(running.message());
            let mut request = admitted.request(key.clone()).map(Body::from);
            let slot = Arc::new(Slot {
                key,
                running: Mutex::new(Some(running)),
                is_taken: AtomicBool::new(false),
                is_refused: AtomicBool::new(false),
            });
            request.extensions_mut().insert(Idem(Arc::clone(&slot)));
            let answered = tokio::time::timeout(shared.handler_deadline, collected(inner, request, bytes_max)).await;
            // A copy of `Idem` that the handler has kept finds the operation ended.
            let running = slot.running.lock().await.take();
            let Some(running) = running else { return Ok(Ended::Failed(Again::Maybe)) };
            let why = match answered {
                Ok(Ok(response)) => return ended(shared, running, &slot, response, bytes_max).await,
                Ok(Err(what)) => Ended::Unfit(what),
                Err(_late) => Ended::Failed(Again::Maybe),
            };
            running.give_up().await;
            Ok(why)
        })
    }
}

/// The handler's response, with its body up to the limit.
async fn collected<T>(
    inner: &mut T,
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

/// Commits or rolls back, depending on the answer.
async fn ended<S: Store>(
    shared: &Shared<S>,
    running: Running<S>,
    slot: &Slot<S>,
    response: http::Response<Bytes>,
    response_bytes_max: usize,
) -> Result<Ended, RunOnceError> {
    if let Some(OfStep(again)) = response.extensions().get().copied() {
        running.give_up().await;
        return Ok(Ended::Failed(again));
    }
    let is_refused = slot.is_refused.load(Ordering::Relaxed);
    let is_taken = slot.is_taken.load(Ordering::Relaxed);
    let status = response.status();
    let answered = if is_refused {
        Err(HttpError::refused(response))
    } else if !is_taken && status.is_client_error() {
        Err(HttpError::not_kept(response))
    } else {
        if !is_taken && status.is_success() {
            shared.counts.untaken.increment(1);
            shared.told_of_untaken.call_once(|| {
                tracing::warn!(
                    { idem.consumer = %shared.engine.name() },
                    "a protected handler answered {status} and did not use its transaction: its effects, if it has any, are \
                     not protected; take Idem<S> as an argument, or leave the layer off"
                );
            });
        }
        Ok(response)
    };
    let limits = error::Limits::new(response_bytes_max, &shared.counts.misplaced);
    match error::judge(answered, limits) {
        Judged::Keep(response) => {
            let ran = running.finish(answer::kept(&response, &shared.kept_headers)).await?;
            Ok(Ended::Done(ran, Some(response)))
        }
        Judged::Refuse(response) => {
            let ran = running.refuse(answer::kept(&response, &shared.kept_headers)).await?;
            Ok(Ended::Done(ran, Some(response)))
        }
        Judged::Drop(response) => {
            running.give_up().await;
            Ok(Ended::Dropped(response))
        }
        Judged::Unfit(what) => {
            running.give_up().await;
            Ok(Ended::Unfit(what))
        }
        // Every answer of an axum handler is a response.
        Judged::Fail(_) => {
            running.give_up().await;
            Ok(Ended::Failed(Again::Maybe))
        }
    }
}
