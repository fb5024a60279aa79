//! [`DedupConsumer`]: decides for each message whether it is new, and runs the handler where it is.

pub(crate) mod builder;
mod coalesce;
mod controls;
pub(crate) mod set_aside;

use std::{fmt, sync::Arc};

pub use self::{
    builder::DedupConsumerBuilder,
    set_aside::{Keep, SetAside},
};
pub use crate::{
    outcome::{ConflictKind, Failure},
    pause::Pause,
    unit::answers::Decided,
};

use crate::{
    consumer::coalesce::SharedUnits,
    error::StoreError,
    key::KeySource,
    message::Message,
    names::ConsumerName,
    outcome::Decision,
    spawn,
    store::{Store, shared::IntoStore},
    unit::{alone, answers::Answers, engine::Engine, session::OwnSession},
};

/// Decides for each message whether it is new, a duplicate or a conflict, and runs the handler in the transaction that
/// records the key.
///
/// It stands alone for people who keep their own receive loop: it decides, and neither waits, retries nor publishes.
/// A [`Worker`](crate::Worker) adds the broker, lanes, retries, dead letters, settling and shutdown. Cloning is cheap,
/// and clones share everything.
pub struct DedupConsumer<S: Store> {
    pub(crate) engine: Arc<Engine<S>>,
    /// The calls that wait for a transaction in common, where they may have one.
    coalesce: Option<Arc<SharedUnits>>,
}

impl<S: Store> Clone for DedupConsumer<S> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine), coalesce: self.coalesce.clone() }
    }
}

impl<S: Store> fmt::Debug for DedupConsumer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupConsumer").field("name", &self.engine.name).finish_non_exhaustive()
    }
}

impl<S: Store> DedupConsumer<S> {
    /// A consumer of this name on this store, or on an [`Arc`] of one that others use too. The name scopes its keys: two consumers
    /// each handle every message.
    pub fn builder(store: impl IntoStore<S>, name: &str) -> DedupConsumerBuilder<S> {
        DedupConsumerBuilder::new(store.into_store(), name)
    }

    /// How long a handler may take for one message.
    #[must_use]
    pub fn handler_deadline(&self) -> std::time::Duration {
        self.engine.settings.handler_deadline
    }

    /// The consumer's name.
    #[must_use]
    pub fn name(&self) -> &ConsumerName {
        &self.engine.name
    }

    /// Finds the keys of its messages.
    #[must_use]
    pub fn key_source(&self) -> Arc<dyn KeySource> {
        Arc::clone(&self.engine.keys)
    }

    /// Checks the schema and registers the consumer. [`process`](Self::process) does it at its first call; calling it
    /// before finds a wrong set-up at start-up.
    ///
    /// # Errors
    /// [`StoreError`] with the cure in its text.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn start(&self) -> Result<(), StoreError> {
        self.engine.register(None).await.map(|_| ())
    }

    /// Decides for each of `messages`, in order, and handles those that are new, on a connection of the consumer's
    /// own. Gives each message back with its decision, in the order given, so that a message without a proof can be handed
    /// back to the broker or kept.
    ///
    /// Equal keys within one call are folded: the first leads, and the others are decided by its outcome. A message
    /// whose leader failed for now is [`Decision::Busy`].
    ///
    /// New messages of one call share one transaction where the handler allows that, so their number is the caller's batch size. At most
    /// `lanes` calls run at once; the others wait their turn, for as long as it takes.
    ///
    /// # Errors
    /// Only where the consumer could not be registered, which [`start`](Self::start) does before; the fate of single
    /// messages is in their decisions. A database that is down is the [failure](crate::consumer::Failure) of every message that it
    /// could not serve, of class [`Infrastructure`](crate::ErrorClass::Infrastructure). On an error the messages are not given
    /// back: they come again from the broker.
    ///
    /// # Cancel safety
    /// A task finishes the work that a dropped call has begun. The messages may then have been handled; hand them in again
    /// to learn it.
    pub async fn process(&self, messages: impl IntoIterator<Item = Message>) -> Result<Vec<Decided>, StoreError> {
        let messages = messages.into_iter().collect();
        self.engine.register(None).await?;
        let mut own = OwnSession::of(&self.engine).await;
        Ok(spawn::finished(async move { alone::process(&own.engine, &mut own.session, messages, None).await }).await)
    }

    /// The same with the result of each message that was handled now or before, as its handler has
    /// [set](crate::Tx::set_result) it. That of a duplicate is read with its record.
    ///
    /// # Errors
    /// As for [`process`](Self::process), and where the consumer does not [keep](DedupConsumerBuilder::keep_results) results.
    ///
    /// # Cancel safety
    /// As for [`process`](Self::process).
    pub async fn process_with_results(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Decided>, StoreError> {
        if self.engine.publishing.result_bytes_max.is_none() {
            let problem = format!("consumer {} keeps no results", self.engine.name);
            return Err(StoreError::refused(problem, "Build it with .keep_results(RESULT_BYTES_MAX)"));
        }
        let messages = messages.into_iter().collect();
        self.engine.register(None).await?;
        let mut own = OwnSession::of(&self.engine).await;
        Ok(spawn::finished(async move {
            let mut answers = Answers::new(None, false);
            alone::process(&own.engine, &mut own.session, messages, Some(&mut answers)).await
        })
        .await)
    }

    /// The same for one message, which may [share its unit](DedupConsumerBuilder::coalesce_calls).
    ///
    /// # Errors
    /// As for [`process`](Self::process).
    ///
    /// # Cancel safety
    /// As for [`process`](Self::process).
    pub async fn process_one(&self, message: Message) -> Result<Decided, StoreError> {
        self.engine.register(None).await?;
        let item = match self.engine.identify(message, None).await {
            Ok(item) => item,
            Err(rejected) => {
                let decision = Decision::Failed(rejected.failure);
                return Ok(Decided { message: rejected.message, decision, result: None });
            }
        };
        let item = match &self.coalesce {
            Some(shared) => match coalesce::process(&self.engine, shared, item).await? {
                Ok(decided) => return Ok(decided),
                Err(item) => item,
            },
            None => item,
        };
        let mut own = OwnSession::of(&self.engine).await;
        Ok(spawn::finished(async move {
            let decision = alone::decide_one(&own.engine, &mut own.session, &item, None).await;
            Decided { message: item.message, decision, result: None }
        })
        .await)
    }

    /// The same as [`process`](Self::process) on a connection that the caller hands over. A session comes back with the
    /// messages: the caller's, or one that was opened in its place because the caller's broke on the way; `None` where the
    /// last one broke too.
    ///
    /// # Errors
    /// As for [`process`](Self::process); the session is then closed.
    ///
    /// # Cancel safety
    /// As for [`process`](Self::process); the session is closed when the work is done.
    pub async fn process_on(
        &self,
        session: S::Session,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<(Option<S::Session>, Vec<Decided>), StoreError> {
        let messages = messages.into_iter().collect();
        self.engine.register(None).await?;
        let engine = Arc::clone(&self.engine);
        Ok(spawn::finished(async move {
            let mut session = Some(session);
            let decided = alone::process(&engine, &mut session, messages, None).await;
            (session, decided)
        })
        .await)
    }
}
