//! The contract of requests and answers, by clients that know nothing else.

use tokio::task::JoinSet;

use super::{
    client::{Answer, Cut, Request},
    fixture::{Api, Books, Fixture, PROGRAM, insist, start, until},
    seen::waiting,
    worker::Worker,
};

fn id(answer: &Answer) -> String {
    answer.json()["id"].as_str().expect("an id").to_owned()
}

/// W50: the first answer is the contract's, and a repeat is the same, byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn w50_a_repeat_gets_the_first_answer() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    let request = Request::pay("order-1", "00001", 1177);
    let first = request.answer(&api.address).await;
    assert_eq!(first.status, 201, "{first:?}");
    let json = first.json();
    assert_eq!(json, serde_json::json!({"id": id(&first), "customer": "00001", "cents": 1177, "balance": 1177}));
    assert_eq!(id(&first).len(), 36, "a UUID");
    assert_eq!(first.header("location"), Some(format!("/transactions/{}", id(&first)).as_str()));
    assert_eq!(first.header("idempotency-key"), Some("order-1"));
    assert_eq!(first.header("idempotent-replayed"), Some("false"));
    assert!(first.header("content-digest").is_some_and(|digest| digest.starts_with("sha-256=:")));
    assert!(first.header("idempotency-expires").is_some(), "{first:?}");

    let again = request.answer(&api.address).await;
    assert_eq!(again.told(), first.told());
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert!(again.header("idempotency-processed-at").is_some(), "{again:?}");
    let quoted = Request::pay("\"order-1\"", "00001", 1177).answer(&api.address).await;
    assert_eq!((quoted.status, quoted.text()), (201, first.text()), "quotes are not part of a key");

    let second = Request::pay("order-2", "00001", 23).answer(&api.address).await;
    assert_eq!((second.status, second.json()["balance"].as_i64()), (201, Some(1200)));
    let read = Request::new("GET", &format!("/transactions/{}", id(&first))).tenant("acme").answer(&api.address).await;
    assert_eq!((read.status, id(&read), read.json()["cents"].as_i64()), (200, id(&first), Some(1177)));
    assert_eq!(fixture.books().await, Books::of(2, 1200));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W51: another body under a used key is refused in each profile's words, runs nothing, and shows nothing of the first.
#[tokio::test(flavor = "multi_thread")]
async fn w51_another_payload_is_refused() {
    let fixture = Fixture::new("http").await;
    let key = "6f6d1c1e-0a51-4c68-9b4a-2f0e0c8f9a31";
    for (profile, status) in [("ietf", 422), ("guardia", 409), ("stripe", 400)] {
        let api = fixture.start(&["--profile", profile]).await;
        let tenant = |request: Request| request.tenant(profile);
        let first = tenant(Request::pay(key, "00001", 1177)).answer(&api.address).await;
        assert_eq!(first.status, 201, "{first:?}");
        let other = tenant(Request::pay(key, "00001", 9999)).answer(&api.address).await;
        assert_eq!(other.status, status, "{profile}: {other:?}");
        assert!(other.header("retry-after").is_none(), "another try would meet the same: {other:?}");
        assert!(!other.text().contains("1177"), "{}", other.text());
        match profile {
            "ietf" => {
                assert_eq!(other.header("content-type"), Some("application/problem+json"));
                assert_eq!(other.json()["type"], "/problems/key-reused");
                let page = Request::new("GET", "/problems/key-reused").answer(&api.address).await;
                assert_eq!(page.status, 200);
            }
            "guardia" => {
                assert_eq!(other.json()["code"], "ERR409_SERVER_STATE_CONFLICT");
                assert_eq!(other.json()["reason"], "CONFLICTING_IDEMPOTENT_REQUEST");
            }
            _ => assert_eq!(other.json()["error"]["type"], "idempotency_error"),
        }
        let again = tenant(Request::pay(key, "00001", 1177)).answer(&api.address).await;
        assert_eq!(again.told(), first.told(), "{profile}");
        assert!(api.stop().await.status.success());
    }
    assert_eq!(fixture.books().await, Books { keys: 3, ..Books::of(3, 3 * 1177) });
    fixture.remove().await;
}

