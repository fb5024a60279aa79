//! The operators' commands for requests over HTTP, on both databases.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use idem_core::{Event, Store};
use idem_http::{Authenticated, Idempotency, IdempotentTx, TxError};
use serde_json::Value;
use tokio::sync::Notify;
use tower::ServiceExt as _;

use crate::{
    answers::on_sqlite,
    fixture::{Answer, Fixture},
};

const ROUTE: &str = "POST /t";
const WHY: [&str; 5] = ["--consumer", "payments", "--reason", "art-17", "--yes"];

/// Sends requests of the tenant `acme` to a service on this store: each is answered with its body and announced, but for
/// `refused`, which is, and `slow`, which first waits.
struct Payments<S: Store> {
    idempotency: Idempotency<S>,
    begun: Arc<Notify>,
    goes_on: Arc<Notify>,
}

impl<S: Store> Payments<S> {
    fn on(store: &Arc<S>) -> Self {
        let builder = Idempotency::builder(Arc::clone(store), "payments")
            .tenant(|_| Some(Authenticated::tenant("acme")))
            .plain_hashes()
            .engine(|engine| engine.publish_to(["told"]));
        Self { idempotency: builder.build().unwrap(), begun: Arc::default(), goes_on: Arc::default() }
    }

    /// Sends one, and answers its status and whether it was a replay.
    async fn send(&self, key: &str, body: &'static str) -> (u16, bool) {
        let (begun, goes_on) = (Arc::clone(&self.begun), Arc::clone(&self.goes_on));
        let pay = async move |mut tx: IdempotentTx<S>, body: Bytes| -> Result<Response, TxError> {
            let text = format!("answer to {}", String::from_utf8_lossy(&body));
            let answer = |status| (status, [("location", "/t/7")], text).into_response();
            match &*body {
                b"refused" => {
                    tx.refuse();
                    return Ok(answer(StatusCode::UNPROCESSABLE_ENTITY));
                }
                b"slow" => {
                    begun.notify_one();
                    goes_on.notified().await;
                }
                _ => {}
            }
            tx.publish(Event::to("told").event_type("Paid").body("x"))?;
            Ok(answer(StatusCode::CREATED))
        };
        let route = Router::new().route("/t", post(pay).route_layer(self.idempotency.layer()));
        let answer = route.oneshot(Request::post("/t").header("idempotency-key", key).body(Body::from(body)).unwrap());
        let answer = answer.await.unwrap();
        (answer.status().as_u16(), answer.headers().get("idempotent-replayed").is_some_and(|is| is == "true"))
    }
}

/// A command about a request of the tenant `acme`.
fn of<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &["--route", ROUTE, "--tenant", "acme"]].concat()
}

fn request(shown: &Value) -> &Value {
    &shown["requests"][0]
}

/// W70: a request is found by its tenant, its route and its key as the client sent it, with its state, the status of its answer,
/// when both go, and the events that wait.
async fn a_request_is_shown<S: Store>(store: Arc<S>, idem: impl Fn(&[&str]) -> Answer) {
    let payments = Payments::on(&store);
    assert_eq!(payments.send("\"order;1\"", "paid").await, (201, false));
    assert_eq!(payments.send("order-2", "refused").await, (422, false));
    let shown = idem(&of(&["show", "\"order;1\"", "--consumer", "payments", "--json"])).json();
    for (name, value) in [
        ("tenant", "acme"),
        ("route", ROUTE),
        ("key", "order;1"),
        ("recorded_as", "4:acme 7:POST /t order;1"),
        ("consumer", "payments"),
        ("state", "completed"),
        ("location", "/t/7"),
    ] {
        assert_eq!(request(&shown)[name], value, "{name} of {shown}");
    }
    assert_eq!(request(&shown)["status"], 201);
    for time in ["processed_at", "expires_at", "answer_until"] {
        assert!(request(&shown)[time].is_string(), "{time} of {shown}");
    }
    let event = &shown["unsent_events"][0];
    assert_eq!(
        (&event["destination"], &event["state"], &event["type"]),
        (&"told".into(), &"pending".into(), &"Paid".into())
    );
    assert!(!shown.to_string().contains("answer to"), "{shown}");
    idem(&of(&["show", "order;1"])).refused("no comma, semicolon");
    let with_answer = idem(&of(&["show", "\"order;1\"", "--result", "--json"])).json();
    assert_eq!(with_answer["results"][0]["body"], "answer to paid", "{with_answer}");
    // The key of the record, out of a log, shows the same.
    let recorded = request(&shown)["recorded_as"].as_str().unwrap();
    assert_eq!(request(&idem(&["show", recorded, "--json"]).json()), request(&shown));

    let refused = idem(&of(&["show", "order-2", "--json"])).json();
    assert_eq!(
        (&request(&refused)["state"], &request(&refused)["status"]),
        (&"failed".into(), &422.into()),
        "{refused}"
    );
    assert_eq!(
        refused["unsent_events"].as_array().map(Vec::len),
        Some(0),
        "it was taken back with the rest: {refused}"
    );
    let unknown = idem(&["show", "order-2", "--route", ROUTE, "--tenant", "globex", "--json"]).json();
    assert_eq!(request(&unknown)["state"], "unknown", "{unknown}");
    assert!(unknown["messages"].to_string().contains("runs: there is no record"), "{unknown}");
    // A key that its record has no more than the hash of.
    let long = "k".repeat(255);
    assert_eq!(payments.send(&long, "paid").await, (201, false));
    let shown = idem(&of(&["show", &long, "--json"])).json();
    assert_eq!(
        (&request(&shown)["key"], &request(&shown)["state"]),
        (&long.as_str().into(), &"completed".into()),
        "{shown}"
    );
}

