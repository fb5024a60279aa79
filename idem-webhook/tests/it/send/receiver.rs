//! An endpoint: it gives the answers set by the test, and keeps the requests.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use idem_core::Bytes;
use tokio::{net::TcpListener, sync::Notify};

/// A request that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Status(u16),
    With(u16, &'static str, String),
    /// None, until the test ends.
    Never,
}

#[derive(Debug, Default)]
struct State {
    answers: Mutex<VecDeque<Answer>>,
    posts: Mutex<Vec<Post>>,
    arrived: Notify,
}

/// The server.
pub(crate) struct Receiver {
    state: Arc<State>,
    pub(crate) port: u16,
}

impl Receiver {
    /// One that gives these answers in turn, and 204 after them.
    pub(crate) async fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State { answers: Mutex::new(answers.into_iter().collect()), ..State::default() });
        let serving = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&serving);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { state, port }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn posts(&self) -> Vec<Post> {
        self.state.posts.lock().unwrap().clone()
    }

    /// Waits until this many requests have arrived.
    pub(crate) async fn until(&self, posts: usize) {
        while self.posts().len() < posts {
            self.state.arrived.notified().await;
        }
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let answer = state.answers.lock().unwrap().pop_front().unwrap_or(Answer::Status(204));
    state.posts.lock().unwrap().push(Post { path: parts.uri.path().to_owned(), headers: parts.headers, body });
    state.arrived.notify_one();
    let mut response = Response::new(Empty::new());
    match answer {
        Answer::Status(status) => *response.status_mut() = StatusCode::from_u16(status).unwrap(),
        Answer::With(status, name, value) => {
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        Answer::Never => std::future::pending().await,
    }
    Ok(response)
}
