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
use http_body_util::Full;
use idem_core::ConfigError;
use idem_http::{Authenticated, Fingerprint, HashSecret, Idempotency, IdempotencyBuilder, Profile};
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory},
    support::{Runs, SECRET, Seen, builder, builder_without_secret, held, request, request_of, route, send},
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

/// W19: each row mends one fault more than the one before.
#[tokio::test]
async fn w19_the_cheapest_gate_comes_first() {
    let (ground, runs, others) = (Memory::new().await, Arc::new(Runs::default()), Arc::new(Runs::default()));
    let idempotency = builder(&ground)
        .headers_bytes_max(2_000)
        .body_bytes_max(1_000)
        .body_deadline(Duration::from_millis(50))
        .tenant_requests_max(1)
        .requests_bytes_max(4_000)
        .build()
        .unwrap();
    let (route, of_others) = (route::<Memory>(&idempotency, &runs), route::<Memory>(&idempotency, &others));
    // An operation that is known, so that also the last gate has something to refuse.
    assert_eq!(send(&route, request("k", "one")).await.status, 201);
    let mut running = Some(tokio::spawn(send(&route, held(request("held", "held")))));
    runs.until_begun(2).await;
    // Another tenant's, which takes the room.
    let mut large_one = held(request_of("globex", "held", &"y".repeat(900)));
    large_one.headers_mut().insert("x-padding", "x".repeat(1_700).parse().unwrap());
    let mut roomy = Some(tokio::spawn(send(&of_others, large_one)));
    others.until_begun(1).await;
    let steps: [(u16, &str, bool); 12] = [
        (401, "#unauthenticated", false),
        (431, "#headers-too-large", false),
        (431, "#headers-too-large", false),
        (400, "#key-malformed", false),
        (429, "#too-many-requests", false),
        (503, "#overloaded", false),
        (415, "#encoding-unsupported", false),
        (413, "#body-too-large", true),
        (408, "#body-late", true),
        (400, "#digest-mismatch", true),
        (415, "#multipart-unsupported", true),
        (422, "#key-reused", true),
    ];
    for ((status, slug, is_read), mended) in steps.into_iter().zip(1..) {
        if mended == 6 {
            runs.release(1);
            assert_eq!(running.take().unwrap().await.unwrap().status, 201);
        }
        if mended == 7 {
            others.release(1);
            assert_eq!(roomy.take().unwrap().await.unwrap().status, 201);
        }
        let read = Arc::new(AtomicBool::new(false));
        let seen = Seen::of(route.clone().oneshot(with_mended(mended, &read)).await.unwrap()).await;
        assert_eq!(seen.status, status, "with {mended} mended: {seen:?}");
        assert!(seen.json()["type"].as_str().unwrap().ends_with(slug), "with {mended} mended: {seen:?}");
        assert_eq!(read.load(Ordering::SeqCst), is_read, "with {mended} mended: whether the body was read");
    }
    assert_eq!(ground.paid().await, ["held", "one", &"y".repeat(900)]);
}

/// A request with all faults but the first `mended`.
fn with_mended(mended: usize, read: &Arc<AtomicBool>) -> Request<Watched> {
    let mut sent = Request::post("/t");
    if mended >= 2 {
        sent = sent.header("authorization", "Bearer acme");
    }
    match mended {
        1..3 => sent = sent.header("x-padding", "x".repeat(3_000)),
        3 => sent = (0..100).fold(sent, |sent, _| sent.header("x", "")),
        // As much as may come, and more than there is room for.
        4..7 => sent = sent.header("x-padding", "x".repeat(1_500)),
        _ => {}
    }
    sent = sent.header("idempotency-key", if mended < 5 { "a,b" } else { "k" });
    if mended < 8 {
        sent = sent.header("content-encoding", "gzip");
    }
    if mended < 11 {
        sent = sent.header("content-digest", "sha-256=:AAAA:");
    }
    let media_type = if mended < 12 { "multipart/form-data; boundary=a" } else { "text/plain" };
    let content = if mended < 9 { Bytes::from(vec![b'x'; 2_000]) } else { Bytes::from_static(b"two") };
    let body = Watched { read: Arc::clone(read), content: Some(content), ends: mended >= 10 };
    sent.header("content-type", media_type).body(body).unwrap()
}

