//! `idem outbox`: questions, refusals and reports are the same on every database; the statements are the database's.

pub(crate) mod events;
mod findings;
mod list;
mod postgres;

use std::{sync::Arc, time::Duration};

use idem_core::{
    Store as _,
    outbox::{EventName, EventState, RECEIVER_KEEPS},
    relay::is_stale,
};

use crate::{
    command_line::{Outbox, RetryEvents, SkipEvents, Target, WhichEvents},
    commands::{
        dead_letters::{thousands, with_content},
        show::UNNOTED,
    },
    confirm::confirm,
    database::{self, Database},
    exit::{Exit, Failure},
    report::{Report, Row, Table},
};

use self::{
    events::Events,
    list::{number, unknown},
};
pub(crate) use self::{
    findings::findings,
    list::list,
    postgres::{READERS, SHARED_KEYS},
};

pub(crate) async fn run(target: &Target, command: Outbox) -> Result<Report, Failure> {
    if let Outbox::List { destination, state, limit } = &command {
        let outbox = Arc::new(database::store(target)?).outbox().ok_or_else(|| Failure::refused(NO_OUTBOX))?;
        return list(&*outbox, Database::open(target).await?, destination.as_deref(), *state, limit).await;
    }
    run_on(Database::open(target).await?, command).await
}

pub(crate) const NO_OUTBOX: &str = "this database has no outbox: run `idem migrate up`";

/// The actions on events and destinations, on any database.
pub(crate) async fn run_on(mut events: impl Events, command: Outbox) -> Result<Report, Failure> {
    match command {
        Outbox::Show { event, payload } => show(&mut events, &event, payload).await,
        Outbox::Retry(asked) => retry(&mut events, &asked).await,
        Outbox::Skip(asked) => skip(&mut events, &asked).await,
        Outbox::Pause { destination, reason } => match events.pause(&destination, &reason).await? {
            0 => Err(unknown(&destination)),
            _ => Ok(Report::said(format!(
                "{destination} is paused: its events are kept, and go after idem outbox resume {destination}"
            ))),
        },
        Outbox::Resume { destination } => match events.resume(&destination).await? {
            0 => Err(unknown(&destination)),
            _ => Ok(Report::said(format!("{destination} goes on"))),
        },
        // Both have their own way before this one.
        Outbox::List { .. } | Outbox::Relay { .. } => Err(Failure::refused("this is no change of the outbox")),
    }
}

async fn show(events: &mut impl Events, event: &EventName, with_payload: bool) -> Result<Report, Failure> {
    let called = if with_payload { "read-event-payload" } else { "read-event" };
    if events.note_read(event, called).await.map_err(|failure| failure.so(UNNOTED))? == 0 {
        return Err(gone(event));
    }
    let report = Report::new().table("event", events.described(event).await?);
    Ok(if with_payload { with_content(report, &events.content(event).await?) } else { report })
}

/// Why nothing was done to events that were there a moment ago.
const MEANWHILE: &str = "they had gone meanwhile, or a relay has taken them; `idem outbox list` shows what there is";

fn gone(event: &EventName) -> Failure {
    Failure::refused(format!(
        "there is no event {event}: it was sent, or skipped, or never there, or another one has its number since a failover or a \
         restore; `idem outbox list` shows what there is"
    ))
}

/// Its name, by the columns `number` and `key`.
fn name(row: &Row) -> Result<EventName, Failure> {
    let named = format!("{}:{}", row.number("number"), row.text("key")).parse();
    named.map_err(|_| Failure::new(Exit::Bug, "the key of an event cannot be read"))
}

fn names<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Result<Vec<EventName>, Failure> {
    rows.into_iter().map(name).collect()
}

/// Those that are meant, with their states.
async fn chosen(events: &mut impl Events, which: &WhichEvents) -> Result<Table, Failure> {
    let meant = match &which.failed {
        None => which.event.clone(),
        Some(destination) => {
            let failed = events.failed(destination).await?.ok_or_else(|| unknown(destination))?;
            if failed.is_empty() {
                return Err(Failure::refused(format!("no event for {destination:?} has failed")));
            }
            names(failed.rows())?
        }
    };
    let found = events.found(&meant).await?;
    let is_found = |event: &&EventName| {
        let is_it = |row: &Row| row.number("number") == event.number.0 && row.text("key") == event.key.as_str();
        found.rows().iter().any(is_it)
    };
    match meant.iter().find(|event| !is_found(event)) {
        // With `--failed` no event was named, so one that went meanwhile is not an error.
        Some(event) if which.failed.is_none() => Err(gone(event)),
        Some(_) | None => Ok(found),
    }
}