/// W70: a malformed request is refused, and not looked for in vain.
fn wrong_words_are_refused(idem: impl Fn(&[&str]) -> Answer) {
    idem(&["show", "order-1", "--route", "/t"]).refused("a method and a path");
    idem(&["show", "order-1", "--route", "post /t"]).refused("a method and a path");
    idem(&["show", "order-1", "--tenant", "acme"]).refused("--route");
    idem(&of(&["show", "a,b"])).refused("that is no key");
    idem(&of(&["forget", "a,b", "--consumer", "payments", "--reason", "x", "--yes"])).refused("key number 1");
    idem(&of(&["erase", "\"a", "--reason", "x", "--yes"])).refused("that is no key");
}

/// W71: a request is forgotten and erased by the same words: the one runs again, the other never.
async fn a_request_is_forgotten_or_erased<S: Store>(store: Arc<S>, idem: impl Fn(&[&str]) -> Answer) {
    let payments = Payments::on(&store);
    for key in ["order-1", "order-2"] {
        assert_eq!(payments.send(key, "paid").await, (201, false));
        assert_eq!(payments.send(key, "paid").await, (201, true));
    }
    let forget = of(&["forget", "order-1", "--consumer", "payments", "--reason", "again", "--yes"]);
    assert!(idem(&forget).ok().contains("1 forgotten"));
    idem(&forget).refused("0 records");
    let erase = of(&["erase", "order-2", "--consumer", "payments", "--reason", "art-17", "--yes"]);
    // Its event is an effect, and is sent whole.
    let erased = idem(&erase).ok();
    assert!(erased.contains("rows erased") && erased.contains("1 wait in the outbox"), "{erased}");
    let shown = idem(&of(&["show", "order-2", "--result", "--json"])).json();
    assert_eq!(
        (&request(&shown)["state"], &request(&shown)["key"]),
        (&"answer_not_kept".into(), &"order-2".into()),
        "{shown}"
    );
    assert!(!shown.to_string().contains("answer to") && !shown.to_string().contains("/t/7"), "{shown}");
    assert_eq!(shown["unsent_events"].as_array().map(Vec::len), Some(1), "{shown}");
    assert_eq!(payments.send("order-2", "paid").await.0, 409);
    assert_eq!(payments.send("order-1", "paid").await, (201, false), "it was forgotten");
}

#[tokio::test]
async fn w70_a_request_is_shown_by_tenant_route_and_key_on_postgres() {
    let fixture = Fixture::new().await;
    let idem = |arguments: &[&str]| fixture.idem_with(arguments);
    a_request_is_shown(Arc::new(fixture.store.clone()), idem).await;
    wrong_words_are_refused(idem);
    let noted = "SELECT coalesce(idempotency_key, '') || (details LIKE '%, and its result')::text FROM audit WHERE action = 'read-key'";
    let notes = fixture.texts(noted).await;
    let key = "4:acme 7:POST /t order;1";
    assert_eq!(notes[..3], [format!("{key}false"), format!("{key}true"), format!("{key}false")]);
    fixture.drop().await;
}

#[tokio::test]
async fn w70_a_request_is_shown_by_tenant_route_and_key_on_sqlite() {
    on_sqlite(async |store, _, idem| {
        let idem = |arguments: &[&str]| idem(arguments);
        a_request_is_shown(store, idem).await;
        wrong_words_are_refused(idem);
    })
    .await;
}

