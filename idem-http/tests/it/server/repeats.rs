//! Repeats: one effect, and the first answer.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use http::Request;
use idem_core::{Retention, Store as _};
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory, Postgres},
    support::{Route, Runs, Seen, builder, counted, held, mounted, request, request_of, route, send, until_all_have},
};

pub(crate) async fn w1_a_lost_answer_is_given_again<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).build().unwrap(), &runs);
    let first = send(&route, request("\"k-1\"", "one")).await;
    assert_eq!((first.status, first.is_replayed()), (201, Some(false)), "{first:?}");
    assert_eq!(ground.paid().await, ["one"], "it is committed before it is answered");
    for _ in 0..3 {
        let again = send(&route, request("\"k-1\"", "one")).await;
        assert_eq!((again.status, again.is_replayed(), &again.body), (201, Some(true), &first.body));
        assert_eq!(again.header("content-digest"), first.header("content-digest"));
        assert_eq!(again.header("location"), first.header("location"));
        assert_eq!(again.header("content-type"), Some("text/plain"));
        assert_eq!(again.header("idempotency-key"), Some("\"k-1\""), "as it was received");
        assert_eq!(again.header("cache-control"), Some("no-store, no-transform"));
        assert!(again.header("idempotency-processed-at").is_some_and(|at| at.ends_with('Z')));
        assert!(again.header("idempotency-expires").is_some_and(|at| at.ends_with('Z')));
    }
    // With and without quotes it is one key.
    assert_eq!(send(&route, request("k-1", "one")).await.body, first.body);
    assert_eq!(ground.paid().await, ["one"]);
    assert_eq!(runs.begun(), 1);
}

/// The key is known for its time from the claim on, so the answer to a slow first run must not promise more.
#[tokio::test(start_paused = true)]
async fn w1_the_first_answer_promises_no_more_than_a_repeat() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    payments.start().await.unwrap();
    let route = route::<Memory>(&payments, &runs);
    let slow = async {
        runs.until_begun(1).await;
        tokio::time::advance(Duration::from_secs(20)).await;
        runs.release(1);
    };
    let (first, ()) = tokio::join!(send(&route, held(request("k", "one"))), slow);
    let again = send(&route, request("k", "one")).await;
    assert_eq!((first.status, again.is_replayed()), (201, Some(true)), "{first:?}");
    let (first, again) = (first.header("idempotency-expires"), again.header("idempotency-expires"));
    assert!(first.is_some() && first <= again, "{first:?} is later than {again:?}");
}

/// The engine's own setting does not end keys before the time that answers state, nor beyond a profile's bounds.
#[tokio::test]
async fn w29_keys_are_known_for_as_long_as_is_said() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let minute = Retention::For(Duration::from_secs(60));
    let payments = builder(&ground).engine(move |engine| engine.retention(minute)).build().unwrap();
    payments.start().await.unwrap();
    let route = route::<Memory>(&payments, &runs);
    let first = send(&route, request("k", "one")).await;
    let again = send(&route, request("k", "one")).await;
    let (first, again) = (first.header("idempotency-expires"), again.header("idempotency-expires"));
    assert!(first.is_some() && first <= again, "{first:?} is later than {again:?}");
}

/// W2: three concurrent requests with one key, one debit, and all three get the same response.
pub(crate) async fn w2_three_at_once_have_one_effect_and_one_answer<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).wait_for_owner(Duration::from_secs(20)).build().unwrap();
    let route = route::<G>(&idempotency, &runs);
    let one = || send(&route, held(request("k", "one")));
    let (a, b, c, ()) = tokio::join!(one(), one(), one(), runs.release_once_begun(1));
    assert_eq!((a.status, &a.body), (201, &b.body));
    assert_eq!((b.status, &b.body), (c.status, &c.body));
    assert_eq!(a.status, b.status);
    let replayed = [&a, &b, &c].iter().filter(|seen| seen.is_replayed() == Some(true)).count();
    assert_eq!(replayed, 2);
    assert_eq!(ground.paid().await, ["one"]);
    assert_eq!(runs.begun(), 1);
    // Repeats that waited in memory got the same time as later ones.
    let later = send(&route, request("k", "one")).await;
    for seen in [&a, &b, &c].into_iter().filter(|seen| seen.is_replayed() == Some(true)) {
        assert_eq!(seen.header("idempotency-processed-at"), later.header("idempotency-processed-at"));
    }
}

