//! A server without limits: `axum::serve`, of which the guide says what it does not do.

use std::{future::pending, io, time::Duration};

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
    serve::Listener,
};
use idem_core::CancellationToken;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinHandle,
    time::timeout,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Gives one connection, and no other.
struct One(Option<DuplexStream>);

impl Listener for One {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.take() {
            Some(connection) => (connection, ()),
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A client of such a server, and the server, which ends once it is stopped and its connections are gone.
fn connected(stop: &CancellationToken) -> (DuplexStream, JoinHandle<io::Result<()>>) {
    let routes = Router::new()
        .route("/", get(async || "x".repeat(10_000)))
        .route("/refuses", post(async || StatusCode::UNAUTHORIZED));
    let (client, server) = duplex(1 << 20);
    let serving = axum::serve(One(Some(server)), routes).with_graceful_shutdown(stop.clone().cancelled_owned());
    (client, tokio::spawn(serving.into_future()))
}

/// Whatever comes within an hour of this request, and whether the connection was closed then.
async fn answered(request: &str) -> (String, bool) {
    let (mut client, _server) = connected(&CancellationToken::new());
    client.write_all(request.as_bytes()).await.expect("there is room for it");
    let mut answers = Vec::new();
    let closed = timeout(HOUR, client.read_to_end(&mut answers)).await.is_ok();
    (String::from_utf8(answers).expect("it is text"), closed)
}

/// W164: the differences that the guide tells between `axum::serve` and the server of `HttpService`.
#[tokio::test(start_paused = true)]
async fn w164_a_plain_server_has_the_limits_that_the_guide_tells() {
    let large = |bytes: usize| format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(bytes));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101));
    for (head, status) in [(large(400 << 10), "200"), (large(900 << 10), "431"), (many, "431")] {
        let (answer, closed) = answered(&head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        // One that was understood waits for the next.
        assert_eq!(closed, status == "431");
    }
    assert_eq!(answered("GET / HTTP/1.1\r\nhost:").await, (String::new(), false), "half a head is waited for");

    let stop = CancellationToken::new();
    let (mut client, mut server) = connected(&stop);
    let reads_nothing = async { while client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.is_ok() {} };
    assert!(timeout(HOUR, reads_nothing).await.is_err(), "who reads no answer keeps the connection");
    stop.cancel();
    assert!(timeout(HOUR, &mut server).await.is_err(), "and a stop");
    drop(client);
    timeout(HOUR, server).await.expect("it ends").expect("no panic").expect("and no error");

    let unread = format!("POST /refuses HTTP/1.1\r\ncontent-length: {}\r\n\r\n{}", 300 << 10, "x".repeat(300 << 10));
    let (answer, closed) = answered(&format!("{unread}GET / HTTP/1.1\r\n\r\n")).await;
    assert!(closed && answer.matches("HTTP/1.1").count() == 1, "the next request is lost: {answer}");
    assert!(answer.starts_with("HTTP/1.1 401 ") && !answer.contains("connection: close"), "{answer}");
}
