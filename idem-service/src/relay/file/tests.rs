use super::*;

fn read(text: &str) -> Result<File, String> {
    let path = std::env::temp_dir().join(format!("idem-relay-{:016x}.toml", fastrand::u64(..)));
    std::fs::write(&path, text).expect("a file");
    let read = File::read(&path);
    std::fs::remove_file(&path).expect("it goes");
    read
}

#[test]
fn a_file_says_where_the_events_are_and_where_they_go() {
    let file = read(
        r#"
        database-url = "postgres://u:canary@h/d"
        schema = "orders"
        log-format = "json"
        kafka = { brokers = "k:9092", settings = { "sasl.password" = "@/run/secrets/kafka" } }
        [sqs]
        [[destination]]
        name = "payments"
        broker = "kafka"
        receiver-keeps = "14d"
        [[destination]]
        name = "mails"
        "#,
    )
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(file.log_format(), LogFormat::Json);
    assert!(file.holds_secrets());
    assert_eq!(file.broker_of(&file.destination[0]).ok(), Some(Broker::Kafka));
    assert_eq!(file.destination[0].receiver_keeps().ok(), Some(Duration::from_secs(14 * 86_400)));
    assert_eq!(file.destination[1].receiver_keeps().ok(), Some(RECEIVER_KEEPS));
    let several = file.broker_of(&file.destination[1]).map_err(|error| error.to_string());
    assert!(several.is_err_and(|error| error.contains("\"mails\" needs broker")));
}

#[test]
fn what_is_wrong_is_named_and_no_value_is_shown() {
    for (text, told) in [
        (
            "database-url = \"canary\"\n[[destination]]\nname = \"a\"\nbrokers = \"canary\"",
            "line 4: unknown field `brokers`",
        ),
        ("databse-url = \"canary\"", "line 1: unknown field `databse-url`"),
        ("[kafka]\nbrokers = \"canary\"", "names no destination"),
        ("[[destination]]\nname = canary", "line 2"),
    ] {
        let error = read(text).err().unwrap_or_else(|| panic!("{text} was taken"));
        assert!(error.contains(told) && !error.contains("canary"), "{error}");
    }
    let file = read("[[destination]]\nname = \"a\"").unwrap_or_else(|error| panic!("{error}"));
    let none = file.broker_of(&file.destination[0]).map_err(|error| error.to_string());
    assert!(none.is_err_and(|error| error.contains("names no broker")));
}