async fn retry(events: &mut impl Events, asked: &RetryEvents) -> Result<Report, Failure> {
    let found = chosen(events, &asked.which).await?;
    let waits = [EventState::Waiting, EventState::Failed].map(|state| i64::from(state.number()));
    let can_go: Vec<_> = found.rows().iter().filter(|row| waits.contains(&row.number("state"))).collect();
    if can_go.is_empty() {
        return Err(Failure::refused(
            "none of them waits for its next try or has failed: what is pending goes by itself, and what is behind another \
             goes after that one",
        ));
    }
    let span = |row: &Row, column: &str| row.get(column).as_u64().map(Duration::from_micros);
    let is_stale = |row: &Row| {
        let keeps = span(row, "receiver_keeps").unwrap_or(RECEIVER_KEEPS);
        is_set(row, "set_aside") || span(row, "first_sent_ago").is_some_and(|ago| is_stale(ago, keeps))
    };
    let count = can_go.len();
    let (stale, others): (Vec<&Row>, Vec<&Row>) = can_go.into_iter().partition(|row| is_stale(row));
    if !stale.is_empty() && !asked.stale {
        return Err(Failure::refused(format!(
            "{} of them are stale: a copy may have been sent so long ago that the receivers no longer know it, and another \
             one could take effect twice. See whether they have it; then give --stale, or skip it",
            number(stale.len())
        )));
    }
    if asked.dry_run {
        return Ok(Report::said(format!("{} would be sent", number(count))));
    }
    confirm(&format!("This sends {} events", number(count)), asked.yes.yes)?;
    // The copy of what is not stale was sent when it was sent.
    let mut going = 0;
    for (rows, with_stale) in [(others, false), (stale, true)] {
        if !rows.is_empty() {
            going += events.retry(&names(rows)?, with_stale).await?;
        }
    }
    if going == 0 {
        return Err(Failure::refused(format!("none of them goes again: {MEANWHILE}")));
    }
    Ok(Report::said(format!("{} may go: a running relay sends them within seconds", thousands(going))))
}

async fn skip(events: &mut impl Events, asked: &SkipEvents) -> Result<Report, Failure> {
    let found = chosen(events, &asked.which).await?;
    let in_hand: Vec<_> = found.rows().iter().filter(|row| is_set(row, "in_hand")).collect();
    if let Some(one) = in_hand.first() {
        let destination = one.text("destination");
        return Err(Failure::refused(format!(
            "{} of them may be on their way at this moment, because a relay has {destination}: `idem outbox pause {destination}` \
             first, and skip them some seconds later, when the relay has let go; after one was killed, when the time of their calls is over",
            number(in_hand.len())
        )));
    }
    let count = found.rows().len();
    let sent = match found.rows().iter().filter(|row| is_set(row, "may_be_sent")).count() {
        0 => String::new(),
        sent => format!("; a copy of {} may have been sent before", number(sent)),
    };
    if asked.dry_run {
        return Ok(Report::said(format!("{} would be skipped{sent}", number(count))));
    }
    confirm(
        &format!("This removes {} events for good, and nobody is told of what they say{sent}", number(count)),
        asked.yes.yes,
    )?;
    let skipped = events.skip(&names(found.rows())?, &asked.because).await?;
    if skipped == 0 {
        return Err(Failure::refused(format!("nothing was skipped: {MEANWHILE}")));
    }
    let left = match i64::try_from(count).unwrap_or(i64::MAX) - skipped {
        0 => String::new(),
        left => format!("; {} had gone meanwhile, or a relay has taken them", thousands(left)),
    };
    Ok(Report::said(format!("{} skipped, and what waited behind nothing else may go{sent}{left}", thousands(skipped))))
}

/// Whether a column says yes, which is a number on SQLite.
fn is_set(row: &Row, column: &str) -> bool {
    row.get(column).as_bool() == Some(true) || row.number(column) == 1
}
