//! The page at `/`: the live state of the worker, for a person with a phone. No script, and nothing from elsewhere.

use std::{
    fmt::{self, Display, Write as _},
    time::Duration,
};

use idem_core::{
    CleanupState, Incident, IncidentKind, Load, Summary, Wait, WaitCause,
    outbox::{RelayStanding, Relayed},
};

use crate::status::{Readiness, Status};

/// The style sheet, a resource of its own so that the page needs no leave for styles in line.
pub(crate) const STYLE: &str = include_str!("page.css");

/// Where it is.
pub(crate) const STYLE_PATH: &str = "/page.css";

/// How many partitions are named.
const PARTITIONS_MAX: usize = 20;

/// The page as it is now.
pub(crate) fn html(status: &Status) -> String {
    let consumer = &status.consumer;
    let mut page = Page(String::new());
    page.raw("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    page.raw("<meta http-equiv=\"refresh\" content=\"5\"><link rel=\"stylesheet\" href=\"");
    page.raw(STYLE_PATH);
    page.raw("\">");
    page.element("title", format_args!("{consumer} · idem"));
    page.raw("</head><body><header>");
    page.element("h1", consumer);
    state(&mut page, status, &status.readiness());
    page.raw("</header>");
    let summary = status.summary();
    outcomes(&mut page, &summary);
    if let Some(load) = status.load() {
        in_hand(&mut page, &load);
    }
    waiting(&mut page, &status.waits());
    events(&mut page, &status.relayed());
    if let Some(cleanup) = status.cleanup() {
        cleaning(&mut page, &cleanup);
    }
    incidents(&mut page, "Last errors", &status.recent(IncidentKind::Error));
    incidents(&mut page, "Recent conflicts", &status.recent(IncidentKind::Conflict));
    incidents(&mut page, "Recent dead letters", &status.recent(IncidentKind::DeadLetter));
    page.classed("p", "more", format_args!("running for {}; this page is new every 5 s", span(summary.ran_for)));
    page.raw("</body></html>");
    page.0
}

fn state(page: &mut Page, status: &Status, readiness: &Readiness) {
    match (status.dead(), &readiness.pause) {
        (Some(task), _) => page.classed("p", "state bad", format_args!("the task {task} died")),
        (None, Some(pause)) => page.classed("p", "state wait", pause),
        (None, None) if readiness.ready => page.classed("p", "state good", "consuming"),
        (None, None) if status.stop.is_cancelled() => page.classed("p", "state wait", "stopping"),
        (None, None) => page.classed("p", "state wait", "starting"),
    }
    if let Some(seconds) = readiness.paused_for {
        page.classed("p", "more", format_args!("paused for {}", span(Duration::from_secs(seconds))));
    }
    page.classed("p", "more", format_args!("database {} · breaker {}", readiness.database, readiness.breaker));
    if let Some(partitions) = &readiness.partitions {
        let named: Vec<&str> = partitions.iter().map(String::as_str).take(PARTITIONS_MAX).collect();
        let more = partitions.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        page.classed("p", "more", format_args!("partitions: {}{more}", named.join(", ")));
    }
}

