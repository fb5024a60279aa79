//! Matters that need a person, worst first, each with the command to type and a page to read on.

use std::time::Duration;

use idem_core::{
    cleanup::CleanupState,
    consumer::Pause,
    relay::RelayStanding,
    store::ControlState,
    worker::{IncidentKind, WaitCause},
};

use super::{html::Page, words};
use crate::{rates::Recent, status::Status};

/// One matter that needs a person.
#[derive(Debug)]
pub(super) struct Matter {
    /// Whether it keeps messages from being handled, or goes on happening now.
    pub(super) is_urgent: bool,
    pub(super) what: String,
    pub(super) more: String,
    /// The command to type, after `idem`.
    pub(super) command: Option<String>,
    /// Where to read on, under `docs/`.
    pub(super) docs: &'static str,
}

impl Matter {
    fn urgent(what: impl Into<String>, docs: &'static str) -> Self {
        Self { is_urgent: true, what: what.into(), more: String::new(), command: None, docs }
    }

    fn lasting(what: impl Into<String>, docs: &'static str) -> Self {
        Self { is_urgent: false, ..Self::urgent(what, docs) }
    }

    fn more(mut self, more: impl Into<String>) -> Self {
        self.more = more.into();
        self
    }

    fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }
}

/// Everything that needs a person, the urgent first.
pub(super) fn matters(status: &Status, recent: &Recent) -> Vec<Matter> {
    let mut matters = Vec::new();
    matters.extend(status.dead().map(|task| {
        Matter::urgent(format!("the task {task} died"), "errors/README.md#why-a-worker-ended")
            .more("this process ends, and must be started again; report the panic in its log")
    }));
    matters.extend(paused(status));
    matters.extend(unreachable(status));
    matters.extend(waiting(status));
    matters.extend(set_aside(status, recent));
    matters.extend(events(status));
    matters.extend(status.cleanup().filter(CleanupState::is_alarming).map(|cleanup| {
        let what = format!("cleanup failed {} times in a row", cleanup.failed_cycles);
        Matter::lasting(what, "guide/alerts.md#idemcleanupfails").command("doctor")
    }));
    matters.sort_by_key(|matter| !matter.is_urgent);
    matters
}

fn paused(status: &Status) -> Option<Matter> {
    let (pause, time) = status.pause()?;
    let more = time.map_or_else(String::new, |time| format!("paused for {}", words::span(time)));
    let consumer = words::word(status.consumer())?;
    let resume = format!("consumers resume {consumer}");
    let what = pause.to_string();
    let matter = match pause {
        Pause::Control(ControlState::Halted, _) => {
            Matter::urgent(what, "guide/alerts.md#idemhalted").command(resume).more(more)
        }
        Pause::Control(ControlState::Paused | ControlState::Running, _) => {
            Matter::lasting(what, "guide/alerts.md#idempaused").command(resume).more(more)
        }
        Pause::StoreDown(_) => Matter::urgent(what, "guide/alerts.md#idemdatabaseunreachable")
            .command("doctor")
            .more(format!("{more}; no attempt is charged, and it goes on by itself once the database answers")),
        Pause::Breaker => Matter::urgent("the breaker is open", "guide/alerts.md#idembreakeropen")
            .command(format!("dead-letters groups --consumer {consumer}"))
            .more(format!("{what}; {more}; one message a second is tried until one goes well")),
    };
    Some(matter)
}

fn unreachable(status: &Status) -> Option<Matter> {
    let time = status.broker_unreachable_for()?;
    let errors = status.recent(IncidentKind::Error);
    let why = errors.first().map_or_else(String::new, |error| error.text.clone());
    let what = format!("the broker cannot be used for {}", words::span(time));
    Some(Matter::urgent(what, "guide/alerts.md#idembrokerunreachable").more(why))
}

