//! A response's body in one piece.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// The body, until it is taken.
#[derive(Debug, Default)]
pub(super) struct Whole(pub(super) Bytes);

#[cfg(not(feature = "axum"))]
impl Whole {
    /// The body itself, which with axum is one of its bodies.
    pub(super) fn new(whole: Self) -> Self {
        whole
    }
}

impl<T: Into<Bytes>> From<T> for Whole {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let whole = std::mem::take(&mut self.0);
        Poll::Ready((!whole.is_empty()).then(|| Ok(Frame::data(whole))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(u64::try_from(self.0.len()).unwrap_or(u64::MAX))
    }
}
