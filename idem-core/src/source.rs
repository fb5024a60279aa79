//! For those who write a source: the edge to the broker, which delivers messages and gets their settlements. Users of a
//! source need [`Source`] alone, which the crate's root has too.

pub(crate) mod behind;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::error::SourceError;
use crate::message::Message;
pub use crate::outcome::{Durable, Settle};

/// One hand-over of a message by the broker.
#[derive(Debug)]
pub struct Delivery<H> {
    /// The message.
    pub message: Message,
    /// Which hand-over this is by the broker's own count, from 1; 1 where it does not count. It informs; idem's own
    /// count of attempts decides.
    pub attempt: u32,
    /// Whether the broker says that it may have delivered this message before.
    pub redelivered: bool,
    /// Whether there is reason to think that an earlier delivery ended with the process that had it. Such a message runs
    /// alone, one at a time in the whole process, and each attempt is counted before it begins. A message that a worker gave
    /// back at a stop is no reason: else its successor in a deploy would work off the messages that were in hand at the pace
    /// of one lane.
    pub suspect: bool,
    /// The assignment under which it was delivered.
    pub assignment: Assignment,
    /// The handle with which the source settles it.
    pub handle: H,
}

/// The unit that a source may take away as a whole: a Kafka partition's assignment, a channel's epoch. A source whose
/// deliveries are only ever taken away one by one uses [`Assignment::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Assignment(pub u64);

/// The answer to [`Source::receive`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Received<H> {
    /// Messages, in the broker's order.
    Deliveries(Vec<Delivery<H>>),
    /// Assignments that end.
    Revoked(Revocation),
    /// The source has stopped, and everything it received has been handed over.
    End,
}

/// Assignments that end. Core drops messages that it has not begun; whether it also waits depends on [`Revocation::drained`].
#[derive(Debug)]
pub struct Revocation {
    /// Those that end.
    pub assignments: Vec<Assignment>,
    /// `Some` while the assignment is still held: running messages are finished and settled first, and then this is answered; a
    /// dropped sender counts as an answer. `None` when it is lost already: results of its deliveries are of no use to the
    /// broker.
    pub drained: Option<oneshot::Sender<()>>,
}

/// The outcome of one settlement. Neither `Stale` nor `Unknown` is an error: the message comes back and is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The broker took it.
    Settled,
    /// The handle belongs to an assignment, channel or receipt that is over; nothing was sent.
    Stale,
    /// It was sent, and whether the broker took it is not known.
    Unknown,
}

/// Facts that a source found out about the broker when it attached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Attached {
    /// Broker, cluster, topic or queue and group as one text, to which the consumer's name is bound.
    pub bound_to: String,
    /// The broker's address for spans, `host:port` or a host alone: the first where there are several.
    pub server: Option<String>,
    /// The name by which the broker knows this client.
    pub client_id: Option<String>,
    /// How long after its first delivery the broker may deliver a message again; `None` where there is no bound or it
    /// is not known.
    pub redelivery_horizon: Option<Duration>,
    /// How long a delivery may stay unsettled; core releases a message that it would hold longer.
    pub hold_max: Option<Duration>,
    /// After how many deliveries the broker itself removes a message; it must exceed our attempts.
    pub delivery_limit: Option<u32>,
    /// The largest payload that the broker takes, in bytes; `None` where it is not known. Core warns where that is more than
    /// it handles or keeps itself.
    pub message_bytes_max: Option<u64>,
    /// Warnings for a person, each with its cure. They are logged.
    pub warnings: Vec<String>,
}

impl Attached {
    /// Attached to `bound_to`, with nothing else known.
    #[must_use]
    pub fn new(bound_to: impl Into<String>) -> Self {
        Self { bound_to: bound_to.into(), ..Self::default() }
    }

    /// Warns of a connection without encryption to another machine than this one: an attacker in between can read
    /// passwords and messages, and change them. `hosts` are names or addresses, with or without a port.
    pub fn warn_of_plaintext<'h>(&mut self, hosts: impl IntoIterator<Item = &'h str>, cure: &str) {
        if let Some(host) = hosts.into_iter().find(|host| !is_this_machine(host)) {
            self.warnings.push(format!("the connection to the broker at {host} is in plaintext: {cure}"));
        }
    }
}

fn is_this_machine(host: &str) -> bool {
    // An address of version 6 has brackets where a port may follow.
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None if host.matches(':').count() == 1 => host.split(':').next().unwrap_or(host),
        None => host,
    };
    name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The capabilities of a source that the engine reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceCapabilities {
    /// Whether the broker marks redeliveries.
    pub marks_redelivery: bool,
    /// Whether everything of one part, such as a partition, has one ordering key, so that handlers have nothing to run at
    /// once. Refused with [`Concurrency::Pipelined`](crate::Concurrency::Pipelined).
    pub ordered_by_part: bool,
    /// Whether the broker counts messages that are held for long against their consumer, so that [`Source::pause`] ends
    /// the subscription. Core then also gives back messages that it has not begun.
    pub pauses: bool,
    /// Within which time a message should be settled, where one that waits here is kept from other workers that have time
    /// for it. Core takes in a few messages, and then as many as it settles in that time; those that wait for another
    /// attempt do not count. `None`: as many as the settings allow.
    pub settled_within: Option<Duration>,
}

