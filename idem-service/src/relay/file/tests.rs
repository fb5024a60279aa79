use super::*;

fn read(text: &str) -> Result<File, String> {
    let path = std::env::temp_dir().join(format!("idem-relay-{:016x}.toml", fastrand::u64(..)));
    std::fs::write(&path, text).expect("a file");
    let read = File::read(&path);
    std::fs::remove_file(&path).expect("it goes");
    read
}

/// Why nothing brings events to this destination.
fn refused(file: &File, destination: usize) -> String {
    let way = file.way_to(&file.destination[destination]);
    way.err().map(|error| error.to_string()).unwrap_or_else(|| panic!("there is a way"))
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
    let Ok(Way::Broker(Broker::Kafka, form)) = file.way_to(&file.destination[0]) else { panic!("it goes to Kafka") };
    assert_eq!(form, CloudEvents::binary());
    assert_eq!(file.destination[0].receiver_keeps().ok(), Some(Duration::from_secs(14 * 86_400)));
    assert_eq!(file.destination[1].receiver_keeps().ok(), Some(RECEIVER_KEEPS));
    assert!(refused(&file, 1).contains("\"mails\" needs broker"));
}

/// S22: a URL without a password is no secret, and neither is the name of a file that holds one.
#[test]
fn s22_a_file_holds_a_secret_only_where_a_password_stands_in_it() {
    for (text, holds) in [
        ("database-url = \"postgres://u@h/d\"\namqp = { url = \"amqp://h\" }", false),
        ("kafka = { brokers = \"k\", settings = { \"sasl.password\" = \"@/run/secrets/kafka\" } }", false),
        ("kafka = { brokers = \"k\", settings = { \"sasl.password\" = \"canary\" } }", true),
        ("amqp = { url = \"amqp://u:canary@h\" }", true),
        ("database-url = \"postgres://u:canary@h/d\"", true),
    ] {
        let file = read(&format!("{text}\n[[destination]]\nname = \"a\"")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(file.holds_secrets(), holds, "{text}");
    }
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
        (
            "[[destination]]\nname = \"a\"\n[destination.webhook]\nendpoint = \"https://a\"\nsecrets = \"canary, expected\"",
            "line 5: secrets: its value must be a sequence",
        ),
        ("log-format = \"canary\"", "line 1: log-format: its value must be `text` or `json`"),
    ] {
        let error = read(text).err().unwrap_or_else(|| panic!("{text} was taken"));
        assert!(error.contains(told) && !error.contains("canary"), "{error}");
    }
    let file = read("[[destination]]\nname = \"a\"").unwrap_or_else(|error| panic!("{error}"));
    assert!(refused(&file, 0).contains("needs one of [kafka], [amqp] and [sqs]"));
}

#[test]
fn a_destination_is_at_a_broker_or_has_a_webhook() {
    let file = read(
        r#"
        [kafka]
        brokers = "k:9092"
        [[destination]]
        name = "partner"
        [destination.webhook]
        endpoint = "https://partner.example/hooks"
        secrets = ["@/run/secrets/new", "@/run/secrets/old"]
        [[destination]]
        name = "both"
        broker = "kafka"
        webhook = { endpoint = "https://partner.example/hooks", secrets = [] }
        "#,
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let Ok(Way::Webhook(webhook, None)) = file.way_to(&file.destination[0]) else { panic!("no webhook") };
    assert_eq!((webhook.secrets.len(), webhook.private_networks, webhook.plaintext), (2, false, false));
    assert!(file.holds_secrets(), "whoever knows the URL may post there");
    assert!(refused(&file, 1).contains("has a webhook"));
}

/// Events have the form and the source that their destination's part of the file says, at a broker and at an endpoint.
#[test]
fn a_destination_says_in_which_form_its_events_are() {
    let form = |webhook: &str, given: &str| {
        let text = format!("[kafka]\nbrokers = \"k\"\n[[destination]]\nname = \"a\"\n{webhook}\n{given}");
        let file = read(&text).unwrap_or_else(|error| panic!("{error}"));
        match file.way_to(&file.destination[0]) {
            Ok(Way::Broker(_, form)) => Ok(Some(form)),
            Ok(Way::Webhook(_, form)) => Ok(form),
            Err(error) => Err(error.to_string()),
        }
    };
    let hooks = "webhook = { endpoint = \"https://partner.example/hooks\", secrets = [] }";
    let source = "event-source = \"urn:example:bank\"";
    let structured = format!("event-format = \"structured\"\n{source}");
    let from_bank = |form: CloudEvents| form.source("urn:example:bank").ok();
    assert_eq!(form("", source), Ok(from_bank(CloudEvents::binary())));
    assert_eq!(form(hooks, ""), Ok(None));
    assert_eq!(form(hooks, "event-format = \"binary\""), Ok(Some(CloudEvents::binary())));
    for webhook in ["", hooks] {
        assert_eq!(form(webhook, &structured), Ok(from_bank(CloudEvents::structured())));
        let why = form(webhook, "event-format = \"binary\"\nevent-source = \"<canary>\"").unwrap_err();
        assert!(why.contains("\"a\"") && why.contains("a URI reference") && !why.contains("canary"), "{why}");
    }
    let why = form(hooks, source).unwrap_err();
    assert!(why.contains("needs event-format"), "{why}");
}

/// A webhook's settings are checked before anything is sent, and no error shows its URL or a secret.
#[cfg(feature = "webhooks")]
#[test]
fn what_is_wrong_with_a_webhook_is_told_at_the_start() {
    let webhook = |endpoint: &str, secret: &str| WebhookPart {
        endpoint: endpoint.to_owned(),
        secrets: vec![secret.to_owned()],
        private_networks: false,
        plaintext: false,
        origin: false,
    };
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let publisher = super::super::webhook::publisher;
    assert!(publisher("partner", &webhook("https://partner.example/canary", secret), None).is_ok());
    let none = WebhookPart { secrets: Vec::new(), ..webhook("https://partner.example/canary", "") };
    for (part, told) in [
        (webhook("http://partner.example/canary", secret), "does not begin with https://"),
        (webhook("https://10.0.0.1/canary", secret), "no public address"),
        (webhook("canary", secret), "URL is not valid"),
        (webhook("https://partner.example/canary", "canary"), "whsec_ and the Base64"),
        (webhook("https://partner.example/canary", "@/nowhere/canary"), "cannot be read"),
        (none, "no secret"),
    ] {
        let error = publisher("partner", &part, None).err().unwrap_or_else(|| panic!("it was taken")).to_string();
        assert!(error.contains(told) && error.contains("\"partner\"") && !error.contains("canary"), "{error}");
    }
}
