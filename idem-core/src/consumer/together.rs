//! Calls of a [`RunOnce`] that share a unit, each behind a savepoint of its own.

use std::{borrow::Borrow, fmt};

use super::{
    End, Inner, Item, OwnSession, Ran, RunOnce, RunOnceError, Working,
    answers::{Answers, behind_handler, refuse},
    builder::shares_no_units,
    describe,
    handlers::{AllHandedIn, HandlingError, handle_all},
    isolate::{self, NO_LANE},
    run,
    run_once::{OfCall, answered as answer_of},
    unit::answered,
};
use crate::{
    error::{ConfigError, StoreError},
    handler::DynHandler,
    message::Message,
    outbox::NotKept,
    outcome::{Decision, Ticket},
    spawn,
    store::{Store, Tx, UnitOfWork},
};

/// An operation and its work, for a [`SharedUnit`].
pub struct Call<S: Store> {
    message: Message,
    work: Box<dyn DynHandler<S>>,
}

impl<S: Store> Call<S> {
    /// A call with the arguments of [`RunOnce::run_message`].
    pub fn new<F>(message: Message, work: F) -> Self
    where
        F: for<'a, 't> Fn(&'a mut Tx<'t, S>) -> Working<'a> + Send + Sync + 'static,
    {
        Self { message, work: Box::new(OfCall(work)) }
    }
}

impl<S: Store> fmt::Debug for Call<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("message", &self.message).finish_non_exhaustive()
    }
}

/// A connection on which several calls of a [`RunOnce`] are to share a unit. [`RunOnce::shared_unit`] waits for one, and
/// nothing has begun on it: a collector of calls takes those that have come until then.
pub struct SharedUnit<S: Store> {
    runs: RunOnce<S>,
    own: OwnSession<S>,
}

impl<S: Store> fmt::Debug for SharedUnit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedUnit").field("runs", &self.runs).finish_non_exhaustive()
    }
}

impl<S: Store> RunOnce<S> {
    /// Whether calls may share units.
    ///
    /// # Errors
    /// [`ConfigError`] with [`Effects::Outside`](crate::Effects::Outside) and
    /// [`units_of_one`](crate::DedupConsumerBuilder::units_of_one).
    pub fn check_sharing(&self) -> Result<(), ConfigError> {
        if self.inner.shares_units() { Ok(()) } else { Err(shares_no_units()) }
    }

    /// Waits until one more of its [`lanes`](crate::DedupConsumerBuilder::lanes) is free, for calls that are to share a unit.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn shared_unit(&self) -> SharedUnit<S> {
        SharedUnit { runs: self.clone(), own: OwnSession::of(&self.inner).await }
    }
}

impl<S: Store> SharedUnit<S> {
    /// Runs the work of these calls in one transaction, one after the other and each behind a savepoint, and answers for each in
    /// their order once it is committed: many calls at once cost one commit. A [refusal](crate::WorkError::final_result) takes
    /// back the effects of its own work, and nothing else.
    ///
    /// `None` is answered for a call that has to run alone, by [`RunOnce::run_message`]: of all calls where any work fails, panics
    /// or does not end, where the transaction cannot be committed or the outcome of its COMMIT is unknown, and where another
    /// process has one of the keys; and of calls of another tenant than the first one's. Running such a call alone repeats no
    /// effect.
    ///
    /// The settings of one work for its transaction (`SET LOCAL`, a role, a search path) are put back before the next one runs.
    /// Advisory locks, temporary tables and the modes of constraints stay, and rows stay locked until all have ended. Where a
    /// store cannot put settings back, as behind a pooler, every call runs alone; so it does where calls may
    /// [not](RunOnce::check_sharing) share units.
    ///
    /// # Cancel safety
    /// A task finishes the work that a dropped call has begun.
    pub async fn run(self, calls: Vec<Call<S>>) -> Vec<Option<Result<Ran, RunOnceError>>> {
        let Self { runs, own } = self;
        let mut ended: Vec<Ended> = calls.iter().map(|_| None).collect();
        let is_registered = runs.inner.register(None).await.is_ok();
        // Alone, a call finds out by itself that it has to wait.
        let is_paused = runs.gate.is_paused();
        if !is_registered || is_paused || runs.check_sharing().is_err() || runs.inner.calls_run_alone.get().is_some() {
            return ended;
        }
        let mut company = Company { places: Vec::new(), items: Vec::new(), works: Vec::new() };
        for (place, Call { message, work }) in calls.into_iter().enumerate() {
            match runs.identified(message).await {
                Ok(item) => company.add(place, item, work),
                Err(error) => ended[place] = Some(Err(error)),
            }
        }
        for (place, of_call) in spawn::finished(async move { company.run(own, runs.final_errors).await }).await {
            ended[place] = of_call;
        }
        ended
    }
}

