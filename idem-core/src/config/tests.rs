use super::*;
use crate::span::Exactly;

fn consumer() -> ConsumerSettings {
    ConsumerSettings::new(None)
}

fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Design §6 and the issue have this table; the docs repeat it.
#[test]
fn defaults_are_those_of_the_design() {
    let consumer = consumer();
    assert_eq!(consumer.retention, Retention::For(days(7)));
    assert_eq!(consumer.busy_timeout, Duration::from_secs(5));
    assert_eq!(consumer.handler_deadline, Duration::from_secs(30));
    assert_eq!(consumer.commit_timeout, Duration::from_secs(10));
    assert_eq!(consumer.answer_timeout, Duration::from_secs(10));
    assert_eq!(consumer.payload_bytes_max, 1024 * 1024);
    assert!((1..=4).contains(&consumer.lanes), "the cores, at most 4");
    assert_eq!(consumer.handlers, Concurrency::InOrder);
    assert_eq!(Concurrency::pipelined(), Concurrency::Pipelined { at_once: 100 });
    let worker = WorkerSettings::default();
    assert_eq!(worker.batch, 100);
    assert_eq!((worker.in_flight, worker.in_flight_bytes), (10_000, 64 * 1024 * 1024));
    assert_eq!(worker.retry.attempts, 5);
    assert_eq!((worker.retry.first, worker.retry.max), (200 * MS, Duration::from_secs(30)));
    assert_eq!(
        (worker.on_conflict, worker.older_than_retention),
        (OnConflict::DeadLetter, OlderThanRetention::Process)
    );
    assert_eq!((worker.drain, worker.startup_timeout), (Duration::from_secs(20), 2 * MINUTE));
    assert_eq!(worker.cleanup.map(|cleanup| cleanup.every), Some(Duration::from_secs(3600)));
    assert!(worker.breaker && !worker.strict_retention && worker.until_idle.is_none());
    assert!(worker.control_every <= Duration::from_secs(5), "running workers obey within 5 s");
    assert_eq!(worker.dead_letter_payload_bytes_max, 32 * 1024 * 1024);
    assert_eq!((consumer.check(None), worker.check(&consumer)), (Ok(()), Ok(())), "the defaults break no rule");
}

/// V12: an answer never outlives its record, and a setting that asks for that is refused.
#[test]
fn v12_answers_are_kept_for_a_day_and_never_longer_than_records() {
    let of = |answers: Option<Retention>, records: Retention| {
        let settings = ConsumerSettings { result_retention: answers, retention: records, ..consumer() };
        settings.check(None).map(|()| settings.answers_kept_for())
    };
    let (hour, day) = (Duration::from_secs(3600), days(1));
    assert_eq!(of(None, Retention::For(days(7))), Ok(Some(day)));
    assert_eq!(of(None, Retention::Forever), Ok(Some(day)));
    assert_eq!(of(None, Retention::For(day)), Ok(None), "they go together");
    assert_eq!(of(None, Retention::For(hour)), Ok(None));
    assert_eq!(of(Some(Retention::For(hour)), Retention::For(day)), Ok(Some(hour)));
    assert_eq!(of(Some(Retention::For(day)), Retention::For(day)), Ok(None));
    assert_eq!(of(Some(Retention::Forever), Retention::Forever), Ok(None));
    refused(of(Some(Retention::For(day + NS)), Retention::For(day)).map(drop), "result_retention", "86400.000000001s");
    refused(of(Some(Retention::For(MINUTE - NS)), Retention::For(day)).map(drop), "result_retention", "59.999999999s");
    refused(of(Some(Retention::Forever), Retention::For(day)).map(drop), "result_retention", "for ever");
}

#[test]
fn a_store_with_a_single_writer_gets_one_lane_and_refuses_more() {
    let mut settings = ConsumerSettings::new(Some(1));
    assert_eq!((settings.lanes, settings.check(Some(1))), (1, Ok(())));
    settings.lanes = 2;
    let error = settings.check(Some(1)).expect_err("one writer");
    assert_eq!(error.to_string(), "lanes is 2, but this store has a single writer: use 1");
    assert_eq!(settings.check(None), Ok(()));
}

/// The error names the field, the value as it was given, and a rule that says which values are right.
fn refused(result: Result<(), ConfigError>, field: &str, value: &str) {
    let error = result.expect_err(field);
    assert_eq!((error.field, error.value.as_str()), (field, value));
    let told = error.to_string();
    assert!(told.starts_with(&format!("{field} is {value}, but it must be ")), "{told}");
    assert!(
        error.rule.chars().any(|c| c.is_ascii_digit()) || error.rule.contains("batch"),
        "the rule has limits: {told}"
    );
}

type Set<S, V> = fn(&mut S, V);

