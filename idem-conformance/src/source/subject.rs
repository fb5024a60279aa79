//! The fixture that the suite needs of a source under test.

use std::future::Future;

use idem_core::{Message, Source, SourceError};

use idem_testkit::memory::Revoke;

/// The fixture cannot do this, as its [`Features`] say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported;

/// The promises and limits of the broker, and the actions of the fixture. Everything that [`SourceCapabilities`] says is not
/// repeated here.
///
/// [`SourceCapabilities`]: idem_core::source::SourceCapabilities
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Messages carry an ordering key and arrive in its order.
    pub ordered: bool,
    /// Single messages are acknowledged, rather than positions.
    pub individual_settle: bool,
    /// A released message can be delayed by the broker. Without it the delay counts as zero.
    pub delayed_release: bool,
    /// A header name may repeat, and the order among all headers is kept.
    pub repeated_headers: bool,
    /// A header may be without a value.
    pub null_headers: bool,
    /// A header's value may be any bytes.
    pub binary_headers: bool,
    /// A message may be without a payload.
    pub tombstones: bool,
    /// A payload may be empty.
    pub empty_payloads: bool,
    /// A payload may be any bytes.
    pub binary_payloads: bool,
    /// A payload may have 1 MiB.
    pub payloads_of_one_mebibyte: bool,
    /// A message may have a record key.
    pub record_keys: bool,
    /// The producer may give a message its id.
    pub message_ids: bool,
    /// The broker counts deliveries.
    pub counts_attempts: bool,
    /// Two sources on the queue both get messages. Without it, as with a topic of one partition, one gets all.
    pub shares_messages: bool,
    /// A source sees what others of its group hold unsettled.
    pub sees_others: bool,
    /// [`SourceUnderTest::revoke`] works.
    pub revokes: bool,
    /// [`SourceUnderTest::disconnect`] works.
    pub disconnects: bool,
    /// [`SourceUnderTest::hang`] works.
    pub hangs: bool,
    /// [`SourceUnderTest::expire`] works.
    pub expires: bool,
}

impl Default for Features {
    /// A queue without order that carries everything, delays what is released and counts deliveries, and a fixture that can
    /// make it do nothing.
    fn default() -> Self {
        Self {
            ordered: false,
            individual_settle: true,
            delayed_release: true,
            repeated_headers: true,
            null_headers: true,
            binary_headers: true,
            tombstones: true,
            empty_payloads: true,
            binary_payloads: true,
            payloads_of_one_mebibyte: true,
            record_keys: true,
            message_ids: true,
            counts_attempts: true,
            shares_messages: true,
            sees_others: true,
            revokes: false,
            disconnects: false,
            hangs: false,
            expires: false,
        }
    }
}

macro_rules! features {
    ($($name:ident)*) => {$(
        #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        #[must_use]
        pub const fn $name(mut self, yes: bool) -> Self {
            self.$name = yes;
            self
        }
    )*};
}

impl Features {
    features! {
        ordered individual_settle delayed_release repeated_headers null_headers binary_headers tombstones empty_payloads binary_payloads payloads_of_one_mebibyte
        record_keys message_ids counts_attempts shares_messages sees_others revokes disconnects hangs expires
    }
}

/// A fresh, empty queue or topic, with a group of its own, and a way to make sources on it.
///
/// Dropping it should remove what it created.
pub trait SourceUnderTest: Send + Sync {
    /// The source that is tested.
    type Source: Source;

    /// The broker's features and the fixture's.
    fn features(&self) -> Features;

    /// Publishes a message by the broker's own means, not through idem, and waits until the broker has it. Its record
    /// key decides the order where there is one, and its ordering key is not set.
    ///
    /// # Errors
    /// Where the broker cannot carry the message as it is. Never change it to make it fit.
    fn publish(&self, message: Message) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// A source on the queue, in the group, not attached.
    fn source(&self) -> impl Future<Output = Self::Source> + Send;

    /// The same as [`source`](Self::source), but with settlements sent to the broker as late as settings allow, so that only
    /// [`Source::flush`] sends them in time. Needed for sources that have such settings.
    fn source_that_tells_late(&self) -> impl Future<Output = Self::Source> + Send {
        self.source()
    }

    /// A source on another queue that exists.
    fn source_of_another_queue(&self) -> impl Future<Output = Self::Source> + Send;

    /// A source on a queue that does not exist.
    fn source_of_an_unknown_queue(&self, name: &str) -> impl Future<Output = Self::Source> + Send;

    /// Ends a source as the death of its process would: without a word to the broker. Returns when the broker knows.
    fn crash(&self, source: Self::Source) -> impl Future<Output = ()> + Send;

    /// How many messages are not settled for good: waiting, delayed or in flight. Where the broker reports it with a delay,
    /// wait until it is `expected` or a few seconds are over.
    fn unsettled(&self, expected: u64) -> impl Future<Output = u64> + Send;

    /// Waits until so many sources that are being received from have their parts of the queue, and keep them. Only a
    /// broker that hands out assignments has to wait.
    fn formed(&self, _sources: usize) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Ends the assignment of every source of the group, each of which gets a new one.
    fn revoke(&self, _how: Revoke) -> impl Future<Output = Result<(), Unsupported>> + Send {
        async { Err(Unsupported) }
    }

    /// Cuts the connection of every source, which may connect again.
    fn disconnect(&self) -> impl Future<Output = Result<(), Unsupported>> + Send {
        async { Err(Unsupported) }
    }

    /// Makes the broker answer nothing to its sources.
    fn hang(&self) -> impl Future<Output = Result<(), Unsupported>> + Send {
        async { Err(Unsupported) }
    }

    /// Makes it answer again.
    fn answer_again(&self) -> impl Future<Output = Result<(), Unsupported>> + Send {
        async { Err(Unsupported) }
    }

    /// Lets the lease of every delivery pass, while its source still holds it.
    fn expire(&self) -> impl Future<Output = Result<(), Unsupported>> + Send {
        async { Err(Unsupported) }
    }
}
