//! The treatment of each answer, and of each failure.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::post};
use http::Uri;
#[cfg(idem_bugs)]
use idem_core::bugs::{self, Bug};
use idem_core::{
    ConsumerName, ErrorClass, HandlerError, Store as _, Tenant, Tx,
    cleanup::{Expiring, Removal, Removed},
    store::{Bookkeeping as _, ControlState},
};
use idem_http::{Idempotency, IdempotentTx, TxError};
use idem_testkit::{Fault, Operation};
use sqlx::Connection as _;

use super::{
    grounds::{Ground, Memory, Postgres, Server, Sql, Sqlite, url},
    support::{Runs, Seen, builder, held, mounted, request, route, send},
};

/// The table at `Idempotency::layer`, row by row: the effect, whether the answer is kept, and what a repeat gets.
pub(crate) async fn w15_what_becomes_of_each_answer<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).build().unwrap(), &runs);
    // A failure is idem's own problem, and says whether to come again; all else is the handler's answer.
    let (good, bad) = (None, Some(("#response-refused", None)));
    let passes = Some(("#failed-for-now", Some("1")));
    for (body, status, has_effect, is_kept, problem) in [
        ("status 200", 200, true, true, good),
        ("status 204", 204, true, true, good),
        ("status 303", 303, true, true, good),
        ("status 404", 404, true, true, good),
        ("status 409", 409, true, true, good),
        ("declined", 402, true, true, good),
        ("status 500", 500, false, false, good),
        ("status 503", 503, false, false, good),
        ("final", 422, false, true, good),
        ("not kept", 400, false, false, good),
        ("error", 503, false, false, passes),
        ("permanent", 500, false, false, Some(("#failed", None))),
        ("panic", 503, false, false, passes),
        ("contended", 503, false, false, passes),
        ("status 401", 500, false, false, bad),
        ("status 403", 500, false, false, bad),
        ("status 408", 500, false, false, bad),
        ("status 425", 500, false, false, bad),
        ("status 429", 500, false, false, bad),
    ] {
        let key = body.replace(' ', "-");
        let begun = runs.begun();
        let first = send(&route, request(&key, body)).await;
        assert_eq!((first.status, first.is_replayed()), (status, is_kept.then_some(false)), "{body}: {first:?}");
        assert_eq!(ground.paid().await.contains(&body.to_owned()), has_effect, "{body}: its effect");
        let of_first = runs.begun() - begun;
        let again = send(&route, request(&key, body)).await;
        let ran = runs.begun() - begun;
        assert_eq!((again.status, again.is_replayed()), (status, is_kept.then_some(true)), "{body}: {again:?}");
        if is_kept {
            assert_eq!((ran, &again.body), (1, &first.body), "{body}: a repeat");
        } else {
            assert_eq!(ran, 2 * of_first, "{body}: a repeat runs as the first one did");
        }
        assert_eq!(of_first, 1, "{body}: a handler runs once a request");
        for seen in [&first, &again] {
            let slug = seen.header("content-type").filter(|form| *form == "application/problem+json").map(|_| {
                seen.json()["type"].as_str().and_then(|text| text.split_once('#')).map(|(_, slug)| format!("#{slug}"))
            });
            assert_eq!(slug.flatten().as_deref(), problem.map(|(slug, _)| slug), "{body}: {seen:?}");
            let comes_again = problem.map_or((status == 503).then_some("1"), |(_, after)| after);
            assert_eq!(seen.header("retry-after"), comes_again, "{body}");
        }
    }
}

pub(crate) async fn w12_a_response_that_cannot_be_kept_has_no_effect<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let route = route::<G>(&builder(&ground).response_bytes_max(1_000).build().unwrap(), &runs);
    for body in ["large", "coded"] {
        let refused = send(&route, request(body, body)).await;
        assert_eq!(refused.status, 500, "{body}: {refused:?}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("response-refused"));
    }
    assert_eq!(ground.paid().await.len(), 0);
}

