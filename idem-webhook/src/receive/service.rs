//! [`Inbound`]: the service.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, HeaderValue, Method, Request, Response, StatusCode, header::RETRY_AFTER, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use idem_core::{
    BoxError, DedupConsumer, Store,
    inbox::{Inbox, Intake, ReceiverSettings, Taken},
    store::ControlState,
    telemetry::{
        self, CONSUMER, HTTP_DELIVERIES, HTTP_DELIVERY_TIME,
        requests::{self, NO_SUCH_METHOD, Outcomes},
    },
};
use metrics::Label;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tower_service::Service;
use tracing::Instrument as _;

use super::{
    pause::Pauses,
    places::Places,
    sender::{NotAdmitted, Opened, Sender},
    settle::{DOWN, Reply, decide},
};

/// The largest body by default: events of all senders here are below it.
const BODY_BYTES_MAX: usize = 1 << 20;

/// How many requests are handled at once by default.
const AT_ONCE: usize = 64;

/// Requests that may be read, and as many that may be proved, at the same time, for each one that may be handled: a sender with a slow
/// body takes no handler's place.
const READ_PER_HANDLED: usize = 4;

const NOT_POST: Reply = Reply::new(StatusCode::METHOD_NOT_ALLOWED, NO_SUCH_METHOD, "events are posted");
const TOO_LARGE: Reply = Reply::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", "the body is over the limit");
// Not 408 and 400: EventBridge and SNS drop an event at a 4xx of these, and the next try may bring the whole body.
const TOO_SLOW: Reply = Reply::later(2, "body-late", "the body did not come");
const CUT: Reply = Reply::later(2, "body-unreadable", "the body did not come whole");
const TOO_MANY: Reply = Reply::later(2, "overloaded", "too many are being handled");
const PAUSED: Reply = Reply::later(5, "paused", "the consumer is paused");
const GOES_ON: Reply = Reply::later(5, "in-progress", "it is still being handled");
const RECEIVED: Reply = Reply::new(StatusCode::ACCEPTED, "received", "received");
const FULL: Reply = Reply::later(30, "inbox-full", "the inbox is full");
const UNPROVED: Reply = Reply::later(10, "unproved", "its signature cannot be checked now");

/// A tower `Service` that takes one sender's events for one consumer. See the [module](super). Cloning is cheap, and clones share
/// everything.
pub struct Inbound<S: Store, F> {
    shared: Arc<Shared<S, F>>,
}

struct Shared<S: Store, F> {
    consumer: DedupConsumer<S>,
    sender: F,
    deadline: Duration,
    body_bytes_max: usize,
    at_once: Arc<Semaphore>,
    reading: Places,
    /// Not the same places: a proof may fetch a certificate, and whoever sends a request can make it do so.
    proving: Places,
    outcomes: Outcomes,
    pauses: Pauses,
    /// Where events are written in place of being handled.
    intake: Option<Intake>,
}

impl<S: Store, F: Sender> Inbound<S, F> {
    /// Hands the events of `sender` to `consumer`, which must take its key and hash as the sender's `identify` sets them. A recorder of
    /// metrics must be there before.
    pub fn new(consumer: DedupConsumer<S>, sender: F) -> Self {
        let deadline = sender.deadline();
        let at_once = Arc::new(Semaphore::new(AT_ONCE));
        let [reading, proving] = [(); 2].map(|()| Places::new(AT_ONCE * READ_PER_HANDLED));
        let body_bytes_max = BODY_BYTES_MAX;
        let labels = vec![Label::new(CONSUMER, consumer.name().to_string())];
        let outcomes = Outcomes::new((HTTP_DELIVERIES, HTTP_DELIVERY_TIME), labels);
        let pauses = Pauses::default();
        Self {
            shared: Arc::new(Shared {
                consumer,
                sender,
                deadline,
                body_bytes_max,
                at_once,
                reading,
                proving,
                outcomes,
                pauses,
                intake: None,
            }),
        }
    }

    /// Writes events to the consumer's inbox in place of handling them: the sender gets a 202 once its event's row is committed. A worker of
    /// the consumer's name, on an [`InboxSource`](idem_core::inbox::InboxSource) and with the same keys and hash, handles them. The consumer
    /// here runs no handler. Of `settings`, the keys are the consumer's.
    ///
    /// An operator's pause stops the worker, not the sender. A full inbox and a database that is down are a 503, and the sender tries it later.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use idem_core::{
    ///     DedupConsumer, Effects, Handler,
    ///     inbox::{InboxStore, ReceiverSettings},
    /// };
    /// use idem_webhook::receive::{Inbound, Stripe};
    ///
    /// # fn routes<S: InboxStore>(store: Arc<S>, pay: impl Handler<S>, secret: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let consumer = Stripe::identify(DedupConsumer::builder(Arc::clone(&store), "stripe-events"))
    ///     .handler(pay)
    ///     .effects(Effects::InTransaction)
    ///     .build()?;
    /// let hook = Inbound::new(consumer, Stripe::new([secret])).into_inbox(store.inbox(), ReceiverSettings::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn into_inbox(self, inbox: Arc<dyn Inbox>, settings: ReceiverSettings) -> Self {
        self.with(|shared| {
            let settings = settings.keys(shared.consumer.key_source());
            shared.intake = Some(Intake::new(inbox, shared.consumer.name().clone(), settings));
        })
    }

    /// Sets how long a sender is kept waiting for body and handler together. Defaults to the [sender's](Sender::deadline).
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|shared| shared.deadline = deadline)
    }

    /// Sets the largest body, in bytes. Defaults to 1 MiB. The consumer's `payload_bytes_max` applies too.
    #[must_use]
    pub fn body_bytes_max(self, bytes: usize) -> Self {
        self.with(|shared| shared.body_bytes_max = bytes)
    }

    /// Sets how many events are handled concurrently, including those that run on after their deadline. Defaults to 64. A sender beyond it
    /// gets a 503 and tries again. Events in excess of the consumer's lanes wait for one.
    ///
    /// Four times as many requests are read, and four times as many proved. Any client can send these, so one more takes the place of the
    /// request that is furthest behind, and that one gets the 503.
    #[must_use]
    pub fn at_once(self, events: usize) -> Self {
        let events = events.clamp(1, Semaphore::MAX_PERMITS / READ_PER_HANDLED);
        self.with(|shared| {
            shared.at_once = Arc::new(Semaphore::new(events));
            shared.reading = Places::new(events * READ_PER_HANDLED);
            shared.proving = Places::new(events * READ_PER_HANDLED);
        })
    }

    fn with(mut self, set: impl FnOnce(&mut Shared<S, F>)) -> Self {
        // It is not shared before it is served.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            set(shared);
        }
        self
    }
}