/// W19: a question passes the same gates, as far as it has anything for them.
#[tokio::test]
async fn w19_a_question_meets_the_cheapest_gate_first() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let idempotency = builder(&ground).headers_bytes_max(2_000).tenant_requests_max(1).build().unwrap();
    let (route, asks) = (route::<Memory>(&idempotency, &runs), idempotency.asks(["POST /t"]).unwrap());
    let mut running = Some(tokio::spawn(send(&route, held(request("k", "one")))));
    runs.until_begun(1).await;
    for (mended, status) in [405, 401, 431, 431, 400, 429, 200].into_iter().enumerate() {
        if mended == 6 {
            runs.release(1);
            assert_eq!(running.take().unwrap().await.unwrap().status, 201);
        }
        let path = if mended < 5 { "/idempotency/a%2" } else { "/idempotency/k" };
        let mut sent = Request::builder().method(if mended < 1 { "POST" } else { "GET" }).uri(path);
        if mended >= 2 {
            sent = sent.header("authorization", "Bearer acme");
        }
        match mended {
            0..3 => sent = sent.header("x-padding", "x".repeat(3_000)),
            3 => sent = (0..100).fold(sent, |sent, _| sent.header("x", "")),
            _ => {}
        }
        let sent = sent.body(Full::<Bytes>::default()).unwrap();
        let seen = Seen::of(asks.clone().oneshot(sent).await.unwrap()).await;
        assert_eq!(seen.status, status, "with {mended} mended: {seen:?}");
    }
}

/// An unknown caller learns nothing, also of a known key.
#[tokio::test]
async fn w14_a_stranger_gets_no_answer_of_before() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let route = route::<Memory>(&builder(&ground).build().unwrap(), &runs);
    send(&route, request("k", "one")).await;
    let mut stranger = request("k", "one");
    stranger.headers_mut().remove("authorization");
    let refused = send(&route, stranger).await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.is_replayed(), None);
    assert_eq!(send(&route, request_of("globex", "k", "one")).await.is_replayed(), Some(false));
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
    let first = send(&route, with("k", right)).await;
    assert_eq!(first.status, 201);
    let wrong = send(&route, with("l", "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:")).await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
    for seen in [&first, &wrong] {
        assert_eq!(seen.header("content-digest"), Some(&*digest_of(&seen.body)), "problems have one too");
    }
    assert_eq!(ground.paid().await.len(), 1);
}

pub(crate) fn digest_of(content: &[u8]) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    format!("sha-256=:{}:", base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(content)))
}

/// W20: the digest is of the content that is sent, and an answer to HEAD or a 204 has none (RFC 9530, B.2).
#[tokio::test]
async fn w20_no_content_has_the_digest_of_nothing() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let route = route::<Memory>(&payments, &runs);
    let none = send(&route, request("k", "status 204")).await;
    assert_eq!((none.status, none.header("content-digest")), (204, Some(&*digest_of(b""))));
    let ask = |method: &str| {
        let asked = Request::builder().method(method).uri("/idempotency/k").header("authorization", "Bearer acme");
        tower::ServiceExt::oneshot(payments.asks(["POST /t"]).unwrap(), asked.body(Full::new(Bytes::new())).unwrap())
    };
    let get = Seen::of(ask("GET").await.unwrap()).await;
    let digest = digest_of(&get.body);
    assert_eq!((get.header("content-digest"), get.header("repr-digest")), (Some(&*digest), None));
    let head = Seen::of(ask("HEAD").await.unwrap()).await;
    assert_eq!((head.header("content-digest"), head.header("repr-digest")), (Some(&*digest_of(b"")), Some(&*digest)));
}

