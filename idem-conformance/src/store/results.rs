//! Results that are kept with records, read back, and refusals that are results.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use idem_core::{
    DedupConsumer, Effects, ErrorClass, Handler as _, HandlerError, Message, ResultBody, Retention, RunOnce, Store,
    Tenant, Tx,
    cleanup::{CleanupSettings, Expiring},
    consumer::Decided,
    message::Headers,
    once::{KeyState, Request, RunOnceError, WorkError, Working},
    results::{NotKept, RESULT_BYTES_MAX, StoredResult},
};

use super::{
    fixture::{Fixture, Kind, Seen, Step, msg, write},
    gate::{Gate, PATIENCE, within},
    observed::LostCommit,
    records::{clean, clean_records},
    subject::{Arrangement, HandlerAction, StoreUnderTest},
};

const HOUR: Duration = Duration::from_secs(3600);

/// A result with everything that one can have.
pub(super) fn answer(text: &str) -> ResultBody {
    let mut headers = Headers::default();
    headers.push("location", Some(format!("/orders/{text}").into()));
    headers.push("x-empty", Some(idem_core::Bytes::new()));
    headers.push("x-none", None);
    headers.push("x-empty", Some(vec![0, 255, b'"'].into()));
    let body = [text.as_bytes(), &[0, 255, 10]].concat();
    ResultBody::new(body).with_status(201).with_content_type("text/plain; charset=utf-8").with_headers(headers)
}

/// Whether the store keeps results; where it does not, [`results_that_are_not_offered_are_refused`] says what it must do.
pub(super) fn keep_results<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> bool {
    fixture.store.capabilities().results
}

/// A consumer whose handler writes an effect and sets the payload as its result.
fn consumer<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> DedupConsumer<Seen<T>> {
    fixture.builder("orders", |message, _| write_and_answer(message)).keep_results(RESULT_BYTES_MAX).build().unwrap()
}

fn write_and_answer(message: &Message) -> Vec<Step> {
    let text = message.payload().map(|payload| String::from_utf8_lossy(payload).into_owned()).unwrap_or_default();
    vec![Step::Write(""), Step::SetResult(answer(&text))]
}

/// Decisions and results of messages that are handed in at once.
async fn results<S: Store>(
    consumer: &DedupConsumer<S>,
    messages: impl IntoIterator<Item = Message> + Send,
) -> Vec<(Kind, Option<Result<StoredResult, NotKept>>)> {
    let messages: Vec<_> = messages.into_iter().collect();
    let decided = within("processing messages", consumer.process_with_results(messages)).await.unwrap();
    // Only a result that was read back says until when it is kept.
    let as_handed_in = |stored: StoredResult| StoredResult::new(stored.is_error, stored.result);
    let known = |result: Option<Result<StoredResult, NotKept>>| result.map(|result| result.map(as_handed_in));
    decided.into_iter().map(|Decided { decision, result, .. }| (Kind::of(&decision), known(result))).collect()
}

fn ok(text: &str) -> Option<Result<StoredResult, NotKept>> {
    Some(Ok(StoredResult::new(false, answer(text))))
}

/// V1: a handler's result is committed with its record, and every repeat gets it byte for byte, in another process too.
pub async fn v1_a_result_is_kept_with_its_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let orders = consumer(&fixture);
    let first = results(&orders, ["a", "b", "a"].map(|key| msg(key, key))).await;
    assert_eq!(first, [(Kind::Processed, ok("a")), (Kind::Processed, ok("b")), (Kind::Duplicate, ok("a"))]);
    let elsewhere = fixture.elsewhere().await;
    let again = results(&consumer(&elsewhere), ["b", "c", "a"].map(|key| msg(key, key))).await;
    assert_eq!(again, [(Kind::Duplicate, ok("b")), (Kind::Processed, ok("c")), (Kind::Duplicate, ok("a"))]);
    fixture.assert_effects([("a", "a"), ("b", "b"), ("c", "c")]).await;
}

