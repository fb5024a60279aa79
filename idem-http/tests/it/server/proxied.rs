//! A proxy that sends a request again by itself, as nginx does by `proxy_next_upstream` with `non_idempotent`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    grounds::{Ground, Memory},
    support::{Runs, builder, route},
};

/// Why the proxy turns to the other server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The first one has answered, and its connection broke before the answer was here.
    AnswerLost,
    /// The first one is still at work.
    TooSlow,
}

async fn serve(payments: &idem_http::Idempotency<<Memory as Ground>::Store>, runs: &Arc<Runs>) -> SocketAddr {
    let app = axum::Router::new().route_service("/t", route::<Memory>(payments, runs));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends the request, and gives the whole answer.
async fn ask(server: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Passes on one request, which ends with `.`, to the first server and then to the second, and the second one's answer to the client. Gives
/// the first one's answer, where it has come.
async fn proxy(listener: TcpListener, servers: [SocketAddr; 2], why: Why, runs: Arc<Runs>) -> Option<String> {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b".") {
        assert!(client.read_buf(&mut request).await.unwrap() > 0, "the request is cut off");
    }
    let lost = match why {
        Why::AnswerLost => Some(ask(servers[0], &request).await),
        Why::TooSlow => {
            let mut first = TcpStream::connect(servers[0]).await.unwrap();
            first.write_all(&request).await.unwrap();
            runs.until_begun(1).await;
            // The proxy hangs up on it.
            None
        }
    };
    let second = tokio::spawn(async move { ask(servers[1], &request).await });
    runs.release(1);
    client.write_all(second.await.unwrap().as_bytes()).await.unwrap();
    lost
}

/// W8: the client sends once and the proxy twice, to two servers: there is one effect, and the client gets its answer.
#[tokio::test]
async fn w8_a_proxy_that_sends_again_by_itself_has_one_effect() {
    for why in [Why::AnswerLost, Why::TooSlow] {
        let (ground, runs) = (Memory::new().await, Arc::new(Runs::default()));
        let build = || builder(&ground).wait_for_owner(Duration::from_secs(60)).build().unwrap();
        let (one, two) = (build(), build());
        let servers = [serve(&one, &runs).await, serve(&two, &runs).await];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxying = tokio::spawn(proxy(listener, servers, why, Arc::clone(&runs)));
        let held = if why == Why::TooSlow { "x-held: 1\r\n" } else { "" };
        let request = format!(
            "POST /t HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer acme\r\nidempotency-key: k\r\n\
             content-type: text/plain\r\n{held}content-length: 4\r\n\r\none."
        );
        let answer = ask(address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 201 "), "{why:?}: {answer}");
        assert!(answer.contains("idempotent-replayed: true\r\n"), "{why:?}: {answer}");
        if let Some(lost) = proxying.await.unwrap() {
            let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
            assert_eq!(body(&answer), body(&lost));
        }
        assert_eq!((ground.paid().await, runs.begun()), (vec!["one.".to_owned()], 1), "{why:?}");
    }
}
