//! Wrong settings: one clear line, and at once.

use super::{fixture::Fixture, queue::Queue, worker::Ended};

/// Runs a worker with these arguments instead of, or beside, its usual ones. Of a flag given twice the test takes the
/// usual one out.
async fn refused(fixture: &Fixture, instead: &[(&str, &str)], variables: &[(&str, &str)]) -> Ended {
    let mut arguments = fixture.arguments(&["--startup-timeout", "3s"]);
    for (flag, value) in instead {
        let at = arguments.iter().position(|argument| argument == flag).expect("a usual flag");
        (*value).clone_into(&mut arguments[at + 1]);
    }
    fixture.start_with(&arguments, variables).ended().await
}

fn assert_refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{}", ended.log);
    let last = ended.log.lines().last().unwrap_or_default();
    for word in words {
        assert!(last.contains(word), "{word:?} is not in the last line: {last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_exist_is_refused_and_not_created() {
    let fixture = Fixture::new("no_queue", "").await;
    let other = format!("{}-other", fixture.queue.url);
    for _ in 0..2 {
        let ended = refused(&fixture, &[("--queue-url", &other)], &[]).await;
        assert_refused(&ended, 2, &["-other", "does not exist"]);
    }
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_that_does_not_exist_is_refused() {
    let fixture = Fixture::new("no_aside", "").await;
    let aside = format!("{}-aside", fixture.queue.url);
    let arguments = fixture.arguments(&["--dead-letter-queue-url", &aside]);
    assert_refused(&fixture.start_with(&arguments, &[]).ended().await, 2, &["-aside", "does not exist"]);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_a_visibility_that_does_not_outlast_the_handler_is_refused_with_both_values() {
    let fixture = Fixture::new("visibility", "").await;
    let ended = refused(&fixture, &[("--visibility", "10s")], &[]).await;
    assert_refused(&ended, 2, &["visibility is 10s", "handler_deadline of 10s"]);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_and_settings_are_refused() {
    let fixture = Fixture::new("nobody", "").await;
    let nobody = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    assert_refused(&refused(&fixture, &[], &nobody).await, 2, &["no credentials", "AWS_ACCESS_KEY_ID"]);
    assert_refused(&refused(&fixture, &[("--queue-url", "orders")], &[]).await, 2, &["--queue-url is \"orders\""]);
    assert_refused(&refused(&fixture, &[], &[("SQS_QUEUE", "x")]).await, 2, &["SQS_QUEUE", "SQS_QUEUE_URL"]);
    fixture.remove().await;
}

/// F20: the first mistakes on AWS. Both were taken for an outage, and waited out for two minutes.
#[tokio::test(flavor = "multi_thread")]
async fn f20_no_region_and_no_credentials_are_refused_at_once() {
    let fixture = Fixture::new("first", "").await;
    let arguments = fixture.arguments(&[]);
    let region = fixture.start_with(&arguments, &[("AWS_REGION", "")]).ended().await;
    assert_refused(&region, 2, &["AWS_REGION"]);
    // A machine with closed metadata, and one that has none.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = closed.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = closed.accept().await {
            let answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        }
    });
    for metadata in [format!("http://{address}"), "http://127.0.0.1:1".to_owned()] {
        let variables = [
            ("AWS_ACCESS_KEY_ID", ""),
            ("AWS_SECRET_ACCESS_KEY", ""),
            ("AWS_EC2_METADATA_DISABLED", "false"),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata),
        ];
        let ended = fixture.start_with(&arguments, &variables).ended().await;
        assert_refused(&ended, 2, &["no credentials", "AWS_ACCESS_KEY_ID"]);
    }
    fixture.remove().await;
}

/// F22: a profile that asks a program for credentials. One that signs in with SSO, and has not, says so.
#[tokio::test(flavor = "multi_thread")]
async fn f22_profiles_of_a_program_and_of_sso_are_read() {
    let fixture = Fixture::new("profile", "").await;
    fixture.send([0]).await;
    let profiles = fixture.next_log().with_extension("aws");
    let found = r#"{"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "test"}"#;
    let sso = "sso_start_url = https://example.awsapps.com/start\nsso_region = eu-central-1\n\
        sso_account_id = 1\nsso_role_name = worker";
    let text = format!("[profile program]\ncredential_process = echo '{found}'\n[profile sso]\n{sso}\n");
    std::fs::write(&profiles, text).expect("the profiles can be written");
    let run = async |profile: &str, more: &[&str]| {
        let variables = [
            ("AWS_ACCESS_KEY_ID", ""),
            ("AWS_SECRET_ACCESS_KEY", ""),
            ("AWS_CONFIG_FILE", profiles.to_str().expect("a path")),
            ("AWS_PROFILE", profile),
            ("HOME", "/nonexistent"),
            ("PATH", "/usr/bin:/bin"),
        ];
        fixture.start_with(&fixture.arguments(more), &variables).ended().await
    };
    let ended = run("program", &["--until-idle", "1s"]).await;
    assert_eq!((ended.status.code(), ended.count("processed")), (Some(0), 1), "{}", ended.log);
    // It is waited for, because somebody may sign in meanwhile.
    let ended = run("sso", &["--startup-timeout", "1s"]).await;
    assert_refused(&ended, 3, &["credentials for queue", "cannot be loaded", "aws sso login", "sso/cache"]);
    fixture.remove().await;
}

/// Two queues under one consumer's name would see each other's duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_bound_elsewhere_is_refused_with_both_names() {
    let fixture = Fixture::new("bound", "").await;
    fixture.drain(&[]).await;
    let name = format!("{}-other", fixture.name);
    let other = Queue::create(&fixture.queue.server, &name).await;
    let ended = refused(&fixture, &[("--queue-url", &other.url)], &[]).await;
    assert_refused(&ended, 2, &[&fixture.name, &name]);
    other.delete().await;
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_reached_ends_the_start_with_its_own_code() {
    let fixture = Fixture::new("nowhere", "").await;
    let ended = refused(&fixture, &[], &[("AWS_ENDPOINT_URL", "http://127.0.0.1:1")]).await;
    // The address is the first thing to look at.
    let said = format!("SQS does not answer for {}", fixture.queue.url);
    assert_refused(&ended, 3, &["the broker could not be reached for 3s", &said, "AWS_ENDPOINT_URL"]);
    fixture.remove().await;
}
