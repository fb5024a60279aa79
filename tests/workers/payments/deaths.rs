//! Services are killed wherever the engine can be killed, while clients insist through a proxy that cuts.

use std::{
    collections::BTreeMap,
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

/// One of the services' addresses, which stays while processes behind it come and go.
struct Seat {
    proxy: Proxy,
    deaths: AtomicUsize,
}

/// The lives of the services at all addresses: each is to end at the next point, so that all points come before one comes again.
#[derive(Default)]
struct Lives {
    begun: AtomicUsize,
    /// The deaths by store and point.
    deaths: [[AtomicUsize; POINTS.len()]; STORES.len()],
}

impl Lives {
    /// The store and the point of the next life. Their numbers have no common divisor, so that every pair of them comes.
    fn next(&self) -> (usize, usize) {
        let life = self.begun.fetch_add(1, Ordering::Relaxed);
        (life % STORES.len(), life % POINTS.len())
    }
}

/// W66: 50 clients, three services that are killed again and again, connections that are cut before the request, in its body,
/// before the answer and in it: each key has one debit, every client that got an answer for a key got the same bytes, and the
/// balances are exact.
#[tokio::test(flavor = "multi_thread")]
async fn w66_one_debit_and_one_answer_a_key_through_every_death() {
    let fixture = Arc::new(Fixture::new("http").await);
    let keys = usize::try_from(count(2_000, 150)).expect("a count");
    let over = Arc::new(AtomicBool::new(false));
    let mut seats = Vec::new();
    for _ in 0..SERVICES {
        // No server is there yet.
        let proxy = Proxy::to("127.0.0.1:9").await.expect("a proxy");
        seats.push(Arc::new(Seat { proxy, deaths: AtomicUsize::default() }));
    }
    let seed = idem_testkit::seed();
    let lives = Arc::new(Lives::default());
    let mut services = JoinSet::new();
    for (number, seat) in seats.iter().enumerate() {
        let rng = Rng::with_seed(seed.wrapping_add(number as u64));
        services.spawn(live(Arc::clone(&fixture), Arc::clone(seat), Arc::clone(&lives), Arc::clone(&over), rng));
    }
    let weather = tokio::spawn(cut(seats.clone(), Arc::clone(&over), Rng::with_seed(seed ^ 1)));
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let addresses: Vec<String> = seats.iter().map(|seat| seat.proxy.address().to_owned()).collect();
        let rng = Rng::with_seed(seed.wrapping_add(1_000 + client as u64));
        clients.spawn(pay(Arc::clone(&next), keys, addresses, rng));
    }
    let mut answers: BTreeMap<usize, Vec<Answer>> = BTreeMap::new();
    for (key, answer) in clients.join_all().await.into_iter().flatten() {
        answers.entry(key).or_default().push(answer);
    }
    over.store(true, Ordering::Relaxed);
    weather.await.expect("no panic");
    services.join_all().await;
    let by_seat: Vec<_> = seats.iter().map(|seat| seat.deaths.load(Ordering::Relaxed)).collect();
    let deaths = lives.deaths.each_ref().map(|of| of.each_ref().map(|deaths| deaths.load(Ordering::Relaxed)));
    println!("{keys} keys, deaths by address: {by_seat:?}, by store and point: {deaths:?}");
    // Otherwise this has shown nothing of that address, of that store, or of that point.
    assert!(by_seat.iter().all(|deaths| *deaths > 0), "{by_seat:?}");
    assert!(deaths.iter().all(|of| of.iter().sum::<usize>() > 0), "{deaths:?}");
    let met = (0..POINTS.len()).filter(|point| deaths.iter().any(|of| of[*point] > 0)).count();
    // The last lives of a short run may be the first of their points.
    let lives = lives.begun.load(Ordering::Relaxed).min(POINTS.len());
    let due = if std::env::var_os("IDEM_TEST_ALL").is_some() { POINTS.len() } else { lives - SERVICES };
    assert!(met >= due, "services died at {met} points: {deaths:?}");

    assert_eq!(answers.len(), keys);
    for (key, all) in &answers {
        assert_eq!(all.len(), CLIENTS_OF_A_KEY, "{key}: each client has an answer");
        let of_first = all.iter().filter(|answer| answer.header("idempotent-replayed") == Some("false")).count();
        assert!(of_first <= 1, "{key}: {all:?}");
        assert!(all.iter().all(|answer| answer.told() == all[0].told()), "{key}: {all:?}");
    }
    let status = |wanted: u16| answers.values().filter(|all| all[0].status == wanted).count();
    assert_eq!(status(201) + status(402) + status(422), keys);
    let paid: Vec<usize> = (0..keys).filter(|key| answers[key][0].status == 201).collect();
    let cents = paid.iter().map(|key| cents(*key)).sum();
    let declines = i64::try_from(status(402)).expect("a count");
    let transactions = i64::try_from(paid.len()).expect("a count");
    assert_eq!(fixture.books().await, Books { declines, ..Books::of(transactions, cents) });
    // Each answer is that of the row that stands in the books.
    let text = "SELECT idempotency_key, id::text FROM transactions";
    let rows: Vec<(String, String)> = sqlx::query_as(text).fetch_all(fixture.pool()).await.expect("the books");
    for (key, id) in rows {
        let number: usize = key.trim_start_matches("order-").parse().expect("a number");
        assert_eq!(answers[&number][0].json()["id"], id.as_str(), "{key}");
    }
    fixture.remove().await;
}

/// Some are refused, and some declined.
fn cents(key: usize) -> i64 {
    match key % 10 {
        8 => 0,
        9 => 10_001,
        _ => 100 + i64::try_from(key).expect("a number"),
    }
}

/// A client: takes keys that several clients have, and insists on an answer for each.
async fn pay(next: Arc<AtomicUsize>, keys: usize, addresses: Vec<String>, mut rng: Rng) -> Vec<(usize, Answer)> {
    let mut got = Vec::new();
    loop {
        let key = next.fetch_add(1, Ordering::Relaxed) / CLIENTS_OF_A_KEY;
        if key >= keys {
            return got;
        }
        let customer = format!("{:05}", key % 5);
        let request = Request::pay(&format!("order-{key}"), &customer, cents(key));
        if rng.u8(..2) == 0 {
            let cut = Cut::ALL[rng.usize(..Cut::ALL.len())];
            request.break_off(&addresses[rng.usize(..addresses.len())], cut).await;
        }
        let mut order: Vec<&str> = addresses.iter().map(String::as_str).collect();
        rng.shuffle(&mut order);
        got.push((key, insist(&request, &order).await));
    }
}

/// Starts a service that dies at a point after some requests, and another in its place when it has, until it is over.
async fn live(fixture: Arc<Fixture>, seat: Arc<Seat>, lives: Arc<Lives>, over: Arc<AtomicBool>, mut rng: Rng) {
    while !over.load(Ordering::Relaxed) {
        let (store, point) = lives.next();
        let armed = format!("{}={}+1*abort", POINTS[point], rng.u8(..20));
        let flags = ["--limit", "10000", "--lanes", "4", "--store", STORES[store]];
        let mut api = fixture.start_armed(&flags, &armed).await;
        seat.proxy.switch_to(&api.address);
        while api.process.runs() && !over.load(Ordering::Relaxed) {
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
async fn cut(seats: Vec<Arc<Seat>>, over: Arc<AtomicBool>, mut rng: Rng) {
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(rng.u64(20..200))).await;
        seats[rng.usize(..seats.len())].proxy.cut().await;
    }
}
