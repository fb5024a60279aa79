//! One connection, in memory, by a clock that leaps.

use axum::routing::{get, post};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::*;

/// Long behind each limit.
const HOUR: Duration = Duration::from_secs(3_600);

/// The bytes that are under way between a client and its connection.
const WINDOW: usize = 256;

/// A connection, and its client.
fn connected(stop: &CancellationToken) -> (DuplexStream, JoinHandle<()>) {
    let (client, server) = duplex(WINDOW);
    let routes = Router::new().route("/", get(async || "x".repeat(10 * WINDOW)));
    (client, tokio::spawn(connection(server, routes, stop.clone(), Arc::default(), Waits::new(Instant::now()))))
}

/// Sends requests until the connection is gone, and reads nothing.
async fn send_for_ever(client: &mut DuplexStream) {
    while client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.is_ok() {}
}

/// W134: a client whose answers are not read is let go in time.
#[tokio::test(start_paused = true)]
async fn w134_who_takes_no_answer_is_let_go() {
    let begun = Instant::now();
    let (mut client, served) = connected(&CancellationToken::new());
    timeout(HOUR, send_for_ever(&mut client)).await.expect("the connection is closed");
    timeout(HOUR, served).await.expect("it ends").expect("no panic");
    assert!((10..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

/// W68: hyper refuses such a head before any route sees it, and has no content to give; the documents say so.
#[tokio::test(start_paused = true)]
async fn w68_a_head_that_no_route_sees_is_refused_without_content() {
    let many = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(count));
    let large = |bytes: usize| format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(bytes));
    for (head, status) in [
        (many(100), "200"),
        (many(101), "431"),
        (large(30 << 10), "200"),
        (large(33 << 10), "431"),
        ("GET / HTTP/1.1\r\nno header\r\n\r\n".to_owned(), "400"),
    ] {
        let (client, _served) = connected(&CancellationToken::new());
        let (mut reads, mut writes) = tokio::io::split(client);
        // A head that is refused is not read to its end.
        let sending = tokio::spawn(async move { writes.write_all(head.as_bytes()).await });
        let mut answer = String::new();
        timeout(HOUR, reads.read_to_string(&mut answer)).await.expect("it is closed").expect("it is text");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        assert!(
            status == "200" || answer.contains("content-length: 0\r\n") && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        let _ = timeout(HOUR, sending).await.expect("the connection is gone");
    }
}

/// What a client gets that sends this and then waits: each status, and whether the connection is said to be closed, until it is.
async fn answers_to(request: &str) -> Vec<(String, bool)> {
    let refuse = async || axum::http::StatusCode::UNAUTHORIZED;
    let take = async |_: axum::body::Bytes| "taken";
    let routes = Router::new().route("/refuses", post(refuse)).route("/takes", post(take));
    let (client, server) = duplex(1 << 20);
    tokio::spawn(connection(server, routes, CancellationToken::new(), Arc::default(), Waits::new(Instant::now())));
    let (mut reads, mut writes) = tokio::io::split(client);
    writes.write_all(request.as_bytes()).await.expect("there is room for it");
    let mut all = Vec::new();
    // The connection ends at the latest when no head of another request comes.
    timeout(HOUR, reads.read_to_end(&mut all)).await.expect("it is closed").expect("and not broken");
    let all = String::from_utf8(all).expect("it is text");
    let heads =
        all.split("HTTP/1.1 ").skip(1).map(|answer| (answer[..3].to_owned(), answer.contains("connection: close")));
    heads.collect()
}

/// W154: the answer to a request whose body is not read says whether the connection goes on, and it does if little of it was on the way.
#[tokio::test(start_paused = true)]
async fn w154_an_answer_before_the_body_says_that_the_connection_ends() {
    let request = |path: &str, headers: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: here\r\n{headers}\r\n\r\n{body}")
    };
    let next = request("/takes", "content-length: 2", "{}");
    let large = "x".repeat(300 << 10);
    let length = format!("content-length: {}", large.len());
    let chunked = |size: usize| format!("{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size));
    let sent = |status: &str, closes| (status.to_owned(), closes);
    let (goes_on, ends) = (vec![sent("401", false), sent("200", false)], vec![sent("401", true)]);
    for (name, first, expected) in [
        ("a small one", request("/refuses", "content-length: 5", "hello"), &goes_on),
        ("a small one in chunks", request("/refuses", "transfer-encoding: chunked", &chunked(5_000)), &goes_on),
        ("none", request("/refuses", "content-length: 0", ""), &goes_on),
        ("a large one", request("/refuses", &length, &large), &ends),
        ("a large one in chunks", request("/refuses", "transfer-encoding: chunked", &chunked(300 << 10)), &ends),
        ("one that waits for leave", request("/refuses", "content-length: 5\r\nexpect: 100-continue", ""), &ends),
    ] {
        assert_eq!(&answers_to(&format!("{first}{next}")).await, expected, "{name}");
    }
    let late = request("/refuses", "content-length: 500", "hello");
    assert_eq!(answers_to(&late).await, ends, "one that does not come");
    let taken = request("/takes", &length, &large);
    assert_eq!(
        answers_to(&format!("{taken}{next}")).await,
        [sent("200", false), sent("200", false)],
        "one that is read"
    );
}

/// W134: a client that takes its answer slowly gets the whole of it, also during a stop, and where its connection stays open: the time for
/// the next request's head begins after the answer.
#[tokio::test(start_paused = true)]
async fn w134_who_is_slow_gets_the_whole_answer() {
    for (is_stopped, pause, header) in [(false, 9, "close"), (true, 2, "close"), (false, 9, "keep-alive")] {
        let stop = CancellationToken::new();
        let (mut client, served) = connected(&stop);
        let request = format!("GET / HTTP/1.1\r\nhost: here\r\nconnection: {header}\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("it is sent");
        let (mut answer, mut part) = (Vec::new(), [0; WINDOW]);
        loop {
            let count = client.read(&mut part).await.expect("the connection stays");
            if count == 0 {
                break;
            }
            answer.extend_from_slice(&part[..count]);
            if is_stopped {
                stop.cancel();
            }
            sleep(Duration::from_secs(pause)).await;
        }
        assert!(answer.ends_with(&[b'x'; 10 * WINDOW]), "{} bytes", answer.len());
        timeout(HOUR, served).await.expect("it ends").expect("no panic");
    }
}

/// W134: a stop does not wait for a client that takes nothing.
#[tokio::test(start_paused = true)]
async fn w134_a_stop_lets_go_who_takes_nothing() {
    let stop = CancellationToken::new();
    let (mut client, served) = connected(&stop);
    // The clock leaps once nothing goes on.
    assert!(timeout(Duration::from_secs(1), send_for_ever(&mut client)).await.is_err(), "it takes no more");
    let stopped = Instant::now();
    stop.cancel();
    timeout(HOUR, served).await.expect("it ends").expect("no panic");
    assert!((1..4).contains(&stopped.elapsed().as_secs()), "{:?}", stopped.elapsed());
}