/// W20: a coded body cannot be compared, and is refused in whatever way its coding is stated; where a layer has decoded it, the digest
/// is that layer's to verify.
#[tokio::test]
async fn w20_a_coded_body_is_refused() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let of_any = route::<Memory>(&payments, &runs);
    let with = |key: &str, name: &'static str, values: &[&str]| {
        let mut request = request(key, "one");
        for value in values {
            request.headers_mut().append(name, value.parse().unwrap());
        }
        request
    };
    for codings in [&["gzip"][..], &["GZIP"], &["identity, br"], &["identity", "zstd"], &["x-unknown"]] {
        let refused = send(&of_any, with("k", "content-encoding", codings)).await;
        assert_eq!((refused.status, refused.header("accept-encoding")), (415, Some("identity")), "{codings:?}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("#encoding-unsupported"));
    }
    assert_eq!((ground.paid().await.len(), runs.begun()), (0, 0));
    assert_eq!(send(&of_any, with("k", "content-encoding", &["Identity"])).await.status, 201);
    for field in ["content-digest", "repr-digest"] {
        // That of the coded bytes, which no code here has seen.
        let coded = with(field, field, &["sha-256=:AAAA:"]);
        assert_eq!(send(&of_any, coded.clone()).await.status, 400, "{field}");
        let decoded = route::<Memory>(&payments, &runs).bodies_are_decoded_before();
        assert_eq!(send(&decoded, coded).await.status, 201, "{field}");
    }
}

