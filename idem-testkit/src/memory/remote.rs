//! Clients of a broker on a socket.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use async_trait::async_trait;
use idem_core::{
    Message, Source, SourceError,
    dead_letter::{DeadLetter, Publisher},
    message::Origin,
    source::{Attached, Received, Settle, Settled, SourceCapabilities},
};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::{
    broker::Revoke,
    client::{Client, Link, LinkSeat, MemoryHandle},
    connection::Connection,
    options::{Faults, QueueOptions},
    publisher::published,
    session::{Facts, Got},
    state::{Answer, Handed, Receipt},
    stats::{History, Stats},
    wire::{Ask, QueueAsk, SeatAsk, Tell, WireMessage},
};

/// A [`Source`] on a queue of a broker that [serves a socket](super::Broker::serve).
///
/// Its connection is its life: when it breaks, every message that this source has not settled returns to the queue at
/// once, and [`receive`](Source::receive) says so with a [`Received::Revoked`] before it connects again, with growing
/// pauses. After about a second without a broker it reports [`SourceError::Unavailable`], and may be called again.
#[derive(Debug)]
pub struct RemoteSource(Client<Remote>);

/// A producer, and a look at a broker's queues, from another process.
#[derive(Debug)]
pub struct RemoteBroker {
    path: PathBuf,
    connection: AsyncMutex<Option<Connection>>,
}

/// A [`Publisher`] of dead letters to a queue of a broker on a socket.
#[derive(Debug)]
pub struct RemotePublisher {
    broker: RemoteBroker,
    queue: String,
}

#[derive(Debug)]
struct Remote {
    path: PathBuf,
    queue: String,
    facts: Mutex<Option<Facts>>,
}

/// A connection with a seat, and the receive that is on its way.
#[derive(Debug)]
struct RemoteSeat {
    connection: Connection,
    receiving: AsyncMutex<Receiving>,
}

/// Kept so that a receive which is dropped in mid-call loses nothing: the next one takes its answer, and hands over at
/// most its own maximum of it.
#[derive(Debug, Default)]
struct Receiving {
    /// In the order of asking. The broker ends each when the next arrives.
    answers: VecDeque<oneshot::Receiver<Tell>>,
    /// Whether the last of them asks for deliveries, or only for events that are not deliveries.
    deliveries: bool,
    surplus: VecDeque<Handed>,
}

impl RemoteSource {
    /// A source on the queue of this name, of the broker on the socket `path`. It need not exist yet, but its
    /// [capabilities](Source::capabilities) are only known once the broker has answered, here or at
    /// [`attach`](Source::attach).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn connect(path: impl AsRef<Path>, queue: &str) -> Self {
        let broker = RemoteBroker::new(&path);
        let told = broker.of_queue("asking for a queue", queue, QueueAsk::Facts).await;
        let facts = match told {
            Ok(Tell::Attached(facts)) => Some(facts),
            Ok(_) | Err(_) => None,
        };
        let path = path.as_ref().to_owned();
        Self(Client::new(Remote { path, queue: queue.to_owned(), facts: Mutex::new(facts) }))
    }
}

impl Source for RemoteSource {
    type Handle = MemoryHandle;

    fn capabilities(&self) -> SourceCapabilities {
        self.0.capabilities()
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

    fn stop(&self) {
        self.0.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.0.close(deadline).await;
    }
}

impl Link for Remote {
    type Seat = RemoteSeat;

    async fn open(&self) -> Result<(RemoteSeat, Facts), SourceError> {
        const DOING: &str = "attaching";
        let connection = Connection::open(&self.path).await.map_err(|error| SourceError::unavailable(DOING, error))?;
        let told = connection
            .ask(Ask::Attach(self.queue.clone()))
            .await
            .map_err(|error| SourceError::unavailable(DOING, error))?;
        let Tell::Attached(facts) = told.ok(DOING)? else { return Err(confused(DOING)) };
        *self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(facts.clone());
        Ok((RemoteSeat { connection, receiving: AsyncMutex::default() }, facts))
    }

