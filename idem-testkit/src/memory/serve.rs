//! The broker on a Unix socket.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use idem_core::{Message, SourceError, message::Origin};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Mutex as AsyncMutex, mpsc, watch},
    task::JoinSet,
};

use super::{
    broker::{Broker, Queue},
    session::{Got, Session},
    wire::{self, Ask, Asked, QueueAsk, SeatAsk, Tell, Told},
};

/// How many requests of one connection are worked on at once; further ones are read when one is done.
const REQUESTS_MAX: usize = 64;

/// How many messages one answer carries; the rest stays in the queue for the next receive.
const ANSWER_MESSAGES_MAX: usize = 1000;

/// A broker on a socket. Dropping it closes every connection and removes the socket; the broker and its messages stay.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Dropped with the server, which ends its tasks.
    _running: watch::Sender<()>,
}

impl Server {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already, with the folder it was in.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Broker {
    /// Serves this broker on a Unix socket until the answer is dropped. A consumer that connects with
    /// [`RemoteSource`](super::RemoteSource) and is killed gives its unsettled messages back at once.
    ///
    /// The protocol is for the test kit's own clients: frames of four bytes of length and JSON. Anyone who can open the
    /// socket can do everything.
    ///
    /// # Errors
    /// Where the socket cannot be made. A file that a server which was killed left behind is replaced; one on which a server
    /// still listens is not.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn serve(&self, path: impl AsRef<Path>) -> io::Result<Server> {
        let path = path.as_ref().to_owned();
        let listener = match UnixListener::bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(&path).await.is_err() => {
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)?
            }
            bound => bound?,
        };
        let (running, mut ended) = watch::channel(());
        let broker = self.clone();
        tokio::spawn(async move {
            // Dropped with this task, and with it every connection.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    _ = ended.changed() => return,
                    Some(_) = connections.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            connections.spawn(connection(broker.clone(), stream));
                        }
                        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "no connection accepted"),
                    },
                }
            }
        });
        Ok(Server { path, _running: running })
    }
}

/// The seat of a connection, once it has one.
#[derive(Debug, Clone)]
struct SeatSlot {
    session: Arc<Mutex<Option<Arc<Session>>>>,
    receives: Arc<Receives>,
}

/// Lets the receives of a seat run one after the other: the next ends the one before, and takes nothing while that one
/// may still take something, so that the messages are answered in the order in which they were taken.
#[derive(Debug)]
struct Receives {
    latest: watch::Sender<u64>,
    turn: AsyncMutex<()>,
}

impl SeatSlot {
    fn new() -> Self {
        let receives = Receives { latest: watch::Sender::new(0), turn: AsyncMutex::new(()) };
        Self { session: Arc::default(), receives: Arc::new(receives) }
    }

    fn get(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, session: Option<Session>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session.map(Arc::new);
    }
}

impl Receives {
    /// The number of this request, if it is a receive.
    fn number(&self, ask: &Ask) -> u64 {
        if matches!(ask, Ask::Seat(SeatAsk::Receive(_))) {
            self.latest.send_modify(|latest| *latest += 1);
        }
        *self.latest.borrow()
    }

    async fn receive(&self, session: &Session, max: usize, number: u64) -> Got {
        let mut latest = self.latest.subscribe();
        let take = async {
            let _turn = self.turn.lock().await;
            session.receive(max).await
        };
        tokio::select! {
            biased;
            // The sender is ours, so the channel cannot be closed.
            _ = latest.wait_for(|latest| *latest > number) => Got::Deliveries(Vec::new()),
            got = take => got,
        }
    }
}

/// Leaves the queue when the connection's task ends, however it ends.
struct Leaving(SeatSlot);

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(session) = self.0.get() {
            session.go();
        }
    }
}

