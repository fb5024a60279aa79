//! `--inbox`: messages are written to a table, acknowledged, and handled from there, in this process or in two.

use std::{sync::Arc, time::Duration};

use clap::ValueEnum;
use idem_core::{
    CancellationToken, ConsumerName, Source, Store, Worker,
    inbox::{INBOX_SLOTS, Inbox, InboxSettings, InboxSource, Receiver, ReceiverError, ReceiverSettings, ReceiverView},
    key::KeySource,
    store,
    worker::WorkerError,
};
use tokio::time::{Instant, sleep};

use crate::{
    exit::{self, Exit, Failure},
    sizes,
};

/// The settings of an inbox. Texts and defaults are in `--help`.
#[derive(Debug, clap::Args)]
// An application's own settings may have the same name.
#[group(skip)]
pub(crate) struct InboxFlags {
    /// Write messages to a table, acknowledge them, and handle them from there; receive or process: this process does one of the
    /// two [default: off]
    #[arg(long, value_name = "receive|process", default_missing_value = "on", num_args = 0..=1)]
    inbox: Option<Part>,

    /// How many slots a new inbox gets: at most so many workers share it, and it keeps them [default: 16]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = sizes::count(1_u16..=1024))]
    inbox_slots: Option<u16>,

    /// How many messages wait in the inbox at most: at this number nothing more is received [default: 100000]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = sizes::count(1_u64..=1_000_000_000))]
    inbox_max: Option<u64>,
}

/// The part that a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Without an inbox.
    Off,
    /// Both.
    On,
    /// From the broker to the table.
    Receive,
    /// From the table to the handlers.
    Process,
}

impl Part {
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::On | Self::Receive)
    }

    pub(crate) fn processes(self) -> bool {
        matches!(self, Self::On | Self::Process)
    }
}

impl InboxFlags {
    /// The part of this process; `None` without an inbox.
    pub(crate) fn part(&self) -> Option<Part> {
        self.inbox.filter(|part| *part != Part::Off)
    }

    /// # Errors
    /// One line, if a setting of the receiver is given where there is none.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.part().is_some_and(Part::receives) {
            return Ok(());
        }
        let given = [("--inbox-slots", self.inbox_slots.is_some()), ("--inbox-max", self.inbox_max.is_some())];
        let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        Err(match self.part() {
            None => format!("{flag} is given without --inbox: add --inbox, or leave {flag} out"),
            Some(_) => format!(
                "{flag} is given with --inbox process, which does not receive: give it to the process with --inbox receive"
            ),
        })
    }
}

/// A process with an inbox: a receiver, a worker, or both.
pub(crate) struct Running<S: Store, B: Source> {
    pub(crate) receiver: Option<Receiver<B>>,
    pub(crate) worker: Option<Worker<S, InboxSource>>,
    pub(crate) drain: Duration,
    pub(crate) until_idle: Option<Duration>,
}

/// The inbox of a database.
///
/// # Errors
/// If it has none.
pub(crate) fn of(inbox: Option<Arc<dyn Inbox>>) -> Result<Arc<dyn Inbox>, Failure> {
    let line = "--inbox needs a database that has inboxes, such as PostgreSQL or SQLite: leave --inbox out";
    inbox.ok_or_else(|| Failure::refused(line))
}

/// From the broker to the inbox.
pub(crate) fn receiver<B: Source>(
    source: Arc<B>,
    inbox: Arc<dyn Inbox>,
    consumer: ConsumerName,
    keys: Arc<dyn KeySource>,
    flags: &InboxFlags,
    startup_timeout: Duration,
) -> Receiver<B> {
    let mut own = ReceiverSettings::default()
        .slots(flags.inbox_slots.unwrap_or(INBOX_SLOTS))
        .startup_timeout(startup_timeout)
        .keys(keys);
    if let Some(rows) = flags.inbox_max {
        own = own.rows_max(rows);
    }
    Receiver::new(source, inbox, consumer).settings(own)
}

/// From the inbox to the handlers.
pub(crate) fn source(inbox: Arc<dyn Inbox>, consumer: ConsumerName, receiver: Option<ReceiverView>) -> InboxSource {
    // Two deployments that start together start in any order.
    let source = InboxSource::with_settings(inbox, consumer, InboxSettings::default().awaits_receiver(true));
    match receiver {
        Some(receiver) => source.filled_by(receiver),
        None => source,
    }
}

impl<S: Store, B: Source> Running<S, B> {
    /// Tries whether it could start.
    pub(crate) async fn check(self, stop: CancellationToken) -> Result<(), Failure> {
        if let Some(receiver) = self.receiver {
            // A worker beside it waits for an inbox, which a check does not make.
            return receiver.check(stop.cancelled_owned()).await.map_err(|error| failure::<S>(&error));
        }
        match self.worker {
            Some(worker) => worker.check(stop.cancelled_owned()).await.map_err(|error| ended_with::<S>(&error)),
            None => Ok(()),
        }
    }

