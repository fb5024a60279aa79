//! Stops of a service, while clients are gone or do not read.

use std::time::Duration;

use sqlx::{Postgres, pool::PoolConnection, raw_sql};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::{
    client::{Cut, Request},
    fixture::{Api, Books, Fixture, until},
};

/// A service with a payment that waits for its customer's balance, and whose client is gone.
async fn runs_without_a_client(fixture: &Fixture, drain: &str) -> (Api, Request, PoolConnection<Postgres>) {
    let api = fixture.start(&["--drain", drain]).await;
    assert_eq!(Request::pay("order-0", "00001", 1).answer(&api.address).await.status, 201);
    let held = fixture.hold_balances().await;
    let request = Request::pay("order-1", "00001", 100);
    let client = request.begin(&api.address, Cut::BeforeTheAnswer).await;
    until("the request to run", async || fixture.waits().await == 1).await;
    drop(client);
    // By the time that others are answered, the service has seen it go.
    for _ in 0..20 {
        Request::new("GET", "/openapi.yaml").answer(&api.address).await;
    }
    (api, request, held)
}

/// W135: a stop waits for the operation of a client that is gone, as for any other.
#[tokio::test(flavor = "multi_thread")]
async fn w135_a_stop_waits_for_the_operation_of_a_client_that_is_gone() {
    let fixture = Fixture::new("http").await;
    let (mut api, request, mut held) = runs_without_a_client(&fixture, "10m").await;
    api.process.signal("TERM").await;
    until("it to take nothing new", async || request.send(&api.address).await.is_err()).await;
    // Without a connection, only the operation keeps it from ending.
    for _ in 0..20 {
        assert_eq!(fixture.waits().await, 1, "the operation is broken off");
    }
    assert!(api.process.runs());
    raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
    drop(held);
    let ended = api.process.ended().await;
    assert!(ended.status.success(), "{}", ended.log);
    assert_eq!(fixture.books().await, Books::of(2, 101));
    let next = fixture.start(&[]).await;
    let again = request.answer(&next.address).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")), "{again:?}");
    assert!(next.stop().await.status.success());
    fixture.remove().await;
}

/// W135: where that takes longer than `--drain`, the stop says how many it broke off, and they leave nothing.
#[tokio::test(flavor = "multi_thread")]
async fn w135_a_stop_says_how_many_operations_it_broke_off() {
    let fixture = Fixture::new("http").await;
    let (api, request, mut held) = runs_without_a_client(&fixture, "1s").await;
    let ended = api.stop().await;
    assert_eq!(ended.status.code(), Some(4), "{}", ended.log);
    assert!(ended.log.contains("0 requests were not answered, and 1 operations did not end"), "{}", ended.log);
    raw_sql("COMMIT").execute(&mut *held).await.expect("the balances are let go");
    drop(held);
    until("its session to end", async || fixture.connections().await.0 == 0).await;
    assert_eq!(fixture.books().await, Books::of(1, 1));
    let next = fixture.start(&[]).await;
    let again = request.answer(&next.address).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("false")), "{again:?}");
    assert_eq!(fixture.books().await, Books::of(2, 101));
    assert!(next.stop().await.status.success());
    fixture.remove().await;
}

/// Sends questions until the service takes no more, and reads no answer.
async fn reads_nothing(address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small window");
    let stream = socket.connect(address.parse().expect("an address")).await.expect("a connection");
    let questions = b"GET /openapi.yaml HTTP/1.1\r\nhost: here\r\n\r\n".repeat(100);
    while timeout(Duration::from_secs(1), stream.writable()).await.is_ok() {
        // Writable for a moment or not at all: the next look shows it.
        let _ = stream.try_write(&questions);
    }
    stream
}

/// W134: clients that read no answers keep a service neither from others nor from its stop.
#[tokio::test(flavor = "multi_thread")]
async fn w134_a_stop_does_not_wait_for_those_who_read_nothing() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--drain", "10m"]).await;
    let mut begun = JoinSet::new();
    for address in std::iter::repeat_n(api.address.clone(), 20) {
        begun.spawn(async move { reads_nothing(&address).await });
    }
    let clients = begun.join_all().await;
    assert_eq!(Request::pay("order-1", "00001", 100).answer(&api.address).await.status, 201);
    let ended = api.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    drop(clients);
    assert_eq!(fixture.books().await, Books::of(1, 100));
    fixture.remove().await;
}
