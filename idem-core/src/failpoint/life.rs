//! A process inside a test: its tasks, which can die all at once.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use tokio::task::JoinHandle;

thread_local! {
    static CURRENT: RefCell<Option<Life>> = const { RefCell::new(None) };
}

/// A process inside a test. It owns every task that is spawned by its tasks, however deep, and [`kill`](Self::kill) ends all
/// of them between two polls, as the end of a process does: nothing of them runs any further, and their values are dropped
/// in the order in which the tasks were born. The broker and the store stand outside of it and go on.
///
/// Destructors run, unlike in a process that is killed; so a dropped connection does at once what a server would do
/// later. It is meant for runtimes with one thread. Clones are the same life.
#[derive(Clone)]
pub struct Life(Arc<Inner>);

struct Inner {
    is_over: AtomicBool,
    polls: AtomicU64,
    births: AtomicU64,
    bodies: Mutex<BTreeMap<u64, Weak<dyn Body>>>,
    after_poll: Box<AfterPoll>,
    at_failpoint: Box<AtFailpoint>,
}

type AfterPoll = dyn Fn(&Life, u64) + Send + Sync;
type AtFailpoint = dyn Fn(&'static str) -> Fate + Send + Sync;

/// The fate of a life at a failpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Pass,
    /// The failpoint answers with an error.
    Error,
    /// It is killed there.
    Die,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life").field("is_over", &self.is_over()).field("polls", &self.polls()).finish()
    }
}

impl Life {
    /// A life without tasks. `after_poll` is called after each poll of each of its tasks, with the task's number in the
    /// order of birth; it may call [`kill`](Self::kill).
    #[must_use]
    pub fn new(after_poll: impl Fn(&Self, u64) + Send + Sync + 'static) -> Self {
        Self::with(Box::new(after_poll), Box::new(|_| Fate::Pass))
    }

    /// A life without tasks. `at_failpoint` is called at each failpoint that one of its tasks passes.
    #[must_use]
    pub fn fated(at_failpoint: impl Fn(&'static str) -> Fate + Send + Sync + 'static) -> Self {
        Self::with(Box::new(|_, _| {}), Box::new(at_failpoint))
    }

    fn with(after_poll: Box<AfterPoll>, at_failpoint: Box<AtFailpoint>) -> Self {
        Self(Arc::new(Inner {
            is_over: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            births: AtomicU64::new(0),
            bodies: Mutex::default(),
            after_poll,
            at_failpoint,
        }))
    }

    pub(super) fn fate_at(&self, point: &'static str) -> Fate {
        (self.0.at_failpoint)(point)
    }

    /// Spawns a task of this life. A task that was killed never ends, so neither does waiting for it.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        tokio::spawn(Mortal::born_in(Some(self.clone()), task))
    }

    /// Ends it. A task that calls this goes on to its next `await`.
    pub fn kill(&self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        // One by one, and unlocked: a dropped task may spawn, or end other tasks.
        while let Some((_, body)) = { self.bodies().pop_first() } {
            if let Some(body) = body.upgrade() {
                body.die();
            }
        }
    }

    /// Whether it was killed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::SeqCst)
    }

    /// How often its tasks have been polled.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.0.polls.load(Ordering::SeqCst)
    }

    /// The life whose task is being polled on this thread.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    fn bodies(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Weak<dyn Body>>> {
        self.0.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts the life back that was current before, also after a panic.
struct Entered(Option<Life>);

impl Entered {
    fn enter(life: &Life) -> Self {
        Self(CURRENT.replace(Some(life.clone())))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

trait Body: Send + Sync {
    fn die(&self);
}

/// The task's future; `None` once it has ended, was killed, or while it is polled.
struct Slot<F>(Mutex<Option<Pin<Box<F>>>>);

impl<F> Slot<F> {
    fn take(&self) -> Option<Pin<Box<F>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, body: Pin<Box<F>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }
}

impl<F: Send> Body for Slot<F> {
    fn die(&self) {
        drop(self.take());
    }
}

/// A task that ends with the life that it was born in.
pub(crate) struct Mortal<F> {
    life: Option<Life>,
    number: u64,
    slot: Arc<Slot<F>>,
}

/// A task of the life that is current, where there is one.
pub(crate) fn mortal<F: Future + Send + 'static>(future: F) -> Mortal<F> {
    Mortal::born_in(Life::current(), future)
}

