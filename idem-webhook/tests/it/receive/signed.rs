//! Standard Webhooks and Stripe: a signed event is taken once, and no other is.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac_of::hex_hmac;
use idem_sqlx::PostgresStore;
use idem_webhook::{
    Secret,
    receive::{Inbound, StandardWebhooks, Stripe},
};

use axum::{Router, body::Body};
use http::Request;
use tower::ServiceExt as _;

use super::fixture::{Fixture, Said, now, post, serve};
use crate::captured::Captured;

pub(super) fn secret(byte: u8) -> String {
    format!("whsec_{}", STANDARD.encode([byte; 32]))
}

fn webhooks(fixture: &Fixture) -> Inbound<PostgresStore, StandardWebhooks> {
    let secrets = [1, 2].map(|byte| secret(byte).parse::<Secret>().unwrap());
    Inbound::new(fixture.consumer(StandardWebhooks::identify), StandardWebhooks::new(secrets))
}

/// The headers of a webhook, signed by the reference implementation.
pub(super) fn signed(by: u8, id: &str, at: u64, body: &str) -> Vec<(&'static str, String)> {
    let signature = standardwebhooks::Webhook::new(&secret(by))
        .unwrap()
        .sign(id, i64::try_from(at).unwrap(), body.as_bytes())
        .unwrap();
    vec![("webhook-id", id.to_owned()), ("webhook-timestamp", at.to_string()), ("webhook-signature", signature)]
}

/// W40: a webhook that the reference implementation has signed, with either secret, has its effect once.
#[tokio::test]
async fn w40_a_signed_webhook_has_its_effect_once() {
    let fixture = Fixture::new().await;
    let url = serve(webhooks(&fixture)).await;
    let body = r#"{"cents":1}"#;
    assert_eq!(post(&url, &signed(1, "msg_1", now(), body), body).await, Said(200, None, "handled".into()));
    // Another try, later and by the other secret.
    assert_eq!(post(&url, &signed(2, "msg_1", now() + 1, body), body).await, Said(200, None, "handled before".into()));
    assert_eq!(fixture.effects().await, ["msg_1"]);
    fixture.drop().await;
}

