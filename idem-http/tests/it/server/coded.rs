//! Layers that code and decode bodies around idem's, and curl outside of them.

use std::process::Stdio;

use axum::{Json, Router, http::StatusCode, routing::post};
use idem_http::{IdempotencyLayer, IdempotentTx, TxError, VerifyDigest, check_digests};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, process::Command};
use tower::ServiceExt as _;
use tower_http::{compression::CompressionLayer, decompression::RequestDecompressionLayer};

use super::{
    gates::digest_of,
    grounds::{Ground, Memory},
    support::{Seen, builder},
};

type Store = <Memory as Ground>::Store;

/// Long enough for a layer to code it.
async fn pay(mut tx: IdempotentTx<Store>, body: String) -> Result<(StatusCode, Json<String>), TxError> {
    Memory::pay(&mut tx.tx(), body).await?;
    Ok((StatusCode::CREATED, Json("paid ".repeat(100))))
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/t", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// What a program answers to this.
async fn run(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).await.unwrap();
    let ended = child.wait_with_output().await.unwrap();
    assert!(ended.status.success(), "{program} {arguments:?}: {}", ended.status);
    ended.stdout
}

async fn gzip(content: &[u8]) -> Vec<u8> {
    run("gzip", &["-nc"], content).await
}

/// Sends a payment with curl, which undoes no coding unless it is asked to by `--compressed`. Of an answer with a digest it has to be right.
async fn curl(address: &str, key: &str, more: &[&str], body: &[u8]) -> Seen {
    let key = format!("Idempotency-Key: {key}");
    let mut arguments = vec!["--silent", "--show-error", "--include", "-H", &*key, "-H", "Expect:"];
    arguments.extend(["-H", "Content-Type: text/plain", "--data-binary", "@-"]);
    if !more.iter().any(|one| one.starts_with("Authorization")) {
        arguments.extend(["-H", "Authorization: Bearer acme"]);
    }
    arguments.extend(more);
    arguments.push(address);
    let bytes = run("curl", &arguments, body).await;
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.parse::<http::HeaderName>().unwrap(), value.parse::<http::HeaderValue>().unwrap())
    };
    let seen = Seen { status, headers: lines.map(header).collect(), body: bytes[end + 4..].to_vec().into() };
    if let Some(digest) = seen.header("content-digest") {
        assert_eq!(digest, digest_of(&seen.body), "{seen:?}");
    }
    seen
}

/// A router with layers on both sides of idem's: answers are coded, requests decoded.
fn app(layer: IdempotencyLayer<Store>) -> Router {
    Router::new()
        .route("/t", post(pay).route_layer(layer.bodies_are_decoded_before()))
        .layer(RequestDecompressionLayer::new())
}

/// W152: answers that a layer outside of idem codes have no digest, and are the same to curl with and without their coding.
#[tokio::test]
async fn w152_a_coded_answer_passes_a_strict_client() {
    let ground = Memory::new().await;
    let payments = builder(&ground).responses_are_coded_after().build().unwrap();
    let app = app(payments.layer()).route_service("/idempotency/{key}", payments.asks(["POST /t"]).unwrap());
    let address = serve(app.layer(CompressionLayer::new())).await;
    let first = curl(&address, "k", &["--compressed"], b"one").await;
    let paid = serde_json::to_vec(&"paid ".repeat(100)).unwrap();
    assert_eq!((first.status, first.header("content-encoding"), &first.body[..]), (201, Some("gzip"), &paid[..]));
    let again = curl(&address, "k", &["--compressed"], b"one").await;
    assert_eq!((again.is_replayed(), &again.body), (Some(true), &first.body));
    let raw = curl(&address, "k", &["-H", "Accept-Encoding: gzip"], b"one").await;
    assert_eq!((raw.is_replayed(), raw.header("content-encoding")), (Some(true), Some("gzip")));
    assert_eq!(run("gzip", &["-dc"], &raw.body).await, paid);
    let plain = curl(&address, "k", &[], b"one").await;
    assert_eq!((plain.is_replayed(), &plain.body), (Some(true), &first.body));
    let question = address.replace("/t", "/idempotency/k?answer=true");
    let asked = curl(&question, "k", &["--compressed", "-X", "GET"], b"").await;
    assert_eq!((asked.header("content-encoding"), asked.json()["state"].as_str()), (Some("gzip"), Some("completed")));
    let problem = curl(&address, "k", &["--compressed"], b"two").await;
    assert_eq!((problem.status, problem.json()["differs"].as_str()), (422, Some("body")));
    for seen in [first, again, raw, asked, problem] {
        assert_eq!(seen.header("content-digest"), None, "{seen:?}");
    }
    assert_eq!(ground.paid().await.len(), 1);
}

