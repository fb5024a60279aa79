//! The answers of the endpoints, without a worker behind them.

use idem_core::CancellationToken;

use super::*;

fn admin() -> Admin {
    let status = Arc::new(Status::new(Some("<b>ledger</b>"), CancellationToken::new()));
    Admin { status, recorded: Some(Recorded::default()) }
}

async fn answer(admin: &Admin, method: &str, path: &str) -> (Response<Whole>, String) {
    let method = method.parse().expect("a method");
    let response = admin.answer(&method, path).await.expect("an endpoint");
    let text = String::from_utf8(response.body().0.to_vec()).expect("text");
    (response, text)
}

#[tokio::test]
async fn the_page_allows_no_script_and_nothing_from_elsewhere() {
    let (response, html) = answer(&admin(), "GET", "/").await;
    let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().expect("text").to_owned();
    assert!(policy.starts_with("default-src 'none'; style-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("script"), "{policy}");
    assert!(html.contains("&lt;b&gt;ledger&lt;/b&gt;") && !html.contains("<b>"), "{html}");
    // A link is followed by a person, and sends no referrer; it loads nothing.
    let own =
        html.replace("<a rel=\"noreferrer\" href=\"https://github.com/idem-rs/idem/blob/main/docs/", "<a href=\"");
    assert!(own != html && !own.contains("http:") && !own.contains("https:") && !own.contains("<script"), "{html}");
    assert!(!page::STYLE.contains("url("), "a style sheet may load things too");
    let (response, style) = answer(&admin(), "GET", page::STYLE_PATH).await;
    assert_eq!((response.status(), style.as_str()), (StatusCode::OK, page::STYLE));
}

#[tokio::test]
async fn nothing_can_be_changed() {
    for path in ["/", page::STYLE_PATH, "/metrics", "/healthz", "/readyz"] {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let (response, _) = answer(&admin(), method, path).await;
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
}

/// A task that shares its only thread with the endpoint goes on while 10,000 series are written.
#[tokio::test(flavor = "current_thread")]
async fn a_scrape_of_10_000_series_does_not_block_the_worker() {
    let recorded = Recorded::default();
    let admin = Admin { recorded: Some(recorded.clone()), ..admin() };
    metrics::with_local_recorder(&recorded, || {
        for number in 0..10_000 {
            metrics::counter!("of_the_application", "number" => number.to_string()).increment(1);
        }
    });
    let scrape = tokio::spawn(async move { answer(&admin, "GET", "/metrics").await });
    // The scrape has its turn, and then it is this task's: had it been written on this thread, it would be done.
    tokio::task::yield_now().await;
    assert!(!scrape.is_finished(), "the series were written on the thread of the worker");
    let (response, text) = scrape.await.expect("an answer");
    assert_eq!(
        (response.status(), text.lines().filter(|line| line.ends_with("} 1")).count()),
        (StatusCode::OK, 10_000)
    );
}