pub(crate) async fn w23_a_refusal_is_repeated_and_its_effect_is_not_there<G: Ground>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).wait_for_owner(Duration::from_secs(20)).build().unwrap();
    let route = route::<G>(&idempotency, &runs);
    let one = || send(&route, held(request("k", "final")));
    let (a, b, c, ()) = tokio::join!(one(), one(), one(), runs.release_once_begun(1));
    assert_eq!([a.status, b.status, c.status], [422; 3]);
    assert_eq!((&a.body, &b.body), (&b.body, &c.body));
    assert_eq!((ground.paid().await.len(), runs.begun()), (0, 1));
}

/// A reference to a row that is not there is refused by the statement or by the COMMIT: a failure for good, unless the
/// handler says that the row will come. Nothing is kept.
pub(crate) async fn w90_a_broken_reference_ends<G: Sql>() {
    async fn insert<G: Sql>(tx: &mut Tx<'_, G::Store>, path: &str) -> Result<(), HandlerError> {
        let at_once = "INSERT INTO child VALUES (7)";
        match path.rsplit('/').next() {
            Some("at-once") => G::execute(tx, at_once).await?,
            Some("waits") => G::execute(tx, at_once).await.map_err(HandlerError::transient)?,
            _ => G::execute(tx, "INSERT INTO late_child VALUES (7)").await?,
        }
        Ok(())
    }
    async fn behind_the_layer<G: Sql>(mut tx: IdempotentTx<G::Store>, uri: Uri) -> Result<&'static str, TxError> {
        insert::<G>(&mut tx.tx(), uri.path()).await?;
        Ok("done")
    }
    let ground = G::new().await;
    let payments = builder(&ground).build().unwrap();
    let app = Router::new().route("/layer/{how}", post(behind_the_layer::<G>)).layer(payments.layer());
    for (how, status, retry_after, slug) in [
        ("at-once", 500, None, "#failed"),
        ("at-the-commit", 500, None, "#failed"),
        ("waits", 503, Some("1"), "#failed-for-now"),
    ] {
        for _ in 0..2 {
            let mut sent = request(how, "{}");
            *sent.uri_mut() = format!("/layer/{how}").parse().unwrap();
            let failed = Seen::of(tower::ServiceExt::oneshot(app.clone(), sent).await.unwrap()).await;
            assert_eq!((failed.status, failed.header("retry-after")), (status, retry_after), "{how}");
            assert!(failed.json()["type"].as_str().unwrap().ends_with(slug), "{how}: {failed:?}");
            assert_eq!(failed.is_replayed(), None, "{how}");
        }
    }
}

/// A database that is down: 503, and the handler never ran.
#[tokio::test]
async fn w16_without_a_database_nothing_runs() {
    let options: sqlx::postgres::PgConnectOptions = url().parse().unwrap();
    let store = idem_sqlx::PostgresStore::with_options(options.port(1)).build().unwrap();
    let payments = Idempotency::builder(store, "payments").single_tenant().plain_hashes().build().unwrap();
    let route = mounted(&payments, "/t", |_, _| Box::pin(async { panic!("it ran") }));
    let refused = super::support::Seen::of(tower::ServiceExt::oneshot(route, request("k", "one")).await.unwrap()).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
    assert!(refused.json()["type"].as_str().unwrap().ends_with("#unavailable"));
}