#[tokio::test]
async fn w71_a_request_is_forgotten_or_erased_by_the_same_words_on_postgres() {
    let fixture = Fixture::new().await;
    a_request_is_forgotten_or_erased(Arc::new(fixture.store.clone()), |words| fixture.idem_with(words)).await;
    fixture.drop().await;
}

#[tokio::test]
async fn w71_a_request_is_forgotten_or_erased_by_the_same_words_on_sqlite() {
    on_sqlite(async |store, _, idem| a_request_is_forgotten_or_erased(store, idem).await).await;
}

/// W70: a running request differs from an unknown one, and looking at it does not disturb it.
#[tokio::test(flavor = "multi_thread")]
async fn w70_a_request_that_runs_is_told_from_an_unknown_one() {
    let fixture = Fixture::new().await;
    let payments = Payments::on(&Arc::new(fixture.store.clone()));
    let state = |key: &str| {
        let shown = fixture.idem_with(&of(&["show", key, "--json"])).json();
        request(&shown)["state"].as_str().map(str::to_owned)
    };
    let running = payments.send("order-1", "slow");
    let looking = async {
        payments.begun.notified().await;
        let (runs, unknown) = tokio::task::block_in_place(|| (state("order-1"), state("order-2")));
        payments.goes_on.notify_one();
        (runs, unknown)
    };
    let (answered, (runs, unknown)) = tokio::join!(running, looking);
    assert_eq!((runs.as_deref(), unknown.as_deref()), (Some("in_progress"), Some("unknown")));
    assert_eq!(answered, (201, false));
    assert_eq!(payments.send("order-2", "paid").await, (201, false), "the look at it left nothing");
    fixture.drop().await;
}

/// W71: nothing of a request that runs can be seen before its commit. Who erases or forgets it is told so, and not that there is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn w71_a_request_that_runs_is_neither_forgotten_nor_erased() {
    let fixture = Fixture::new().await;
    let payments = Payments::on(&Arc::new(fixture.store.clone()));
    assert_eq!(payments.send("order-2", "paid").await, (201, false));
    let idem = |words: &[&str]| fixture.idem_with(&of(&[words, &WHY].concat()));
    let acting = async {
        payments.begun.notified().await;
        tokio::task::block_in_place(|| {
            idem(&["erase", "order-1"]).refused("the key cannot be erased: the key is in progress");
            idem(&["forget", "order-2", "order-1"]).refused("key number 2 cannot be forgotten: the key is in progress");
            idem(&["forget", "order-1", "--dry-run"]).refused("in progress");
            assert!(idem(&["erase", "order-3"]).ok().contains("0 rows"), "it never came");
            idem(&["forget", "order-3"]).refused("0 records");
        });
        payments.goes_on.notify_one();
    };
    let (answered, ()) = tokio::join!(payments.send("order-1", "slow"), acting);
    assert_eq!(answered, (201, false));
    assert_eq!(payments.send("order-2", "paid").await, (201, true), "nothing was forgotten");
    assert!(idem(&["forget", "order-1", "order-2"]).ok().contains("2 forgotten"));
    fixture.drop().await;
}

/// W71: on a file nobody can tell which key is in progress, only that something is: the command waits for its end, and then says so.
#[tokio::test(flavor = "multi_thread")]
async fn w71_a_request_that_runs_is_neither_forgotten_nor_erased_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let payments = Payments::on(&store);
        assert_eq!(payments.send("order-2", "paid").await, (201, false));
        let url = format!("sqlite://{}", path.display());
        let acting = async {
            payments.begun.notified().await;
            let refused = ["erase order-1", "forget order-1", "forget order-1 --dry-run"].map(|words| {
                let url = url.clone();
                tokio::task::spawn_blocking(move || {
                    let words = of(&words.split(' ').chain(WHY).collect::<Vec<_>>());
                    crate::fixture::command(&[("DATABASE_URL", &url), ("IDEM_OPERATOR", "ada")], &words)
                        .refused("nobody can tell whether the key is in progress");
                })
            });
            for refused in refused {
                refused.await.unwrap();
            }
            payments.goes_on.notify_one();
        };
        let (answered, ()) = tokio::join!(payments.send("order-1", "slow"), acting);
        assert_eq!(answered, (201, false));
        assert_eq!(payments.send("order-2", "paid").await, (201, true));
        assert!(idem(&of(&[&["erase", "order-1"], &WHY[..]].concat())).ok().contains("rows erased"));
    })
    .await;
}