/// W52: three requests with one key at once are one debit and three equal answers, of one process (R85) and of two. They do overlap:
/// the first is held in its handler until the others are seen to wait, in memory and at the database.
#[tokio::test(flavor = "multi_thread")]
async fn w52_three_at_once_are_one_debit_and_three_equal_answers() {
    let fixture = Fixture::new("http").await;
    let (mut keys, mut cents) = (0, 0);
    for store in ["sqlx", "tokio-postgres"] {
        let flags = ["--profile", "guardia", "--in-progress-wait", "60s", "--store", store, "--admin", "127.0.0.1:0"];
        let (one, other) = (fixture.start(&flags).await, fixture.start(&flags).await);
        let mut pay = |amount| {
            (keys, cents) = (keys + 1, cents + amount);
            Request::pay(&format!("00000000-0000-4000-8000-{keys:012}"), "00001", amount)
        };
        // The balance that is held afterwards.
        assert_eq!(pay(1).answer(&one.address).await.status, 201);
        for (third, in_memory, at_the_server) in [(&one, 2, 1), (&other, 1, 2), (&one, 2, 1), (&other, 1, 2)] {
            let request = pay(100);
            let mut held = fixture.hold_balances().await;
            let mut all = JoinSet::new();
            for address in [&one.address, &one.address, &third.address] {
                let (request, address) = (request.clone(), address.clone());
                all.spawn(async move { request.answer(&address).await });
            }
            let overlap = async || waiting(&one).await == in_memory && fixture.waits().await == at_the_server;
            until("one to run and two to wait", overlap).await;
            sqlx::raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
            let answers = all.join_all().await;
            assert!(answers.iter().all(|answer| answer.told() == answers[0].told()), "{answers:?}");
            assert_eq!(answers[0].status, 201, "{answers:?}");
            let first = answers.iter().filter(|answer| answer.header("idempotent-replayed") == Some("false")).count();
            assert_eq!(first, 1, "{answers:?}");
        }
        for api in [one, other] {
            assert!(api.stop().await.status.success());
        }
    }
    assert_eq!(fixture.books().await, Books::of(keys, cents));
    fixture.remove().await;
}

