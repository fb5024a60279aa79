use super::*;

const URL: &str = "amqp://user:hunter2@broker/%2f";

fn refusal(options: &AmqpOptions) -> String {
    options.build().unwrap_err().to_string()
}

#[test]
fn defaults_are_what_the_documentation_says() {
    let settings = AmqpOptions::new(URL, "purchases").check().unwrap();
    assert_eq!((settings.prefetch, settings.consumer_timeout), (300, Duration::from_secs(1800)));
    assert_eq!((settings.uri.vhost.as_str(), settings.uri.authority.port), ("/", 5672));
    assert_eq!(settings.uri.query.heartbeat, Some(10));
    let told = AmqpOptions::new("amqp://user:x@broker/%2f?heartbeat=60", "purchases").check().unwrap();
    assert_eq!(told.uri.query.heartbeat, Some(60));
}

#[test]
fn what_would_break_the_guarantee_is_refused_with_the_setting() {
    let good = || AmqpOptions::new(URL, "purchases");
    for (options, words) in [
        (good().prefetch(0), "prefetch is 0"),
        (good().consumer_timeout(Duration::from_millis(999)), "consumer_timeout is 999ms"),
        (good().retry_queue("purchases"), "retry_queue is \"purchases\""),
        (good().retry_queue(""), "retry_queue is \"\""),
        (good().require_queue(""), "require_queue is \"\""),
        (good().authorities("hunter2"), "authorities is"),
        (AmqpOptions::new(URL, " "), "queue is \" \""),
        (AmqpOptions::new(URL, "q".repeat(256)), "1 to 255 bytes"),
        (AmqpOptions::new(URL, " "), "is \" \", but it must have 1 to 255 bytes, and not blanks alone"),
        (AmqpOptions::new("broker:5672", "purchases"), "url is no such URL"),
        (AmqpOptions::new("http://user:hunter2@broker", "purchases"), "url is no such URL"),
        (good().management_url("broker:15672"), "management_url is no such URL"),
        (good().management_url("http://user:hunter2%zz@broker"), "management_url is no such URL"),
    ] {
        let text = refusal(&options);
        assert!(text.contains(words) && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn an_ipv6_address_is_written_in_brackets_and_resolved_without() {
    let url = AmqpOptions::new("amqp://user:x@[::1]:5673/%2f", "purchases");
    let further = ["[2001:db8::7]:5674", "[2001:db8::8]", "broker:5675", "broker"];
    let settings = further.iter().fold(url, |options, host| options.host(*host)).check().unwrap();
    let all = settings.uris.iter().map(|uri| (uri.authority.host.as_str(), uri.authority.port)).collect::<Vec<_>>();
    let said = [("::1", 5673), ("2001:db8::7", 5674), ("2001:db8::8", 5673), ("broker", 5675), ("broker", 5673)];
    assert_eq!(all, said);
    for host in
        ["::1:5672", "", ":5672", "broker:", "broker:no", "a,b", "user@broker", "broker/x", "amqp://broker", "a b"]
    {
        let text = refusal(&AmqpOptions::new(URL, "purchases").host(host));
        assert!(text.contains("it must be host or host:port"), "{host}: {text}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_without_its_feature_is_refused_at_once() {
    assert!(refusal(&AmqpOptions::new("amqps://user:x@broker", "purchases")).contains("feature `tls`"));
    let https = AmqpOptions::new(URL, "purchases").management_url("https://broker");
    assert!(refusal(&https).contains("feature `tls`"));
}

#[test]
fn s9_no_debug_text_holds_a_password() {
    let options = AmqpOptions::new(URL, "purchases").management_url("http://admin:hunter2@broker:15672");
    let publisher = crate::AmqpPublisher::new(&options, "dead").unwrap();
    let source = options.build().unwrap();
    for text in [format!("{options:?}"), format!("{source:?}"), format!("{publisher:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}