    fn facts(&self) -> Option<Facts> {
        self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn bound_to(&self) -> String {
        format!("memory:{}/{}", self.path.display(), self.queue)
    }
}

impl LinkSeat for RemoteSeat {
    async fn receive(&self, max: usize) -> Got {
        let mut receiving = self.receiving.lock().await;
        loop {
            if max > 0 && !receiving.surplus.is_empty() {
                let count = max.min(receiving.surplus.len());
                return Got::Deliveries(receiving.surplus.drain(..count).collect());
            }
            if receiving.answers.is_empty() || receiving.deliveries != (max > 0) {
                let Ok(answer) = self.connection.send(Ask::Seat(SeatAsk::Receive(max))).await else { return Got::Gone };
                receiving.answers.push_back(answer);
                receiving.deliveries = max > 0;
            }
            let Some(answer) = receiving.answers.front_mut() else { return Got::Gone };
            let told = answer.await;
            receiving.answers.pop_front();
            let Ok(told) = told else { return Got::Gone };
            match told.ok("receiving") {
                Ok(Tell::Deliveries(deliveries)) => {
                    match deliveries.into_iter().map(TryInto::try_into).collect::<Result<Vec<_>, _>>() {
                        Ok(handed) => receiving.surplus.extend(handed),
                        Err(error) => return Got::Failed(SourceError::unavailable("receiving", error)),
                    }
                }
                Ok(Tell::Revoked(assignment, how)) => {
                    receiving.surplus.retain(|handed| handed.receipt.assignment != assignment);
                    return Got::Revoked(assignment, how);
                }
                Ok(Tell::End) => return Got::End,
                Ok(Tell::Gone) => return Got::Gone,
                Ok(_) => return Got::Failed(confused("receiving")),
                Err(error) => return Got::Failed(error),
            }
        }
    }

    async fn settle(&self, settlements: Vec<(Receipt, Answer)>) -> Vec<Settled> {
        let count = settlements.len();
        match self.connection.ask(Ask::Seat(SeatAsk::Settle(settlements))).await {
            Ok(Tell::Settled(settled)) => settled.into_iter().map(Into::into).collect(),
            Ok(Tell::Gone) => vec![Settled::Stale; count],
            // Sent, perhaps, and not answered.
            Ok(_) | Err(_) => vec![Settled::Unknown; count],
        }
    }

    async fn is_idle(&self) -> bool {
        matches!(self.connection.ask(Ask::Seat(SeatAsk::IsIdle)).await, Ok(Tell::Idle(true)))
    }

    fn drained(&self, assignment: u64) {
        self.connection.tell(Ask::Seat(SeatAsk::Finished(assignment)));
    }

    fn stop(&self) {
        self.connection.tell(Ask::Seat(SeatAsk::Stop));
    }

    async fn leave(&self) {
        // A connection that breaks meanwhile has left too.
        let _ = self.connection.ask(Ask::Seat(SeatAsk::Leave)).await;
    }

    fn let_go(&self) {
        self.connection.close();
    }
}

impl RemoteBroker {
    /// A client of the broker on the socket `path`. It connects at its first call, and again when a call finds its
    /// connection broken.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), connection: AsyncMutex::new(None) }
    }

    /// Creates a queue, as [`Broker::create`](super::Broker::create) does.
    ///
    /// # Errors
    /// As there, and [`SourceError::Unavailable`] where the broker cannot be reached.
    ///
    /// # Cancel safety
    /// A dropped call may have been done. That holds for every call of this client.
    pub async fn create(&self, queue: &str, options: QueueOptions) -> Result<(), SourceError> {
        self.ask("creating a queue", Ask::Create(queue.to_owned(), Box::new(options))).await.map(|_| ())
    }

    /// Publishes messages, in order, and answers their origins.
    ///
    /// # Errors
    /// Some of them may be stored, as with any broker.
    pub async fn publish(&self, queue: &str, messages: &[Message]) -> Result<Vec<Origin>, SourceError> {
        let messages = messages.iter().map(WireMessage::from).collect();
        let told = self.of_queue("publishing", queue, QueueAsk::Publish(messages)).await?;
        let Tell::Published(origins) = told else { return Err(confused("publishing")) };
        Ok(origins.iter().map(|origin| Origin::new(origin)).collect())
    }

