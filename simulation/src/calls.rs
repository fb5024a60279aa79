//! Callers who want something done once, and ask until they are answered: every answer to a key is that of the one run that counts.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    ConfigError, Effects, Event, HandlerError, Message, ResultBody, Retention, RunOnce, Tenant,
    key::{Header, KEY_FIELD},
    once::{RunOnceError, WorkError},
};
use idem_testkit::MemoryStore;
use tokio::time::sleep;

use crate::{
    journal::{Happened, Rule},
    receivers::{self, Of},
    world::{TENANT, World},
};

/// The name under which calls claim their keys.
const NAME: &str = "calls";
/// The prefix of the keys of calls.
pub(crate) const KEY: &str = "call ";
/// The table of their effects: the row's key is the operation's number, its value the number of the run.
pub(crate) const CALLS: &str = "calls";

/// The calls so far, and their answers.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// How often each operation ran.
    runs: Vec<u32>,
    /// The answer of each operation, and how often the store had gone back by then.
    answers: Vec<Option<(u32, Answer)>>,
    /// Which calls were answered.
    is_answered: Vec<bool>,
}

/// An answer: whether it is a refusal, and the number of the run that gave it.
type Answer = (bool, String);

impl Asked {
    pub(crate) fn new(world: &crate::scenario::Scenario) -> Self {
        let (operations, calls) =
            world.telling.as_ref().map_or((0, 0), |telling| (telling.operations.len(), telling.calls.len()));
        Self { runs: vec![0; operations], answers: vec![None; operations], is_answered: vec![false; calls] }
    }

    /// Whether every caller was answered.
    pub(crate) fn is_done(&self) -> bool {
        self.is_answered.iter().all(|answered| *answered)
    }
}

/// Asks this process for what its callers want, one after the other, and never ends.
pub(crate) async fn serve(world: Arc<World>, process: usize) -> Result<(), ConfigError> {
    let Some(telling) = &world.scenario.telling else { return std::future::pending().await };
    let runs = once(&world)?;
    for (call, (at, _, operation)) in telling.calls.iter().enumerate().filter(|(_, (_, of, _))| *of == process) {
        sleep(at.saturating_sub(world.journal.now())).await;
        while !world.asked().is_answered[call] && !world.closing.load(Ordering::SeqCst) {
            if ask(&world, &runs, *operation).await {
                world.asked().is_answered[call] = true;
            } else {
                sleep(Duration::from_millis(fastrand::u64(50..1_000))).await;
            }
        }
    }
    std::future::pending().await
}

/// Asks for every operation once more, when everything is at rest.
pub(crate) async fn ask_again(world: &Arc<World>) {
    let operations = world.scenario.telling.as_ref().map_or(0, |telling| telling.operations.len());
    let Ok(runs) = once(world) else { return };
    for operation in 0..operations {
        let asked = async {
            while !ask(world, &runs, operation).await {
                sleep(Duration::from_secs(1)).await;
            }
        };
        crate::life::answered(world, "an operation", asked).await;
    }
    world.operations_run_once();
}

fn once(world: &Arc<World>) -> Result<RunOnce<MemoryStore>, ConfigError> {
    let scenario = &world.scenario;
    let receivers = scenario.telling.as_ref().map_or(0, |telling| telling.receivers.len());
    RunOnce::builder(Arc::clone(&world.store), NAME)
        .effects(Effects::InTransaction)
        .allow_final_errors()
        .publish_to((0..receivers).map(receivers::name))
        .key_source(Header::new(KEY_FIELD))
        .tenant_from(|message| Tenant::new(message.headers().text(TENANT)?).ok())
        .result_retention(Retention::For(crate::draw::WEEK))
        .retention(Retention::For(crate::draw::WEEK))
        .handler_deadline(scenario.deadline)
        .busy_timeout(scenario.busy_timeout)
        .commit_timeout(scenario.answer_timeout)
        .answer_timeout(scenario.answer_timeout)
        .lanes(if scenario.one_writer { 1 } else { 2 })
        .build()
}

