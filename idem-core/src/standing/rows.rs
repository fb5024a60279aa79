//! The rows that page, `/readyz` and the command print: of each condition its words, its level, its fix and where to read on.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use crate::{
    span::Roughly,
    standing::{COUNTED_MAX, Condition, Fact},
};

/// How soon an operator should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// It keeps messages from being handled, or goes on happening now.
    Error,
    /// It does so soon, or something is left over.
    Warning,
    /// It can wait.
    Notice,
}

impl Level {
    /// As the command shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

/// One condition in words. The same row is printed wherever the condition is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Which condition.
    pub condition: Condition,
    /// How soon to look.
    pub level: Level,
    /// The condition in one or two words, such as `breaker open`.
    pub state: &'static str,
    /// The condition in a sentence.
    pub what: String,
    /// For how long, as far as is known.
    pub time: Option<Duration>,
    /// How it goes on, and when it last happened; may be empty.
    pub more: String,
    /// The command to type, after `idem`.
    pub fix: Option<String>,
    /// Where to read on, under `docs/`.
    pub docs: &'static str,
}

impl Row {
    /// What it is, for how long and how it goes on, in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = self.what.clone();
        if let Some(time) = self.time {
            line += &format!(", for {}", Roughly(time));
        }
        if !self.more.is_empty() {
            line += "; ";
            line += &self.more;
        }
        line
    }
}

/// How recent a dead letter is that goes on happening.
const NOW: Duration = Duration::from_secs(60);

/// How long a key or a statement may be waited for before it is shown.
const WAITED: Duration = Duration::from_secs(60);

/// How long a message may wait in the inbox before that is shown.
const INBOX_LATE: Duration = Duration::from_secs(300);

/// The rows of a consumer, worst first. Facts about the same are one row: their numbers are added, and the earliest beginning counts.
#[must_use]
pub fn rows(consumer: &str, facts: impl IntoIterator<Item = Fact>, now: SystemTime) -> Vec<Row> {
    let mut merged: BTreeMap<(Condition, String), Fact> = BTreeMap::new();
    for fact in facts {
        let key = (fact.condition, fact.subject.clone());
        let Some(known) = merged.get_mut(&key) else {
            merged.insert(key, fact);
            continue;
        };
        known.count = known.count.saturating_add(fact.count);
        known.since = known.since.into_iter().chain(fact.since).min();
        known.latest = known.latest.max(fact.latest);
        if known.detail.is_empty() {
            known.detail = fact.detail;
        }
    }
    let mut rows: Vec<Row> = merged.values().filter_map(|fact| row(consumer, fact, now)).collect();
    rows.sort_by_key(|row| (row.level, row.condition));
    rows
}

fn row(consumer: &str, fact: &Fact, now: SystemTime) -> Option<Row> {
    let ago = |at: SystemTime| now.duration_since(at).unwrap_or_default();
    let (time, latest) = (fact.since.map(ago), fact.latest.map(ago));
    let (state, docs) = about(fact.condition)?;
    let level = level(fact.condition, time, latest)?;
    let (what, more) = words(fact, latest);
    Some(Row { condition: fact.condition, level, state, what, time, more, fix: fix(consumer, fact), docs })
}

/// The condition in one or two words, and where to read on.
const fn about(condition: Condition) -> Option<(&'static str, &'static str)> {
    use Condition as C;
    Some(match condition {
        C::TaskDied => ("broken", "errors/README.md#why-a-worker-ended"),
        C::CrashLoop => ("crash loop", "errors/README.md#why-a-worker-ended"),
        C::Halted => ("halted", "internals/alerts.md#idemhalted"),
        C::DatabaseDown => ("database down", "internals/alerts.md#idemdatabaseunreachable"),
        C::BrokerDown => ("broker down", "internals/alerts.md#idembrokerunreachable"),
        C::BreakerOpen => ("breaker open", "internals/alerts.md#idembreakeropen"),
        C::Paused => ("paused", "internals/alerts.md#idempaused"),
        C::DatabaseRefuses => ("database refuses", "internals/alerts.md#idemstuck"),
        C::Unkeepable => ("unkeepable", "internals/alerts.md#idemunkeepable"),
        C::DeadLettersFull => ("dead letters full", "internals/alerts.md#idemdeadlettersfillup"),
        C::KeyHeld => ("key held", "internals/alerts.md#idemstuck"),
        C::OpenTransaction => ("open transaction", "internals/alerts.md#idemstuck"),
        C::EventsFailed => ("events failed", "internals/alerts.md#idemeventsfailed"),
        C::EventsBlocked => ("events blocked", "internals/alerts.md#idemoutboxbehind"),
        C::DeadLetters => ("dead letters", "errors/README.md#why-a-message-was-set-aside"),
        C::ReplaysWait => ("replays wait", "guide/operations.md"),
        C::InboxUnheld => ("inbox unheld", "internals/alerts.md#ideminboxunheld"),
        C::InboxBehind => ("inbox behind", "internals/alerts.md#ideminboxbehind"),
        C::Unpublished => ("unpublished", "internals/alerts.md#idemunpublished"),
        C::CleanupFails => ("cleanup fails", "internals/alerts.md#idemcleanupfails"),
        C::EventsPaused => ("events paused", "guide/events-out.md"),
        C::Failed => return None,
    })
}

