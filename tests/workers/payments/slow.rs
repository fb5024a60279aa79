//! Clients that are slow or large, by accident or on purpose, beside others that only want to pay.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, tcp::OwnedWriteHalf},
    task::JoinSet,
};

use super::{
    client::{Answer, Request},
    database::count,
    fixture::{Books, Fixture, until},
    seen::waiting,
};

/// The clients of each kind.
const CLIENTS: usize = 100;

/// A kind of client that never sends a whole request that fits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    name: &'static str,
    begins_with: String,
    /// Whether it goes on byte by byte, so that no limit on the time between two bytes would ever end it.
    drips: bool,
    /// The status by which it is ended; `None` where it is without an answer.
    ends_with: Option<u16>,
}

fn kinds() -> Vec<Kind> {
    let head = "POST /transactions HTTP/1.1\r\nhost: here\r\nx-more: ";
    let body = |tenant: &str| {
        format!(
            "POST /transactions HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {tenant}\r\nidempotency-key: slow\r\n\
             content-type: application/json\r\ncontent-length: 100000\r\n\r\n{{\"customer\":"
        )
    };
    let of = |name, begins_with: String, drips, ends_with| Kind { name, begins_with, drips, ends_with };
    let many = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect::<String>();
    vec![
        of("half a head", head.to_owned(), false, None),
        of("a head byte by byte", head.to_owned(), true, None),
        of("half a body", body("slow"), false, Some(408)),
        of("half a body of the paying tenant's", body("acme"), false, Some(408)),
        of("a body byte by byte", body("slow"), true, Some(408)),
        of("a huge header", format!("{head}{}", "x".repeat(1 << 20)), false, Some(431)),
        of("many headers", format!("POST /transactions HTTP/1.1\r\nhost: here\r\n{many}\r\n"), false, Some(431)),
    ]
}

/// The clients that have begun, and the ends of those that were ended, by kind.
#[derive(Default)]
struct Crowd {
    begun: Mutex<BTreeMap<&'static str, usize>>,
    ended: Mutex<BTreeMap<&'static str, Vec<Option<u16>>>>,
}

impl Crowd {
    fn begun(&self) -> usize {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    fn ended(&self) -> BTreeMap<&'static str, Vec<Option<u16>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One client, which comes again whenever it was ended.
    async fn client(self: Arc<Self>, kind: Kind, address: String) {
        loop {
            let Ok(stream) = TcpStream::connect(&address).await else { continue };
            let (reads, mut writes) = stream.into_split();
            // A server that refuses a head does not read on.
            let _ = writes.write_all(kind.begins_with.as_bytes()).await;
            *self.begun.lock().unwrap_or_else(PoisonError::into_inner).entry(kind.name).or_default() += 1;
            let ended = tokio::select! {
                answer = Answer::of(reads) => answer.map(|answer| answer.status),
                ended = drip(&mut writes), if kind.drips => ended,
            };
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).entry(kind.name).or_default().push(ended);
        }
    }
}

/// Sends a byte now and then, for ever.
async fn drip<T>(writes: &mut OwnedWriteHalf) -> T {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The end is seen by reading.
        let _ = writes.write_all(b"x").await;
    }
}

/// W91: clients that send half a head, half a body, a byte now and then or huge heads hold no connection to the database and keep
/// nobody from paying; each is ended by a limit.
#[tokio::test(flavor = "multi_thread")]
async fn w91_slow_and_huge_requests_keep_nobody_from_paying() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--lanes", "4"]).await;
    let pay = |number: i64| Request::pay(&format!("order-{number}"), "00001", 100);
    assert_eq!(pay(0).answer(&api.address).await.status, 201);
    let (before, _) = fixture.connections().await;

    let (crowd, kinds) = (Arc::new(Crowd::default()), kinds());
    let mut clients = JoinSet::new();
    for kind in kinds.iter().flat_map(|kind| (0..CLIENTS).map(|_| kind.clone())) {
        clients.spawn(Arc::clone(&crowd).client(kind, api.address.clone()));
    }
    until("all of them to have begun", async || crowd.begun() >= CLIENTS * kinds.len()).await;
    let (open, busy) = fixture.connections().await;
    assert!(open <= before && busy == 0, "{open} connections, {busy} of them busy, and {before} before");
    for number in 1..20 {
        let answer = pay(number).answer(&api.address).await;
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, Some("false")), "{answer:?}");
    }
    // Each that was there when the payments came is ended.
    let is_over = async || {
        let ended = crowd.ended();
        kinds.iter().all(|kind| ended.get(kind.name).is_some_and(|ends| ends.len() >= CLIENTS))
    };
    until("each of them to be ended", is_over).await;
    assert_eq!(pay(20).answer(&api.address).await.status, 201);
    clients.shutdown().await;
    for kind in &kinds {
        let mut ends: BTreeSet<_> = crowd.ended().remove(kind.name).into_iter().flatten().collect();
        if kind.ends_with == Some(431) {
            // One that still sends when its connection is closed may lose the answer to the reset.
            ends.remove(&None);
        }
        assert_eq!(ends, BTreeSet::from([kind.ends_with]), "{}", kind.name);
    }
    assert_eq!(fixture.books().await, Books::of(21, 2_100));
    assert_eq!(fixture.records().await, (21, 21), "nothing of theirs is kept");
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// One tenant's share of the default of `requests_bytes_max`, which is 256 MiB.
const ROOM: u64 = 192 << 20;

