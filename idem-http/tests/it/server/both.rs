//! Two servers, clients that go away, and places where nothing of a request may be.
#![allow(clippy::disallowed_methods, reason = "a client that goes away is a task that is aborted")]

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use idem_core::{BoxError, Store as _};
use idem_http::Idempotency;
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory, Postgres, Sqlite, TokioPostgres},
    support::{
        Counted, Declined, Runs, SECRET, Seen, builder, counted, held, mounted, request, route, send, until_all_have,
    },
};

fn app<G: Ground>(payments: &Idempotency<G::Store>, runs: &Arc<Runs>) -> Router {
    Router::new().route_service("/t", route::<G>(payments, runs))
}

async fn sent<B>(app: Router, request: Request<B>) -> Seen
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Seen::of(app.oneshot(request.map(Body::new)).await.unwrap()).await
}

/// What the second of two servers answers to a key that the first one has, once that one's run has come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// The first one's answer.
    Replays,
    /// That the key was used for another request.
    Refuses,
    /// By a run of its own, as the first one has left nothing.
    Runs,
}

/// W100: the first use of a key comes to two servers at once. The ends of the first run, and the second request, which is the same
/// or another.
const FIRST_USE: [(&str, u16, [Second; 2]); 6] = [
    ("one", 201, [Second::Replays, Second::Refuses]),
    ("declined", 402, [Second::Replays, Second::Refuses]),
    ("final", 422, [Second::Replays, Second::Refuses]),
    ("status 500", 500, [Second::Runs, Second::Runs]),
    ("permanent", 500, [Second::Runs, Second::Runs]),
    ("error", 503, [Second::Runs, Second::Runs]),
];

pub(crate) async fn w100_a_first_use_on_two_servers_at_once<G: Ground>() {
    let ground = G::new().await;
    // Where one unit writes at a time, a claim waits for the database and not for the key, so none can be told that it is held.
    let waits_per_key = ground.store().capabilities().waits_per_key;

    for (body, status, by_content) in FIRST_USE {
        for (other, second) in [body, "two"].into_iter().zip(by_content) {
            let what = format!("{body}, then {other}");
            let key = what.replace([' ', ',', '/'], "-");
            let runs = Arc::new(Runs::default());
            let server = |wait| app::<G>(&builder(&ground).wait_for_owner(wait).build().unwrap(), &runs);
            let (here, there) = (server(Duration::ZERO), server(Duration::from_secs(60)));
            let before = ground.paid().await;
            let first = tokio::spawn(sent(here, held(request(&key, body))));
            runs.until_begun(1).await;
            if waits_per_key {
                let told = sent(server(Duration::ZERO), request(&key, other)).await;
                assert_eq!((told.status, told.header("retry-after")), (409, Some("1")), "{what}: {told:?}");
                assert!(told.json()["type"].as_str().unwrap().ends_with("#in-progress"), "{what}: {told:?}");
            }
            let arrived = tokio::sync::watch::Sender::new(0);
            let later = tokio::spawn(sent(there, counted(request(&key, other), other, &arrived)));
            until_all_have(&arrived, 1).await;
            assert_eq!(runs.begun(), 1, "{what}: one at a time");
            runs.release(1);
            let (first, later) = (first.await.unwrap(), later.await.unwrap());
            if body == "final" {
                // The key is free between the rollback and the transaction that keeps the outcome, so the second server may run it.
                assert!((1..=2).contains(&runs.begun()), "{what}: {} runs", runs.begun());
                let took_the_key = later.status == 201;
                let statuses = (422, if took_the_key { 201 } else { 422 });
                assert_eq!((first.status, later.status), statuses, "{what}: {later:?}");
                assert_eq!(first.body == later.body, other == body, "{what}: one outcome");
                let effects = ground.paid().await.len() - before.len();
                assert_eq!(effects, usize::from(took_the_key), "{what}");
                continue;
            }
            assert_eq!(first.status, status, "{what}: {first:?}");
            let mut paid = before;
            paid.extend(matches!(body, "one" | "declined").then(|| body.to_owned()));
            match second {
                Second::Replays => {
                    assert_eq!((later.status, &later.body), (status, &first.body), "{what}: {later:?}");
                    assert_eq!(later.is_replayed(), Some(true), "{what}");
                    assert_eq!(later.header("location"), first.header("location"), "{what}");
                }
                Second::Refuses => {
                    assert_eq!((later.status, later.is_replayed()), (422, None), "{what}: {later:?}");
                    assert!(later.json()["type"].as_str().unwrap().ends_with("#key-reused"), "{what}: {later:?}");
                }
                Second::Runs => {
                    let own = if other == "two" { 201 } else { status };
                    assert_eq!((later.status, later.is_replayed().unwrap_or(false)), (own, false), "{what}: {later:?}");
                    paid.extend((other == "two").then(|| other.to_owned()));
                }
            }
            assert_eq!(runs.begun(), 1 + usize::from(second == Second::Runs), "{what}");
            paid.sort();
            assert_eq!(ground.paid().await, paid, "{what}: the effects");
        }
    }
}