impl<F: Future + Send + 'static> Mortal<F> {
    fn born_in(life: Option<Life>, future: F) -> Self {
        let slot = Arc::new(Slot(Mutex::new(Some(Box::pin(future)))));
        let mut number = 0;
        if let Some(life) = &life {
            number = life.0.births.fetch_add(1, Ordering::SeqCst);
            let body: Weak<dyn Body> = Arc::downgrade(&slot) as Weak<dyn Body>;
            life.bodies().insert(number, body);
            if life.is_over() {
                slot.die();
            }
        }
        Self { life, number, slot }
    }
}

impl<F: Future> Future for Mortal<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(mut body) = self.slot.take() else { return Poll::Pending };
        let Some(life) = &self.life else {
            let polled = body.as_mut().poll(context);
            if polled.is_pending() {
                self.slot.put(body);
            }
            return polled;
        };
        let polled = {
            let _entered = Entered::enter(life);
            body.as_mut().poll(context)
        };
        if life.is_over() {
            return Poll::Pending;
        }
        if polled.is_pending() {
            self.slot.put(body);
        } else {
            life.bodies().remove(&self.number);
        }
        life.0.polls.fetch_add(1, Ordering::SeqCst);
        (life.0.after_poll)(life, self.number);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    struct Noted(Arc<Mutex<Vec<&'static str>>>, &'static str);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.lock().unwrap().push(self.1);
        }
    }

    #[tokio::test]
    async fn a_life_ends_with_all_tasks_that_were_born_in_it_in_the_order_of_birth() {
        let (dropped, life) = (Arc::new(Mutex::new(Vec::new())), Life::new(|_, _| {}));
        let (first, second, unpolled) =
            (Noted(dropped.clone(), "first"), Noted(dropped.clone(), "second"), Noted(dropped.clone(), "unpolled"));
        drop(life.spawn(async move {
            let _first = first;
            drop(crate::spawn::spawn(async move {
                let _second = second;
                drop(crate::spawn::spawn(async move {
                    let _unpolled = unpolled;
                    std::future::pending::<()>().await;
                }));
                std::future::pending::<()>().await;
            }));
            std::future::pending::<()>().await;
        }));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        life.kill();
        assert_eq!(*dropped.lock().unwrap(), ["first", "second", "unpolled"]);
        assert!(life.is_over());
    }

    #[tokio::test]
    async fn a_life_dies_at_the_failpoint_that_it_is_fated_to() {
        let life = Life::fated(|point| match point {
            "claimed" => Fate::Die,
            "guard" => Fate::Error,
            _ => Fate::Pass,
        });
        let answers = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&answers);
        drop(life.spawn(async move {
            for point in ["begin", "guard", "claimed", "begin"] {
                let answer = crate::failpoint::hit(point).await.is_ok();
                noted.lock().unwrap().push((point, answer));
            }
        }));
        while !life.is_over() {
            tokio::task::yield_now().await;
        }
        assert_eq!(*answers.lock().unwrap(), [("begin", true), ("guard", false)]);
    }

    #[tokio::test]
    async fn a_life_that_is_killed_after_a_poll_runs_nothing_more() {
        let steps = Arc::new(AtomicUsize::new(0));
        let life = Life::new(|life, _| {
            if life.polls() == 3 {
                life.kill();
            }
        });
        let counted = Arc::clone(&steps);
        drop(life.spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        }));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(steps.load(Ordering::SeqCst), 3);
    }
}
