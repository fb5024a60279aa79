//! [`WebhookPublisher`], which posts events to their endpoints.

use std::{
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use idem_core::{
    BoxError, ConfigError,
    outbox::{CloudEvents, DestinationLimits, Dispatch, EventError, EventPublisher, OutgoingEvent},
};
use reqwest::{
    Client, ClientBuilder, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect::Policy,
};
use tokio::time::Instant;

use super::{
    addresses::{NotPublic, PublicOnly, is_public},
    endpoint::{Endpoint, Endpoints},
    lookups::{Lookups, NotFound},
    places::{AT_ONCE, Places, owner_of},
};
use crate::signature;

/// How long one try may take.
const ANSWER: Duration = Duration::from_secs(8);

/// How long of that a connection may take. Nothing was sent to a host that has none by then, as it would be unknown of one that was
/// given up at the end of [`ANSWER`].
const CONNECTED: Duration = Duration::from_secs(5);

/// The pauses before the second and every further try, as Standard Webhooks proposes them: some 75 hours in all. The last one is also
/// that of each try beyond, where the route allows more.
const PAUSES: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 3_600),
    Duration::from_secs(5 * 3_600),
    Duration::from_secs(10 * 3_600),
    Duration::from_secs(14 * 3_600),
    Duration::from_secs(20 * 3_600),
    Duration::from_secs(24 * 3_600),
];

/// The longest pause that an endpoint may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The headers of a connection and of a request's framing and routing (RFC 9110, 7.6.1), which are the client's own. With an
/// event's `content-length` the endpoint would read another body than the one that is signed, and with its `host` another
/// endpoint.
const NOT_THE_EVENTS: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The headers that say where an event comes from: keys of clients and of other tenants, and traces.
const ORIGIN: [&str; 4] = ["idemcause", "idemcausedby", "traceparent", "tracestate"];

/// The least pause after a try that was not made, because the host was busy.
const SOON: Duration = Duration::from_secs(1);

/// An [`EventPublisher`] to HTTP endpoints: see the [crate's documentation](crate).
///
/// An endpoint has 8 s to answer, and not the 15 s and more that Standard Webhooks proposes: a relay gives a publisher 10 s, unless its
/// [settings](idem_core::relay::RelaySettings::publish_deadline) say otherwise, and each try should end before that, with an error that
/// says why. The time is no setting; an endpoint that needs longer should answer first and work afterwards.
pub struct WebhookPublisher {
    endpoints: Arc<dyn Endpoints>,
    client: Client,
    is_private_allowed: bool,
    is_plaintext_allowed: bool,
    send_origin: bool,
    cloud_events: Option<CloudEvents>,
    places: Places,
    lookups: Lookups,
}

impl fmt::Debug for WebhookPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookPublisher")
            .field("is_private_allowed", &self.is_private_allowed)
            .field("is_plaintext_allowed", &self.is_plaintext_allowed)
            .finish_non_exhaustive()
    }
}

impl WebhookPublisher {
    /// A publisher that posts each event to the endpoint which `endpoints` finds for it.
    ///
    /// # Errors
    /// [`ConfigError`] where TLS cannot be set up on this machine.
    pub fn new(endpoints: impl Endpoints) -> Result<Self, ConfigError> {
        Ok(Self {
            endpoints: Arc::new(endpoints),
            client: client(false)?,
            is_private_allowed: false,
            is_plaintext_allowed: false,
            send_origin: false,
            cloud_events: None,
            places: Places::default(),
            lookups: Lookups::default(),
        })
    }

