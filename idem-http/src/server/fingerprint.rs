//! Fingerprints, which distinguish a request from another one that uses the same key.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{header, request::Parts};
use idem_core::{
    ConfigError, Message,
    hash::{HashPayloadError, HashRules, JsonMembers, PayloadHash, PayloadHasher, RawPayload},
};
use sha2::{Digest as _, Sha256};

use super::problem::{Part, Problem};

/// The secret for fingerprints, and its number. `Debug` does not print it.
///
/// A plain hash of a body with a card number can be broken by trying, because the rest of the body is known or guessable. With a
/// secret that is not in the database, trying is impossible. All instances of a service need the same secret.
///
/// Replace it in two deploys: the first puts the new one behind the old one, so that every instance knows it, and the second in front, so
/// that it makes the fingerprints of new records. In one deploy, an instance of before answers a repeat of a request to an instance of
/// after with 503 until it is gone. Keep the old one until its records are gone.
#[derive(Clone)]
pub struct HashSecret {
    number: u16,
    hmac: Hmac<Sha256>,
}

impl HashSecret {
    /// A secret with its number. Records contain the number, so never use it for another secret.
    ///
    /// # Errors
    /// If the secret has fewer than 32 bytes.
    pub fn new(number: u16, secret: &[u8]) -> Result<Self, ConfigError> {
        let value = || format!("{} bytes long", secret.len());
        let rule = "it must have 32 bytes at least, such as `openssl rand -hex 32` makes";
        let refused = || ConfigError::new("hash_secret", value(), rule);
        if secret.len() < idem_core::key::KEY_SECRET_BYTES_MIN {
            return Err(refused());
        }
        Ok(Self { number, hmac: Hmac::new_from_slice(secret).map_err(|_| refused())? })
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashSecret").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A number that two different secrets have.
pub(crate) fn shared_number(secrets: &[HashSecret]) -> Option<u16> {
    let rule = |secret: &HashSecret| Hashing::Keyed(secret.clone()).rule();
    let is_others =
        |one: &HashSecret| secrets.iter().any(|other| one.number == other.number && rule(one) != rule(other));
    secrets.iter().find(|one| is_others(one)).map(|one| one.number)
}

/// How fingerprints are hashed.
#[derive(Debug, Clone)]
pub(crate) enum Hashing {
    Keyed(HashSecret),
    Plain,
}

impl Hashing {
    fn rule(&self) -> String {
        match self {
            // Another secret under the same number is another rule, which the database knows.
            Self::Keyed(HashSecret { number, .. }) => {
                let [a, b, c, d, ..] = self.hash(&[b"check"]);
                format!("http-hmac-sha256/1:{number}-{:08x}", u32::from_be_bytes([a, b, c, d]))
            }
            Self::Plain => "http-sha256/1".to_owned(),
        }
    }

    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        // Each with its length, so that no two lists of parts give the same bytes.
        let each = |update: &mut dyn FnMut(&[u8])| {
            for part in parts {
                update(&(part.len() as u64).to_be_bytes());
                update(part);
            }
        };
        match self {
            Self::Keyed(secret) => {
                let mut hmac = secret.hmac.clone();
                each(&mut |bytes| hmac.update(bytes));
                hmac.finalize().into_bytes().into()
            }
            Self::Plain => {
                let mut hash = Sha256::new();
                each(&mut |bytes| hash.update(bytes));
                hash.finalize().into()
            }
        }
    }
}

type BodyFn = dyn Fn(&Parts, &Bytes) -> Result<Vec<u8>, String> + Send + Sync;

/// The part of a request's body that is compared, for a route. Path, query and media type are always compared, and another method is
/// another key.
#[derive(Clone)]
pub struct Fingerprint {
    now: Of,
    /// Those by which older records of the route were made.
    former: Vec<Of>,
}

#[derive(Clone)]
enum Of {
    Rule(Arc<dyn PayloadHasher>),
    Own { name: String, function: Arc<BodyFn> },
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", self.now.rule())
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::raw()
    }
}

impl Fingerprint {
    /// The bytes as received: the default. Clients that send a request again send the same bytes.
    #[must_use]
    pub fn raw() -> Self {
        Self::by(RawPayload)
    }

    /// The whole body as canonical JSON, for clients that serialise it anew for each try: the order of members, spacing and the
    /// notation of numbers make no difference.
    #[must_use]
    pub fn jcs() -> Self {
        // There is no pointer that could be malformed.
        JsonMembers::without([]).map_or_else(Self::raw, Self::by)
    }