/// How a call ended; `None` where it has to run alone.
type Ended = Option<Result<Ran, RunOnceError>>;

/// The calls that share a unit, and their places among all.
struct Company<S: Store> {
    places: Vec<usize>,
    items: Vec<Item>,
    works: Vec<Box<dyn DynHandler<S>>>,
}

impl<S: Store> Company<S> {
    /// Adds a call, unless it is of another tenant.
    fn add(&mut self, place: usize, item: Item, work: Box<dyn DynHandler<S>>) {
        let scope = |item: &Item| item.claim.as_ref().map(|claim| claim.scope);
        if self.items.first().is_none_or(|first| scope(first) == scope(&item)) {
            self.places.push(place);
            self.items.push(item);
            self.works.push(work);
        }
    }

    async fn run(self, mut own: OwnSession<S>, final_errors: bool) -> Vec<(usize, Ended)> {
        let Self { places, items, works } = self;
        let works: Vec<&dyn DynHandler<S>> = works.iter().map(|work| &**work).collect();
        let mut answers = Answers::new(&works, final_errors);
        let decisions = match items.as_slice() {
            [] => return Vec::new(),
            [item] => Some(vec![isolate::decide_one(&own.inner, &mut own.session, item, Some(&mut answers)).await]),
            items => as_one(&own.inner, &mut own.session, items, &mut answers).await,
        };
        let Some(decisions) = decisions else { return places.into_iter().map(|place| (place, None)).collect() };
        let results = std::mem::take(&mut answers.of).into_iter().chain(std::iter::repeat(None));
        let mut all = Vec::with_capacity(places.len());
        for (((place, item), decision), result) in places.into_iter().zip(items).zip(decisions).zip(results) {
            own.inner.note_conflict(&item, &decision).await;
            let key = item.message.key().cloned();
            all.push((place, Some(answer_of(decision, result.unwrap_or(Err(NotKept::Absent)), key))));
        }
        all
    }
}

/// Runs the calls as one unit; `None` where each has to run alone. After a failure they do not run together again: the
/// others are not to pay twice for one call's failure.
async fn as_one<S: Store>(
    inner: &Inner<S>,
    session: &mut Option<S::Session>,
    items: &[Item],
    answers: &mut Answers<'_, S>,
) -> Option<Vec<Decision>> {
    let (kept, end) = run(inner, session.take(), NO_LANE, items, None, Some(answers)).await;
    *session = kept;
    match end {
        End::Decided(decisions) => return Some(decisions),
        End::NotBegun => {
            if inner.calls_run_alone.set(()).is_ok() {
                tracing::warn!(
                    idem.consumer = %inner.name,
                    "calls share no units here: on a connection that others use too, such as one behind a pooler in transaction \
                     mode, a handler's settings cannot be put back; each runs alone"
                );
            }
        }
        // The next claim of the keys shows how the commit ended (A5, A6).
        End::Unknown { error, .. } => {
            let error = StoreError::Unavailable { doing: "committing", source: error };
            tracing::warn!(idem.consumer = %inner.name, error = describe::<S>(&error), "the answer to a commit was lost");
        }
        End::NoWinner(error) | End::Again(error) | End::Lost(error) | End::StoreFailed(error) => {
            tracing::debug!(idem.consumer = %inner.name, error = describe::<S>(&error), "each call of a unit runs alone");
        }
        End::Isolate(_) | End::Held => {}
    }
    None
}

/// Runs the work of each call that is fresh behind a savepoint of its own. Where one is refused for good, its effects are taken
/// back, and its outcome takes the place of its result.
pub(super) async fn handle<S: Store, J: Borrow<Item> + Sync>(
    inner: &Inner<S>,
    unit: &mut S::Unit<'_>,
    items: &[J],
    fresh: Vec<(usize, Ticket)>,
    works: &[&dyn DynHandler<S>],
    final_errors: bool,
) -> Result<AllHandedIn, HandlingError> {
    let limit = inner.settings.answer_timeout;
    let (mut all, mut before) = (AllHandedIn::new(), None);
    for (index, ticket) in fresh {
        match before {
            None => {
                let savepoint = answered(limit, "setting a savepoint", unit.savepoint());
                savepoint.await.map_err(HandlingError::Store)?;
            }
            Some(before) => {
                let savepoint = answered(limit, "going on to the next call", unit.next_savepoint());
                savepoint.await.map_err(|error| behind_handler::<S>(before, error))?;
            }
        }
        before = Some(index);
        match handle_all(inner, unit, items, vec![(index, ticket)], works.get(index).copied()).await {
            Ok(handed_in) => all.extend(handed_in),
            Err(HandlingError::Final(outcome)) => {
                all.extend(refuse(inner, unit, index, outcome, final_errors).await?);
            }
            Err(stopped) => return Err(stopped),
        }
    }
    Ok(all)
}