/// W131: while an operator has paused the service, no operation begins, one that was done is answered as ever, and a resume ends it.
#[tokio::test]
async fn w131_a_paused_service_begins_nothing() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    payments.start().await.unwrap();
    let (route, asks) = (route::<Memory>(&payments, &runs), payments.asks(["POST /t"]).unwrap());
    let first = send(&route, request("k", "one")).await;
    let (store, name) = (ground.store(), ConsumerName::new("payments").unwrap());
    let scope = store.bookkeeping().scope(&name, &Tenant::default()).await.unwrap();
    let control = async |state| {
        store.bookkeeping().set_control(scope, state, "ada", "the ledger is read only").await.unwrap();
        payments.engine().obey_control().await.unwrap();
    };
    for state in [ControlState::Paused, ControlState::Halted] {
        control(state).await;
        assert!(payments.engine().pause().is_some());
        let refused = send(&route, request("new", "two")).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{refused:?}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("#paused"));
        assert_eq!(super::ask::ask(&asks, "acme", "/idempotency/new", "").await.status, 404, "nothing was claimed");
        let repeat = send(&route, request("k", "one")).await;
        assert_eq!((repeat.status, &repeat.body), (first.status, &first.body), "{repeat:?}");
    }
    assert_eq!(runs.begun(), 1);
    control(ControlState::Running).await;
    assert_eq!(send(&route, request("new", "two")).await.status, 201);
    assert_eq!(ground.paid().await, ["one", "two"]);
}