/// W40: a changed, old or unsigned event, or one that another party signed, is refused, and nothing is asked or kept.
#[tokio::test]
async fn w40_an_unsigned_or_old_webhook_is_refused() {
    let fixture = Fixture::new().await;
    let url = serve(webhooks(&fixture)).await;
    let (body, at) = (r#"{"cents":1}"#, now());
    let right = signed(1, "msg_1", at, body);
    let with = |index: usize, value: &str| {
        let mut headers = right.clone();
        headers[index].1 = value.to_owned();
        headers
    };
    let refused = [
        with(0, "msg_2"),
        with(1, &(at - 1).to_string()),
        with(1, &format!("+{at}")),
        with(2, "v1,AAAA"),
        with(2, ""),
        signed(3, "msg_1", at, body),
        signed(1, "msg_1", at - 301, body),
        signed(1, "msg_1", at + 310, body),
        right[..2].to_vec(),
        [right.clone(), vec![("webhook-id", "msg_2".to_owned())]].concat(),
        Vec::new(),
    ];
    for headers in refused {
        let said = post(&url, &headers, body).await;
        assert_eq!(said.0, 401, "{headers:?}: {said:?}");
    }
    assert_eq!(post(&url, &right, r#"{"cents":2}"#).await.0, 401);
    assert_eq!(fixture.texts("SELECT name FROM consumers").await.len() + fixture.runs() as usize, 0);
    assert_eq!(post(&url, &right, body).await.0, 200);
    fixture.drop().await;
}

/// W181: the signed bytes of a message whose body begins with a time are also those of a message with another id. However old the time in
/// such an id is, one signature gives one event.
#[tokio::test]
async fn w181_one_signature_gives_one_event() {
    let fixture = Fixture::new().await;
    let url = serve(webhooks(&fixture)).await;
    let at = now();
    for before in [at, at - 290, at - 301, at - 86_400, 1] {
        // Sent at `before` with the id msg_1, where it was taken if it was young enough.
        let first = signed(1, "msg_1", before, &format!("{at}.tail"));
        let mut second = first.clone();
        second[0].1 = format!("msg_1.{before}");
        second[1].1 = at.to_string();
        assert_eq!(post(&url, &second, "tail").await.0, 401, "{before}");
    }
    // Nor does an id with a dot that ends in no time get in: its signature is that of `a` of the time `b`, if that is ever taken for a time.
    assert_eq!(post(&url, &signed(1, "a.b", at, "{}"), "{}").await.0, 401);
    assert_eq!(fixture.runs(), 0);
    fixture.drop().await;
}

/// W40: while a secret is being replaced some instances know the old one alone and others the new one. What one refuses, another takes at the
/// next try; an event that is signed by both is taken by each; and it has its effect once.
#[tokio::test]
async fn w40_a_secret_in_rotation_loses_and_doubles_nothing() {
    let fixture = Fixture::new().await;
    let knowing = async |byte: u8| {
        let secrets = [secret(byte).parse::<Secret>().unwrap()];
        serve(Inbound::new(fixture.consumer(StandardWebhooks::identify), StandardWebhooks::new(secrets))).await
    };
    let (old, new) = (knowing(1).await, knowing(2).await);
    let (body, at) = (r#"{"cents":1}"#, now());
    let by_new = signed(2, "msg_1", at, body);
    assert_eq!(post(&old, &by_new, body).await.0, 401);
    assert_eq!(post(&new, &by_new, body).await, Said(200, None, "handled".into()));
    let mut by_both = signed(1, "msg_2", at, body);
    by_both[2].1 = format!("v1a,ignored {} {}", by_both[2].1, signed(2, "msg_2", at, body)[2].1);
    assert_eq!(post(&old, &by_both, body).await, Said(200, None, "handled".into()));
    assert_eq!(post(&new, &by_both, body).await, Said(200, None, "handled before".into()));
    // A signature of another event beside a right one makes that no other event's.
    let mut mixed = signed(2, "msg_3", at, body);
    mixed[0].1 = "msg_4".to_owned();
    mixed[2].1 = format!("{} {}", mixed[2].1, by_both[2].1);
    assert_eq!(post(&new, &mixed, body).await.0, 401);
    assert_eq!((fixture.effects().await, fixture.runs()), (vec!["msg_1".to_owned(), "msg_2".to_owned()], 2));
    assert!(fixture.dead_letters().await.is_empty(), "what was refused is with its sender alone");
    fixture.drop().await;
}

/// W40: Stripe signs with each secret of an endpoint while one is being replaced.
#[tokio::test]
async fn w40_stripes_secret_in_rotation_loses_and_doubles_nothing() {
    let fixture = Fixture::new().await;
    let knowing =
        async |secret: &str| serve(Inbound::new(fixture.consumer(Stripe::identify), Stripe::new([secret]))).await;
    let (old, new) = (knowing("whsec_old").await, knowing("whsec_new").await);
    let body = r#"{"id":"evt_1","object":"event","type":"charge.succeeded","pending_webhooks":1}"#;
    let at = now();
    let by = |secret: &str| hex_hmac(secret, &format!("{at}.{body}"));
    let header = |signatures: &[String]| {
        let signatures: String = signatures.iter().map(|one| format!(",v1={one}")).collect();
        vec![("stripe-signature", format!("t={at}{signatures}"))]
    };
    assert_eq!(post(&old, &header(&[by("whsec_new")]), body).await.0, 401);
    let both = header(&["zz".to_owned(), by("whsec_new"), by("whsec_old")]);
    assert_eq!(post(&old, &both, body).await, Said(200, None, "handled".into()));
    assert_eq!(post(&new, &both, body).await, Said(200, None, "handled before".into()));
    for at in [at - 301, at + 310] {
        assert_eq!(post(&new, &stripe_signed("whsec_new", at, body), body).await.0, 401);
    }
    assert_eq!((fixture.effects().await, fixture.runs()), (vec!["evt_1".to_owned()], 1));
    fixture.drop().await;
}

fn stripe(fixture: &Fixture) -> Inbound<PostgresStore, Stripe> {
    Inbound::new(fixture.consumer(Stripe::identify), Stripe::new(["whsec_old", "whsec_new"]))
}

fn stripe_signed(secret: &str, at: u64, body: &str) -> Vec<(&'static str, String)> {
    vec![("stripe-signature", format!("t={at},v1={},v0=00", hex_hmac(secret, &format!("{at}.{body}"))))]
}

/// W40: Stripe's events have their effect once, whatever else is still to be delivered of them; an unsigned one is refused.
#[tokio::test]
async fn w40_stripes_events_have_their_effect_once() {
    let fixture = Fixture::new().await;
    let url = serve(stripe(&fixture)).await;
    let event = |pending: u32, cents: u32| {
        format!(
            r#"{{"id":"evt_1","object":"event","type":"charge.succeeded","pending_webhooks":{pending},"data":{{"object":{{"amount":{cents}}}}}}}"#
        )
    };
    let (first, again, other) = (event(2, 1), event(1, 1), event(1, 9));
    assert_eq!(
        post(&url, &stripe_signed("whsec_new", now(), &first), first.clone()).await,
        Said(200, None, "handled".into())
    );
    let said = post(&url, &stripe_signed("whsec_old", now(), &again), again.clone()).await;
    assert_eq!(said, Said(200, None, "handled before".into()));
    assert_eq!(fixture.texts("SELECT key || ' ' || type FROM effects").await, ["evt_1 charge.succeeded"]);
    assert_eq!(post(&url, &stripe_signed("whsec_new", now(), &other), other.clone()).await.0, 200);
    assert_eq!(fixture.dead_letters().await.len(), 1, "another event under the same id");
    let right = hex_hmac("whsec_new", &format!("{}.{first}", now()));
    let refused = [
        stripe_signed("whsec_other", now(), &first),
        stripe_signed("whsec_new", now() - 301, &first),
        stripe_signed("whsec_new", now(), &again),
        vec![("stripe-signature", format!("t={},v0={right}", now()))],
        vec![("stripe-signature", format!("t={},t=1,v1={right}", now()))],
        vec![("stripe-signature", format!("v1={right}"))],
        vec![("stripe-signature", format!("t={},v1=zz", now()))],
        Vec::new(),
    ];
    for headers in refused {
        assert_eq!(post(&url, &headers, first.clone()).await.0, 401, "{headers:?}");
    }
    assert_eq!(fixture.runs(), 1);
    fixture.drop().await;
}

/// HMAC-SHA256 as the standard defines it, by hand, so that it is not our own that is compared with itself.
mod hmac_of {
    use sha2::{Digest as _, Sha256};

    pub(super) fn hex_hmac(key: &str, text: &str) -> String {
        let mut block = [0_u8; 64];
        block[..key.len()].copy_from_slice(key.as_bytes());
        let padded = |pad: u8| block.map(|byte| byte ^ pad);
        let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
        let outer = Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize();
        outer.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The span of a delivery is named by the path of axum's router, and not by the one that the sender has sent.
#[tokio::test]
async fn the_span_of_a_delivery_has_the_path_of_the_router() {
    let fixture = Fixture::new().await;
    let router = Router::new().route_service("/hooks/{sender}", webhooks(&fixture));
    let (log, _guard) = Captured::log(tracing::Level::DEBUG);
    let request = Request::post("/hooks/acme").header("webhook-id", "msg_1.2").body(Body::empty()).unwrap();
    assert_eq!(router.oneshot(request).await.unwrap().status(), 401);
    let log = log.lines().join("\n");
    assert!(log.contains(r#"otel.name="POST /hooks/{sender}""#) && !log.contains("acme"), "{log}");
    fixture.drop().await;
}
