//! The bytes of a copy: a line of JSON, and behind it the result's body as it is.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Copy;
use crate::{
    message::headers::Headers,
    names::RunId,
    results::{result::ResultBody, rows::KeptResult},
    store::claim::{Claim, Found, Recorded},
};

#[derive(Serialize, Deserialize)]
enum Written {
    Running,
    Done { at: SystemTime, by: i32, until: Option<SystemTime>, result: Option<WrittenResult>, is_whole: bool },
}

/// A result but for its body.
#[derive(Serialize, Deserialize)]
struct WrittenResult {
    is_error: bool,
    status: Option<u16>,
    content_type: Option<Box<str>>,
    reference: Option<Box<str>>,
    /// Values as hexadecimal digits.
    headers: Vec<(String, Option<String>)>,
    sealed_with: u16,
    until: Option<SystemTime>,
}

pub(super) fn running() -> Vec<u8> {
    written(&Written::Running, &[])
}

/// A record under the payload of its claim, with a result that the store has too.
pub(super) fn done(recorded: &Recorded, result: Option<&KeptResult>, is_whole: bool) -> Vec<u8> {
    let written_result = |kept: &KeptResult| WrittenResult {
        is_error: kept.is_error,
        status: kept.result.status,
        content_type: kept.result.content_type.clone(),
        reference: kept.result.reference.clone(),
        headers: kept.result.headers.iter().map(|(name, value)| (name.to_owned(), value.map(hex::encode))).collect(),
        sealed_with: kept.sealed_with,
        until: kept.until,
    };
    let head = Written::Done {
        at: recorded.processed_at,
        by: recorded.processed_by.0,
        until: recorded.expires_at,
        result: result.map(written_result),
        is_whole,
    };
    written(&head, result.map_or(&[], |kept| &kept.result.body))
}

fn written(head: &Written, body: &[u8]) -> Vec<u8> {
    // A time before 1970 cannot be written, and its copy says nothing.
    let mut bytes = serde_json::to_vec(head).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend_from_slice(body);
    bytes
}

/// The copy of this claim; `None` where the bytes are of another format.
pub(super) fn read(bytes: &[u8], claim: &Claim) -> Option<Copy> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    match serde_json::from_slice(head).ok()? {
        Written::Running => Some(Copy::Running),
        Written::Done { at, by, until, result, is_whole } => {
            let recorded = Recorded {
                key: claim.key.clone(),
                hash: claim.hash,
                hash_rule: claim.hash_rule,
                processed_at: at,
                processed_by: RunId(by),
                expires_at: until,
            };
            let result = match result {
                Some(result) => Some(result.kept(body)?),
                None => None,
            };
            Some(Copy::Done { found: Box::new(Found { recorded, result }), is_whole })
        }
    }
}

impl WrittenResult {
    fn kept(self, body: &[u8]) -> Option<KeptResult> {
        let mut headers = Headers::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let value = match value {
                Some(value) => Some(hex::decode(value).ok()?.into()),
                None => None,
            };
            headers.push(&name, value);
        }
        let mut result = ResultBody::new(body.to_vec());
        (result.status, result.content_type, result.reference) = (self.status, self.content_type, self.reference);
        result.headers = headers;
        let mut kept = KeptResult::new(self.is_error, result, self.sealed_with);
        kept.until = self.until;
        Some(kept)
    }
}
