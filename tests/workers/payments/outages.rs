//! The database goes away and comes back.

use idem_testkit::proxy::Proxy;

use super::{
    client::Request,
    fixture::{Books, Fixture, insist, until},
};

/// W63: without its database a service answers 503 and when to come again, runs nothing, and goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn w63_without_a_database_it_is_503_and_nothing_runs() {
    let fixture = Fixture::new("http").await;
    let proxy = Proxy::to(fixture.host()).await.expect("a proxy");
    let url = fixture.url.replace(fixture.host(), proxy.address());
    let own = ["--listen", "127.0.0.1:0", "--database-url", &url, "--cleanup-every", "off"];
    let arguments: Vec<String> = own.into_iter().map(str::to_owned).collect();
    let api = fixture.start_with(&arguments, &[]).await;
    let before = Request::pay("order-1", "00001", 100);
    let first = before.answer(&api.address).await;
    assert_eq!(first.status, 201, "{first:?}");

    proxy.refuse(true);
    proxy.cut().await;
    for request in [&before, &Request::pay("order-2", "00001", 100)] {
        let answer = request.answer(&api.address).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    // A request that needs no database is answered as ever.
    let missing = Request::pay("x", "00001", 1).without("idempotency-key").answer(&api.address).await;
    assert_eq!(missing.status, 400);
    assert_eq!(fixture.books().await, Books::of(1, 100));

    proxy.refuse(false);
    assert_eq!(insist(&before, &[&api.address]).await.told(), first.told());
    assert_eq!(insist(&Request::pay("order-2", "00001", 100), &[&api.address]).await.status, 201);
    assert_eq!(fixture.books().await, Books::of(2, 200));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W64: the answer to a COMMIT gets lost on its way: the client has the answer of what was committed, and a repeat has it too.
#[tokio::test(flavor = "multi_thread")]
async fn w64_a_lost_answer_to_a_commit_is_no_second_debit() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start_armed(&[], "commit_sent=1+1*error;commit_ok=3+1*error").await;
    for number in 0..8 {
        let request = Request::pay(&format!("order-{number}"), "00001", 100);
        let answer = insist(&request, &[&api.address]).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(request.answer(&api.address).await.told(), answer.told());
    }
    assert_eq!(fixture.books().await, Books::of(8, 800));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W65: a service that is started before its database waits for it, and one that finds none ends with status 3.
#[tokio::test(flavor = "multi_thread")]
async fn w65_a_start_waits_for_the_database() {
    let fixture = Fixture::new("http").await;
    let proxy = Proxy::to(fixture.host()).await.expect("a proxy");
    proxy.refuse(true);
    let url = fixture.url.replace(fixture.host(), proxy.address());
    let own = |limit: &'static str| {
        ["--listen", "127.0.0.1:0", "--database-url", url.as_str(), "--startup-timeout", limit].map(str::to_owned)
    };
    let process = super::worker::Worker::start(super::fixture::PROGRAM, &own("1s"), &[], &fixture.next_log());
    let ended = process.ended().await;
    assert_eq!(ended.status.code(), Some(3), "{}", ended.log);
    let arguments = own("2m");
    let log = fixture.next_log();
    let starting = super::fixture::start(&arguments, &[], &log);
    let back = async {
        let waits = async || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("cannot be reached yet"));
        until("the service to wait for its database", waits).await;
        proxy.refuse(false);
    };
    let (api, ()) = tokio::join!(starting, back);
    assert_eq!(Request::pay("order-1", "00001", 100).answer(&api.address).await.status, 201);
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}