    /// Also calls endpoints in private networks and on this machine. Use it only if all endpoints are your own: everyone who may
    /// set an endpoint can then reach everything behind this machine.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn allow_private_networks(self) -> Result<Self, ConfigError> {
        Ok(Self { client: client(true)?, is_private_allowed: true, ..self })
    }

    /// Also calls `http://` endpoints. Everyone on the network path can then read their events.
    #[must_use]
    pub fn allow_plaintext(self) -> Self {
        Self { is_plaintext_allowed: true, ..self }
    }

    /// Also sends the headers that say where an event comes from: `idemcause` and `idemcausedby`, which are keys as clients sent them and
    /// may be another tenant's, `traceparent` and `tracestate`; and of a CloudEvent the attributes `correlationid` and `causationid`, which
    /// are the first two. Off by default, since endpoints are often somebody else's.
    #[must_use]
    pub fn send_origin(self) -> Self {
        Self { send_origin: true, ..self }
    }

    /// Also writes events that have a type as CloudEvents, beside the headers of Standard Webhooks: in binary mode with headers `ce-…`, whose
    /// values are percent-encoded, in structured mode with a body that is then signed. Their `source` names tenant and consumer unless
    /// [`CloudEvents::source`] sets another one: no CloudEvent goes without it. The attributes `correlationid` and `causationid` come with
    /// [`send_origin`](Self::send_origin) alone. Off by default, since endpoints are often somebody else's.
    #[must_use]
    pub fn cloud_events(self, cloud_events: CloudEvents) -> Self {
        Self { cloud_events: Some(cloud_events), ..self }
    }

    /// Whether this endpoint would be called: what can be known of it without a try. Ask before you store what a customer has
    /// entered, because the events of an endpoint that is refused wait for a person.
    ///
    /// # Errors
    /// [`ConfigError`] if it has no secret, or if its URL is invalid, is not allowed to be called, or has an address that is
    /// not.
    pub fn check(&self, endpoint: &Endpoint) -> Result<(), ConfigError> {
        // The URL may contain a secret of the endpoint's owner.
        self.checked(endpoint).map(|_| ()).map_err(|problem| ConfigError::new("endpoint", "(not shown)", problem))
    }

    async fn publish(&self, event: &OutgoingEvent) -> Result<(), EventError> {
        let endpoint = match self.lookups.run(event, self.endpoints.of(event)).await {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return Err(waits_for_a_person("there is no endpoint for it, or it is switched off")),
            // Without a time for the next try: unlike an event in line, it is told of in the relay's log.
            Err(NotFound::Failed(source)) => return Err(EventError::not_sent(source).uncounted()),
            Err(NotFound::Busy(in_line)) => {
                return Err(soon("the endpoints of its tenant are being looked up slowly", in_line));
            }
        };
        let url = self.checked(&endpoint).map_err(waits_for_a_person)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let owner = endpoint.owner.as_deref().unwrap_or_else(|| owner_of(&host));
        let busy = "its host, or the host's owner, has as many events on their way as it may have";
        let place = self.places.take(owner, &host, Instant::now());
        let mut place = place.map_err(|in_line| soon(busy, in_line))?;
        let wire = self.cloud_events.as_ref().map(|form| match self.send_origin {
            true => form.over_http(event),
            false => form.clone().without_causes().over_http(event),
        });
        let (given, content_type, payload) = match &wire {
            Some(wire) => (&wire.headers, &wire.content_type, &wire.payload),
            None => (&event.headers, &event.content_type, &event.payload),
        };
        let id = event.key.as_str();
        if !id.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') || id.trim() != id {
            return Err(waits_for_a_person(
                "its id is not ASCII, or begins or ends with a blank, and cannot be a header of HTTP",
            ));
        }
        // The signature joins id, time and payload by dots: with a dot in the id it would fit a second event (W182).
        if id.contains('.') {
            return Err(waits_for_a_person(
                "its id contains a dot, and the signature of such an event fits another one too: publish it without .same_key()",
            ));
        }
        let is_sent = |name: &str| {
            let is_among = |names: &[&str]| names.iter().any(|other| name.eq_ignore_ascii_case(other));
            !is_among(&NOT_THE_EVENTS) && (self.send_origin || !is_among(&ORIGIN))
        };
        let given = given.iter().filter(|(name, _)| is_sent(name));
        let headers = headers(id, &endpoint, given, content_type.as_deref(), payload)?;
        let request = self.client.post(url).headers(headers).body(payload.clone());
        let answer = request.send().await;
        place.ended(answer.as_ref().is_err_and(reqwest::Error::is_timeout));
        match answer {
            Ok(response) => self.answered(event, &endpoint, &host, &response).await,
            // The URL may contain a secret of the endpoint's owner. Its host names the endpoint to an operator.
            Err(error) => {
                let is_sent = !error.is_connect();
                Err(later(event, not_answered(host, error.without_url()), None, is_sent))
            }
        }
    }

    /// Refuses URLs that may not be called. Names are checked when they are resolved.
    fn checked(&self, endpoint: &Endpoint) -> Result<Url, &'static str> {
        let url = Url::parse(&endpoint.url).map_err(|_| "its endpoint's URL is not valid")?;
        let is_plaintext = url.scheme() == "http";
        if !(url.scheme() == "https" || is_plaintext && self.is_plaintext_allowed) {
            return Err("its endpoint's URL does not begin with https://");
        }
        let host = url.host_str().ok_or("its endpoint's URL has no host")?;
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if !self.is_private_allowed && literal.is_ok_and(|address| !is_public(address)) {
            return Err("its endpoint has no public address");
        }
        if endpoint.secrets.is_empty() {
            return Err("its endpoint has no secret to sign with");
        }
        Ok(url)
    }

    async fn answered(
        &self,
        event: &OutgoingEvent,
        to: &Endpoint,
        host: &str,
        response: &Response,
    ) -> Result<(), EventError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        if status == StatusCode::GONE {
            self.endpoints.gone(event, &to.url).await;
            return Err(waits_for_a_person("its endpoint answered 410: it wants no more events"));
        }
        let text = match status.is_redirection() {
            true => format!("the endpoint at {host} answered {status}, and redirects are not followed"),
            false => format!("the endpoint at {host} answered {status}"),
        };
        Err(later(event, text.into(), retry_after(response.headers()), true))
    }
}

