//! A life as it is drawn from a seed: settings, messages, and the faults of processes, store and broker. Plain data, so that
//! a life can be run again with parts of it left out.

use std::time::Duration;

use idem_core::{
    Effects,
    config::{OnConflict, RetryPolicy},
};
use idem_testkit::{
    Weather,
    memory::{Faults, Order, Rate, Revoke},
};

use crate::{
    draw,
    telling::{Telling, Told},
};

/// The kind of lives that are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Theme {
    /// Some dozens of messages within seconds, two processes that die, faults.
    Small,
    /// Everything, a few features at a time.
    Any,
    /// Bursts of messages that no handler can see.
    Junk,
    /// No faults and no deaths: here the checks are tightest.
    Calm,
    /// As small ones, each with several partitions that move between processes.
    Partitions,
}

impl Theme {
    /// Every theme.
    pub const ALL: [Self; 5] = [Self::Small, Self::Any, Self::Junk, Self::Calm, Self::Partitions];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Any => "any",
            Self::Junk => "junk",
            Self::Calm => "calm",
            Self::Partitions => "partitions",
        }
    }
}

/// The handler's behaviour for one payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// It writes its effect, after this many milliseconds.
    Good(u64),
    /// This many runs fail for now, and the next one is good.
    FailsFor(u32),
    /// Every run fails for now.
    FailsAlways,
    /// It says that it can never succeed.
    Permanent,
    /// This many runs panic.
    PanicsFor(u32),
    /// This many runs never return.
    HangsFor(u32),
    /// This many runs write their effect, then swallow a statement's error.
    SwallowsFor(u32),
    /// This many runs lose their connection.
    LosesConnectionFor(u32),
    /// This many runs send a COMMIT of their own.
    CommitsFor(u32),
    /// This many runs kill the process.
    KillsFor(u32),
    /// It always kills the process.
    KillsAlways,
}

impl Behaviour {
    /// Whether every run goes well, if nothing else goes wrong.
    #[must_use]
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Good(_))
    }
}

/// A function of the user's that finds a message's tenant, key or hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finds {
    /// The tenant.
    Tenant,
    /// The key.
    Key,
    /// The hash of the payload.
    Hash,
}

/// How such a function fails for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unidentified {
    /// Which.
    pub function: Finds,
    /// Whether it panics, where it answers with an error otherwise.
    pub panics: bool,
    /// It fails in so many calls; `None` for all of them.
    pub calls: Option<u32>,
}

/// The content that several messages may share: one message to the engine, if key and payload are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// `None` for junk, which no handler can see.
    pub key: Option<String>,
    /// The tenant, where the life has several.
    pub tenant: Option<String>,
    /// The payload.
    pub payload: String,
    /// The broker's ordering key.
    pub order: Option<String>,
    /// Its handler's behaviour.
    pub behaviour: Behaviour,
    /// The function that cannot identify it, if any.
    pub unidentified: Option<Unidentified>,
    /// The rows to which its handler adds 1 each, in this order, so that handlers wait for each other.
    pub accounts: Vec<u8>,
    /// Whether its handler writes a second row, in another table, with its effect.
    pub writes_twice: bool,
    /// The events that it publishes.
    pub tells: Vec<Told>,
}

impl Default for Content {
    /// A message without a key, which is handled well, at once and without an event.
    fn default() -> Self {
        Self {
            key: None,
            tenant: None,
            payload: String::new(),
            order: None,
            behaviour: Behaviour::Good(0),
            unidentified: None,
            accounts: Vec::new(),
            writes_twice: false,
            tells: Vec::new(),
        }
    }
}

impl Content {
    /// Tenant and key, within which an effect must happen once.
    #[must_use]
    pub fn scoped_key(&self) -> Option<String> {
        Some(format!("{}/{}", self.tenant.as_deref().unwrap_or_default(), self.key.as_deref()?))
    }
}

/// An event of the timeline, beside messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process dies after so many more polls, and is started again after a while.
    Kill {
        /// Which.
        process: usize,
        /// After how many polls from now on.
        polls: u64,
        /// For how long it is down, in milliseconds.
        down: u64,
    },
    /// A process is stopped in good order, and started again.
    Stop {
        /// Which.
        process: usize,
    },
    /// Every consumer loses its connection to the broker.
    Disconnect,
    /// Every assignment is taken away. Of partitions, some move on, or every member is turned out.
    Revoke(Revoke),
    /// A process reaches no group for so many milliseconds, and goes on with what it has.
    CutOff {
        /// Which.
        process: usize,
        /// For how long.
        milliseconds: u64,
    },
    /// Messages in flight are delivered again.
    ExpireLeases,
    /// An operator pauses the consumer for so many milliseconds.
    Pause(u64),
    /// An operator has every dead letter replayed that there is.
    Replay,
    /// The topic is deleted and created again, and its numbers begin anew.
    Recreate,
    /// A standby has received everything up to now and falls behind, or a backup is made.
    Checkpoint,
    /// The store's server restarts, or a standby takes over: from the checkpoint on everything is lost, where there was one.
    FailOver,
    /// The backup is restored, and once workers have seen that, everything is published again.
    Restore,
    /// An operator has the record of this content's key forgotten.
    Forget(usize),
    /// An operator stops the workers, gives the consumer another name, and starts them with that.
    Rename,
    /// An operator stops the workers, has the consumer bound anew, and starts workers with another handler's name and another hash rule,
    /// which still know the former rules.
    Rebind,
    /// The store's clock jumps so many milliseconds forward, or back.
    ClockJumps(i64),
}