#[tokio::test]
async fn w27_what_counts_of_a_body_is_the_routes_to_say() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let by = |fingerprint| route::<Memory>(&payments, &runs).fingerprint(fingerprint);
    let status = async |route, key: &str, body: &str| send(route, request(key, body)).await.status;
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
    let of_version = async |version: &'static str| {
        let mut request = request("v", "one");
        request.headers_mut().insert("x-version", version.parse().unwrap());
        send(&own, request).await.status
    };
    assert_eq!([of_version("1").await, of_version("1").await, of_version("2").await], [201, 201, 422]);
    let without = by(Fingerprint::without_fields(["/at"]).unwrap());
    assert_eq!(status(&without, "w", r#"{"cents":1,"at":1}"#).await, 201);
    assert_eq!(status(&without, "w", r#"{"at":2,"cents":1}"#).await, 201);
    assert_eq!(status(&without, "w", r#"{"cents":1,"at":1,"to":"x"}"#).await, 422);
}

/// W27: a form's boundary is new on each try, so only a function that reads its parts can compare it.
#[tokio::test]
async fn w27_forms_of_several_parts_need_a_function_of_the_routes() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let payments = builder(&ground).build().unwrap();
    let form = |boundary: &str, value: &str| {
        let body =
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--");
        let mut form = request("k", &body);
        let content_type = format!("multipart/form-data; boundary={boundary}");
        form.headers_mut().insert("content-type", content_type.parse().unwrap());
        form
    };
    let refused = send(&route::<Memory>(&payments, &runs), form("x", "one")).await;
    assert_eq!(refused.status, 415);
    assert!(refused.json()["type"].as_str().unwrap().ends_with("#multipart-unsupported"));
    let parts = Fingerprint::own("form", |parts, body| {
        let boundary = parts.headers["content-type"].to_str().unwrap().rsplit('=').next().unwrap();
        Ok(String::from_utf8_lossy(body).replace(boundary, "").into_bytes())
    });
    let route = route::<Memory>(&payments, &runs).fingerprint(parts);
    let first = send(&route, form("x", "one")).await;
    let again = send(&route, form("y", "one")).await;
    assert_eq!((first.status, again.is_replayed(), &again.body), (201, Some(true), &first.body));
    assert_eq!(send(&route, form("y", "two")).await.status, 422);
}

/// W27: a deploy that changes the parts that count does not refuse the repeats of requests from before it.
#[tokio::test]
async fn w27_a_fingerprint_can_be_replaced() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let secret = |number: u16| HashSecret::new(number, &number.to_be_bytes().repeat(16)).unwrap();
    let of = |secrets: &[u16], fingerprint| {
        let builder = Idempotency::builder(ground.store(), "payments").single_tenant();
        let builder = secrets.iter().fold(builder, |builder, number| builder.hash_secret(secret(*number)));
        route::<Memory>(&builder.build().unwrap(), &runs).fingerprint(fingerprint)
    };
    let (one, spaced, other) = (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#, r#"{"a":1,"b":3}"#);
    let first = send(&of(&[1], Fingerprint::raw()), request("k", one)).await;
    // Without its former one.
    assert_eq!(send(&of(&[1], Fingerprint::jcs()), request("k", one)).await.status, 422);
    let next = || Fingerprint::jcs().and_formerly(Fingerprint::raw());
    // Also where the secret is replaced with it.
    for secrets in [&[1][..], &[2, 1]] {
        let again = send(&of(secrets, next()), request("k", one)).await;
        assert_eq!((again.is_replayed(), &again.body), (Some(true), &first.body), "{secrets:?}");
        let refused = send(&of(secrets, next()), request("k", other)).await;
        assert_eq!((refused.status, &refused.json()["differs"]), (422, &"body".into()));
        let mut elsewhere = request("k", one);
        *elsewhere.uri_mut() = "/t?x=1".parse().unwrap();
        let refused = send(&of(secrets, next()), elsewhere).await;
        assert_eq!((refused.status, &refused.json()["differs"]), (422, &"query".into()));
    }
    // Requests after the deploy count by the new one alone.
    let after = send(&of(&[2, 1], next()), request("l", one)).await;
    assert_eq!(send(&of(&[2, 1], next()), request("l", spaced)).await.body, after.body);
    assert_eq!(send(&of(&[2, 1], next()), request("l", other)).await.status, 422);
    // Its former ones come along, and one that a body does not fit is passed over.
    let third = || Fingerprint::own("third", |_, body| Ok(body.to_vec())).and_formerly(next());
    for (key, answer) in [("k", &first), ("l", &after)] {
        assert_eq!(send(&of(&[2, 1], third()), request(key, one)).await.body, answer.body, "{key}");
    }
    assert_eq!(send(&of(&[2, 1], third()), request("m", "no JSON")).await.status, 201);
    assert_eq!(ground.paid().await.len(), 3);
}

/// A new secret stands in front of the former one, whose records can still be compared.
#[tokio::test]
async fn w28_a_secret_can_be_replaced() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let secret = |number, secret: &[u8]| HashSecret::new(number, secret).unwrap();
    let with = |secrets: Vec<HashSecret>| {
        let builder = Idempotency::builder(ground.store(), "payments").single_tenant();
        let payments =
            secrets.into_iter().fold(builder, |builder, secret| builder.hash_secret(secret)).build().unwrap();
        route::<Memory>(&payments, &runs)
    };
    let old = secret(1, SECRET);
    let first = send(&with(vec![old.clone()]), request("k", "one")).await;
    let both = with(vec![secret(2, &[7; 32]), old]);
    assert_eq!(send(&both, request("k", "one")).await.body, first.body);
    assert_eq!(send(&both, request("k", "two")).await.status, 422);
    assert_eq!(send(&both, request("l", "one")).await.status, 201);
    // Without it the bodies cannot be compared, and nothing runs again.
    let without = with(vec![secret(2, &[7; 32])]);
    assert_eq!(send(&without, request("k", "one")).await.status, 503);
    assert_eq!(send(&without, request("l", "one")).await.is_replayed(), Some(true));
    assert!(HashSecret::new(1, b"short").is_err());
    // Nor does an instance start that has another one under the same number.
    let started = async |secret| {
        let builder = Idempotency::builder(ground.store(), "payments").single_tenant();
        builder.hash_secret(secret).build().unwrap().start().await
    };
    started(secret(2, &[7; 32])).await.unwrap();
    let refused = started(secret(2, &[9; 32])).await.unwrap_err();
    assert!(refused.to_string().contains("http-hmac-sha256/1:2-"), "{refused}");
}

/// W137: two secrets under one number cannot be told apart in the records.
#[tokio::test]
async fn w137_a_number_is_one_secrets() {
    let ground = Memory::new().await;
    let build = |secrets: [(u16, &[u8]); 2]| {
        let builder = Idempotency::builder(ground.store(), "payments").single_tenant();
        let secrets = secrets.map(|(number, secret)| HashSecret::new(number, secret).unwrap());
        secrets.into_iter().fold(builder, |builder, secret| builder.hash_secret(secret)).build()
    };
    let refused = build([(1, &[7; 32]), (1, &[9; 32])]).unwrap_err();
    assert_eq!((refused.field, refused.value.as_str()), ("hash_secret", "1"), "{refused}");
    assert!(build([(1, &[7; 32]), (2, &[9; 32])]).is_ok());
}

/// W120: during a deploy a repeat reaches an instance that does not know yet by what the first one's fingerprint was made. A 422 would say
/// that the key is used up, and the client would draw another one for what was done.
#[tokio::test]
async fn w120_what_cannot_be_compared_here_is_no_other_request() {
    type Builder = IdempotencyBuilder<<Memory as Ground>::Store>;
    type Settings<'a> = [&'a dyn Fn(Builder) -> Builder];
    let [one, two] = [SECRET, &[7; 32]].map(|secret| HashSecret::new(u16::from(secret[0]), secret).unwrap());
    let secret = |secret: &HashSecret| {
        let secret = secret.clone();
        move |builder: Builder| builder.hash_secret(secret.clone())
    };
    let (one, two) = (&secret(&one), &secret(&two));
    let plain = &|builder: Builder| builder.plain_hashes();
    let by_subject = &|builder: Builder| builder.answers_by_subject();
    let deploys: [(&str, &Settings<'_>, &Settings<'_>); 3] = [
        ("another secret", &[one], &[two, one]),
        ("a secret after plain hashes", &[plain], &[one, plain]),
        ("answers by subject", &[one], &[one, by_subject]),
    ];
    for (deploy, before, after) in deploys {
        let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
        let instance = async |settings: &Settings<'_>| {
            let new = Idempotency::builder(ground.store(), "payments")
                .tenant(|_| Some(Authenticated::tenant("acme").with_subject("ann")));
            let payments = settings.iter().fold(new, |builder, set| set(builder)).build().unwrap();
            payments.start().await.unwrap();
            (route::<Memory>(&payments, &runs), payments.asks(["POST /t"]).unwrap())
        };
        // In this order: one that does not know what the newest one uses does not start.
        let (old, asks) = instance(before).await;
        let (new, _) = instance(after).await;
        let first = send(&new, request("k", "one")).await;
        assert_eq!(first.status, 201, "{deploy}: {first:?}");
        for body in ["one", "two"] {
            let told = send(&old, request("k", body)).await;
            assert_eq!((told.status, told.header("retry-after")), (503, Some("1")), "{deploy}: {told:?}");
            assert!(told.json()["type"].as_str().unwrap().ends_with("#not-comparable"), "{deploy}: {told:?}");
            assert_eq!((told.json().get("differs"), told.is_replayed()), (None, None), "{deploy}");
        }
        let asked = Request::get("/idempotency/k").body(Full::<Bytes>::default()).unwrap();
        let asked = Seen::of(asks.oneshot(asked).await.unwrap()).await;
        assert_eq!(asked.json()["state"], "completed", "{deploy}: it may be asked about");
        let again = send(&new, request("k", "one")).await;
        assert_eq!((again.is_replayed(), &again.body), (Some(true), &first.body), "{deploy}");
        assert_eq!((ground.paid().await, runs.begun()), (vec!["one".to_owned()], 1), "{deploy}");
    }
}

/// W121: the second place of a list is for what is known and does not count yet. So a deploy in two steps refuses no repeat, whichever of
/// its instances the first request and the repeat reach.
#[tokio::test]
async fn w121_what_is_known_everywhere_first_refuses_no_repeat() {
    let (one, spaced) = (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#);
    let secret = |number: u16| HashSecret::new(number, &number.to_be_bytes().repeat(16)).unwrap();
    let [raw, jcs] = [Fingerprint::raw, Fingerprint::jcs];
    // Before, between and after the two steps.
    let steps: [(&[u16], Fingerprint); 3] =
        [(&[1], raw()), (&[1, 2], raw().and_formerly(jcs())), (&[2, 1], jcs().and_formerly(raw()))];
    for side_by_side in steps.windows(2) {
        let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
        let instances: Vec<_> = side_by_side
            .iter()
            .map(|(secrets, fingerprint)| {
                let builder = Idempotency::builder(ground.store(), "payments").single_tenant();
                let builder = secrets.iter().fold(builder, |builder, number| builder.hash_secret(secret(*number)));
                route::<Memory>(&builder.build().unwrap(), &runs).fingerprint(fingerprint.clone())
            })
            .collect();
        for (key, first, repeat) in [("old", 0, 1), ("new", 1, 0)] {
            let first = send(&instances[first], request(key, one)).await;
            let again = send(&instances[repeat], request(key, one)).await;
            assert_eq!((first.status, again.is_replayed(), &again.body), (201, Some(true), &first.body), "{key}");
            assert_eq!(send(&instances[repeat], request(key, "{}")).await.status, 422, "{key}");
        }
        assert_eq!(ground.paid().await, [one, one]);
    }
    // In one step an instance of before takes a record by another fingerprint for another request, as it cannot tell them apart.
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let [before, _, after] = steps
        .map(|(_, fingerprint)| route::<Memory>(&builder(&ground).build().unwrap(), &runs).fingerprint(fingerprint));
    let of = |body| request("k", body);
    assert_eq!(send(&after, of(spaced)).await.status, 201);
    assert_eq!(send(&before, of(spaced)).await.status, 422, "which is why the guide says two steps");
}

/// A secret makes the fingerprints of new records, also where plain hashes were named before it.
#[tokio::test]
async fn w28_a_secret_counts_before_plain_hashes() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let new = || Idempotency::builder(ground.store(), "payments").single_tenant();
    let secret = || HashSecret::new(1, SECRET).unwrap();
    let before = route::<Memory>(&new().plain_hashes().build().unwrap(), &runs);
    let plain = send(&before, request("plain", "one")).await;
    let both = new().plain_hashes().hash_secret(secret()).build().unwrap();
    assert!(both.is_keyed());
    let both = route::<Memory>(&both, &runs);
    assert_eq!(send(&both, request("plain", "one")).await.body, plain.body, "those of before are known");
    let keyed = send(&both, request("keyed", "one")).await;
    let alone = route::<Memory>(&new().hash_secret(secret()).build().unwrap(), &runs);
    let again = send(&alone, request("keyed", "one")).await;
    assert_eq!(
        (again.is_replayed(), again.body),
        (Some(true), keyed.body),
        "its record has no plain hash: {}",
        again.status
    );
}

/// A browser's script may read every header of an answer that is not readable anyway.
#[tokio::test]
async fn w25_what_a_client_needs_is_exposed() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let route = route::<Memory>(&builder(&ground).build().unwrap(), &runs);
    let mut all = Vec::new();
    for (key, body) in [("k", "one"), ("k", "one"), ("k", "two"), ("l", "status 503")] {
        all.push(send(&route, request(key, body)).await);
    }
    let asks = builder(&ground).build().unwrap().asks(["POST /t"]).unwrap();
    for path in ["/idempotency/k", "/idempotency/none"] {
        all.push(super::ask::ask(&asks, "acme", path, "wait=0").await);
    }
    assert_eq!(all.iter().map(|seen| seen.status).collect::<Vec<_>>(), [201, 201, 422, 503, 200, 404]);
    assert!(all.iter().any(|seen| seen.headers.contains_key("preference-applied")));
    // The first are those that Fetch lets every script read, and a cookie is not for scripts.
    let readable = ["cache-control", "content-type", "content-length", "set-cookie"];
    for name in all.iter().flat_map(|seen| seen.headers.keys()) {
        assert!(readable.contains(&name.as_str()) || idem_http::EXPOSED_HEADERS.contains(name), "{name}");
    }
    for kept in [http::header::ETAG, http::header::LINK, http::header::LOCATION, http::header::RETRY_AFTER] {
        assert!(idem_http::EXPOSED_HEADERS.contains(&kept), "{kept}");
    }
}