pub(crate) async fn w2_who_does_not_wait_is_told_that_it_runs<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).build().unwrap(), &runs);
    let first = send(&route, held(request("k", "one")));
    let second = async {
        runs.until_begun(1).await;
        let second = send(&route, request("k", "one")).await;
        // The running request may yet be rolled back, and then the key is free for this one.
        let other = send(&route, request("k", "two")).await;
        runs.release(1);
        (second, other)
    };
    let (first, (second, other)) = tokio::join!(first, second);
    assert_eq!((first.status, second.status), (201, 409), "{second:?}");
    assert_eq!((other.status, &other.body), (409, &second.body));
    assert_eq!(second.header("retry-after"), Some("1"));
    assert_eq!(second.header("content-type"), Some("application/problem+json"));
    assert!(second.json()["type"].as_str().unwrap().ends_with("in-progress"));
    assert!(second.header("link").unwrap().contains("rel=\"describedby\""));
    assert_eq!(ground.paid().await, ["one"]);
    assert_eq!(send(&route, request("k", "one")).await.body, first.body);
}

pub(crate) async fn w3_what_was_begun_ends_without_its_client<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).wait_for_owner(Duration::from_secs(20)).build().unwrap();
    let route = route::<G>(&idempotency, &runs);
    let mut gone = send(&route, held(request("k", "one")));
    tokio::select! {
        seen = &mut gone => panic!("it was answered while it is held: {seen:?}"),
        () = runs.until_begun(1) => drop(gone),
    }
    let (again, ()) = tokio::join!(send(&route, request("k", "one")), async { runs.release(1) });
    assert_eq!((again.status, again.is_replayed()), (201, Some(true)), "{again:?}");
    assert_eq!(ground.paid().await, ["one"]);
    assert_eq!(runs.begun(), 1);
}

/// W135: a process that stops can wait for the requests whose clients are gone.
pub(crate) async fn w135_requests_without_a_client_can_be_waited_for<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).build().unwrap();
    let route = route::<G>(&idempotency, &runs);
    idempotency.idle().await;
    let mut gone = send(&route, held(request("k", "one")));
    tokio::select! {
        seen = &mut gone => panic!("it was answered while it is held: {seen:?}"),
        () = runs.until_begun(1) => drop(gone),
    }
    let mut idle = pin!(idempotency.idle());
    assert!(idle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it runs");
    assert_eq!(idempotency.running(), 1);
    runs.release(1);
    idle.await;
    assert_eq!((idempotency.running(), ground.paid().await), (0, vec!["one".to_owned()]));
}

pub(crate) async fn w4_another_request_is_no_repeat<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).build().unwrap(), &runs);
    let first = send(&route, request("k", "one")).await;
    let with = |change: fn(&mut Request<_>)| {
        let mut other = request("k", "one");
        change(&mut other);
        other
    };
    for (part, other) in [
        ("body", request("k", "two")),
        ("query", with(|request| *request.uri_mut() = "/t?x=1".parse().unwrap())),
        ("query", with(|request| *request.uri_mut() = "/t?".parse().unwrap())),
        ("type", with(|request| drop(request.headers_mut().insert("content-type", "text/html".parse().unwrap())))),
    ] {
        let refused = send(&route, other).await;
        assert_eq!((refused.status, refused.header("retry-after")), (422, None), "{part}: {refused:?}");
        assert_eq!(refused.json()["differs"], part);
        assert_eq!(refused.header("idempotency-key"), Some("k"), "as it was received");
        assert!(refused.header("link").unwrap().contains("rel=\"describedby\""));
        assert!(!refused.body.windows(first.body.len()).any(|part| part == first.body), "it discloses nothing");
    }
    // Another route has keys of its own, by its template and not by its path.
    let payments = builder(&ground).build().unwrap();
    let elsewhere = mounted(&payments, "/u", |_, _| Box::pin(async { Ok(http::Response::new("elsewhere".into())) }));
    let other = with(|request| *request.uri_mut() = "/u".parse().unwrap());
    let other = Seen::of(elsewhere.oneshot(other).await.unwrap()).await;
    assert_eq!((other.status, other.is_replayed(), &*other.body), (200, Some(false), &b"elsewhere"[..]));
    // The same content in another form is the same request.
    let same = |request: &mut Request<_>| {
        let value = "TEXT/plain; charset=utf-8".parse().unwrap();
        request.headers_mut().insert("content-type", value);
    };
    let mut worded = request("k", "one");
    same(&mut worded);
    assert_eq!(send(&route, worded).await.body, first.body);
    assert_eq!(ground.paid().await, ["one"]);
    // Another tenant and another method have keys of their own.
    let other = send(&route, request_of("globex", "k", "two")).await;
    assert_eq!((other.status, other.is_replayed()), (201, Some(false)));
    let mut patch = request("k", "three");
    *patch.method_mut() = http::Method::PATCH;
    assert_eq!(send(&route, patch).await.is_replayed(), Some(false));
    assert_eq!(ground.paid().await, ["one", "three", "two"]);
}

