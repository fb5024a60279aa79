//! A broker in this process: queues that do what brokers do, and misbehave on request.
//!
//! It redelivers what was released, what its consumer did not settle before its lease passed or before it went away,
//! keeps the order within an ordering key or promises none, delays, counts deliveries, and sets a message aside at its
//! delivery limit. [`Faults`] make it lose acknowledgements, answer in parts, deliver twice, hang, and so on. A
//! duplicate or a conflict from the producer is simply another [`publish`](Queue::publish).
//!
//! Everything is in memory and bounded ([`QueueOptions`]); random choices come from a seed. Time is tokio's, so a test
//! with a paused clock need not wait for a lease.
//!
//! ```
//! use idem_core::Message;
//! use idem_testkit::memory::{Broker, Faults, Order, QueueOptions, Rate};
//!
//! let broker = Broker::new();
//! let orders = broker.create("orders", QueueOptions::default().order(Order::ByKey).seed(7))?;
//! orders.misbehave(Faults { resurrected: Rate::OneIn(10), ..Faults::default() });
//! orders.publish(Message::new("1 book").with_record_key("customer-1").with_header("idempotencykey", "order-1"))?;
//! assert_eq!(orders.stats().ready, 1);
//! # Ok::<(), idem_core::SourceError>(())
//! ```
//!
//! [`Broker::serve`] puts it on a Unix socket, so that it outlives a consumer that is killed: see [`RemoteSource`].

mod broker;
mod client;
mod connection;
mod local;
mod options;
mod publisher;
mod ready;
mod remote;
mod serve;
mod session;
mod state;
mod stats;
mod wire;

pub use self::{
    broker::{Broker, Queue, Revoke},
    client::MemoryHandle,
    local::MemorySource,
    options::{Faults, Order, QueueOptions, Rate},
    publisher::MemoryPublisher,
    remote::{RemoteBroker, RemotePublisher, RemoteSource},
    serve::Server,
    stats::{History, Stats},
};