/// V1: a result goes with its unit, and another run's result is the one that is kept.
pub async fn v1_a_result_of_a_unit_that_was_rolled_back_is_gone<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let plan = |_: &Message, run: usize| match run {
        1 => vec![Step::SetResult(answer("first")), Step::Fail],
        _ => vec![Step::Write(""), Step::SetResult(answer("second"))],
    };
    let orders = fixture.builder("orders", plan).keep_results(RESULT_BYTES_MAX).build().unwrap();
    assert_eq!(results(&orders, [msg("a", "a")]).await, [(Kind::Failed(ErrorClass::Transient), None)]);
    assert_eq!(results(&orders, [msg("a", "a")]).await, [(Kind::Processed, ok("second"))]);
    assert_eq!(results(&orders, [msg("a", "a")]).await, [(Kind::Duplicate, ok("second"))]);
}

/// The answer of work in its n-th run.
pub(super) type Answering = dyn Fn(usize) -> Result<ResultBody, WorkError> + Send + Sync;

/// The runner of the work.
pub(super) fn once<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> RunOnce<Seen<T>> {
    let builder = RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    builder.allow_final_errors().busy_timeout(PATIENCE / 2).lanes(lanes(fixture)).build().unwrap()
}

fn lanes<T: StoreUnderTest>(fixture: &Fixture<'_, T>) -> usize {
    fixture.store.capabilities().lanes_max.unwrap_or(8).min(8)
}

/// Work that follows steps, and then answers.
pub(super) fn work<T: StoreUnderTest>(
    fixture: &Fixture<'_, T>,
    steps: Vec<Step>,
    answering: Arc<Answering>,
) -> impl for<'a, 't> Fn(&'a mut Tx<'t, Seen<T>>) -> Working<'a> + Send + Sync + 'static + use<T> {
    let probe = Arc::new(fixture.probe(move |_, _| steps.clone()));
    let runs = Arc::clone(&fixture.runs);
    move |tx| {
        let (probe, answering, runs) = (Arc::clone(&probe), Arc::clone(&answering), Arc::clone(&runs));
        Box::pin(async move {
            let message = tx.message().cloned().unwrap();
            probe.handle(&message, tx).await.map_err(WorkError::failed)?;
            answering(runs.all().len())
        })
    }
}

/// A value that no other run answers.
pub(super) fn of_run(_: usize) -> Result<ResultBody, WorkError> {
    Ok(answer(&fastrand::u64(..).to_string()))
}

pub(super) fn refusal(_: usize) -> Result<ResultBody, WorkError> {
    Err(WorkError::final_result(answer(&fastrand::u64(..).to_string()).with_status(422)))
}

/// V1, A5, A6: with a lost answer to the commit the value is the one that is kept, whether or not that commit succeeded.
pub async fn v1_a_lost_answer_to_a_commit_gives_the_value_that_is_kept<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    for (lost, runs, key) in [(LostCommit::Committed, 1, "a"), (LostCommit::RolledBack, 3, "b")] {
        fixture.spy.lose_commits(&[lost]);
        let call = || work(&fixture, vec![Step::Write("")], Arc::new(of_run));
        let first = within("a call", once(&fixture).run(Request::new(key, key), call())).await.unwrap();
        assert_eq!(fixture.runs.all().len(), runs);
        let again = within("a repeat", once(&fixture).run(Request::new(key, key), call())).await.unwrap();
        assert_eq!(first.result(), again.result());
        assert!(again.is_replayed() && again.recorded().is_some());
    }
    fixture.assert_effects([("a", "a"), ("b", "b")]).await;
}

/// V2: a call of another process that comes while the first one runs waits for it, and gets its result.
pub async fn v2_whoever_waits_for_the_owner_gets_the_owners_result<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    // With a single writer, a call waits for any other unit, and for no longer than its time-out.
    if !keep_results(&fixture) || !fixture.waits_per_key() {
        return;
    }
    let (payments, elsewhere, gate) = (once(&fixture), once(&fixture), Gate::new());
    within("starting", payments.start()).await.unwrap();
    let owner = payments.run(Request::new("a", "a"), work(&fixture, vec![Step::Pass(gate.clone())], Arc::new(of_run)));
    let waiter = async {
        gate.arrived(1).await;
        let claims = fixture.spy.claiming.get();
        let waiting = elsewhere.run(Request::new("a", "a"), work(&fixture, Vec::new(), Arc::new(of_run)));
        let let_go = async {
            fixture.spy.claiming.at_least(claims + 1, "the waiter claims the key").await;
            gate.open();
        };
        tokio::join!(waiting, let_go).0
    };
    let (owner, waiter) = within("both calls", async { tokio::join!(owner, waiter) }).await;
    let (owner, waiter) = (owner.unwrap(), waiter.unwrap());
    assert_eq!((owner.result(), owner.is_replayed()), (waiter.result(), false));
    assert!(waiter.is_replayed());
    assert_eq!(fixture.runs.all().len(), 1);
}

