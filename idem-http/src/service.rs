//! Common parts of the `tower` services.

/// The part of a [`Service`](tower_service::Service) that is always ready, never fails, and answers in one piece; `call` is left to write.
macro_rules! always_answers {
    () => {
        type Response = http::Response<http_body_util::Full<bytes::Bytes>>;
        type Error = std::convert::Infallible;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }
    };
}

pub(crate) use always_answers;
