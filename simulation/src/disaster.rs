//! Disasters of the store as a whole: failovers that lose the last commits, restores, another clock; and records that operators
//! have forgotten. Less can be demanded afterwards; this module keeps how much.

use std::{
    collections::BTreeSet,
    sync::PoisonError,
    time::{Duration, SystemTime},
};

use idem_core::{
    ConsumerName, IdempotencyKey, Tenant,
    store::{Bookkeeping as _, ControlState, ScopeId},
};
use tokio::time::sleep;

use crate::{
    journal::Happened,
    life::{answered, control},
    oracle::CLAIM_WAITS,
    world::World,
};

/// By when workers no longer answer from memory after another server has taken over: they ask once a second whether it is the
/// same, and believe an answer for two.
const WORKERS_SEE: Duration = Duration::from_secs(5);

/// The disasters of the store so far.
///
/// After it went back, promise T cannot hold for what it lost: the message is acknowledged, and its effect is gone. So for
/// these contents record and effect must be gone together and nothing may happen twice, but they need not be complete or in
/// order, nor their dead letters earned. For all others every promise is checked. Once everything was published again,
/// completeness is checked for all.
#[derive(Debug, Default)]
pub(crate) struct Disasters {
    /// Contents whose effects, dead letters or audit lines the store has lost.
    undone: BTreeSet<usize>,
    /// The same, also those whose messages were published again since.
    ever_undone: BTreeSet<usize>,
    /// How many settlements there were when everything was published again last.
    published_again: u64,
    times: u32,
    /// How often all sessions have ended.
    ended_sessions: u64,
    forgotten: Vec<(String, Duration)>,
    clock_max: Option<SystemTime>,
    /// When the clock jumped forward last, and how far.
    jumped: Option<(Duration, Duration)>,
}

impl Disasters {
    /// Whether the store has lost what came of this content.
    pub(crate) fn is_undone(&self, content: usize) -> bool {
        self.undone.contains(&content)
    }

    /// Whether the store has ever lost what came of this content.
    pub(crate) fn was_undone(&self, content: usize) -> bool {
        self.ever_undone.contains(&content)
    }

    /// The same of a message whose settlement with this number came before everything was published again.
    pub(crate) fn was_undone_by(&self, content: usize, settlement: u64) -> bool {
        self.was_undone(content) && settlement < self.published_again
    }

    /// How often the store has gone back.
    pub(crate) fn times(&self) -> u32 {
        self.times
    }

    /// How often all sessions have ended.
    pub(crate) fn ended_sessions(&self) -> u64 {
        self.ended_sessions
    }

    /// How often attempts may have been counted anew.
    pub(crate) fn counted_anew(&self) -> u32 {
        self.times + u32::try_from(self.forgotten.len()).unwrap_or(u32::MAX)
    }

    /// Whether a key was forgotten between the beginning of one run and the end of another.
    pub(crate) fn was_forgotten(&self, key: &str, began: Duration, returned: Option<Duration>) -> bool {
        let between = |at: Duration| began <= at && returned.is_none_or(|returned| at <= returned);
        self.forgotten.iter().any(|(of, at)| of == key && between(*at))
    }

    /// Whether a key was forgotten for any tenant.
    pub(crate) fn has_forgotten(&self, bare_key: &str) -> bool {
        self.forgotten.iter().any(|(of, _)| of.split_once('/').is_some_and(|(_, key)| key == bare_key))
    }

    /// When a run that begins now was claimed at the earliest by the store's clock, and the latest time that it ever showed.
    pub(crate) fn clock(&self, clock: SystemTime, now: Duration) -> (SystemTime, SystemTime) {
        let just = self.jumped.filter(|(at, _)| *at + CLAIM_WAITS > now).map_or(Duration::ZERO, |(_, by)| by);
        (clock - just, self.clock_max.map_or(clock, |max| max.max(clock)))
    }
}

impl World {
    /// Whether the store has lost what came of this content.
    pub(crate) fn is_undone(&self, content: usize) -> bool {
        self.known().disasters.is_undone(content)
    }