/// V3: a record without a result says so. It is no empty result, and nothing runs.
pub async fn v3_a_record_without_a_result_is_not_an_empty_one<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let orders = fixture.builder("payments", write).keep_results(RESULT_BYTES_MAX).build().unwrap();
    let absent = Some(Err(NotKept::Absent));
    assert_eq!(results(&orders, [msg("a", "a")]).await, [(Kind::Processed, absent.clone())]);
    assert_eq!(results(&orders, [msg("a", "a")]).await, [(Kind::Duplicate, absent)]);
    let asked = once(&fixture).run(Request::new("a", "a"), work(&fixture, Vec::new(), Arc::new(of_run))).await;
    let Err(RunOnceError::NotKept { recorded, why: NotKept::Absent }) = asked else { panic!("{asked:?}") };
    assert_eq!((recorded.key.as_str(), fixture.runs.all().len()), ("a", 1));
    // A result that is empty is one.
    let empty = || work(&fixture, Vec::new(), Arc::new(|_| Ok(ResultBody::default())));
    assert!(!once(&fixture).run(Request::new("b", "b"), empty()).await.unwrap().is_replayed());
    let again = once(&fixture).run(Request::new("b", "b"), empty()).await.unwrap();
    assert_eq!((again.result(), again.is_replayed()), (&ResultBody::default(), true));
}

/// V4: a result over the bound is an error before anything is committed, and is never cut.
pub async fn v4_a_result_over_the_bound_leaves_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let exact = ResultBody::new(vec![b'x'; RESULT_BYTES_MAX]);
    let larger = ResultBody::new(vec![b'x'; RESULT_BYTES_MAX + 1]);
    let plan = move |message: &Message, _: usize| {
        let fits = message.key().is_some_and(|key| key.as_str() == "fits");
        vec![Step::Write(""), Step::SetResult(if fits { exact.clone() } else { larger.clone() })]
    };
    let orders = fixture.builder("orders", plan).keep_results(RESULT_BYTES_MAX).build().unwrap();
    let decided = results(&orders, [msg("fits", "p"), msg("larger", "p")]).await;
    assert_eq!(
        decided.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
        [Kind::Processed, Kind::Failed(ErrorClass::Permanent)]
    );
    let again = results(&orders, [msg("fits", "p")]).await;
    let Some((Kind::Duplicate, Some(Ok(kept)))) = again.first() else { panic!("{again:?}") };
    assert_eq!(kept.result.body.len(), RESULT_BYTES_MAX);
    let refused = work(
        &fixture,
        vec![Step::Write("")],
        Arc::new(|_| Err(WorkError::final_result(ResultBody::new(vec![b'x'; RESULT_BYTES_MAX + 1])))),
    );
    let refused = once(&fixture).run(Request::new("refused", "p"), refused).await;
    assert!(
        matches!(&refused, Err(RunOnceError::Failed(failure)) if failure.class == ErrorClass::Permanent),
        "{refused:?}"
    );
    fixture.assert_effects([("fits", "p")]).await;
}

