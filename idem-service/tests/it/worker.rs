//! The worker that the tests start: this very test binary, turned into one by a variable. A worker is the whole of
//! its process, and a package has no other program that its tests can start.

use std::{
    ffi::OsString,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idem_core::{
    BoxError, Handler, HandlerError, Message, Source, SourceError, Store, Tx,
    handler::{BatchAnswer, BatchHandler},
    outbox::{CloudEvents, EventError, EventPublisher, OutgoingEvent},
    source::{Attached, Behind, Received, Settle, Settled, SourceCapabilities},
};
use idem_service::{Broker, Built, Own};
use idem_testkit::memory::{MemoryHandle, RemoteBroker, RemotePublisher, RemoteSource};
use ledger::{Purchase, rig::NoFlags};

/// The arguments of the worker, as a JSON list.
pub(crate) const ARGUMENTS: &str = "WORKER_ARGUMENTS";

/// A customer whose purchases are never done.
pub(crate) const STUCK: &str = "stuck";

/// The same, with the thread blocked.
pub(crate) const BLOCKED: &str = "blocked";

/// The log line of a handler that has such a purchase.
pub(crate) const IN_HANDLER: &str = "the handler does not return";

/// The log line of the set-based handler.
pub(crate) const SET_BASED: &str = "a whole batch at once";

/// Runs the worker in a process that [`crate::process`] has started, and never returns there.
#[test]
fn worker_process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = serde_json::from_str(&arguments).expect("a list of texts");
    let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
    std::process::exit(ledger::rig::run_around::<Memory, NoFlags, _>(arguments, Slow).code().into());
}

/// A broker on a socket; this is all that a worker on another broker has to add.
#[derive(Debug, clap::Args)]
pub(crate) struct Memory {
    /// Where the broker listens
    #[arg(long, env = "MEMORY_SOCKET")]
    socket: String,
    /// The queue that is consumed
    #[arg(long, env = "MEMORY_QUEUE", default_value = "orders")]
    queue: String,
    /// Publish dead letters to this queue too
    #[arg(long)]
    dead_letter_queue: Option<String>,
    /// A secret
    #[arg(long, hide_env_values = true, value_parser = clap::value_parser!(u32))]
    secret: Option<u32>,
    /// Say that a whole part of the queue has one ordering key
    #[arg(long)]
    ordered_by_part: bool,
    /// Let nothing bring events anywhere
    #[arg(long)]
    deaf: bool,
    /// Panic at `build`, at `receive` or at `second-receive`, once something was received
    #[arg(long)]
    panic_at: Option<String>,
}

impl Broker for Memory {
    type Source = Panicking;
    type Publisher = RemotePublisher;

    const VARIABLES: &'static str = "MEMORY_";

    async fn build(self) -> Result<Built<Panicking, RemotePublisher>, BoxError> {
        if self.queue.is_empty() {
            return Err("--queue is empty, but it must be the name of a queue".into());
        }
        assert_ne!(self.panic_at.as_deref(), Some("build"), "as asked for");
        let publisher = self.dead_letter_queue.map(|queue| RemotePublisher::new(&self.socket, &queue));
        let source = RemoteSource::connect(&self.socket, &self.queue).await;
        let source = Panicking {
            source,
            at: self.panic_at.unwrap_or_default(),
            received: AtomicBool::new(false),
            ordered_by_part: self.ordered_by_part,
        };
        let built = Built::new(source).publisher(publisher);
        if self.deaf {
            return Ok(built);
        }
        Ok(built.events(move |queue, cloud_events| {
            let (broker, queue) = (RemoteBroker::new(&self.socket), queue.to_owned());
            Ok(Arc::new(Telling { broker, queue, cloud_events }))
        }))
    }

    fn place(&self) -> Vec<(&'static str, String)> {
        vec![("socket", self.socket.clone()), ("queue", self.queue.clone())]
    }

