//! Passwords and payloads are in no log, no error and no output.

use crate::{
    place::{Place, purchase},
    process::Worker,
};

const CANARY: &str = "hunter2";

async fn is_never_printed(worker: Worker) {
    let ended = worker.variable("RUST_LOG", "trace").run().await;
    assert!(!ended.log.is_empty());
    for text in [&ended.log, &ended.output] {
        assert!(!text.contains(CANARY), "{text}");
    }
}

#[tokio::test]
async fn s9_a_password_is_printed_nowhere() {
    let url = format!("postgres://idem:{CANARY}@127.0.0.1:1/idem");
    let start = "--consumer c --socket /nowhere --startup-timeout 100ms --migrate --create-tables";
    for format in ["text", "json"] {
        is_never_printed(Worker::bare(start).variable("DATABASE_URL", &url).argument("--log-format").argument(format))
            .await;
    }
    is_never_printed(Worker::bare(start).argument("--database-url").argument(&url)).await;
    for wrong in [
        // Separated by a blank that should not be there, a flag that is misspelt, a URL that cannot be read.
        vec![url.as_str()],
        vec!["--databse-url", &url],
        vec![&format!("--databse-url={url}")],
        vec!["--database-url", &format!("postgres://idem:{CANARY}@h:port/x")],
        vec!["--database-url", &format!("postgres://idem:{CANARY}@h/x?sslmode={CANARY}")],
        vec!["--database-url", &url, "--database-url", &url],
        vec!["--migrate=hunter2"],
        vec!["--secret", CANARY],
        vec!["--secret", "1", "--lanes", "x"],
    ] {
        let worker = wrong.into_iter().fold(Worker::bare(start), Worker::argument);
        is_never_printed(worker).await;
    }
}

#[tokio::test]
async fn s4_a_payload_is_printed_nowhere() {
    let place = Place::new().await;
    place.publish("a", CANARY);
    place.publish_text(&purchase("a", CANARY, 1));
    place.publish_text(&format!(r#"{{"idempotencykey":"b","customer":"{CANARY}","cds":"{CANARY}"}}"#));
    place.publish_text(CANARY);
    is_never_printed(Worker::at(&place, "--until-idle 200ms")).await;
    place.remove();
}
