//! The admin endpoints.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    place::Place,
    process::{Running, Worker},
    worker::{IN_HANDLER, STUCK},
};

/// The endpoints of a worker that was started with `--admin 0`.
pub(crate) struct Admin(String);

impl Admin {
    /// The endpoints at this port.
    pub(crate) fn at(port: u16) -> Self {
        Self(format!("127.0.0.1:{port}"))
    }

    pub(crate) async fn of(running: &mut Running) -> Self {
        let line = running.line("serving /metrics").await;
        // The last of a line of text, and between quotes in one of JSON.
        let (_, address) = line.split_once("address").expect("the line has the address");
        let address = address.trim_start_matches(['"', '=', ':']);
        Self(address.split('"').next().unwrap_or_default().trim().to_owned())
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.0
    }

    /// Status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(&self.0).await.unwrap();
        connection.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    async fn readyz(&self) -> (u16, Value) {
        let (code, body) = self.get("/readyz").await;
        (code, serde_json::from_str(&body).unwrap())
    }

    /// Asks until this answers so, because no event announces it.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) {
        let asked = tokio::time::timeout(Duration::from_secs(60), async {
            // It may not listen yet.
            while TcpStream::connect(&self.0).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            loop {
                let (code, body) = self.get(path).await;
                if wanted(code, &body) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        asked.await.expect("it answers so");
    }

    /// Asks until the answer is as wanted, because no event announces it.
    pub(crate) async fn readiness(&self, wanted: impl Fn(&Value) -> bool) -> (u16, Value) {
        let asked = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                let (code, json) = self.readyz().await;
                if wanted(&json) {
                    return (code, json);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        asked.await.expect("the worker becomes so")
    }
}

#[tokio::test]
async fn a_worker_is_ready_once_it_has_joined_and_not_before() {
    let mut place = Place::new().await;
    place.stop_serving();
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    assert!(admin.0.starts_with("127.0.0.1:"), "a port alone is one of this machine: {}", admin.0);
    running.line("the broker cannot be reached yet").await;
    let (code, json) = admin.readyz().await;
    let expected = json!({
        "ready": false, "consumer": "ledger", "partitions": null, "database": "unknown", "pause": null, "paused_for": null,
        "breaker": "closed", "broker": "unknown", "broker_down_for": null, "conditions": [],
    });
    assert_eq!((code, json), (503, expected));
    assert_eq!(admin.get("/healthz").await, (200, "ok\n".to_owned()));

    place.serve().await;
    let (code, json) = admin.readiness(|json| json["ready"] == true).await;
    let expected = json!({
        "ready": true, "consumer": "ledger", "partitions": ["orders/0"], "database": "up", "pause": null, "paused_for": null,
        "breaker": "closed", "broker": "up", "broker_down_for": null, "conditions": [],
    });
    assert_eq!((code, json), (200, expected));
    assert_eq!(admin.get("/other").await.0, 404);
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

#[tokio::test]
async fn metrics_say_what_was_done() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 127.0.0.1:0").start();
    let admin = Admin::of(&mut running).await;
    for _ in 0..3 {
        place.publish("a", "1");
    }
    // The worker counts a message before it settles it, and the queue is drained when all are settled.
    place.orders.drained().await;
    let (code, text) = admin.get("/metrics").await;
    assert_eq!(code, 200);
    for sample in [
        "# TYPE idem_processed_total counter\nidem_processed_total{consumer=\"ledger\"} 1\n",
        "idem_duplicates_total{consumer=\"ledger\"} 2\n",
        "consumer_duplicate_skipped_total{consumer=\"ledger\",cause=\"producer\"} 2\n",
        "idem_duplicate_age_seconds_bucket{consumer=\"ledger\",le=\"1\"} 2\n",
        "# TYPE idem_claim_wait_seconds histogram\n",
        "idem_dead_lettered_total{consumer=\"ledger\"} 0\n",
        "# TYPE idem_ready gauge\nidem_ready{consumer=\"ledger\"} 1\n",
        "idem_paused{consumer=\"ledger\"} 0\n",
    ] {
        assert!(text.contains(sample), "{sample} is not in\n{text}");
    }
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

/// J16: a pause says for how long already, wherever it is shown.
#[tokio::test]
async fn j16_a_pause_tells_for_how_long_already() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    admin.readiness(|json| json["ready"] == true).await;
    place.control("paused", "ada", "a look").await;
    let (_, json) = admin.readiness(|json| json["paused_for"].as_u64() >= Some(1)).await;
    assert_eq!((&json["pause"], &json["ready"]), (&json!("paused by ada: a look"), &json!(true)), "{json}");
    let gauge = async || {
        let (_, text) = admin.get("/metrics").await;
        let (_, rest) = text.split_once("\nidem_paused_for_seconds{consumer=\"ledger\"} ").expect("it is there");
        rest.lines().next().unwrap().parse::<f64>().unwrap()
    };
    assert!(gauge().await >= 1.0);
    let (_, page) = admin.get("/").await;
    assert!(page.contains("<strong>paused by ada: a look</strong><div>for "), "{page}");

    place.control("running", "", "").await;
    let (_, json) = admin.readiness(|json| json["pause"].is_null()).await;
    assert_eq!(json["paused_for"], Value::Null, "{json}");
    assert!(gauge().await < f64::EPSILON);
    assert!(!admin.get("/").await.1.contains("paused by ada"));
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

/// J16: the waiting messages, the reason and the time already are a metric and stand on the page.
#[tokio::test]
async fn j16_what_waits_is_told_by_its_cause() {
    let place = Place::new().await;
    place.publish("a", STUCK);
    let mut running =
        Worker::at(&place, "--admin 0 --handler-deadline 100ms --backoff-first 1h --backoff-max 1h").start();
    let admin = Admin::of(&mut running).await;
    let waits = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let (_, text) = admin.get("/metrics").await;
            let sample = |name: &str| {
                let (_, rest) = text.split_once(&format!("\n{name}{{consumer=\"ledger\",cause=\"retry\"}} "))?;
                rest.lines().next()?.parse::<f64>().ok()
            };
            if let (Some(1.0), Some(1.0..)) = (sample("idem_waiting"), sample("idem_waiting_longest_seconds")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    waits.await.expect("the metrics tell of the wait");
    let (_, page) = admin.get("/").await;
    assert!(page.contains("Messages that wait for") && page.contains("their next attempt"), "{page}");
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

/// J11: a worker without its intake is not healthy, and says so for as long as it takes to end.
#[tokio::test]
async fn j11_a_worker_of_which_a_task_died_is_not_healthy() {
    let place = Place::new().await;
    place.publish("a", STUCK);
    let mut running = Worker::at(&place, "--admin 0 --panic-at second-receive --drain 60s").start();
    let admin = Admin::of(&mut running).await;
    running.line(IN_HANDLER).await;
    assert_eq!(admin.get("/healthz").await, (200, "ok\n".to_owned()));
    place.publish("b", "1");
    running.line("a task of the worker died").await;
    assert_eq!(admin.get("/healthz").await, (503, "the task intake died\n".to_owned()));
    let (code, page) = admin.get("/").await;
    assert!(code == 200 && page.contains("the task intake died"), "{page}");
    running.signal("TERM").await;
    running.signal("KILL").await;
    running.ended().await;
    place.remove();
}

#[tokio::test]
async fn an_address_that_others_reach_is_warned_of() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 0.0.0.0:0").start();
    running.line("--admin is no address of this machine alone").await;
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

#[tokio::test]
async fn an_open_breaker_is_seen_and_off_means_off() {
    let place = Place::new().await;
    for number in 0..60 {
        place.publish_text(&format!(r#"{{"idempotencykey":"order-{number}"}}"#));
    }
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    let (code, json) = admin.readiness(|json| json["breaker"] == "open").await;
    assert_eq!((code, json["pause"].is_string()), (200, true), "{json}");
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();

    let place = Place::new().await;
    for number in 0..60 {
        place.publish_text(&format!(r#"{{"idempotencykey":"order-{number}"}}"#));
    }
    let mut running = Worker::at(&place, "--dead-letter-breaker off --admin 0").start();
    let admin = Admin::of(&mut running).await;
    place.orders.drained().await;
    let (_, json) = admin.readyz().await;
    assert_eq!((&json["breaker"], &json["pause"]), (&json!("closed"), &Value::Null), "after 60 dead letters in a row");
    running.signal("TERM").await;
    assert_eq!(running.ended().await.with(0).summary()["dead_lettered"], 60);
    place.remove();
}

#[tokio::test]
async fn an_address_that_cannot_be_had_ends_the_worker_with_2() {
    let place = Place::new().await;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = Worker::at(&place, "--admin").argument(&address).run().await.with(2);
    assert!(ended.why().starts_with(&format!("--admin is {address:?}, which cannot")), "{}", ended.why());
    place.remove();
}

/// A request with this head, as it is.
async fn raw(admin: &Admin, head: &str) -> String {
    let mut connection = TcpStream::connect(admin.address()).await.unwrap();
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

/// S18: a page in an operator's browser, under a name that its owner has pointed here, reads nothing.
#[tokio::test]
async fn s18_another_name_than_those_of_the_worker_is_answered_nothing() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 0 --admin-host ledger.svc").start();
    let admin = Admin::of(&mut running).await;
    for (host, status) in [("evil.example", 421), ("127.0.0.1:1", 200), ("localhost", 200), ("ledger.svc:9900", 200)] {
        for path in ["/", "/healthz", "/metrics"] {
            let answer =
                raw(&admin, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {path}: {answer}");
            assert!(status == 200 || answer.contains("--admin-host NAME"), "{answer}");
        }
    }
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}

/// S21: a client that opens connections and sends nothing, or half of a request, keeps none of them, and no probe waits
/// for it.
#[tokio::test]
async fn s21_connections_that_ask_nothing_are_bounded_in_number_and_time() {
    let place = Place::new().await;
    let mut running = Worker::at(&place, "--admin 0").start();
    let admin = Admin::of(&mut running).await;
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut connection = TcpStream::connect(admin.address()).await.unwrap();
        connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: loc").await.unwrap();
        held.push(connection);
    }
    assert_eq!(admin.get("/healthz").await, (200, "ok\n".to_owned()));
    // The oldest were closed for those that came later, the others because their heads never came.
    let ended = tokio::time::timeout(Duration::from_secs(120), async {
        for connection in &mut held {
            let mut rest = Vec::new();
            // However it ends: with nothing, with a refusal or with a reset.
            drop(connection.read_to_end(&mut rest).await);
        }
    });
    ended.await.expect("every connection ends");
    running.signal("TERM").await;
    running.ended().await.with(0);
    place.remove();
}
