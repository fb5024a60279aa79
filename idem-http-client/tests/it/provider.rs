//! A provider that charges once a key for as long as it remembers, and answers as badly as its test asks. It is a service in this process,
//! where a test may have the clock go as it likes, and a server of HTTP.

use std::{
    collections::{HashMap, VecDeque},
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use idem_core::BoxError;
use tokio::{net::TcpListener, time::Instant};

/// The treatment of a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Charges, once a key, and answers 201.
    Charge,
    /// Charges, and closes the connection without an answer.
    ChargeAndCut,
    /// Charges, and never answers.
    ChargeAndHang,
    /// Charges, and closes the connection in the middle of the answer.
    ChargeAndCutTheAnswer,
    /// Closes the connection before anything was done.
    Cut,
    /// Does nothing, and answers this.
    Answer(u16, &'static [(&'static str, &'static str)], &'static str),
    /// Does nothing, and answers 503, until so long after it was started.
    BusyUntil(Duration),
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) key: Option<String>,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) at: Duration,
}

#[derive(Debug)]
struct State {
    begun: Instant,
    memory: Duration,
    acts: Mutex<VecDeque<Act>>,
    seen: Mutex<Vec<Seen>>,
    /// The keys under which it charged, and when each was first used.
    keys: Mutex<HashMap<String, Instant>>,
    charges: Mutex<Vec<String>>,
    /// Its answer about keys.
    told: Mutex<Option<&'static str>>,
}

pub(crate) struct Provider {
    state: Arc<State>,
}

/// The provider as a service of this process.
#[derive(Clone)]
pub(crate) struct InProcess(Arc<State>);

impl tower_service::Service<Request<Bytes>> for InProcess {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(answer(Arc::clone(&self.0), request.map(Full::new)))
    }
}

type Body = BoxBody<Bytes, io::Error>;

impl Provider {
    /// One that does this in turn, and charges after it. It forgets a key after an hour.
    pub(crate) fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        Self::that_forgets_after(Duration::from_secs(3_600), acts)
    }

    pub(crate) fn that_forgets_after(memory: Duration, acts: impl IntoIterator<Item = Act>) -> Self {
        let state = Arc::new(State {
            begun: Instant::now(),
            memory,
            acts: Mutex::new(acts.into_iter().collect()),
            seen: Mutex::default(),
            keys: Mutex::default(),
            charges: Mutex::default(),
            told: Mutex::default(),
        });
        Self { state }
    }

    pub(crate) fn service(&self) -> InProcess {
        InProcess(Arc::clone(&self.state))
    }

    /// Serves it over HTTP, and answers where.
    pub(crate) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = Arc::clone(&self.state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&serving);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        url
    }

    /// Sets its answer about any key from now on.
    pub(crate) fn tells(&self, state: &'static str) {
        *self.state.told.lock().unwrap() = Some(state);
    }

    /// The keys that were charged, one for each charge.
    pub(crate) fn charges(&self) -> Vec<String> {
        self.state.charges.lock().unwrap().clone()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }
}

impl State {
    /// Charges, unless the key is one that it remembers. Answers whether it was.
    fn charge(&self, key: &str) -> bool {
        let mut keys = self.keys.lock().unwrap();
        let known = keys.get(key).is_some_and(|at| at.elapsed() < self.memory);
        if !known {
            keys.insert(key.to_owned(), Instant::now());
            self.charges.lock().unwrap().push(key.to_owned());
        }
        known
    }

    fn next(&self) -> Act {
        let mut acts = self.acts.lock().unwrap();
        match acts.front() {
            Some(Act::BusyUntil(until)) if self.begun.elapsed() < *until => Act::Answer(503, &[], ""),
            Some(Act::BusyUntil(_)) => {
                acts.pop_front();
                Act::Charge
            }
            Some(_) => acts.pop_front().unwrap(),
            None => Act::Charge,
        }
    }
}

async fn answer<B>(state: Arc<State>, request: Request<B>) -> Result<Response<Body>, io::Error>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let text = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let member =
        || serde_json::from_slice::<serde_json::Value>(&body).ok()?.get("idempotency_key")?.as_str().map(str::to_owned);
    let key = text("idempotency-key").or_else(member);
    state.seen.lock().unwrap().push(Seen {
        key: key.clone(),
        method: parts.method.clone(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers.clone(),
        body: body.clone(),
        at: state.begun.elapsed(),
    });
    if parts.method == Method::GET {
        let told = *state.told.lock().unwrap();
        return Ok(told.map_or_else(|| full(404, ""), |told| full(200, told)));
    }
    let key = key.expect("a key");
    let act = state.next();
    match act {
        Act::Charge => {
            let mut response = full(201, r#"{"id":"ch_1"}"#);
            let known = if state.charge(&key) { "true" } else { "false" };
            response.headers_mut().insert("idempotent-replayed", known.parse().unwrap());
            Ok(response)
        }
        Act::ChargeAndCut => {
            state.charge(&key);
            Err(io::Error::other("cut"))
        }
        Act::ChargeAndHang => {
            state.charge(&key);
            std::future::pending().await
        }
        Act::ChargeAndCutTheAnswer => {
            state.charge(&key);
            // More is announced than comes.
            Ok(Response::builder().status(201).header(CONTENT_LENGTH, 13).body(BoxBody::new(Half::default())).unwrap())
        }
        Act::Cut => Err(io::Error::other("cut")),
        Act::Answer(status, headers, body) => {
            let mut response = full(status, body);
            for (name, value) in headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
            Ok(response)
        }
        Act::BusyUntil(_) => unreachable!("next() has resolved it"),
    }
}

/// The beginning of a body, and then an error, once the beginning is on its way.
#[derive(Debug, Default)]
struct Half {
    polled: u32,
}

impl http_body::Body for Half {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.polled += 1;
        match self.polled {
            1 => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{\"id\""))))),
            // The server flushes its buffer while it waits for more.
            2..=9 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Some(Err(io::Error::other("cut")))),
        }
    }
}

fn full(status: u16, body: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