/// How soon to look; `None` where it is too soon to show it at all.
fn level(condition: Condition, time: Option<Duration>, latest: Option<Duration>) -> Option<Level> {
    use Condition as C;
    Some(match condition {
        C::KeyHeld | C::DatabaseRefuses | C::Unpublished if time.is_none_or(|time| time < WAITED) => return None,
        C::InboxUnheld if time.is_none_or(|time| time < WAITED) => return None,
        C::InboxBehind if time.is_none_or(|time| time < INBOX_LATE) => return None,
        C::DeadLetters if latest.is_some_and(|latest| latest <= NOW) => Level::Error,
        C::Paused | C::EventsPaused | C::DeadLetters => Level::Notice,
        C::ReplaysWait | C::InboxUnheld | C::InboxBehind | C::Unpublished | C::CleanupFails => Level::Warning,
        C::TaskDied
        | C::CrashLoop
        | C::Halted
        | C::DatabaseDown
        | C::BrokerDown
        | C::BreakerOpen
        | C::DatabaseRefuses
        | C::Unkeepable
        | C::DeadLettersFull
        | C::KeyHeld
        | C::OpenTransaction
        | C::EventsFailed
        | C::EventsBlocked
        | C::Failed => Level::Error,
    })
}

/// The condition in a sentence, and how it goes on.
fn words(fact: &Fact, latest: Option<Duration>) -> (String, String) {
    use Condition as C;
    let Fact { condition, count, subject, detail, .. } = fact;
    let of = |one, several| counted(*count, one, several);
    let messages = || of("message", "messages");
    let last = latest.map_or_else(String::new, |latest| format!("the last {} ago", Roughly(latest)));
    let (what, more) = match condition {
        C::TaskDied => (
            format!("the task {subject} died"),
            "this process ends, and must be started again; report the panic in its log",
        ),
        C::CrashLoop => {
            let how = [&*last, &**detail].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
            let what = format!("{} ended soon after their start", of("run", "runs"));
            return (what, how + ". A message that kills the process is dead-lettered when its attempts are used up");
        }
        C::Halted => (format!("halted by {detail}"), ""),
        C::Paused => (format!("paused by {detail}"), ""),
        C::DatabaseDown => (
            format!("{} cannot reach the database", of("lane", "lanes")),
            "no attempt is charged, and the worker continues by itself once the database answers",
        ),
        C::BrokerDown => ("the broker cannot be used".to_owned(), &**detail),
        C::BreakerOpen => (
            "the breaker is open: more than half of the last 50 fresh messages became dead letters".to_owned(),
            "one message a second is tried until one goes well",
        ),
        C::DatabaseRefuses => {
            (format!("{} held: the database answers, and cannot serve their statements", messages()), &**detail)
        }
        C::Unkeepable => (format!("{} that nothing can keep: not acknowledged, held for an operator", messages()), ""),
        C::DeadLettersFull => (format!("{} held: the dead letters have used up their room", messages()), ""),
        C::KeyHeld => (format!("{} held: another transaction holds their key", messages()), ""),
        C::OpenTransaction => ("a transaction is open: its handler waits for a lock, or is slow".to_owned(), ""),
        C::DeadLetters => {
            let about = if detail.is_empty() { String::new() } else { format!(", {detail}") };
            let open = if *count > COUNTED_MAX {
                format!("more than {} open dead letters", grouped(COUNTED_MAX))
            } else {
                of("open dead letter", "open dead letters")
            };
            (open + &about, &*last)
        }
        C::ReplaysWait => (
            format!("{} that no worker takes", of("replay", "replays")),
            "start a worker of this consumer, or find out why none takes messages in",
        ),
        C::InboxUnheld => (
            format!("messages wait in the inbox, and no worker holds {} of it", of("slot", "slots")),
            "start a worker of this consumer with --inbox or --inbox process",
        ),
        C::InboxBehind => (
            "the oldest message of the inbox is not handled".to_owned(),
            "start more workers, up to one a slot, or find out what holds them up",
        ),
        C::Unpublished => (format!("{} held: the topic or queue for dead letters confirms nothing", messages()), ""),
        C::EventsFailed => (format!("{} for {subject} failed", of("event", "events")), ""),
        C::EventsBlocked => (format!("nothing is sent to {subject}"), &**detail),
        C::EventsPaused => (format!("events for {subject} are paused by an operator"), ""),
        C::CleanupFails => (format!("cleanup failed {count} times in a row"), ""),
        C::Failed => (detail.clone(), ""),
    };
    // What the database said comes before how it goes on.
    if *condition == C::DatabaseDown && !detail.is_empty() {
        return (what, format!("{detail}; {more}"));
    }
    (what, more.to_owned())
}

/// The command to type, after `idem`.
fn fix(consumer: &str, fact: &Fact) -> Option<String> {
    use Condition as C;
    let with = |command: &str, word: &str| Some(format!("{command} {}", command_word(word)?));
    match fact.condition {
        C::Halted | C::Paused => with("consumers resume", consumer),
        C::BreakerOpen | C::DeadLettersFull | C::DeadLetters => with("dead-letters groups --consumer", consumer),
        C::EventsFailed => with("outbox list --state failed --destination", &fact.subject),
        C::EventsPaused => with("outbox resume", &fact.subject),
        C::CrashLoop | C::DatabaseRefuses | C::Unkeepable | C::KeyHeld | C::OpenTransaction => Some("stuck".to_owned()),
        C::DatabaseDown | C::CleanupFails => Some("doctor".to_owned()),
        C::ReplaysWait | C::InboxUnheld | C::InboxBehind => Some("workers".to_owned()),
        C::TaskDied | C::BrokerDown | C::Unpublished | C::EventsBlocked | C::Failed => None,
    }
}

/// A count with its thousands apart and its noun: `3,011 messages`.
fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { several })
}

fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// One word of a command line; `None` where the text cannot be shown as it is, and so not be copied either.
#[must_use]
pub fn command_word(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    let misleads = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if text.chars().any(misleads) {
        return None;
    }
    if !text.is_empty() && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    Some(format!("'{}'", text.replace('\'', r"'\''")))
}