/// The waits that do not end by themselves.
fn waiting(status: &Status) -> Vec<Matter> {
    let matter = |wait: idem_core::worker::Wait| {
        let messages = words::counted(wait.messages as u64, "message", "messages");
        let more = format!("for up to {}", words::span(wait.longest));
        match wait.cause {
            WaitCause::Unkeepable => Some(
                Matter::urgent(
                    format!("{messages} that nothing can keep: not acknowledged, held for a person"),
                    "guide/alerts.md#idemunkeepable",
                )
                .command("stuck"),
            ),
            WaitCause::DeadLetterQuota => Some(
                Matter::urgent(
                    format!("{messages} held: the dead letters have used up their room"),
                    "guide/alerts.md#idemdeadlettersfillup",
                )
                .command("dead-letters groups"),
            ),
            WaitCause::Publisher if wait.longest >= Duration::from_secs(60) => Some(Matter::lasting(
                format!("{messages} held: the topic or queue for dead letters confirms nothing"),
                "guide/alerts.md#idemunpublished",
            )),
            WaitCause::Database if wait.longest >= Duration::from_secs(60) => Some(
                Matter::urgent(
                    format!("{messages} held: the database answers, and cannot serve their statements"),
                    "guide/alerts.md#idemstuck",
                )
                .command("stuck"),
            ),
            WaitCause::Retry
            | WaitCause::KeyHeld
            | WaitCause::Database
            | WaitCause::Bookkeeping
            | WaitCause::Publisher
            | WaitCause::Broker
            | WaitCause::Breaker
            | _ => None,
        }
        .map(|matter| matter.more(more))
    };
    status.waits().into_iter().filter_map(matter).collect()
}

/// Dead letters and conflicts that this process has met. Those of the last minute may be many more in the next.
fn set_aside(status: &Status, recent: &Recent) -> Vec<Matter> {
    let (counts, before) = (status.summary(), recent.before);
    let consumer = words::word(status.consumer()).unwrap_or_default();
    let told = |count: u64, before: u64, kind: IncidentKind| {
        let last = status.recent(kind).first().map(|incident| words::span(incident.ago()));
        let last = last.map_or_else(String::new, |last| format!(", the last {last} ago"));
        (count - before.min(count) > 0, format!("since this process started{last}"))
    };
    let mut matters = Vec::new();
    // A conflict that is set aside is a dead letter too, and needs no second line.
    let letters = counts.dead_lettered;
    if letters > 0 {
        let (is_urgent, more) = told(letters, before.dead_lettered, IncidentKind::DeadLetter);
        let what = match counts.conflicts {
            0 => words::counted(letters, "dead letter", "dead letters"),
            conflicts => format!(
                "{}, {} of a conflict",
                words::counted(letters, "dead letter", "dead letters"),
                words::grouped(conflicts.min(letters))
            ),
        };
        let matter = Matter::urgent(what, "errors/README.md#why-a-message-was-set-aside").more(more);
        matters.push(Matter { is_urgent, ..matter.command(format!("dead-letters groups --consumer {consumer}")) });
    } else if counts.conflicts > 0 {
        let (is_urgent, more) = told(counts.conflicts, before.conflicts, IncidentKind::Conflict);
        let what = format!("{} of keys", words::counted(counts.conflicts, "conflict", "conflicts"));
        matters.push(Matter { is_urgent, ..Matter::urgent(what, "errors/conflict.md").more(more) });
    }
    matters
}

fn events(status: &Status) -> Vec<Matter> {
    let mut matters = Vec::new();
    for relayed in status.relayed() {
        let to = &relayed.destination;
        let failed = relayed.backlog.as_ref().map_or(0, |backlog| backlog.failed);
        let destination = words::word(to);
        if failed > 0 {
            let what = format!("{} for {to} failed", words::counted(failed, "event", "events"));
            let matter = Matter::urgent(what, "guide/alerts.md#idemeventsfailed");
            matters.push(match &destination {
                Some(name) => matter.command(format!("outbox list --state failed --destination {name}")),
                None => matter.command("outbox list --state failed"),
            });
        }
        if let Some((why, time)) = relayed.trouble {
            let what = format!("nothing is sent to {to} for {}", words::span(time));
            matters.push(Matter::urgent(what, "guide/alerts.md#idemoutboxbehind").more(why));
        } else if relayed.standing == RelayStanding::Paused {
            let matter = Matter::lasting(format!("events for {to} are paused by an operator"), "guide/events-out.md");
            matters.push(match &destination {
                Some(name) => matter.command(format!("outbox resume {name}")),
                None => matter,
            });
        }
    }
    matters
}

/// Shows them, or that there is nothing.
pub(super) fn show(page: &mut Page, status: &Status, matters: &[Matter]) {
    if matters.is_empty() {
        return page.classed("p", "calm", "nothing asks for a person");
    }
    page.raw("<ul class=\"matters\">");
    for matter in matters {
        page.raw(if matter.is_urgent { "<li class=\"bad\">" } else { "<li class=\"wait\">" });
        page.element("strong", &matter.what);
        if !matter.more.is_empty() {
            page.element("div", &matter.more);
        }
        page.raw("<div class=\"do\">");
        if let Some(command) = &matter.command {
            page.element("code", status.command(command));
        }
        page.docs(matter.docs, "what to do");
        page.raw("</div></li>");
    }
    page.raw("</ul>");
}