#[async_trait]
impl EventPublisher for WebhookPublisher {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let mut answers = Vec::with_capacity(events.len());
        for event in events {
            answers.push(self.publish(event).await);
        }
        answers
    }

    fn dispatch(&self) -> Dispatch {
        Dispatch::Each { at_once: AT_ONCE }
    }

    async fn limits(&self) -> Option<DestinationLimits> {
        Some(DestinationLimits::new("webhook"))
    }
}

fn client(is_private_allowed: bool) -> Result<Client, ConfigError> {
    // Sets the process's TLS provider if it has none, as the brokers' connections do. Without one the client panics.
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = ClientBuilder::new().redirect(Policy::none()).no_proxy().connect_timeout(CONNECTED).timeout(ANSWER);
    let builder = builder.user_agent("idem-webhook");
    let builder = if is_private_allowed { builder } else { builder.dns_resolver(Arc::new(PublicOnly)) };
    builder.build().map_err(|_| {
        ConfigError::new(
            "webhooks",
            "TLS",
            "the certificates of this machine could not be read: install ca-certificates",
        )
    })
}

fn headers<'e>(
    id: &str,
    endpoint: &Endpoint,
    given: impl Iterator<Item = (&'e str, Option<&'e [u8]>)>,
    content_type: Option<&str>,
    payload: &[u8],
) -> Result<HeaderMap, EventError> {
    let seconds = now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = signature::sign(&endpoint.secrets, id, seconds, payload);
    let mut headers = HeaderMap::new();
    let mut add =
        |name: &str, value: &[u8]| match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
            (Ok(name), Ok(value)) => {
                headers.insert(name, value);
                Ok(())
            }
            (Err(_), _) | (_, Err(_)) => Err(waits_for_a_person(&format!("HTTP has no header {name:?} of that kind"))),
        };
    for (name, value) in given {
        add(name, value.unwrap_or_default())?;
    }
    if let Some(content_type) = content_type {
        add(CONTENT_TYPE.as_str(), content_type.as_bytes())?;
    }
    add("webhook-id", id.as_bytes())?;
    add("webhook-timestamp", seconds.to_string().as_bytes())?;
    add("webhook-signature", signature.as_bytes())?;
    // A string of structured fields (RFC 9651), in which these two characters are escaped.
    add("idempotency-key", format!("\"{}\"", id.replace('\\', "\\\\").replace('"', "\\\"")).as_bytes())?;
    Ok(headers)
}

fn waits_for_a_person(problem: &str) -> EventError {
    EventError::DoesNotFit { problem: format!("the event was not delivered: {problem}") }
}

/// The try was not made. The next one comes soon after the event's wait in line.
fn soon(busy: &str, in_line: Duration) -> EventError {
    let after = Some(in_line + SOON + SOON.mul_f64(fastrand::f64()));
    EventError::Later { source: busy.into(), may_be_sent: false, after, counted: false }
}

/// The try failed. The event is tried again after a pause, as often as its route says: the relay counts, and notes of the last try
/// too whether it may have been sent (O25).
fn later(event: &OutgoingEvent, source: BoxError, wanted: Option<Duration>, may_be_sent: bool) -> EventError {
    let after = wanted.unwrap_or(PAUSES[PAUSES.len().saturating_sub(1).min(event.attempts as usize)]);
    let after = after + after.mul_f64(fastrand::f64() / 10.0);
    EventError::Later { source, may_be_sent, after: Some(after), counted: true }
}

/// A try without an answer, for a reason that the client says.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint at {host} gave no answer")]
struct NoAnswer {
    host: String,
    source: reqwest::Error,
}

fn not_answered(host: String, error: reqwest::Error) -> BoxError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = source {
        if let Some(refused) = error.downcast_ref::<NotPublic>() {
            return refused.to_string().into();
        }
        source = error.source();
    }
    match (error.is_timeout(), error.is_connect()) {
        (true, true) => format!("the endpoint at {host} could not be connected to within {CONNECTED:?}").into(),
        (true, false) => format!("the endpoint at {host} has not answered within {ANSWER:?}").into(),
        (false, _) => Box::new(NoAnswer { host, source: error }),
    }
}

#[allow(clippy::disallowed_methods, reason = "receivers compare the time of a try with their wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// The pause that `Retry-After` asks for, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let after = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now()).unwrap_or_default(),
    };
    Some(after.clamp(SOON, RETRY_AFTER_MAX))
}
