//! The routes on DynamoDB: three services on one table, that are killed and stopped, and the books read back.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    client::{Answer, Request},
    collections::{Step, postman, read},
    database::count,
    fixture::{Api, Books, insist, start},
    shared_dynamodb::{LET_IN, Table, number, text},
};

const SERVICES: usize = 3;

/// Where a service dies: the points that a request meets.
const POINTS: [&str; 8] =
    ["begin", "claimed", "handler_mid", "handler_done", "appended", "guard", "commit_sent", "commit_ok"];

/// How a process ends that a failpoint kills.
const SIGABRT: i32 = 6;

/// For how long one is stopped: twice its lease.
const STOPPED: Duration = Duration::from_secs(10);

/// Keys of each round; rounds come until services have died everywhere.
const KEYS_OF_A_ROUND: usize = 20;
const ROUNDS_MAX: usize = 100;

pub(crate) async fn serve(table: &Table, more: &[&str], variables: &[(&str, &str)]) -> Api {
    let own = ["--listen", "127.0.0.1:0", "--database-url", &table.url, "--migrate", "--cleanup-every", "off"];
    let arguments: Vec<String> = own.iter().chain(more).map(|argument| (*argument).to_owned()).collect();
    start(&arguments, &[&LET_IN[..], variables].concat(), &table.next_log()).await
}

pub(crate) async fn books(table: &Table) -> Books {
    let (mut keys, mut cents) = (BTreeSet::new(), 0);
    let transactions = table.items("transaction#").await;
    for item in &transactions {
        cents += number(item, "cents");
        keys.insert((text(item, "pk").to_owned(), key_of(text(item, "sk")).to_owned()));
    }
    let size = |count: usize| i64::try_from(count).expect("a count");
    Books {
        transactions: size(transactions.len()),
        keys: size(keys.len()),
        cents,
        balances: table.items("balance#").await.iter().map(|item| number(item, "cents")).sum(),
        declines: size(table.items("decline#").await.len()),
    }
}

/// The key in `KEY#ID`.
fn key_of(sort: &str) -> &str {
    sort.split_once('#').map_or(sort, |(key, _)| key)
}

/// Sends a request to all at once.
pub(crate) async fn to_all(request: &Request, addresses: &[String]) -> Vec<Answer> {
    let mut asked = JoinSet::new();
    for address in addresses {
        let (request, address) = (request.clone(), address.clone());
        asked.spawn(async move { insist(&request, &[&address]).await });
    }
    asked.join_all().await
}

