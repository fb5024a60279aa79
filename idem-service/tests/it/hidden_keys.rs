//! S5: with `--key-secret-file`, no key is in a worker's visible output, and its keyed hash is.

use idem_core::Message;

use crate::{
    admin::Admin,
    place::{Place, purchase},
    postgres::Database,
    process::Worker,
};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// How every key of these tests begins.
const CANARY: &str = "canary-";

/// Keys, and the first 16 digits of their HMAC-SHA-256 with the secret, as another program has them.
const HANDLED: (&str, &str) = ("canary-a", "3ea4038b71d979ca");
const REUSED: (&str, &str) = ("canary-b", "debb7442e8e80378");
const MALFORMED: (&str, &str) = ("canary-c", "be506cfc5811c380");

fn publish(place: &Place) {
    // The producer's own id of a message may be the key too.
    let publish = |key: &str, payload: String| drop(place.orders.publish(Message::new(payload).with_id(key)).unwrap());
    publish(HANDLED.0, purchase(HANDLED.0, "1", 1));
    publish(HANDLED.0, purchase(HANDLED.0, "1", 1));
    publish(MALFORMED.0, format!(r#"{{"idempotencykey":"{}","customer":7}}"#, MALFORMED.0));
    publish(REUSED.0, purchase(REUSED.0, "2", 1));
    publish(REUSED.0, purchase(REUSED.0, "2", 2));
}

/// Runs a worker on these messages until it has had the last one, and looks at all its output.
async fn keys_are_hidden(place: Place, worker: Worker) {
    let secret = place.folder.join("key-secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    publish(&place);
    let worker = worker.argument("--key-secret-file").argument(&secret.display().to_string());
    let mut running = worker.variable("RUST_LOG", "trace").start();
    let admin = Admin::of(&mut running).await;
    running.line("used before for another payload").await;
    admin.readiness(|json| json["pause"].is_string()).await;
    let mut told = Vec::new();
    for path in ["/", "/metrics", "/readyz", "/healthz"] {
        told.push((path, admin.get(path).await.1));
    }
    running.signal("TERM").await;
    let ended = running.ended().await.with(0);
    told.extend([("the summary", ended.output), ("the log", ended.log)]);
    let is_told = |place: &str, text: &str| {
        let (_, told) = told.iter().find(|(other, _)| *other == place).unwrap();
        assert!(told.contains(text), "{place} lacks {text}:\n{told}");
    };
    is_told("the log", &format!("Skipping duplicate: {}", HANDLED.1));
    is_told("the log", REUSED.1);
    is_told("the log", MALFORMED.1);
    is_told("/", &format!("key {}", REUSED.1));
    is_told("/", &format!("key {}", MALFORMED.1));
    is_told("/readyz", &format!("conflict on key {}", REUSED.1));
    for (place, text) in &told {
        let leak = text.lines().find(|line| line.contains(CANARY));
        assert!(leak.is_none(), "{place} has a key: {}", leak.unwrap_or_default());
    }
    place.remove();
}

#[tokio::test]
async fn s5_no_key_is_shown_on_postgres() {
    for arguments in ["--log-format text", "--log-format json --store tokio-postgres", "--batch-handler"] {
        let (database, place) = (Database::fresh().await, Place::new().await);
        let (url, socket) = (database.url(), place.socket());
        let start = format!("--database-url {url} --socket {socket} --consumer ledger --migrate --create-tables");
        let worker = Worker::bare(&format!("{start} --lanes 1 --on-conflict halt --admin 0 {arguments}"));
        keys_are_hidden(place, worker).await;
        database.remove().await;
    }
}

#[tokio::test]
async fn s5_no_key_is_shown_on_sqlite() {
    let place = Place::new().await;
    let worker = Worker::at(&place, "--on-conflict halt --admin 0");
    keys_are_hidden(place, worker).await;
}

#[tokio::test]
async fn s5_a_secret_that_cannot_be_used_is_refused_and_not_shown() {
    let place = Place::new().await;
    let file = place.folder.join("key-secret");
    for (secret, why) in [(None, "cannot be read"), (Some("hunter2"), "32 bytes"), (Some(" \n"), "32 bytes")] {
        if let Some(secret) = secret {
            std::fs::write(&file, secret).unwrap();
        }
        let worker = Worker::at(&place, "").variable("IDEM_KEY_SECRET_FILE", &file.display().to_string());
        let ended = worker.run().await.with(2);
        let line = ended.why();
        assert!(line.contains("--key-secret-file") && line.contains(why) && !line.contains("hunter2"), "{line}");
    }
    place.remove();
}
