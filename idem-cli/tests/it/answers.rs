//! The operators' commands for kept results, on both databases.

use std::sync::Arc;

use idem_core::{
    Effects, ResultBody, RunOnce, Store,
    once::{Outcome, Request, RunOnceError, WorkError},
    results::NotKept,
};
use idem_sqlx::SqliteStore;
use serde_json::Value;

use crate::fixture::{Answer, Fixture, command};

/// Answers with the key's text, or refuses with it.
async fn pay<S: Store>(store: &Arc<S>, key: &str) -> Result<Outcome, RunOnceError> {
    let builder = RunOnce::builder(Arc::clone(store), "payments").effects(Effects::InTransaction);
    let text = key.to_owned();
    let work = move |result: ResultBody| {
        if text.contains("refused") { Err(WorkError::final_result(result)) } else { Ok(result) }
    };
    let body = format!("answer to {key}");
    let payments = builder.allow_final_errors().build().unwrap();
    payments
        .run(Request::new(key, key), move |_| {
            let mut headers = idem_core::message::Headers::default();
            headers.push("location", Some("/private".into()));
            let result = ResultBody::new(body.clone())
                .with_status(402)
                .with_content_type("text/plain")
                .with_reference("/orders/7");
            let answer = work(result.with_headers(headers));
            Box::pin(async move { answer })
        })
        .await
}

/// V3: the result is shown on request, which the trail notes; an erased one differs from an empty one, and nothing runs
/// again; a forgotten one runs again, with a result of its own.
async fn results_are_shown_erased_and_forgotten<S: Store>(store: Arc<S>, idem: impl Fn(&str) -> Answer) {
    for key in ["order-1", "order-refused"] {
        assert!(!pay(&store, key).await.unwrap().is_replayed());
    }
    let plain = idem("show order-1").ok();
    assert!(!plain.contains("answer to") && !plain.contains("/private"), "{plain}");
    let shown = idem("show order-1 --result --json").json();
    let result = &shown["results"][0];
    assert_eq!(
        (&result["body"], &result["kind"], &result["status"]),
        (&"answer to order-1".into(), &"answer".into(), &402.into())
    );
    assert_eq!(idem("show order-refused --result --json").json()["results"][0]["kind"], "error");

    for key in ["order-1", "order-refused"] {
        idem(&format!("erase {key} --reason art-17 --yes")).ok();
        let shown = idem(&format!("show {key} --result --json")).json();
        assert!(!shown.to_string().contains("answer to") && !shown.to_string().contains("/private"), "{shown}");
        assert_eq!(
            shown["results"][0]["erased"].as_bool().or(shown["results"][0]["erased"].as_i64().map(|n| n != 0)),
            Some(true)
        );
        let asked = pay(&store, key).await;
        let erased = NotKept::Erased { is_error: key.contains("refused"), status: Some(402) };
        assert!(matches!(&asked, Err(RunOnceError::NotKept { why, .. }) if *why == erased), "{asked:?}");
    }
    pay(&store, "order-2").await.unwrap();
    assert!(!idem("show order-1 --result --json").ok().contains("/orders/7"));
    idem("forget order-2 --consumer payments --reason again --yes").ok();
    assert!(idem("show order-2 --result --json").json()["results"].as_array().is_some_and(Vec::is_empty));
    assert!(!pay(&store, "order-2").await.unwrap().is_replayed());
    assert!(pay(&store, "order-2").await.unwrap().is_replayed());
}

