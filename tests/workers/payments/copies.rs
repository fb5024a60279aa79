//! Copies of answers in a Redis before the table: five runs of one seed, with no Redis, one that is warm, flushed, frozen, and one that is
//! full of another environment's copies. Their answers, decisions and books are equal.

use std::time::Duration;

use fastrand::Rng;
use idem_testkit::proxy::Proxy;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    client::{Answer, Request},
    database::count,
    dynamodb::{books, serve, to_all},
    fixture::{Api, Books},
    shared_dynamodb::Table,
};

const SERVICES: usize = 2;
const KEYS: usize = 12;

/// How often a Redis loses all that it has; more often than once a second, because a run is short.
const FLUSH_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    None,
    Warm,
    Flushed,
    Frozen,
    Foreign,
}

/// The Redis server's address, and the number of one of these databases: tests beside this one have others.
fn redis(numbers: std::ops::Range<usize>) -> (String, usize) {
    let url = std::env::var("IDEM_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:26380/".to_owned());
    let server = url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
    (server, fastrand::usize(numbers))
}

async fn flush(server: &str, number: usize) {
    let mut stream = TcpStream::connect(server).await.expect("Redis answers: ./servers up redis");
    stream.write_all(format!("SELECT {number}\r\nFLUSHDB\r\nQUIT\r\n").as_bytes()).await.expect("it takes commands");
    let mut said = String::new();
    stream.read_to_string(&mut said).await.expect("it answers");
    assert!(said.starts_with("+OK\r\n+OK\r\n"), "{said}");
}

/// What a caller learns of its request: the status, whether its answer is a repeat's, and the kind of problem.
fn decision(answer: &Answer) -> String {
    let problem = match answer.status {
        201 => answer.json()["cents"].to_string(),
        _ => answer.json()["type"].to_string(),
    };
    let replayed = answer.header("idempotent-replayed").unwrap_or("-");
    format!("{} {replayed} {problem}", answer.status)
}

/// Sends the requests of a seed to the services: fresh keys, repeats, other payloads, refusals, and one key to all at once. Answers the
/// decisions in their order, and the books.
async fn run(table: &Table, services: &[Api], seed: u64, proxy: &Proxy, world: World) -> (Vec<String>, Books) {
    let addresses: Vec<String> = services.iter().map(|service| service.address.clone()).collect();
    let (mut rng, mut decisions, mut first) = (Rng::with_seed(seed), Vec::new(), std::collections::BTreeMap::new());
    let steps = usize::try_from(count(1_000, 240)).expect("a count");
    for step in 0..steps {
        if world == World::Frozen && step == steps / 3 {
            proxy.freeze();
        }
        if world == World::Frozen && step == steps * 2 / 3 {
            proxy.thaw();
        }
        let key = format!("order-{}", rng.usize(..KEYS + step / 4));
        let cents = [100, 100, 100, 100, 101, 0, 10_001][rng.usize(..7)];
        let request = Request::pay(&key, "00001", cents);
        if rng.u8(..8) == 0 {
            let answers = to_all(&request, &addresses).await;
            let mut all: Vec<String> = answers.iter().map(decision).collect();
            all.sort();
            let equal = answers.iter().all(|answer| answer.told() == answers[0].told());
            assert!(equal, "{key} has more than one answer at once in {world:?}: {answers:?}");
            decisions.extend(all.into_iter().map(|one| format!("{key} {cents}: {one}")));
        }
        let answer = request.answer(&addresses[rng.usize(..SERVICES)]).await;
        decisions.push(format!("{key} {cents}: {}", decision(&answer)));
        if [201, 402].contains(&answer.status) {
            let (told, known) = (answer.told(), first.entry(key.clone()).or_insert_with(|| answer.told()).clone());
            assert_eq!(told, known, "{key} has more than one answer in {world:?}");
        }
    }
    (decisions, books(table).await)
}

/// A run in one world, with this bug in each service.
async fn in_world(world: World, seed: u64, bug: &str, (server, number): (&str, usize)) -> (Vec<String>, Books) {
    let proxy = Proxy::to(server).await.expect("a proxy");
    let url = format!("redis://{}/{number}", proxy.address());
    let flags = match world {
        World::None => vec!["--limit", "10000"],
        World::Warm | World::Flushed | World::Frozen | World::Foreign => {
            vec!["--limit", "10000", "--redis-url", url.as_str(), "--copies-plain"]
        }
    };
    let table = Table::new("http_copies");
    let mut services = Vec::new();
    for _ in 0..SERVICES {
        services.push(serve(&table, &flags, &[("IDEM_BUG", bug)]).await);
    }
    let mut flushing = JoinSet::new();
    if world == World::Flushed {
        let server = server.to_owned();
        flushing.spawn(async move {
            loop {
                flush(&server, number).await;
                tokio::time::sleep(FLUSH_EVERY).await;
            }
        });
    }
    let ran = run(&table, &services, seed, &proxy, world).await;
    flushing.shutdown().await;
    for service in services {
        assert!(service.stop().await.status.success());
    }
    table.remove().await;
    ran
}

/// Runs these worlds one after the other on one database of Redis, and compares each with the run without Redis.
async fn are_equal(worlds: &[World], bug: &str, databases: std::ops::Range<usize>) {
    let (server, number) = redis(databases);
    let seed = idem_testkit::seed();
    let expected = in_world(World::None, seed, bug, (&server, number)).await;
    println!("{} decisions, {:?}", expected.0.len(), expected.1);
    for word in ["true", "false", "key-reused", "422", "402"] {
        assert!(expected.0.iter().any(|decision| decision.contains(word)), "nothing is {word}: {:?}", expected.0);
    }
    for world in worlds {
        let (decisions, books) = in_world(*world, seed, bug, (&server, number)).await;
        let differs = decisions.iter().zip(&expected.0).find(|(one, other)| one != other);
        assert!(differs.is_none(), "decisions differ in {world:?}: {differs:?}");
        assert_eq!((decisions.len(), &books), (expected.0.len(), &expected.1), "books differ in {world:?}");
    }
}

/// Y23: no Redis, a warm one, one that is flushed all the time, one that freezes, and one with the copies of another environment, of the
/// same keys and payloads: equal answers, decisions and books. The foreign one is that of the runs before, on another table.
#[tokio::test(flavor = "multi_thread")]
async fn y23_five_worlds_have_equal_answers_decisions_and_books() {
    are_equal(&[World::Warm, World::Flushed, World::Frozen, World::Warm, World::Foreign], "", 1..8).await;
}

/// Y24: a store that takes a missing copy for a free key, and one whose copies are not bound to their table, turn that run red.
#[cfg(idem_bugs)]
#[tokio::test(flavor = "multi_thread")]
async fn y24_copies_that_decide_are_seen() {
    for (bug, worlds) in
        [("CopyRuns", &[World::Flushed][..]), ("CopiesOfOtherTables", &[World::Warm, World::Foreign][..])]
    {
        let ended = tokio::spawn(are_equal(worlds, bug, 8..16)).await;
        let panic = ended.expect_err("it is green").into_panic();
        let said = panic.downcast_ref::<String>().expect("a text");
        println!("{bug} is red: {}", said.chars().take(200).collect::<String>());
        assert!(said.contains(" differ in ") || said.contains("more than one answer"), "{said}");
    }
}
