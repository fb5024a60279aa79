use std::time::Duration;

use super::{DECIDED, KafkaOptions, OF_PRODUCERS};

fn options() -> KafkaOptions {
    KafkaOptions::new("broker:9092", "purchases", "ledger")
}

fn refused(options: &KafkaOptions) -> String {
    options.build().unwrap_err().to_string()
}

#[test]
fn j13_settings_that_break_the_guarantee_are_refused_by_name() {
    for (name, value) in [
        ("enable.auto.commit", "true"),
        ("auto.commit.enable", "true"),
        ("enable.auto.offset.store", "true"),
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_uncommitted"),
        ("enable.partition.eof", "false"),
        ("allow.auto.create.topics", "true"),
        ("group.protocol", "consumer"),
        ("statistics.interval.ms", "1000"),
        ("group.remote.assignor", "uniform"),
    ] {
        let text = refused(&options().set(name, value));
        assert!(text.starts_with(&format!("set is {name} = {value:?}, but ")), "{text}");
    }
    for name in ["bootstrap.servers", "metadata.broker.list", "group.id"] {
        assert!(refused(&options().set(name, "x")).contains("an argument of KafkaOptions::new"));
    }
}

/// J36: they were accepted and did nothing.
#[test]
fn j36_settings_of_producers_are_refused_by_name_except_for_compression() {
    for name in OF_PRODUCERS {
        let text = refused(&options().set(name, "1"));
        assert!(text.starts_with(&format!("set is {name}, but only producers know it")), "{text}");
    }
    for (name, value) in [("compression.type", "zstd"), ("compression.codec", "gzip"), ("compression.level", "3")] {
        assert!(options().set(name, value).build().is_ok(), "{name}");
    }
}

#[test]
fn settings_that_say_what_is_decided_anyway_are_taken() {
    for (name, value, _) in DECIDED.into_iter().filter(|(_, value, _)| !value.is_empty()) {
        assert!(options().set(name, value).build().is_ok(), "{name}");
    }
    assert!(options().set("session.timeout.ms", "10000").set("partition.assignment.strategy", "range").build().is_ok());
}

#[test]
fn what_librdkafka_does_not_know_is_refused_by_name_and_without_the_value() {
    let text = refused(&options().set("sesion.timeout.ms", "hunter2"));
    assert!(text.contains("sesion.timeout.ms") && !text.contains("hunter2"), "{text}");
    let text = refused(&options().set("session.timeout.ms", "hunter2"));
    assert!(text.contains("session.timeout.ms") && !text.contains("hunter2"), "{text}");
}

#[test]
fn values_of_settings_are_not_printed() {
    let options = options().set("sasl.password", "hunter2");
    assert!(!format!("{options:?}{:?}", options.build().unwrap()).contains("hunter2"));
}

#[test]
fn names_and_durations_are_checked() {
    for topic in ["", "^purchases.*", "a b", "..", &"x".repeat(250)] {
        assert!(refused(&KafkaOptions::new("broker:9092", topic, "ledger")).starts_with("topic is "), "{topic}");
    }
    assert!(refused(&KafkaOptions::new(" ", "purchases", "ledger")).starts_with("brokers is "));
    assert!(refused(&KafkaOptions::new("broker:9092", "purchases", "")).starts_with("group is "));
    assert!(refused(&options().commit_every(Duration::ZERO)).starts_with("commit_every is 0s, but "));
    assert!(refused(&options().stalled_after(Duration::ZERO)).starts_with("stalled_after is "));
    // The default of max.poll.interval.ms is 5 minutes.
    assert!(options().drain(Duration::from_secs(150)).build().is_ok());
    assert!(refused(&options().drain(Duration::from_secs(151))).contains("max.poll.interval.ms"));
    assert!(refused(&options().set("max.poll.interval.ms", "45000")).starts_with("drain is 25s, but "));
}