/// W123: a client that is redirected with 301 goes on with GET, and takes the key along. Its request would run under a key of its own, and
/// the one to the right place again.
pub(crate) async fn w5_malformed_keys_have_no_effect<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).build().unwrap(), &runs);
    for key in ["", "\"a", "a,b", "a b", "\"a\";p=1", &"k".repeat(256)] {
        let refused = send(&route, request(key, "one")).await;
        assert_eq!(refused.status, 400, "{key:?}: {refused:?}");
        assert_eq!(refused.json()["type"].as_str().unwrap().split('#').nth(1), Some("key-malformed"));
    }
    let mut twice = request("k", "one");
    twice.headers_mut().append("idempotency-key", "k".parse().unwrap());
    assert_eq!(send(&route, twice).await.status, 400);
    let mut without = request("k", "one");
    without.headers_mut().remove("idempotency-key");
    let refused = send(&route, without).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["type"].as_str().unwrap().split('#').nth(1), Some("key-missing"));
    assert!(refused.header("link").unwrap().contains("rel=\"describedby\""));
    assert_eq!((ground.paid().await.len(), runs.begun()), (0, 0));
    // The longest one that is allowed, which is more than a record's key holds with its scope.
    let longest = "k".repeat(255);
    let first = send(&route, request(&longest, "one")).await;
    assert_eq!(send(&route, request(&longest, "one")).await.body, first.body);
    assert_eq!(ground.paid().await, ["one"]);
}

/// W5: by choice a key is a String of RFC 9651, and a bare value is none.
#[tokio::test]
async fn w5_strict_keys_stand_in_quotes() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let route = route::<Memory>(&builder(&ground).strict_keys().build().unwrap(), &runs);
    let bare = send(&route, request("k", "one")).await;
    assert_eq!(bare.status, 400, "{bare:?}");
    assert!(bare.json()["type"].as_str().unwrap().ends_with("#key-malformed"), "{bare:?}");
    assert_eq!((ground.paid().await.len(), runs.begun()), (0, 0));
    assert_eq!(send(&route, request("\"k\"", "one")).await.status, 201);
}

/// W6: what a client needs to go on is given again, each line of it, and so is what the service names; the rest is not.
#[tokio::test]
async fn w6_a_repeat_gets_the_headers_that_are_kept() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).keeps_header(http::HeaderName::from_static("x-named")).build().unwrap();
    let route = route::<Memory>(&payments, &runs);
    let kept = ["location", "etag", "link", "content-language", "content-location", "x-named"];
    let lines = |seen: &Seen| kept.map(|name| seen.headers.get_all(name).iter().cloned().collect::<Vec<_>>());
    let first = send(&route, request("k", "headers")).await;
    let again = send(&route, request("k", "headers")).await;
    assert_eq!((first.status, again.is_replayed()), (201, Some(true)), "{first:?}");
    assert_eq!(lines(&first).map(|lines| lines.len()), [1, 1, 2, 1, 1, 1]);
    assert_eq!(lines(&again), lines(&first));
    // A digest of the representation is the handler's own, and is not named here.
    for name in ["x-unnamed", "repr-digest"] {
        assert_eq!((first.header(name).is_some(), again.header(name)), (true, None), "{name}");
    }
}