/// V4: every store takes and refuses the same results: what no column can hold is an error when it is set, with the field's name.
pub async fn v4_a_result_that_no_column_holds_is_refused_by_its_field<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let answers = |body: ResultBody, is_refusal: bool| {
        let answering = move |_| if is_refusal { Err(WorkError::final_result(body.clone())) } else { Ok(body.clone()) };
        work(&fixture, vec![Step::Write("")], Arc::new(answering))
    };
    for (body, field) in [
        (ResultBody::new("").with_status(32_768), "status"),
        (ResultBody::new("").with_content_type("text/\0plain"), "content type"),
        (ResultBody::new("").with_reference("/orders/\0"), "reference"),
    ] {
        for is_refusal in [false, true] {
            let refused =
                within("a call", payments.run(Request::new("a", "a"), answers(body.clone(), is_refusal))).await;
            let Err(RunOnceError::Failed(failure)) = refused else { panic!("{field}: {refused:?}") };
            assert_eq!(failure.class, ErrorClass::Permanent, "{failure:?}");
            assert!(failure.text.contains(&format!("the {field} of the result")), "{failure:?}");
        }
    }
    let mut headers = Headers::default();
    headers.push("a\0", Some("b\0".into()));
    let largest = ResultBody::new("").with_status(32_767).with_headers(headers);
    for replayed in [false, true] {
        let ran =
            within("a call", payments.run(Request::new("a", "a"), answers(largest.clone(), false))).await.unwrap();
        assert_eq!((ran.result(), ran.is_replayed()), (&largest, replayed));
    }
    fixture.assert_effects([("a", "a")]).await;
}

/// V5, S2: two tenants that use one key have a result each.
pub async fn v5_two_tenants_with_one_key_have_two_results<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let of_tenant = |tenant: &str| {
        let text = tenant.to_owned();
        let plan = move |_: &Message, _: usize| vec![Step::SetResult(answer(&text))];
        let builder = fixture.builder("orders", plan).tenant(Tenant::new(tenant).unwrap());
        builder.keep_results(RESULT_BYTES_MAX).build().unwrap()
    };
    for kind in [Kind::Processed, Kind::Duplicate] {
        for tenant in ["acme", "globex"] {
            assert_eq!(results(&of_tenant(tenant), [msg("a", "a")]).await, [(kind, ok(tenant))]);
        }
    }
}

/// V6, S3: a call that uses a key for another payload learns nothing of the stored result, and is in the audit trail.
pub async fn v6_another_payload_is_told_nothing<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    let secret = || work(&fixture, vec![Step::Write("")], Arc::new(|_| Ok(answer("secret"))));
    payments.run(Request::new("a", "a"), secret()).await.unwrap();
    let refused = payments.run(Request::new("a", "other"), secret()).await.unwrap_err();
    assert!(matches!(&refused, RunOnceError::Conflict { key, .. } if key.as_str() == "a"), "{refused:?}");
    assert!(!format!("{refused:?} {refused}").contains("secret"));
    let audited = within("reading the audit trail", subject.audited()).await;
    assert!(audited.contains(&("conflict".to_owned(), Some("a".to_owned()))), "{audited:?}");
    // In one call with the message itself, and with nothing else.
    let orders = consumer(&fixture);
    let decided = results(&orders, [msg("a", "a"), msg("a", "other")]).await;
    assert_eq!(decided, [(Kind::Processed, ok("a")), (Kind::Conflict, None)]);
    assert_eq!(results(&orders, [msg("a", "other")]).await, [(Kind::Conflict, None)]);
    assert_eq!(fixture.effects().await, [("a", "a"); 2].map(|(key, payload)| (key.to_owned(), payload.to_owned())));
}

/// V7, V11: two processes refuse one key at once. Each may run the work once, one outcome is kept, and both callers get it.
pub async fn v7_two_processes_that_refuse_one_key_agree<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let elsewhere = fixture.elsewhere().await;
    let (here, there) = (once(&fixture), once(&elsewhere));
    within("starting", here.start()).await.unwrap();
    within("starting", there.start()).await.unwrap();
    let keys = ["a", "b", "c", "d"];
    for key in keys {
        let refusing = |fixture: &Fixture<'_, T>| work(fixture, vec![Step::Write("")], Arc::new(refusal));
        let calls = async {
            tokio::join!(
                here.run(Request::new(key, key), refusing(&fixture)),
                there.run(Request::new(key, key), refusing(&elsewhere))
            )
        };
        let (one, other) = within("both calls", calls).await;
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.result(), one.is_refused(), other.is_refused()), (other.result(), true, true));
        assert_ne!(one.is_replayed(), other.is_replayed(), "one of them has kept it");
        assert!((1..=2).contains(&fixture.runs.of(key)), "{key} ran {} times", fixture.runs.of(key));
    }
    assert_eq!((fixture.effects().await.len(), fixture.recorded().await.len()), (0, keys.len()));
}