/// The causes for which messages in hand wait; nothing where none waits.
fn waiting(page: &mut Page, waits: &[Wait]) {
    let told: Vec<(&'static str, String)> = waits
        .iter()
        .map(|wait| {
            let what = match wait.cause {
                WaitCause::Retry => "their next attempt",
                WaitCause::KeyHeld => "a key that somebody else holds",
                WaitCause::Database => "what the database cannot serve now",
                WaitCause::Bookkeeping => "what is written about them",
                WaitCause::Publisher => "a publisher of dead letters",
                WaitCause::Broker => "the broker to take what is settled",
                WaitCause::Unkeepable => "a person: nothing can keep them",
                WaitCause::DeadLetterQuota => "room among the dead letters",
                WaitCause::Breaker => "the breaker, having failed for good",
                _ => wait.cause.as_str(),
            };
            (what, format!("{}, for up to {}", wait.messages, span(wait.longest)))
        })
        .collect();
    let rows: Vec<(&'static str, &dyn Display)> =
        told.iter().map(|(what, text)| (*what, text as &dyn Display)).collect();
    if !rows.is_empty() {
        page.list("Messages that wait for", &rows);
    }
}

fn outcomes(page: &mut Page, summary: &Summary) {
    page.list(
        "Outcomes",
        &[
            ("processed", &summary.processed),
            ("duplicates skipped", &summary.duplicates),
            ("conflicts", &summary.conflicts),
            ("dead letters", &summary.dead_lettered),
            ("retries", &summary.retries),
            ("waits for somebody else", &summary.busy),
            ("given back to the broker", &summary.released),
            ("replayed", &summary.replayed),
        ],
    );
}

fn in_hand(page: &mut Page, load: &Load) {
    let oldest = load.oldest.map_or_else(|| "none".to_owned(), span);
    let up = format!("{} of {}", load.lanes - load.lanes_down.min(load.lanes), load.lanes);
    page.list(
        "In hand",
        &[
            ("lanes that reach the database", &up),
            ("messages in flight", &load.messages),
            ("bytes in flight", &load.bytes),
            ("lag: the oldest unsettled message", &oldest),
        ],
    );
}

/// Where events go, and what waits; nothing where none are relayed.
fn events(page: &mut Page, relayed: &[Relayed]) {
    for Relayed { destination, standing, published, trouble, backlog, .. } in relayed {
        page.element("h2", format_args!("Events for {destination}"));
        match (trouble, standing) {
            (Some((why, time)), _) => {
                page.classed("p", "state wait", format_args!("not sent for {}: {why}", span(*time)))
            }
            (None, RelayStanding::Relaying) => page.classed("p", "state good", "sending"),
            (None, RelayStanding::Standby) => page.classed("p", "more", "another relay sends them"),
            (None, RelayStanding::Paused) => page.classed("p", "state wait", "paused by an operator"),
            (None, _) => page.classed("p", "more", "nobody has published any yet"),
        }
        let Some(backlog) = backlog else { continue };
        let oldest = backlog.oldest.map_or_else(|| "none".to_owned(), span);
        page.rows(&[
            ("sent by this worker", published),
            ("pending", &backlog.pending),
            ("for a later try", &backlog.waiting),
            ("failed: wait for a person", &backlog.failed),
            ("behind those in their order", &backlog.behind),
            ("the oldest that may go", &oldest),
        ]);
    }
}

fn cleaning(page: &mut Page, state: &CleanupState) {
    let lag = state.backlog.map_or_else(|| "not known yet".to_owned(), |backlog| span(backlog.lag));
    page.list(
        "Cleanup",
        &[("lag", &lag), ("rows removed", &state.removed), ("failed cycles in a row", &state.failed_cycles)],
    );
}

fn incidents(page: &mut Page, title: &str, incidents: &[Incident]) {
    page.element("h2", title);
    if incidents.is_empty() {
        return page.classed("p", "more", "none");
    }
    page.raw("<ul>");
    for incident in incidents {
        page.raw("<li>");
        page.element("div", &incident.text);
        let mut more = format!("{} ago", span(incident.ago()));
        if let Some(key) = &incident.key {
            // Writing to a String cannot fail.
            let _ = write!(more, " · key {key}");
        }
        if let Some(origin) = &incident.origin {
            let _ = write!(more, " · from {origin}");
        }
        page.classed("div", "more", more);
        page.raw("</li>");
    }
    page.raw("</ul>");
}

/// A span as people say it, in its largest unit.
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// HTML that is written with every text escaped.
struct Page(String);

impl Page {
    /// Text that is HTML already, and ours.
    fn raw(&mut self, html: &'static str) {
        self.0.push_str(html);
    }

    fn element(&mut self, tag: &'static str, text: impl Display) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(self.0, "<{tag}>");
        self.text(text);
        let _ = write!(self.0, "</{tag}>");
    }

    fn classed(&mut self, tag: &'static str, class: &'static str, text: impl Display) {
        let _ = write!(self.0, "<{tag} class=\"{class}\">");
        self.text(text);
        let _ = write!(self.0, "</{tag}>");
    }

    fn list(&mut self, title: &'static str, rows: &[(&'static str, &dyn Display)]) {
        self.element("h2", title);
        self.rows(rows);
    }

    fn rows(&mut self, rows: &[(&'static str, &dyn Display)]) {
        self.raw("<dl>");
        for (name, value) in rows {
            self.element("dt", name);
            self.element("dd", value);
        }
        self.raw("</dl>");
    }

    fn text(&mut self, text: impl Display) {
        let _ = write!(Escaped(&mut self.0), "{text}");
    }
}

/// Escapes what HTML would read, and what a terminal or an eye would misread.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // Controls, and the marks that turn the direction of what follows.
                c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                    self.0.push('\u{fffd}');
                }
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_escaped() {
        let mut page = Page(String::new());
        page.element("p", "<script>alert('x')</script> & \"y\"\u{202e}\u{7}");
        assert_eq!(
            page.0,
            "<p>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;y&quot;\u{fffd}\u{fffd}</p>"
        );
    }

    #[test]
    fn a_span_is_told_in_its_largest_unit() {
        let told = |seconds| span(Duration::from_secs(seconds));
        assert_eq!([told(0), told(119), told(120), told(7_200)], ["0 s", "119 s", "2 min", "2 h"]);
        assert_eq!(told(604_800), "7 days");
    }
}
