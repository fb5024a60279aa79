//! S4, S5, S9: secrets are not shown, whatever goes wrong.

use crate::fixture::{Fixture, PASSWORD, PAYLOAD, command};

#[tokio::test]
async fn s9_no_command_shows_the_password_and_none_but_one_a_payload() {
    let fixture = crate::dead_letters::fixture().await;
    for arguments in [
        "consumers list",
        "show order-1",
        "stats",
        "workers",
        "stuck",
        "doctor",
        "dead-letters list",
        "dead-letters show 1",
        "cleanup",
        "cleanup --print-sql",
        "migrate status",
        "migrate print",
        "migrate up",
        "consumers pause orders --reason x",
        "forget order-1 --consumer orders --reason x",
        "forgotten list",
        "erase order-1 --reason x",
        "--help",
        "help forget",
        "no-such-command",
        "show",
        "completions bash",
    ] {
        for json in ["", " --json"] {
            let answer = fixture.idem(&format!("{arguments}{json}"));
            let all = answer.out + &answer.err;
            assert!(!all.contains(PASSWORD) && !all.contains(PAYLOAD), "{arguments}: {all}");
        }
    }
    fixture.drop().await;
}

#[test]
fn s9_a_url_that_is_wrong_or_in_the_wrong_place_is_not_repeated() {
    let secret = format!("postgres://idem:{PASSWORD}@127.0.0.1:1/idem");
    let answer = command(&[("DATABASE_URL", &secret)], &["stats"]);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(!answer.err.contains(PASSWORD), "{answer:?}");
    let wrong = [format!("mysql://u:{PASSWORD}@h/d"), format!("postgres://u:{PASSWORD}@h:port/d"), PASSWORD.to_owned()];
    for url in &wrong {
        for command_name in ["stats", "cleanup", "doctor", "migrate"] {
            let arguments = [command_name, if command_name == "migrate" { "up" } else { "--json" }];
            let answer = command(&[("DATABASE_URL", url)], &arguments);
            assert_eq!(answer.status, 2, "{answer:?}");
            assert!(!answer.err.contains(PASSWORD), "{answer:?}");
        }
    }
    let answer = command(&[], &["stats", &secret]);
    assert_eq!(answer.status, 2);
    assert!(!answer.err.contains(PASSWORD), "{answer:?}");
    command(&[], &["stats"])
        .refused("--database-url (or the variable DATABASE_URL or DATABASE_URL_FILE) must be given");
}

/// S9: the URL comes from a file too, as a secret is mounted. Which file it is, and what is in it, is shown nowhere.
#[tokio::test]
async fn s9_the_url_comes_from_a_file() {
    let fixture = Fixture::new().await;
    let file = std::env::temp_dir().join(format!("{}-url", fixture.schema));
    std::fs::write(&file, format!("{}\r\n", fixture.url)).unwrap();
    let path = file.to_str().unwrap();
    let of_file = [("DATABASE_URL_FILE", path), ("IDEM_SCHEMA", fixture.schema.as_str())];
    command(&of_file, &["stats"]).ok();
    // A flag is nearer than a variable.
    let other = command(&of_file, &["stats", "--database-url", "postgres://idem@127.0.0.1:1/idem"]);
    assert_eq!(other.status, 3, "{other:?}");
    let both = [("DATABASE_URL", fixture.url.as_str()), ("DATABASE_URL_FILE", path)];
    command(&both, &["stats"]).refused("both set");
    std::fs::write(&file, "\n").unwrap();
    command(&of_file, &["stats"]).refused("is empty");
    std::fs::remove_file(&file).unwrap();
    let gone = command(&of_file, &["stats"]);
    assert!(!gone.err.contains(path), "{gone:?}");
    gone.refused("cannot be read");
    command(&of_file, &["completions", "bash"]).ok();
    fixture.drop().await;
}

/// S5: a producer's text does not steer an operator's terminal.
#[tokio::test]
async fn s5_control_characters_are_escaped() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture.run(r"UPDATE worker_runs SET host = E'\x1b[2Jhost\nrow'").await;
    let shown = fixture.idem("workers").ok();
    assert!(shown.contains(r"\u{1b}[2Jhost\nrow") && !shown.contains('\u{1b}'), "{shown:?}");
    fixture.drop().await;
}
