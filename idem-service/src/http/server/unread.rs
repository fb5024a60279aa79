//! A request that is answered before its body was read, after which hyper closes the connection without a word if the rest is not there yet.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::to_bytes;
use hyper::{
    HeaderMap, Request,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    header,
};
use tokio::time::timeout;

use crate::connections::Waits;

/// How much of such a body is thrown away for the connection's sake.
const REST_BYTES_MAX: usize = 64 << 10;

/// How long that may take. What was sent together with its head is there.
const REST_WITHIN: Duration = Duration::from_millis(100);

/// Where a body is that was given up before its end.
#[derive(Clone, Default)]
struct GivenUp(Arc<Mutex<Option<Incoming>>>);

impl GivenUp {
    fn put(&self, body: Option<Incoming>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }

    fn take(&self) -> Option<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What is known of a request's body once the request was answered.
pub(super) struct Rest {
    given_up: GivenUp,
    waits_for_leave: bool,
}

impl Rest {
    /// The request for its route, and the rest of its body, for later.
    pub(super) fn of(request: Request<Incoming>, waits: &Arc<Waits>) -> (Request<Received>, Self) {
        let waits_for_leave = request.headers().contains_key(header::EXPECT);
        let given_up = GivenUp::default();
        let (to, waits) = (given_up.clone(), Arc::clone(waits));
        (request.map(|body| Received { body: Some(body), to, waits }), Self { given_up, waits_for_leave })
    }

    /// Reads a little that was left, or says in the answer that the connection ends with it.
    pub(super) async fn settle(self, answer: &mut HeaderMap) {
        let Some(rest) = self.given_up.take() else { return };
        // To read a body that waits for 100 (Continue) would ask for it.
        let is_large = rest.size_hint().lower() > REST_BYTES_MAX as u64;
        let is_read = !self.waits_for_leave
            && !is_large
            && timeout(REST_WITHIN, to_bytes(axum::body::Body::new(rest), REST_BYTES_MAX))
                .await
                .is_ok_and(|rest| rest.is_ok());
        if !is_read {
            answer.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
    }
}

/// The body of a request. It goes back if it is dropped before its end.
pub(super) struct Received {
    /// Until its end.
    body: Option<Incoming>,
    to: GivenUp,
    waits: Arc<Waits>,
}

impl Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        self.waits.works(frame.is_ready());
        let frame = ready!(frame);
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.waits.works(true);
        self.to.put(self.body.take().filter(|body| !body.is_end_stream()));
    }
}
