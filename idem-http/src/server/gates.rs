//! The checks that a request passes before its key is claimed, the cheapest and most decisive first.
//!
//! Their order: method, sender, headers, key, the tenant's limits, body, digest, fingerprint. The body of an unknown sender is never
//! read, and no check asks the database.

use std::pin::pin;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, header, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use idem_core::{BoxError, IdempotencyKey, Message, Store, key::KEY_FIELD};

use super::{
    digest,
    fingerprint::{self, Print},
    key::{self, KEY_HEADER, KeyFault},
    problem::Problem,
    request_key::RequestKey,
    route::RouteSettings,
    scope::{self, Authenticated},
    state::Shared,
    tenants::{Held, InHand},
    verify_digest::mismatch,
};
use crate::ATTEMPT_HEADER;

const ENVOY_HEADER: HeaderName = HeaderName::from_static("x-envoy-attempt-count");

/// A request that may be claimed.
pub(crate) struct Admitted {
    pub(crate) key: IdempotencyKey,
    /// The client's own key.
    pub(crate) asked: String,
    pub(crate) who: Authenticated,
    /// Method and template.
    pub(crate) route: String,
    pub(crate) prints: Vec<Print>,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) in_hand: InHand,
    /// The room for its headers and its body.
    _held: Held,
    /// Whether it was sent before, by the word of the client or of a proxy.
    pub(crate) is_again: bool,
}

impl Admitted {
    pub(crate) fn print(&self) -> Print {
        self.prints.first().copied().unwrap_or_default()
    }

    /// The operation as a message for the engine, which contains only the request's fingerprints. Events that the handler publishes
    /// name the client's own key as their cause, and not the key that is joined with tenant and route.
    pub(crate) fn message(&self) -> Message {
        let message = Message::new(self.prints.concat())
            .with_header(KEY_FIELD, self.key.as_str().to_owned())
            .with_senders_key(&self.asked);
        ["traceparent", "tracestate"].iter().fold(message, |message, name| match self.parts.headers.get(*name) {
            Some(value) => message.with_header(name, value.as_bytes().to_vec()),
            None => message,
        })
    }

    /// The key for a run's handler; `message` is the operation's, as the engine has identified it.
    pub(crate) fn request_key(&self, message: &Message) -> RequestKey {
        RequestKey::new(&self.asked, &self.who, &self.route, message.clone())
    }

    /// A copy of the request, for each run.
    pub(crate) fn request(&self, key: RequestKey) -> Request<Bytes> {
        let mut request = Request::from_parts(self.parts.clone(), self.body.clone());
        request.extensions_mut().insert(key);
        request
    }
}

impl<S: Store> Shared<S> {
    /// Lets a request through to its claim.
    pub(crate) async fn admit<B>(
        &self,
        request: Request<B>,
        route: &str,
        settings: &RouteSettings,
    ) -> Result<Admitted, Problem>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let who = self.sender(&mut parts).await?;
        let headers = self.check_headers(&parts.headers)?;
        let asked = key::of(&parts.headers, self.strict_keys, self.key_policy).map_err(|fault| match fault {
            KeyFault::Missing => Problem::KeyMissing,
            KeyFault::Malformed(what) => Problem::KeyMalformed(what),
        })?;
        let in_hand = self.tenants.admit(&who.tenant)?;
        let mut held = in_hand.holds(headers).ok_or(Problem::Overloaded)?;
        let body = read(&parts.headers, body, settings, &in_hand, &mut held).await?;
        if !settings.decoded_before {
            digest::check_digests(&parts.headers, &body).map_err(Problem::Digest)?;
        }
        let prints = fingerprint::of(&self.hashings, &settings.fingerprint, &parts, &body, self.subject(&who))?;
        let key = scope::joined(&who.tenant, route, &asked).map_err(|_| Problem::KeyMalformed("it cannot be kept"))?;
        let is_again = is_again(&parts.headers);
        Ok(Admitted { key, asked, who, route: route.to_owned(), prints, parts, body, in_hand, _held: held, is_again })
    }

    /// The sender of a request, as the application says.
    pub(crate) async fn sender(&self, parts: &mut Parts) -> Result<Authenticated, Problem> {
        match self.tenant.of(parts).await {
            Ok(who) => who.ok_or(Problem::Unauthenticated),
            Err(error) => {
                let error = idem_core::store::describe::<S>(&*error);
                tracing::error!({ idem.consumer = %self.engine.name() }, "the sender of a request could not be found out: {error}");
                Err(Problem::Unavailable)
            }
        }
    }

    /// The subject that an answer is for, if answers are kept by subject.
    pub(crate) fn subject<'a>(&self, who: &'a Authenticated) -> Option<&'a str> {
        who.subject.as_deref().filter(|_| self.answers_by_subject)
    }

    /// How large the headers are.
    pub(crate) fn check_headers(&self, headers: &HeaderMap) -> Result<usize, Problem> {
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if headers.len() > self.limits.headers_max || bytes > self.limits.headers_bytes_max {
            return Err(Problem::HeadersTooLarge);
        }
        Ok(bytes)
    }
}

/// The key's header as received, if there is exactly one. Each answer repeats it.
pub(crate) fn received_key(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut all = headers.get_all(KEY_HEADER).iter();
    all.next().filter(|_| all.next().is_none()).cloned()
}

/// Whether a request says that it is not the first try: one of a client's, or one of Envoy's. Both count from 1.
fn is_again(headers: &HeaderMap) -> bool {
    let tries = |name: &HeaderName| headers.get(name)?.to_str().ok()?.parse::<u32>().ok();
    [ATTEMPT_HEADER, ENVOY_HEADER].iter().filter_map(tries).any(|tries| tries > 1)
}

/// Whether the content has a coding, which would have to be undone before it can be compared.
fn is_coded(headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut codings = all.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| !matches!(coding.trim_ascii(), b"") && !coding.trim_ascii().eq_ignore_ascii_case(b"identity"))
}

/// Reads a body for which there is room, as far as it has come.
async fn read<B>(
    headers: &HeaderMap,
    body: B,
    settings: &RouteSettings,
    in_hand: &InHand,
    held: &mut Held,
) -> Result<Bytes, Problem>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    if is_coded(headers) {
        return Err(Problem::Encoding);
    }
    let max = settings.body_bytes_max;
    if body.size_hint().lower() > max as u64 {
        return Err(Problem::BodyTooLarge { max });
    }
    let collected = async {
        // Grown bit by bit it would take twice the memory that it is counted for. What has not come is not touched.
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or_default();
        let (mut body, mut all) = (pin!(Limited::new(body, max)), BytesMut::with_capacity(announced));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => Problem::BodyTooLarge { max },
                false => mismatch(&*error).map_or(Problem::BodyUnreadable, Problem::Digest),
            })?;
            if let Ok(data) = frame.into_data() {
                held.merge(in_hand.holds(data.remaining()).ok_or(Problem::Overloaded)?);
                all.put(data);
            }
        }
        Ok(all.freeze())
    };
    tokio::time::timeout(settings.body_deadline, collected).await.map_err(|_| Problem::BodyLate)?
}
