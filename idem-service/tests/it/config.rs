//! The file of settings: its possible content, and the settings that win over it.

use crate::{place::Place, process::Worker};

/// A worker with this file and nothing else.
fn worker(place: &Place, settings: &str) -> Worker {
    let path = place.folder.join("worker.toml");
    std::fs::write(&path, settings).unwrap();
    Worker::bare("--config").argument(&path.display().to_string())
}

#[tokio::test]
async fn a_file_alone_starts_a_worker() {
    let place = Place::new().await;
    place.publish("a", "1");
    let settings = format!(
        "database-url = \"{}\"\nsocket = \"{}\"\nconsumer = \"ledger\"\nkey = [\"header:absent\", \
         \"json:/idempotencykey\"]\nmigrate = true\ncreate-tables = true\nlanes = 1\nuntil-idle = \"50ms\"\n\
         dead-letter-breaker = false\n",
        place.url(),
        place.socket()
    );
    let ended = worker(&place, &settings).run().await.with(0);
    assert!(ended.log.contains("--key=header:absent --key=json:/idempotencykey"), "{}", ended.log);
    assert!(!ended.log.contains(&place.url()), "{}", ended.log);
    assert_eq!(place.purchases().await, ["a"]);
    let path = place.folder.join("worker.toml").display().to_string();
    let again = Worker::bare("").variable("IDEM_CONFIG", &path).run().await.with(0);
    assert_eq!(again.summary()["processed"], 0);
    place.remove();
}

#[tokio::test]
async fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let place = Place::new().await;
    // It ends once it has logged its settings.
    let settings =
        "database-url = \"sqlite://x\"\nsocket = \"/s\"\nstore = \"tokio-postgres\"\nconsumer = \"of-file\"\n";
    let log = async |worker: Worker| worker.run().await.with(2).log;
    let from_file = log(worker(&place, settings)).await;
    assert!(from_file.contains("--consumer=of-file"), "{from_file}");
    let from_variable = log(worker(&place, settings).variable("IDEM_CONSUMER", "of-variable")).await;
    assert!(from_variable.contains("--consumer=of-variable") && !from_variable.contains("of-file"), "{from_variable}");
    let both = worker(&place, settings).variable("IDEM_CONSUMER", "of-variable").argument("--consumer=of-flag");
    let from_flag = log(both).await;
    assert!(from_flag.contains("--consumer=of-flag") && !from_flag.contains("of-variable"), "{from_flag}");
    let settings = format!("{settings}retention = \"3d\"\n");
    assert!(log(worker(&place, &settings)).await.contains("--retention=3d"));
    assert!(!log(worker(&place, &settings).argument("--retention=4d")).await.contains("--retention=3d"));
    place.remove();
}

#[tokio::test]
async fn what_is_wrong_in_a_file_is_one_line_without_its_values() {
    let place = Place::new().await;
    for (settings, line) in [
        ("consumr = \"hunter2\"", "has the setting consumr, which is unknown; did you mean consumer?"),
        ("consumer = \"c\"\nlanes = hunter2", "is no TOML: line 2: "),
        ("database-url = \"hunter2", "is no TOML: line 1: "),
        ("lanes = 2\nlanes = 2", "is no TOML: line 2: duplicate key"),
        ("secret = \"hunter2\"", "--secret has a wrong value (it is not shown)"),
        ("lanes = \"two\"", "--lanes is \"two\", but it must be a whole number from 1 to 1024"),
        ("lanes = 2", "--socket (or the variable MEMORY_SOCKET) and"),
        ("until-idle = 5", "--until-idle is \"5\", but write a number and one of the units ms, s, m, h, d"),
    ] {
        let ended = worker(&place, settings).run().await.with(2);
        assert!(ended.why().contains(line), "{settings}\n{}", ended.why());
        assert!(!ended.log.contains("hunter2"), "{}", ended.log);
        assert_eq!(ended.log.lines().count(), 1, "{}", ended.log);
    }
    let ended = Worker::bare("--config /nowhere/worker.toml").run().await.with(2);
    assert!(ended.why().contains("/nowhere/worker.toml of --config cannot be read"), "{}", ended.why());
    place.remove();
}

/// S22: everybody on the machine can read the command line.
#[tokio::test]
async fn s22_a_password_on_the_command_line_is_warned_of() {
    let rest = "--store tokio-postgres --consumer c --socket /s --until-idle 1s";
    for (url, told) in [
        ("memory://ann:hunter2@h/d", true),
        ("memory://h/d?user=ann&password=hunter2", true),
        ("memory://ann@h/d?password=@file", false),
    ] {
        let log = Worker::bare(&format!("--database-url {url} {rest}")).run().await.with(2).log;
        assert_eq!(log.contains("the password in --database-url"), told, "{log}");
        assert!(!log.contains("hunter2"), "{log}");
    }
    let log = Worker::bare(rest).variable("DATABASE_URL", "memory://ann:hunter2@h/d").run().await.with(2).log;
    assert!(!log.contains("the password in"), "{log}");
}

/// S22: a file that holds a password and that every user may read is warned of, and one without a secret is not.
#[cfg(unix)]
#[tokio::test]
async fn s22_a_file_with_secrets_that_others_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;

    let place = Place::new().await;
    let secret =
        "database-url = \"sqlite://user:canary@x\"\nstore = \"tokio-postgres\"\nconsumer = \"c\"\nsocket = \"/s\"\n";
    let log = async |mode: u32, settings: &str, worker: fn(Worker) -> Worker| {
        let start = worker(self::worker(&place, settings));
        std::fs::set_permissions(place.folder.join("worker.toml"), std::fs::Permissions::from_mode(mode)).unwrap();
        start.run().await.with(2).log
    };
    for (mode, told) in [(0o644, "read by everybody"), (0o666, "written by others"), (0o660, "written by others")] {
        let log = log(mode, secret, |worker| worker).await;
        assert!(log.contains(told) && log.contains("--config") && !log.contains("canary"), "{mode:o}: {log}");
    }
    for mode in [0o600, 0o640] {
        let log = log(mode, secret, |worker| worker).await;
        assert!(!log.contains("holds a secret"), "{mode:o}: {log}");
    }
    let plain = "store = \"tokio-postgres\"\nconsumer = \"c\"\nsocket = \"/s\"\n";
    let without_password =
        "database-url = \"sqlite://x\"\nstore = \"tokio-postgres\"\nconsumer = \"c\"\nsocket = \"/s\"\n";
    for settings in [plain, without_password] {
        let log = log(0o644, settings, |worker| worker.variable("DATABASE_URL", "sqlite://x")).await;
        assert!(!log.contains("holds a secret"), "{log}");
    }
    place.remove();
}
