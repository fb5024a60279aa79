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