/// W53: a refusal before the operation is not kept, and one by the operation is.
#[tokio::test(flavor = "multi_thread")]
async fn w53_only_the_operations_own_answers_are_kept() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--limit", "10000"]).await;
    let address = &api.address;
    let missing = Request::pay("x", "00001", 1).without("idempotency-key").answer(address).await;
    assert_eq!((missing.status, missing.header("content-type")), (400, Some("application/problem+json")));
    for (key, what) in [("", "empty"), ("a b", "two words"), ("\"a", "an open quote"), ("a,b", "a joined pair")] {
        let answer = Request::pay(key, "00001", 1).answer(address).await;
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
    }
    let twice = Request::pay("a", "00001", 1).header("idempotency-key", "b").answer(address).await;
    assert_eq!(twice.status, 400, "{twice:?}");
    let too_long = Request::pay(&"k".repeat(256), "00001", 1).answer(address).await;
    assert_eq!(too_long.status, 400, "{too_long:?}");
    let with_nul = r#"{"customer":"a\u0000","cents":1}"#;
    for body in ["", "{", "{\"customer\":\"00001\"}", "{\"customer\":\"00001\",\"cents\":\"1\"}", "[]", with_nul] {
        let answer = Request::post("order-1", body).answer(address).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    assert_eq!(fixture.records().await, (0, 0), "nothing was kept");
    // The corrected request has the same key.
    assert_eq!(Request::pay("order-1", "00001", 1177).answer(address).await.status, 201);

    let nothing = Request::pay("order-2", "00001", 0);
    let first = nothing.answer(address).await;
    assert_eq!(first.status, 422, "{first:?}");
    let again = nothing.answer(address).await;
    assert_eq!((again.told(), again.header("idempotent-replayed")), (first.told(), Some("true")));
    assert_eq!(fixture.books().await, Books::of(1, 1177));

    let too_much = Request::pay("order-3", "00001", 10_001);
    let declined = too_much.answer(address).await;
    assert_eq!(declined.status, 402, "{declined:?}");
    let again = too_much.answer(address).await;
    assert_eq!((again.told(), again.header("idempotent-replayed")), (declined.told(), Some("true")));
    assert_eq!(fixture.books().await, Books { declines: 1, ..Books::of(1, 1177) }, "a decline is committed, and once");
    assert_eq!(fixture.records().await, (3, 3));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W54: guardia replays a stored refusal as it was, and has its own codes for keys.
#[tokio::test(flavor = "multi_thread")]
async fn w54_guardia_replays_a_refusal_as_a_refusal() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--profile", "guardia"]).await;
    let (paid, refused) = ("0b7f5c52-6d4e-4d8f-8f3e-0d7a1a0f3f01", "0b7f5c52-6d4e-4d8f-8f3e-0d7a1a0f3f02");
    let missing = Request::pay(paid, "00001", 1).without("idempotency-key").answer(&api.address).await;
    assert_eq!((missing.status, missing.json()["code"].as_str()), (400, Some("ERR400_MISSING_OR_MALFORMED_HEADER")));
    assert_eq!(missing.json()["reason"], "IDEMPOTENCY_KEY_REQUIRED");
    let malformed = Request::pay("order-1", "00001", 1).answer(&api.address).await;
    assert_eq!((malformed.status, &malformed.json()["code"]), (400, &missing.json()["code"]), "no UUID");
    for (key, cents, status) in [(paid, 1177, 201), (refused, 0, 422)] {
        let request = Request::pay(key, "00001", cents);
        let first = request.answer(&api.address).await;
        assert_eq!(first.status, status, "{first:?}");
        let again = request.answer(&api.address).await;
        assert_eq!(again.told(), first.told());
        assert!(again.header("last-modified").is_some_and(|date| date.ends_with(" GMT")), "{again:?}");
    }
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W55: an unknown client gets its 401 before anything is read or looked up, even if the request has other faults.
#[tokio::test(flavor = "multi_thread")]
async fn w55_nobody_is_looked_up_for_a_stranger() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    let paid = Request::pay("order-1", "00001", 1177);
    assert_eq!(paid.answer(&api.address).await.status, 201);
    let before = fixture.records().await;
    for stranger in [
        paid.clone().without("authorization"),
        paid.clone().without("authorization").header("authorization", "Basic YTpi"),
        paid.clone().without("authorization").header("authorization", "Bearer "),
        paid.clone().without("authorization").without("idempotency-key").body("{"),
    ] {
        let answer = stranger.answer(&api.address).await;
        assert_eq!(answer.status, 401, "{answer:?}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        assert!(!answer.text().contains("1177"));
    }
    let read = Request::new("GET", "/transactions/1").answer(&api.address).await;
    assert_eq!(read.status, 401);
    assert_eq!(fixture.records().await, before);
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W56: keys of two tenants never meet, nor do their transactions.
#[tokio::test(flavor = "multi_thread")]
async fn w56_tenants_are_apart() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    let acme = Request::pay("order-1", "00001", 1177).answer(&api.address).await;
    let other = Request::pay("order-1", "00001", 9999).tenant("globex").answer(&api.address).await;
    assert_eq!((acme.status, other.status), (201, 201));
    assert_eq!(other.json()["balance"], 9999);
    assert_ne!(id(&acme), id(&other));
    let path = format!("/transactions/{}", id(&acme));
    assert_eq!(Request::new("GET", &path).tenant("globex").answer(&api.address).await.status, 404);
    assert_eq!(Request::new("GET", &path).tenant("acme").answer(&api.address).await.status, 200);
    assert_eq!(fixture.books().await, Books::of(2, 1177 + 9999));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W57: a client that is gone at any point has its debit once, and learns of it when it asks again; also of another process. A
/// request that came whole is carried out without its client; one that did not is not.
#[tokio::test(flavor = "multi_thread")]
async fn w57_a_client_that_is_gone_asks_again() {
    let fixture = Fixture::new("http").await;
    let (one, other) = (fixture.start(&[]).await, fixture.start(&[]).await);
    for (number, cut) in Cut::ALL.into_iter().enumerate() {
        let request = Request::pay(&format!("order-{number}"), "00001", 100);
        let came_whole = match cut {
            Cut::InTheHead | Cut::InTheBody => {
                request.break_off(&one.address, cut).await;
                false
            }
            Cut::BeforeTheAnswer => {
                // Its handler waits for the customer's balance while its client goes.
                let mut held = fixture.hold_balances().await;
                let client = request.begin(&one.address, cut).await;
                until("the request to run", async || fixture.waits().await > 0).await;
                drop(client);
                // By the time that others are answered, the service has seen it go.
                for _ in 0..20 {
                    Request::new("GET", "/openapi.yaml").answer(&one.address).await;
                }
                sqlx::raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
                true
            }
            Cut::InTheAnswer => {
                request.break_off(&one.address, cut).await;
                true
            }
        };
        if came_whole {
            let done = i64::try_from(number).expect("a few") + 1;
            until("the run to end by itself", async || fixture.books().await.transactions == done).await;
        }
        let answer = insist(&request, &[&other.address]).await;
        assert_eq!(answer.status, 201, "{cut:?}: {answer:?}");
        let replayed = if came_whole { "true" } else { "false" };
        assert_eq!(answer.header("idempotent-replayed"), Some(replayed), "{cut:?}");
        let again = request.answer(&one.address).await;
        assert_eq!(again.told(), answer.told(), "{cut:?}");
    }
    assert_eq!(fixture.books().await, Books::of(4, 400));
    for api in [one, other] {
        assert!(api.stop().await.status.success());
    }
    fixture.remove().await;
}

/// A new folder for a file, and the arguments of a service on it.
fn on_sqlite(limit: &str) -> (std::path::PathBuf, Vec<String>) {
    let folder =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("payments-{:08x}", fastrand::u32(..)));
    std::fs::create_dir_all(&folder).expect("a folder");
    let url = format!("sqlite://{}", folder.join("payments.db").display());
    let own = ["--listen", "127.0.0.1:0", "--database-url", &url, "--migrate", "--create-tables", "--limit", limit];
    (folder, own.into_iter().map(str::to_owned).collect())
}

/// W58: the same on SQLite, which is a file.
#[tokio::test(flavor = "multi_thread")]
async fn w58_sqlite_keeps_the_same_promise() {
    let (folder, arguments) = on_sqlite("10000");
    let api = start(&arguments, &[], &folder.join("api.log")).await;
    let request = Request::pay("order-1", "00001", 1177);
    let first = request.answer(&api.address).await;
    assert_eq!((first.status, first.json()["balance"].as_i64()), (201, Some(1177)), "{first:?}");
    assert_eq!(request.answer(&api.address).await.told(), first.told());
    assert_eq!(Request::pay("order-1", "00001", 1).answer(&api.address).await.status, 422);
    assert_eq!(Request::pay("order-2", "00001", 0).answer(&api.address).await.status, 422);
    assert_eq!(Request::pay("order-3", "00001", 10_001).answer(&api.address).await.status, 402);
    let read = Request::new("GET", first.header("location").expect("a place")).tenant("acme");
    assert_eq!(read.answer(&api.address).await.json()["cents"], 1177);
    let address = api.address.clone();
    assert!(api.stop().await.status.success());
    assert!(request.send(&address).await.is_err());
    // The kept answers are in the file.
    let api = start(&arguments, &[], &folder.join("again.log")).await;
    let again = request.answer(&api.address).await;
    assert_eq!((again.status, again.text()), (201, first.text()));
    assert!(api.stop().await.status.success());
    std::fs::remove_dir_all(&folder).expect("its folder goes");
}

/// W133: an order that no balance can hold is refused for good and leaves nothing, on each store.
#[tokio::test(flavor = "multi_thread")]
async fn w133_a_balance_that_would_be_too_large_is_refused() {
    let fixture = Fixture::new("http").await;
    let largest = i64::MAX.to_string();
    for (number, store) in ["sqlx", "tokio-postgres"].into_iter().enumerate() {
        let api = fixture.start(&["--store", store, "--limit", &largest]).await;
        let customer = format!("0000{number}");
        assert_eq!(
            Request::pay(&format!("largest-{number}"), &customer, i64::MAX).answer(&api.address).await.status,
            201
        );
        refused_for_good(&api, &format!("one-more-{number}"), &customer).await;
        // Members in their order, without their names.
        let unnamed = Request::post(&format!("unnamed-{number}"), "[\"00009\", 5]");
        assert_eq!(unnamed.answer(&api.address).await.status, 400);
        assert!(api.stop().await.status.success());
    }
    let count = "SELECT (SELECT count(*) FROM transactions), (SELECT count(*) FROM balances WHERE cents = $1)";
    let books: (i64, i64) = sqlx::query_as(count).bind(i64::MAX).fetch_one(fixture.pool()).await.expect("the books");
    assert_eq!(books, (2, 2), "of what was refused nothing is there");
    fixture.remove().await;

    let (folder, arguments) = on_sqlite(&largest);
    let api = start(&arguments, &[], &folder.join("api.log")).await;
    assert_eq!(Request::pay("largest", "00001", i64::MAX).answer(&api.address).await.status, 201);
    refused_for_good(&api, "one-more", "00001").await;
    let balance = Request::pay("other", "00002", 5).answer(&api.address).await;
    assert_eq!(balance.json()["balance"], 5, "{balance:?}");
    assert!(api.stop().await.status.success());
    std::fs::remove_dir_all(&folder).expect("its folder goes");
}

async fn refused_for_good(api: &Api, key: &str, customer: &str) {
    for replayed in ["false", "true"] {
        let refused = Request::pay(key, customer, 1).answer(&api.address).await;
        assert_eq!((refused.status, refused.header("idempotent-replayed")), (422, Some(replayed)), "{refused:?}");
        assert!(refused.json()["type"].as_str().expect("a type").ends_with("balance-too-large"), "{refused:?}");
    }
}

/// W59: a stop answers running requests, and takes no new ones; later clients ask the next process.
#[tokio::test(flavor = "multi_thread")]
async fn w59_a_stop_answers_what_runs() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start_armed(&[], "guard=1*sleep(2000)").await;
    let request = Request::pay("order-1", "00001", 1177);
    let (asked, address) = (request.clone(), api.address.clone());
    let running = tokio::spawn(async move { asked.answer(&address).await });
    until("the request to run", async || fixture.runs().await > 0).await;
    api.process.signal("TERM").await;
    let answer = running.await.expect("no panic");
    assert_eq!(answer.status, 201, "{answer:?}");
    let address = api.address.clone();
    let ended = api.process.ended().await;
    assert!(ended.status.success(), "{}", ended.log);
    assert!(request.send(&address).await.is_err(), "nobody listens");
    let next = fixture.start(&[]).await;
    assert_eq!(request.answer(&next.address).await.told(), answer.told());
    assert!(next.stop().await.status.success());
    assert_eq!(fixture.books().await, Books::of(1, 1177));
    fixture.remove().await;
}