/// Answers whether there was an answer.
async fn ask(world: &Arc<World>, runs: &RunOnce<MemoryStore>, operation: usize) -> bool {
    let Some(about) = world.scenario.telling.as_ref().and_then(|telling| telling.operations.get(operation)) else {
        return true;
    };
    let times = world.known().disasters.times();
    let message = Message::new(format!("operation {operation}"))
        .with_header(KEY_FIELD, format!("{KEY}{}", about.key))
        .with_header(TENANT, format!("t{}", about.tenant));
    let (own, about) = (Arc::clone(world), *about);
    let ran = runs.run(message, move |tx| {
        let world = Arc::clone(&own);
        Box::pin(async move {
            let run = world.called_for(operation);
            tx.connection().append(CALLS, &operation.to_string(), run.to_string()).await?;
            if about.tells {
                let of = Of::Operation(operation);
                let event = Event::to(&receivers::name(0)).label("done").body(of.to_string());
                let message = tx.message().ok_or("a call has its message")?;
                let id = tx.publish(message, event)?;
                world.published(of, id.as_str());
            }
            if about.takes > 0 {
                sleep(Duration::from_millis(about.takes)).await;
            }
            if run < about.fails_for {
                return Err(WorkError::failed(HandlerError::transient("not yet")));
            }
            let answer = ResultBody::new(run.to_string());
            if about.refuses { Err(WorkError::final_result(answer)) } else { Ok(answer) }
        })
    });
    match ran.await {
        Ok(ran) => {
            let value = String::from_utf8_lossy(&ran.result().body).into_owned();
            world.answered_for(operation, times, (ran.is_refused(), value));
            true
        }
        Err(RunOnceError::Busy | RunOnceError::Failed(_) | RunOnceError::Unavailable(_)) => false,
        Err(error @ (RunOnceError::Conflict { .. } | RunOnceError::NotKept { .. } | RunOnceError::Refused(_) | _)) => {
            world.journal.breach(Rule::OtherAnswer, format!("operation {operation} is answered: {error}"));
            true
        }
    }
}

impl World {
    /// The work of an operation begins. Answers the number of the run.
    fn called_for(&self, operation: usize) -> u32 {
        let mut asked = self.asked();
        let run = asked.runs[operation];
        asked.runs[operation] += 1;
        drop(asked);
        self.journal.note(&Happened::Noted(format!("operation {operation} runs for the {run}. time")));
        run
    }

    /// Where nothing fails and no process dies, no operation runs again once a run of it has come to its end. One that is refused may
    /// run once in each process that has a caller of it (V11).
    fn operations_run_once(&self) {
        let (Some(telling), asked) = (&self.scenario.telling, self.asked()) else { return };
        if !self.scenario.calm || self.deaths.load(Ordering::SeqCst) > 0 {
            return;
        }
        for (number, (operation, runs)) in telling.operations.iter().zip(&asked.runs).enumerate() {
            let callers = telling.calls.iter().filter(|(_, _, of)| *of == number);
            let processes = callers.map(|(_, process, _)| process).collect::<BTreeSet<_>>().len();
            let most = if operation.refuses { u32::try_from(processes.max(1)).unwrap_or(u32::MAX) } else { 1 };
            if *runs > operation.fails_for + most {
                self.journal.breach(Rule::RanTooOften, format!("operation {number} ({operation:?}) ran {runs} times"));
            }
        }
    }

    /// A caller was answered; `times` is how often the store had gone back when it asked.
    fn answered_for(&self, operation: usize, times: u32, answer: Answer) {
        self.journal.note(&Happened::Noted(format!("operation {operation} is answered: {answer:?}")));
        // The store may have lost the effect meanwhile.
        if times != self.known().disasters.times() {
            return;
        }
        let number = operation.to_string();
        let effects: Vec<_> = self.store.rows(CALLS).into_iter().filter(|(of, _)| *of == number).collect();
        let is_right = match effects.as_slice() {
            [] => answer.0,
            [(_, run)] => !answer.0 && run.as_ref() == answer.1.as_bytes(),
            [_, _, ..] => false,
        };
        let before = self.asked().answers[operation].replace((times, answer.clone()));
        if !is_right || before.as_ref().is_some_and(|(at, before)| *at == times && *before != answer) {
            let text =
                format!("operation {operation} is answered {answer:?} after {before:?}, with effects {effects:?}");
            self.journal.breach(Rule::OtherAnswer, text);
        }
    }
}