/// W2, W4, W15: three requests of one key to three services at once have one effect and one answer, which repeats get too, another
/// payload is refused, and a refusal for good and a decline are kept.
#[tokio::test(flavor = "multi_thread")]
async fn w2_three_requests_at_three_services_have_one_effect_and_one_answer() {
    let table = Table::new("http");
    let mut services = Vec::new();
    for _ in 0..SERVICES {
        services.push(serve(&table, &["--in-progress-wait", "10s", "--limit", "10000"], &[]).await);
    }
    let addresses: Vec<String> = services.iter().map(|service| service.address.clone()).collect();
    for order in 0..20 {
        let request = Request::pay(&format!("order-{order}"), "00001", 100);
        let answers = to_all(&request, &addresses).await;
        assert!(answers.iter().all(|answer| answer.status == 201 && answer.told() == answers[0].told()), "{answers:?}");
        let firsts = answers.iter().filter(|answer| answer.header("idempotent-replayed") == Some("false")).count();
        assert_eq!(firsts, 1, "{answers:?}");
        assert!(answers[0].json().get("balance").is_none(), "{answers:?}");
        let repeat = request.answer(&addresses[order % SERVICES]).await;
        assert_eq!((repeat.told(), repeat.header("idempotent-replayed")), (answers[0].told(), Some("true")));
    }
    let read =
        Request::new("GET", answers_location(&addresses[0]).await.as_str()).tenant("acme").answer(&addresses[1]).await;
    assert_eq!((read.status, read.json()["cents"].as_i64()), (200, Some(100)), "{read:?}");
    let other = Request::pay("order-0", "00001", 101).answer(&addresses[2]).await;
    assert_eq!((other.status, &other.json()["type"]), (422, &"/problems/key-reused".into()));
    for (key, cents, status) in [("zero", 0, 422), ("much", 10_001, 402)] {
        let request = Request::pay(key, "00001", cents);
        let first = request.answer(&addresses[0]).await;
        let again = request.answer(&addresses[1]).await;
        assert_eq!((first.status, again.told()), (status, first.told()));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(books(&table).await, Books { declines: 1, ..Books::of(20, 2_000) });
    for service in services {
        assert!(service.stop().await.status.success());
    }
    table.remove().await;
}

/// W67: the collection for Postman gets what it says on DynamoDB too, with the environment that is there.
#[tokio::test(flavor = "multi_thread")]
async fn w67_the_collection_gets_what_it_says_on_dynamodb() {
    let environment = read("../payments-dynamodb/local.postman_environment.json");
    assert!(environment.contains("http://127.0.0.1:8081") && read("../payments-dynamodb/demo").contains("8081"));
    let table = Table::new("http_postman");
    let service = serve(&table, &[], &[]).await;
    for Step { name, request, status, headers } in postman(&read("payments.postman_collection.json"), &environment) {
        let answer = request.answer(&service.address).await;
        assert_eq!(answer.status, status, "{name}: {answer:?}");
        for (header, value) in headers {
            assert_eq!(answer.header(&header), Some(value.as_str()), "{name}: {answer:?}");
        }
    }
    assert_eq!(books(&table).await, Books { declines: 1, ..Books::of(1, 1177) });
    assert!(service.stop().await.status.success());
    table.remove().await;
}

/// Where the transaction of `order-0` is.
async fn answers_location(address: &str) -> String {
    let answer = Request::pay("order-0", "00001", 100).answer(address).await;
    answer.header("location").expect("a location").to_owned()
}

/// One of the services' addresses, which stays while processes behind it come and go.
struct Seat {
    proxy: Proxy,
    deaths: AtomicUsize,
}

/// The lives of the services at all addresses.
#[derive(Default)]
struct Lives {
    bug: &'static str,
    begun: AtomicUsize,
    deaths: [AtomicUsize; POINTS.len()],
    stopped: AtomicUsize,
    over: AtomicBool,
}

impl Lives {
    fn are_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn have_ended_everywhere(&self) -> bool {
        let stopped = self.stopped.load(Ordering::Relaxed) > 0;
        stopped && self.deaths.iter().all(|deaths| deaths.load(Ordering::Relaxed) > 0)
    }
}

/// W66: three services that die at each point and are stopped for twice their lease, and each key is sent to all three at once: one
/// debit a key, one answer for all its callers, and the balances are exact.
#[tokio::test(flavor = "multi_thread")]
async fn w66_one_debit_and_one_answer_a_key_through_every_death_on_dynamodb() {
    let table = Arc::new(Table::new("http_killed"));
    pay_through_every_death(Arc::clone(&table), "").await;
    Arc::into_inner(table).expect("all services have ended").remove().await;
}

/// W162: a service that answers before its transaction, `respond_before_complete`, turns the same run red.
#[cfg(idem_bugs)]
#[tokio::test(flavor = "multi_thread")]
async fn w162_an_answer_before_the_transaction_is_seen_on_dynamodb() {
    let table = Arc::new(Table::new("http_bug"));
    let ended = tokio::spawn(pay_through_every_death(Arc::clone(&table), "AnswersBeforeCommit")).await;
    let panic = ended.expect_err("it is green").into_panic();
    let said = panic.downcast_ref::<String>().expect("a text");
    println!("red: {}", said.chars().take(200).collect::<String>());
    assert!(said.contains("has more than one answer") || said.contains("has no transaction"), "{said}");
}

/// The whole run, with this bug in each service.
async fn pay_through_every_death(table: Arc<Table>, bug: &'static str) {
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
        services.spawn(live(Arc::clone(&table), Arc::clone(seat), Arc::clone(&lives), number == 0, rng));
    }
    let addresses: Vec<String> = seats.iter().map(|seat| seat.proxy.address().to_owned()).collect();
    let mut answers: BTreeMap<usize, Vec<Answer>> = BTreeMap::new();
    let mut keys = 0..usize::try_from(count(600, 40)).expect("a count");
    for _ in 0..ROUNDS_MAX {
        let mut round = JoinSet::new();
        for key in keys.clone() {
            let addresses = addresses.clone();
            round.spawn(async move {
                let request = Request::pay(&format!("order-{key}"), &format!("{:05}", key % 5), cents_of(key));
                (key, to_all(&request, &addresses).await)
            });
        }
        answers.extend(round.join_all().await);
        if lives.have_ended_everywhere() {
            break;
        }
        keys = keys.end..keys.end + KEYS_OF_A_ROUND;
    }
    lives.over.store(true, Ordering::Relaxed);
    services.join_all().await;
    let by_seat: Vec<_> = seats.iter().map(|seat| seat.deaths.load(Ordering::Relaxed)).collect();
    println!("{} keys, deaths by address: {by_seat:?}, by point: {:?}", answers.len(), lives.deaths);
    // Otherwise this has shown nothing of that point.
    assert!(lives.have_ended_everywhere(), "by {POINTS:?}: {:?}; stopped: {:?}", lives.deaths, lives.stopped);
    are_the_books(&table, &answers).await;
}