/// W139: a lock on the whole table does not make a request of a key that nobody sent.
#[tokio::test(flavor = "multi_thread")]
async fn w139_a_locked_table_makes_no_request_run() {
    let fixture = Fixture::new().await;
    let payments = Payments::on(&Arc::new(fixture.store.clone()));
    assert_eq!(payments.send("order-1", "paid").await, (201, false));
    let mut other = fixture.admin.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE processed_messages IN SHARE MODE").execute(&mut *other).await.unwrap();
    let shown = tokio::task::block_in_place(|| fixture.idem_with(&of(&["show", "order-2", "--json"])).json());
    assert_eq!(request(&shown)["state"], "unknown", "{shown}");
    sqlx::raw_sql("ROLLBACK").execute(&mut *other).await.unwrap();
    fixture.drop().await;
}

/// W79: the doctor knows services over HTTP: those that forget keys before their clients forget their requests, answers that
/// were to outlive their records, and answers that a process has stored unsealed.
async fn the_doctor_knows_services<S: Store>(
    store: Arc<S>,
    idem: impl Fn(&[&str]) -> Answer,
    run: impl AsyncFn(&'static str),
) {
    let payments = Payments::on(&store);
    assert_eq!(payments.send("order-1", "paid").await, (201, false));
    assert_eq!(payments.send("order-2", "paid").await, (201, false));
    let findings = |arguments: &[&str]| {
        let answer = idem(&[&["doctor", "--format", "json"], arguments].concat());
        let report: Value = serde_json::from_str(&answer.out).unwrap();
        assert_eq!(report["services"][0]["service"], "payments", "{report}");
        let found = report["findings"].as_array().cloned().unwrap_or_default();
        let of_payments = found.iter().map(|row| row["finding"].as_str().unwrap().to_owned());
        of_payments.filter(|finding| finding.contains("payments ") && !finding.contains("relays")).collect::<Vec<_>>()
    };
    assert_eq!(findings(&["--client-window", "90d", "--sealing-key", "1"]), Vec::<String>::new());
    let [late] = &findings(&["--client-window", "91d"])[..] else { panic!("one finding") };
    assert!(late.contains("knows keys for 90d") && late.contains("again for 91d"), "{late}");
    run("UPDATE {processed_results} SET sealed_with = 2, stored_at = {earlier} WHERE key_id = (SELECT key_id FROM
        {processed_messages} WHERE idempotency_key LIKE '%order-1')")
    .await;
    run("UPDATE {processed_messages} SET expires_at = {earlier} WHERE idempotency_key LIKE '%order-2'").await;
    // Its record has expired, so it is to be gone; it has been there for a moment.
    run("UPDATE {processed_messages} SET processed_at = {earlier} WHERE idempotency_key LIKE '%order-2'").await;
    let found = findings(&["--gone-within", "1s"]);
    assert!(found.iter().any(|finding| finding.starts_with("a record of payments has expired, is ")), "{found:?}");
    let found = findings(&["--sealing-key", "1"]);
    let [outliving, unsealed, missing] = &found[..] else { panic!("{found:?}") };
    assert!(outliving.starts_with("1 answers of payments were to be kept for longer"), "{outliving}");
    assert!(unsealed.contains("lacks the sealing key"), "{unsealed}");
    assert!(missing.contains("sealed with key 2,"), "{missing}");
}

#[tokio::test]
async fn w79_the_doctor_knows_services_on_postgres() {
    let fixture = Fixture::new().await;
    let run = async |text: &'static str| {
        let tables = text
            .replace("{processed_results}", "processed_results")
            .replace("{processed_messages}", "processed_messages");
        fixture.run(&tables.replace("{earlier}", "now() - interval '1 minute'")).await;
    };
    the_doctor_knows_services(Arc::new(fixture.store.clone()), |words| fixture.idem_with(words), run).await;
    fixture.drop().await;
}

#[tokio::test]
async fn w79_the_doctor_knows_services_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let run = async |text: &'static str| {
            let tables = text.replace("{processed_results}", "idem_processed_results");
            let tables = tables.replace("{processed_messages}", "idem_processed_messages").replace("{earlier}", "1");
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            sqlx::raw_sql(sqlx::AssertSqlSafe(tables)).execute(&mut connection).await.unwrap();
        };
        the_doctor_knows_services(store, idem, run).await;
    })
    .await;
}
