//! The conditions that must hold when everything is at rest. The oracle knows what was published, what handlers had to do,
//! and what idem promises, and nothing of how idem does it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use idem_core::{Bytes, config::OnConflict, dead_letter::Reason};
use idem_testkit::{
    KeptDeadLetter, Operation,
    memory::{Order, Rate},
};

use crate::{
    bounds, calls,
    draw::WEEK,
    journal::Rule,
    receivers,
    scenario::{Behaviour, Content, Event},
    world::{ACCOUNTS, Known, Publication, Run, SECONDS, World},
};

/// A record may be so much older than its handler's run: its claim may have waited, and the attempt is counted behind it.
pub(crate) const CLAIM_WAITS: Duration = Duration::from_secs(20);

struct Judge<'w> {
    world: &'w World,
    known: std::sync::MutexGuard<'w, Known>,
    /// Key and run of each effect, in the order of commits.
    effects: Vec<(String, usize)>,
    dead: Vec<KeptDeadLetter>,
    /// The contents that were published as dead letters.
    published: BTreeSet<usize>,
    conflicts: BTreeSet<String>,
}

/// Judges a life.
pub(crate) fn judge(world: &World) {
    let conflicts = world.store.audited().into_iter().filter(|(action, _)| action == "conflict" || action == "halt");
    let judge = Judge {
        effects: world.effects(),
        dead: world.store.kept_dead_letters(),
        published: world.published_dead(),
        conflicts: conflicts.filter_map(|(_, key)| key).collect(),
        known: world.known(),
        world,
    };
    judge.effects_happen_once();
    judge.records_and_effects_agree();
    judge.sums_are_right();
    judge.effects_are_whole();
    judge.dead_letters_are_earned();
    judge.order_is_kept();
    judge.answers_are_kept();
    // A consumer that has halted leaves the rest to a person, and one that still works has not lost anything yet.
    let is_at_rest = world.halts.load(Ordering::SeqCst) == 0 && world.is_drained();
    if is_at_rest {
        judge.nothing_is_lost();
        judge.dead_letters_are_published();
        judge.good_messages_are_soon();
    }
    drop(judge);
    receivers::judge(world, is_at_rest);
}

