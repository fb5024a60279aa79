//! An answer of the server's.

use bytes::Bytes;
use http::Response;

/// What the server answered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer {
    /// The response.
    pub response: Response<Bytes>,
    /// How many tries this call has made.
    pub tries: u32,
    /// Whether the server said that it had answered before and this is that answer again. False also where the profile's provider does not
    /// say so.
    pub replayed: bool,
}
