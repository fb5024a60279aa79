use std::ffi::OsString;

use idem_sqs::aws_sdk_sqs::Config;

use super::*;
use crate::command_line::{self, CommandLine, Own as OwnSettings, Stop};

const URL: &str = "http://localhost:9324/000000000000/orders";

fn read(arguments: &str) -> Result<CommandLine<Sqs, ()>, Stop> {
    let required = format!("test --database-url=sqlite://x --consumer=c --queue-url={URL}");
    let arguments = required.split(' ').chain(arguments.split_whitespace()).map(OsString::from).collect();
    command_line::read("test", "1", OwnSettings::none(), arguments, [])
}

fn sqs(arguments: &str) -> Sqs {
    read(arguments).unwrap_or_else(|stop| panic!("{stop:?}")).broker
}

#[test]
fn each_flag_reaches_its_setting() {
    let told = sqs("");
    assert_eq!((&*told.queue_url, told.dead_letter_queue_url), (URL, None));
    assert_eq!((told.visibility, told.wait), (Duration::from_secs(60), Duration::from_secs(5)));
    assert!(told.envelope.is_none());
    assert_eq!(sqs("--dead-letter-queue-url u").dead_letter_queue_url.as_deref(), Some("u"));
    assert_eq!(sqs("--wait 1s").visibility(Duration::from_secs(300)).visibility, Duration::from_secs(300));
}

#[test]
fn f1_the_deadline_of_the_handler_is_the_workers_own() {
    assert_eq!(sqs("").worker.handler_deadline, Duration::from_secs(30));
    let line = read("--handler-deadline 10m").unwrap_or_else(|stop| panic!("{stop:?}"));
    assert_eq!(line.broker.worker.handler_deadline, line.settings.flags.handler_deadline);
    assert_eq!(line.broker.worker.handler_deadline, Duration::from_secs(600));
}

#[test]
fn each_flag_of_the_contract_has_its_variable() {
    let command = <Sqs as clap::Args>::augment_args(clap::Command::new("test"));
    let variable = |flag: &str| {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag));
        argument.expect("the flag exists").get_env().and_then(|name| name.to_str())
    };
    assert_eq!(variable("queue-url"), Some("SQS_QUEUE_URL"));
    assert_eq!(variable("dead-letter-queue-url"), Some("SQS_DEAD_LETTER_QUEUE_URL"));
    assert_eq!(variable("wait"), None);
}

#[test]
fn what_the_adapter_refuses_is_told_by_the_names_of_the_flags() {
    let client = Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build());
    for (flags, start) in [
        ("--dead-letter-queue-url orders", "--dead-letter-queue-url is \"orders\""),
        ("--handler-deadline 2m", "visibility is 1m with a handler_deadline of 2m"),
        ("--wait 21s", "--wait is 21s"),
        // F18: an idle worker that is stopped ends in time.
        ("--wait 20s --drain 22s", "--wait is 20s, but --drain is 22s"),
        ("--drain 7s", "--wait is 5s, but --drain is 7s"),
    ] {
        let error = sqs(flags).build_with(&client).expect_err(flags).to_string();
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn o63_its_own_queues_are_no_destinations_by_whatever_host() {
    let told = sqs("--dead-letter-queue-url http://localhost:9324/000000000000/dead");
    for url in
        [URL, "http://127.0.0.1:9324/000000000000/orders", "https://sqs.eu-west-1.amazonaws.com/000000000000/orders/"]
    {
        assert_eq!(told.own(url), Some(Own::Source("--queue-url")), "{url}");
    }
    assert_eq!(told.own("http://h/000000000000/dead"), Some(Own::DeadLetters("--dead-letter-queue-url")));
    let others = ["http://localhost:9324/000000000000/orders_told", "http://localhost:9324/111111111111/orders", ""];
    assert!(others.iter().all(|url| told.own(url).is_none()));
}