async fn connection(broker: Broker, stream: UnixStream) {
    let (mut from, mut to) = stream.into_split();
    let (answers, mut outgoing) = mpsc::channel::<Vec<u8>>(REQUESTS_MAX);
    let seat = SeatSlot::new();
    let _leaving = Leaving(seat.clone());
    let mut writing = JoinSet::new();
    writing.spawn(async move {
        while let Some(frame) = outgoing.recv().await {
            if wire::write(&mut to, &frame).await.is_err() {
                return;
            }
        }
    });
    let (gone, mut is_gone) = mpsc::channel::<()>(1);
    let mut working = JoinSet::new();
    let reading = async {
        // Read by a future of its own, which nothing drops in mid-frame.
        while let Ok(Some(asked)) = wire::read::<Asked>(&mut from).await {
            while working.len() >= REQUESTS_MAX {
                working.join_next().await;
            }
            while working.try_join_next().is_some() {}
            // Requests without an answer are carried out in the order in which they came: a receive that comes after a stop must
            // find it done.
            if matches!(asked.ask, Ask::Seat(SeatAsk::Stop | SeatAsk::Finished(_))) {
                answer(&broker, &seat, asked.ask, 0).await;
                continue;
            }
            let (broker, seat, answers, gone) = (broker.clone(), seat.clone(), answers.clone(), gone.clone());
            // In the order of asking, before the tasks run in any order.
            let number = seat.receives.number(&asked.ask);
            working.spawn(async move {
                let tell = answer(&broker, &seat, asked.ask, number).await;
                let end = matches!(tell, Tell::Gone);
                let frame = wire::frame(&Told { id: asked.id, tell });
                let frame = frame.or_else(|error| {
                    wire::frame(&Told { id: asked.id, tell: Tell::Unavailable { why: error.to_string() } })
                });
                if let Ok(frame) = frame {
                    // Where the connection is gone, the answer is not waited for.
                    let _ = answers.send(frame).await;
                }
                if end {
                    let _ = gone.send(()).await;
                }
            });
        }
    };
    tokio::select! {
        () = reading => {}
        // The broker took the seat away: the client is cut off, as a broker does it.
        _ = is_gone.recv() => {}
        // Our answers are not read any more.
        _ = writing.join_next() => {}
    }
}

/// `number` is that of a receive.
async fn answer(broker: &Broker, seat: &SeatSlot, ask: Ask, number: u64) -> Tell {
    match ask {
        Ask::Attach(queue) => match Session::attach(broker, &queue).await {
            Ok((session, facts)) => {
                seat.set(Some(session));
                Tell::Attached(facts)
            }
            Err(error) => Tell::error(&error),
        },
        Ask::Create(queue, options) => {
            broker.create(&queue, *options).map_or_else(|error| Tell::error(&error), |_| Tell::Done)
        }
        Ask::Seat(ask) => match seat.get() {
            Some(session) => of_seat(&session, &seat.receives, ask, number).await,
            None => Tell::Gone,
        },
        Ask::Queue(queue, ask) => match broker.queue(&queue) {
            Some(queue) => of_queue(&queue, ask).await,
            None => Tell::error(&Session::unknown(&queue)),
        },
    }
}

async fn of_seat(session: &Session, receives: &Receives, ask: SeatAsk, number: u64) -> Tell {
    match ask {
        SeatAsk::Receive(max) => match receives.receive(session, max.min(ANSWER_MESSAGES_MAX), number).await {
            Got::Deliveries(handed) => Tell::Deliveries(handed.into_iter().map(Into::into).collect()),
            Got::Revoked(assignment, how) => Tell::Revoked(assignment, how),
            Got::End => Tell::End,
            Got::Gone => Tell::Gone,
            Got::Failed(error) => Tell::error(&error),
        },
        SeatAsk::Settle(settlements) => {
            Tell::Settled(session.settle(settlements).await.into_iter().map(Into::into).collect())
        }
        SeatAsk::IsIdle => Tell::Idle(session.is_idle().await),
        SeatAsk::Finished(assignment) => {
            session.drained(assignment);
            Tell::Done
        }
        SeatAsk::Stop => {
            session.stop();
            Tell::Done
        }
        SeatAsk::Leave => {
            session.leave().await;
            Tell::Done
        }
    }
}

async fn of_queue(queue: &Queue, ask: QueueAsk) -> Tell {
    match ask {
        QueueAsk::Facts => return Tell::Attached(queue.facts()),
        QueueAsk::Publish(messages) => return publish(queue, messages).unwrap_or_else(|error| Tell::error(&error)),
        QueueAsk::Stats => return Tell::Stats(queue.stats()),
        QueueAsk::Histories => {
            let named = |(origin, history): (Origin, _)| (origin.as_str().to_owned(), history);
            return Tell::Histories(queue.histories().into_iter().map(named).collect());
        }
        QueueAsk::Misbehave(faults) => queue.misbehave(faults),
        QueueAsk::Drained => queue.drained().await,
        QueueAsk::Revoke(how) => queue.revoke(how),
        QueueAsk::Disconnect => queue.disconnect(),
        QueueAsk::ExpireLeases => queue.expire_leases(),
    }
    Tell::Done
}

fn publish(queue: &Queue, messages: Vec<wire::WireMessage>) -> Result<Tell, SourceError> {
    let mut origins = Vec::with_capacity(messages.len());
    for message in messages {
        let message = Message::try_from(message).map_err(|error| SourceError::unavailable("publishing", error))?;
        origins.push(queue.publish(message)?.as_str().to_owned());
    }
    Ok(Tell::Published(origins))
}
