//! Services are killed wherever the engine can be killed, while clients insist through a proxy that cuts.

use std::{
    collections::BTreeMap,
    ops::Range,
    os::unix::process::ExitStatusExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use idem_testkit::proxy::Proxy;
use tokio::task::JoinSet;

use super::{
    client::{Answer, Cut, Request},
    database::count,
    fixture::{Books, Fixture, insist},
};

const SERVICES: usize = 3;
const CLIENTS: usize = 50;
const CLIENTS_OF_A_KEY: usize = 3;

/// Where a service dies: the points that a request meets.
const POINTS: [&str; 9] =
    ["begin", "claimed", "handler_mid", "handler_done", "appended", "guard", "commit_sent", "commit_ok", "rollback"];

/// The clients of PostgreSQL, which take turns behind each address.
const STORES: [&str; 2] = ["sqlx", "tokio-postgres"];

/// How a process ends that a failpoint kills.
const SIGABRT: i32 = 6;

/// Keys that several clients have, in each round but the first; rounds come until services have died everywhere.
const KEYS_OF_A_ROUND: usize = 50;
const ROUNDS_MAX: usize = 100;

/// One of the services' addresses, which stays while processes behind it come and go.
struct Seat {
    proxy: Proxy,
    deaths: AtomicUsize,
}

/// The lives of the services at all addresses: each is to end at the next point, so that all points come before one comes again.
#[derive(Default)]
struct Lives {
    /// The bug that is planted in each of them, or none where this is empty.
    bug: &'static str,
    begun: AtomicUsize,
    /// The deaths by store and point.
    deaths: [[AtomicUsize; POINTS.len()]; STORES.len()],
    /// The requests that their clients broke off, by [`Cut`].
    broken_off: [AtomicUsize; Cut::ALL.len()],
    over: AtomicBool,
}

impl Lives {
    /// The store and the point of the next life. Their numbers have no common divisor, so that every pair of them comes.
    fn next(&self) -> (usize, usize) {
        let life = self.begun.fetch_add(1, Ordering::Relaxed);
        (life % STORES.len(), life % POINTS.len())
    }

    /// Whether a service of each store has died at each point, and clients were gone at each.
    fn have_ended_everywhere(&self) -> bool {
        self.deaths.iter().flatten().chain(&self.broken_off).all(|seen| seen.load(Ordering::Relaxed) > 0)
    }

    fn are_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// W66: 50 clients, three services that are killed again and again, connections that are cut before the request, in its body,
/// before the answer and in it: each key has one debit, every client that got an answer for a key got the same bytes, another
/// payload under it is refused, and the balances are exact.
#[tokio::test(flavor = "multi_thread")]
async fn w66_one_debit_and_one_answer_a_key_through_every_death() {
    let fixture = Arc::new(Fixture::new("http").await);
    pay_through_every_death(Arc::clone(&fixture), "").await;
    fixture.remove().await;
}

/// W162: a bug in the services turns the same run red, and by the assertion that is about it.
#[cfg(idem_bugs)]
#[tokio::test(flavor = "multi_thread")]
async fn w162_a_bug_in_the_services_is_seen() {
    let other_payload = "another payload under a used key";
    let bugs: [(_, &[&str]); 3] = [
        // hash_ignored
        ("ConflictIsADuplicate", &[other_payload]),
        // respond_before_commit: what was lost behind its answer runs again, or another payload does, which has the key from then on.
        ("AnswersBeforeCommit", &["more than one answer", other_payload, "another outcome"]),
        // store_after_commit
        ("ResultInSecondTx", &["no answer is kept"]),
    ];
    for (bug, because) in bugs {
        let fixture = Arc::new(Fixture::new("http_bug").await);
        let ended = tokio::spawn(pay_through_every_death(Arc::clone(&fixture), bug)).await;
        let panic = ended.expect_err("it is green").into_panic();
        let text = panic.downcast_ref::<String>().expect("a text");
        println!("{bug} is red: {}", text.chars().take(200).collect::<String>());
        assert!(because.iter().any(|because| text.contains(because)), "{bug} is red for another reason: {text}");
        fixture.remove().await;
    }
}

/// The whole run, with this bug in each service.
async fn pay_through_every_death(fixture: Arc<Fixture>, bug: &'static str) {
    let mut seats = Vec::new();
    for _ in 0..SERVICES {
        // No server is there yet.
        let proxy = Proxy::to("127.0.0.1:9").await.expect("a proxy");
        seats.push(Arc::new(Seat { proxy, deaths: AtomicUsize::default() }));
    }
    let seed = idem_testkit::seed();
    let lives = Arc::new(Lives { bug, ..Lives::default() });
    let mut services = JoinSet::new();
    for (number, seat) in seats.iter().enumerate() {
        let rng = Rng::with_seed(seed.wrapping_add(number as u64));
        services.spawn(live(Arc::clone(&fixture), Arc::clone(seat), Arc::clone(&lives), rng));
    }
    services.spawn(cut(seats.clone(), Arc::clone(&lives), Rng::with_seed(seed ^ 1)));
    let mut answers: BTreeMap<usize, Vec<Answer>> = BTreeMap::new();
    let mut keys = 0..usize::try_from(count(2_000, 150)).expect("a count");
    for round in 0..ROUNDS_MAX {
        answers.extend(pay_once(keys.clone(), &seats, &lives, seed.wrapping_add(round as u64)).await);
        if lives.have_ended_everywhere() {
            break;
        }
        keys = keys.end..keys.end + KEYS_OF_A_ROUND;
    }
    lives.over.store(true, Ordering::Relaxed);
    services.join_all().await;
    let by_seat: Vec<_> = seats.iter().map(|seat| seat.deaths.load(Ordering::Relaxed)).collect();
    let (deaths, broken_off) = (&lives.deaths, &lives.broken_off);
    println!(
        "{} keys, deaths by address: {by_seat:?}, by store and point: {deaths:?}, gone: {broken_off:?}",
        answers.len()
    );
    // Otherwise this has shown nothing of that address, of that store and point, or of that cut.
    assert!(by_seat.iter().all(|deaths| *deaths > 0), "{by_seat:?}");
    assert!(lives.have_ended_everywhere(), "by store and {POINTS:?}: {deaths:?}; by {:?}: {broken_off:?}", Cut::ALL);
    are_the_books(&fixture, &answers).await;
}

/// Clients that have these keys insist on an answer for each. Answers what they got.
async fn pay_once(
    keys: Range<usize>,
    seats: &[Arc<Seat>],
    lives: &Arc<Lives>,
    seed: u64,
) -> BTreeMap<usize, Vec<Answer>> {
    let next = Arc::new(AtomicUsize::new(keys.start * CLIENTS_OF_A_KEY));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let addresses: Vec<String> = seats.iter().map(|seat| seat.proxy.address().to_owned()).collect();
        let rng = Rng::with_seed(seed.wrapping_add(1_000 + client as u64));
        clients.spawn(pay(Arc::clone(&next), keys.end, addresses, Arc::clone(lives), rng));
    }
    let mut answers: BTreeMap<usize, Vec<Answer>> = BTreeMap::new();
    for (key, answer) in clients.join_all().await.into_iter().flatten() {
        answers.entry(key).or_default().push(answer);
    }
    assert_eq!(answers.len(), keys.len());
    for (key, all) in &answers {
        assert_eq!(all.len(), CLIENTS_OF_A_KEY, "{key}: each client has an answer");
        let of_first = all.iter().filter(|answer| answer.header("idempotent-replayed") == Some("false")).count();
        assert!(of_first <= 1, "{key} has more than one answer: {all:?}");
        assert!(all.iter().all(|answer| answer.told() == all[0].told()), "{key} has more than one answer: {all:?}");
    }
    answers
}

/// The books have one transaction for each key that was paid, and each answer is that of its row.
async fn are_the_books(fixture: &Fixture, answers: &BTreeMap<usize, Vec<Answer>>) {
    let text = "SELECT idempotency_key, id::text FROM transactions";
    let rows: Vec<(String, String)> = sqlx::query_as(text).fetch_all(fixture.pool()).await.expect("the books");
    for (key, id) in rows {
        let number: usize = key.trim_start_matches("order-").parse().expect("a number");
        let answer = &answers[&number][0];
        assert_eq!(answer.json()["id"], id.as_str(), "{key} has more than one answer: {answer:?}");
    }
    let paid: Vec<usize> = answers.keys().copied().filter(|key| outcome(*key).1 == 201).collect();
    let declines = answers.keys().filter(|key| outcome(**key).1 == 402).count();
    let (declines, transactions) = (i64::try_from(declines), i64::try_from(paid.len()));
    let cents = paid.iter().map(|key| outcome(*key).0).sum();
    let books = Books::of(transactions.expect("a count"), cents);
    assert_eq!(fixture.books().await, Books { declines: declines.expect("a count"), ..books });
}

/// What a key is to pay, and the status that its clients get: some are refused, and some declined.
fn outcome(key: usize) -> (i64, u16) {
    match key % 10 {
        8 => (0, 422),
        9 => (10_001, 402),
        _ => (100 + i64::try_from(key).expect("a number"), 201),
    }
}

/// A client: takes keys that several clients have, and insists on an answer for each. Now and then it is gone at first, or goes on
/// to misuse the key.
async fn pay(
    next: Arc<AtomicUsize>,
    end: usize,
    addresses: Vec<String>,
    lives: Arc<Lives>,
    mut rng: Rng,
) -> Vec<(usize, Answer)> {
    let mut got = Vec::new();
    loop {
        let key = next.fetch_add(1, Ordering::Relaxed) / CLIENTS_OF_A_KEY;
        if key >= end {
            return got;
        }
        let (cents, status) = outcome(key);
        let of = |cents| Request::pay(&format!("order-{key}"), &format!("{:05}", key % 5), cents);
        let request = of(cents);
        if rng.u8(..2) == 0 {
            let cut = rng.usize(..Cut::ALL.len());
            request.break_off(&addresses[rng.usize(..addresses.len())], Cut::ALL[cut]).await;
            lives.broken_off[cut].fetch_add(1, Ordering::Relaxed);
        }
        let mut order: Vec<&str> = addresses.iter().map(String::as_str).collect();
        rng.shuffle(&mut order);
        let answer = insist(&request, &order).await;
        assert_ne!(answer.status, 409, "{key}: no answer is kept: {answer:?}");
        assert_eq!(answer.status, status, "{key}: another outcome: {answer:?}");
        got.push((key, answer));
        if rng.u8(..4) == 0 {
            let other = insist(&of(cents + 1), &order).await;
            let is_refused = other.status == 422 && other.json()["type"] == "/problems/key-reused";
            assert!(is_refused, "{key}: another payload under a used key: {other:?}");
        }
    }
}

/// Starts a service that dies at a point after some requests, and another in its place when it has, until it is over.
async fn live(fixture: Arc<Fixture>, seat: Arc<Seat>, lives: Arc<Lives>, mut rng: Rng) {
    while !lives.are_over() {
        let (store, point) = lives.next();
        // Commits take their time, so that a death finds other requests before theirs.
        let armed = format!("guard=sleep(20);{}={}+1*abort", POINTS[point], rng.u8(..20));
        let flags = ["--limit", "10000", "--lanes", "4", "--store", STORES[store]];
        let variables = [("IDEM_FAILPOINTS", armed.as_str()), ("IDEM_BUG", lives.bug)];
        let mut api = fixture.start_with(&fixture.arguments_on(&fixture.url, &flags), &variables).await;
        seat.proxy.switch_to(&api.address);
        while api.process.runs() && !lives.are_over() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if api.process.runs() {
            assert!(api.stop().await.status.success());
        } else {
            let ended = api.process.ended().await;
            assert_eq!(ended.status.signal(), Some(SIGABRT), "{armed}: {}", ended.log);
            seat.deaths.fetch_add(1, Ordering::Relaxed);
            lives.deaths[store][point].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Cuts all connections of one service now and then.
async fn cut(seats: Vec<Arc<Seat>>, lives: Arc<Lives>, mut rng: Rng) {
    while !lives.are_over() {
        tokio::time::sleep(Duration::from_millis(rng.u64(20..200))).await;
        seats[rng.usize(..seats.len())].proxy.cut().await;
    }
}