/// J13: each setting of a consumer, just inside and just outside of its limits.
#[test]
fn j13_consumer_settings_are_refused_with_field_value_and_rule() {
    let spans: [(&str, Set<ConsumerSettings, Duration>, Duration, Duration); 5] = [
        ("retention", |s, v| s.retention = Retention::For(v), MINUTE, days(3650)),
        ("busy_timeout", |s, v| s.busy_timeout = v, MS, 5 * MINUTE),
        ("handler_deadline", |s, v| s.handler_deadline = v, MS, 720 * MINUTE),
        ("commit_timeout", |s, v| s.commit_timeout = v, 10 * MS, 5 * MINUTE),
        ("answer_timeout", |s, v| s.answer_timeout = v, 10 * MS, 5 * MINUTE),
    ];
    for (field, set, min, max) in spans {
        let with = |value| {
            let mut settings = consumer();
            set(&mut settings, value);
            settings.check(None)
        };
        assert_eq!((with(min), with(max)), (Ok(()), Ok(())), "{field}");
        for value in [Duration::ZERO, min - NS, max + NS, Duration::MAX] {
            refused(with(value), field, &Exactly(value).to_string());
        }
    }
    let numbers: [(&str, Set<ConsumerSettings, usize>, usize); 3] = [
        ("payload_bytes_max", |s, v| s.payload_bytes_max = v, 256 << 20),
        ("lanes", |s, v| s.lanes = v, 1024),
        ("handlers.at_once", |s, v| s.handlers = Concurrency::Pipelined { at_once: v }, 10_000),
    ];
    for (field, set, max) in numbers {
        let with = |value| {
            let mut settings = consumer();
            set(&mut settings, value);
            settings.check(None)
        };
        assert_eq!((with(1), with(max)), (Ok(()), Ok(())), "{field}");
        for value in [0, max + 1, usize::MAX] {
            refused(with(value), field, &value.to_string());
        }
    }
    let forever = ConsumerSettings { retention: Retention::Forever, ..consumer() };
    assert_eq!(forever.check(None), Ok(()));
}

/// J13: the same for the worker's spans.
#[test]
fn j13_worker_spans_are_refused_with_field_value_and_rule() {
    let hours_12 = 720 * MINUTE;
    let spans: [(&str, Set<WorkerSettings, Duration>, Duration, Duration); 5] = [
        ("retry.first", |s, v| s.retry.first = v, MS, Duration::from_secs(30)),
        ("retry.max", |s, v| (s.retry.first, s.retry.max) = (MS, v), MS, hours_12),
        ("drain", |s, v| s.drain = v, Duration::ZERO, hours_12),
        ("startup_timeout", |s, v| s.startup_timeout = v, Duration::ZERO, hours_12),
        ("control_every", |s, v| s.control_every = v, 10 * MS, Duration::from_secs(5)),
    ];
    for (field, set, min, max) in spans {
        let with = |value| {
            let mut settings = WorkerSettings::default();
            set(&mut settings, value);
            settings.check(&consumer())
        };
        assert_eq!((with(min), with(max)), (Ok(()), Ok(())), "{field}");
        refused(with(max + NS), field, &Exactly(max + NS).to_string());
        match min.checked_sub(NS) {
            // Below one millisecond `retry.max` also breaks the rule that `retry.first` is at most as long.
            Some(below) if field == "retry.max" => assert!(with(below).is_err()),
            Some(below) => refused(with(below), field, &Exactly(below).to_string()),
            None => {}
        }
    }
}

/// J13: the same for the worker's numbers, those included whose limit is another setting.
#[test]
fn j13_worker_numbers_are_refused_with_field_value_and_rule() {
    let numbers: [(&str, Set<WorkerSettings, usize>, usize, usize); 6] = [
        ("batch", |s, v| (s.batch, s.in_flight) = (v, 10_000_000), 1, 10_000),
        ("in_flight", |s, v| s.in_flight = v, 100, 10_000_000),
        ("in_flight_bytes", |s, v| s.in_flight_bytes = v, 1 << 20, u32::MAX as usize),
        ("retry.attempts", |s, v| s.retry.attempts = u32::try_from(v).unwrap_or(u32::MAX), 1, 1_000),
        ("rows_max", |s, v| s.cleanup.get_or_insert_default().rows_max = v as u32, 1, 1_000_000),
        ("steps_max", |s, v| s.cleanup.get_or_insert_default().steps_max = v as u32, 1, 1_000_000),
    ];
    for (field, set, min, max) in numbers {
        let with = |value| {
            let mut settings = WorkerSettings::default();
            set(&mut settings, value);
            settings.check(&consumer())
        };
        assert_eq!((with(min), with(max)), (Ok(()), Ok(())), "{field}");
        for value in [0, min - 1, max + 1] {
            refused(with(value), field, &value.to_string());
        }
    }
    let off = WorkerSettings { cleanup: None, ..WorkerSettings::default() };
    assert_eq!(off.check(&consumer()), Ok(()));
}