/// V9: cleanup removes a result with its record and not before, so that a message that runs again has a result of its own.
pub async fn v9_a_result_goes_with_its_record<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let short = || {
        let builder = fixture.builder("orders", |_, run| vec![Step::SetResult(answer(&run.to_string()))]);
        builder.keep_results(RESULT_BYTES_MAX).retention(Retention::For(HOUR)).build().unwrap()
    };
    assert_eq!(results(&short(), [msg("a", "a")]).await, [(Kind::Processed, ok("1"))]);
    if !fixture.arrange(Arrangement::Age(24 * HOUR)).await {
        return;
    }
    assert_eq!(results(&short(), [msg("a", "a")]).await, [(Kind::Duplicate, ok("1"))], "expired, and still there");
    assert_eq!(clean_records(&fixture, 100).await, 1);
    assert_eq!(results(&short(), [msg("a", "a")]).await, [(Kind::Processed, ok("2"))]);
    assert_eq!(results(&short(), [msg("a", "a")]).await, [(Kind::Duplicate, ok("2"))]);
}

/// V12: an answer whose own time is over goes, its status and its reference stay as long as the record, and nothing runs again
/// until that has gone too.
pub async fn v12_an_answer_may_go_before_its_record_and_never_runs_again<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let keeping = |result_retention| {
        let builder = RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
        let builder = builder.allow_final_errors().result_retention(Retention::For(result_retention));
        builder.retention(Retention::For(48 * HOUR)).build().unwrap()
    };
    let payments = || keeping(HOUR);
    let accepted: Arc<Answering> = Arc::new(|_| Ok(answer("private").with_reference("/orders/7")));
    let refused: Arc<Answering> = Arc::new(|_| Err(WorkError::final_result(answer("private").with_status(402))));
    let call = async |key: &str| {
        let answering = Arc::clone(if key == "a" { &accepted } else { &refused });
        within("a call", payments().run(Request::new(key, key), work(&fixture, vec![Step::Write("")], answering))).await
    };
    let ended = async || clean(&fixture, Expiring::Answers, Duration::ZERO, 100).await;
    for key in ["a", "b"] {
        assert!(!call(key).await.unwrap().is_replayed());
    }
    assert_eq!(ended().await, 0, "no answer is over yet");
    assert_eq!(*call("a").await.unwrap().result(), answer("private").with_reference("/orders/7"));
    let asked = within("asking", keeping(2 * HOUR).key_state(msg("a", "a"))).await;
    let Ok(KeyState::Done { recorded, result: Ok(kept) }) = asked else { panic!("{asked:?}") };
    let kept_for = kept.until.unwrap().duration_since(recorded.processed_at).unwrap();
    assert!((HOUR..HOUR + PATIENCE).contains(&kept_for), "its end is the one that was stored with it: {kept_for:?}");
    if !fixture.arrange(Arrangement::Age(24 * HOUR)).await {
        return;
    }
    let preview = within("counting", fixture.store.cleaner().preview(&CleanupSettings::default())).await.unwrap();
    assert!(preview.contains(&(Expiring::Answers, 2)), "{preview:?}");
    assert_eq!((clean(&fixture, Expiring::Answers, Duration::ZERO, 1).await, ended().await, ended().await), (1, 1, 0));
    assert_eq!(clean_records(&fixture, 100).await, 0);
    let facts = [("a", false, 201, Some("/orders/7".into())), ("b", true, 402, None)];
    for (key, is_error, status, reference) in facts {
        let expired = NotKept::Expired { is_error, status: Some(status), reference };
        let asked = call(key).await;
        assert!(matches!(&asked, Err(RunOnceError::NotKept { why, .. }) if *why == expired), "{asked:?}");
    }
    assert_eq!((fixture.runs.of("a"), fixture.runs.of("b")), (1, 1));
    fixture.arrange(Arrangement::Age(48 * HOUR)).await;
    assert_eq!((ended().await, clean_records(&fixture, 100).await), (0, 2));
    assert!(!call("a").await.unwrap().is_replayed(), "the record is gone, and the key is new");
    assert!(call("a").await.unwrap().is_replayed());
}