/// V12: of an expired answer the table shows the rest, and the answer until then.
async fn an_answer_that_is_over_is_shown_as_such<S: Store>(
    store: Arc<S>,
    idem: impl Fn(&str) -> Answer,
    age: impl AsyncFn(),
) {
    pay(&store, "order-1").await.unwrap();
    let result = idem("show order-1 --result --json").json()["results"][0].clone();
    assert!(result["answer_until"].is_string() && result["body"] == "answer to order-1", "{result}");
    age().await;
    idem("cleanup").ok();
    let shown = idem("show order-1 --result --json").json();
    let result = &shown["results"][0];
    let is = |name: &str| result[name].as_bool().or(result[name].as_i64().map(|n| n != 0));
    assert_eq!((is("ended"), is("erased")), (Some(true), Some(false)));
    assert_eq!((&result["status"], &result["reference"]), (&402.into(), &"/orders/7".into()));
    assert!(!shown.to_string().contains("answer to") && !shown.to_string().contains("/private"), "{shown}");
    let expired = NotKept::Expired { is_error: false, status: Some(402), reference: Some("/orders/7".into()) };
    let asked = pay(&store, "order-1").await;
    assert!(matches!(&asked, Err(RunOnceError::NotKept { why, .. }) if *why == expired), "{asked:?}");
}

#[tokio::test]
async fn v12_an_answer_that_is_over_is_shown_as_such_on_postgres() {
    let fixture = Fixture::new().await;
    let age = async || {
        fixture.texts("UPDATE processed_results SET answer_until = now() RETURNING kind::text").await;
    };
    let store = Arc::new(fixture.store.clone());
    an_answer_that_is_over_is_shown_as_such(store, |arguments| fixture.idem(arguments), age).await;
    fixture.drop().await;
}

#[tokio::test]
async fn v12_an_answer_that_is_over_is_shown_as_such_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let age = async || {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            sqlx::raw_sql("UPDATE idem_processed_results SET answer_until = 1").execute(&mut connection).await.unwrap();
        };
        an_answer_that_is_over_is_shown_as_such(store, |line| idem(&words(line)), age).await;
    })
    .await;
}

#[tokio::test]
async fn v3_results_are_shown_erased_and_forgotten_on_postgres() {
    let fixture = Fixture::new().await;
    results_are_shown_erased_and_forgotten(Arc::new(fixture.store.clone()), |arguments| fixture.idem(arguments)).await;
    let noted = "SELECT details FROM audit WHERE action = 'read-key' ORDER BY id";
    let notes = fixture.texts(noted).await;
    assert!(!notes[0].contains("result") && notes[1].ends_with(", and its result"), "{notes:?}");
    let rows = fixture.texts("SELECT r::text FROM processed_results AS r WHERE kind >= 2").await.join("\n");
    assert!(!rows.contains("text/plain") && !rows.contains("location"), "{rows}");
    fixture.drop().await;
}

#[tokio::test]
async fn v3_results_are_shown_erased_and_forgotten_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        results_are_shown_erased_and_forgotten(store, |line| idem(&words(line))).await;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
        let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
        let noted = "SELECT details FROM idem_audit WHERE action = 'read-key' ORDER BY id";
        let notes: Vec<String> = sqlx::query_scalar(noted).fetch_all(&mut connection).await.unwrap();
        assert!(!notes[0].contains("result") && notes[1].ends_with(", and its result"), "{notes:?}");
    })
    .await;
}

