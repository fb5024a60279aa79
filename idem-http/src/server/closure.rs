//! Handlers that are given their transaction: the way in for any server that speaks `tower`.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use idem_core::{
    BoxError, HandlerError, WorkError,
    store::{Store, Tx},
};
use tower_service::Service;

use super::{
    Idempotency, Shared, answer,
    error::{self, HttpError, Judged},
    flight::Progress,
    gates::Admitted,
    route::{RouteSettings, route_setters},
    run::{Ended, Run, Runs},
};
use crate::service::always_answers;

/// The type of a handler's future.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

/// A protected route: a [`tower` service](Service) around a handler that is given the request and its open transaction.
///
/// [`Idempotency::route`] makes it. It never fails, and is mounted as it is: `.route_service("/transactions", route)` in axum.
///
/// Every request to it needs a key, whatever the method.
pub struct IdempotentRoute<S: Store, H> {
    shared: Arc<Shared<S>>,
    template: Arc<str>,
    handler: Arc<H>,
    settings: RouteSettings,
}

impl<S: Store, H> Clone for IdempotentRoute<S, H> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            template: Arc::clone(&self.template),
            handler: Arc::clone(&self.handler),
            settings: self.settings.clone(),
        }
    }
}

impl<S: Store, H> fmt::Debug for IdempotentRoute<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentRoute").field("template", &self.template).finish_non_exhaustive()
    }
}

impl<S: Store, H> IdempotentRoute<S, H> {
    route_setters!();
}

impl<S: Store> Idempotency<S> {
    /// A protected route. `template` is the path as the router knows it, such as `/accounts/{id}/transfers`: with the request's
    /// method it scopes the keys.
    ///
    /// The handler is called again if its transaction lost against another one (a deadlock), or if the answer to the commit was
    /// lost and nothing had been committed, so it must not consume what it captures. Writes through its transaction take effect
    /// once; its other actions may be repeated.
    pub fn route<H>(&self, template: &str, handler: H) -> IdempotentRoute<S, H>
    where
        H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
    {
        let settings = RouteSettings::new(self.0.limits);
        IdempotentRoute { shared: Arc::clone(&self.0), template: template.into(), handler: Arc::new(handler), settings }
    }
}

impl<S, H, B> Service<Request<B>> for IdempotentRoute<S, H>
where
    S: Store,
    H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    always_answers!();

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { shared, template, handler, settings } = self.clone();
        Box::pin(async move {
            let route = format!("{} {template}", request.method());
            let runs = OfClosure { handler, response_bytes_max: settings.response_bytes_max };
            Ok(shared.serve(request, &route, &settings, runs).await.map(Full::new))
        })
    }
}

struct OfClosure<H> {
    handler: Arc<H>,
    response_bytes_max: usize,
}

/// The response of the last run, apart from the part that is kept.
#[derive(Default)]
enum Made {
    #[default]
    Nothing,
    Own(Response<Bytes>),
    Dropped(Response<Bytes>),
    Unfit(&'static str),
}

impl<S, H> Runs<S> for OfClosure<H>
where
    S: Store,
    H: for<'a, 't> Fn(Request<Bytes>, &'a mut Tx<'t, S>) -> Answering<'a> + Send + Sync + 'static,
{
    fn run<'a>(
        &'a mut self,
        shared: &'a Shared<S>,
        admitted: &'a Arc<Admitted>,
        progress: &'a Arc<Progress>,
    ) -> Run<'a> {
        let made = Arc::new(Mutex::new(Made::Nothing));
        let of_run = Arc::clone(&made);
        let (handler, progress) = (Arc::clone(&self.handler), Arc::clone(progress));
        let admitted = Arc::clone(admitted);
        let (misplaced, kept_headers) = (shared.misplaced.clone(), shared.kept_headers.clone());
        let response_bytes_max = self.response_bytes_max;
        let ran = shared.engine.run_message(admitted.message(), move |tx| {
            // A unit of one message has one.
            let request = tx.message().map(|message| admitted.request(admitted.request_key(message)));
            let (handler, made, progress) = (Arc::clone(&handler), Arc::clone(&of_run), Arc::clone(&progress));
            let (misplaced, kept_headers) = (misplaced.clone(), kept_headers.clone());
            Box::pin(async move {
                progress.runs();
                let answered = match request {
                    Some(request) => handler(request, tx).await,
                    None => Err(HandlerError::permanent("the operation has no message").into()),
                };
                let limits = error::Limits::new(response_bytes_max, &misplaced);
                let (now, outcome) = match error::judge(answered, limits) {
                    Judged::Keep(response) => {
                        let kept = answer::kept(&response, &kept_headers);
                        (Made::Own(response), Ok(kept))
                    }
                    Judged::Refuse(response) => {
                        let kept = answer::kept(&response, &kept_headers);
                        (Made::Own(response), Err(WorkError::final_result(kept)))
                    }
                    Judged::Drop(response) => (Made::Dropped(response), Err(WorkError::failed(dropped()))),
                    Judged::Unfit(what) => (Made::Unfit(what), Err(WorkError::failed(dropped()))),
                    Judged::Fail(error) => (Made::Nothing, Err(WorkError::failed(error))),
                };
                *made.lock().unwrap_or_else(PoisonError::into_inner) = now;
                outcome
            })
        });
        Box::pin(async move {
            let ran = ran.await;
            let made = std::mem::take(&mut *made.lock().unwrap_or_else(PoisonError::into_inner));
            match (ran, made) {
                (Ok(ran), Made::Own(response)) => Ok(Ended::Done(ran, Some(response))),
                (Ok(ran), _) => Ok(Ended::Done(ran, None)),
                (Err(idem_core::RunOnceError::Failed(_)), Made::Dropped(response)) => Ok(Ended::Dropped(response)),
                (Err(idem_core::RunOnceError::Failed(_)), Made::Unfit(what)) => Ok(Ended::Unfit(what)),
                (Err(error), _) => Err(error),
            }
        })
    }
}

/// An error that makes the engine roll back.
fn dropped() -> HandlerError {
    HandlerError::permanent("its answer is not kept")
}
