//! Why intake waits: an operator, a database that is down, or the breaker.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::Instant};

use crate::{
    clock::DatabaseClock,
    dead_letter::Breaker,
    names::ConsumerName,
    standing::{Condition, Fact, Tables},
    store::{Control, ControlState},
};

/// How long the breaker waits between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Why a worker takes nothing in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pause {
    /// An operator paused the consumer, or a worker halted it; the text says who and why.
    Control(ControlState, String),
    /// The number of lanes that cannot reach the database.
    StoreDown(usize),
    /// More than half of the last 50 fresh messages became dead letters.
    Breaker,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(ControlState::Halted, why) => write!(f, "halted by {why}"),
            Self::Control(ControlState::Paused | ControlState::Running, why) => write!(f, "paused by {why}"),
            Self::StoreDown(lanes) => write!(f, "{lanes} lanes cannot reach the database"),
            Self::Breaker => f.write_str("more than half of the last 50 fresh messages became dead letters"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    control: ControlState,
    why: String,
    lanes_down: usize,
}

impl State {
    fn is_open(&self) -> bool {
        self.control == ControlState::Running && self.lanes_down == 0
    }
}

#[derive(Debug)]
pub(crate) struct IntakeGate {
    joined: AtomicBool,
    leaving: AtomicBool,
    dead: OnceLock<&'static str>,
    state: watch::Sender<State>,
    /// Since when intake is closed without a break, by whatever cause.
    paused_since: Mutex<Option<Instant>>,
    breakers: Mutex<Breakers>,
    /// Raised each time that the breaker closes.
    closed: watch::Sender<u64>,
    broker: Mutex<BrokerState>,
    /// The consumer's state by its tables, when they were last read.
    tables: Mutex<Option<Tables>>,
    clock: DatabaseClock,
    probe_at: tokio::sync::Mutex<Instant>,
}

/// Under one lock, since each fresh message that succeeds counts for both.
#[derive(Debug, Default)]
struct Breakers {
    /// Of messages that handlers see.
    handled: Breaker,
    /// Of messages that no handler can see, which is an alarm and stops nothing.
    unreadable: Breaker,
}

/// The broker's state as last reported.
#[derive(Debug, Default)]
struct BrokerState {
    unreachable_since: Option<Instant>,
    /// Its last failure.
    error: String,
}

/// Whose turn it is while the breaker may be open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Normal,
    /// The breaker is open, and this lane may try one message.
    Probe,
}

impl IntakeGate {
    pub(crate) fn new() -> Self {
        let state = State { control: ControlState::Running, why: String::new(), lanes_down: 0 };
        Self {
            joined: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            dead: OnceLock::new(),
            state: watch::Sender::new(state),
            paused_since: Mutex::default(),
            breakers: Mutex::default(),
            closed: watch::Sender::new(0),
            broker: Mutex::default(),
            tables: Mutex::default(),
            clock: DatabaseClock::new(),
            probe_at: tokio::sync::Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn set_joined(&self) {
        self.joined.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the worker was asked to stop.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// A task of the worker died.
    pub(crate) fn set_dead(&self, task: &'static str) {
        // The first is the one that is reported.
        let _ = self.dead.set(task);
    }

    /// The task that died, where one did.
    pub(crate) fn dead(&self) -> Option<&'static str> {
        self.dead.get().copied()
    }

    /// The broker could not be used, with this error.
    pub(crate) fn broker_failed(&self, error: String) {
        self.broker_state().error = error;
    }

    /// For how long the broker cannot be used, as its source says now. Answers for how long it could not until now.
    pub(crate) fn set_broker(&self, unreachable_for: Option<Duration>) -> Option<Duration> {
        let now = Instant::now();
        // An outage is older than this process only by a mistake.
        let since = unreachable_for.map(|time| now.checked_sub(time).unwrap_or(now));
        let before = std::mem::replace(&mut self.broker_state().unreachable_since, since);
        before.map(|since| now.duration_since(since))
    }

    pub(crate) fn broker_unreachable_for(&self) -> Option<Duration> {
        self.broker_state().unreachable_since.map(|since| since.elapsed())
    }

    pub(crate) fn broker_error(&self) -> String {
        self.broker_state().error.clone()
    }

    fn broker_state(&self) -> MutexGuard<'_, BrokerState> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lanes_down(&self) -> usize {
        self.state.borrow().lanes_down
    }

    fn breakers(&self) -> MutexGuard<'_, Breakers> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why intake waits now; `None` while it is open.
    pub(crate) fn pause(&self) -> Option<Pause> {
        let state = self.state.borrow();
        if state.control != ControlState::Running {
            Some(Pause::Control(state.control, state.why.clone()))
        } else if state.lanes_down > 0 {
            Some(Pause::StoreDown(state.lanes_down))
        } else if self.breakers().handled.is_open() {
            Some(Pause::Breaker)
        } else {
            None
        }
    }

    /// Every cause for which intake waits now, since intake is closed.
    pub(crate) fn facts(&self) -> Vec<Fact> {
        let State { control, why, lanes_down, .. } = self.state.borrow().clone();
        let mut facts = Vec::new();
        match control {
            ControlState::Running => {}
            ControlState::Paused => facts.push(Fact::of(Condition::Paused).detail(why)),
            ControlState::Halted => facts.push(Fact::of(Condition::Halted).detail(why)),
        }
        if lanes_down > 0 {
            facts.push(Fact::of(Condition::DatabaseDown).count(lanes_down as u64));
        }
        if self.breaker_is_open() {
            facts.push(Fact::of(Condition::BreakerOpen));
        }
        match self.paused_for() {
            Some(time) => facts.into_iter().map(|fact| fact.lasting(time, self.now())).collect(),
            None => facts,
        }
    }

    /// The database's clock, as the controls were last read.
    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// The consumer's tables were read.
    pub(crate) fn set_tables(&self, tables: Option<Tables>) {
        *self.tables.lock().unwrap_or_else(PoisonError::into_inner) = tables;
    }

    /// What they said.
    pub(crate) fn tables(&self) -> Option<Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For how long intake is closed, by whatever cause; `None` while it is open.
    pub(crate) fn paused_for(&self) -> Option<Duration> {
        self.paused_since().map(|since| since.elapsed())
    }

    /// Called after each change of a cause. The state is read under the lock, so that the last of two concurrent calls
    /// leaves the current one.
    fn note_pause(&self) {
        let mut since = self.paused_since();
        let is_open = self.state.borrow().is_open() && !self.breaker_is_open();
        *since = if is_open { None } else { since.or_else(|| Some(Instant::now())) };
    }

    fn paused_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while an operator or the database keeps intake closed. The breaker does not: it lets one message a second
    /// through, see [`IntakeGate::turn`].
    pub(crate) async fn open(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.state.subscribe().wait_for(State::is_open).await;
    }

    /// Waits until an operator or the database closes intake.
    pub(crate) async fn closed(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.state.subscribe().wait_for(|state| !state.is_open()).await;
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.state.borrow().control == ControlState::Halted
    }

    /// Whether an operator paused the consumer, or a worker halted it.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.borrow().control != ControlState::Running
    }

