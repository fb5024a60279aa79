//! An operator's view of a running service: metrics, the page and the log.

use idem_testkit::proxy::Proxy;

use super::{
    client::Request,
    fixture::{Api, Books, Fixture, until},
};

/// How many repeats wait in the memory of a service that has an admin endpoint.
pub(crate) async fn waiting(api: &Api) -> usize {
    let metrics = Request::new("GET", "/metrics").answer(&admin(api)).await.text();
    let sample = "idem_http_waiting{consumer=\"payments\",place=\"memory\"} ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(sample));
    value.map_or(0, |value| value.parse().expect("a number"))
}

/// The address of the admin endpoint, from the log.
pub(crate) fn admin(api: &Api) -> String {
    let log = api.process.logged();
    let line = log.lines().find(|line| line.contains("serving /metrics")).expect("it serves them");
    line.split("address=").nth(1).expect("its address").trim().to_owned()
}

/// W77: the outcomes of requests are scraped by route, and stand on the page; neither names a tenant or a key.
#[tokio::test(flavor = "multi_thread")]
async fn w77_metrics_and_page_tell_what_became_of_requests() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--admin", "127.0.0.1:0"]).await;
    let (address, admin) = (&api.address, admin(&api));
    let look = async |path: &str| {
        let answer = Request::new("GET", path).answer(&admin).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.text().to_owned()
    };
    let page = look("/").await;
    assert!(page.contains("serving") && page.contains("there was none to a protected route yet"), "{page}");
    let pay = |cents| Request::pay("order-canary", "00001", cents);
    for (request, status) in [
        (pay(1177), 201),
        (pay(1177), 201),
        (pay(9999), 422),
        (pay(1).without("idempotency-key"), 400),
        (pay(1).without("authorization"), 401),
    ] {
        assert_eq!(request.answer(address).await.status, status);
    }
    let metrics = look("/metrics").await;
    let of =
        |outcome: &str| format!("{{consumer=\"payments\",route=\"POST /transactions\",outcome=\"{outcome}\"}} 1\n");
    for outcome in ["first", "replayed", "key-reused", "key-missing", "unauthenticated"] {
        let (requests, times) = (
            format!("idem_http_requests_total{}", of(outcome)),
            format!("idem_http_time_seconds_count{}", of(outcome)),
        );
        assert!(metrics.contains(&requests) && metrics.contains(&times), "{requests}{times}: {metrics}");
    }
    for sample in [
        "idem_http_waiting{consumer=\"payments\",place=\"memory\"} 0\n",
        "idem_http_waiting{consumer=\"payments\",place=\"database\"} 0\n",
        "idem_http_waiting_max{consumer=\"payments\"} 4\n",
        "idem_ready{consumer=\"payments\"} 1\n",
    ] {
        assert!(metrics.contains(sample), "{sample} is not in {metrics}");
    }
    let page = look("/").await;
    let cells = ["POST /transactions", "1", "1", "3"].map(|cell| format!("<td class=\"\">{cell}</td>")).concat();
    assert!(page.contains(&format!("{cells}<td class=\"quiet\">0</td>")), "{cells} is not in {page}");
    for text in [metrics, page] {
        assert!(!text.contains("canary") && !text.contains("acme"), "{text}");
    }
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W78: the span of a request stands in the log with its key, and with a keyed hash in its place where keys are hidden.
#[tokio::test(flavor = "multi_thread")]
async fn w78_where_keys_are_hidden_the_span_of_a_request_hides_it() {
    let fixture = Fixture::new("http").await;
    let proxy = Proxy::to(fixture.host()).await.expect("a proxy");
    let url = fixture.url.replace(fixture.host(), proxy.address());
    let secret = std::env::temp_dir().join(format!("idem-key-secret-{:016x}", fastrand::u64(..)));
    std::fs::write(&secret, "k".repeat(64)).expect("a file");
    for hides in [false, true] {
        let own = ["--listen", "127.0.0.1:0", "--database-url", &url, "--cleanup-every", "off"];
        let hiding = ["--key-secret-file", secret.to_str().expect("a path")];
        let flags = own.into_iter().chain(hiding.into_iter().filter(|_| hides));
        let arguments: Vec<String> = flags.map(str::to_owned).collect();
        let api = fixture.start_with(&arguments, &[("RUST_LOG", "info,idem::spans=debug")]).await;
        // The line that says so is written within the request's span.
        proxy.refuse(true);
        proxy.cut().await;
        assert_eq!(Request::pay("order-canary", "00001", 100).answer(&api.address).await.status, 503);
        proxy.refuse(false);
        let log = api.stop().await.log;
        let line = log.lines().find(|line| line.contains("the database cannot be asked")).expect("it is told");
        assert!(line.contains("request{") && line.contains("http.route=\"/transactions\""), "{line}");
        assert!(line.contains("idem.key="), "{line}");
        assert_eq!(log.contains("canary"), !hides, "{log}");
    }
    std::fs::remove_file(secret).expect("it is there");
    fixture.remove().await;
}

