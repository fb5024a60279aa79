//! One life from its first message to its last check.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    ConsumerName, Tenant,
    store::{Bookkeeping as _, ControlState, ScopeId},
};
use idem_testkit::{
    Weather,
    memory::{Faults, Revoke},
};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::{
    bounds, calls, disaster,
    journal::{Breach, Happened, Rule},
    oracle, process,
    scenario::{Event, Scenario},
    teeth::Slip,
    world::{Place, World},
};

/// How a life is run, beside its scenario.
#[derive(Debug, Clone, Copy, Default)]
pub struct Way {
    /// Whether a trace is written.
    pub trace: bool,
    /// The first process dies after so many polls of its first life.
    pub first_dies_at: Option<u64>,
    /// A store that breaks its contract in this way.
    pub defect: Option<idem_testkit::Defect>,
    /// A mistake of the members of a group.
    pub slip: Option<Slip>,
}

/// The result of a life.
#[derive(Debug)]
pub struct Report {
    /// The same for two runs of the same life.
    pub hash: u64,
    /// How often tasks of its processes were polled.
    pub polls: u64,
    /// How many polls the first process had in its first life, at most.
    pub first_polls: u64,
    /// How many processes died.
    pub deaths: u64,
    /// How many commits lost their connection before the answer.
    pub unknown_commits: u64,
    /// How long it took, by its own clock.
    pub took: Duration,
    /// A line of each event, where that was asked for.
    pub trace: Vec<String>,
    /// The promises that it broke.
    pub breaches: Vec<Breach>,
}

/// Runs a life. It takes the thread for itself, whose random numbers begin with the scenario's seed.
#[must_use]
pub fn live(scenario: &Scenario, way: Way) -> Report {
    fastrand::seed(scenario.seed);
    PANICKED.set(None);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&scenario.seed.to_le_bytes()));
    #[allow(clippy::expect_used, reason = "without a runtime there is no simulation")]
    let runtime = builder.build().expect("a runtime without I/O");
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(scenario.clone(), way))));
    let panicked = |text| Breach { rule: Rule::Panicked, at: Duration::ZERO, text };
    match (lived, PANICKED.take()) {
        (Ok(mut report), text) => {
            report.breaches.extend(text.map(panicked));
            report
        }
        (Err(_), text) => {
            let breaches = vec![panicked(text.unwrap_or_else(|| "a panic that nothing was told of".to_owned()))];
            let (hash, polls, first_polls, deaths, unknown_commits, took) = (0, 0, 0, 0, 0, Duration::ZERO);
            Report { hash, polls, first_polls, deaths, unknown_commits, took, trace: Vec::new(), breaches }
        }
    }
}

thread_local! {
    /// The first panic of the life on this thread that no handler or receiver planned. tokio catches those of tasks, and the engine
    /// those of the user's code.
    static PANICKED: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Something has panicked on this thread, and nothing planned it.
pub(crate) fn panicked(panic: &std::panic::PanicHookInfo<'_>) {
    PANICKED.with_borrow_mut(|first| {
        first.get_or_insert_with(|| panic.to_string());
    });
}

async fn run(scenario: Scenario, way: Way) -> Report {
    let world = Arc::new(World::new(scenario, way));
    world.store.weather(world.scenario.weather);
    world.misbehave(world.scenario.faults);
    world.dead_letters().misbehave(world.scenario.dead_letter_faults);
    if let Some(polls) = way.first_dies_at {
        world.places[0].dies_at.store(polls, Ordering::SeqCst);
        world.places[0].down.store(100, Ordering::SeqCst);
    }
    let keepers: Vec<_> =
        (0..world.scenario.processes).map(|number| tokio::spawn(process::keep(Arc::clone(&world), number))).collect();
    let operator = tokio::spawn(resume_after_halts(Arc::clone(&world)));
    tokio::select! {
        () = happen(&world) => {}
        () = world.cut.notified() => {}
    }
    operator.abort_handle().abort();
    close(&world, keepers).await;
    if !world.is_cut.load(Ordering::SeqCst) {
        oracle::judge(&world);
    }
    let (hash, polls, trace, breaches) = world.journal.end();
    Report {
        hash,
        polls,
        first_polls: world.first_polls.load(Ordering::SeqCst),
        deaths: world.deaths.load(Ordering::SeqCst),
        unknown_commits: world.store.unknown_commits(),
        took: world.journal.now(),
        trace,
        breaches,
    }
}

/// Messages and events in their time; then faults end, and everything comes to rest.
async fn happen(world: &Arc<World>) {
    let begun = Instant::now();
    let scenario = &world.scenario;
    let (mut messages, mut events) = (scenario.messages.iter().peekable(), scenario.events.iter().peekable());
    loop {
        let (message, event) = (messages.peek().map(|(at, _)| *at), events.peek().map(|(at, _)| *at));
        match (message, event) {
            (Some(at), other) if other.is_none_or(|other| at <= other) => {
                sleep_until(begun + at).await;
                messages.next().into_iter().for_each(|(_, content)| world.publish(*content));
            }
            (_, Some(at)) => {
                sleep_until(begun + at).await;
                if let Some((_, event)) = events.next() {
                    do_event(world, *event).await;
                }
            }
            (Some(_) | None, None) => break,
        }
    }
    sleep_until(begun + scenario.faults_end()).await;
    world.journal.note(&Happened::Noted("all faults end".to_owned()));
    world.store.weather(Weather::default());
    world.misbehave(Faults::default());
    world.dead_letters().misbehave(Faults::default());
    world.received().faults_over = true;
    control(world, ControlState::Running).await;
    // Where positions are kept, a settlement that was lost is made good with the next assignment.
    world.queue().disconnect();
    world.group.iter().for_each(|group| group.heal());
    let within = bounds::rest(scenario);
    let rested = tokio::select! {
        rested = timeout(within, rest(world)) => rested.is_ok(),
        () = halted(world) => return,
    };
    if !rested {
        let stats = world.queue().stats();
        let (events, asked) = (world.on_their_way(), world.asked().is_done());
        let group = world.group.as_ref().map(|group| group.describe());
        let text = format!("after {within:?}: {stats:?}, {group:?}, events {events:?}, all calls answered: {asked}");
        world.journal.breach(Rule::NotAtRest, text);
        return;
    }
    let effects = world.effects().len();
    world.received().effects_at_rest = Some(effects);
    if world.scenario.telling.is_some() {
        calls::ask_again(world).await;
    }
}

/// Waits until a consumer that has halted has had its time: it halts over the same message again, and never rests.
async fn halted(world: &World) {
    while world.halts.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(30)).await;
}

