//! A service for tests: `POST /t` writes the body as an effect, and answers as the body says.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{Router, body::Body, extract::State, routing::any};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use idem_core::{BoxError, ErrorClass, HandlerError, Store, Tx};
use idem_http::{
    Authenticated, Fingerprint, HashSecret, Idempotency, IdempotencyBuilder, IdempotencyLayer, IdempotentTx, TxError,
};
use tokio::sync::{Semaphore, watch};
use tower::{Service, ServiceExt as _};

use super::grounds::Ground;

pub(crate) const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// An answer as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) async fn of<B>(response: Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        Self { status: parts.status.as_u16(), headers: parts.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn is_replayed(&self) -> Option<bool> {
        self.header("idempotent-replayed").map(|value| value == "true")
    }
}

/// Settings with tenants by token, and keyed hashes.
pub(crate) fn builder<G: Ground>(ground: &G) -> IdempotencyBuilder<G::Store> {
    builder_without_secret(ground).hash_secret(HashSecret::new(1, SECRET).unwrap())
}

/// The same without a way of hashing.
pub(crate) fn builder_without_secret<G: Ground>(ground: &G) -> IdempotencyBuilder<G::Store> {
    let tenant = |parts: &http::request::Parts| {
        let token = parts.headers.get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
        let who = Authenticated::tenant(token.split('/').next()?);
        Some(match token.split_once('/') {
            Some((_, subject)) => who.with_subject(subject),
            None => who,
        })
    };
    Idempotency::builder(ground.store(), "payments").tenant(tenant)
}

/// The runs of a handler, and those that are held until their release.
pub(crate) struct Runs {
    begun: watch::Sender<usize>,
    released: Semaphore,
}

impl Default for Runs {
    fn default() -> Self {
        Self { begun: watch::Sender::new(0), released: Semaphore::new(0) }
    }
}

impl Runs {
    /// How many have begun.
    pub(crate) fn begun(&self) -> usize {
        *self.begun.borrow()
    }

    /// Waits until this many have begun.
    pub(crate) async fn until_begun(&self, runs: usize) {
        self.begun.subscribe().wait_for(|begun| *begun >= runs).await.unwrap();
    }

    /// Lets this many of those that are [held] end, now or later.
    pub(crate) fn release(&self, runs: usize) {
        self.released.add_permits(runs);
    }

    /// Lets one end once it has begun as the number `run`.
    pub(crate) async fn release_once_begun(&self, run: usize) {
        self.until_begun(run).await;
        self.release(1);
    }

    pub(crate) async fn begin(&self, request: &Request<Bytes>) {
        if request.headers().contains_key(HELD) {
            self.begin_held().await;
        } else {
            self.one_begun();
        }
    }

    pub(crate) fn one_begun(&self) {
        self.begun.send_modify(|begun| *begun += 1);
    }

    /// A run begins, and waits until it is released.
    pub(crate) async fn begin_held(&self) {
        self.one_begun();
        self.released.acquire().await.unwrap().forget();
    }
}

const HELD: &str = "x-held";

/// Why a handler of the tests has no answer that is committed.
#[derive(Debug)]
pub(crate) enum Declined {
    /// As after [`IdempotentTx::refuse`].
    Final(Box<Response<Bytes>>),
    /// As after [`IdempotentTx::discard`].
    NotKept(Box<Response<Bytes>>),
    Failed(HandlerError),
}

impl<E: Into<HandlerError>> From<E> for Declined {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Declined>> + Send + 'a>>;

pub(crate) type Handler<S> = Arc<dyn for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync>;

/// A route of axum.
pub(crate) struct Route<S: Store> {
    layer: IdempotencyLayer<S>,
    path: &'static str,
    handler: Handler<S>,
}

impl<S: Store> Clone for Route<S> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), path: self.path, handler: Arc::clone(&self.handler) }
    }
}

impl<S: Store> Route<S> {
    pub(crate) fn fingerprint(self, fingerprint: Fingerprint) -> Self {
        Self { layer: self.layer.fingerprint(fingerprint), ..self }
    }

    pub(crate) fn bodies_are_decoded_before(self) -> Self {
        Self { layer: self.layer.bodies_are_decoded_before(), ..self }
    }
}

/// Runs a handler, and has its answer treated as it asks.
pub(crate) async fn handled<S: Store>(
    State(handler): State<Handler<S>>,
    mut tx: IdempotentTx<S>,
    request: Request<Body>,
) -> Result<Response<Body>, TxError> {
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts, body.collect().await.unwrap().to_bytes());
    let answered = handler(request, &mut tx.tx()).await;
    treated(&mut tx, answered)
}

/// The answer of a handler, treated as it asks.
pub(crate) fn treated<S: Store>(
    tx: &mut IdempotentTx<S>,
    answered: Result<Response<Bytes>, Declined>,
) -> Result<Response<Body>, TxError> {
    let response = match answered {
        Ok(response) => response,
        Err(Declined::Final(response)) => {
            tx.refuse();
            *response
        }
        Err(Declined::NotKept(response)) => {
            tx.discard();
            *response
        }
        Err(Declined::Failed(error)) => return Err(tx.note(error)),
    };
    Ok(response.map(Body::from))
}

impl<S, B> Service<Request<B>> for Route<S>
where
    S: Store,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { layer, path, handler } = self.clone();
        let router = Router::new().route(path, any(handled::<S>).layer(layer)).with_state(handler);
        Box::pin(router.oneshot(request.map(Body::new)))
    }
}

