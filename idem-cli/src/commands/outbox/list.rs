//! `idem outbox list`, on every database.

use std::time::{Duration, SystemTime};

use idem_core::{
    internal::Roughly,
    outbox::{EventState, Outbox, OutboxBacklog, StoredEvent},
};
use serde_json::Value;

use super::events::Events;
use crate::{
    command_line::shared::Limit,
    commands::dead_letters::thousands,
    exit::Failure,
    report::{Report, Row, Table},
};

/// Destinations with their backlog, and the oldest events of those asked for.
pub(crate) async fn list(
    outbox: &dyn Outbox,
    mut events: impl Events,
    destination: Option<&str>,
    state: Option<EventState>,
    limit: &Limit,
) -> Result<Report, Failure> {
    let backlog = outbox.backlog(None).await?;
    let chosen: Vec<&OutboxBacklog> =
        backlog.iter().filter(|one| destination.is_none_or(|name| name == one.destination)).collect();
    if let (Some(name), true) = (destination, chosen.is_empty()) {
        return Err(unknown(name));
    }
    let paused = if chosen.iter().any(|one| one.is_paused) { events.paused().await? } else { Table::default() };
    let events = outbox.events(destination, state, u32::try_from(limit.limit).unwrap_or(u32::MAX)).await?;
    let shown = events.len() as u64;
    let report = Report::new()
        .table("destinations", chosen.iter().map(|one| of_destination(one, &paused)).collect())
        .table("events", events.iter().map(of_event).collect());
    let all: u64 = chosen.iter().map(|one| count(one, state)).sum();
    let report = if all > shown {
        report.line(format!("{} of {}, the oldest; --limit N shows more", number(shown), number(all)))
    } else {
        report
    };
    Ok(if chosen.iter().any(|one| one.failed > 0) {
        report.line("What failed waits for you: idem outbox retry EVENT sends it, idem outbox skip EVENT removes it")
    } else {
        report
    })
}

pub(crate) fn unknown(destination: &str) -> Failure {
    Failure::refused(format!("there is no destination {destination:?}; `idem outbox list` shows those that there are"))
}

fn count(backlog: &OutboxBacklog, state: Option<EventState>) -> u64 {
    match state {
        None => backlog.pending + backlog.waiting + backlog.failed + backlog.behind,
        Some(EventState::Pending) => backlog.pending,
        Some(EventState::Waiting) => backlog.waiting,
        Some(EventState::Failed) => backlog.failed,
        Some(EventState::Behind) => backlog.behind,
    }
}

fn of_destination(backlog: &OutboxBacklog, paused: &Table) -> Row {
    let mut pauses = paused.rows().iter().filter(|pause| pause.text("destination") == backlog.destination);
    Row::new([
        ("destination", backlog.destination.as_str().into()),
        ("pending", backlog.pending.into()),
        ("waiting", backlog.waiting.into()),
        ("failed", backlog.failed.into()),
        ("behind", backlog.behind.into()),
        ("oldest", backlog.oldest.map(span).into()),
        ("first_sent", backlog.first_sent_ago.map(span).into()),
        ("receiver_keeps", span(backlog.receiver_keeps).into()),
        ("kind", backlog.limits.as_ref().map(|limits| limits.kind.as_str()).into()),
        ("message_bytes_max", backlog.limits.as_ref().and_then(|limits| limits.message_bytes_max).into()),
        ("relayed_by", backlog.relayed_by.as_deref().into()),
        ("paused", backlog.is_paused.into()),
        ("paused_because", pauses.next().map_or(Value::Null, |pause| pause.get("because").clone())),
    ])
}

fn of_event(stored: &StoredEvent) -> Row {
    let event = &stored.event;
    Row::new([
        ("event", event.name().to_string().into()),
        ("destination", stored.destination.as_str().into()),
        ("consumer", event.consumer.as_str().into()),
        ("type", event.event_type.as_deref().into()),
        ("state", stored.state.as_str().into()),
        ("attempts", event.attempts.into()),
        ("age", event.created_at.elapsed().ok().map(span).into()),
        ("first_sent", event.first_sent_ago.map(span).into()),
        ("next_try_in", stored.not_before.and_then(until).map(span).into()),
        ("error", stored.error.as_deref().map_or(Value::Null, Value::from)),
    ])
}

fn until(at: SystemTime) -> Option<Duration> {
    at.elapsed().err().map(|ahead| ahead.duration())
}

/// A span as people say it.
pub(super) fn span(span: Duration) -> String {
    Roughly(span).to_string()
}

/// A count as people read it.
pub(super) fn number(count: impl TryInto<i64>) -> String {
    thousands(count.try_into().unwrap_or(i64::MAX))
}
