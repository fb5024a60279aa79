use std::ffi::OsString;

use super::*;
use crate::command_line::{self, CommandLine, Own as OwnSettings, Stop};

fn read(arguments: &str) -> Result<CommandLine<Kafka, ()>, Stop> {
    let required = "test --database-url=sqlite://x --consumer=c --brokers=b:9092 --topic=t --group=g";
    let arguments = required.split(' ').chain(arguments.split_whitespace()).map(OsString::from).collect();
    command_line::read("test", "1", OwnSettings::none(), arguments, [])
}

fn kafka(arguments: &str) -> Kafka {
    read(arguments).unwrap_or_else(|stop| panic!("{stop:?}")).broker
}

#[test]
fn each_flag_reaches_its_setting() {
    let told = kafka("");
    assert_eq!((told.brokers.as_str(), told.topic.as_str(), told.group.as_str()), ("b:9092", "t", "g"));
    assert!(matches!(told.lane_by, LaneBy::Key) && told.reset.is_none());
    assert!(matches!(told.lane_by(LaneBy::Partition).lane_by, LaneBy::Partition));
    let told = kafka("");
    assert!(told.dead_letter_topic.is_none() && told.settings.is_empty());
    assert!(matches!(kafka("--reset earliest").reset, Some(Reset::Earliest)));
    assert!(matches!(kafka("--reset latest").reset, Some(Reset::Latest)));
    assert_eq!(kafka("--dead-letter-topic dead").dead_letter_topic.as_deref(), Some("dead"));
    let settings = kafka("--kafka a=1 --kafka b=x=y").settings;
    assert_eq!(settings, [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "x=y".to_owned())]);
}

#[test]
fn each_flag_of_the_contract_has_its_variable() {
    let command = <Kafka as clap::Args>::augment_args(clap::Command::new("test"));
    let variable = |flag: &str| {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag));
        argument.expect("the flag exists").get_env().and_then(|name| name.to_str())
    };
    assert_eq!(variable("brokers"), Some("KAFKA_BROKERS"));
    assert_eq!(variable("topic"), Some("KAFKA_TOPIC"));
    assert_eq!(variable("group"), Some("KAFKA_GROUP"));
    assert_eq!(variable("dead-letter-topic"), Some("KAFKA_DEAD_LETTER_TOPIC"));
    assert_eq!((variable("reset"), variable("kafka")), (None, None));
}

#[test]
fn s9_what_is_given_to_librdkafka_is_shown_by_name_only() {
    let line = read("--kafka sasl.password=hunter2").unwrap_or_else(|stop| panic!("{stop:?}"));
    assert!(line.given.contains("--kafka=…"), "{}", line.given);
    let Err(Stop::Refused(refused)) = read("--kafka hunter2") else { panic!("it has no value") };
    for text in [line.given.clone(), format!("{line:?}"), refused] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// The password that a file with this text gives.
fn in_a_file(text: &str) -> String {
    let file = std::env::temp_dir().join(format!("idem-kafka-{}-{:08x}", std::process::id(), fastrand::u32(..)));
    std::fs::write(&file, text).expect("a file");
    file.display().to_string()
}

/// S37: a password need not stand in the list of processes.
#[tokio::test]
async fn s37_a_setting_may_stand_in_a_file_and_is_shown_nowhere() {
    let file = in_a_file("hunter2\n");
    let told = kafka(&format!("--kafka sasl.password=@{file}"));
    assert_eq!(secret("sasl.password", Path::new(&file)).expect("it can be read"), "hunter2");
    let options = told.options().expect("the file can be read");
    assert!(!format!("{told:?}{options:?}").contains("hunter2"));
    // The value is the file's text: librdkafka takes this one.
    std::fs::write(&file, "10000").expect("a file");
    assert!(kafka(&format!("--kafka session.timeout.ms=@{file}")).build().await.is_ok());
    std::fs::remove_file(&file).expect("the file goes");
    let error = kafka("--kafka sasl.password=@hunter2").build().await.expect_err("there is no such file").to_string();
    assert!(error.starts_with("--kafka sasl.password") && error.contains("No such file"), "{error}");
    assert!(!error.contains("hunter2"), "it may be a password: {error}");
}

/// E40: the partitions of a worker that may take a minute to finish were let go after 25 s.
#[tokio::test]
async fn e40_partitions_that_move_are_kept_for_as_long_as_the_worker_may_drain() {
    for (flags, drain) in [("", "25s"), ("--drain 60s", "65s"), ("--drain 145s", "150s")] {
        let told = kafka(flags);
        let options = format!("{:?}", told.options().expect("settings"));
        assert!(options.contains(&format!("drain: {drain}")), "{flags}: {options}");
        assert!(told.build().await.is_ok(), "{flags}");
    }
    for flags in ["--drain 146s", "--drain 60s --kafka max.poll.interval.ms=60000"] {
        let error = kafka(flags).build().await.expect_err(flags).to_string();
        assert!(error.starts_with("--drain is ") && error.contains("max.poll.interval.ms"), "{error}");
    }
}

#[tokio::test]
async fn what_the_adapter_refuses_is_told_by_the_names_of_the_flags() {
    for (flags, start) in [
        ("--topic= --kafka a=b", "--topic"),
        ("--kafka enable.auto.commit=true", "--kafka is enable.auto.commit"),
        ("--dead-letter-topic a/b", "--dead-letter-topic is \"a/b\""),
    ] {
        let kafka = match flags.strip_prefix("--topic= ") {
            Some(rest) => Kafka { topic: String::new(), ..kafka(rest) },
            None => kafka(flags),
        };
        let error = kafka.build().await.expect_err(flags).to_string();
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn o63_its_own_topics_are_no_destinations() {
    let told = kafka("--dead-letter-topic dead");
    assert_eq!(told.own("t"), Some(Own::Source("--topic")));
    assert_eq!(told.own("dead"), Some(Own::DeadLetters("--dead-letter-topic")));
    assert_eq!((told.own("told"), kafka("").own("dead")), (None, None));
}