/// W132: whatever writes to SQLite keeps every key from being claimed, so that a key is not in progress for that: nothing is known of it.
#[tokio::test]
async fn w132_a_locked_database_says_nothing_about_a_key() {
    let (ground, runs) = (Sqlite::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    payments.start().await.unwrap();
    let (route, asks) = (route::<Sqlite>(&payments, &runs), payments.asks(["POST /t"]).unwrap());
    let mut other = ground.connect().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let refused = send(&route, request("k", "one")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
    assert!(refused.json()["type"].as_str().unwrap().ends_with("#unavailable"));
    let asked = super::ask::ask(&asks, "acme", "/idempotency/k", "").await;
    assert_ne!(asked.json()["state"], "in_progress", "{asked:?}");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(send(&route, request("k", "one")).await.status, 201);
    assert_eq!((runs.begun(), ground.paid().await), (1, vec!["one".to_owned()]));
}

/// W139: the same where a lock on the whole table keeps every claim waiting, as an index that is created takes one.
pub(crate) async fn w139_a_locked_table_says_nothing_about_a_key<G: Server>() {
    let (ground, runs) = (G::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    payments.start().await.unwrap();
    let (route, asks) = (route::<G>(&payments, &runs), payments.asks(["POST /t"]).unwrap());
    let lock = format!("BEGIN; LOCK TABLE {}.processed_messages IN SHARE MODE", ground.schema().quoted());
    let mut other = sqlx::PgConnection::connect(&url()).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut other).await.unwrap();
    // The second time on a connection that is there already.
    for _ in 0..2 {
        let refused = send(&route, request("k", "one")).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("#unavailable"));
        let asked = super::ask::ask(&asks, "acme", "/idempotency/k", "").await;
        assert_eq!(asked.status, 503, "{asked:?}");
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(super::ask::ask(&asks, "acme", "/idempotency/k", "").await.status, 404);
    assert_eq!(send(&route, request("k", "one")).await.status, 201);
    assert_eq!((runs.begun(), ground.paid().await), (1, vec!["one".to_owned()]));
}

/// The answer to the commit is lost, on either side of it: the engine finds out, and there is one effect.
#[tokio::test]
async fn w17_a_lost_answer_to_the_commit_is_resolved() {
    a_lost_answer_to_the_commit_is_resolved().await;
}

async fn a_lost_answer_to_the_commit_is_resolved() {
    for fault in [Fault::AnswerLost, Fault::ConnectionLost] {
        let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
        let payments = builder(&ground).build().unwrap();
        payments.start().await.unwrap();
        ground.store().inject(Operation::Commit, fault);
        let route = route::<Memory>(&payments, &runs);
        let mut first = send(&route, request("k", "one")).await;
        if fault == Fault::ConnectionLost {
            // Nothing was committed, and the handler's steps cannot be repeated.
            assert_eq!((first.status, ground.paid().await.len()), (503, 0), "{first:?}");
            first = send(&route, request("k", "one")).await;
        }
        assert_eq!(first.status, 201, "no answer: {first:?}");
        assert_eq!(ground.paid().await, ["one"]);
        assert_eq!(send(&route, request("k", "one")).await.body, first.body);
    }
}

/// W150: the answer to the commit is lost, and the database cannot be asked how it ended. Nothing is claimed about the operation, and
/// its key finds the truth, on either side of the commit.
#[tokio::test]
async fn w150_an_outcome_that_stays_unknown_is_found_by_its_key() {
    for (fault, was_done) in [(Fault::AnswerLost, true), (Fault::ConnectionLost, false)] {
        let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
        let payments = builder(&ground).build().unwrap();
        payments.start().await.unwrap();
        let (route, asks) = (route::<Memory>(&payments, &runs), payments.asks(["POST /t"]).unwrap());
        let first = tokio::spawn(send(&route, held(request("k", "one"))));
        runs.until_begun(1).await;
        // Those of the first request and of the question, neither of which has a session by then.
        for _ in 0..2 {
            ground.store().inject(Operation::Open, Fault::ConnectionLost);
        }
        ground.store().inject(Operation::Commit, fault);
        runs.release(1);
        let first = first.await.unwrap();
        assert_eq!(
            (first.status, first.header("retry-after"), first.is_replayed()),
            (503, Some("1"), None),
            "{first:?}"
        );
        assert!(first.json()["type"].as_str().unwrap().ends_with("#unavailable"), "{first:?}");
        let asked = super::ask::ask(&asks, "acme", "/idempotency/k?answer=true", "").await;
        assert_eq!((asked.status, &asked.json()["state"]), (503, &"uncertain".into()), "{asked:?}");
        assert_eq!((ground.store().faults_left(Operation::Open), runs.begun()), (0, 1));
        assert_eq!(ground.paid().await.len(), usize::from(was_done), "{fault:?}");

        let again = send(&route, request("k", "one")).await;
        assert_eq!((again.status, again.is_replayed()), (201, Some(was_done)), "{fault:?}: {again:?}");
        assert_eq!(runs.begun(), if was_done { 1 } else { 2 }, "{fault:?}");
        assert_eq!(ground.paid().await, ["one"], "{fault:?}");
        let told = super::ask::ask(&asks, "acme", "/idempotency/k?answer=true", "").await.json();
        assert_eq!(told["answer"]["body"], std::str::from_utf8(&again.body).unwrap(), "{fault:?}");
        assert_eq!(send(&route, request("k", "two")).await.status, 422, "{fault:?}");
    }
}

/// The answer was erased for privacy: the operation is known, and never runs again.
#[tokio::test]
async fn w18_an_operation_whose_answer_is_gone_never_runs_again() {
    let (ground, runs) = (Postgres::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let route = route::<Postgres>(&payments, &runs);
    send(&route, request("k", "one")).await;
    let mut connection = sqlx::PgConnection::connect(&url()).await.unwrap();
    let erase = format!("DELETE FROM {}.processed_results", ground.schema.quoted());
    let erased = sqlx::raw_sql(sqlx::AssertSqlSafe(erase)).execute(&mut connection).await.unwrap();
    assert_eq!(erased.rows_affected(), 1);
    let gone = send(&route, request("k", "one")).await;
    assert_eq!((gone.status, gone.header("retry-after")), (409, None), "{gone:?}");
    assert!(gone.json()["type"].as_str().unwrap().ends_with("#answer-not-kept"));
    assert!(gone.json()["processed_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(send(&route, request("k", "two")).await.status, 422, "another request is told so");
    assert_eq!((ground.paid().await.len(), runs.begun()), (1, 1));
}

/// The answer to a repeat once the answer's time is over and the key's is not.
#[tokio::test]
async fn w18_of_an_answer_whose_time_is_over_status_and_place_are_told() {
    let ground = Postgres::new().await;
    let payments = builder(&ground).build().unwrap();
    let route = mounted(&payments, "/t", |_, _| {
        let answer = http::Response::builder().status(201).header("location", "/t/7").body("made".into());
        Box::pin(async move { Ok(answer?) })
    });
    assert_eq!(send(&route, request("k", "one")).await.status, 201);
    let mut connection = sqlx::PgConnection::connect(&url()).await.unwrap();
    let age = format!("UPDATE {}.processed_results SET answer_until = now() - interval '1 s'", ground.schema.quoted());
    sqlx::raw_sql(sqlx::AssertSqlSafe(age)).execute(&mut connection).await.unwrap();
    let removal =
        Removal { kind: Expiring::Answers, kept: Duration::ZERO, rows_max: 100, timeout: Duration::from_secs(30) };
    let cleaned = ground.store().cleaner().remove(&removal).await;
    assert!(matches!(cleaned, Ok(Removed::Rows(1))), "{cleaned:?}");
    let gone = send(&route, request("k", "one")).await;
    assert_eq!((gone.status, gone.header("location")), (409, Some("/t/7")), "{gone:?}");
    assert_eq!((&gone.json()["original_status"], &gone.json()["original_location"]), (&201.into(), &"/t/7".into()));
}

/// W17: an answer that a client gets is committed; if the commit fails, the client learns that nothing was done.
#[tokio::test(start_paused = true)]
async fn w17_no_answer_comes_before_its_commit() {
    no_answer_comes_before_its_commit().await;
}

async fn no_answer_comes_before_its_commit() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    payments.start().await.unwrap();
    let route = route::<Memory>(&payments, &runs);
    ground.store().inject(Operation::Commit, Fault::Error(ErrorClass::Transient));
    let failed = send(&route, request("k", "one")).await;
    assert_eq!(
        (failed.status, failed.header("retry-after"), failed.is_replayed()),
        (503, Some("1"), None),
        "no commit: {failed:?}"
    );
    assert_eq!((ground.paid().await.len(), runs.begun()), (0, 1));
    // A commit that hangs is waited for, given up, and found not to have been; all that by the test's own clock.
    ground.store().inject(Operation::Commit, Fault::Hang);
    assert_eq!(send(&route, request("k", "one")).await.status, 503);
    let first = send(&route, request("k", "one")).await;
    assert_eq!((first.status, first.is_replayed()), (201, Some(false)), "{first:?}");
    assert_eq!((ground.paid().await, runs.begun()), (vec!["one".to_owned()], 3));
}

/// That a statement fails while this bug is planted, and by the assertion that is about it.
#[cfg(idem_bugs)]
async fn is_red(bug: Bug, statement: impl Future<Output = ()> + 'static, because: &str) {
    bugs::plant(Some(bug));
    // A task of this thread, where the bug is.
    let ended = tokio::task::LocalSet::new().run_until(async { tokio::task::spawn_local(statement).await }).await;
    bugs::plant(None);
    let panic = ended.expect_err("it is green").into_panic();
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    assert!(text.is_some_and(|text| text.contains(because)), "{bug:?} is red for another reason: {text:?}");
}

/// W26: each bug that is planted turns the statement beside it red, which is green without it.
#[cfg(idem_bugs)]
#[tokio::test(start_paused = true)]
async fn w26_planted_bugs_are_seen() {
    use super::repeats;
    // hash_ignored: another request gets the first one's answer.
    is_red(Bug::ConflictIsADuplicate, repeats::w4_another_request_is_no_repeat::<Memory>(), "body: Seen { status: 201")
        .await;
    // respond_before_commit: the client has a success, and its effect is rolled back.
    is_red(Bug::AnswersBeforeCommit, no_answer_comes_before_its_commit(), "no commit: Seen { status: 201").await;
    // store_after_commit: where the answer to the commit is lost, there is an effect and no answer to it.
    is_red(Bug::ResultInSecondTx, a_lost_answer_to_the_commit_is_resolved(), "no answer: Seen").await;
    repeats::w4_another_request_is_no_repeat::<Memory>().await;
    no_answer_comes_before_its_commit().await;
    a_lost_answer_to_the_commit_is_resolved().await;
}