impl SourceCapabilities {
    /// Nothing beyond delivering and settling messages.
    #[must_use]
    pub const fn minimal() -> Self {
        Self { marks_redelivery: false, ordered_by_part: false, pauses: false, settled_within: None }
    }

    /// Sets `marks_redelivery`.
    #[must_use]
    pub const fn marks_redelivery(mut self, yes: bool) -> Self {
        self.marks_redelivery = yes;
        self
    }

    /// Sets `ordered_by_part`.
    #[must_use]
    pub const fn ordered_by_part(mut self, yes: bool) -> Self {
        self.ordered_by_part = yes;
        self
    }

    /// Sets `pauses`.
    #[must_use]
    pub const fn pauses(mut self, yes: bool) -> Self {
        self.pauses = yes;
        self
    }

    /// Sets `settled_within`.
    #[must_use]
    pub const fn settled_within(mut self, time: Option<Duration>) -> Self {
        self.settled_within = time;
        self
    }
}

/// For how long a running source reports a refusal as an outage before it reports it as [`SourceError::Refused`], which
/// ends the worker: a queue may be declared anew by a deploy, rights take their time to be known everywhere, and a machine
/// that was suspended signs with an old clock for a moment. A start is refused at once.
pub const REFUSAL_GRACE: Duration = Duration::from_secs(30);

/// A broker's queue or topic, as one consumer sees it.
///
/// # Contract
/// 1. `receive` is called by one task at a time. It waits for messages, and answers early when [`Source::stop`] is
///    called; once all received messages are handed over, it answers [`Received::End`]. It is cancel safe: the messages
///    of a dropped call come with the next. `receive(0)` waits for a revocation or the end alone, because the broker's
///    deadline for a revocation runs also while there is no room for messages.
/// 2. A source that must keep talking to its broker does so on a task of its own, also while `receive` is not called.
/// 3. A message stays unsettled, and its delivery alive (visibility, heartbeats), until it is settled here, its
///    assignment ends or the broker's own limit passes.
/// 4. `settle` is single-use per handle. A handle of an assignment that is over is [`Settled::Stale`] and never
///    reaches the broker.
/// 5. A source loses nothing: every message that is not acknowledged comes back.
/// 6. The source reconnects by itself. `receive` fails only when a person must act, or to report that the broker has
///    been unreachable; it may then be called again. A connection that breaks ends its assignments: a source that names
///    assignments announces them as lost before it hands over deliveries of the next.
/// 7. A source that [pauses](SourceCapabilities::pauses) gives back messages that it has not handed over when
///    [`Source::pause`] is called, and hands over no message until [`Source::resume`]. Revocations and the end come as ever,
///    messages that were handed over can still be settled, and connections that break are made anew. To other sources both
///    calls mean nothing.
/// 8. Where `settle` only notes settlements that the broker gets later, as with positions, [`Source::flush`] answers `Ok`
///    once the broker has them: where the process dies right after it, no message comes back that was settled for good
///    before the call, except those that a position cannot skip past because an earlier message is not finished.
pub trait Source: Send + Sync + 'static {
    /// The broker's identity of one delivery, its epoch included.
    type Handle: Send + Sync + fmt::Debug + 'static;

    /// The capabilities of this source.
    fn capabilities(&self) -> SourceCapabilities;

    /// Connects, checks what the broker says of the queue or topic, and subscribes.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] to be retried until the start-up time-out, [`SourceError::Refused`] at once.
    ///
    /// # Cancel safety
    /// Core drops a call when the worker is stopped while it starts. [`Source::close`], or dropping the source, frees
    /// anything that it leaves behind.
    fn attach(&self) -> impl Future<Output = Result<Attached, SourceError>> + Send;

    /// The next messages, at most `max`, or another event; see the contract, number 1.
    ///
    /// # Errors
    /// See the contract, number 6.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost with a dropped call.
    fn receive(&self, max: usize) -> impl Future<Output = Result<Received<Self::Handle>, SourceError>> + Send;

    /// Settles deliveries with the broker, in this order. One answer each.
    ///
    /// # Cancel safety
    /// Not cancel safe: whether the broker took any of a dropped call's settlements is not known. Core drops one only where
    /// the worker itself is dropped or passes its drain deadline.
    fn settle(&self, settlements: Vec<(Self::Handle, Settle)>) -> impl Future<Output = Vec<Settled>> + Send;

    /// Waits until the broker has all settlements so far; see the contract, number 8. Core asks before it runs a message that
    /// may kill the process. A source whose [`settle`](Source::settle) reaches the broker keeps the default. Ends within
    /// seconds, also where the broker answers nothing.
    ///
    /// # Errors
    /// [`SourceError::Unavailable`] where the broker did not take them in time, or cannot take them now. It gets them
    /// later all the same.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped call loses nothing.
    fn flush(&self) -> impl Future<Output = Result<(), SourceError>> + Send {
        async { Ok(()) }
    }

    /// Whether messages that are settled would be delivered again because this one is not: where the broker keeps
    /// positions, one that was delivered before them. At a stop, and at the end of an assignment that is still held, core
    /// finishes such messages, as far as there is time, and gives the others back. A source that settles single messages
    /// keeps the default.
    fn holds_back(&self, _handle: &Self::Handle) -> bool {
        false
    }

    /// Whether this message, once it is settled, would be delivered again because another one is not: where the broker keeps
    /// positions, one that was delivered before it. Core lets such a message wait if it may have killed its process in each of its
    /// attempts. A source that settles single messages keeps the default.
    fn is_held_back(&self, _handle: &Self::Handle) -> bool {
        false
    }

    /// Whether the broker sends this source nothing more until one of the messages in its hands is settled. While the breaker is open,
    /// core then dead-letters the message that has failed last, because no other could be tried. A source whose broker has no such
    /// limit keeps the default.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether the queue is at its end for this consumer: attached, and every message that is not settled for good is in
    /// this source's own hands.
    fn is_idle(&self) -> impl Future<Output = bool> + Send;

    /// Whether the broker lets this source take part, after [`Source::attach`]: a member of a group has been given its share,
    /// which may be nothing. The worker counts as ready from then on. A source without such an admission keeps the default.
    fn takes_part(&self) -> bool {
        true
    }

    /// For how long the broker cannot be used for receiving; `None` while it can, as far as is known. It is shown as a
    /// gauge and in `/readyz`, and a line each minute says so.
    fn unreachable_for(&self) -> Option<Duration> {
        None
    }

    /// How many messages the broker has that this consumer has not settled, by part of the queue or topic: for people, as a gauge and on the
    /// page. It is asked every five seconds, beside the messages, and should answer within as much. A source that cannot know keeps the
    /// default, which is nothing.
    fn behind(&self) -> impl Future<Output = Vec<Behind>> + Send {
        async { Vec::new() }
    }

    /// Nothing is wanted for a while; see the contract, number 7.
    fn pause(&self) {}

    /// Messages are wanted again.
    fn resume(&self) {}

    /// Stops receiving; see the contract, number 1.
    fn stop(&self);

    /// Lets go of the broker. Unsettled deliveries return to it. Ends within `deadline`, whatever the broker does.
    fn close(&self, deadline: Duration) -> impl Future<Output = ()> + Send;
}