    fn own(&self, destination: &str) -> Option<Own> {
        let is_dead = self.dead_letter_queue.as_deref() == Some(destination);
        (self.queue == destination)
            .then_some(Own::Source("--queue"))
            .or(is_dead.then_some(Own::DeadLetters("--dead-letter-queue")))
    }

    fn partitions(_: &Panicking) -> Option<Vec<Behind>> {
        Some(vec![Behind::new("orders/0", Some(3))])
    }
}

/// Brings events to a queue.
struct Telling {
    broker: RemoteBroker,
    queue: String,
    cloud_events: CloudEvents,
}

#[async_trait::async_trait]
impl EventPublisher for Telling {
    async fn publish_events(&self, events: &[&OutgoingEvent]) -> Vec<Result<(), EventError>> {
        let message = |event: &&OutgoingEvent| {
            let wire = self.cloud_events.on_wire(event, "ce_");
            Message::new(wire.payload).with_headers(wire.headers)
        };
        let messages: Vec<Message> = events.iter().map(message).collect();
        match self.broker.publish(&self.queue, &messages).await {
            Ok(_) => events.iter().map(|_| Ok(())).collect(),
            Err(error) => {
                let why = error.to_string();
                events.iter().map(|_| Err(EventError::unconfirmed(why.clone()).uncounted())).collect()
            }
        }
    }

    async fn look(&self) -> Result<(), EventError> {
        let looked = self.broker.publish(&self.queue, &[]).await;
        let refused = |error| EventError::Refused { problem: format!("{error}"), cure: "Create the queue".to_owned() };
        looked.map(|_| ()).map_err(refused)
    }
}

/// A source with a bug, where that is asked for.
#[derive(Debug)]
pub(crate) struct Panicking {
    source: RemoteSource,
    at: String,
    received: AtomicBool,
    ordered_by_part: bool,
}

impl Source for Panicking {
    type Handle = MemoryHandle;

    fn capabilities(&self) -> SourceCapabilities {
        self.source.capabilities().ordered_by_part(self.ordered_by_part)
    }

    async fn attach(&self) -> Result<Attached, SourceError> {
        self.source.attach().await
    }

    async fn receive(&self, max: usize) -> Result<Received<MemoryHandle>, SourceError> {
        assert_ne!(self.at, "receive", "as asked for");
        let received = self.source.receive(max).await;
        if matches!(&received, Ok(Received::Deliveries(deliveries)) if !deliveries.is_empty()) {
            let is_second = self.received.swap(true, Ordering::Relaxed);
            assert!(!is_second || self.at != "second-receive", "as asked for");
        }
        received
    }

    async fn settle(&self, settlements: Vec<(MemoryHandle, Settle)>) -> Vec<Settled> {
        self.source.settle(settlements).await
    }

    async fn is_idle(&self) -> bool {
        self.source.is_idle().await
    }

    fn stop(&self) {
        self.source.stop();
    }

    async fn close(&self, deadline: Duration) {
        self.source.close(deadline).await;
    }
}

/// A handler that does not return from some purchases.
struct Slow<H>(H);

impl<S: Store, H: Handler<S>> Handler<S> for Slow<H> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, S>) -> Result<(), HandlerError> {
        match Purchase::read(message)?.customer.as_str() {
            STUCK => {
                tracing::info!("{IN_HANDLER}");
                std::future::pending().await
            }
            BLOCKED => {
                tracing::info!("{IN_HANDLER}");
                // No other thread comes to the barrier.
                std::sync::Barrier::new(2).wait();
                Ok(())
            }
            _ => {
                tracing::debug!("a purchase");
                self.0.handle(message, tx).await
            }
        }
    }
}

impl<S: Store, H: BatchHandler<S>> BatchHandler<S> for Slow<H> {
    async fn handle_batch(&self, messages: &[&Message], tx: &mut Tx<'_, S>) -> Result<BatchAnswer, HandlerError> {
        tracing::info!("{SET_BASED}");
        self.0.handle_batch(messages, tx).await
    }
}