    /// Waits while the consumer is paused or halted.
    pub(crate) async fn resumed(&self) {
        // The sender lives in `self`, so this cannot fail.
        let _ = self.state.subscribe().wait_for(|state| state.control == ControlState::Running).await;
    }

    /// Obeys the operators' control, and logs a change of it.
    pub(crate) fn obey(&self, consumer: &ConsumerName, control: &Control) {
        self.clock.set(control.now);
        let why = format!("{}: {}", control.by, control.reason);
        if self.set_control(control.state, &why) {
            tracing::warn!(
                idem.consumer = %consumer, state = control.state.as_str(), why, "the consumer's control changed"
            );
        }
    }

    /// Answers whether this changed anything.
    pub(crate) fn set_control(&self, control: ControlState, why: &str) -> bool {
        let changed = self.state.send_if_modified(|state| {
            let changed = state.control != control;
            state.control = control;
            why.clone_into(&mut state.why);
            changed
        });
        self.note_pause();
        changed
    }

    pub(crate) fn lane_down(&self) {
        self.state.send_modify(|state| state.lanes_down += 1);
        self.note_pause();
    }

    pub(crate) fn lane_up(&self) {
        self.state.send_modify(|state| state.lanes_down = state.lanes_down.saturating_sub(1));
        self.note_pause();
    }

    /// A fresh message became a dead letter. Answers whether this opened the breaker.
    pub(crate) fn fresh_failed(&self) -> bool {
        let opened = self.breakers().handled.note(true);
        if opened {
            self.note_pause();
        }
        opened
    }

    /// A fresh message was handled, which closes the breaker. Answers whether it was open.
    pub(crate) fn fresh_succeeded(&self) -> bool {
        let mut breakers = self.breakers();
        let Breakers { handled, unreadable } = &mut *breakers;
        let was_open = handled.is_open();
        if was_open {
            handled.close();
        }
        handled.note(false);
        unreadable.note(false);
        if unreadable.is_quiet() {
            unreadable.close();
        }
        drop(breakers);
        if was_open {
            self.note_pause();
            self.closed.send_modify(|times| *times += 1);
        }
        was_open
    }

    /// A message became a dead letter that no handler could see. Answers whether that raises the alarm.
    pub(crate) fn unreadable(&self) -> bool {
        self.breakers().unreadable.note(true)
    }

    /// Waits until the breaker is closed.
    pub(crate) async fn breaker_closed(&self) {
        let mut closed = self.closed.subscribe();
        // The sender lives in `self`, so this cannot fail.
        while self.breaker_is_open() && closed.changed().await.is_ok() {}
    }

    pub(crate) fn breaker_is_open(&self) -> bool {
        self.breakers().handled.is_open()
    }

