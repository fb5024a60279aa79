//! How tries end: known, refused or in doubt, and never with a second charge.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use idem_core::{IdempotencyKey, Message, outbox::IdForm};
use idem_http_client::{
    Answer, Ended, IdempotentClient, Indeterminate, Intent, KeyPlace, KeyStateKind, Profile, Refusal, Reqwest, Retries,
    Undecided,
};

use super::provider::{Act, InProcess, Provider};

pub(super) const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn quick() -> Retries {
    let (first, max) = (Duration::from_millis(5), Duration::from_millis(50));
    Retries::default().first(first).max(max).try_within(Duration::from_millis(500)).deadline(Duration::from_secs(20))
}

/// A client in the provider's own process, so that their clock may be the test's.
pub(super) fn client(provider: &Provider, profile: Profile) -> IdempotentClient<InProcess> {
    IdempotentClient::new(provider.service(), profile).retries(quick())
}

pub(super) fn request() -> Request<Bytes> {
    request_to("https://provider.example")
}

fn request_to(url: &str) -> Request<Bytes> {
    let request = Request::post(format!("{url}/charges")).header("authorization", "Bearer t");
    request.header("content-type", "application/json").body(r#"{"cents":1177}"#.into()).unwrap()
}

pub(super) async fn sent(provider: &Provider, profile: Profile) -> Ended {
    client(provider, profile).send(&Intent::of("order-4711", "charge"), request()).await.unwrap()
}

fn known(ended: Ended) -> Answer {
    match ended {
        Ended::Known(answer) => answer,
        other => panic!("not known: {other:?}"),
    }
}

fn refused(ended: Ended) -> (u16, Refusal) {
    match ended {
        Ended::Refused(answer, why) => (answer.response.status().as_u16(), why),
        other => panic!("not refused: {other:?}"),
    }
}

pub(super) fn in_doubt(ended: Ended) -> Indeterminate {
    match ended {
        Ended::Indeterminate(doubt) => doubt,
        other => panic!("not in doubt: {other:?}"),
    }
}

/// W34: wherever an answer is lost, all tries have one key and the same bytes, one of them charges, and the caller gets the answer.
#[tokio::test(start_paused = true)]
async fn w34_lost_answers_are_asked_for_again_with_the_same_key() {
    let acts = [Act::Cut, Act::ChargeAndCut, Act::ChargeAndHang, Act::ChargeAndCutTheAnswer, Act::Answer(502, &[], "")];
    let provider = Provider::new(acts);
    let answer = known(sent(&provider, Profile::idem(HOUR, "")).await);
    assert_eq!((answer.response.status().as_u16(), &answer.response.body()[..]), (201, &br#"{"id":"ch_1"}"#[..]));
    assert_eq!((answer.tries, answer.replayed), (6, true));
    let key = format!("\"{}\"", Intent::of("order-4711", "charge").key(IdForm::V8));
    assert_eq!(provider.charges(), std::slice::from_ref(&key));
    let mut attempts = Vec::new();
    for seen in provider.seen() {
        assert_eq!((seen.key.as_deref(), &seen.body[..]), (Some(&*key), &br#"{"cents":1177}"#[..]));
        attempts.push(seen.headers.get("idempotency-attempt").map(|attempt| attempt.to_str().unwrap().to_owned()));
    }
    assert_eq!(
        attempts,
        [None, Some("2"), Some("3"), Some("4"), Some("5"), Some("6")].map(|one| one.map(str::to_owned))
    );
}

/// W34: the same over HTTP, by reqwest: an answer that a connection loses is lost to the client, and no more.
#[tokio::test]
async fn w34_a_connection_that_breaks_is_a_lost_answer() {
    let provider = Provider::new([Act::Cut, Act::ChargeAndCut, Act::ChargeAndCutTheAnswer, Act::Answer(502, &[], "")]);
    let url = provider.serve().await;
    let client = IdempotentClient::new(Reqwest::new(crate::http_settings()).unwrap(), Profile::idem(HOUR, ""));
    let patient = client.retries(quick().try_within(HOUR).deadline(HOUR));
    let answer = known(patient.send(&Intent::of("order-4711", "charge"), request_to(&url)).await.unwrap());
    assert_eq!((answer.response.status().as_u16(), &answer.response.body()[..]), (201, &br#"{"id":"ch_1"}"#[..]));
    assert_eq!((answer.tries, answer.replayed, provider.charges().len()), (5, true, 1));
}

/// W89: a redirect is no answer. Behind it the order would be a GET, whose 200 says nothing about the order.
#[tokio::test]
async fn w89_a_redirect_is_not_followed_and_is_no_answer() {
    for status in [301, 302, 307, 308] {
        let provider = Provider::new([Act::Answer(status, &[("location", "/elsewhere")], "")]);
        let url = provider.serve().await;
        let client = IdempotentClient::new(Reqwest::new(crate::http_settings()).unwrap(), Profile::idem(HOUR, ""));
        let sent = client.retries(quick()).send(&Intent::of("order-4711", "charge"), request_to(&url)).await.unwrap();
        assert_eq!(refused(sent), (status, Refusal::Request));
        assert_eq!((provider.seen().len(), provider.charges().len()), (1, 0));
    }
}

/// W34: a second call for the same intent, as another process makes it after a crash, gets the first one's answer.
#[tokio::test(start_paused = true)]
async fn w34_another_process_goes_on_under_the_same_key() {
    let provider = Provider::new([Act::ChargeAndCut]);
    let one_try = client(&provider, Profile::stripe()).retries(quick().tries_max(1));
    let intent = Intent::of("order-4711", "charge");
    let doubt = in_doubt(one_try.send(&intent, request()).await.unwrap());
    assert_eq!((doubt.why, doubt.tries, doubt.key.as_str()), (Undecided::Deadline, 1, &*intent.key(IdForm::V5)));
    let again = Intent::of("order-4711", "charge").first_tried_at(doubt.since);
    let answer = known(client(&provider, Profile::stripe()).send(&again, request()).await.unwrap());
    assert!(answer.replayed);
    assert_eq!(provider.charges().len(), 1);
}

/// W31: the client waits for a running request, as long as the server asks, and sends again a request that was too much.
#[tokio::test(start_paused = true)]
async fn w31_what_is_worked_on_is_waited_for() {
    let acts = [
        Act::ChargeAndCut,
        Act::Answer(409, &[("retry-after", "1")], r#"{"type":"https://idem.example/problems/in-progress"}"#),
        Act::Answer(429, &[], ""),
        Act::Answer(425, &[], ""),
    ];
    let provider = Provider::new(acts);
    let answer = known(sent(&provider, Profile::idem(HOUR, "")).await);
    assert_eq!((answer.tries, answer.replayed, provider.charges().len()), (5, true, 1));
    let seen = provider.seen();
    let pause = seen[2].at - seen[1].at;
    assert!((1_000..=1_101).contains(&pause.as_millis()), "Retry-After is heeded, spread by a tenth: {pause:?}");
}

/// W31: a key that was used for something else is the caller's fault, and is not tried again.
#[tokio::test(start_paused = true)]
async fn w31_a_reused_key_is_refused_at_once() {
    let problem = r#"{"code":"ERR409_SERVER_STATE_CONFLICT","reason":"CONFLICTING_IDEMPOTENT_REQUEST"}"#;
    let provider = Provider::new([Act::Answer(409, &[], problem)]);
    assert_eq!(refused(sent(&provider, Profile::idem(HOUR, "")).await), (409, Refusal::KeyReused));
    assert_eq!((provider.seen().len(), provider.charges().len()), (1, 0));
}

/// W32: a failure that the provider keeps is not asked for again: the same key would give it for ever, and another would charge again.
#[tokio::test(start_paused = true)]
async fn w32_a_kept_failure_is_a_doubt_at_once() {
    let provider = Provider::new([Act::Answer(500, &[], "{}")]);
    let doubt = in_doubt(sent(&provider, Profile::stripe()).await);
    assert_eq!((doubt.why, doubt.tries, provider.seen().len()), (Undecided::KeptFailure, 1, 1));
    assert_eq!(doubt.last.unwrap().response.status(), 500);
    let provider = Provider::new([Act::Answer(500, &[("stripe-should-retry", "true")], "{}")]);
    assert_eq!(known(sent(&provider, Profile::stripe()).await).tries, 2);
}

/// W36: a refusal that speaks of the request is one only where no earlier try was left without an answer; else it says nothing.
#[tokio::test(start_paused = true)]
async fn w36_a_refusal_after_a_lost_answer_is_no_refusal() {
    for status in [401, 403, 404] {
        let provider = Provider::new([Act::Answer(status, &[], "")]);
        assert_eq!(refused(sent(&provider, Profile::stripe()).await), (status, Refusal::Request));
        let provider = Provider::new([Act::ChargeAndCut, Act::Answer(status, &[], "")]);
        let doubt = in_doubt(sent(&provider, Profile::stripe()).await);
        assert_eq!((doubt.why, doubt.tries, provider.charges().len()), (Undecided::NotAccepted, 2, 1));
        // The same where it was another call that was left without an answer.
        let provider = Provider::new([Act::Answer(status, &[], "")]);
        let intent = Intent::of("order-4711", "charge").first_tried_at(doubt.since);
        let doubt = in_doubt(client(&provider, Profile::stripe()).send(&intent, request()).await.unwrap());
        assert_eq!((doubt.why, doubt.tries), (Undecided::NotAccepted, 1));
    }
    // "It exists already": through whom, if not through the try before?
    let provider = Provider::new([Act::ChargeAndCut, Act::Answer(409, &[], "")]);
    assert_eq!(in_doubt(sent(&provider, plain()).await).why, Undecided::NotAccepted);
    let declined = || Act::Answer(402, &[], "declined");
    let provider = Provider::new([declined()]);
    assert_eq!(refused(sent(&provider, Profile::stripe()).await), (402, Refusal::Operation));
    // The lost try may still be on its way: one more shows whether the refusal is kept for the key.
    let kept = Act::Answer(402, &[("idempotent-replayed", "true")], "declined");
    let provider = Provider::new([Act::Cut, declined(), kept]);
    assert_eq!(refused(sent(&provider, Profile::stripe()).await), (402, Refusal::Operation));
    let provider = Provider::new([Act::Cut, declined(), declined()]);
    let doubt = in_doubt(sent(&provider, Profile::stripe()).await);
    assert_eq!((doubt.why, doubt.tries), (Undecided::NotAccepted, 3));
    let provider = Provider::new([Act::Cut, declined()]);
    assert_eq!(refused(sent(&provider, plain()).await), (402, Refusal::Operation));
}

/// W37: a server that takes nothing is given up at the deadline, and as nothing was taken, nothing is in doubt; of one that fails it is.
#[tokio::test(start_paused = true)]
async fn w37_the_deadline_ends_the_tries() {
    let seconds = Duration::from_secs;
    let within = |deadline| quick().first(seconds(5)).max(seconds(50)).deadline(seconds(deadline)).tries_max(1_000);
    let intent = Intent::of("order-4711", "charge");
    let provider = Provider::new((0..1_000).map(|_| Act::Answer(429, &[], "")));
    let began = tokio::time::Instant::now();
    let busy = client(&provider, Profile::stripe()).retries(within(400));
    assert_eq!(refused(busy.send(&intent, request()).await.unwrap()), (429, Refusal::Busy));
    // By the test's clock: no pause is longer than 50 s, and none that would end behind the deadline is begun.
    assert!((350..=400).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(provider.seen().len() > 8, "{} tries", provider.seen().len());
    let provider = Provider::new((0..1_000).map(|_| Act::Answer(503, &[("retry-after", "3600")], "")));
    let failing = client(&provider, Profile::stripe()).retries(within(50));
    let doubt = in_doubt(failing.send(&intent, request()).await.unwrap());
    assert_eq!((doubt.why, doubt.tries), (Undecided::Deadline, 1), "what the server asks for lies behind the deadline");
    let text = doubt.to_string();
    assert!(text.contains("no answer came in time after 1 tries") && text.contains("first_tried_at"), "{text}");
}

/// W38: before it gives up, the client asks for the state of the key, with the caller's credentials, and fetches a kept answer.
#[tokio::test(start_paused = true)]
async fn w38_the_server_is_asked_before_one_gives_up() {
    let one_try = |provider: &Provider, profile| client(provider, profile).retries(quick().tries_max(1));
    let intent = Intent::of("order-4711", "charge");
    let provider = Provider::new([Act::ChargeAndCut]);
    provider.tells(r#"{"state":"completed","status":201}"#);
    let ended = one_try(&provider, Profile::idem(HOUR, "/v1")).send(&intent, request()).await.unwrap();
    assert!(known(ended).replayed);
    assert_eq!(provider.charges().len(), 1);
    let seen = provider.seen();
    assert_eq!(seen[1].method, Method::GET);
    assert_eq!(seen[1].path, format!("/v1/idempotency/{}", intent.key(IdForm::V8)));
    assert_eq!(seen[1].query.as_deref(), Some("route=POST%20%2Fcharges"));
    assert_eq!(
        (&seen[1].headers["prefer"], &seen[1].headers["authorization"]),
        (&"wait=10".parse().unwrap(), &"Bearer t".parse().unwrap())
    );
    for (told, kind, why) in [
        (r#"{"state":"in_progress"}"#, KeyStateKind::InProgress, Undecided::Deadline),
        (r#"{"state":"uncertain"}"#, KeyStateKind::Uncertain, Undecided::Deadline),
        (r#"{"state":"unknown"}"#, KeyStateKind::Unknown, Undecided::Deadline),
        (
            r#"{"route":"POST /charges","state":"answer_not_kept","status":201,"location":"/t/1"}"#,
            KeyStateKind::AnswerNotKept,
            Undecided::AnswerGone,
        ),
    ] {
        let provider = Provider::new([Act::ChargeAndCut]);
        provider.tells(told);
        let doubt = in_doubt(one_try(&provider, Profile::idem(HOUR, "")).send(&intent, request()).await.unwrap());
        assert_eq!((doubt.state.unwrap().kind, doubt.why, provider.charges().len()), (kind, why, 1));
    }
}

/// W30: the key of a message's handler, of a row, and in the body, arrive as they are on every try.
#[tokio::test(start_paused = true)]
async fn w30_each_kind_of_intent_keeps_its_key() {
    let message = Message::new("{}");
    let row = IdempotencyKey::new("0192-row").unwrap();
    let in_body = Profile::new("own", KeyPlace::Member("idempotency_key".into()), HOUR);
    for (intent, profile, key) in [
        (
            Intent::from_derived(message.derived_key("charge")),
            Profile::stripe(),
            message.derived_key_as("charge", IdForm::V5),
        ),
        (Intent::from_key(row.clone()), Profile::adyen(), row.as_str().to_owned()),
        (Intent::from_key(row.clone()), in_body, row.as_str().to_owned()),
        (Intent::from_key(row), Profile::ietf(HOUR), "\"0192-row\"".to_owned()),
    ] {
        let provider = Provider::new([Act::ChargeAndCut, Act::Cut]);
        assert_eq!(known(client(&provider, profile).send(&intent, request()).await.unwrap()).tries, 3);
        assert!(provider.seen().iter().all(|seen| seen.key.as_ref() == Some(&key)), "{key}");
        assert_eq!(provider.charges(), [key]);
    }
    // Two ephemeral intents are two charges, as their documentation says.
    let provider = Provider::new([]);
    for _ in 0..2 {
        known(client(&provider, Profile::stripe()).send(&Intent::ephemeral(), request()).await.unwrap());
    }
    assert_eq!(provider.charges().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_is_a_doubt_with_its_status() {
    let provider = Provider::new([]);
    let small = client(&provider, Profile::stripe()).retries(quick().answer_bytes_max(5));
    let doubt = in_doubt(small.send(&Intent::of("order-4711", "charge"), request()).await.unwrap());
    assert_eq!((doubt.why, doubt.last.unwrap().response.status().as_u16()), (Undecided::AnswerTooLarge, 201));
}

/// A provider that says nothing but its status.
fn plain() -> Profile {
    Profile::new("plain", KeyPlace::Header(http::HeaderName::from_static("idempotency-key")), HOUR)
}
