//! [`prove`]: a handler put through what goes wrong in production, on a database of your own, in your `cargo test`.

mod broken;
mod course;
mod memory;
mod process;
mod reference;
mod rigged;
mod tables;

use std::{collections::BTreeSet, fmt, sync::Arc, thread, time::Duration};

use idem_core::{BoxError, Handler, Message, consumer::DedupConsumerBuilder, scratch::Scratch};
use tokio::{runtime, sync::oneshot, time::Instant};

pub use self::{
    broken::{NotProven, Promise, Proven},
    memory::MemoryScratch,
};
use self::{course::Course, process::Making};

/// Fewer leave no neighbours.
const MESSAGES_MIN: usize = 3;

/// Proves a handler: makes databases of its own, has the handler run in processes that die at every failpoint of the engine and
/// inside of the handler, among copies, conflicts, failing and hanging neighbours, beside another worker, with answers that are
/// lost; and compares every table of the application with what the messages leave where nothing goes wrong. Each message's effect
/// must be there exactly once.
///
/// `handler` makes the handler of a process. It is given the address of the current database, for a handler that has a
/// connection or pool of its own.
///
/// ```
/// use idem_core::{Handler, HandlerError, Message, Tx};
/// use idem_testkit::{MemoryScratch, MemoryStore, message, prove};
///
/// struct Ledger;
///
/// impl Handler<MemoryStore> for Ledger {
///     async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
///         let cents: u64 = message.json()?;
///         Ok(tx.connection().append("purchases", "cents", cents.to_string()).await?)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), idem_testkit::NotProven> {
/// let messages = [message("order-1", "250"), message("order-2", "990"), message("order-3", "5")];
/// let proven = prove(MemoryScratch, |_| Ledger).messages(messages).run().await?;
/// assert!(proven.kills > 15, "{proven}");
/// # Ok(())
/// # }
/// ```
///
/// It cannot see effects elsewhere, such as a call over HTTP. They happen at least once, see
/// [`Effects::Outside`](idem_core::Effects).
pub fn prove<D: Scratch, H: Handler<D::Store>>(
    databases: D,
    handler: impl Fn(&D::Address) -> H + Send + Sync + 'static,
) -> Proof<D, H> {
    Proof {
        making: Making {
            databases: Arc::new(databases),
            handler: Box::new(handler),
            configure: Box::new(|builder| builder),
        },
        messages: Vec::new(),
    }
}

/// The trials that [`prove`] will run.
#[must_use = "nothing is proved before it has run"]
pub struct Proof<D: Scratch, H> {
    making: Making<D, H>,
    messages: Vec<Message>,
}

impl<D: Scratch, H> fmt::Debug for Proof<D, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl<D: Scratch, H: Handler<D::Store>> Proof<D, H> {
    /// The messages that the handler is given: at least three that it takes, with different keys. A handful that differ in what
    /// the handler does is best.
    pub fn messages(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.messages = messages.into_iter().collect();
        self
    }

    /// Sets what the consumer has otherwise by default: its key source, its hash rules,
    /// [`Effects::Outside`](idem_core::Effects).
    pub fn consumer(
        mut self,
        configure: impl Fn(DedupConsumerBuilder<D::Store>) -> DedupConsumerBuilder<D::Store> + Send + Sync + 'static,
    ) -> Self {
        self.making.configure = Box::new(configure);
        self
    }

    /// Proves it, in a thread and a runtime of its own. Seconds on SQLite, tens of seconds on PostgreSQL.
    ///
    /// # Errors
    /// [`NotProven`]: the first promise that does not hold, with what in a handler does such a thing. The database in which that
    /// was seen is left for a look.
    ///
    /// # Cancel safety
    /// A dropped call lets the proof go on to its end.
    pub async fn run(self) -> Result<Proven, NotProven> {
        if self.messages.len() < MESSAGES_MIN {
            let text = format!("give it at least {MESSAGES_MIN} messages that the handler takes, by `messages`");
            return Err(NotProven::Unprovable(text));
        }
        let (answer, answered) = oneshot::channel();
        let prove = move || {
            // The receiver may be gone.
            let _ = answer.send(self.run_here());
        };
        let failed = |source: BoxError| NotProven::Failed { when: "it starts".to_owned(), source };
        thread::Builder::new().name("idem-prove".to_owned()).spawn(prove).map_err(|error| failed(error.into()))?;
        answered
            .await
            .unwrap_or_else(|_| Err(failed("the thread of the proof died; its panic is on standard error".into())))
    }

    fn run_here(self) -> Result<Proven, NotProven> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| NotProven::Failed { when: "it starts".to_owned(), source: error.into() })?;
        let (begun, proven) = (
            Instant::now(),
            Proven { databases: 0, kills: 0, died_at: BTreeSet::new(), not_compared: Vec::new(), took: Duration::ZERO },
        );
        let course = Course { making: self.making, messages: self.messages, slowest: Duration::ZERO, proven };
        runtime.block_on(course.run()).map(|proven| Proven { took: begun.elapsed(), ..proven })
    }
}