/// Waits until no message is unsettled, no replay is under way, no event on its way, and every caller is answered.
async fn rest(world: &World) {
    loop {
        world.drained().await;
        let is_told = world.scenario.telling.is_none() || (world.on_their_way().is_empty() && world.asked().is_done());
        if is_told && !world.store.kept_dead_letters().iter().any(|kept| kept.replaying) {
            return;
        }
        if !is_told {
            world.let_events_go().await;
        }
        sleep(Duration::from_secs(1)).await;
    }
}

async fn do_event(world: &Arc<World>, event: Event) {
    world.journal.note(&Happened::Noted(format!("{event:?}")));
    match event {
        Event::Kill { process, polls, down } => {
            let place = &world.places[process];
            let running = place.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(running) = running {
                place.down.store(down, Ordering::SeqCst);
                place.dies_at.store(running.life.polls() + polls, Ordering::SeqCst);
            }
        }
        Event::Stop { process } => stop(world, process),
        Event::Disconnect => world.queue().disconnect(),
        Event::Revoke(how) => match (&world.group, how) {
            (None, how) => world.queue().revoke(how),
            (Some(group), Revoke::Drained) => group.rebalance(),
            (Some(group), Revoke::Lost) => group.turn_out(),
        },
        Event::CutOff { process, milliseconds } => {
            let until = Instant::now() + Duration::from_millis(milliseconds);
            world.group.iter().for_each(|group| group.cut_off(process, until));
        }
        Event::ExpireLeases => world.queue().expire_leases(),
        Event::Pause(milliseconds) => {
            control(world, ControlState::Paused).await;
            let world = Arc::clone(world);
            drop(tokio::spawn(async move {
                sleep(Duration::from_millis(milliseconds)).await;
                control(&world, ControlState::Running).await;
            }));
        }
        Event::Replay => replay(world).await,
        Event::Recreate => world.recreate(),
        Event::Checkpoint => disaster::checkpoint(world),
        Event::FailOver => disaster::fail_over(world).await,
        Event::Restore => disaster::restore(world).await,
        Event::Forget(content) => disaster::forget(world, content).await,
        Event::Rename => drop(tokio::spawn(with_all_stopped(Arc::clone(world), rename))),
        Event::Rebind => drop(tokio::spawn(with_all_stopped(Arc::clone(world), rebind))),
        Event::ClockJumps(by) => disaster::clock_jumps(world, by),
    }
}

fn stop(world: &World, process: usize) {
    let running = world.places[process].running.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(running) = running {
        running.stop.cancel();
    }
}

/// As the guide says: every worker is stopped, the operator acts, and they start with what is different then.
async fn with_all_stopped(world: Arc<World>, acts: fn(&World)) {
    if world.is_kept_down.swap(true, Ordering::SeqCst) {
        return;
    }
    let within = Instant::now() + world.scenario.drain * 2 + bounds::pause(&world.scenario) + Duration::from_secs(60);
    let runs = |place: &Place| place.running.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    while let Some(process) = world.places.iter().position(runs) {
        if Instant::now() > within {
            world.kill(process, 0);
        }
        stop(&world, process);
        sleep(Duration::from_millis(50)).await;
    }
    acts(&world);
    world.is_kept_down.store(false, Ordering::SeqCst);
}

