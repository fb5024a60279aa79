//! Stripe's events.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::request::Parts;
use idem_core::{
    Message, Store,
    consumer::DedupConsumerBuilder,
    hash::{HashRules, JsonMembers},
    key::JsonMember,
};
use serde::Deserialize;
use sha2::Sha256;

use super::{
    clock::is_near,
    sender::{NotAdmitted, Opened, Sender},
    standard_webhooks::{TOLERANCE, one, seconds},
};

/// No published source was found for how long Stripe waits, only that it is not long.
const DEADLINE: Duration = Duration::from_secs(10);

/// The most signatures of a request that are checked.
const SIGNATURES_MAX: usize = 16;

/// Stripe's events, with `Stripe-Signature`: HMAC-SHA256 over the time and the body, which may be 5 minutes old.
///
/// The key is the event's `id`, and the type its `type`. Two deliveries of one event may differ in `pending_webhooks`, the number of deliveries
/// that are still to be made, so that member is not compared. Stripe may send two events, with two ids, for one change: let the handler look
/// at the object's state.
#[derive(Clone)]
pub struct Stripe {
    secrets: Vec<Box<str>>,
}

impl Stripe {
    /// Accepts requests that are signed with these signing secrets of the endpoint (`whsec_…`): one, or several while a new one replaces an old
    /// one. With none, every request is refused.
    pub fn new(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let secrets = secrets.into_iter().map(|secret| secret.into().into_boxed_str());
        Self { secrets: secrets.filter(|secret| !secret.is_empty()).collect() }
    }

    /// Makes the event's `id` the consumer's key, and all members but `pending_webhooks` the compared content.
    #[must_use]
    pub fn identify<S: Store>(consumer: DedupConsumerBuilder<S>) -> DedupConsumerBuilder<S> {
        let consumer = consumer.key_source(JsonMember::field("id"));
        match JsonMembers::without(["/pending_webhooks"]) {
            Some(rule) => consumer.hash_rules(HashRules::new(rule)),
            // The pointer is valid.
            None => consumer,
        }
    }

    fn is_signed(&self, at: &str, signatures: &[Vec<u8>], body: &[u8]) -> bool {
        self.secrets.iter().any(|secret| {
            let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return false };
            mac.update(at.as_bytes());
            mac.update(b".");
            mac.update(body);
            signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
        })
    }
}

/// `t=1492774577,v1=5257a8…,v0=6ffbb5…`: the time and the signatures of version 1.
fn parse(header: &str) -> Option<(&str, Vec<Vec<u8>>)> {
    let (mut at, mut signatures) = (None, Vec::new());
    for part in header.split(',') {
        match part.trim().split_once('=')? {
            ("t", time) if at.is_none() => at = Some(time),
            ("t", _) => return None,
            ("v1", signature) if signatures.len() < SIGNATURES_MAX => signatures.extend(of_hex(signature)),
            _ => {}
        }
    }
    Some((at?, signatures))
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[derive(Deserialize)]
struct Typed {
    r#type: Option<String>,
}

#[async_trait]
impl Sender for Stripe {
    fn admit(&self, head: &Parts) -> Result<(), NotAdmitted> {
        let Some((at, signatures)) = parse(one(&head.headers, "stripe-signature")?) else {
            return Err(NotAdmitted::Unauthenticated("the header of the signature is malformed"));
        };
        if signatures.is_empty() {
            return Err(NotAdmitted::Unauthenticated("there is no signature of version 1"));
        }
        match seconds(at).is_some_and(|at| is_near(at, TOLERANCE, TOLERANCE)) {
            true => Ok(()),
            false => Err(NotAdmitted::Unauthenticated("the time of the signature is too far from ours")),
        }
    }

    async fn open(&self, head: &Parts, body: Bytes) -> Result<Opened, NotAdmitted> {
        let signed = parse(one(&head.headers, "stripe-signature")?);
        if !signed.is_some_and(|(at, signatures)| self.is_signed(at, &signatures, &body)) {
            return Err(NotAdmitted::Unauthenticated("no signature is right"));
        }
        let kind = serde_json::from_slice::<Typed>(&body).ok().and_then(|typed| typed.r#type);
        let message = Message::new(body).with_header("content-type", "application/json");
        Ok(Opened::Message(Box::new(match kind {
            Some(kind) => message.with_type(&kind),
            None => message,
        })))
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }
}

impl fmt::Debug for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stripe").field("secrets", &self.secrets.len()).finish()
    }
}
