//! The body of a response, whose bytes the connection waits for while it has none.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use crate::connections::Waits;

/// While this has a piece of the response, the connection waits for its client to take it; otherwise it works.
pub(super) struct Sent {
    body: Body,
    waits: Arc<Waits>,
}

impl Sent {
    pub(super) fn new(body: Body, waits: Arc<Waits>) -> Self {
        waits.begin();
        Self { body, waits }
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled.is_ready() {
            true => self.waits.begin(),
            false => self.waits.works(true),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.waits.begin();
    }
}
