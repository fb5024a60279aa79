//! The server's answer to a request.

use bytes::Bytes;
use http::Response;

/// The server's answer, and how many tries it took.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer {
    /// The response.
    pub response: Response<Bytes>,
    /// How many tries this call has made.
    pub tries: u32,
    /// Whether the server marked this as an earlier answer that it repeats. Also false for a provider that does not mark repeats.
    pub replayed: bool,
}