/// What a service takes beside that: itself, its connections, and an allocator's waste.
const BESIDE: u64 = 96 << 20;

/// How many of the large requests are on their way at once.
const AT_ONCE: usize = 32;

/// W22: thousands of repeats of one key with bodies near the limit: as many wait as there is room for, the others are told to come
/// again, one connection is busy, and the memory has its bound.
#[tokio::test(flavor = "multi_thread")]
async fn w22_large_repeats_have_bounded_memory() {
    let repeats = usize::try_from(count(10_000, 1_000)).expect("a count");
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--in-progress-wait", "60s", "--handler-deadline", "5m", "--admin", "127.0.0.1:0"]).await;
    assert_eq!(Request::pay("order-0", "00001", 1).answer(&api.address).await.status, 201);
    let mut held = fixture.hold_balances().await;
    let before = api.process.memory_max();
    let padding = "x".repeat((1 << 20) - 100);
    let body = serde_json::json!({ "customer": "00001", "cents": 100, "padding": padding }).to_string();
    let request: Arc<[u8]> = Request::post("order-1", &body).bytes(&api.address).into();
    let refused = Arc::new(Mutex::new(BTreeMap::<u16, usize>::new()));
    let refusals = || refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut all = JoinSet::new();
    while all.len() < repeats {
        // A few at a time, so that each body comes within its time on a slow machine.
        for _ in 0..AT_ONCE.min(repeats - all.len()) {
            let (request, address, refused) = (Arc::clone(&request), api.address.clone(), Arc::clone(&refused));
            all.spawn(async move {
                let (reads, mut writes) = TcpStream::connect(address).await.expect("a connection").into_split();
                // One that is refused is not read to its end.
                let _ = writes.write_all(&request).await;
                let answer = Answer::of(reads).await.expect("an answer");
                if answer.status != 201 {
                    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                    *refused.entry(answer.status).or_default() += 1;
                }
                answer
            });
        }
        let are_there = async || waiting(&api).await + refusals().values().sum::<usize>() == all.len() - 1;
        until("each to wait or to be refused", are_there).await;
    }
    let (waits, memory, (open, busy)) = (waiting(&api).await, api.process.memory_max(), fixture.connections().await);
    println!(
        "{repeats} repeats of {} bytes: {waits} wait, refused {:?}; {open} connections, {busy} busy; {} MiB at most, {} before",
        body.len(),
        refusals(),
        memory >> 20,
        before >> 20
    );
    // With the one that runs they fill the room, up to a body.
    let bodies = ROOM / body.len() as u64;
    assert!((bodies - 3..=bodies).contains(&(waits as u64 + 1)), "{waits} wait");
    assert!(memory <= ROOM + BESIDE, "{memory} bytes");
    assert!(open <= 4 && busy == 1, "{open} connections, {busy} busy");
    assert!(refusals().keys().all(|status| [429, 503].contains(status)), "{:?}", refusals());
    sqlx::raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
    drop(held);
    let answers: Vec<Answer> = all.join_all().await.into_iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(answers.len(), waits + 1);
    assert!(answers.iter().all(|answer| answer.told() == answers[0].told()));
    assert_eq!(fixture.books().await, Books::of(2, 101));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}
