//! The user's handler, with something going wrong around it.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use idem_core::{Handler, HandlerError, Message, Tx, TypePlace, failpoint, scratch::Scratch};

/// The failpoint of a handler that waits for something.
pub(super) const HANDLER_WAITS: &str = "handler_waits";

/// How long a transaction stays open, so that others meet it.
const LINGER: Duration = Duration::from_millis(20);

/// What goes wrong in one run of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing.
    Pass,
    /// It fails for good, and has not begun.
    Refuse,
    /// It panics, and has not begun.
    Panic,
    /// It never answers, and has not begun.
    Hang,
    /// It has done all it does, and then fails.
    FailAfter,
    /// It has done all it does, and its transaction stays open for a moment.
    Linger,
    /// Every statement of it fails.
    Spoil,
    /// The process comes by [`HANDLER_WAITS`] once it has waited so often.
    WaitAt(u32),
}

type Plan = dyn Fn(&str, u32) -> Act + Send + Sync;

/// What goes wrong, by the message's key and the number of the run, from 1; and what was seen.
pub(super) struct Rig {
    plan: Box<Plan>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    runs: BTreeMap<String, u32>,
    /// The keys whose run ended well, in that order.
    pub(super) done: Vec<String>,
    /// The keys whose handler answered `Ok` although its statements failed.
    pub(super) swallowed: Vec<String>,
}

impl Rig {
    pub(super) fn new(plan: impl Fn(&str, u32) -> Act + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { plan: Box::new(plan), seen: Mutex::default() })
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, key: &str) -> Act {
        let run = {
            let mut seen = self.seen();
            let run = seen.runs.entry(key.to_owned()).or_default();
            *run += 1;
            *run
        };
        (self.plan)(key, run)
    }
}

/// The handler of a process.
pub(super) struct Rigged<D, H> {
    pub(super) handler: H,
    pub(super) rig: Arc<Rig>,
    pub(super) databases: Arc<D>,
}

/// The key under which the engine runs a message.
fn key_of(message: &Message) -> String {
    message.key().map(|key| key.as_str().to_owned()).unwrap_or_default()
}

impl<D: Scratch, H: Handler<D::Store>> Handler<D::Store> for Rigged<D, H> {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, D::Store>) -> Result<(), HandlerError> {
        let key = key_of(message);
        let act = self.rig.next(&key);
        match act {
            Act::Pass => self.handler.handle(message, tx).await?,
            Act::Refuse => return Err(HandlerError::permanent("prove has this message fail")),
            // Without the panic hook, which would print it.
            Act::Panic => std::panic::resume_unwind(Box::new("prove has this message panic")),
            Act::Hang => std::future::pending().await,
            Act::FailAfter => {
                self.handler.handle(message, tx).await?;
                return Err("prove has the handler fail after all it does".into());
            }
            Act::Linger => {
                self.handler.handle(message, tx).await?;
                tokio::time::sleep(LINGER).await;
            }
            Act::Spoil => {
                self.databases.spoil(tx).await;
                let answer = self.handler.handle(message, tx).await;
                self.databases.mend(tx).await;
                if answer.is_ok() {
                    self.rig.seen().swallowed.push(key);
                }
                return Err(HandlerError::permanent("prove has every statement of this message fail"));
            }
            Act::WaitAt(waits) => waits_at(self.handler.handle(message, tx), waits).await?,
        }
        self.rig.seen().done.push(key);
        Ok(())
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        self.handler.dispatches_by()
    }
}

/// Comes by the failpoint when the handler waits for the time that is given.
async fn waits_at(handler: impl Future<Output = Result<(), HandlerError>>, at: u32) -> Result<(), HandlerError> {
    let (mut handler, mut waits) = (pin!(handler), 0);
    let ended = poll_fn(|context| match handler.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => {
            waits += 1;
            if waits == at { Poll::Ready(None) } else { Poll::Pending }
        }
    });
    match ended.await {
        Some(answer) => answer,
        None => {
            failpoint::hit(HANDLER_WAITS).await.map_err(|injected| HandlerError::from(injected.to_string()))?;
            handler.await
        }
    }
}