    /// These members of a JSON body, by JSON pointer, in canonical form. `None` if a pointer is malformed.
    #[must_use]
    pub fn fields<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        JsonMembers::only(pointers).map(Self::by)
    }

    /// All members of a JSON body except these, such as a timestamp that is new on each try. `None` if a pointer is malformed.
    #[must_use]
    pub fn without_fields<'a>(pointers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        JsonMembers::without(pointers).map(Self::by)
    }

    /// The bytes that this function writes for a request. It can include headers, such as one with a version, and handle multipart
    /// forms, whose boundary is different on each try. Its error is answered with 400. Change the name whenever the function writes
    /// other bytes for the same request, and name the one before with [`and_formerly`](Self::and_formerly).
    #[must_use]
    pub fn own<F>(name: &str, function: F) -> Self
    where
        F: Fn(&Parts, &Bytes) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    {
        Self { now: Of::Own { name: name.to_owned(), function: Arc::new(function) }, former: Vec::new() }
    }

    /// Also accepts repeats of requests whose record was made with this fingerprint, or with one that was its former. Without it, a deploy
    /// that changes a route's fingerprint turns honest repeats into 422. Name it until the records of before are gone, which takes as
    /// long as [keys are known](super::IdempotencyBuilder::keys_for).
    ///
    /// Instances of before and after a deploy serve side by side, and one that does not know a fingerprint answers repeats of what it made
    /// with 422 too. So change it in two deploys: name the new one here first, where it is known and makes no records yet.
    ///
    /// ```
    /// use idem_http::Fingerprint;
    ///
    /// let first_deploy = Fingerprint::raw().and_formerly(Fingerprint::jcs());
    /// let second_deploy = Fingerprint::jcs().and_formerly(Fingerprint::raw());
    /// ```
    #[must_use]
    pub fn and_formerly(mut self, former: Self) -> Self {
        self.former.push(former.now);
        self.former.extend(former.former);
        self
    }

    fn by(rule: impl PayloadHasher) -> Self {
        Self { now: Of::Rule(Arc::new(rule)), former: Vec::new() }
    }
}

impl Of {
    fn rule(&self) -> String {
        match self {
            Self::Rule(rule) => rule.rule(),
            Self::Own { name, .. } => format!("fn:{name}"),
        }
    }

    fn body(&self, parts: &Parts, body: &Bytes) -> Result<Vec<u8>, Problem> {
        match self {
            Self::Rule(rule) => match rule.hash(&Message::new(body.clone())) {
                Ok(hash) => Ok(hash.as_bytes().to_vec()),
                Err(error) => Err(Problem::BodyMalformed(error.problem)),
            },
            Self::Own { function, .. } => function(parts, body).map_err(Problem::BodyMalformed),
        }
    }
}

/// A fingerprint: 16 bytes over everything, and a few bytes over each part, which show which part differs and nothing more.
pub(crate) type Print = [u8; 32];

/// The fingerprints of a request: for each of these ways of hashing, in their order, that of the route's fingerprint and those of its
/// former ones.
pub(crate) fn of(
    hashings: &[Hashing],
    fingerprint: &Fingerprint,
    parts: &Parts,
    body: &Bytes,
    subject: Option<&str>,
) -> Result<Vec<Print>, Problem> {
    let media_type = parts.headers.get(header::CONTENT_TYPE).map(|value| essence(value.as_bytes()));
    let is_multipart = media_type.as_deref().is_some_and(|of| of.starts_with("multipart/"));
    if is_multipart && matches!(fingerprint.now, Of::Rule(_)) {
        return Err(Problem::Multipart);
    }
    let now = (fingerprint.now.rule(), fingerprint.now.body(parts, body)?);
    // One that this body does not fit has made no record of it.
    let former = fingerprint.former.iter().filter_map(|of| Some((of.rule(), of.body(parts, body).ok()?)));
    let bodies: Vec<_> = std::iter::once(now).chain(former).collect();
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    // An absent part differs from an empty one.
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let media_type = media_type.unwrap_or_default();
    let subject = subject.map(|subject| format!("s{subject}")).unwrap_or_default();
    let one = |hashing: &Hashing, rule: &str, body: &[u8]| {
        let [method, path, query, media_type, subject, rule] =
            [method, path, &query, &media_type, &subject, rule].map(str::as_bytes);
        let mut print = hashing.hash(&[method, path, query, media_type, subject, rule, body]);
        let mut part = |label: &str, range: std::ops::Range<usize>, value: &[u8]| {
            let length = range.len();
            print[range].copy_from_slice(&hashing.hash(&[label.as_bytes(), value])[..length]);
        };
        part("path", 16..19, path);
        part("query", 19..22, query);
        part("type", 22..25, media_type);
        part("body", 25..29, body);
        part("subject", 29..32, subject);
        print
    };
    let all = hashings.iter().flat_map(|hashing| bodies.iter().map(move |(rule, body)| (hashing, rule, body)));
    Ok(all.map(|(hashing, rule, body)| one(hashing, rule, body)).collect())
}