pub(crate) async fn w6_a_repeat_gets_no_cookie<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).build().unwrap(), &runs);
    let first = send(&route, request("k", "one")).await;
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    let again = send(&route, request("k", "one")).await;
    assert_eq!(again.header("set-cookie"), None);
    assert!(again.header("location").is_some());
}

pub(crate) async fn w7_another_instance_gives_the_same_answer<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let instance = |wait| route::<G>(&builder(&ground).wait_for_owner(wait).build().unwrap(), &runs);
    let (here, there) = (instance(Duration::from_secs(60)), instance(Duration::from_secs(60)));
    let first = send(&here, held(request("k", "one")));
    let second = async {
        runs.until_begun(1).await;
        let arrived = watch::Sender::new(0);
        let patient = tokio::spawn(send(&there, counted(request("k", "one"), "one", &arrived)));
        until_all_have(&arrived, 1).await;
        // Where one unit writes at a time, a claim waits for the database, and not for the key. Elsewhere a later request has met the
        // key as held, and so has the one that waits.
        if ground.store().capabilities().waits_per_key {
            let impatient = send(&instance(Duration::ZERO), request("k", "one")).await;
            assert_eq!((impatient.status, impatient.header("retry-after")), (409, Some("1")), "{impatient:?}");
        }
        runs.release(1);
        patient.await.unwrap()
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first.status, &first.body), (second.status, &second.body), "{first:?} {second:?}");
    assert_eq!((first.is_replayed(), second.is_replayed()), (Some(false), Some(true)));
    assert_eq!((ground.paid().await, runs.begun()), (vec!["one".to_owned()], 1));
    assert_eq!(send(&there, request("k", "one")).await.body, first.body);
    assert_eq!(send(&there, request("k", "two")).await.status, 422);
}

pub(crate) async fn w11_a_repeat_gets_the_answer_of_the_old_handler<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let first = send(&route::<G>(&builder(&ground).build().unwrap(), &runs), request("k", "one")).await;
    let payments = builder(&ground).build().unwrap();
    let next =
        mounted(&payments, "/t", |_, _| Box::pin(async { Ok(http::Response::new("of the new handler".into())) }));
    let again = Seen::of(next.oneshot(request("k", "one")).await.unwrap()).await;
    assert_eq!((again.status, again.body), (201, first.body));
}

/// V14: an instance that has not had a key before looks it up where client or proxy say that this is another try, and begins no
/// transaction for it.
#[tokio::test]
async fn v14_a_repeat_that_says_so_begins_no_transaction() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let instance = || route::<Memory>(&builder(&ground).build().unwrap(), &runs);
    let first = send(&instance(), request("k", "one")).await;
    let with = |name: &'static str, value: &'static str, body| {
        let mut request = request("k", body);
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let fault = idem_testkit::Fault::Error(idem_core::ErrorClass::Permanent);
    ground.store().inject(idem_testkit::Operation::Begin, fault);
    for name in ["idempotency-attempt", "x-envoy-attempt-count"] {
        let again = send(&instance(), with(name, "2", "one")).await;
        assert_eq!((again.status, again.is_replayed(), &again.body), (201, Some(true), &first.body), "{name}");
        assert_eq!(send(&instance(), with(name, "2", "two")).await.status, 422, "{name}");
    }
    // The fault was there all the while.
    assert_eq!(send(&instance(), with("idempotency-attempt", "1", "one")).await.status, 500);
    // It is a hint: a request that was not done before runs.
    let mut new = with("idempotency-attempt", "7", "two");
    new.headers_mut().insert("idempotency-key", "k-2".parse().unwrap());
    assert_eq!(send(&instance(), new).await.is_replayed(), Some(false));
    assert_eq!(ground.paid().await, ["one", "two"]);
}

