//! The gates before the claim: all faults at once, and one is taken away after the other.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use idem_core::ConfigError;
use idem_http::{Fingerprint, HashSecret, Idempotency, Profile};
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory},
    support::{Runs, SECRET, Seen, builder, request, route, send},
};

/// A body that notes whether anybody has read it, and may never end.
struct Watched {
    read: Arc<AtomicBool>,
    content: Option<Bytes>,
    ends: bool,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        self.read.store(true, Ordering::SeqCst);
        match self.content.take() {
            Some(content) => Poll::Ready(Some(Ok(Frame::data(content)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn w19_the_cheapest_gate_comes_first() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground)
        .headers_bytes_max(2_000)
        .body_bytes_max(1_000)
        .body_deadline(Duration::from_millis(50))
        .tenant_requests_max(1)
        .build()
        .unwrap();
    let route = route::<Memory>(&idempotency, &runs);
    // An operation that is known, so that also the last gate has something to refuse.
    assert_eq!(send::<Memory>(&route, request("k", "one")).await.status, 201);
    let held = tokio::spawn({
        let route = route.clone();
        async move { send::<Memory>(&route, super::support::pausing(request("held", "held"), 300)).await }
    });
    while runs.begun.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Each row mends one fault more than the one before.
    let large = Bytes::from(vec![b'x'; 2_000]);
    let steps: [(u16, bool); 9] = [
        (401, false),
        (431, false),
        (400, false),
        (429, false),
        (413, true),
        (408, true),
        (400, true),
        (415, true),
        (422, true),
    ];
    let mut held = Some(held);
    for (mended, (status, is_read)) in steps.into_iter().enumerate() {
        if mended == 4 {
            held.take().unwrap().await.unwrap();
        }
        let read = Arc::new(AtomicBool::new(false));
        let body = Watched {
            read: Arc::clone(&read),
            content: Some(if mended < 5 { large.clone() } else { Bytes::from_static(b"two") }),
            ends: mended >= 6,
        };
        let mut sent = Request::post("/t").header("idempotency-key", if mended < 3 { "a,b" } else { "k" });
        if mended >= 1 {
            sent = sent.header("authorization", "Bearer acme");
        }
        if mended < 2 {
            sent = sent.header("x-padding", "x".repeat(3_000));
        }
        if mended < 7 {
            sent = sent.header("content-digest", "sha-256=:AAAA:");
        }
        let media_type = if mended < 8 { "multipart/form-data; boundary=a" } else { "text/plain" };
        let sent = sent.header("content-type", media_type).body(body).unwrap();
        let seen = Seen::of(route.clone().oneshot(sent).await.unwrap()).await;
        assert_eq!(seen.status, status, "with {mended} mended: {seen:?}");
        assert_eq!(read.load(Ordering::SeqCst), is_read, "with {mended} mended: whether the body was read");
        let slug = seen.json()["type"].as_str().unwrap().to_owned();
        match mended {
            2 => assert!(slug.ends_with("#key-malformed")),
            6 => assert!(slug.ends_with("#digest-mismatch")),
            _ => {}
        }
    }
    assert_eq!(ground.paid().await, ["held", "one"]);
}

/// Whoever is not known learns nothing, also of a key that is.
#[tokio::test]
async fn w14_a_stranger_gets_no_answer_of_before() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let route = route::<Memory>(&builder(&ground).build().unwrap(), &runs);
    send::<Memory>(&route, request("k", "one")).await;
    let mut stranger = request("k", "one");
    stranger.headers_mut().remove("authorization");
    let refused = send::<Memory>(&route, stranger).await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.is_replayed(), None);
    assert_eq!(
        send::<Memory>(&route, super::support::request_of("globex", "k", "one")).await.is_replayed(),
        Some(false)
    );
}

#[tokio::test]
async fn w20_a_digest_is_verified_and_given() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let route = route::<Memory>(&builder(&ground).build().unwrap(), &runs);
    let with = |key: &str, digest: &str| {
        let mut request = request(key, r#"{"hello": "world"}"#);
        request.headers_mut().insert("content-digest", digest.parse().unwrap());
        request
    };
    let right = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:";
    let first = send::<Memory>(&route, with("k", right)).await;
    assert_eq!(first.status, 201);
    let wrong = send::<Memory>(&route, with("l", "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:")).await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
    for seen in [&first, &wrong] {
        use base64::Engine as _;
        use sha2::Digest as _;
        let digest = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(&seen.body));
        assert_eq!(seen.header("content-digest"), Some(&*format!("sha-256=:{digest}:")), "problems have one too");
    }
    assert_eq!(ground.paid().await.len(), 1);
}