/// W167: after a change of keys the answers of the old one end first. The doctor finds them behind 10,000 of the new key, also
/// where answers go with their records, and of a consumer that is no service too.
async fn the_doctor_finds_the_older_key<S: Store>(
    store: Arc<S>,
    idem: impl Fn(&str) -> Answer,
    run: impl AsyncFn(&'static str),
    copy: &'static str,
) {
    pay(&store, "order-1").await.unwrap();
    run("UPDATE processed_results SET sealed_with = 1").await;
    run(copy).await;
    let findings = |arguments: &str| {
        let report: Value = serde_json::from_str(&idem(&format!("doctor --format json {arguments}")).out).unwrap();
        let found = report["findings"].as_array().cloned().unwrap_or_default();
        let of_payments = found.iter().map(|row| row["finding"].as_str().unwrap().to_owned());
        of_payments.filter(|finding| finding.contains("payments ")).collect::<Vec<_>>()
    };
    let missing = |key: u8| {
        [format!("answers of payments are sealed with key {key}, which is not among those given: no repeat gets them")]
    };
    assert_eq!(findings("--sealing-key 2"), missing(1));
    assert_eq!(findings("--sealing-key 1"), missing(2));
    assert!(findings("--sealing-key 1 --sealing-key 2 --client-window 365d --gone-within 1s").is_empty(), "no service");
    run("UPDATE processed_results SET answer_until = NULL").await;
    assert_eq!(findings("--sealing-key 2"), missing(1), "each goes with its record");
    assert_eq!(findings("--sealing-key 1"), missing(2));
    run("UPDATE processed_results SET kind = 4, body = '', sealed_with = NULL").await;
    assert!(findings("--sealing-key 3").is_empty(), "they are over");
}

/// Answers of another key to other requests, which end a second later.
const COPIES: &str = "
    INSERT INTO processed_messages (key_id, expires_at, consumer, hash_id, processed_by, idempotency_key, payload_hash)
    SELECT key_id('copy-' || n), m.expires_at + interval '1 second', m.consumer, m.hash_id, m.processed_by, 'copy-' || n, m.payload_hash
        FROM processed_messages AS m, generate_series(1, 10000) AS n;
    INSERT INTO processed_results (consumer, key_id, kind, body, sealed_with, answer_until)
    SELECT m.consumer, m.key_id, 0, '', 2, r.answer_until + interval '1 second'
        FROM processed_messages AS m, processed_results AS r WHERE m.key_id <> r.key_id";

const COPIES_ON_SQLITE: &str = "
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
    INSERT INTO processed_messages SELECT m.consumer, CAST(n AS BLOB), 'copy-' || n, m.payload_hash, m.hash_id, m.processed_at,
        m.processed_by, m.expires_at + 1000000 FROM processed_messages AS m, numbers;
    INSERT INTO processed_results (consumer, key_id, kind, body, sealed_with, stored_at, answer_until)
    SELECT m.consumer, m.key_id, 0, x'', 2, r.stored_at, r.answer_until + 1000000
        FROM processed_messages AS m, processed_results AS r WHERE m.key_id <> r.key_id";

#[tokio::test]
async fn w167_the_doctor_finds_the_older_key_on_postgres() {
    let fixture = Fixture::new().await;
    let run = async |text: &'static str| fixture.run(text).await;
    let store = Arc::new(fixture.store.clone());
    the_doctor_finds_the_older_key(store, |arguments| fixture.idem(arguments), run, COPIES).await;
    fixture.drop().await;
}

#[tokio::test]
async fn w167_the_doctor_finds_the_older_key_on_sqlite() {
    on_sqlite(async |store, path, idem| {
        let run = async |text: &'static str| {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
            let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
            let text = text.replace("processed_", "idem_processed_").replace("idem_processed_at", "processed_at");
            let text = text.replace("idem_processed_by", "processed_by").replace("body = ''", "body = x''");
            sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut connection).await.unwrap();
        };
        the_doctor_finds_the_older_key(store, |line| idem(&words(line)), run, COPIES_ON_SQLITE).await;
    })
    .await;
}

/// The arguments of a line, which hold no blanks.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Does this to a file that was migrated.
pub(crate) async fn on_sqlite(act: impl AsyncFnOnce(Arc<SqliteStore>, &std::path::Path, &dyn Fn(&[&str]) -> Answer)) {
    let path = std::env::temp_dir().join(format!("idem-cli-{:016x}.db", fastrand::u64(..)));
    let url = format!("sqlite://{}", path.display());
    let idem = |arguments: &[&str]| command(&[("DATABASE_URL", url.as_str()), ("IDEM_OPERATOR", "ada")], arguments);
    idem(&["migrate", "up"]).ok();
    let store = Arc::new(SqliteStore::open(&path).await.unwrap());
    act(store, &path, &idem).await;
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
}
