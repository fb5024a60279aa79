//! `idem outbox`: questions, refusals and reports are the same on every database; the statements are the database's.

mod findings;
mod list;
mod postgres;

use std::{future::Future, sync::Arc, time::Duration};

use idem_core::{Store as _, outbox::RECEIVER_KEEPS};

use crate::{
    command_line::{Outbox, RetryEvents, SkipEvents, Target, WhichEvents},
    commands::{
        dead_letters::{thousands, with_content},
        show::UNNOTED,
    },
    confirm::confirm,
    database::{self, Database},
    exit::Failure,
    report::{Report, Row, Table},
};

use self::list::unknown;
pub(crate) use self::{findings::findings, list::list};

pub(crate) async fn run(target: &Target, command: Outbox) -> Result<Report, Failure> {
    if let Outbox::List { destination, state, limit } = &command {
        let outbox = Arc::new(database::store(target)?).outbox().ok_or_else(|| Failure::refused(NO_OUTBOX))?;
        return list(&*outbox, destination.as_deref(), *state, limit).await;
    }
    run_on(Database::open(target).await?, command).await
}

pub(crate) const NO_OUTBOX: &str = "this database has no outbox: run `idem migrate up`";

/// The statements of a database, each with its line in the audit trail.
pub(crate) trait Events {
    /// `event`, `state` (by its number) and `stale` of the events that exist among these numbers: a relay has said so, or a copy
    /// may have been sent this many microseconds ago.
    fn found(&mut self, events: &[i64], stale_after: i64) -> impl Future<Output = Result<Table, Failure>>;

    /// The numbers, as `event`, of those that have failed for a destination; `None` where there is no such destination.
    fn failed(&mut self, destination: &str) -> impl Future<Output = Result<Option<Table>, Failure>>;

    /// Notes that an event is read; answers how many there are.
    fn note_read(&mut self, event: i64, called: &str) -> impl Future<Output = Result<i64, Failure>>;

    fn described(&mut self, event: i64) -> impl Future<Output = Result<Table, Failure>>;

    /// `payload`, in hexadecimal digits, and `headers`.
    fn content(&mut self, event: i64) -> impl Future<Output = Result<Table, Failure>>;

    /// Lets them go; where stale ones are meant too, as if they had never been sent.
    fn retry(&mut self, events: &[i64], with_stale: bool) -> impl Future<Output = Result<i64, Failure>>;

    fn skip(&mut self, events: &[i64], because: &str) -> impl Future<Output = Result<i64, Failure>>;

    /// Answers how many destinations there are of this name.
    fn pause(&mut self, destination: &str, reason: &str) -> impl Future<Output = Result<i64, Failure>>;

    fn resume(&mut self, destination: &str) -> impl Future<Output = Result<i64, Failure>>;
}

/// The actions on events and destinations, on any database.
pub(crate) async fn run_on(mut events: impl Events, command: Outbox) -> Result<Report, Failure> {
    match command {
        Outbox::Show { event, payload } => show(&mut events, event, payload).await,
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

async fn show(events: &mut impl Events, event: i64, with_payload: bool) -> Result<Report, Failure> {
    let called = if with_payload { "read-event-payload" } else { "read-event" };
    if events.note_read(event, called).await.map_err(|failure| failure.so(UNNOTED))? == 0 {
        return Err(gone(event));
    }
    let report = Report::new().table("event", events.described(event).await?);
    Ok(if with_payload { with_content(report, &events.content(event).await?) } else { report })
}

fn gone(event: i64) -> Failure {
    Failure::refused(format!(
        "there is no event {event}: it was sent, or skipped, or never there; `idem outbox list` shows what there is"
    ))
}

/// How long before its receivers forget an event it is stale, as a relay has it.
const MARGIN: Duration = Duration::from_secs(60 * 60);

/// Those that are meant, with their states, where receivers remember events for so long.
async fn chosen(events: &mut impl Events, which: &WhichEvents, receivers_keep: Duration) -> Result<Table, Failure> {
    let numbers = match &which.failed {
        None => which.event.clone(),
        Some(destination) => {
            let failed = events.failed(destination).await?.ok_or_else(|| unknown(destination))?;
            if failed.is_empty() {
                return Err(Failure::refused(format!("no event for {destination:?} has failed")));
            }
            failed.rows().iter().map(|row| row.number("event")).collect()
        }
    };
    let stale_after = receivers_keep.saturating_sub(MARGIN).as_micros();
    let found = events.found(&numbers, i64::try_from(stale_after).unwrap_or(i64::MAX)).await?;
    let is_found = |number: &&i64| found.rows().iter().any(|row| row.number("event") == **number);
    match numbers.iter().find(|number| !is_found(number)) {
        // With `--failed` no number was given, so an event that went meanwhile is not an error.
        Some(number) if which.failed.is_none() => Err(gone(*number)),
        Some(_) | None => Ok(found),
    }
}

async fn retry(events: &mut impl Events, asked: &RetryEvents) -> Result<Report, Failure> {
    let found = chosen(events, &asked.which, asked.receiver_keeps).await?;
    // Waiting and failed ones.
    let can_go: Vec<_> = found.rows().iter().filter(|row| [1, 2].contains(&row.number("state"))).collect();
    if can_go.is_empty() {
        return Err(Failure::refused(
            "none of them waits for its next try or has failed: what is pending goes by itself, and what is behind another \
             goes after that one",
        ));
    }
    let stale = can_go.iter().filter(|row| is_set(row, "stale")).count();
    if stale > 0 && !asked.stale {
        return Err(Failure::refused(format!(
            "{} of them are stale: a copy may have been sent so long ago that the receivers no longer know it, and another \
             one could take effect twice. See whether they have it; then give --stale, or skip it",
            number(stale)
        )));
    }
    let count = can_go.len();
    if asked.dry_run {
        return Ok(Report::said(format!("{} would be sent", number(count))));
    }
    confirm(&format!("This sends {} events", number(count)), asked.yes.yes)?;
    let numbers: Vec<i64> = can_go.iter().map(|row| row.number("event")).collect();
    let going = events.retry(&numbers, asked.stale).await?;
    Ok(Report::said(format!("{} may go: a running relay sends them within seconds", thousands(going))))
}

async fn skip(events: &mut impl Events, asked: &SkipEvents) -> Result<Report, Failure> {
    let found = chosen(events, &asked.which, RECEIVER_KEEPS).await?;
    let in_hand: Vec<_> = found.rows().iter().filter(|row| is_set(row, "in_hand")).collect();
    if let Some(one) = in_hand.first() {
        let destination = one.text("destination");
        return Err(Failure::refused(format!(
            "{} of them may be on their way at this moment, because a relay has {destination}: `idem outbox pause {destination}` \
             first, and skip them some seconds later, when the relay has let go",
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
    let numbers: Vec<i64> = found.rows().iter().map(|row| row.number("event")).collect();
    let skipped = events.skip(&numbers, &asked.because).await?;
    let left = match i64::try_from(count).unwrap_or(i64::MAX) - skipped {
        0 => String::new(),
        left => format!("; {} had gone meanwhile, or a relay has taken them", thousands(left)),
    };
    Ok(Report::said(format!("{} skipped, and what waited behind them may go{sent}{left}", thousands(skipped))))
}

/// Whether a column says yes, which is a number on SQLite.
fn is_set(row: &Row, column: &str) -> bool {
    row.get(column).as_bool() == Some(true) || row.number(column) == 1
}

/// A count as people read it.
fn number(count: impl TryInto<i64>) -> String {
    thousands(count.try_into().unwrap_or(i64::MAX))
}
