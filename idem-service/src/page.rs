//! The page at `/`: the live state of the worker, for a person with a phone. No script, and nothing from elsewhere.

mod attention;
mod html;
mod words;

use std::fmt::{Display, Write as _};

use idem_core::{
    cleanup::CleanupState,
    inbox::InboxBacklog,
    relay::{RelayStanding, Relayed},
    source::Behind,
    standing::{Level, Row},
    worker::{Incident, IncidentKind, Load, Summary, Wait, WaitCause},
};
use tokio::time::Instant;

use self::{
    html::Page,
    words::{grouped, span},
};
use crate::{
    rates::Recent,
    served::{RouteServed, Served},
    status::Status,
};

/// The style sheet, a resource of its own so that the page needs no leave for styles in line.
pub(crate) const STYLE: &str = include_str!("page.css");

/// Where it is.
pub(crate) const STYLE_PATH: &str = "/page.css";

/// How many partitions are named, those that are furthest behind first.
const PARTITIONS_MAX: usize = 20;

/// The page as it is now.
pub(crate) fn html(status: &Status) -> String {
    let consumer = status.consumer();
    let recent = status.last_minute(Instant::now());
    let rows = status.rows();
    let mut page = Page::default();
    page.raw("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    page.raw("<meta name=\"color-scheme\" content=\"light dark\">");
    page.raw("<meta http-equiv=\"refresh\" content=\"5\"><link rel=\"stylesheet\" href=\"");
    page.raw(STYLE_PATH);
    page.raw("\">");
    // A tab in the background shows it too.
    match rows.len() {
        0 => page.element("title", format_args!("{consumer} · idem")),
        count => page.element("title", format_args!("({count}) {consumer} · idem")),
    }
    page.raw("</head><body><header>");
    page.element("h1", consumer);
    state(&mut page, status, &rows);
    page.raw("</header>");
    attention::show(&mut page, status, &rows);
    page.raw("<main>");
    let queue = status.queue();
    if let Some(load) = status.load() {
        outcomes(&mut page, &status.summary(), &recent);
        in_hand(&mut page, &load, &status.waits());
        partitions(&mut page, status.lag());
        waiting(&mut page, queue);
    } else if status.receiver().is_some() {
        partitions(&mut page, status.lag());
        waiting(&mut page, queue);
    }
    if let Some(backlog) = status.inbox() {
        inbox(&mut page, &backlog);
    }
    if let Some(served) = status.served() {
        requests(&mut page, &served);
    }
    events(&mut page, &status.relayed());
    if let Some(cleanup) = status.cleanup() {
        cleaning(&mut page, &cleanup);
    }
    page.raw("</main>");
    incidents(&mut page, status, "Recent dead letters", IncidentKind::DeadLetter);
    incidents(&mut page, status, "Recent conflicts", IncidentKind::Conflict);
    incidents(&mut page, status, "Last errors", IncidentKind::Error);
    about(&mut page, status);
    page.raw("</body></html>");
    page.0
}

fn state(page: &mut Page, status: &Status, rows: &[Row]) {
    let readiness = status.readiness();
    let (class, word) = match rows.iter().find(|row| row.condition.stops()) {
        Some(row) if row.level == Level::Error => ("state bad", row.state),
        Some(row) => ("state wait", row.state),
        None if readiness.database == "down" => ("state bad", "database down"),
        None if status.stop.is_cancelled() => ("state wait", "stopping"),
        None if !readiness.ready => ("state wait", "starting"),
        None if status.served().is_some() => ("state good", "serving"),
        None if status.receiver().is_some() => ("state good", "receiving"),
        None if status.load().is_none() => ("state good", "relaying"),
        None => ("state good", "consuming"),
    };
    page.classed("p", class, word);
    page.raw("<p class=\"more\">");
    let facts = status.identity().into_iter().flat_map(|identity| &identity.place);
    for (what, value) in facts {
        page.text(format_args!("{what} {value} · "));
    }
    page.text(format_args!("database {} · breaker {}", readiness.database, readiness.breaker));
    page.raw("</p>");
}

fn outcomes(page: &mut Page, counts: &Summary, recent: &Recent) {
    let before = &recent.before;
    let rows = [
        ("processed", counts.processed, before.processed, ""),
        ("duplicates skipped", counts.duplicates, before.duplicates, ""),
        ("conflicts", counts.conflicts, before.conflicts, "loud"),
        ("dead letters", counts.dead_lettered, before.dead_lettered, "loud"),
        ("retries", counts.retries, before.retries, ""),
        ("waits for somebody else", counts.busy, before.busy, ""),
        ("given back to the broker", counts.released, before.released, ""),
        ("replayed", counts.replayed, before.replayed, ""),
    ];
    let rows = rows.map(|(name, count, before, loud)| {
        let class = match (count, loud) {
            (0, _) => "quiet",
            (_, loud) => loud,
        };
        let rate = words::rate(count - before.min(count), recent.over);
        (class, vec![name.to_owned(), rate, grouped(count)])
    });
    page.section("Outcomes", |page| {
        page.table(&["", "a second, last minute", "since the start"], &rows);
    });
}