/// How the members of a group are asked for what moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Everything is given back by everyone, and then assigned anew.
    Eager,
    /// Only what moves is given back; the rest goes on.
    Cooperative,
}

/// Several partitions, and the group in which the processes of a life share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitions {
    /// How many.
    pub count: usize,
    /// How they move.
    pub protocol: Protocol,
    /// After how long without a word from a member the group goes on without it.
    pub session: Duration,
    /// How long a member finishes what it is to give back.
    pub drain: Duration,
    /// How often a member commits its positions.
    pub commit_every: Duration,
}

/// A life.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Where all chance of this life comes from.
    pub seed: u64,
    /// Whether nothing goes wrong but messages and handlers.
    pub calm: bool,
    /// How many processes consume.
    pub processes: usize,
    /// The lanes of each.
    pub lanes: usize,
    /// Whether one call of the handler is for all fresh messages of a unit.
    pub in_batches: bool,
    /// Whether one unit writes at a time, as in a database inside the process.
    pub one_writer: bool,
    /// The messages of a unit.
    pub batch: usize,
    /// The messages in flight in a process.
    pub in_flight: usize,
    /// Which order the broker keeps.
    pub order: Order,
    /// Whether it keeps positions, as Kafka does.
    pub positions: bool,
    /// How long a delivery may stay unsettled.
    pub lease: Option<Duration>,
    /// Whether it says that it delivers again.
    pub marks_redelivery: bool,
    /// Whether the handler calls another service too.
    pub effects: Effects,
    /// Attempts and back-off.
    pub retry: RetryPolicy,
    /// The handler's deadline.
    pub deadline: Duration,
    /// How long a claim waits for others.
    pub busy_timeout: Duration,
    /// The limit of commits and of the store's other answers.
    pub answer_timeout: Duration,
    /// How long records are kept.
    pub retention: Duration,
    /// How often cleanup runs, if it does.
    pub cleanup_every: Option<Duration>,
    /// How long committed keys are remembered.
    pub cache_for: Option<Duration>,
    /// The policy for a used key with another payload.
    pub on_conflict: OnConflict,
    /// Whether many dead letters pause intake.
    pub breaker: bool,
    /// Whether dead letters are published too.
    pub publisher: bool,
    /// Whether messages have tenants.
    pub tenants: bool,
    /// How often workers read what operators want.
    pub control_every: Duration,
    /// How long a stop waits.
    pub drain: Duration,
    /// The faults of the store.
    pub weather: Weather,
    /// The faults of the broker.
    pub faults: Faults,
    /// The faults of the queue for dead letters.
    pub dead_letter_faults: Faults,
    /// How often the broker says a wrong number of deliveries.
    pub wrong_counts: Rate,
    /// How long a settlement takes at most, there and back, in milliseconds.
    pub settle_latency: u64,
    /// The contents of the messages.
    pub contents: Vec<Content>,
    /// Which of them is published when.
    pub messages: Vec<(Duration, usize)>,
    /// The other events, with their times.
    pub events: Vec<(Duration, Event)>,
    /// The events and calls, where there are any.
    pub telling: Option<Telling>,
    /// Several partitions, where there are any.
    pub partitions: Option<Partitions>,
}

impl Scenario {
    /// Draws the life of this seed.
    #[must_use]
    pub fn draw(theme: Theme, seed: u64) -> Self {
        draw::scenario(theme, seed)
    }

    /// When the last thing happens, after which all faults end.
    #[must_use]
    pub fn faults_end(&self) -> Duration {
        let last = self.messages.iter().map(|(at, _)| *at).chain(self.events.iter().map(|(at, _)| *at)).max();
        last.unwrap_or_default() + Duration::from_secs(1)
    }

    /// Whether the store goes back to what it was.
    #[must_use]
    pub fn goes_back(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, Event::FailOver | Event::Restore))
    }

    /// Whether any process is stopped in good order.
    #[must_use]
    pub fn stops(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, Event::Stop { .. } | Event::Rename | Event::Rebind))
    }

    /// Whether the consumer is bound anew at any time. Only then do its workers name their handler.
    #[must_use]
    pub fn rebinds(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, Event::Rebind))
    }

    /// How far the store's clock is moved, in all.
    #[must_use]
    pub fn clock_moves(&self) -> Duration {
        let moved = |event: &Event| if let Event::ClockJumps(by) = event { by.unsigned_abs() } else { 0 };
        Duration::from_millis(self.events.iter().map(|(_, event)| moved(event)).sum())
    }
}