/// How far a consumer is behind in a part of its queue or topic.
///
/// ```
/// use idem_core::source::Behind;
///
/// let behind = Behind::new("orders/0", Some(3));
/// assert_eq!(behind.messages, Some(3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Behind {
    /// The part: a partition such as `orders/0`, or the queue's name.
    pub part: String,
    /// Messages in it that are not settled; `None` while that is not known.
    pub messages: Option<u64>,
}

impl Behind {
    /// So many messages of this part.
    #[must_use]
    pub fn new(part: impl Into<String>, messages: Option<u64>) -> Self {
        Self { part: part.into(), messages }
    }
}

/// A [`Source`], by value or in an [`Arc`] that its owner keeps a clone of: what [`Worker::builder`](crate::Worker::builder) takes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a source",
    note = "give a source by value, or an `Arc` of a source"
)]
pub trait IntoSource<B> {
    /// The source as it is shared.
    fn into_source(self) -> Arc<B>;
}

impl<B: Source> IntoSource<B> for B {
    fn into_source(self) -> Arc<B> {
        Arc::new(self)
    }
}

impl<B: Source> IntoSource<B> for Arc<B> {
    fn into_source(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s9_plaintext_to_another_machine_is_warned_of() {
        for (hosts, told) in [
            (&["localhost:9092", "127.0.0.1", "[::1]:9092", "::1"][..], None),
            (&["localhost:9092", "broker:9092"], Some("broker:9092")),
            (&["10.0.0.1"], Some("10.0.0.1")),
            (&["localhost.example.org"], Some("localhost.example.org")),
        ] {
            let mut attached = Attached::new("q");
            attached.warn_of_plaintext(hosts.iter().copied(), "use TLS");
            let expected = told.map(|host| format!("the connection to the broker at {host} is in plaintext: use TLS"));
            assert_eq!(attached.warnings.first().cloned(), expected, "{hosts:?}");
        }
    }
}