/// A route with this handler.
pub(crate) fn mounted<S, H>(idempotency: &Idempotency<S>, path: &'static str, handler: H) -> Route<S>
where
    S: Store,
    H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
{
    Route { layer: idempotency.layer(), path, handler: Arc::new(handler) }
}

/// The route of the tests.
pub(crate) fn route<G: Ground>(idempotency: &Idempotency<G::Store>, runs: &Arc<Runs>) -> Route<G::Store> {
    let runs = Arc::clone(runs);
    mounted(idempotency, "/t", move |request, tx| {
        let runs = Arc::clone(&runs);
        Box::pin(async move {
            let body = String::from_utf8(request.body().to_vec()).unwrap();
            G::pay(tx, body.clone()).await?;
            runs.begin(&request).await;
            answer(&body)
        })
    })
}

/// The handler's answer: a number that no other run has, unless the body asks for something else.
pub(crate) fn answer(body: &str) -> Result<Response<Bytes>, Declined> {
    let number = fastrand::u64(..).to_string();
    let response = |status: u16| {
        Response::builder()
            .status(status)
            .header("content-type", "text/plain")
            .header("location", format!("/t/{number}"))
            .header("set-cookie", "session=secret")
            // As of a server that it has asked.
            .header("idempotent-replayed", "true")
            .header("idempotency-expires", "2999-01-01T00:00:00Z")
            .header("idempotency-processed-at", "2999-01-01T00:00:00Z")
            .body(Bytes::from(number.clone()))
            .unwrap()
    };
    match body {
        "final" => Err(Declined::Final(response(422).into())),
        "declined" => Ok(response(402)),
        "error" => Err("broken".into()),
        "permanent" => Err(HandlerError::permanent("it does not fit").into()),
        "contended" => {
            Err(HandlerError::transient("could not serialize access").with_class(ErrorClass::RunUnitAgain).into())
        }
        "panic" => panic!("as asked"),
        "not kept" => Err(Declined::NotKept(response(400).into())),
        "headers" => {
            let mut all = response(201);
            for (name, value) in [
                ("etag", "\"7\""),
                ("link", "</t>; rel=\"up\""),
                ("link", "</t/8>; rel=\"next\""),
                ("content-language", "de"),
                ("content-location", "/t/7.txt"),
                ("x-named", "named"),
                ("x-unnamed", "unnamed"),
                ("repr-digest", "sha-256=:AAAA:"),
            ] {
                all.headers_mut().append(name, value.parse().unwrap());
            }
            Ok(all)
        }
        "large" => Ok(response(200).map(|_| Bytes::from(vec![b'x'; 2_000]))),
        "coded" => {
            let mut coded = response(200);
            coded.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
            Ok(coded)
        }
        _ => match body.rsplit_once(' ').and_then(|(form, status)| Some((form, status.parse().ok()?))) {
            Some(("status", status)) => Ok(response(status)),
            Some(("final", status)) => Err(Declined::Final(response(status).into())),
            Some(("not kept", status)) => Err(Declined::NotKept(response(status).into())),
            _ => Ok(response(201)),
        },
    }
}

/// A request of tenant `acme`.
pub(crate) fn request(key: &str, body: &str) -> Request<Full<Bytes>> {
    request_of("acme", key, body)
}

pub(crate) fn request_of(token: &str, key: &str, body: &str) -> Request<Full<Bytes>> {
    Request::post("/t")
        .header("authorization", format!("Bearer {token}"))
        .header("idempotency-key", key)
        .header("content-type", "text/plain")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap()
}

/// A request whose run is held, until [`Runs::release`].
pub(crate) fn held<B>(mut request: Request<B>) -> Request<B> {
    request.headers_mut().insert(HELD, "1".parse().unwrap());
    request
}

/// Sends a request to the route.
pub(crate) fn send<S: Store>(
    route: &Route<S>,
    request: Request<impl http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static>,
) -> Pin<Box<dyn Future<Output = Seen> + Send>> {
    let answered = route.clone().call(request);
    Box::pin(async move { Seen::of(answered.await.unwrap()).await })
}

/// A body that counts in `arrived` once all that will come of it was read: one that ends is through all gates but the claim then.
pub(crate) struct Counted {
    content: Option<Bytes>,
    arrived: Option<watch::Sender<usize>>,
    ends: bool,
}

impl Counted {
    /// More is to come, and never does.
    pub(crate) fn never_ends(&mut self) {
        self.ends = false;
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(content) = self.content.take() {
            return Poll::Ready(Some(Ok(Frame::data(content))));
        }
        if let Some(arrived) = self.arrived.take() {
            arrived.send_modify(|arrived| *arrived += 1);
        }
        if self.ends { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// The same request with this content, whose arrival is counted.
pub(crate) fn counted(
    request: Request<Full<Bytes>>,
    content: &'static str,
    arrived: &watch::Sender<usize>,
) -> Request<Counted> {
    let content = Some(Bytes::from_static(content.as_bytes()));
    request.map(|_| Counted { content, arrived: Some(arrived.clone()), ends: true })
}

pub(crate) async fn until_all_have(arrived: &watch::Sender<usize>, requests: usize) {
    arrived.subscribe().wait_for(|arrived| *arrived >= requests).await.unwrap();
}
