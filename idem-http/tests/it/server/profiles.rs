//! The words of each profile, byte for byte.

use std::{sync::Arc, time::Duration};

use idem_http::Profile;

use super::{
    grounds::{Ground, Memory},
    support::{Route, Runs, Seen, builder, held, mounted, request, route, send},
};

const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

async fn with(profile: Profile, wait: Duration) -> (Memory, Route<<Memory as Ground>::Store>, Arc<Runs>) {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).profile(profile).wait_for_owner(wait).problem_types("/problems/").build().unwrap();
    let route = route::<Memory>(&payments, &runs);
    (ground, route, runs)
}

fn text(seen: &Seen) -> &str {
    std::str::from_utf8(&seen.body).unwrap()
}

async fn while_running(route: &Route<<Memory as Ground>::Store>, runs: &Runs) -> Seen {
    let begun = runs.begun();
    let key = "8e03978e-40d5-43e8-bc93-6894a57f9325";
    let first = send(route, held(request(key, "one")));
    let second = async {
        runs.until_begun(begun + 1).await;
        let second = send(route, request(key, "one")).await;
        runs.release(1);
        second
    };
    tokio::join!(first, second).1
}

#[tokio::test]
async fn w23_guardia_answers_with_its_codes() {
    let (ground, route, runs) = with(Profile::guardia(), Duration::ZERO).await;
    let mut without = request(KEY, "one");
    without.headers_mut().remove("idempotency-key");
    let missing = send(&route, without).await;
    assert_eq!(missing.status, 400);
    assert_eq!(
        text(&missing),
        "{\"code\":\"ERR400_MISSING_OR_MALFORMED_HEADER\",\"detail\":\"This operation needs the header Idempotency-Key, with \
         a key that is new for each intent and the same for each try of it.\",\"reason\":\"IDEMPOTENCY_KEY_REQUIRED\",\
         \"status\":400,\"title\":\"Idempotency-Key is missing\",\"type\":\"/problems/key-missing\"}"
    );
    for malformed in ["no-uuid", "00000000-0000-0000-0000-000000000000"] {
        let malformed = send(&route, request(malformed, "one")).await;
        assert_eq!(malformed.status, 400);
        assert_eq!(malformed.json()["code"], "ERR400_MISSING_OR_MALFORMED_HEADER");
        assert_eq!(malformed.json()["reason"], "IDEMPOTENCY_KEY_REQUIRED");
    }
    let first = send(&route, request(KEY, "one")).await;
    let again = send(&route, request(KEY, "one")).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("idempotency-key"), Some(KEY), "as it was received");
    let at = again.header("last-modified").unwrap();
    assert!(at.ends_with(" GMT") && at.len() == 29, "{at}");
    assert_eq!((again.header("idempotency-processed-at"), first.header("last-modified")), (None, None));
    let other = send(&route, request(KEY, "two")).await;
    assert_eq!((other.status, other.header("retry-after")), (409, None));
    assert_eq!(
        text(&other),
        "{\"code\":\"ERR409_SERVER_STATE_CONFLICT\",\"detail\":\"The key was used before for a request with another body. Use a \
         new key for a new request.\",\"differs\":\"body\",\"reason\":\"CONFLICTING_IDEMPOTENT_REQUEST\",\"status\":409,\
         \"title\":\"Idempotency-Key was used for another request\",\"type\":\"/problems/key-reused\"}"
    );
    let running = while_running(&route, &runs).await;
    assert_eq!((running.status, running.header("retry-after")), (409, Some("1")));
    assert_eq!(
        text(&running),
        "{\"code\":\"ERR409_SERVER_STATE_CONFLICT\",\"detail\":\"The first request with this key has not ended yet. Send it again \
         with the same key.\",\"reason\":\"IDEMPOTENCY_IN_PROGRESS\",\"status\":409,\"title\":\"A request with this \
         Idempotency-Key is in progress\",\"type\":\"/problems/in-progress\"}"
    );
    assert_eq!(ground.paid().await, ["one", "one"]);
}