/// V10: a message that was handled by a worker without results is known to have none.
pub async fn v10_a_worker_that_keeps_no_results_leaves_none<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let older = fixture.builder("orders", write).build().unwrap();
    assert_eq!(super::fixture::process(&older, [msg("a", "a")]).await, [Kind::Processed]);
    assert_eq!(results(&consumer(&fixture), [msg("a", "a")]).await, [(Kind::Duplicate, Some(Err(NotKept::Absent)))]);
    let refused = older.process_with_results([msg("a", "a")]).await;
    assert!(refused.is_err_and(|error| error.class() == ErrorClass::Fatal));
}

/// V11: a refusal is rolled back and kept in one more transaction. Every repeat gets it.
pub async fn v11_a_refusal_is_kept_without_its_effects<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let refusing = || work(&fixture, vec![Step::Write("")], Arc::new(refusal));
    let first = within("a call", once(&fixture).run(Request::new("a", "a"), refusing())).await.unwrap();
    assert_eq!((first.is_refused(), first.is_replayed(), first.result().status), (true, false, Some(422)));
    let claimed: Vec<_> = fixture.spy.claimed().iter().map(Vec::len).collect();
    assert_eq!((claimed, fixture.spy.appended.get()), (vec![1, 1], 1), "the second claim is that of the outcome");
    let again = within("a repeat", once(&fixture).run(Request::new("a", "a"), refusing())).await.unwrap();
    assert_eq!((again.is_refused(), again.is_replayed(), again.result()), (true, true, first.result()));
    assert_eq!(fixture.runs.all(), ["a"]);
    assert_eq!((fixture.effects().await.len(), fixture.recorded().await), (0, vec!["a".to_owned()]));
    let other = once(&fixture).run(Request::new("a", "other"), refusing()).await;
    assert!(matches!(other, Err(RunOnceError::Conflict { .. })), "{other:?}");
    // Not where the consumer does not say that work may be refused.
    let builder = RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
    let undeclared = builder.build().unwrap().run(Request::new("b", "b"), refusing()).await;
    assert!(matches!(&undeclared, Err(RunOnceError::Failed(failure)) if failure.text.contains("allow_final_errors")));
    assert_eq!(fixture.recorded().await, ["a"]);
}

/// V18: after a failed statement a refusal is kept, and so is a result with a status from 400 to 499. A success is not kept, and
/// does not become a failure that may pass.
pub async fn v18_a_refusal_after_a_failed_statement_is_final<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) || !fixture.offers(HandlerAction::FailingStatement).await {
        return;
    }
    let declines = |status| -> Arc<Answering> { Arc::new(move |run| Ok(answer(&run.to_string()).with_status(status))) };
    let answering: [(&str, Arc<Answering>); 3] =
        [("refused", Arc::new(refusal)), ("409", declines(409)), ("404", declines(404))];
    let steps = || vec![Step::Write(""), Step::Swallow(HandlerAction::FailingStatement)];
    for (key, answering) in answering {
        let payments = once(&fixture);
        let call = || payments.run(Request::new(key, key), work(&fixture, steps(), Arc::clone(&answering)));
        let (first, again) = (call().await.unwrap(), call().await.unwrap());
        assert_eq!((first.result(), first.is_replayed(), again.is_replayed()), (again.result(), false, true), "{key}");
        assert_eq!(fixture.runs.of(key), 1, "{key}");
    }
    let success: Arc<Answering> = declines(201);
    let done = once(&fixture).run(Request::new("201", "201"), work(&fixture, steps(), success)).await;
    match done {
        // The database takes back the failed statement alone.
        Ok(ran) => assert!(!ran.is_refused()),
        Err(RunOnceError::Failed(failure)) => assert_eq!(failure.class, ErrorClass::Permanent, "{failure:?}"),
        other => panic!("{other:?}"),
    }
}

