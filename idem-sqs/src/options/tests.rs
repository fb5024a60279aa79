use std::time::Duration;

use aws_sdk_sqs::{Client, Config, config::BehaviorVersion};

use super::{SqsOptions, is_fifo, queue_name};

const URL: &str = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders";

fn client() -> Client {
    Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build())
}

fn options() -> SqsOptions {
    SqsOptions::new(client(), URL)
}

fn refused(options: &SqsOptions) -> String {
    options.build().unwrap_err().to_string()
}

#[test]
fn what_is_no_url_of_a_queue_is_refused() {
    for url in ["", "orders", "arn:aws:sqs:eu-central-1:123456789012:orders", "https://sqs.amazonaws.com", "http:///q"]
    {
        assert!(refused(&SqsOptions::new(client(), url)).starts_with("queue_url is "), "{url}");
    }
    assert!(refused(&SqsOptions::new(client(), "https://host/1/a b")).starts_with("queue_url is "));
    assert!(options().build().is_ok());
}

#[test]
fn f1_visibility_must_outlast_the_handler() {
    let seconds = Duration::from_secs;
    let text = refused(&options().handler_deadline(seconds(60)));
    assert!(text.starts_with("visibility is 1m with a handler_deadline of 1m, but it must be longer"), "{text}");
    assert!(options().handler_deadline(seconds(59)).build().is_ok());
    assert!(refused(&options().visibility(seconds(30))).contains("handler_deadline of 30s"));
}

#[test]
fn spans_and_counts_are_checked() {
    let seconds = Duration::from_secs;
    assert!(refused(&options().visibility(seconds(43_201))).starts_with("visibility is "));
    assert!(refused(&options().visibility(seconds(1))).starts_with("visibility is "));
    assert!(options().visibility(seconds(43_200)).build().is_ok());
    for wait in [Duration::ZERO, Duration::from_millis(20_001)] {
        assert!(refused(&options().wait(wait)).starts_with("wait is "));
    }
    for count in [0, 65] {
        assert!(refused(&options().receivers(count)).starts_with("receivers is "));
    }
}

#[test]
fn the_name_says_which_kind_of_queue_it_is() {
    assert_eq!((queue_name(URL), is_fifo(URL)), ("orders", false));
    assert!(is_fifo(&format!("{URL}.fifo")));
}