/// W130: a service that changes its profile, or has another one in another process, finds the records of all: a key is its bytes.
#[tokio::test]
async fn w130_a_key_is_the_same_in_every_profile() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let profiles = [Profile::guardia(), Profile::ietf(), Profile::stripe(), Profile::guardia()];
    for (key, body) in [(KEY.to_owned(), "lower"), (KEY.to_uppercase(), "upper")] {
        let mut first: Option<Seen> = None;
        for profile in &profiles {
            let payments = builder(&ground).profile(profile.clone()).build().unwrap();
            let seen = send(&route::<Memory>(&payments, &runs), request(&key, body)).await;
            assert_eq!(seen.body, first.get_or_insert_with(|| seen.clone()).body, "{key}: {profile:?}");
            let asks = payments.asks(["POST /t"]).unwrap();
            let asked = super::ask::ask(&asks, "acme", &format!("/idempotency/{key}"), "").await;
            assert_eq!(asked.status, 200, "{key}: {profile:?}: {asked:?}");
        }
    }
    assert_eq!(ground.paid().await, ["lower", "upper"]);
}

/// By itself the profile waits for the first request, so that all of three at once get its answer.
#[tokio::test]
async fn w23_guardia_waits_for_the_first_request() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).profile(Profile::guardia()).build().unwrap();
    let route = route::<Memory>(&payments, &runs);
    let one = || send(&route, held(request(KEY, "one")));
    let (a, b, c, ()) = tokio::join!(one(), one(), one(), runs.release_once_begun(1));
    assert_eq!([a.status, b.status, c.status], [201; 3]);
    assert_eq!((&a.body, &b.body), (&b.body, &c.body));
    assert_eq!(ground.paid().await, ["one"]);
}

#[tokio::test]
async fn w23_stripes_clients_find_their_errors() {
    let (ground, route, runs) = with(Profile::stripe(), Duration::ZERO).await;
    send(&route, request("k", "one")).await;
    let other = send(&route, request("k", "two")).await;
    assert_eq!((other.status, &other.json()["error"]["type"]), (400, &"idempotency_error".into()), "{other:?}");
    let again = send(&route, request("k", "one")).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    // Another endpoint has keys of its own, which Stripe has not.
    let stripe = builder(&ground).profile(Profile::stripe()).build().unwrap();
    let elsewhere = mounted(&stripe, "/u", |_, _| Box::pin(async { Ok(http::Response::new("elsewhere".into())) }));
    let mut other = request("k", "two");
    *other.uri_mut() = "/u".parse().unwrap();
    let elsewhere = Seen::of(tower::ServiceExt::oneshot(elsewhere, other).await.unwrap()).await;
    assert_eq!((elsewhere.status, elsewhere.is_replayed()), (200, Some(false)), "{elsewhere:?}");
    let running = while_running(&route, &runs).await;
    assert_eq!((running.status, &running.json()["error"]["code"]), (409, &"idempotency_key_in_use".into()));
}

/// W159: a repeat may be told by its status, if it is asked for, and a refusal never looks like a success.
#[tokio::test]
async fn w159_a_replayed_success_may_be_200_and_a_refusal_stays_one() {
    for profile in [Profile::guardia(), Profile::ietf(), Profile::stripe()] {
        for (profile, is_asked_for) in [(profile.clone(), false), (profile.replay_2xx_as_200(), true)] {
            let (_ground, route, runs) = with(profile.clone(), Duration::from_secs(60)).await;
            let bodies = [("one", 201), ("status 202", 202), ("status 204", 204), ("status 303", 303)];
            let refusals = [("final", 422), ("final 404", 404), ("declined", 402), ("status 409", 409)];
            for (number, (body, status)) in bodies.into_iter().chain(refusals).enumerate() {
                let what = format!("{profile:?}: {body}");
                let one = |key: u128| request(&format!("{:08}-40d5-43e8-bc93-6894a57f9324", key), body);
                let later = if is_asked_for && (200..300).contains(&status) { 200 } else { status };
                let number = number as u128;
                let first = send(&route, one(number)).await;
                let again = send(&route, one(number)).await;
                assert_eq!((first.status, again.status, again.is_replayed()), (status, later, Some(true)), "{what}");
                assert_eq!(first.body, again.body, "{what}");
            }
            // One that waited for the first is a repeat too.
            let begun = runs.begun();
            let one = || send(&route, held(request(KEY, "one")));
            let (a, b, ()) = tokio::join!(one(), one(), runs.release_once_begun(begun + 1));
            assert_eq!((a.status, b.status), (201, if is_asked_for { 200 } else { 201 }), "{profile:?}");
        }
    }
}
