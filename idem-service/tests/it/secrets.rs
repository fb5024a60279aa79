//! No log, error or output holds passwords or payloads.

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

/// Docker and Kubernetes mount secrets as files.
#[tokio::test]
async fn s37_a_secret_may_be_in_the_file_that_a_variable_names() {
    let place = Place::new().await;
    let file = place.folder.join("database-url");
    let start = format!("--socket {} --consumer ledger --migrate --create-tables --until-idle 200ms", place.socket());
    let worker = |variable: &str| Worker::bare(&start).variable(variable, &file.display().to_string());
    for (content, why) in [(None, "cannot be read"), (Some("\n"), "is empty")] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let ended = worker("DATABASE_URL_FILE").run().await.with(2);
        let line = ended.why();
        assert!(line.contains("DATABASE_URL_FILE") && line.contains(why), "{line}");
    }
    std::fs::write(&file, format!("{}\n", place.url())).unwrap();
    for variable in ["DATABASE_URL_FILE", "IDEM_DATABASE_URL_FILE"] {
        place.publish(variable, "1");
        let ended = worker(variable).run().await.with(0);
        // A password in a file is in no list of processes.
        assert!(!ended.log.contains("list of processes"), "{}", ended.log);
    }
    assert_eq!(place.purchases().await, ["DATABASE_URL_FILE", "IDEM_DATABASE_URL_FILE"]);
    // The variable wins over the file of settings, and the flag over the variable.
    let settings = place.folder.join("settings.toml");
    std::fs::write(&settings, format!("database-url = \"postgres://idem:{CANARY}@127.0.0.1:1/idem\"\n")).unwrap();
    worker("DATABASE_URL_FILE").variable("IDEM_CONFIG", &settings.display().to_string()).run().await.with(0);
    std::fs::write(&file, format!("postgres://idem:{CANARY}@127.0.0.1:1/idem\n")).unwrap();
    worker("DATABASE_URL_FILE").argument("--database-url").argument(&place.url()).run().await.with(0);
    let both = worker("DATABASE_URL_FILE").variable("DATABASE_URL", &place.url()).run().await.with(2);
    assert!(both.why().contains("DATABASE_URL and DATABASE_URL_FILE are both set"), "{}", both.why());
    let wrong = worker("DATABASE_URL_FILE").argument("--startup-timeout").argument("100ms");
    let wrong = wrong.variable("RUST_LOG", "trace").run().await;
    assert!(!wrong.log.contains(CANARY) && !wrong.log.contains("list of processes"), "{}", wrong.log);
    place.remove();
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
