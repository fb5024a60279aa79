use std::ffi::OsString;

use super::*;
use crate::command_line::{self, CommandLine, Own as OwnSettings, Stop};

fn read(arguments: &str) -> Result<CommandLine<Amqp, ()>, Stop> {
    let required = "test --database-url=sqlite://x --consumer=c --amqp-url=amqp://u:hunter2@h/%2f --queue=q";
    let arguments = required.split(' ').chain(arguments.split_whitespace()).map(OsString::from).collect();
    command_line::read("test", "1", OwnSettings::none(), arguments, [])
}

fn amqp(arguments: &str) -> Amqp {
    read(arguments).unwrap_or_else(|stop| panic!("{stop:?}")).broker
}

#[test]
fn each_flag_reaches_its_setting() {
    let told = amqp("");
    assert_eq!((told.amqp_url.as_str(), told.queue.as_str()), ("amqp://u:hunter2@h/%2f", "q"));
    assert_eq!((told.prefetch, told.consumer_timeout), (300, Duration::from_secs(1800)));
    assert!(told.dead_letter_queue.is_none() && told.management_url.is_none());
    assert_eq!(amqp("--prefetch 7").prefetch, 7);
    assert_eq!(amqp("").consumer_timeout(Duration::from_secs(3600)).consumer_timeout, Duration::from_secs(3600));
    assert_eq!(amqp("--dead-letter-queue dead").dead_letter_queue.as_deref(), Some("dead"));
    assert!(told.retry_queue.is_none() && told.authorities.is_none());
    assert_eq!(amqp("--retry-queue later").retry_queue.as_deref(), Some("later"));
    assert_eq!(amqp("--authorities ca.pem").authorities, Some(PathBuf::from("ca.pem")));
    assert_eq!(amqp("--amqp-host b:1,c --amqp-host d").amqp_host, ["b:1", "c", "d"]);
    let told = amqp("--client-certificate c.pem --client-key k.pem");
    assert_eq!((told.client_certificate, told.client_key), (Some("c.pem".into()), Some("k.pem".into())));
    assert!(read("--client-certificate c.pem").is_err() && read("--client-key k.pem").is_err());
    assert_eq!((amqp("").consumer_priority, amqp("--consumer-priority -3").consumer_priority), (None, Some(-3)));
    assert!(read("--consumer-priority high").is_err());
    assert_eq!(amqp("").delivery_limit, None);
    assert_eq!(amqp("--delivery-limit none").delivery_limit, Some(DeliveryLimit::Unlimited));
    assert_eq!(amqp("--delivery-limit 20").delivery_limit, Some(DeliveryLimit::Of(20)));
    assert!(read("--delivery-limit some").is_err() && read("--delivery-limit=-1").is_err());
    assert_eq!(amqp("--management-url http://h:15672").management_url.as_deref(), Some("http://h:15672"));
}

#[test]
fn each_flag_of_the_contract_has_its_variable() {
    let command = <Amqp as clap::Args>::augment_args(clap::Command::new("test"));
    let variable = |flag: &str| {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag));
        argument.expect("the flag exists").get_env().and_then(|name| name.to_str())
    };
    assert_eq!(variable("amqp-url"), Some("AMQP_URL"));
    assert_eq!(variable("queue"), Some("AMQP_QUEUE"));
    assert_eq!(variable("dead-letter-queue"), Some("AMQP_DEAD_LETTER_QUEUE"));
    assert_eq!(variable("management-url"), Some("AMQP_MANAGEMENT_URL"));
    assert_eq!(variable("delivery-limit"), Some("AMQP_DELIVERY_LIMIT"));
    assert_eq!(variable("retry-queue"), Some("AMQP_RETRY_QUEUE"));
    assert_eq!(variable("authorities"), Some("AMQP_AUTHORITIES"));
    assert_eq!(variable("amqp-host"), Some("AMQP_HOSTS"));
    assert_eq!(variable("client-certificate"), Some("AMQP_CLIENT_CERTIFICATE"));
    assert_eq!(variable("client-key"), Some("AMQP_CLIENT_KEY"));
    assert_eq!(variable("prefetch"), None);
}

#[test]
fn s9_the_urls_are_in_no_text() {
    let line = read("--management-url http://u:hunter2@h").unwrap_or_else(|stop| panic!("{stop:?}"));
    for text in [line.given.clone(), format!("{line:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn what_the_adapter_refuses_is_told_by_the_names_of_the_flags() {
    for (change, start) in [
        ((|amqp| amqp.amqp_url = "http://u:hunter2@h".to_owned()) as fn(&mut Amqp), "--amqp-url is"),
        (|amqp| amqp.delivery_limit = Some(DeliveryLimit::Of(0)), "--delivery-limit is 0"),
        (|amqp| amqp.queue = String::new(), "--queue is \"\""),
        (|amqp| amqp.prefetch = 0, "--prefetch is 0"),
        (|amqp| amqp.dead_letter_queue = Some(String::new()), "--dead-letter-queue is \"\""),
        (|amqp| amqp.retry_queue = Some("q".to_owned()), "--retry-queue is \"q\""),
        (|amqp| amqp.authorities = Some("no-such.pem".into()), "--authorities is no-such.pem"),
        (|amqp| amqp.authorities = Some("Cargo.toml".into()), "--authorities is "),
        (|amqp| amqp.amqp_host = vec!["b:c".to_owned()], "--amqp-host is \"b:c\""),
        (
            |amqp| (amqp.client_certificate, amqp.client_key) = (Some("Cargo.toml".into()), Some("Cargo.toml".into())),
            "--client-certificate is ",
        ),
        (|amqp| amqp.management_url = Some("hunter2".to_owned()), "--management-url is"),
        (|amqp| amqp.consumer_timeout = Duration::ZERO, "consumer_timeout is 0s"),
    ] {
        let mut told = amqp("");
        change(&mut told);
        let error = told.build().await.expect_err(start).to_string();
        assert!(error.starts_with(start) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn o63_its_own_queues_are_no_destinations() {
    let told = amqp("--dead-letter-queue dead --retry-queue later");
    assert_eq!(told.own("q"), Some(Own::Source("--queue")));
    assert_eq!(told.own("later"), Some(Own::Source("--retry-queue")));
    assert_eq!(told.own("dead"), Some(Own::DeadLetters("--dead-letter-queue")));
    assert_eq!((told.own("told"), amqp("").own("dead")), (None, None));
}