fn cents_of(key: usize) -> i64 {
    100 + i64::try_from(key).expect("a number")
}

/// Whether each key has one transaction, and all its callers its answer.
async fn are_the_books(table: &Table, answers: &BTreeMap<usize, Vec<Answer>>) {
    let items = table.items("transaction#").await;
    let ids: BTreeMap<&str, &str> = items.iter().map(|item| (key_of(text(item, "sk")), text(item, "id"))).collect();
    for (key, all) in answers {
        let id = ids.get(&*format!("order-{key}")).unwrap_or_else(|| panic!("{key} has no transaction: {all:?}"));
        for answer in all {
            assert_eq!(answer.status, 201, "{key}: {answer:?}");
            assert!(answer.told() == all[0].told(), "{key} has more than one answer: {all:?}");
            assert_eq!(answer.json()["id"], *id, "{key} has more than one answer: {all:?}");
        }
    }
    let cents = answers.keys().copied().map(cents_of).sum();
    assert_eq!(books(table).await, Books::of(i64::try_from(answers.len()).expect("a count"), cents));
}

/// Starts a service that dies at a point after some requests, and another in its place when it has, until it is over. The first is
/// stopped once.
async fn live(table: Arc<Table>, seat: Arc<Seat>, lives: Arc<Lives>, mut is_stopped: bool, mut rng: Rng) {
    while !lives.are_over() {
        let point = lives.begun.fetch_add(1, Ordering::Relaxed) % POINTS.len();
        // Commits take their time, so that a death finds other requests before theirs.
        let armed = match is_stopped {
            true => "guard=sleep(300)".to_owned(),
            false => format!("guard=sleep(20);{}={}+1*abort", POINTS[point], rng.u8(..10)),
        };
        let variables = [("IDEM_FAILPOINTS", armed.as_str()), ("IDEM_BUG", lives.bug)];
        let mut api = serve(&table, &["--lanes", "8"], &variables).await;
        seat.proxy.switch_to(&api.address);
        if is_stopped {
            is_stopped = false;
            while table.items("transaction#").await.is_empty() && api.process.runs() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            api.process.signal("STOP").await;
            tokio::time::sleep(STOPPED).await;
            api.process.signal("CONT").await;
            lives.stopped.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            api.process.kill().await;
            continue;
        }
        while api.process.runs() && !lives.are_over() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if api.process.runs() {
            assert!(api.stop().await.status.success());
        } else {
            let ended = api.process.ended().await;
            assert_eq!(ended.status.signal(), Some(SIGABRT), "{armed}: {}", ended.log);
            seat.deaths.fetch_add(1, Ordering::Relaxed);
            lives.deaths[point].fetch_add(1, Ordering::Relaxed);
        }
    }
}