/// Where a request is when its client goes away.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Part of its body has come.
    InTheBody,
    /// It has come whole, and no connection is free.
    InTheQueue,
    /// Another server has its key.
    AtTheClaim,
    /// Its handler runs.
    InTheHandler,
    /// It waits in memory for the first request with its key.
    AsARepeat,
    /// It is answered.
    AfterTheAnswer,
}

/// W101: a client goes away. A request that has not come whole has no effect; one that has is carried out once; in each phase its
/// place is free for another, and asking again gives the one answer.
pub(crate) async fn w101_a_client_goes_away_in_each_phase<G: Ground>() {
    use Phase::*;

    for phase in [InTheBody, InTheQueue, AtTheClaim, InTheHandler, AsARepeat, AfterTheAnswer] {
        let ground = G::new().await;
        let waits_per_key = ground.store().capabilities().waits_per_key;
        if matches!(phase, AtTheClaim) && !waits_per_key {
            continue;
        }
        let what = format!("{phase:?}");
        let runs = Arc::new(Runs::default());
        let server = || {
            let settings = builder(&ground).wait_for_owner(Duration::from_secs(60)).lanes(1);
            settings.tenant_requests_max(2).build().unwrap()
        };
        let (payments, elsewhere) = (server(), server());
        let app = app::<G>(&payments, &runs);
        let arrived = tokio::sync::watch::Sender::new(0);
        let goes = |request: Request<Counted>| tokio::spawn(sent(app.clone(), request));
        let mut own = counted(request("k", "one"), "one", &arrived);
        // The request in whose way this one is, and whether this one is to be held.
        let in_the_way = match phase {
            InTheQueue => Some((app.clone(), request("other", "other"))),
            AtTheClaim => Some((super::both::app::<G>(&elsewhere, &runs), request("k", "one"))),
            AsARepeat => Some((app.clone(), request("k", "one"))),
            InTheBody | InTheHandler | AfterTheAnswer => None,
        };
        let is_alone = in_the_way.is_none();
        let before = in_the_way.map(|(app, request)| tokio::spawn(sent(app, held(request))));
        runs.until_begun(usize::from(!is_alone)).await;
        match phase {
            InTheBody => own.body_mut().never_ends(),
            InTheHandler => own = held(own),
            InTheQueue | AtTheClaim | AsARepeat | AfterTheAnswer => {}
        }
        let client = goes(own);
        match phase {
            AfterTheAnswer => assert_eq!(client.await.unwrap().status, 201, "{what}"),
            InTheHandler => {
                runs.until_begun(1).await;
                client.abort();
                assert!(client.await.unwrap_err().is_cancelled(), "{what}");
            }
            InTheBody | InTheQueue | AtTheClaim | AsARepeat => {
                until_all_have(&arrived, 1).await;
                if matches!(phase, AsARepeat) {
                    assert_eq!(payments.waiting().in_memory, 1, "{what}");
                }
                client.abort();
                assert!(client.await.unwrap_err().is_cancelled(), "{what}");
            }
        }
        // Whatever was held goes on.
        runs.release(1);
        if let Some(before) = before {
            assert_eq!(before.await.unwrap().status, 201, "{what}");
        }
        let again = sent(app.clone(), request("k", "one")).await;
        let ran_before = !matches!(phase, InTheBody);
        assert_eq!((again.status, again.is_replayed()), (201, Some(ran_before)), "{what}: {again:?}");
        let other = matches!(phase, InTheQueue).then(|| "other".to_owned());
        let paid: Vec<_> = ["one".to_owned()].into_iter().chain(other).collect();
        assert_eq!(ground.paid().await, paid, "{what}");
        assert_eq!(runs.begun(), paid.len(), "{what}");
        assert_eq!(payments.waiting().in_memory, 0, "{what}");
        // Its place among its tenant's requests is free: two may be in hand.
        let two = [request("l", "two"), request("m", "three")];
        for one in two.map(|request| tokio::spawn(sent(app.clone(), request))) {
            assert_eq!(one.await.unwrap().status, 201, "{what}");
        }
    }
}