/// The part in which two requests differ, as far as their fingerprints show it: by the way of hashing under which most parts are
/// equal. `None` if the fingerprints cannot show it, because the record was made with another secret.
pub(crate) fn differs(asked: &[Print], recorded: &Print) -> Option<Part> {
    let parts = [
        (29..32, Part::Subject),
        (16..19, Part::Path),
        (19..22, Part::Query),
        (22..25, Part::MediaType),
        (25..29, Part::Body),
    ];
    let other = |asked: &Print| -> Vec<Part> {
        let others = parts.iter().filter(|(range, _)| asked[range.clone()] != recorded[range.clone()]);
        others.map(|(_, part)| *part).collect()
    };
    let fewest = asked.iter().map(other).min_by_key(Vec::len)?;
    fewest.first().copied().filter(|_| fewest.len() < parts.len())
}

/// Whether a recorded fingerprint may belong to this subject. Plain hashes show none: a record has three bytes of one, and whoever may pick a
/// name finds one with the same bytes by trying (W124).
pub(crate) fn is_of(hashing: &Hashing, subject: &str, recorded: &Print) -> bool {
    matches!(hashing, Hashing::Keyed(_))
        && recorded[29..32] == hashing.hash(&[b"subject", format!("s{subject}").as_bytes()])[..3]
}

/// The media type without its parameters, in lower case.
pub(crate) fn essence(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    String::from_utf8_lossy(value[..end].trim_ascii()).to_ascii_lowercase()
}

/// The engine's rules: a request's message carries its fingerprints one after the other, in this order.
pub(crate) fn rules(hashings: &[Hashing]) -> Option<HashRules> {
    let count = hashings.len();
    let mut all = hashings.iter().enumerate().map(|(index, hashing)| Slot { index, count, rule: hashing.rule() });
    let first = HashRules::new(all.next()?);
    Some(all.fold(first, HashRules::and_formerly))
}

/// The fingerprints that a message carries by one way of hashing.
#[derive(Debug, Clone)]
struct Slot {
    index: usize,
    /// How many ways of hashing there are.
    count: usize,
    rule: String,
}

impl Slot {
    fn prints(&self, message: &Message) -> impl Iterator<Item = PayloadHash> {
        let all = message.payload().map(Bytes::as_ref).unwrap_or_default();
        let each = all.len() / 32 / self.count;
        let own = all.chunks_exact(32).skip(self.index * each).take(each);
        own.filter_map(|print| Print::try_from(print).ok()).map(PayloadHash::from_bytes)
    }
}

impl PayloadHasher for Slot {
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        self.prints(message)
            .next()
            .ok_or_else(|| HashPayloadError { rule: self.rule(), problem: "there is no such fingerprint".to_owned() })
    }

    /// Those by the route's former fingerprints.
    fn also(&self, message: &Message) -> Vec<PayloadHash> {
        self.prints(message).skip(1).collect()
    }

    fn rule(&self) -> String {
        self.rule.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layout that changes under the same name of the rule would turn the repeats that are under way during a deploy into 422. The
    /// values are those of Python's `hmac` and `hashlib`.
    #[test]
    fn w28_fingerprints_are_what_they_always_were() {
        let request =
            http::Request::post("/transactions?dry=1").header("content-type", "Application/JSON; charset=utf-8");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = Bytes::from_static(br#"{"cents": 1177}"#);
        let secret = HashSecret::new(7, b"0123456789abcdef0123456789abcdef").unwrap();
        let hashings = [Hashing::Keyed(secret), Hashing::Plain];
        assert_eq!(hashings.each_ref().map(Hashing::rule), ["http-hmac-sha256/1:7-5b68306c", "http-sha256/1"]);
        let prints =
            of(&hashings, &Fingerprint::raw().and_formerly(Fingerprint::jcs()), &parts, &body, Some("alice")).unwrap();
        let hex = |print: &Print| hex::encode(print);
        assert_eq!(
            prints.iter().map(hex).collect::<Vec<_>>(),
            [
                "8ca3fd3879b5a0039f58bf2713d47b2baa6529763f633a4944b4d12fc33308be",
                "f0dbeaf4b7aa1ceaffbc7b465f9d0118aa6529763f633a49442c84b0203308be",
                "e701564e0a588ffdf8dc877e7e82665537a12e8b85618671ba08e0c315ef2131",
                "3b2c74bdc07d7a001145e964e3c5916b37a12e8b85618671ba48400372ef2131"
            ]
        );
    }
}