    /// Waits for a turn: at once while the breaker is closed, else once a second over all lanes.
    pub(crate) async fn turn(&self) -> Turn {
        if !self.breaker_is_open() {
            return Turn::Normal;
        }
        let mut probe_at = self.probe_at.lock().await;
        tokio::time::sleep_until(*probe_at).await;
        if !self.breaker_is_open() {
            return Turn::Normal;
        }
        *probe_at = Instant::now() + PROBE_EVERY;
        Turn::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused_for(gate: &IntakeGate) -> Option<u64> {
        gate.paused_for().map(|time| time.as_secs())
    }

    async fn later() {
        tokio::time::advance(Duration::from_secs(10)).await;
    }

    fn open_breaker(gate: &IntakeGate) {
        assert!((0..50).any(|_| gate.fresh_failed()), "the breaker opens");
    }

    /// J16: each cause is timed from its first moment on, and no longer than it lasts.
    #[tokio::test(start_paused = true)]
    async fn j16_each_cause_of_a_pause_is_timed() {
        type Act = fn(&IntakeGate);
        let (paused, halted, running): (Act, Act, Act) = (
            |gate| assert!(gate.set_control(ControlState::Paused, "ada: a look")),
            |gate| assert!(gate.set_control(ControlState::Halted, "run 1: a conflict")),
            |gate| assert!(gate.set_control(ControlState::Running, "")),
        );
        let causes: [(Act, Act); 4] = [
            (paused, running),
            (halted, running),
            (IntakeGate::lane_down, IntakeGate::lane_up),
            (open_breaker, |gate| assert!(gate.fresh_succeeded())),
        ];
        for (number, (begins, ends)) in causes.into_iter().enumerate() {
            let gate = IntakeGate::new();
            later().await;
            assert_eq!(paused_for(&gate), None, "cause {number}");
            begins(&gate);
            assert_eq!(paused_for(&gate), Some(0), "cause {number}");
            later().await;
            // The controls are read every few seconds, and say the same again.
            let control = gate.state.borrow().clone();
            gate.set_control(control.control, &control.why);
            assert_eq!(paused_for(&gate), Some(10), "cause {number}");
            ends(&gate);
            assert_eq!((paused_for(&gate), gate.pause()), (None, None), "cause {number}");
        }
    }

    /// J16: where one cause takes over from another, intake has been closed since the first.
    #[tokio::test(start_paused = true)]
    async fn j16_a_pause_lasts_until_its_last_cause_has_ended() {
        let gate = IntakeGate::new();
        gate.lane_down();
        later().await;
        gate.lane_down();
        open_breaker(&gate);
        gate.lane_up();
        gate.lane_up();
        later().await;
        gate.set_control(ControlState::Paused, "ada: a look");
        assert!(gate.fresh_succeeded(), "the breaker closes");
        later().await;
        assert_eq!(paused_for(&gate), Some(30));
        gate.set_control(ControlState::Running, "");
        assert_eq!(paused_for(&gate), None);
        later().await;
        gate.lane_down();
        assert_eq!(paused_for(&gate), Some(0), "a pause of its own");
    }

    /// Junk is an alarm once, at more than half of fifty, and again only after what handlers see has been most of it.
    #[test]
    fn a_flood_of_junk_is_one_alarm_and_closes_nothing() {
        let gate = IntakeGate::new();
        let alarms = |messages: u32| (0..messages).filter(|_| gate.unreadable()).count();
        assert_eq!((alarms(25), alarms(1), alarms(100)), (0, 1, 0));
        assert_eq!(gate.pause(), None);
        (0..50).for_each(|_| assert!(!gate.fresh_succeeded()));
        assert_eq!((alarms(25), alarms(1)), (0, 1), "the next flood");
    }

    #[test]
    fn the_last_error_of_the_broker_is_told() {
        let gate = IntakeGate::new();
        gate.broker_failed("refused".to_owned());
        gate.broker_failed("no route".to_owned());
        assert_eq!(gate.broker_error(), "no route");
    }

    #[test]
    fn a_pause_says_who_and_why() {
        let text = |pause: Pause| pause.to_string();
        assert_eq!(
            text(Pause::Control(ControlState::Halted, "run 7: a conflict".to_owned())),
            "halted by run 7: a conflict"
        );
        assert_eq!(text(Pause::Control(ControlState::Paused, "ada: a look".to_owned())), "paused by ada: a look");
        assert_eq!(text(Pause::StoreDown(3)), "3 lanes cannot reach the database");
        assert!(text(Pause::Breaker).contains("dead letters"));
    }

    /// The first cause that is told is an operator's, then the database, then the breaker.
    #[test]
    fn a_pause_is_told_by_what_must_end_first() {
        let gate = IntakeGate::new();
        open_breaker(&gate);
        assert_eq!(gate.pause(), Some(Pause::Breaker));
        gate.lane_down();
        assert_eq!(gate.pause(), Some(Pause::StoreDown(1)));
        gate.set_control(ControlState::Paused, "ada: a look");
        assert_eq!(gate.pause(), Some(Pause::Control(ControlState::Paused, "ada: a look".to_owned())));
    }
}