impl Judge<'_> {
    fn breach(&self, rule: Rule, text: String) {
        self.world.journal.breach(rule, text);
    }

    fn content_of(&self, run: usize) -> usize {
        self.known.runs.get(run).map_or(usize::MAX, |run| run.content)
    }

    fn payload(&self, content: usize) -> Option<&str> {
        self.world.scenario.contents.get(content).map(|about| about.payload.as_str())
    }

    fn has_effect(&self, key: &str, payload: &str) -> bool {
        self.effects.iter().any(|(of, run)| of == key && self.payload(self.content_of(*run)) == Some(payload))
    }

    fn effects_happen_once(&self) {
        let kept_for = self.world.scenario.retention.saturating_sub(CLAIM_WAITS);
        let mut last: BTreeMap<&str, &Run> = BTreeMap::new();
        for (key, run) in &self.effects {
            let Some(again) = self.known.runs.get(*run) else {
                self.breach(Rule::SecondEffect, format!("{key} has an effect of no run"));
                continue;
            };
            let Some(before) = last.insert(key, again) else { continue };
            let kept = again.clock_max < before.claimed + kept_for;
            let forgotten = self.known.disasters.was_forgotten(key, before.began, again.returned);
            if kept && !forgotten {
                let (before, again) = (before.began, again.began);
                self.breach(Rule::SecondEffect, format!("{key} was handled at {before:?} and again at {again:?}"));
            }
        }
    }

    /// A record is there for each effect that is younger than the retention, and none without an effect.
    fn records_and_effects_agree(&self) {
        // Those of calls are judged by what callers are answered.
        let mut records = self.world.store.records();
        records.retain(|(_, record)| !record.key.as_str().starts_with(calls::KEY));
        let (_, clock_max) = self.known.disasters.clock(self.world.store.now(), self.world.journal.now());
        let bare = |key: &str| key.split_once('/').map_or(key, |(_, key)| key).to_owned();
        let all: BTreeSet<&str> = self.effects.iter().map(|(key, _)| key.as_str()).collect();
        let kept_for = self.world.scenario.retention.saturating_sub(CLAIM_WAITS);
        let young = |run: usize| self.known.runs.get(run).is_some_and(|run| run.claimed + kept_for > clock_max);
        let kept: BTreeSet<&str> =
            self.effects.iter().filter(|(_, run)| young(*run)).map(|(key, _)| key.as_str()).collect();
        let count = |of: &BTreeSet<&str>, key: &str| of.iter().filter(|effect| bare(effect) == key).count();
        let keys: BTreeSet<String> =
            all.iter().map(|key| bare(key)).chain(records.iter().map(|(_, r)| r.key.as_str().to_owned())).collect();
        for key in keys {
            let recorded = records.iter().filter(|(_, record)| record.key.as_str() == key).count();
            if recorded > count(&all, &key) {
                self.breach(Rule::RecordWithoutEffect, format!("{key} has {recorded} records and fewer effects"));
            }
            if recorded < count(&kept, &key) && !self.known.disasters.has_forgotten(&key) {
                self.breach(Rule::RecordWithoutEffect, format!("{key} has an effect without its record"));
            }
        }
    }

    /// In any order of handlers, each effect has added 1 to each of its rows.
    fn sums_are_right(&self) {
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        for (_, run) in &self.effects {
            let Some(about) = self.world.scenario.contents.get(self.content_of(*run)) else { continue };
            about.accounts.iter().for_each(|account| *sums.entry(account.to_string()).or_default() += 1);
        }
        let number = |value: &Bytes| std::str::from_utf8(value).ok()?.parse().ok();
        let told: BTreeMap<String, i64> = self
            .world
            .store
            .rows(ACCOUNTS)
            .into_iter()
            .filter_map(|(key, value)| Some((key, number(&value)?)))
            .collect();
        if told != sums {
            self.breach(Rule::WrongSum, format!("the effects add up to {sums:?}, and the rows have {told:?}"));
        }
    }

    /// A run that writes two rows has written both, or neither.
    fn effects_are_whole(&self) {
        let is_twofold = |run: usize| {
            self.world.scenario.contents.get(self.content_of(run)).is_some_and(|content| content.writes_twice)
        };
        let first: BTreeSet<_> = self.effects.iter().filter(|(_, run)| is_twofold(*run)).cloned().collect();
        let second: BTreeSet<_> = self.world.runs_of(SECONDS).into_iter().collect();
        for (key, run) in first.symmetric_difference(&second) {
            self.breach(Rule::HalfAnEffect, format!("run {run} has written one of its two rows of {key}"));
        }
    }

    /// Whether this dead letter is of this message.
    fn is_of(kept: &KeptDeadLetter, publication: &Publication) -> bool {
        kept.message.as_ref().is_some_and(|message| {
            message.payload() == publication.message.payload() && message.headers() == publication.message.headers()
        })
    }

    fn nothing_is_lost(&self) {
        let generation = self.world.generation.load(Ordering::SeqCst);
        // Unsettled messages of a deleted topic are gone with it.
        let there = self.known.publications.iter().enumerate().filter(|(_, of)| of.generation == generation);
        for (number, publication) in there {
            let about = &self.world.scenario.contents[publication.content];
            let handled = about.scoped_key().is_some_and(|key| self.has_effect(&key, &about.payload));
            let audited = self.is_acknowledged_conflict(about);
            let dead = self.dead.iter().any(|kept| Self::is_of(kept, publication));
            if !handled && !dead && !audited && !self.known.disasters.is_undone(publication.content) {
                self.breach(Rule::Lost, format!("m{number} ({about:?}) has neither an effect nor a dead letter"));
            }
        }
    }

    /// Whether the trail has a conflict of this key that the policy acknowledges, over an effect of the same tenant. The effect may be
    /// undone by now.
    fn is_acknowledged_conflict(&self, about: &Content) -> bool {
        let (Some(key), Some(scoped)) = (&about.key, about.scoped_key()) else { return false };
        self.world.scenario.on_conflict == OnConflict::Acknowledge
            && self.conflicts.contains(key)
            && (self.effects.iter().any(|(of, _)| *of == scoped)
                || self.has_twin(about, |twin| self.known.disasters.was_undone(twin)))
    }

    /// Each row was published, and each publication has its row, or had it until an operator had it replayed.
    fn dead_letters_are_published(&self) {
        // A store that went back has lost rows that were published.
        if !self.world.scenario.publisher || self.world.scenario.goes_back() {
            return;
        }
        let rows: BTreeSet<usize> = self
            .dead
            .iter()
            .filter_map(|kept| kept.message.as_ref())
            .map(|message| self.world.content(message))
            .collect();
        // One that came again to another process before its dead letter was published may have been handled there.
        let elsewhere = self.world.scenario.processes > 1
            || self.world.deaths.load(Ordering::SeqCst) > 0
            || self.world.scenario.stops();
        // So may one that nobody could identify for a while: whether it is the same message only its key could tell.
        let handled = |content: usize| {
            let about = self.world.scenario.contents.get(content);
            let comes_to_be_known =
                about.and_then(|about| about.unidentified.as_ref()).is_some_and(|fails| fails.calls.is_some());
            ((elsewhere || comes_to_be_known) && self.effects.iter().any(|(_, run)| self.content_of(*run) == content))
                || about.is_some_and(|about| self.is_acknowledged_conflict(about))
        };
        // What was unsettled on a topic that was deleted is gone with it, and its row is there.
        let is_there = self.world.generation.load(Ordering::SeqCst) == 0;
        // Where the breaker is open, publications that fail are tried again one a second, and a lease leaves few seconds before
        // the row alone is the dead letter (J57).
        let gives_up = self.world.scenario.breaker
            && self.world.scenario.lease.is_some()
            && self.world.scenario.dead_letter_faults.publishes_refused != Rate::Never;
        let owed = is_there && !gives_up;
        for content in rows.difference(&self.published).filter(|content| owed && !handled(**content)) {
            self.breach(Rule::NotPublished, format!("c{content} is a dead letter that was not published"));
        }
        for content in self.published.difference(&rows).filter(|content| !self.known.replayed.contains(content)) {
            self.breach(Rule::NotPublished, format!("c{content} was published as a dead letter, and has no row"));
        }
    }

    fn dead_letters_are_earned(&self) {
        // A row that waits behind another one is no dead letter: that of a process that died has a lease.
        for kept in self.dead.iter().filter(|kept| kept.row.waits_until.is_none()) {
            let Some(message) = &kept.message else { continue };
            let content = self.world.content(message);
            let Some(about) = self.world.scenario.contents.get(content) else {
                self.breach(Rule::Unearned, format!("a dead letter of no message: {kept:?}"));
                continue;
            };
            // The effect that earned it may be undone.
            let earned = self.known.disasters.is_undone(content)
                || match kept.row.reason {
                    Reason::MissingKey => about.key.is_none(),
                    Reason::Malformed => about.unidentified.is_some(),
                    Reason::Conflict => {
                        let other = |run: usize| self.payload(self.content_of(run)) != Some(about.payload.as_str());
                        let key = about.scoped_key();
                        self.effects.iter().any(|(of, run)| Some(of) == key.as_ref() && other(*run))
                            // It was judged by a record that the store has lost before the dead letter was written.
                            || self.has_twin(about, |twin| self.known.disasters.was_undone(twin))
                    }
                    // Its key was used before, and the event of that use waited still.
                    Reason::OutboxConflict => self.has_twin(about, |_| true),
                    Reason::Permanent => about.behaviour == Behaviour::Permanent,
                    Reason::AttemptsExhausted | Reason::Deadline => self.is_exhausted(content),
                    // Nothing in a life leads to any of these.
                    Reason::KeyCollision
                    | Reason::HashUnknown
                    | Reason::UnknownType
                    | Reason::OlderThanRetention
                    | Reason::TooLarge
                    | _ => false,
                };
            if !earned {
                self.breach(
                    Rule::Unearned,
                    format!("c{content} ({about:?}) is a dead letter: {}, {}", kept.row.reason, kept.row.error),
                );
            }
            self.not_while_running(content, kept);
        }
    }

    /// Whether another content of which this holds has its key.
    fn has_twin(&self, about: &Content, holds: impl Fn(usize) -> bool) -> bool {
        let is_twin = |other: &Content| other.scoped_key() == about.scoped_key() && other.payload != about.payload;
        self.world.scenario.contents.iter().enumerate().any(|(content, other)| is_twin(other) && holds(content))
    }

    /// Each record has the answer of the run whose effect it stands for, where answers are kept.
    fn answers_are_kept(&self) {
        let scenario = &self.world.scenario;
        // Records and results past their retention may be gone.
        if scenario.telling.is_none() || scenario.retention < WEEK || !scenario.clock_moves().is_zero() {
            return;
        }
        let results = self.world.store.results();
        for (scope, record) in self.world.store.records() {
            let key = record.key.as_str();
            if key.starts_with(calls::KEY) {
                continue;
            }
            let kept = results.iter().find(|result| (result.scope, &result.key) == (scope, &record.key));
            let run = kept.and_then(|kept| std::str::from_utf8(&kept.result.body).ok()?.parse::<usize>().ok());
            // The last of each tenant, where several have the key.
            let of_key = self.effects.iter().filter(|(of, _)| of.split_once('/').is_some_and(|(_, own)| own == key));
            let last: BTreeMap<&str, usize> = of_key.map(|(of, run)| (of.as_str(), *run)).collect();
            if !last.values().any(|effect| Some(*effect) == run) {
                let text = format!("{key} has the answer {kept:?}, which is of no run that counts");
                self.breach(Rule::OtherAnswer, text);
            }
        }
    }

    /// Whether so many runs came to nothing as there are attempts: by the handler's doing, the store's or a death.
    fn is_exhausted(&self, content: usize) -> bool {
        let committed = self.effects.iter().filter(|(_, run)| self.content_of(*run) == content).count() as u64;
        let failed = u64::from(self.known.contents[content].runs).saturating_sub(committed);
        let met = |operation| self.world.store.faults_met(operation);
        // A claim or a commit that others were in the way of is charged after the third time in a row.
        let in_the_way = (met(Operation::Claim) + met(Operation::Append) + met(Operation::Commit)) / 4;
        let deaths = self.world.deaths.load(Ordering::SeqCst);
        // A count whose answer was lost counts where a message comes again: another process may have died of it.
        let seen = self.known.contents[content];
        let counts_lost = if seen.deliveries > 1 { met(Operation::Bookkeeping) } else { 0 };
        // An attempt that was counted is not taken back where the process gives up on it, as its drain deadline passes, and
        // not before another process finds it where all sessions end, or a member loses its partitions, between the count and
        // the run.
        let cut_off = self.world.cut_off.load(Ordering::SeqCst) + self.known.disasters.ended_sessions();
        failed + in_the_way + counts_lost + deaths + cut_off >= u64::from(self.world.scenario.retry.attempts)
    }

    /// When it became a dead letter, by the life's own time.
    fn stored_at(&self, kept: &KeptDeadLetter) -> Duration {
        let age = self.world.store.now().duration_since(kept.row.first_at).unwrap_or_default();
        self.world.journal.now().saturating_sub(age)
    }

    /// Nothing is a dead letter for its attempts while the run is under way that then commits.
    fn not_while_running(&self, content: usize, kept: &KeptDeadLetter) {
        // When it was stored is known by the store's clock alone.
        if kept.row.reason != Reason::AttemptsExhausted || !self.world.scenario.clock_moves().is_zero() {
            return;
        }
        let at = self.stored_at(kept);
        for (_, run) in self.effects.iter().filter(|(_, run)| self.content_of(*run) == content) {
            let of = &self.known.runs[*run];
            if of.began < at && of.returned.is_none_or(|returned| at < returned) {
                self.breach(
                    Rule::DeadWhileRunning,
                    format!("c{content} became a dead letter at {at:?}, while run {run} handled it"),
                );
            }
        }
    }

    /// Where the broker gives a key to one consumer at a time, its effects are in the order of publishing.
    fn order_is_kept(&self) {
        let scenario = &self.world.scenario;
        let exclusive = scenario.positions || scenario.order == Order::ByKeyOneAtATime;
        if !exclusive || self.world.generation.load(Ordering::SeqCst) > 0 {
            return;
        }
        // Of keys that were used once, and whose message never became a dead letter.
        let mut uses: BTreeMap<String, u32> = BTreeMap::new();
        let scoped = |publication: &Publication| scenario.contents[publication.content].scoped_key();
        self.known.publications.iter().filter_map(scoped).for_each(|key| *uses.entry(key).or_default() += 1);
        // A message waits behind the rows of its own tenant.
        let replays = scenario.events.iter().any(|(_, event)| *event == Event::Replay);
        let mut last: BTreeMap<(&str, &str), (usize, &str)> = BTreeMap::new();
        let mut first: BTreeSet<&str> = BTreeSet::new();
        // A message that comes again after its record is gone is handled again, whenever that is.
        for (key, run) in self.effects.iter().filter(|(key, _)| first.insert(key)) {
            let content = self.content_of(*run);
            let Some(order) = scenario.contents.get(content).and_then(|about| about.order.as_deref()) else { continue };
            let of = self.known.publications.iter().enumerate().find(|(_, publication)| publication.content == content);
            let Some((number, publication)) = of else { continue };
            if self.known.disasters.is_undone(content)
                || uses.get(key) != Some(&1)
                || self.dead.iter().any(|kept| Self::is_of(kept, publication))
            {
                continue;
            }
            let tenant = key.split_once('/').filter(|_| replays).map_or("", |(tenant, _)| tenant);
            if let Some((before, of)) = last.insert((tenant, order), (number, key))
                && before > number
            {
                self.breach(
                    Rule::OutOfOrder,
                    format!("{key} (m{number}) was handled after {of} (m{before}), both of {order}"),
                );
            }
        }
    }

    /// Only where nothing is in the way: no fault, no conflict, and every handler is good.
    fn good_messages_are_soon(&self) {
        let scenario = &self.world.scenario;
        let keys: BTreeSet<_> = scenario.contents.iter().filter_map(crate::scenario::Content::scoped_key).collect();
        let handled = scenario.contents.iter().filter(|about| about.key.is_some());
        let clear = handled.clone().count() == keys.len() && handled.clone().all(|about| about.behaviour.is_good());
        if !scenario.calm || !scenario.events.is_empty() || !clear {
            return;
        }
        let within = bounds::good_message(scenario);
        let is_good = |content: usize| scenario.contents[content].unidentified.is_none();
        for publication in self.known.publications.iter().filter(|publication| is_good(publication.content)) {
            let first = self.known.runs.iter().find(|run| run.content == publication.content);
            let Some(first) = first else { continue };
            let repeated = self.known.publications.iter().find(|other| other.content == publication.content);
            let sent = repeated.map_or(publication.at, |first| first.at);
            if first.began > sent + within {
                let about = &scenario.contents[publication.content];
                self.breach(
                    Rule::Late,
                    format!("{about:?} was published at {sent:?} and handled at {:?}", first.began),
                );
            }
        }
    }
}
