//! The user's handler, with something going wrong around it.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use idem_core::{Handler, HandlerError, Message, Tx, failpoint, internal::TypePlace, scratch::Scratch};
use tokio::time::Instant;

/// The failpoint of a handler that waits for something.
pub(super) const HANDLER_WAITS: &str = "handler_waits";

/// How long a transaction stays open, so that others meet it.
const LINGER: Duration = Duration::from_millis(20);

/// How long one stays open at most until the first meeting of all: on a busy machine another worker may take its time to begin.
const MEETS_MAX: Duration = Duration::from_secs(10);

/// The part of the handler's own deadline after which nothing holds a run any longer. The rest is for the handler, and for one that waits
/// for it.
const HELD_FOR: u32 = 4;

/// A handler that was not polled for so long waits for the transaction that it has met.
const RESTS_FOR: Duration = Duration::from_millis(500);

/// The fault in one run of the handler.
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
    /// The same, and the first one's stays open until another run of the handler has met it: that has done all it does too, or waits
    /// for it.
    Meet,
    /// Every statement of it fails.
    Spoil,
    /// The process comes by [`HANDLER_WAITS`] once it has waited so often.
    WaitAt(u32),
}

type Plan = dyn Fn(&str, u32) -> Act + Send + Sync;

/// The faults, by the message's key and the number of the run, from 1; and the runs that were seen.
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
    /// The keys of which a run did not end within the handler's deadline.
    late: Vec<String>,
    /// The deadline of the handler, once a consumer has been made.
    deadline: Option<Duration>,
    /// How long the longest run took to which nothing was done.
    pub(super) slowest: Duration,
    meetings: Meetings,
}

/// Of runs that are to meet.
#[derive(Debug, Default)]
struct Meetings {
    /// Those whose transactions are open.
    open: u32,
    /// Those of them that have not done all they do.
    at_work: u32,
    /// When one of those was last polled.
    moved_at: Option<Instant>,
    /// Whether two have met.
    happened: bool,
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

impl Rig {
    pub(super) fn has_deadline(&self, deadline: Duration) {
        self.seen().deadline = Some(deadline);
    }

    /// Says which run went beyond the handler's deadline, if one did.
    pub(super) fn told_late(&self) -> Option<String> {
        let seen = self.seen();
        let (key, deadline) = (seen.late.first()?, seen.deadline?);
        Some(format!(
            ". A run of the handler for message {key} did not end within its deadline of {deadline:?} and was rolled back. Is the handler \
             slower than that, or does it wait for a lock? `handler_deadline` of the consumer sets the deadline"
        ))
    }

    /// How long a run may be held that began at `begun`.
    fn held_for(&self, begun: Instant, wanted: Duration) -> Duration {
        let until = self.seen().deadline.map_or(wanted, |deadline| deadline / HELD_FOR);
        wanted.min(until.saturating_sub(begun.elapsed()))
    }

    async fn meets(&self, handler: impl Future<Output = Result<(), HandlerError>>) -> Result<(), HandlerError> {
        let begun = Instant::now();
        let mut open = Open::of(self);
        let mut handler = pin!(handler);
        let answer = poll_fn(|context| {
            self.seen().meetings.moved_at = Some(Instant::now());
            handler.as_mut().poll(context)
        })
        .await;
        open.has_worked();
        answer?;
        let (since, held_for) = (Instant::now(), self.held_for(begun, MEETS_MAX));
        loop {
            tokio::time::sleep(LINGER.min(held_for)).await;
            let meetings = &mut self.seen().meetings;
            let rests = meetings.at_work == 0 || meetings.moved_at.is_none_or(|at| at.elapsed() >= RESTS_FOR);
            meetings.happened |= meetings.open > 1 && rests;
            if meetings.happened || since.elapsed() >= held_for {
                return Ok(());
            }
        }
    }
}

/// A run whose transaction is open; it may be dropped at any await.
struct Open<'r> {
    rig: &'r Rig,
    is_at_work: bool,
}

impl<'r> Open<'r> {
    fn of(rig: &'r Rig) -> Self {
        let meetings = &mut rig.seen().meetings;
        meetings.open += 1;
        meetings.at_work += 1;
        Self { rig, is_at_work: true }
    }

    fn has_worked(&mut self) {
        if std::mem::replace(&mut self.is_at_work, false) {
            self.rig.seen().meetings.at_work -= 1;
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.has_worked();
        self.rig.seen().meetings.open -= 1;
    }
}

/// A run of the handler; it may be dropped at any await.
struct Run<'r> {
    rig: &'r Rig,
    key: &'r str,
    begun: Instant,
    has_ended: bool,
}

impl<'r> Run<'r> {
    fn of(rig: &'r Rig, key: &'r str) -> Self {
        Self { rig, key, begun: Instant::now(), has_ended: false }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut seen = self.rig.seen();
        // The engine's deadline began a moment before the run.
        if !self.has_ended && seen.deadline.is_some_and(|deadline| self.begun.elapsed() >= deadline * 9 / 10) {
            seen.late.push(self.key.to_owned());
        }
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
        let mut run = (act != Act::Hang).then(|| Run::of(&self.rig, &key));
        let answer = self.act(act, &key, message, tx).await;
        run.iter_mut().for_each(|run| run.has_ended = true);
        answer?;
        drop(run);
        self.rig.seen().done.push(key);
        Ok(())
    }

    fn dispatches_by(&self) -> Option<TypePlace> {
        self.handler.dispatches_by()
    }

    fn calls_outside(&self, message: Option<&Message>) -> bool {
        self.handler.calls_outside(message)
    }
}

impl<D: Scratch, H: Handler<D::Store>> Rigged<D, H> {
    async fn act(&self, act: Act, key: &str, message: &Message, tx: &mut Tx<'_, D::Store>) -> Result<(), HandlerError> {
        let begun = Instant::now();
        match act {
            Act::Pass => {
                self.handler.handle(message, tx).await?;
                let seen = &mut self.rig.seen();
                seen.slowest = seen.slowest.max(begun.elapsed());
            }
            Act::Refuse => return Err(HandlerError::permanent("prove has this message fail")),
            // Without the panic hook, which would print it.
            Act::Panic => std::panic::resume_unwind(Box::new("prove has this message panic")),
            Act::Hang => std::future::pending::<()>().await,
            Act::FailAfter => {
                self.handler.handle(message, tx).await?;
                return Err("prove has the handler fail after all it does".into());
            }
            Act::Linger => {
                self.handler.handle(message, tx).await?;
                tokio::time::sleep(self.rig.held_for(begun, LINGER)).await;
            }
            Act::Meet => self.rig.meets(self.handler.handle(message, tx)).await?,
            Act::Spoil => {
                self.databases.spoil(tx).await;
                let answer = self.handler.handle(message, tx).await;
                self.databases.mend(tx).await;
                if answer.is_ok() {
                    self.rig.seen().swallowed.push(key.to_owned());
                }
                return Err(HandlerError::permanent("prove has every statement of this message fail"));
            }
            Act::WaitAt(waits) => waits_at(self.handler.handle(message, tx), waits).await?,
        }
        Ok(())
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
