//! Senders: how a request is proved to be theirs, and which message it holds.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use idem_core::{BoxError, Message};

/// A service that delivers events over HTTP. Implement it, in a few lines, for a service that no sender here covers.
///
/// # Contract
/// 1. [`open`](Self::open) answers a message only if the body, byte for byte as received, is proved to be the sender's.
/// 2. The key and the hashed content of the message come from the proved part. With a key from elsewhere, an attacker who has seen one
///    request could have it carried out again under another key.
/// 3. Nothing in a body is acted upon before it is proved.
#[async_trait]
pub trait Sender: Send + Sync + 'static {
    /// Checks the head, before the body is read.
    ///
    /// # Errors
    /// [`NotAdmitted::Unauthenticated`] if the head alone shows that the request is not the sender's.
    fn admit(&self, head: &Parts) -> Result<(), NotAdmitted>;

    /// Proves the request to be the sender's, and opens it.
    ///
    /// # Errors
    /// [`NotAdmitted::Unauthenticated`] if it is not the sender's, [`NotAdmitted::Unavailable`] if that cannot be decided now.
    ///
    /// # Cancel safety
    /// The call is dropped when the deadline passes; it must leave nothing half done.
    async fn open(&self, head: &Parts, body: Bytes) -> Result<Opened, NotAdmitted>;

    /// How long the sender may be kept waiting: less time than it takes to give up.
    fn deadline(&self) -> Duration;
}

/// The content of a request.
#[derive(Debug)]
pub enum Opened {
    /// An event. If it is the sender's and still cannot be read, it is marked with [`Message::with_problem`].
    Message(Box<Message>),
    /// No event: the request was part of setting up the subscription.
    Settled,
}

/// Why a request is not accepted.
#[derive(Debug)]
pub enum NotAdmitted {
    /// The request is not the sender's. The text says why, and quotes nothing from the request.
    Unauthenticated(&'static str),
    /// This cannot be decided now: the sender tries again.
    Unavailable(BoxError),
}
