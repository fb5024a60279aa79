//! Calls for one message each that run in units together: see
//! [`coalesce_calls`](crate::consumer::DedupConsumerBuilder::coalesce_calls).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{
    Semaphore,
    oneshot::{self, error::RecvError},
};

use crate::{
    error::{ErrorClass, StoreError},
    names::ScopeId,
    spawn,
    store::Store,
    unit::{alone, answers::Decided, engine::Engine, identify::Item, session::OwnSession},
};

/// The most shared units that run at once. A call that comes while they do joins the next one; with more of them, each would
/// hold fewer calls.
const UNITS_MAX: usize = 4;

/// The calls that wait for a unit.
pub(super) struct SharedUnits {
    messages_max: usize,
    waiting: Mutex<VecDeque<Waiting>>,
    /// A permit for each unit that may run.
    units: Arc<Semaphore>,
}

struct Waiting {
    item: Item,
    scope: ScopeId,
    answer: oneshot::Sender<Answer>,
}

enum Answer {
    Decided(Decided),
    /// The unit came to nothing: the message runs alone.
    Alone(Item),
}

impl SharedUnits {
    pub(super) fn new(messages_max: usize, lanes: usize) -> Self {
        let units = Arc::new(Semaphore::new(lanes.min(UNITS_MAX)));
        Self { messages_max, waiting: Mutex::default(), units }
    }

    /// Those that have waited longest, of one tenant. A caller that has given up is left out: its message was not begun.
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut next, mut others) = (Vec::<Waiting>::new(), VecDeque::new());
        while next.len() < self.messages_max
            && let Some(call) = waiting.pop_front()
        {
            if next.first().is_some_and(|first| first.scope != call.scope) {
                others.push_back(call);
            } else if !call.answer.is_closed() {
                next.push(call);
            }
        }
        others.append(&mut waiting);
        *waiting = others;
        next
    }
}

/// Decides a message in a unit with others that came meanwhile. `Err` gives it back where it has to run alone.
pub(super) async fn process<S: Store>(
    engine: &Arc<Engine<S>>,
    shared: &SharedUnits,
    item: Item,
) -> Result<Result<Decided, Item>, StoreError> {
    let Some(scope) = item.claim.as_ref().map(|claim| claim.scope) else { return Ok(Err(item)) };
    let (answer, mut answered) = oneshot::channel();
    let call = Waiting { item, scope, answer };
    shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(call);
    loop {
        let lead = async { (Arc::clone(&shared.units).acquire_owned().await, OwnSession::of(engine).await) };
        let (unit, own) = tokio::select! {
            biased;
            answer = &mut answered => return given(answer),
            lead = lead => lead,
        };
        let calls = shared.next();
        if calls.is_empty() {
            // Others have taken all that waited, and this call with it: to go on leading would be to spin until they are done.
            drop((own, unit));
            return given(answered.await);
        }
        spawn::finished(async move {
            run(own, calls).await;
            drop(unit);
        })
        .await;
    }
}

fn given(answer: Result<Answer, RecvError>) -> Result<Result<Decided, Item>, StoreError> {
    match answer {
        Ok(Answer::Decided(decided)) => Ok(Ok(decided)),
        Ok(Answer::Alone(item)) => Ok(Err(item)),
        // The task that led the unit has panicked in idem's own code.
        Err(gone) => Err(StoreError::Failed {
            doing: "running a unit of work",
            class: ErrorClass::Transient,
            source: Box::new(gone),
        }),
    }
}

async fn run<S: Store>(mut own: OwnSession<S>, calls: Vec<Waiting>) {
    let (items, answers): (Vec<_>, Vec<_>) = calls.into_iter().map(|call| (call.item, call.answer)).unzip();
    let decisions = match items.as_slice() {
        [] => return,
        [item] => Some(vec![alone::decide_one(&own.engine, &mut own.session, item, None).await]),
        items => alone::whole(&own.engine, &mut own.session, items, None).await,
    };
    let mut decisions = decisions.map(Vec::into_iter);
    for (item, answer) in items.into_iter().zip(answers) {
        let decision = decisions.as_mut().and_then(Iterator::next);
        // The caller may have given up; the message was handled all the same.
        let _ = answer.send(match decision {
            Some(decision) => Answer::Decided(Decided { message: item.message, decision, result: None }),
            None => Answer::Alone(item),
        });
    }
}