/// W131: a service that an operator has paused charges nothing, tells so, and goes on answering for what was done.
#[tokio::test(flavor = "multi_thread")]
async fn w131_a_paused_service_charges_nothing() {
    let fixture = Fixture::new("http").await;
    let api = fixture.start(&["--admin", "127.0.0.1:0"]).await;
    let admin = admin(&api);
    let pay = async |key: &str| Request::pay(key, "00001", 1177).answer(&api.address).await;
    let set = async |state: &str| {
        let text =
            "INSERT INTO idem.controls (consumer, state, reason) SELECT id, $1, 'their deploy' FROM idem.consumers
            WHERE name = 'payments' ON CONFLICT (consumer) DO UPDATE SET state = $1, epoch = controls.epoch + 1";
        sqlx::query(text).bind(state).execute(fixture.pool()).await.expect("the control");
    };
    let first = pay("order-1").await;
    assert_eq!(first.status, 201);
    set("paused").await;
    let pause = async || Request::new("GET", "/readyz").answer(&admin).await.json()["pause"].clone();
    until("the pause", async || pause().await.to_string().contains("their deploy")).await;
    let refused = pay("order-2").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{refused:?}");
    assert!(refused.json()["type"].as_str().expect("a type").ends_with("/paused"), "{refused:?}");
    let again = pay("order-1").await;
    assert_eq!((again.told(), again.header("idempotent-replayed")), (first.told(), Some("true")));
    assert_eq!(fixture.books().await, Books::of(1, 1177));
    set("running").await;
    until("the end of the pause", async || pay("order-2").await.status == 201).await;
    assert!(pause().await.is_null());
    assert_eq!(fixture.books().await, Books::of(2, 2 * 1177));
    assert!(api.stop().await.status.success());
    fixture.remove().await;
}

/// W96: a service in whose profile records have a day to live says for how long an expired one is left, also where it cleans
/// nothing itself.
#[tokio::test(flavor = "multi_thread")]
async fn w96_records_that_outlive_their_day_are_seen() {
    let fixture = Fixture::new("http").await;
    let old = "UPDATE idem.processed_messages SET expires_at = now() - interval '2 hours'";
    let guardia = ["--profile", "guardia", "--admin", "127.0.0.1:0"];
    let api = fixture.start(&guardia).await;
    let key = "0b7f5c52-6d4e-4d8f-8f3e-0d7a1a0f3f01";
    assert_eq!(Request::pay(key, "00001", 1177).answer(&api.address).await.status, 201);
    sqlx::raw_sql(old).execute(fixture.pool()).await.expect("it has expired");
    let log = api.stop().await.log;
    assert!(log.contains("with this profile another process has to remove expired records within 3600s"), "{log}");
    for (profile, most) in [(&guardia[..], Some(3_600.0)), (&["--admin", "127.0.0.1:0"], None)] {
        let api = fixture.start(profile).await;
        let admin = admin(&api);
        let sample = async |name: &str| {
            let metrics = Request::new("GET", "/metrics").answer(&admin).await;
            let (text, sample) = (metrics.text(), format!("{name}{{consumer=\"payments\"}}"));
            text.lines().find(|line| line.starts_with(&sample))?.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        // It is looked for once the service serves.
        until("the lag", async || sample("idem_cleanup_lag_seconds").await.is_some_and(|lag| lag > 7_100.0)).await;
        assert_eq!(sample("idem_cleanup_lag_max_seconds").await, most);
        assert!(api.stop().await.status.success());
    }
    fixture.remove().await;
}
