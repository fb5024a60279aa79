//! Entries in a Redis, at `IDEM_REDIS_URL`, as `./servers url redis` prints it.

#![allow(clippy::unwrap_used, reason = "anything unexpected in a test is a failure")]

use std::time::Duration;

use idem_core::copies::Copies as _;
use idem_redis::RedisCopies;

const MINUTE: Duration = Duration::from_secs(60);

fn copies() -> RedisCopies {
    let url = std::env::var("IDEM_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:26380/".to_owned());
    RedisCopies::connect(&url).unwrap()
}

#[tokio::test]
async fn entries_are_kept_replaced_and_removed() {
    let (copies, key) = (copies(), format!("idem:copy:test-{:016x}", fastrand::u64(..)));
    assert_eq!(copies.get(&key).await.unwrap(), None);
    copies.put(&key, "one\0".into(), MINUTE, false).await.unwrap();
    copies.put(&key, "two".into(), MINUTE, false).await.unwrap();
    assert_eq!(copies.get(&key).await.unwrap().as_deref(), Some(&b"one\0"[..]), "an entry that is there stays");
    copies.put(&key, "three".into(), Duration::from_millis(200), true).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(copies.get(&key).await.unwrap(), None, "its time is over");
    copies.put(&key, "four".into(), MINUTE, true).await.unwrap();
    copies.remove(&key).await.unwrap();
    assert_eq!(copies.get(&key).await.unwrap(), None);
}

#[tokio::test]
async fn a_url_is_refused_without_its_password() {
    for url in ["hunter2", "http://u:hunter2@h", "redis://u:hunter2@h:port", ""] {
        let error = RedisCopies::connect(url).unwrap_err();
        let texts = format!("{error} {error:?}");
        assert!(texts.contains("rediss://") && !texts.contains("hunter2"), "{texts}");
    }
    assert!(!format!("{:?}", RedisCopies::connect("redis://u:hunter2@h").unwrap()).contains("hunter2"));
    assert!(RedisCopies::connect("rediss://u:hunter2@h:6380/2").is_ok(), "with TLS");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_of_each_call() {
    let copies = RedisCopies::connect("redis://127.0.0.1:9/").unwrap();
    for _ in 0..2 {
        let error = copies.get("idem:copy:none").await.unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