impl<S: Store, F: Sender> Shared<S, F> {
    async fn answer<B>(self: Arc<Self>, head: Parts, body: B) -> Reply
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let until = Instant::now() + self.deadline;
        if head.method != Method::POST && head.method != Method::PUT {
            return NOT_POST;
        }
        if let Err(why) = self.sender.admit(&head) {
            return self.refused(why);
        }
        let place = self.reading.take();
        let body = body.map_frame(|frame| {
            place.came(frame.data_ref().map_or(0, Bytes::len));
            frame
        });
        let body = match place.within(until, Limited::new(body, self.body_bytes_max).collect()).await {
            Some(Ok(body)) => body.to_bytes(),
            Some(Err(error)) if error.is::<LengthLimitError>() => return TOO_LARGE,
            Some(Err(_)) => return CUT,
            None => return TOO_SLOW,
        };
        drop(place);
        let place = self.proving.take();
        let message = match place.within(until, self.sender.open(&head, body)).await {
            Some(Ok(Opened::Message(message))) => *message,
            Some(Ok(Opened::Settled)) => return Reply::new(StatusCode::OK, "settled", "settled"),
            Some(Err(why)) => return self.refused(why),
            None => return UNPROVED,
        };
        drop(place);
        let Ok(permit) = Arc::clone(&self.at_once).try_acquire_owned() else { return TOO_MANY };
        // A task of its own, so that a sender that gives up does not end it.
        let deciding = tokio::spawn(run(Arc::clone(&self), message, permit).in_current_span());
        match tokio::time::timeout_at(until, deciding).await {
            Ok(Ok(reply)) => reply,
            // The engine's task has panicked; the next copy shows whether the event was handled.
            Ok(Err(_)) | Err(_) => GOES_ON,
        }
    }

    fn refused(&self, why: NotAdmitted) -> Reply {
        match why {
            NotAdmitted::Unauthenticated(text) => {
                tracing::debug!(idem.consumer = %self.consumer.name(), why = text, "a request is not its sender's");
                Reply::new(StatusCode::UNAUTHORIZED, "unauthenticated", text)
            }
            NotAdmitted::Unavailable(error) => {
                tracing::warn!(idem.consumer = %self.consumer.name(), error = &*error as &dyn std::error::Error, "cannot verify the sender of a request");
                UNPROVED
            }
        }
    }
}

async fn run<S: Store, F: Sender>(
    shared: Arc<Shared<S, F>>,
    message: idem_core::Message,
    permit: OwnedSemaphorePermit,
) -> Reply {
    if let Some(intake) = &shared.intake {
        let reply = keep(&shared, intake, message).await;
        drop(permit);
        return reply;
    }
    // Here, where a slow database is nobody's end: the sender is answered at its deadline, and its event goes on.
    let reply = match shared.pauses.state(&shared.consumer).await {
        Some(ControlState::Running) => decide(&shared.consumer, message).await,
        Some(ControlState::Paused | ControlState::Halted) => PAUSED,
        None => DOWN,
    };
    drop(permit);
    reply
}

/// Writes an event to the inbox.
async fn keep<S: Store, F>(shared: &Shared<S, F>, intake: &Intake, message: idem_core::Message) -> Reply {
    match intake.put(message).await {
        Ok(Taken::Written) => RECEIVED,
        Ok(Taken::Full) => FULL,
        Err(error) => {
            tracing::error!(idem.consumer = %shared.consumer.name(), error = &error as &dyn std::error::Error, "an event cannot be written to the inbox");
            DOWN
        }
    }
}

impl<S: Store, F: Sender, B> Service<Request<B>> for Inbound<S, F>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let method = requests::method(head.method.as_str());
            let name = named(method, &head.extensions);
            let trace = head.headers.get("traceparent").and_then(|value| value.to_str().ok());
            let span = telemetry::request(shared.consumer.name(), method, &name, trace);
            let counting = requests::begin(&span, |outcome, _, took| shared.outcomes.count(outcome, took));
            let reply = Arc::clone(&shared).answer(head, body).instrument(span.clone()).await;
            counting.answered(reply.outcome, reply.status);
            Ok(response(reply))
        })
    }
}

/// The name of a request's span: axum's router knows the path.
fn named(method: &str, extensions: &Extensions) -> String {
    #[cfg(feature = "axum")]
    if let Some(path) = extensions.get::<axum::extract::MatchedPath>() {
        return format!("{method} {}", path.as_str());
    }
    let _ = extensions;
    method.to_owned()
}

fn response(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(reply.text.as_bytes())));
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Some(after) = reply.after {
        headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
    }
    response
}

impl<S: Store, F> Clone for Inbound<S, F> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store, F> fmt::Debug for Inbound<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").field("consumer", &self.shared.consumer).finish_non_exhaustive()
    }
}