/// W152: a layer that codes answers although `no-transform` forbids it, as tower-http's does, makes their digests wrong unless it is named; the
/// check for users' own tests sees it.
#[tokio::test]
async fn w152_a_digest_of_other_bytes_is_seen_by_the_check() {
    for is_named in [false, true] {
        let ground = Memory::new().await;
        let settings = builder(&ground);
        let settings = if is_named { settings.responses_are_coded_after() } else { settings };
        let payments = settings.build().unwrap();
        let app = Router::new().route("/t", post(pay).route_layer(payments.layer())).layer(CompressionLayer::new());
        for _ in 0..2 {
            let request =
                http::Request::post("/t").header("idempotency-key", "k").header("authorization", "Bearer acme");
            let request = request.header("content-type", "text/plain").header("accept-encoding", "gzip");
            let seen =
                Seen::of(app.clone().oneshot(request.body(axum::body::Body::from("one")).unwrap()).await.unwrap())
                    .await;
            assert_eq!((seen.status, seen.header("content-encoding")), (201, Some("gzip")), "{seen:?}");
            assert!(seen.header("cache-control").unwrap().contains("no-transform"), "{seen:?}");
            assert_eq!(check_digests(&seen.headers, &seen.body).is_ok(), is_named, "{seen:?}");
        }
    }
}

/// W152: a digest of a body that is decoded before idem is verified on the bytes that came, by the layer that stands before the decoder.
#[tokio::test]
async fn w152_the_digest_of_a_coded_body_is_verified_before_it_is_decoded() {
    let ground = Memory::new().await;
    let payments = builder(&ground).body_bytes_max(1_000).build().unwrap();
    let address = serve(app(payments.layer()).layer(VerifyDigest)).await;
    let (one, coded) = (&b"one"[..], &gzip(b"one").await[..]);
    let is_gzip = ["-H", "Content-Encoding: gzip"];
    let field = |name: &str, content: &[u8]| format!("{name}: {}", digest_of(content));
    let first = curl(&address, "k", &["-H", &field("Content-Digest", one)], one).await;
    assert_eq!(first.status, 201, "{first:?}");
    for name in ["Content-Digest", "Repr-Digest"] {
        let right = curl(&address, "k", &[&is_gzip[..], &["-H", &field(name, coded)]].concat(), coded).await;
        assert_eq!((right.is_replayed(), &right.body), (Some(true), &first.body), "the decoded body is compared");
        let wrong = field(name, one);
        for (sent, coding) in [(coded, &is_gzip[..]), (b"two", &[]), (b"", &[])] {
            let refused = curl(&address, "l", &[coding, &["-H", &wrong]].concat(), sent).await;
            assert_eq!(refused.status, 400, "{refused:?}");
            let problem = refused.json();
            assert!(problem["type"].as_str().unwrap().ends_with("#digest-mismatch"), "{problem}");
            assert_eq!(problem["detail"], format!("{name} is not that of the content that came."));
        }
        let malformed = format!("{name}: sha-256=one");
        assert_eq!(curl(&address, "l", &["-H", &malformed], one).await.status, 400);
        let stranger = curl(&address, "l", &["-H", &wrong, "-H", "Authorization: Basic YTpi"], b"two").await;
        assert_eq!(stranger.status, 401, "its body is not read");
    }
    let range = ["-H", "Content-Range: bytes 0-2/9", "-H", &field("Repr-Digest", b"one of ten")];
    assert_eq!(curl(&address, "k", &range, one).await.is_replayed(), Some(true));
    let bomb = gzip(&vec![b'0'; 1_000_000]).await;
    assert_eq!(curl(&address, "l", &is_gzip, &bomb).await.status, 413);
    assert_eq!(ground.paid().await.len(), 1, "no key was claimed");
    // Without the layer no code has seen the bytes that the field is of, and it says nothing.
    let unverified = serve(app(payments.layer())).await;
    let of_another = field("Content-Digest", b"two");
    let ignored = [&is_gzip[..], &["-H", &of_another]].concat();
    assert_eq!(curl(&unverified, "k", &ignored, coded).await.is_replayed(), Some(true));
}