/// W125: the answers to repeats that wait in memory need a connection, and the first one's answer does not wait for it.
#[tokio::test(start_paused = true)]
async fn w125_the_first_answer_waits_for_no_repeat() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).lanes(1).wait_for_owner(Duration::from_secs(60)).build().unwrap();
    let route = route::<Memory>(&idempotency, &runs);
    let first = tokio::spawn(send(&route, held(request("k", "one"))));
    runs.until_begun(1).await;
    let second = tokio::spawn(send(&route, request("k", "one")));
    while idempotency.waiting().in_memory < 1 {
        tokio::task::yield_now().await;
    }
    // The one connection goes to this one as soon as the first has committed.
    let arrived = watch::Sender::new(0);
    let other = tokio::spawn(send(&route, counted(held(request("l", "two")), "two", &arrived)));
    until_all_have(&arrived, 1).await;
    runs.release(1);
    runs.until_begun(2).await;
    let first = first.await.unwrap();
    assert_eq!((first.status, first.is_replayed()), (201, Some(false)), "{first:?}");
    assert!(!other.is_finished() && !second.is_finished(), "the connection is still taken");
    runs.release(1);
    assert_eq!(other.await.unwrap().status, 201);
    let second = second.await.unwrap();
    assert_eq!((second.is_replayed(), &second.body), (Some(true), &first.body));
    let later = send(&route, request("k", "one")).await;
    let at = |seen: &Seen| seen.header("idempotency-processed-at").map(str::to_owned);
    assert_eq!((at(&second), runs.begun()), (at(&later), 2));
}

/// How much memory this process has, in KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// 10,000 requests for one key hold no connection while they wait, and little memory. It is a process of its own, so that the memory is that of no
/// other test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w22_ten_thousand_repeats_wait_without_connections() {
    const IS_ALONE: &str = "IDEM_TEST_IS_ALONE";
    if std::env::var_os(IS_ALONE).is_none() {
        let name = "server::repeats::w22_ten_thousand_repeats_wait_without_connections";
        let mut alone = tokio::process::Command::new(std::env::current_exe().unwrap());
        let ended = alone.args(["--exact", name]).env(IS_ALONE, "1").output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let (ground, runs) = (Postgres::new().await, Arc::new(Runs::default()));
    let idempotency =
        builder(&ground).wait_for_owner(Duration::from_secs(60)).tenant_requests_max(20_000).build().unwrap();
    let route = route::<Postgres>(&idempotency, &runs);
    let arrived = watch::Sender::new(0);
    let before = resident_kib();
    let all: Vec<_> =
        (0..10_000).map(|_| tokio::spawn(send(&route, counted(held(request("k", "one")), "one", &arrived)))).collect();
    until_all_have(&arrived, 10_000).await;
    runs.until_begun(1).await;
    let each = resident_kib().saturating_sub(before) / 10_000;
    // Some 6 KiB each were read beside other tests; twice that is the bound.
    assert!(each <= 12, "{each} KiB each");
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&super::grounds::url()).await.unwrap();
    let name = ground.schema.to_string();
    let open: i64 = sqlx::query_scalar(count).bind(&name).fetch_one(&mut connection).await.unwrap();
    // That of the one that runs, and those of the bookkeeping.
    assert!((1..=4).contains(&open), "{open} connections");
    runs.release(10_000);
    let mut bodies = std::collections::BTreeSet::new();
    for one in all {
        let seen = one.await.unwrap();
        assert_eq!(seen.status, 201, "{seen:?}");
        bodies.insert(seen.body);
    }
    assert_eq!((bodies.len(), runs.begun()), (1, 1));
    assert_eq!(ground.paid().await, ["one"]);
}

/// The memory of all requests together has a limit, waiting repeats included.
#[tokio::test]
async fn w22_waiting_repeats_hold_no_more_than_there_is_room_for() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency =
        builder(&ground).wait_for_owner(Duration::from_secs(60)).requests_bytes_max(34_000).build().unwrap();
    let route = route::<Memory>(&idempotency, &runs);
    let body = "x".repeat(10_000);
    let first = tokio::spawn(send(&route, held(request("k", &body))));
    runs.until_begun(1).await;
    let second = tokio::spawn(send(&route, request("k", &body)));
    while idempotency.waiting().in_memory < 1 {
        tokio::task::yield_now().await;
    }
    for key in ["k", "l"] {
        let refused = send(&route, request(key, &body)).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{key}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("#overloaded"), "{refused:?}");
    }
    assert_eq!(send(&route, request("small", "one")).await.status, 201);
    runs.release(1);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.status, second.is_replayed(), &second.body), (201, Some(true), &first.body));
    assert_eq!(send(&route, request("l", &body)).await.status, 201, "its room was given back");
}

