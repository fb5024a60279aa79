//! Clients without a secret that take every place, and the senders that come beside them.

use std::time::Duration;

use idem_webhook::{
    Secret,
    receive::{Inbound, StandardWebhooks},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    fixture::{Fixture, Said, now, post, serve},
    signed::{secret, signed},
};

/// More than there are places to read bodies at, which are 256 by default.
const STRANGERS: usize = 300;

/// Announces a body that the headers are not signed for, and sends one byte of it.
async fn stranger(url: &str) -> TcpStream {
    let headers = [("webhook-id", "m".to_owned()), ("webhook-timestamp", now().to_string())];
    begin(url, &[&headers[..], &[("webhook-signature", "v1,AAAA".to_owned())]].concat(), 1_000, b"{").await
}

async fn begin(url: &str, headers: &[(&str, String)], length: usize, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches("/events")).await.unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("POST /events HTTP/1.1\r\nhost: a\r\n{headers}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let (mut answer, mut read) = (vec![0; 1_024], 0);
    let whole = async {
        while !answer[..read].windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut answer[read..]).await.unwrap() {
                0 => break,
                count => read += count,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), whole).await.expect("an answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// W174: slow bodies of clients without a secret take every place, and each webhook that is signed is handled. The body that is furthest
/// behind loses its place: a sender whose body comes in pieces, before and after those of strangers, keeps its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w174_slow_bodies_keep_no_webhook_out() {
    let fixture = Fixture::new().await;
    let webhooks = StandardWebhooks::new([secret(1).parse::<Secret>().unwrap()]);
    let service =
        Inbound::new(fixture.consumer(StandardWebhooks::identify), webhooks).deadline(Duration::from_secs(60));
    let url = serve(service).await;
    let mut strangers = JoinSet::new();
    for _ in 0..STRANGERS {
        strangers.spawn(answer(stranger(&url).await));
    }
    // 256 are left, and the others have their answer.
    for _ in 256..STRANGERS {
        let answered = strangers.join_next().await.unwrap().unwrap();
        assert!(answered.starts_with("HTTP/1.1 503"), "{answered}");
    }
    let body = format!(r#"{{"cents":"{}"}}"#, "1".repeat(100_000));
    let (first, rest) = body.as_bytes().split_at(50_000);
    let mut pieces = begin(&url, &signed(1, "in pieces", now(), &body), body.len(), first).await;
    for number in 0..20 {
        strangers.spawn(answer(stranger(&url).await));
        let (id, body) = (format!("m-{number:02}"), r#"{"cents":1}"#);
        assert_eq!(post(&url, &signed(1, &id, now(), body), body).await, Said(200, None, "handled".into()), "{id}");
    }
    pieces.write_all(rest).await.unwrap();
    assert!(answer(pieces).await.starts_with("HTTP/1.1 200"));
    let expected = std::iter::once("in pieces".to_owned()).chain((0..20).map(|number| format!("m-{number:02}")));
    assert_eq!(fixture.effects().await, expected.collect::<Vec<_>>());
    fixture.drop().await;
}