    /// Misbehaves like this from now on.
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn misbehave(&self, queue: &str, faults: Faults) -> Result<(), SourceError> {
        self.of_queue("setting faults", queue, QueueAsk::Misbehave(faults)).await.map(|_| ())
    }

    /// The queue's counts so far, and of its messages now.
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn stats(&self, queue: &str) -> Result<Stats, SourceError> {
        let told = self.of_queue("reading statistics", queue, QueueAsk::Stats).await?;
        let Tell::Stats(stats) = told else { return Err(confused("reading statistics")) };
        Ok(stats)
    }

    /// The counts of each message that is remembered, in the order of publishing.
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn histories(&self, queue: &str) -> Result<Vec<(Origin, History)>, SourceError> {
        let told = self.of_queue("reading histories", queue, QueueAsk::Histories).await?;
        let Tell::Histories(all) = told else { return Err(confused("reading histories")) };
        Ok(all.into_iter().map(|(origin, history)| (Origin::new(&origin), history)).collect())
    }

    /// Waits until every message is settled for good.
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn drained(&self, queue: &str) -> Result<(), SourceError> {
        self.of_queue("waiting for a queue", queue, QueueAsk::Drained).await.map(|_| ())
    }

    /// Ends the assignment of every consumer; see [`Queue::revoke`](super::Queue::revoke).
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn revoke(&self, queue: &str, how: Revoke) -> Result<(), SourceError> {
        self.of_queue("revoking", queue, QueueAsk::Revoke(how)).await.map(|_| ())
    }

    /// Drops the connection of every consumer of the queue.
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn disconnect(&self, queue: &str) -> Result<(), SourceError> {
        self.of_queue("disconnecting", queue, QueueAsk::Disconnect).await.map(|_| ())
    }

    /// Lets every lease pass now.
    ///
    /// # Errors
    /// Where the queue does not exist or the broker cannot be reached.
    pub async fn expire_leases(&self, queue: &str) -> Result<(), SourceError> {
        self.of_queue("expiring leases", queue, QueueAsk::ExpireLeases).await.map(|_| ())
    }

    async fn of_queue(&self, doing: &'static str, queue: &str, ask: QueueAsk) -> Result<Tell, SourceError> {
        self.ask(doing, Ask::Queue(queue.to_owned(), ask)).await
    }

    async fn ask(&self, doing: &'static str, ask: Ask) -> Result<Tell, SourceError> {
        let unavailable = |error| SourceError::unavailable(doing, error);
        let answer = {
            let mut connection = self.connection.lock().await;
            if connection.as_ref().is_none_or(Connection::is_gone) {
                *connection = Some(Connection::open(&self.path).await.map_err(unavailable)?);
            }
            let Some(connection) = connection.as_ref() else { return Err(confused(doing)) };
            connection.send(ask).await.map_err(unavailable)?
        };
        // Waited for without the lock, so that a request that waits for its queue does not hold up the others.
        let told = answer.await.map_err(unavailable_recv(doing))?;
        told.ok(doing)
    }
}

impl RemotePublisher {
    /// A publisher to the queue of this name, of the broker on the socket `path`.
    #[must_use]
    pub fn new(path: impl AsRef<Path>, queue: &str) -> Self {
        Self { broker: RemoteBroker::new(path), queue: queue.to_owned() }
    }
}

#[async_trait]
impl Publisher for RemotePublisher {
    async fn publish(&self, dead_letter: &DeadLetter) -> Result<(), SourceError> {
        self.broker.publish(&self.queue, &[published(dead_letter)]).await.map(|_| ())
    }
}

fn unavailable_recv(doing: &'static str) -> impl Fn(oneshot::error::RecvError) -> SourceError {
    move |error| SourceError::unavailable(doing, error)
}

/// Broker and client are of one build, so this would be a bug of the test kit.
fn confused(doing: &'static str) -> SourceError {
    SourceError::Unavailable { doing, source: "the broker answered another question".into() }
}