/// W28: a service without a secret for its fingerprints says so at its start, unless it is told that none is needed.
#[tokio::test(flavor = "multi_thread")]
async fn w28_plain_hashes_are_warned_of() {
    let fixture = Fixture::new("http").await;
    for (flags, warns) in [(&[][..], true), (&["--plain-hashes"], false)] {
        let api = fixture.start(flags).await;
        assert_eq!(api.process.logged().contains("give --hash-secret 1=FILE"), warns, "{flags:?}");
        assert!(api.stop().await.status.success());
    }
    fixture.remove().await;
}

/// W60: wrong settings end the start at once, with one line and status 2.
#[tokio::test(flavor = "multi_thread")]
async fn w60_wrong_settings_are_told_at_once() {
    let fixture = Fixture::new("http").await;
    let held = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let taken = held.local_addr().expect("its address").to_string();
    let cases: [(&[&str], &str); 10] = [
        (&["--profile", "paypal"], "--profile"),
        (&["--in-progress-wait", "10m"], "--in-progress-wait"),
        (&["--profile", "guardia", "--keys-for", "90d"], "--keys-for"),
        (&["--profile", "guardia", "--cleanup-every", "2h"], "--cleanup-every"),
        (&["--keys-for", "1h", "--answers-for", "2h"], "--answers-for"),
        (&["--answers-for", "1s"], "--answers-for"),
        (&["--store", "mongo"], "--store is \"mongo\", but it must be one of sqlx, tokio-postgres"),
        (&["--announce", "events"], "--brokers"),
        (&["--listen", &taken], "--listen"),
        (&["--hash-secret", "1=missing"], "--hash-secret"),
    ];
    for (flags, named) in cases {
        // A flag of the fixture would be given twice.
        let process = if flags.contains(&"--listen") || flags.contains(&"--cleanup-every") {
            let arguments: Vec<String> =
                ["--database-url", &fixture.url].iter().chain(flags).map(|text| (*text).to_owned()).collect();
            Worker::start(PROGRAM, &arguments, &[], &fixture.next_log()).ended().await
        } else {
            fixture.begin(flags).ended().await
        };
        assert_eq!(process.status.code(), Some(2), "{flags:?}: {}", process.log);
        let last = process.log.lines().last().unwrap_or_default();
        assert!(last.contains(named), "{flags:?}: {last}");
    }
    fixture.remove().await;
}

