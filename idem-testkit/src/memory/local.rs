//! [`MemorySource`]: a source on a broker in this process.

use std::time::Duration;

use idem_core::{
    Source, SourceError,
    source::{Attached, Received, Settle, Settled, SourceCapabilities},
};

use super::{
    broker::Broker,
    client::{Client, Link, LinkSeat, MemoryHandle},
    session::{Facts, Got, Session},
    state::{Answer, Receipt},
};

/// A [`Source`] on a queue of a [`Broker`] in this process. Dropping it is a crash: its unsettled messages return at
/// once, and are delivered to the next consumer.
///
/// Several sources on one queue share its messages. [`is_idle`](Source::is_idle) says whether every message that is not
/// settled for good is in this source's own hands.
#[derive(Debug)]
pub struct MemorySource(Client<Local>);

#[derive(Debug)]
struct Local {
    broker: Broker,
    queue: String,
}

impl MemorySource {
    pub(super) fn new(broker: Broker, queue: &str) -> Self {
        Self(Client::new(Local { broker, queue: queue.to_owned() }))
    }
}

impl Source for MemorySource {
    type Handle = MemoryHandle;

    fn capabilities(&self) -> SourceCapabilities {
        // Where the broker keeps positions, nothing can be given back.
        self.0.capabilities().pauses(!self.0.keeps_positions())
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.0.attach().await
    }

    async fn receive(&self, max: usize) -> Result<Received<MemoryHandle>, SourceError> {
        self.0.receive(max).await
    }

    async fn settle(&self, settlements: Vec<(MemoryHandle, Settle)>) -> Vec<Settled> {
        self.0.settle(settlements).await
    }

    fn holds_back(&self, handle: &MemoryHandle) -> bool {
        self.0.holds_back(handle)
    }

    fn is_held_back(&self, handle: &MemoryHandle) -> bool {
        self.0.is_held_back(handle)
    }

    async fn is_idle(&self) -> bool {
        self.0.is_idle().await
    }

    fn pause(&self) {
        if self.capabilities().pauses {
            self.0.pause(true);
        }
    }

    fn resume(&self) {
        self.0.pause(false);
    }

    fn stop(&self) {
        self.0.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.0.close(deadline).await;
    }
}

impl Link for Local {
    type Seat = Session;

    async fn open(&self) -> Result<(Session, Facts), SourceError> {
        Session::attach(&self.broker, &self.queue).await
    }

    fn facts(&self) -> Option<Facts> {
        self.broker.queue(&self.queue).map(|queue| queue.facts())
    }

    fn bound_to(&self) -> String {
        format!("memory/{}", self.queue)
    }
}

impl LinkSeat for Session {
    async fn receive(&self, max: usize) -> Got {
        Session::receive(self, max).await
    }

    async fn settle(&self, settlements: Vec<(Receipt, Answer)>) -> Vec<Settled> {
        Session::settle(self, settlements).await
    }

    async fn is_idle(&self) -> bool {
        Session::is_idle(self).await
    }

    fn drained(&self, assignment: u64) {
        Session::drained(self, assignment);
    }

    fn stop(&self) {
        Session::stop(self);
    }

    async fn leave(&self) {
        Session::leave(self).await;
    }

    fn let_go(&self) {
        Session::go(self);
    }
}
