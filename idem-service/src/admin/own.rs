//! The application's own routes on the admin port, which need axum.

use hyper::{Request, Response, body::Incoming};

#[cfg(not(feature = "axum"))]
pub(super) use super::body::Whole as Body;
#[cfg(feature = "axum")]
pub(super) use axum::body::Body;

/// The routes.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnRoutes(#[cfg(feature = "axum")] axum::Router);

#[cfg(feature = "axum")]
impl OwnRoutes {
    pub(crate) fn add(&mut self, routes: axum::Router) {
        self.0 = std::mem::take(&mut self.0).merge(routes);
    }

    pub(super) async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        use hyper::service::Service as _;

        let Ok(response) = hyper_util::service::TowerToHyperService::new(self.0).call(request).await;
        response
    }
}

#[cfg(not(feature = "axum"))]
impl OwnRoutes {
    #[allow(clippy::unused_async, reason = "as with axum")]
    pub(super) async fn answer(self, _: Request<Incoming>) -> Response<Body> {
        super::response(hyper::StatusCode::NOT_FOUND, super::PLAIN, "")
    }
}