/// The consumer gets another name.
fn rename(world: &World) {
    let from = ConsumerName::new(world.consumer());
    world.renamed.fetch_add(1, Ordering::SeqCst);
    if let (Ok(from), Ok(to)) = (from, ConsumerName::new(world.consumer()))
        && !world.store.rename(&from, &to)
    {
        // No worker has registered it yet, or the store has no operator who can.
        world.journal.note(&Happened::Noted(format!("there is no {from} to rename")));
    }
    world.journal.note(&Happened::Noted(format!("the consumer is {} now", world.consumer())));
}

/// The consumer is bound by its next start. Where no worker has registered it yet, that start is its first.
fn rebind(world: &World) {
    if let Ok(name) = ConsumerName::new(world.consumer()) {
        world.store.rebind(&name);
    }
    world.rebound.fetch_add(1, Ordering::SeqCst);
}

/// The scope that operators speak of.
async fn scope(world: &World) -> Option<ScopeId> {
    let name = ConsumerName::new(world.consumer()).ok()?;
    world.store.scope(&name, &Tenant::default()).await.ok()
}

/// Waits for an operator, who asks until there is an answer. If there is none for long, something is not mended that should
/// be: a promise is broken, and the life goes on.
pub(crate) async fn answered<T>(world: &World, what: &str, asks: impl Future<Output = T>) -> Option<T> {
    let answer = timeout(bounds::OPERATOR, asks).await.ok();
    if answer.is_none() {
        let text = format!("for {:?} no operator could reach {what}", bounds::OPERATOR);
        world.journal.breach(Rule::NotAtRest, text);
    }
    answer
}

/// Pauses or resumes the consumer, for as long as it takes.
pub(crate) async fn control(world: &World, state: ControlState) {
    let asks = async {
        loop {
            if let Some(scope) = scope(world).await
                && world.store.set_control(scope, state, "operator", "the scenario").await.is_ok()
            {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    if answered(world, "the consumer's row", asks).await.is_none() {
        return;
    }
    let since = (state != ControlState::Running).then(|| world.journal.now());
    world.known().paused_since = since;
    world.journal.note(&Happened::Noted(format!("an operator sets {state:?}")));
}

async fn replay(world: &World) {
    // As the command does by default: a message that waits runs by itself.
    let mut kept = world.store.kept_dead_letters();
    kept.retain(|kept| kept.row.waits_until.is_none());
    let ids: Vec<_> = kept.iter().map(|kept| kept.row.id).collect();
    // Where the answer is lost it was done, or was not.
    let _ = world.store.due_now(&ids, "ann").await;
    // Each replay is one more delivery, whose attempts count anew.
    for content in kept.iter().filter_map(|kept| kept.message.as_ref()).map(|message| world.content(message)) {
        if let Some(seen) = world.known().contents.get_mut(content) {
            seen.deliveries += 1;
        }
        world.known().replayed.insert(content);
    }
}

/// A consumer that halted is resumed by a person some time later.
async fn resume_after_halts(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(500)).await;
        // A store that went back has forgotten some, and with them the line of a halt that is recorded after that.
        let (halts, is_halted) = (halts_of(&world), world.store.is_halted());
        world.halts.fetch_max(halts.max(usize::from(is_halted)), Ordering::SeqCst);
        // Another operator may have resumed it already: small, seed 21374709 counted its runs as breaches.
        if !is_halted {
            continue;
        }
        let now = world.journal.now();
        world.known().paused_since.get_or_insert(now);
        world.journal.note(&Happened::Noted("the consumer has halted".to_owned()));
        sleep(Duration::from_secs(20)).await;
        control(&world, ControlState::Running).await;
    }
}

/// How often the consumer has halted, as far as the store knows.
fn halts_of(world: &World) -> usize {
    world.store.audited().iter().filter(|(action, _)| action == "halt").count()
}

/// Stops every process, and waits until each has ended.
async fn close(world: &Arc<World>, keepers: Vec<tokio::task::JoinHandle<()>>) {
    world.closing.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + world.scenario.drain * 2 + bounds::pause(&world.scenario) + Duration::from_secs(60);
    (0..world.places.len()).for_each(|process| stop(world, process));
    for (process, keeper) in keepers.into_iter().enumerate() {
        if timeout_at(deadline, keeper).await.is_err() && !world.is_cut.load(Ordering::SeqCst) {
            world.journal.breach(Rule::WorkerEnded, format!("process {process} does not stop"));
            world.kill(process, 0);
        }
    }
}