/// No request queues for a connection for ever.
#[tokio::test(start_paused = true)]
async fn w13_a_request_that_gets_no_connection_is_told_to_come_again() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).lanes(2).handler_deadline(Duration::from_secs(600)).build().unwrap();
    let route = route::<Memory>(&idempotency, &runs);
    let of = |tenant| tokio::spawn(send(&route, held(request_of(tenant, "k", "one"))));
    let held = [of("acme"), of("globex")];
    runs.until_begun(2).await;
    // One has used its tenant's share, and the other meets those of all.
    for tenant in ["acme", "initech"] {
        let late = send(&route, request_of(tenant, "l", "one")).await;
        assert_eq!((late.status, late.header("retry-after")), (503, Some("1")), "{tenant}");
        assert!(late.json()["type"].as_str().unwrap().ends_with("#overloaded"), "{late:?}");
    }
    assert_eq!(runs.begun(), 2);
    runs.release(3);
    for one in held {
        assert_eq!(one.await.unwrap().status, 201);
    }
    assert_eq!(send(&route, request("l", "one")).await.status, 201, "nothing of it was kept");
}

/// One tenant's slow requests leave connections to others.
#[tokio::test]
async fn w13_one_tenant_does_not_take_all_connections() {
    for lanes in [2, 3, 4] {
        leaves_a_connection(lanes).await;
    }
}

async fn leaves_a_connection(lanes: usize) {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let quick = Arc::new(Runs::default());
    let idempotency = builder(&ground).lanes(lanes).tenant_requests_max(40).build().unwrap();
    let (route, quick) = (route::<Memory>(&idempotency, &runs), route::<Memory>(&idempotency, &quick));
    let arrived = watch::Sender::new(0);
    let slow: Vec<_> = (0..40)
        .map(|number| counted(held(request(&format!("slow-{number}"), "slow")), "slow", &arrived))
        .map(|request| tokio::spawn(send(&route, request)))
        .collect();
    until_all_have(&arrived, 40).await;
    runs.until_begun(lanes - 1).await;
    // Another tenant's request is answered while all of these are held, and none of them had its place.
    tokio::select! {
        biased;
        () = runs.until_begun(lanes) => panic!("no connection is left for others"),
        other = send(&quick, request_of("globex", "k", "quick")) => assert_eq!(other.status, 201),
    }
    assert_eq!(runs.begun(), lanes - 1, "a connection is left");
    let refused = send(&route, request("one-more", "one")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    runs.release(40);
    for one in slow {
        assert_eq!(one.await.unwrap().status, 201);
    }
}

/// W142: once each has had its first wait, no more repeats than may wait at the database do so, whatever their number.
#[tokio::test]
async fn w142_waits_at_the_database_are_bounded_after_the_first() {
    const KEYS: usize = 6;
    let (ground, runs) = (Postgres::new().await, Arc::new(Runs::default()));
    let instance = || builder(&ground).wait_for_owner(Duration::from_secs(60)).waiting_connections(1).build().unwrap();
    let (here, there) = (instance(), instance());
    let all = |route: &Route<<Postgres as Ground>::Store>| -> Vec<_> {
        let one = |key| tokio::spawn(send(route, held(request(&format!("k-{key}"), &format!("{key}")))));
        (0..KEYS).map(one).collect()
    };
    let first = all(&route::<Postgres>(&here, &runs));
    runs.until_begun(KEYS).await;
    let repeats = all(&route::<Postgres>(&there, &runs));
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&super::grounds::url()).await.unwrap();
    let name = ground.schema.to_string();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    let looks = async {
        let (mut pace, mut seen) = (tokio::time::interval(Duration::from_millis(20)), 0);
        // Over more than one wait, between which each rests.
        while seen < 50 {
            pace.tick().await;
            if there.waiting().at_database < KEYS as u64 {
                continue;
            }
            let waits: i64 = sqlx::query_scalar(count).bind(&name).fetch_one(&mut connection).await.unwrap();
            assert!(waits <= 1, "{waits} wait");
            seen += waits;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looks).await.expect("they wait");
    runs.release(KEYS);
    for one in first.into_iter().chain(repeats) {
        assert_eq!(one.await.unwrap().status, 201);
    }
    assert_eq!((runs.begun(), ground.paid().await.len()), (KEYS, KEYS));
}