    /// The contents with an effect, a dead letter or a line of the audit trail, once for each.
    fn outcomes(&self) -> Vec<usize> {
        let contents = &self.scenario.contents;
        let mut outcomes = Vec::new();
        for (key, _) in self.effects() {
            let of_key = |content: &usize| contents[*content].scoped_key().as_ref() == Some(&key);
            outcomes.extend((0..contents.len()).filter(of_key));
        }
        for kept in self.store.kept_dead_letters() {
            let content = kept.message.as_ref().map(|message| self.content(message));
            outcomes.extend((0..contents.len()).filter(|other| Some(self.first_equal(*other)) == content));
        }
        for (_, key) in self.store.audited() {
            let of_key = |content: &usize| key.is_some() && contents[*content].key == key;
            outcomes.extend((0..contents.len()).filter(of_key));
        }
        outcomes.sort_unstable();
        outcomes
    }
}

/// From here on the standby receives nothing.
pub(crate) fn checkpoint(world: &World) {
    *world.checkpoint.lock().unwrap_or_else(PoisonError::into_inner) = Some(world.store.checkpoint());
}

/// Another server takes over, with what it has.
pub(crate) async fn fail_over(world: &World) {
    world.known().disasters.ended_sessions += 1;
    let checkpoint = world.checkpoint.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(checkpoint) = checkpoint else {
        world.store.end_sessions();
        return;
    };
    let before = world.outcomes();
    world.store.go_back_to(&checkpoint);
    let after = world.outcomes();
    let count = |of: &[usize], content: usize| of.iter().filter(|other| **other == content).count();
    let undone: Vec<usize> =
        before.iter().copied().filter(|content| count(&before, *content) > count(&after, *content)).collect();
    let is_paused = {
        let mut known = world.known();
        known.disasters.times += 1;
        known.disasters.ever_undone.extend(undone.iter().copied());
        known.disasters.undone.extend(undone);
        known.paused_since.is_some()
    };
    world.journal.note(&Happened::Noted(format!("the store has lost {:?}", world.known().disasters.undone)));
    // An operator's control may be lost too.
    control(world, if is_paused { ControlState::Paused } else { ControlState::Running }).await;
}

/// A backup is restored; and as its page of the guide says, everything is published again.
pub(crate) async fn restore(world: &World) {
    fail_over(world).await;
    sleep(WORKERS_SEE).await;
    let contents: Vec<usize> = {
        let mut known = world.known();
        known.disasters.undone.clear();
        known.disasters.published_again = known.settlements;
        let contents: BTreeSet<usize> = known.publications.iter().map(|publication| publication.content).collect();
        contents.into_iter().collect()
    };
    contents.into_iter().for_each(|content| world.publish(content));
}

/// An operator has a key forgotten, for as long as it takes.
pub(crate) async fn forget(world: &World, content: usize) {
    let about = &world.scenario.contents[content];
    let (Some(key), Some(scoped)) = (about.key.as_deref(), about.scoped_key()) else { return };
    let (Ok(key), scope) = (IdempotencyKey::new(key), scope_of(world, about.tenant.as_deref()).await) else { return };
    let at = world.journal.now();
    if scope.is_some_and(|scope| world.store.forget(scope, &key)) {
        world.journal.note(&Happened::Noted(format!("the record of {scoped} is forgotten")));
        world.known().disasters.forgotten.push((scoped, at));
    }
}

async fn scope_of(world: &World, tenant: Option<&str>) -> Option<ScopeId> {
    let tenant = tenant.map_or(Ok(Tenant::default()), Tenant::new).ok()?;
    let asks = async {
        loop {
            // It may be renamed meanwhile.
            if let Ok(consumer) = ConsumerName::new(world.consumer())
                && let Ok(scope) = world.store.scope(&consumer, &tenant).await
            {
                break scope;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    answered(world, "a tenant's row", asks).await
}

/// The store's clock is set right, or wrong.
pub(crate) fn clock_jumps(world: &World, milliseconds: i64) {
    let by = Duration::from_millis(milliseconds.unsigned_abs());
    let (now, before) = (world.journal.now(), world.store.now());
    if milliseconds < 0 {
        world.store.set_back(by);
    } else {
        world.store.advance(by);
    }
    let disasters = &mut world.known().disasters;
    let clock = before.max(world.store.now());
    disasters.clock_max = Some(disasters.clock_max.map_or(clock, |max| max.max(clock)));
    if milliseconds > 0 {
        let just = disasters.jumped.filter(|(at, _)| *at + CLAIM_WAITS > now).map_or(Duration::ZERO, |(_, by)| by);
        disasters.jumped = Some((now, just + by));
    }
}
