//! A service for tests: `POST /t` writes the body as an effect, and answers as the body says.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use idem_core::{BoxError, ErrorClass, HandlerError, Tx};
use idem_http::{Answering, Authenticated, HashSecret, HttpError, Idempotency, IdempotencyBuilder, IdempotentRoute};
use tokio::sync::{Semaphore, watch};
use tower::Service as _;

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
    Idempotency::builder_shared(ground.store(), "payments").tenant(tenant)
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

pub(crate) type Handler<S> = Box<dyn for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync>;

/// The route of the tests.
pub(crate) type Route<G> = IdempotentRoute<<G as Ground>::Store, Handler<<G as Ground>::Store>>;

pub(crate) fn route<G: Ground>(idempotency: &Idempotency<G::Store>, runs: &Arc<Runs>) -> Route<G> {
    let runs = Arc::clone(runs);
    let handler: Handler<G::Store> = Box::new(move |request, tx| {
        let runs = Arc::clone(&runs);
        Box::pin(async move {
            let body = String::from_utf8(request.body().to_vec()).unwrap();
            G::pay(tx, body.clone()).await.map_err(|error: BoxError| HttpError::from(error))?;
            runs.begin(&request).await;
            answer(&body)
        })
    });
    idempotency.route("/t", handler)
}

/// The handler's answer: a number that no other run has, unless the body asks for something else.
pub(crate) fn answer(body: &str) -> Result<Response<Bytes>, HttpError> {
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
        "final" => Err(HttpError::refused(response(422))),
        "declined" => Ok(response(402)),
        "error" => Err("broken".into()),
        "permanent" => Err(HandlerError::permanent("it does not fit").into()),
        "contended" => {
            Err(HandlerError::transient("could not serialize access").with_class(ErrorClass::RunUnitAgain).into())
        }
        "panic" => panic!("as asked"),
        "not kept" => Err(HttpError::not_kept(response(400))),
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
            Some(("final", status)) => Err(HttpError::refused(response(status))),
            Some(("not kept", status)) => Err(HttpError::not_kept(response(status))),
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
pub(crate) fn send<G: Ground>(
    route: &Route<G>,
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
