//! One connection, in memory, by a clock that leaps.

use axum::routing::get;
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
    (client, tokio::spawn(connection(server, routes, stop.clone(), Arc::default())))
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