/// A ground whose every table, or whole file, is searched from outside.
pub(crate) trait Searched: Ground {
    /// Where the records stand, and the answers.
    const RECORDS: &str = "processed_messages";
    const ANSWERS: &str = "processed_results";

    /// The places where a value stands, in any form.
    async fn places_with(&self, value: &str) -> BTreeSet<String>;

    /// The hashes of the requests, in hexadecimal digits.
    async fn hashes(&self) -> Vec<String>;
}

impl Searched for Postgres {
    async fn places_with(&self, value: &str) -> BTreeSet<String> {
        tables_with(self.schema.as_str(), value).await
    }

    async fn hashes(&self) -> Vec<String> {
        hashes_in(self.schema.as_str()).await
    }
}

impl Searched for TokioPostgres {
    async fn places_with(&self, value: &str) -> BTreeSet<String> {
        tables_with(self.schema.as_str(), value).await
    }

    async fn hashes(&self) -> Vec<String> {
        hashes_in(self.schema.as_str()).await
    }
}

impl Searched for Sqlite {
    // The database and its write-ahead log are one place: a page that is no row's any more is in them, too.
    const RECORDS: &str = "the files";
    const ANSWERS: &str = "the files";

    async fn places_with(&self, value: &str) -> BTreeSet<String> {
        let files = self.files();
        // Digits are searched for as the bytes that they stand for, too: SQLite keeps those as they are.
        let digits: Option<Vec<u8>> = value.len().is_multiple_of(2).then_some(value).and_then(|value| {
            (0..value.len()).step_by(2).map(|at| u8::from_str_radix(value.get(at..at + 2)?, 16).ok()).collect()
        });
        let wanted = forms(value).into_iter().map(String::into_bytes).chain(digits);
        let has = wanted.into_iter().any(|form| files.windows(form.len()).any(|window| window == form));
        has.then(|| "the files".to_owned()).into_iter().collect()
    }

    async fn hashes(&self) -> Vec<String> {
        let query = "SELECT lower(hex(payload_hash)) FROM idem_processed_messages";
        sqlx::query_scalar(query).fetch_all(&mut self.connect().await).await.unwrap()
    }
}

/// A value as it may stand in a row: as it is, in hexadecimal digits, and in base64 behind 0, 1 and 2 bytes of others.
fn forms(value: &str) -> Vec<String> {
    use base64::Engine as _;
    let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    let coded = (0..3).map(|before| {
        let all = [&vec![0; before], value.as_bytes()].concat();
        let text = base64::engine::general_purpose::STANDARD.encode(&all);
        text[(before * 4).div_ceil(3)..all.len() * 4 / 3].to_owned()
    });
    [value.to_owned(), hex].into_iter().chain(coded).collect()
}

/// The tables of a schema in which a value stands, in any form; bytes are shown as hexadecimal digits, and JSON as its text.
async fn tables_with(schema: &str, value: &str) -> BTreeSet<String> {
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&super::grounds::url()).await.unwrap();
    let tables =
        "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p', 'm') AND relnamespace = $1::regnamespace";
    let tables: Vec<String> = sqlx::query_scalar(tables).bind(schema).fetch_all(&mut connection).await.unwrap();
    let mut with = BTreeSet::new();
    for table in tables {
        let rows = format!("SELECT the_row::text FROM {schema}.\"{table}\" AS the_row");
        let rows: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(rows)).fetch_all(&mut connection).await.unwrap();
        let has = forms(value).iter().any(|form| rows.iter().any(|row| row.contains(form)));
        with.extend(has.then_some(table));
    }
    with
}

async fn hashes_in(schema: &str) -> Vec<String> {
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&super::grounds::url()).await.unwrap();
    let hashes = format!("SELECT encode(payload_hash, 'hex') FROM {schema}.processed_messages");
    sqlx::query_scalar(sqlx::AssertSqlSafe(hashes)).fetch_all(&mut connection).await.unwrap()
}

