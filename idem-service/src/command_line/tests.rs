use std::time::Duration;

use idem_core::{BoxError, Retention, config::WorkerSettings};
use idem_testkit::memory::{MemoryPublisher, MemorySource};

use super::*;
use crate::broker::Built;

/// A broker without flags.
#[derive(Debug, clap::Args)]
struct Nothing {}

impl Broker for Nothing {
    type Source = MemorySource;
    type Publisher = MemoryPublisher;

    const VARIABLES: &'static str = "NOTHING_";

    async fn build(self) -> Result<Built<MemorySource, MemoryPublisher>, BoxError> {
        Err("it is never built".into())
    }
}

fn read_line(arguments: &str) -> CommandLine<Nothing, ()> {
    let required = ["test", "--database-url=postgres://u:hunter2@h/d", "--consumer=c"];
    let arguments = required.into_iter().chain(arguments.split_whitespace()).map(OsString::from).collect();
    read("test", "1", Own::none(), arguments, []).unwrap_or_else(|stop| panic!("{stop:?}"))
}

fn settings(arguments: &str) -> Settings {
    read_line(arguments).settings
}

#[test]
fn the_defaults_are_those_of_the_contract_and_of_core() {
    let (told, core) = (settings(""), WorkerSettings::default());
    assert_eq!(told.flags.schema.as_str(), "idem");
    assert!(told.flags.admin.is_none() && told.lanes.is_none());
    assert_eq!(told.retention, Retention::For(Duration::from_secs(7 * 86_400)));
    assert_eq!((told.flags.migrate, told.flags.create_tables), (false, false));
    assert_eq!(told.flags.handler_deadline, Duration::from_secs(30));
    assert_eq!(
        (told.until_idle, told.flags.startup_timeout, told.flags.drain),
        (None, core.startup_timeout, core.drain)
    );
    assert_eq!((told.batch, told.attempts), (core.batch, core.retry.attempts));
    assert_eq!(told.retry_later, core.retry.later);
}

#[test]
fn each_flag_reaches_its_setting() {
    type IsSet = fn(&Settings) -> bool;
    let flags: [(&str, IsSet); 15] = [
        ("--schema books", |told| told.flags.schema.as_str() == "books"),
        ("--retention 2h", |told| told.retention == Retention::For(Duration::from_secs(7200))),
        ("--retention forever", |told| told.retention == Retention::Forever),
        ("--migrate", |told| told.flags.migrate),
        ("--create-tables", |told| told.flags.create_tables),
        ("--until-idle 5s", |told| told.until_idle == Some(Duration::from_secs(5))),
        ("--startup-timeout 1m", |told| told.flags.startup_timeout == Duration::from_secs(60)),
        ("--drain 1s", |told| told.flags.drain == Duration::from_secs(1)),
        ("--handler-deadline 1h", |told| told.flags.handler_deadline == Duration::from_secs(3600)),
        ("--admin-host a --admin-host b", |told| told.flags.admin_host == ["a", "b"]),
        ("--admin 127.0.0.1:9900", |told| told.flags.admin.as_deref() == Some("127.0.0.1:9900")),
        ("--attempts 3", |told| told.attempts == 3),
        ("--retry-later 30s,2m", |told| told.retry_later.delays() == [30, 120].map(Duration::from_secs)),
        ("--lanes 3", |told| told.lanes == Some(3)),
        ("--batch 9", |told| told.batch == 9),
    ];
    for (flags, is_set) in flags {
        assert!(is_set(&settings(flags)), "{flags}");
    }
}

#[test]
fn what_was_given_is_told_without_secrets_and_without_defaults() {
    let line = read_line("--lanes 2 --migrate --batch 7");
    let expected = "--database-url=… --migrate --consumer=c --lanes=2 --batch=7";
    assert_eq!(line.given, expected);
    assert!(!format!("{line:?}").contains("hunter2"));
}

/// An error about a missing setting says that `KAFKA_BOOTSTRAP_SERVERS` is set and not read: it may be the
/// missing one.
#[test]
fn a_missing_setting_is_told_beside_the_variables_that_are_none() {
    let read = |variables: &[&str]| {
        let arguments = ["test", "--database-url=postgres://h/d"].map(OsString::from).to_vec();
        let variables = variables.iter().map(|name| (*name).to_owned());
        match read::<Nothing, ()>("test", "1", Own::none(), arguments, variables) {
            Err(Stop::Refused(line)) => line,
            other => panic!("{other:?}"),
        }
    };
    let missing = "--consumer (or the variable IDEM_CONSUMER) must be given";
    assert_eq!(read(&["PATH"]), missing);
    let told = read(&["NOTHING_BOOTSTRAP_SERVERS"]);
    assert_eq!(told, format!("{missing}; set, and no settings of this worker: NOTHING_BOOTSTRAP_SERVERS"));
}
