//! A strict SQS in this process, on HTTP, so that any SDK and whole worker processes can be pointed at it.
//!
//! It follows the documented rules that emulators get wrong, and misbehaves as SQS may: deleted messages come back
//! ([`FakeQueue::resurrect`]), receipts go stale (a standard queue then answers a delete with success and deletes
//! nothing, a FIFO queue with an error), messages in flight have a limit, batches fail and are throttled in
//! part, FIFO queues block groups and drop repetitions for five minutes, as they answer a receive that is repeated with the
//! same messages, and take no delay of a message's own; no visibility goes beyond twelve hours, and messages expire. Its
//! clock is moved on by [`FakeSqs::advance`]; it checks no signatures.
//!
//! ```
//! use idem_testkit::sqs::{FakeSqs, QueueOptions};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let sqs = FakeSqs::start().await?;
//! let orders = sqs.create("orders", QueueOptions::default());
//! // `AWS_ENDPOINT_URL` of a worker, and its `--queue-url`.
//! assert_eq!(orders.url(), format!("{}/000000000000/orders", sqs.endpoint()));
//! # Ok(())
//! # }
//! ```

mod api;
mod http;
mod queue;

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinSet,
    time::Instant,
};

use self::queue::Queue;
pub use self::queue::QueueOptions;

/// The server. It ends when this is dropped.
#[derive(Debug)]
pub struct FakeSqs {
    shared: Arc<Shared>,
    address: SocketAddr,
    server: Mutex<JoinSet<()>>,
    /// Bound and never listening, so that no other process gets the port while the server is [down](Self::down).
    _port: TcpSocket,
}

/// A queue of a [`FakeSqs`].
#[derive(Debug, Clone)]
pub struct FakeQueue {
    shared: Arc<Shared>,
    name: String,
}

/// How many messages a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCounts {
    /// Those that a receive would get.
    pub waiting: u64,
    /// Those that were received and are neither deleted nor visible again.
    pub in_flight: u64,
    /// Those that were sent with a delay that is not over.
    pub delayed: u64,
}

#[derive(Debug)]
struct Shared {
    endpoint: String,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<String, Queue>,
    advanced: Duration,
    ids: u64,
    hangs: bool,
    receives_hang: bool,
    /// The error that everything is answered with.
    refusing: Option<&'static str>,
    /// How many requests for an action are answered with an error of the server.
    failing: HashMap<String, u32>,
    /// How many are done, and their answers get lost.
    unanswered: HashMap<String, u32>,
    requests: HashMap<String, u64>,
    /// How many receives wait for messages.
    receiving: u32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the start, as far as queues know.
    fn now(&self, state: &State) -> Duration {
        self.started.elapsed() + state.advanced
    }
}

impl FakeSqs {
    /// Starts a server on a port of its own.
    ///
    /// # Errors
    /// Where the system has no port.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn start() -> io::Result<Self> {
        let port = bound(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = port.local_addr()?;
        let endpoint = format!("http://{address}");
        let shared = Arc::new(Shared { endpoint, started: Instant::now(), state: Mutex::default() });
        let sqs = Self { shared, address, server: Mutex::default(), _port: port };
        sqs.up()?;
        Ok(sqs)
    }

    /// Cuts every connection, and refuses new ones until [`up`](Self::up). What the queues hold stays, and their clock goes on.
    ///
    /// # Cancel safety
    /// Not cancel safe: connections may be cut a moment later.
    pub async fn down(&self) {
        let mut server = std::mem::take(&mut *self.server());
        server.shutdown().await;
    }

    /// Answers again, at the same address.
    ///
    /// # Errors
    /// Where the system refuses to listen there.
    pub fn up(&self) -> io::Result<()> {
        let listener = listening(self.address)?;
        self.server().spawn(http::serve(listener, Arc::clone(&self.shared)));
        Ok(())
    }

    fn server(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it answers.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.shared.endpoint
    }

    /// Creates a queue, or replaces it. It is a FIFO queue where its name ends with `.fifo`.
    pub fn create(&self, name: &str, options: QueueOptions) -> FakeQueue {
        self.shared.lock().queues.insert(name.to_owned(), Queue::new(name, options));
        self.queue(name)
    }

    /// The queue of this name. One that was not created has no messages.
    #[must_use]
    pub fn queue(&self, name: &str) -> FakeQueue {
        FakeQueue { shared: Arc::clone(&self.shared), name: name.to_owned() }
    }

    /// Moves the clock of all queues on.
    pub fn advance(&self, by: Duration) {
        self.shared.lock().advanced += by;
    }

    /// Whether it answers nothing. Requests that came meanwhile are answered later.
    pub fn hang(&self, hangs: bool) {
        self.shared.lock().hangs = hangs;
    }

    /// Whether receives alone get nothing, so that a test knows who has which message.
    pub fn hang_receives(&self, hangs: bool) {
        self.shared.lock().receives_hang = hangs;
    }

    /// Answers every request with this error of the caller's, such as `AccessDenied`, or does not any more.
    pub fn refuse(&self, code: Option<&'static str>) {
        self.shared.lock().refusing = code;
    }

    /// Answers the next `count` requests for an action with an error of the server's own, and does nothing.
    pub fn fail(&self, action: &str, count: u32) {
        self.shared.lock().failing.insert(action.to_owned(), count);
    }

    /// Does what the next `count` requests for an action ask, and closes their connections without an answer.
    pub fn lose_answers(&self, action: &str, count: u32) {
        self.shared.lock().unanswered.insert(action.to_owned(), count);
    }

    /// How many receives are under way.
    #[must_use]
    pub fn receiving(&self) -> u32 {
        self.shared.lock().receiving
    }

    /// How many requests it got for an action, such as `DeleteMessageBatch`.
    #[must_use]
    pub fn requests(&self, action: &str) -> u64 {
        self.shared.lock().requests.get(action).copied().unwrap_or(0)
    }
}

/// A socket on this address, which another one of this kind may have too.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listening(address: SocketAddr) -> io::Result<TcpListener> {
    bound(address)?.listen(1_024)
}

impl FakeQueue {
    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/000000000000/{}", self.shared.endpoint, self.name)
    }

    /// How many messages it has.
    #[must_use]
    pub fn counts(&self) -> QueueCounts {
        self.with(|queue, now| queue.counts(now))
    }

    /// Brings every deleted message back, as SQS may when one of its servers was away. Answers how many.
    pub fn resurrect(&self) -> usize {
        self.with(|queue, _| queue.resurrect())
    }

    /// Fails the next `count` entries of batches, each with an error that passes.
    pub fn fail_entries(&self, count: u32) {
        self.with(|queue, _| queue.failing_entries = count);
    }

    /// Answers the next `count` entries of batches with a throttling, each for itself.
    pub fn throttle_entries(&self, count: u32) {
        self.with(|queue, _| queue.throttled_entries = count);
    }

    /// Lets the visibility of the first `count` messages in flight pass, in the order in which they were sent. Answers how
    /// many there were.
    pub fn lapse(&self, count: usize) -> usize {
        self.with(|queue, now| queue.lapse(now, count))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Queue, Duration) -> T) -> T
    where
        T: Default,
    {
        let mut state = self.shared.lock();
        let now = self.shared.now(&state);
        state.queues.get_mut(&self.name).map(|queue| act(queue, now)).unwrap_or_default()
    }
}