/// Whoever has a guess at a request can make its plain hash, so that no part of one may be there, not even in the audit trail. The
/// service on `guessable` had the same requests, and makes plain hashes.
async fn no_plain_hash_stands_in<G: Searched>(ground: &G, guessable: &G) {
    let hashes = guessable.hashes().await;
    assert_eq!(hashes.len(), 2, "two keys");
    for hash in hashes {
        for part in [&hash[..8], &hash[32..40]] {
            assert!(guessable.places_with(part).await.contains(G::RECORDS), "this search sees it");
            assert_eq!(ground.places_with(part).await, BTreeSet::new(), "{part} of {hash}");
        }
    }
}

/// Of a request only its key and a keyed hash are stored, and of its answer the named parts; and no log or span has more. Whole
/// databases and whole processes are searched from outside.
pub(crate) async fn w25_a_request_stands_nowhere_but_in_its_answer<G: Searched>() {
    const BODY: &str = "canary-4000-0012";
    const HEADER: &str = "canary-4000-header";
    const KEPT: &str = "canary-4000-answer";
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writer = super::telemetry::Lines(Arc::clone(&log));
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone());
    let _guard = super::telemetry::set_default(lines.finish());

    let (ground, guessable) = (G::new().await, G::new().await);
    let plain = Idempotency::builder(guessable.store(), "payments").single_tenant().plain_hashes();
    let services = [(&ground, builder(&ground).build().unwrap()), (&guessable, plain.build().unwrap())];
    for (_, payments) in &services {
        let answered = |body: &[u8]| match body.rsplit(|byte| *byte == b' ').next() {
            Some(b"fails") => Err(Declined::from(BoxError::from("it failed"))),
            Some(b"refused") => {
                Err(Declined::Final(Box::new(http::Response::builder().status(422).body(KEPT.into()).unwrap())))
            }
            _ => Ok(http::Response::new(Bytes::from(KEPT))),
        };
        let app = mounted(payments, "/t", move |request, _| Box::pin(async move { answered(request.body()) }));
        for (key, end, status) in
            [("a", "", 200), ("a", "", 200), ("a", " other", 422), ("b", " fails", 503), ("c", " refused", 422)]
        {
            let mut request = request(key, &format!("{BODY}{end}"));
            request.headers_mut().insert("x-secret", HEADER.parse().unwrap());
            let seen = send(&app, request).await;
            assert_eq!(seen.status, status, "{key}{end}: {seen:?}");
        }
    }
    for value in [BODY, HEADER] {
        assert_eq!(ground.places_with(value).await, BTreeSet::new(), "{value}");
    }
    let kept = BTreeSet::from([G::ANSWERS.to_owned()]);
    assert_eq!(ground.places_with(KEPT).await, kept, "the same search sees the answer");
    no_plain_hash_stands_in(&ground, &guessable).await;
    drop(_guard);
    let log = String::from_utf8(std::mem::take(&mut *log.lock().unwrap())).unwrap();
    assert!(log.contains("/t") && log.contains("idem.key"), "it tells of requests: {log}");
    let secret: String = SECRET.iter().map(|byte| char::from(*byte)).collect();
    for value in [BODY, HEADER, KEPT, &secret] {
        for form in forms(value) {
            let leak = log.lines().find(|line| line.contains(&form));
            assert!(leak.is_none(), "the log has {value}: {}", leak.unwrap_or_default());
        }
    }
}

/// W92: one tenant's bodies, which come slowly, leave room for another's.
#[tokio::test]
async fn w92_one_tenant_does_not_take_all_room() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).requests_bytes_max(40_000).build().unwrap();
    let app = app::<Memory>(&payments, &runs);

    let arrived = tokio::sync::watch::Sender::new(0);
    let content: &'static str = Box::leak("x".repeat(9_000).into_boxed_str());
    let mut slow = Vec::new();
    for key in ["a", "b", "c", "d"] {
        let mut request = counted(request(key, "slow"), content, &arrived);
        request.body_mut().never_ends();
        slow.push(tokio::spawn(sent(app.clone(), request)));
    }
    // The last one has no room among its tenant's.
    let refused = slow.pop().unwrap().await.unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
    assert!(refused.json()["type"].as_str().unwrap().ends_with("#overloaded"), "{refused:?}");
    until_all_have(&arrived, 3).await;
    let other = super::support::request_of("globex", "k", &"y".repeat(9_000));
    assert_eq!(sent(app.clone(), other).await.status, 201, "");
    for one in slow {
        one.abort();
        assert!(one.await.unwrap_err().is_cancelled());
    }
    let whole = Full::new(Bytes::from("z".repeat(27_000)));
    let after = sent(app.clone(), request("e", "").map(|_| whole)).await;
    assert_eq!(after.status, 201, "its room was given back");
}