    /// Runs both until the stop, until one of them fails, or until they are idle.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let Self { receiver, worker, drain, until_idle } = self;
        // The end of either is the other's too.
        let ending = stop.child_token();
        if let (Some(receiver), None, Some(idle_for)) = (&receiver, &worker, until_idle) {
            tokio::spawn(stop_when_idle(receiver.view(), idle_for, ending.clone()));
        }
        let received = async {
            let Some(receiver) = receiver else { return Ok(()) };
            let received = tokio::spawn(receive::<S, B>(receiver, drain, ending.clone())).await;
            ending.cancel();
            received.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
        };
        let processed = async {
            let Some(worker) = worker else { return Ok(()) };
            let processed = worker.run(ending.clone().cancelled_owned()).await;
            ending.cancel();
            processed.map(|_| ()).map_err(|error| ended_with::<S>(&error))
        };
        let (received, processed) = tokio::join!(received, processed);
        received.and(processed)
    }
}

/// Receives until the stop, and writes what it has by then, within the drain deadline.
async fn receive<S: Store, B: Source>(
    receiver: Receiver<B>,
    drain: Duration,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let late = async {
        stop.cancelled().await;
        sleep(drain).await;
    };
    let written = tokio::select! {
        written = receiver.run(stop.clone().cancelled_owned()) => written.map_err(|error| failure::<S>(&error))?,
        () = late => {
            let line = format!("the receiver could not write its last messages within --drain, which is {drain:?}; the broker delivers them again");
            return Err(Failure::new(Exit::DrainDeadline, line));
        }
    };
    tracing::info!(written, "the receiver has ended");
    Ok(())
}

/// Stops a receiver without a worker once the broker has had nothing for so long.
async fn stop_when_idle(receiver: ReceiverView, idle_for: Duration, stop: CancellationToken) {
    let step = (idle_for / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let (mut idle_since, mut written) = (None, 0);
    while !stop.is_cancelled() {
        let is_idle = receiver.is_idle().await && receiver.written() == written;
        written = receiver.written();
        let since = *idle_since.get_or_insert_with(Instant::now);
        match is_idle {
            true if since.elapsed() >= idle_for => stop.cancel(),
            true => {}
            false => idle_since = None,
        }
        tokio::select! {
            () = sleep(step) => {}
            () = stop.cancelled() => {}
        }
    }
}

fn failure<S: Store>(error: &ReceiverError) -> Failure {
    let exit = match error {
        ReceiverError::Source(_) | ReceiverError::Store(_) => Exit::Refused,
        ReceiverError::Unreachable { .. } => Exit::Unreachable,
        // The enum is open to core's additions, and an unknown error is no fault of the operator's.
        _ => Exit::Bug,
    };
    Failure::new(exit, text::<S>(error))
}

/// The end of a worker.
pub(crate) fn ended_with<S: Store>(error: &WorkerError) -> Failure {
    Failure::new(exit::of_worker(error), text::<S>(error))
}

fn text<S: Store>(error: &(dyn std::error::Error + 'static)) -> String {
    // The text of a broker's outage promises to wait.
    store::describe::<S>(error).replace("; idem waits and tries again", "")
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn read(line: &str) -> InboxFlags {
        let command = InboxFlags::augment_args(Command::new("worker"));
        let matches = command.try_get_matches_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        InboxFlags::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn the_part_of_a_process_is_both_or_one() {
        for (line, part) in [
            ("worker", None),
            ("worker --inbox", Some(Part::On)),
            ("worker --inbox=on", Some(Part::On)),
            ("worker --inbox off", None),
            ("worker --inbox receive", Some(Part::Receive)),
            ("worker --inbox=process", Some(Part::Process)),
        ] {
            assert_eq!(read(line).part(), part, "{line}");
        }
    }

    #[test]
    fn a_setting_of_the_receiver_is_refused_where_there_is_none() {
        for (line, cure) in [
            ("worker --inbox-slots 4", "add --inbox"),
            ("worker --inbox off --inbox-max 9", "add --inbox"),
            ("worker --inbox process --inbox-max 9", "give it to the process with --inbox receive"),
        ] {
            let refused = read(line).check().unwrap_err();
            assert!(refused.contains(cure), "{refused}");
        }
        assert_eq!(read("worker --inbox --inbox-slots 4 --inbox-max 9").check(), Ok(()));
        assert_eq!(read("worker --inbox receive --inbox-slots 4").check(), Ok(()));
    }
}
