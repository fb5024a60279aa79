//! Who sends: how its requests are known to be its own, and what message is in them.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use idem_core::{BoxError, Message};

/// A service that delivers events over HTTP. An own one is a few lines where it signs as none of those here does.
///
/// # Contract
/// 1. [`open`](Self::open) answers a message only where the body, as it came, is proved to be the sender's.
/// 2. What the message is known by, its key and what is hashed, stands in what is proved: with a key from elsewhere, whoever has seen one
///    request could have it carried out again under another.
/// 3. Nothing in a body is acted upon before it is proved.
#[async_trait]
pub trait Sender: Send + Sync + 'static {
    /// Looks at the head, before the body is read.
    ///
    /// # Errors
    /// [`NotAdmitted::Unauthenticated`] where the head alone shows that the request is not the sender's.
    fn admit(&self, head: &Parts) -> Result<(), NotAdmitted>;

    /// Proves the request to be the sender's, and opens it.
    ///
    /// # Errors
    /// [`NotAdmitted::Unauthenticated`] where it is not the sender's, [`NotAdmitted::Unavailable`] where that cannot be told now.
    ///
    /// # Cancel safety
    /// Dropped where the deadline passes; it must leave nothing half done.
    async fn open(&self, head: &Parts, body: Bytes) -> Result<Opened, NotAdmitted>;

    /// How long the sender may be kept waiting: less than after what it gives up.
    fn deadline(&self) -> Duration;
}

/// What a request held.
#[derive(Debug)]
pub enum Opened {
    /// An event. One that is the sender's and still cannot be read is marked with [`Message::with_problem`].
    Message(Box<Message>),
    /// Nothing for a handler: the sender and this service were settling that it may send.
    Settled,
}

/// A request is not taken.
#[derive(Debug)]
pub enum NotAdmitted {
    /// It is not the sender's. The text says why, and quotes nothing of the request.
    Unauthenticated(&'static str),
    /// Nobody can tell now: the sender comes again.
    Unavailable(BoxError),
}