/// V19: an error that may pass, and that the work has noted, makes no result final.
pub async fn v19_an_error_that_may_pass_is_never_final<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) || !fixture.offers(HandlerAction::NestedLeft).await {
        return;
    }
    for (noted, is_final) in
        [(HandlerError::transient("a deadlock"), false), (HandlerError::permanent("not unique"), true)]
    {
        let key = if is_final { "permanent" } else { "transient" };
        let noted = Mutex::new(Some(noted));
        let spoil = work(
            &fixture,
            vec![Step::Swallow(HandlerAction::NestedLeft)],
            Arc::new(|_: usize| Ok(answer("no").with_status(409))),
        );
        let payments = once(&fixture);
        let ran = payments.run(Request::new(key, key), move |tx| {
            tx.note_error(noted.lock().unwrap().take().unwrap());
            spoil(tx)
        });
        match ran.await {
            Ok(ran) => assert!(is_final && ran.is_refused(), "{key}: {ran:?}"),
            Err(RunOnceError::Failed(failure)) => {
                assert_eq!((is_final, failure.class), (false, ErrorClass::Transient), "{key}")
            }
            other => panic!("{key}: {other:?}"),
        }
        assert_eq!(fixture.recorded().await.contains(&key.to_owned()), is_final, "{key}");
    }
}

/// V11: of many calls at once, each to be refused, one runs.
pub async fn v11_a_refused_operation_runs_once<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let payments = once(&fixture);
    within("starting", payments.start()).await.unwrap();
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (payments, work) = (payments.clone(), work(&fixture, vec![Step::Write("")], Arc::new(refusal)));
            tokio::spawn(async move { payments.run(Request::new("a", "a"), work).await })
        })
        .collect();
    let mut values = Vec::new();
    for call in calls {
        values.push(within("a call", call).await.unwrap().unwrap().into_result());
    }
    values.dedup();
    assert_eq!((values.len(), fixture.runs.all().len()), (1, 1), "one outcome, one run");
    assert_eq!((fixture.effects().await.len(), fixture.recorded().await), (0, vec!["a".to_owned()]));
}

/// V11, A12: where the work has ended its transaction itself, its refusal is kept without an effect.
pub async fn v11_a_refusal_whose_transaction_was_ended_has_no_effect<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    for (key, action) in
        [("a", HandlerAction::Rollback), ("b", HandlerAction::CommitAndBegin), ("c", HandlerAction::NestedLeft)]
    {
        if !fixture.offers(action).await {
            continue;
        }
        let steps = vec![Step::Write(""), Step::Swallow(action)];
        let refused = once(&fixture).run(Request::new(key, key), work(&fixture, steps, Arc::new(refusal))).await;
        assert!(refused.is_ok_and(|refused| refused.is_refused()), "{action:?}");
        assert_eq!(fixture.effects().await.len(), 0, "{action:?}");
    }
}

/// A duplicate whose result is not asked for reads none.
pub async fn results_cost_nothing_where_nobody_asks<T: StoreUnderTest>(subject: &T) {
    let fixture = Fixture::new(subject);
    if !keep_results(&fixture) {
        return;
    }
    let orders = consumer(&fixture);
    for _ in 0..2 {
        super::fixture::process(&orders, [msg("a", "a"), msg("b", "b")]).await;
    }
    assert_eq!(fixture.spy.results_read.get(), 0);
    results(&orders, [msg("a", "a"), msg("b", "b"), msg("c", "c")]).await;
    let read = if fixture.units_hold_one() { 2 } else { 1 };
    assert_eq!(fixture.spy.results_read.get(), read, "one statement for those of a unit");
    results(&orders, [msg("d", "d")]).await;
    assert_eq!(fixture.spy.results_read.get(), read, "what is new has none to be read");
}

/// A store that keeps no results is refused where results are asked for.
pub async fn results_that_are_not_offered_are_refused<T: StoreUnderTest>(subject: &T) {
    for fixture in [Fixture::new(subject), Fixture::bare(subject)] {
        let kept = fixture.builder("orders", write).keep_results(RESULT_BYTES_MAX).build();
        let builder = RunOnce::builder(Arc::clone(&fixture.store), "payments").effects(Effects::InTransaction);
        let once = builder.build();
        if keep_results(&fixture) {
            assert!(kept.is_ok() && once.is_ok());
        } else {
            assert_eq!(kept.unwrap_err().field, "keep_results");
            assert_eq!(once.unwrap_err().field, "keep_results");
        }
    }
}
