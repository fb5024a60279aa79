//! A door for the properties that must hold of any input.

use bytes::Bytes;
use http::{Request, Uri, header::CONTENT_TYPE};

use super::{
    fingerprint::{self, Fingerprint, HashSecret, Hashing},
    key,
};

/// The key in a header's value; `None` if it has none.
#[must_use]
pub fn key_in(value: &[u8], strict: bool) -> Option<String> {
    key::read(value, strict).ok()
}

/// The parts of a request that distinguish it from another one.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The path.
    pub path: String,
    /// The query, without its question mark.
    pub query: String,
    /// `Content-Type`.
    pub content_type: Vec<u8>,
    /// The subject within the tenant.
    pub subject: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Asked {
    /// Its fingerprint; `None` if no request can be like this, or the fingerprint does not fit it.
    #[must_use]
    pub fn print(&self, fingerprint: &Fingerprint) -> Option<[u8; 32]> {
        let uri: Uri = format!("{}?{}", self.path, self.query).parse().ok()?;
        if (uri.path(), uri.query()) != (self.path.as_str(), Some(self.query.as_str())) {
            return None;
        }
        let request = Request::post(uri).header(CONTENT_TYPE, &self.content_type[..]).body(()).ok()?;
        let (parts, ()) = request.into_parts();
        let hashing = Hashing::Keyed(HashSecret::new(1, &[7; 32]).ok()?);
        let body = Bytes::copy_from_slice(&self.body);
        let prints = fingerprint::of(&[hashing], fingerprint, &parts, &body, Some(&self.subject)).ok()?;
        prints.first().copied()
    }
}

/// The part in which two requests differ, by the name that a client gets.
#[must_use]
pub fn differs(asked: &[u8; 32], recorded: &[u8; 32]) -> Option<&'static str> {
    fingerprint::differs(&[*asked], recorded).map(super::problem::Part::as_str)
}
