//! A layer that verifies digests of bodies that are decoded before they come to idem's.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use idem_core::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use super::digest::Stated;

/// A layer that verifies the `Content-Digest` and `Repr-Digest` of requests on the bytes that came. It stands outside of a layer that decodes
/// bodies, and idem's inside of both says [`bodies_are_decoded_before`](crate::IdempotencyLayer::bodies_are_decoded_before):
///
/// ```text
/// Router::new()
///     .route("/payments", post(pay).route_layer(idempotency.layer().bodies_are_decoded_before()))
///     .layer(RequestDecompressionLayer::new())
///     .layer(VerifyDigest)
/// ```
///
/// The body is hashed while it passes, and its end is an error where a digest is not that of what came: idem answers 400 `digest-mismatch`, and
/// claims no key. Nothing is held here, and nothing is read for a sender whom idem refuses.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyDigest;

impl<T> Layer<T> for VerifyDigest {
    type Service = DigestVerified<T>;

    fn layer(&self, inner: T) -> DigestVerified<T> {
        DigestVerified(inner)
    }
}

/// A service behind [`VerifyDigest`].
#[derive(Debug, Clone)]
pub struct DigestVerified<T>(T);

impl<T, B> Service<Request<B>> for DigestVerified<T>
where
    T: Service<Request<VerifiedBody<B>>>,
{
    type Response = T::Response;
    type Error = T::Error;
    type Future = T::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> T::Future {
        let (parts, body) = request.into_parts();
        let stated = Some(Stated::of(&parts.headers));
        self.0.call(Request::from_parts(parts, VerifiedBody { body, stated }))
    }
}

/// A request's body behind [`VerifyDigest`].
#[derive(Debug)]
pub struct VerifiedBody<B> {
    body: B,
    /// Until they are compared.
    stated: Option<Result<Stated, String>>,
}

impl<B> Body for VerifiedBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(Err(malformed)) = self.stated.take_if(|stated| stated.is_err()) {
            return Poll::Ready(Some(Err(DigestError(malformed).into())));
        }
        Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => {
                if let (Some(Ok(stated)), Some(data)) = (&mut self.stated, frame.data_ref()) {
                    stated.update(data);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => {
                let wrong = self.stated.take().and_then(|stated| stated.and_then(Stated::verify).err());
                wrong.map(|what| Err(DigestError(what).into()))
            }
        })
    }

    // It never says `is_end_stream`: who believed that would not ask for its end, where the digests are compared.

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a body ends here.
#[derive(Debug)]
struct DigestError(String);

impl fmt::Display for DigestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for DigestError {}

/// The text of a digest that does not fit, where an error of a body comes from one, through whatever layers it has come.
pub(crate) fn mismatch(error: &(dyn Error + 'static)) -> Option<String> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(DigestError(what)) = error.downcast_ref() {
            return Some(what.clone());
        }
        source = error.source();
    }
    None
}