/// W61: a key can be asked about, by its tenant alone.
#[tokio::test(flavor = "multi_thread")]
async fn w61_a_key_can_be_asked_about() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    let first = Request::pay("order-1", "00001", 1177).answer(&api.address).await;
    let ask = |path: &str| Request::new("GET", path).tenant("acme");
    let known = ask("/idempotency/order-1").answer(&api.address).await;
    assert_eq!((known.status, known.json()["state"].as_str()), (200, Some("completed")), "{known:?}");
    assert_eq!(known.json()["status"], 201);
    let told = ask("/idempotency/order-1?answer=true").answer(&api.address).await;
    assert!(told.text().contains(&id(&first)), "{}", told.text());
    let unknown = ask("/idempotency/order-2").answer(&api.address).await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let others = ask("/idempotency/order-1").tenant("globex").answer(&api.address).await;
    assert_eq!((others.status, others.text()), (404, unknown.text()), "as one that is unknown");
    assert_eq!(ask("/idempotency/order-1").without("authorization").answer(&api.address).await.status, 401);
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W136: a path with a character that no database stores and no key has is answered for good, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn w136_a_nul_in_a_path_is_answered_for_good() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&[]).await;
    let read = |path: &str| Request::new("GET", path).tenant("acme");
    let none = read("/transactions/a%00b").answer(&api.address).await;
    assert_eq!(none.status, 404, "{none:?}");
    let refused = read("/idempotency/a%00b").answer(&api.address).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.text().contains("holds a control character"), "{}", refused.text());
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W75: on the other client of PostgreSQL, which `--store` asks for, the same promise is kept, also for earlier answers.
#[tokio::test(flavor = "multi_thread")]
async fn w75_the_other_client_keeps_the_same_promise() {
    let fixture = Fixture::new("http").await;
    let before = fixture.start(&[]).await;
    let first = Request::pay("order-1", "00001", 1177).answer(&before.address).await;
    assert!(before.process.logged().contains("serving requests store=\"sqlx\""), "{}", before.process.logged());
    assert!(before.stop().await.status.success());
    let api = fixture.start(&["--store", "tokio-postgres", "--limit", "10000"]).await;
    assert!(api.process.logged().contains("serving requests store=\"tokio-postgres\""), "{}", api.process.logged());
    let again = Request::pay("order-1", "00001", 1177).answer(&api.address).await;
    assert_eq!((again.told(), again.header("idempotent-replayed")), (first.told(), Some("true")));
    for (key, cents, status) in [("order-2", 23, 201), ("order-3", 0, 422), ("order-4", 10_001, 402)] {
        let request = Request::pay(key, "00001", cents);
        let first = request.answer(&api.address).await;
        assert_eq!(first.status, status, "{first:?}");
        let again = request.answer(&api.address).await;
        assert_eq!((again.told(), again.header("idempotent-replayed")), (first.told(), Some("true")));
    }
    let place = first.header("location").expect("a place").to_owned();
    let read = Request::new("GET", &place).tenant("acme").answer(&api.address).await;
    assert_eq!((read.status, read.json()["cents"].as_i64()), (200, Some(1177)));
    assert_eq!(fixture.books().await, Books { declines: 1, ..Books::of(2, 1200) });
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W76: an answer is kept for `--answers-for`; after that a repeat learns that it was done, and where, and never runs.
#[tokio::test(flavor = "multi_thread")]
async fn w76_an_answer_is_kept_for_its_own_time() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--answers-for", "5m", "--keys-for", "1h"]).await;
    let request = Request::pay("order-1", "00001", 1177);
    let first = request.answer(&api.address).await;
    assert_eq!(request.answer(&api.address).await.told(), first.told());
    let kept = "SELECT (answer_until - stored_at BETWEEN '5 min' AND '6 min')::text FROM idem.processed_results";
    let kept: String = sqlx::query_scalar(kept).fetch_one(fixture.pool()).await.expect("it is kept");
    assert_eq!(kept, "true");
    let age = "UPDATE idem.processed_results SET answer_until = now() - interval '1 s'";
    sqlx::raw_sql(age).execute(fixture.pool()).await.expect("it is older");
    let cleaned = "SELECT idem.remove_expired('processed_results', 100, 0)";
    sqlx::raw_sql(cleaned).execute(fixture.pool()).await.expect("it is removed");
    let over = request.answer(&api.address).await;
    assert_eq!((over.status, over.json()["type"].as_str()), (409, Some("/problems/answer-not-kept")), "{over:?}");
    assert_eq!(over.json()["original_location"].as_str(), first.header("location"));
    assert_eq!(fixture.books().await, Books::of(1, 1177));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}