/// A browser asks before it sends any of these, and sends nothing if one is not allowed.
#[test]
fn w25_what_a_client_sends_is_allowed() {
    let allowed = idem_http::ALLOWED_HEADERS.map(|name| name.to_string());
    for sent in [
        "authorization",
        "content-type",
        "idempotency-key",
        "idempotency-attempt",
        "prefer",
        "content-digest",
        "repr-digest",
        "traceparent",
    ] {
        assert!(allowed.iter().any(|name| name == sent), "{sent}");
    }
}

/// W124: of a subject a record has 24 bits. Whoever can compute them without the service finds a name that has another's.
#[tokio::test]
async fn w124_no_subject_is_told_apart_by_plain_hashes() {
    let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
    let new = || builder_without_secret(&ground);
    let refused = new().plain_hashes().answers_by_subject().build().unwrap_err().to_string();
    assert!(refused.contains("answers_by_subject") && refused.contains("hash_secret"), "{refused}");
    // Records of the time before the secret have plain hashes, and this name's is that of a request without a subject.
    let collides = "acme/user-16185176";
    send(&route::<Memory>(&new().plain_hashes().build().unwrap(), &runs), request("k", "one")).await;
    let keyed = new().plain_hashes().hash_secret(HashSecret::new(1, SECRET).unwrap()).answers_by_subject();
    let asks = keyed.build().unwrap().asks(["POST /t"]).unwrap();
    for (token, status) in [("acme", 200), ("acme/ann", 404), (collides, 404)] {
        let asked = Request::get("/idempotency/k?answer=true").header("authorization", format!("Bearer {token}"));
        let seen = Seen::of(asks.clone().oneshot(asked.body(Full::<Bytes>::default()).unwrap()).await.unwrap()).await;
        assert_eq!(seen.status, status, "{token}: {seen:?}");
    }
}

#[tokio::test]
async fn w29_what_is_not_said_is_not_guessed() {
    let ground = Memory::new().await;
    let new = || Idempotency::builder(ground.store(), "payments");
    let field = |built: Result<Idempotency<_>, ConfigError>| built.unwrap_err().to_string();
    assert!(field(new().plain_hashes().build()).contains("tenant"));
    assert!(field(new().single_tenant().build()).contains("hash_secret"));
    let ready = || new().single_tenant().plain_hashes();
    assert!(field(ready().keeps_header(http::header::SET_COOKIE).build()).contains("keeps_header"));
    for hours in [1, 24] {
        let keys_for = idem_core::Retention::For(Duration::from_secs(hours * 3_600));
        assert!(
            field(ready().profile(Profile::guardia()).keys_for(keys_for).build()).contains("keys_for"),
            "{hours} h"
        );
    }
    assert!(field(ready().wait_for_owner(Duration::from_secs(61)).build()).contains("wait_for_owner"));
    assert!(field(ready().lanes(0).build()).contains("lanes"));
    assert!(ready().build().is_ok());
}