#[tokio::test]
async fn w27_what_counts_of_a_body_is_the_routes_to_say() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let by = |fingerprint| route::<Memory>(&payments, &runs).fingerprint(fingerprint);
    let status = async |route, key: &str, body: &str| send::<Memory>(route, request(key, body)).await.status;
    let jcs = by(Fingerprint::jcs());
    assert_eq!(status(&jcs, "j", r#"{"a":1,"b":[2.0]}"#).await, 201);
    assert_eq!(status(&jcs, "j", r#"{ "b": [2], "a": 1 }"#).await, 201);
    assert_eq!(status(&jcs, "j", r#"{"a":1,"b":[3]}"#).await, 422);
    assert_eq!(status(&jcs, "m", "no JSON").await, 400);
    let fields = by(Fingerprint::fields(["/cents"]).unwrap());
    assert_eq!(status(&fields, "f", r#"{"cents":1,"at":1}"#).await, 201);
    assert_eq!(status(&fields, "f", r#"{"cents":1,"at":2}"#).await, 201);
    assert_eq!(status(&fields, "f", r#"{"cents":2,"at":1}"#).await, 422);
    let own = by(Fingerprint::own("version", |parts, _| {
        Ok(parts.headers.get("x-version").map(|value| value.as_bytes().to_vec()).unwrap_or_default())
    }));
    assert_eq!(status(&own, "o", "one").await, 201);
    assert_eq!(status(&own, "o", "two").await, 201, "the body does not count here");
}

/// A new secret stands in front of the former one, whose records can still be compared.
#[tokio::test]
async fn w28_a_secret_can_be_replaced() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let secret = |number, secret: &[u8]| HashSecret::new(number, secret).unwrap();
    let with = |secrets: Vec<HashSecret>| {
        let builder = Idempotency::builder_shared(ground.store(), "payments").single_tenant();
        let payments =
            secrets.into_iter().fold(builder, |builder, secret| builder.hash_secret(secret)).build().unwrap();
        route::<Memory>(&payments, &runs)
    };
    let old = secret(1, SECRET);
    let first = send::<Memory>(&with(vec![old.clone()]), request("k", "one")).await;
    let both = with(vec![secret(2, &[7; 32]), old]);
    assert_eq!(send::<Memory>(&both, request("k", "one")).await.body, first.body);
    assert_eq!(send::<Memory>(&both, request("k", "two")).await.status, 422);
    assert_eq!(send::<Memory>(&both, request("l", "one")).await.status, 201);
    // Without it nobody can tell, and nothing runs again.
    let without = with(vec![secret(2, &[7; 32])]);
    assert_eq!(send::<Memory>(&without, request("k", "one")).await.status, 422);
    assert_eq!(send::<Memory>(&without, request("l", "one")).await.is_replayed(), Some(true));
    assert!(HashSecret::new(1, b"short").is_err());
}

#[tokio::test]
async fn w29_what_is_not_said_is_not_guessed() {
    let ground = Memory::new().await;
    let new = || Idempotency::builder_shared(ground.store(), "payments");
    let field = |built: Result<Idempotency<_>, ConfigError>| built.unwrap_err().to_string();
    assert!(field(new().plain_hashes().build()).contains("tenant"));
    assert!(field(new().single_tenant().build()).contains("hash_secret"));
    let ready = || new().single_tenant().plain_hashes();
    assert!(field(ready().keeps_header(http::header::SET_COOKIE).build()).contains("keeps_header"));
    let day = idem_core::Retention::For(Duration::from_secs(25 * 3_600));
    assert!(field(ready().profile(Profile::guardia()).keys_for(day).build()).contains("keys_for"));
    assert!(field(ready().wait_for_owner(Duration::from_secs(61)).build()).contains("wait_for_owner"));
    assert!(field(ready().lanes(0).build()).contains("lanes"));
    assert!(ready().build().is_ok());
}
