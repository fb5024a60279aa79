use clap::Args as _;

use super::*;
use crate::settings::Settings;

/// The settings that all workers have.
fn command() -> Command {
    Settings::augment_args(Command::new("worker")).arg(flag())
}

fn added_by(command: &Command, text: &str, given: &str) -> Result<String, String> {
    let given = std::iter::once("worker").chain(given.split_whitespace());
    let given = command.clone().ignore_errors(true).try_get_matches_from(given).expect("errors are ignored");
    let table: Table = text.parse().expect("it is TOML");
    let added = added(&table, command, &given)?;
    Ok(added.iter().map(|argument| argument.to_str().expect("it is text")).collect::<Vec<_>>().join(" "))
}

fn line(text: &str, given: &str) -> Result<String, String> {
    added_by(&command(), text, given)
}

#[test]
fn each_kind_of_value_becomes_its_flag() {
    for (text, flags) in [
        ("lanes = 2", "--lanes=2"),
        ("drain = \"5s\"", "--drain=5s"),
        ("migrate = true", "--migrate"),
        ("migrate = false", ""),
        ("relay = false", "--relay=off"),
        ("relay = true", "--relay=on"),
        ("cleanup-every = false", "--cleanup-every=off"),
        ("admin-host = \"a\"", "--admin-host=a"),
        ("admin-host = [\"a\", \"b\"]", "--admin-host=a --admin-host=b"),
        ("", ""),
    ] {
        assert_eq!(line(text, "").as_deref(), Ok(flags), "{text}");
    }
}

#[test]
fn what_a_flag_gives_the_file_does_not() {
    let text = "lanes = 2\nmigrate = true\nadmin-host = [\"a\", \"b\"]";
    assert_eq!(line(text, "--lanes 3 --migrate --admin-host c").as_deref(), Ok(""));
    assert_eq!(line(text, "--admin-host c").as_deref(), Ok("--lanes=2 --migrate"));
}

#[test]
fn what_is_no_setting_is_refused_without_its_value() {
    for (text, why) in [
        ("lane = \"hunter2\"", "has the setting lane, which is unknown; did you mean lanes?"),
        ("database_url = \"hunter2\"", "has the setting database_url, which is unknown; did you mean database-url?"),
        ("xyz = \"hunter2\"", "has the setting xyz, which is unknown; --help-all lists those that there are"),
        ("config = \"hunter2\"", "has the setting config, which is unknown;"),
        ("migrate = \"hunter2\"", "has migrate, which must be true or false"),
        ("lanes = 1.5", "has lanes, which must be a text"),
        ("lanes = [1]", "has lanes, which is a list, but it takes one value"),
        ("admin-host = [1]", "has admin-host, which must be a list of texts"),
        ("[cleanup]\nevery = \"hunter2\"", "has the setting cleanup, which is unknown"),
        ("[lanes]\nvalue = \"hunter2\"", "has lanes, which is a table"),
    ] {
        let refused = line(text, "").expect_err(text);
        assert!(refused.starts_with(why) && !refused.contains("hunter2"), "{text}: {refused}");
    }
}

/// Every flag of every broker can stand in a file, under its name.
#[cfg(all(feature = "amqp", feature = "kafka", feature = "sqs"))]
#[test]
fn every_flag_is_a_setting() {
    let commands = [
        crate::amqp::Amqp::augment_args(Command::new("worker")),
        crate::kafka::Kafka::augment_args(Command::new("worker")),
        crate::sqs::Sqs::augment_args(Command::new("worker")),
    ];
    for command in commands.map(Settings::augment_args) {
        for argument in command.get_arguments() {
            let name = argument.get_long().expect("all are flags");
            let (text, flag) = if argument.get_action().takes_values() {
                (format!("{name} = \"x\""), format!("--{name}=x"))
            } else {
                (format!("{name} = true"), format!("--{name}"))
            };
            assert_eq!(added_by(&command, &text, ""), Ok(flag));
        }
    }
}