fn in_hand(page: &mut Page, load: &Load, waits: &[Wait]) {
    let oldest = load.oldest.map_or_else(|| "none".to_owned(), span);
    let up = format!("{} of {}", load.lanes - load.lanes_down.min(load.lanes), load.lanes);
    let (messages, bytes) = (grouped(load.messages), grouped(load.bytes));
    page.section("In hand", |page| {
        page.rows(&[
            ("messages", &messages),
            ("bytes", &bytes),
            ("the oldest is here for", &oldest),
            ("lanes that reach the database", &up),
        ]);
        if waits.is_empty() {
            return;
        }
        page.element("h3", "Messages that wait for");
        let told: Vec<(&'static str, String)> = waits
            .iter()
            .map(|wait| (cause(wait.cause), format!("{}, for up to {}", grouped(wait.messages), span(wait.longest))))
            .collect();
        let rows: Vec<(&'static str, &dyn Display)> = told.iter().map(|(what, text)| (*what, text as _)).collect();
        page.rows(&rows);
    });
}

fn cause(cause: WaitCause) -> &'static str {
    match cause {
        WaitCause::Retry => "their next attempt",
        WaitCause::KeyHeld => "a key that another unit holds",
        WaitCause::Database => "a statement that the database cannot serve now",
        WaitCause::Bookkeeping => "the rows about them",
        WaitCause::Publisher => "a publisher of dead letters",
        WaitCause::Broker => "the broker to take what is settled",
        WaitCause::Unkeepable => "a person: nothing can keep them",
        WaitCause::DeadLetterQuota => "room among the dead letters",
        WaitCause::Behind => "the rows before them in their ordering keys",
        WaitCause::Breaker => "the breaker, having failed for good",
        _ => cause.as_str(),
    }
}

/// The parts that this worker has of its topic, and how far it is behind; nothing where the broker hands out none.
fn partitions(page: &mut Page, lag: Option<Vec<Behind>>) {
    let Some(mut parts) = lag else { return };
    let total = parts.iter().try_fold(0, |sum, part| part.messages.map(|behind| sum + behind));
    let behind = |behind: Option<u64>| behind.map_or_else(|| words::UNKNOWN.to_owned(), grouped);
    parts.sort_by_key(|part| std::cmp::Reverse(part.messages));
    let left_out = parts.len().saturating_sub(PARTITIONS_MAX);
    page.section("Partitions", |page| {
        if parts.is_empty() {
            return page.classed("p", "more", "the group has given this worker none");
        }
        let row = |part: &Behind| ("", vec![part.part.clone(), behind(part.messages)]);
        let mut rows: Vec<_> = parts.iter().take(PARTITIONS_MAX).map(row).collect();
        if parts.len() > 1 {
            rows.push(("sum", vec![format!("all {}", parts.len()), behind(total)]));
        }
        page.table(&["", "messages behind"], &rows);
        if left_out > 0 {
            page.classed("p", "more", format_args!("and {left_out} more, which are no further behind"));
        }
    });
}

/// The messages that wait in the queue, where the broker hands out no parts.
fn waiting(page: &mut Page, queue: Option<Behind>) {
    let Some(Behind { part, messages, .. }) = queue else { return };
    let messages = messages.map_or_else(|| words::UNKNOWN.to_owned(), grouped);
    page.section("Queue", |page| {
        page.table(&["", "messages behind"], &[("", vec![part, messages])]);
    });
}

/// The messages that wait in the inbox.
fn inbox(page: &mut Page, backlog: &InboxBacklog) {
    let oldest = backlog.oldest.map_or_else(|| "none".to_owned(), span);
    page.section("Inbox", |page| {
        page.rows(&[
            ("messages that wait", &grouped(backlog.rows)),
            ("the oldest waits for", &oldest),
            ("slots that no worker holds", &grouped(backlog.free_slots)),
        ]);
    });
}

/// The protected routes of a service over HTTP, with the outcomes of their requests.
fn requests(page: &mut Page, served: &Served) {
    let Served { routes, in_memory, at_database, at_database_max, .. } = served;
    page.section("Requests since the start", |page| {
        if routes.is_empty() {
            return page.classed("p", "more", "there was none to a protected route yet");
        }
        let cells = |of: &RouteServed| {
            let RouteServed { route, first, replayed, refused, failed } = of;
            let counts = [first, replayed, refused, failed].map(grouped);
            ("", std::iter::once(route.clone()).chain(counts).collect::<Vec<_>>())
        };
        let rows: Vec<_> = routes.iter().map(cells).collect();
        page.table(&["", "first runs", "replays", "refused", "failed"], &rows);
        let at_database = format!("{} of {at_database_max} at once", grouped(at_database));
        page.rows(&[
            ("repeats that wait for a request of this process", &grouped(in_memory)),
            ("repeats that wait for one of another process", &at_database),
        ]);
    });
}

/// The destinations of events, and the backlog; nothing where none are relayed.
fn events(page: &mut Page, relayed: &[Relayed]) {
    for Relayed { destination, standing, published, trouble, backlog, .. } in relayed {
        page.section(format_args!("Events for {destination}"), |page| {
            match (trouble, standing) {
                (Some((_, time)), _) => page.classed("p", "bad word", format_args!("not sent for {}", span(*time))),
                (None, RelayStanding::Relaying) => page.classed("p", "good word", "sending"),
                (None, RelayStanding::Standby) => page.classed("p", "more", "another relay sends them"),
                (None, RelayStanding::Paused) => page.classed("p", "wait word", "paused by an operator"),
                (None, _) => page.classed("p", "more", "none have been published yet"),
            }
            let Some(backlog) = backlog else { return };
            let oldest = backlog.oldest.map_or_else(|| "none".to_owned(), span);
            page.rows(&[
                ("sent by this worker", &grouped(published)),
                ("pending", &grouped(backlog.pending)),
                ("for a later try", &grouped(backlog.waiting)),
                ("failed: wait for a person", &grouped(backlog.failed)),
                ("behind those in their order", &grouped(backlog.behind)),
                ("the oldest that may go", &oldest),
            ]);
        });
    }
}

fn cleaning(page: &mut Page, state: &CleanupState) {
    let lag = state.backlog.map_or_else(|| words::UNKNOWN.to_owned(), |backlog| span(backlog.lag));
    let removed = grouped(state.removed);
    page.section("Cleanup", |page| {
        page.rows(&[("lag", &lag), ("rows removed", &removed), ("failed cycles in a row", &state.failed_cycles)]);
    });
}

/// The last of one kind, each with the command that shows more; nothing if there was none.
fn incidents(page: &mut Page, status: &Status, title: &str, kind: IncidentKind) {
    let incidents = status.recent(kind);
    if incidents.is_empty() {
        return;
    }
    page.section(title, |page| {
        page.raw("<ul>");
        for incident in &incidents {
            page.raw("<li>");
            incident_text(page, incident);
            if let Some(command) = command(status, incident) {
                page.raw("<div class=\"do\">");
                page.element("code", status.command(&command));
                page.raw("</div>");
            }
            page.raw("</li>");
        }
        page.raw("</ul>");
    });
}

fn incident_text(page: &mut Page, incident: &Incident) {
    page.raw("<div>");
    if let Some(reason) = incident.reason {
        page.docs(&format!("errors/{reason}.md"), reason);
        page.text(": ");
    }
    page.text(&incident.text);
    page.raw("</div>");
    let mut more = format!("{} ago", span(incident.ago()));
    if let Some(key) = &incident.key {
        // Writing to a String cannot fail.
        let _ = write!(more, " · key {key}");
    }
    if let Some(origin) = &incident.origin {
        let _ = write!(more, " · from {origin}");
    }
    page.classed("div", "more", more);
}

/// The command that shows more of it. A key that is hidden here could not be found by its stand-in.
fn command(status: &Status, incident: &Incident) -> Option<String> {
    if let Some(id) = incident.dead_letter {
        return Some(format!("dead-letters show {}", id.0));
    }
    let consumer = words::word(status.consumer())?;
    if incident.kind == IncidentKind::Conflict && status.identity().is_some_and(|identity| identity.keys_are_hidden) {
        return Some(format!("dead-letters list --consumer {consumer} --reason conflict"));
    }
    let key = words::word(incident.key.as_ref()?.as_str())?;
    let end = if key.starts_with('-') { "-- " } else { "" };
    Some(format!("show --consumer {consumer} {end}{key}"))
}

/// The identity of this process.
fn about(page: &mut Page, status: &Status) {
    page.raw("<footer>");
    let mut told = String::new();
    if let Some(identity) = status.identity() {
        let _ = write!(told, "{} {} · {} · ", identity.program, identity.version, identity.process);
    }
    if let Some(run) = status.run() {
        let _ = write!(told, "run {run} · ");
    }
    let ran_for = span(status.summary().ran_for);
    page.classed("p", "more", format_args!("{told}running for {ran_for}; this page is new every 5 s"));
    page.raw("<p class=\"more\">");
    page.text("The commands ask the database that DATABASE_URL names. ");
    page.docs("guide/operations.md", "Operations");
    page.raw("</p></footer>");
}
