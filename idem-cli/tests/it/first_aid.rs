//! First aid at 3 a.m.: the commonest mistakes are answered in words, with the cure.

use std::process::{Command, Stdio};

use crate::fixture::{Fixture, command};

#[tokio::test]
async fn a_wrong_database_or_login_is_said_in_words() {
    let fixture = Fixture::empty().await;
    let nowhere = format!("{}/nowhere_{}", fixture.url.rsplit_once('/').unwrap().0, fixture.schema);
    let nobody = fixture.url.replace("//idem:", "//nobody_here:");
    for (url, wanted) in [
        (nowhere.as_str(), "SQLSTATE 3D000, the database that the URL names does not exist"),
        (nobody.as_str(), "SQLSTATE 28000, the server knows no such login"),
        ("mysql://h/d", "--database-url must begin with postgres://, sqlite: or dynamodb: (its value is not shown)"),
        (
            "sqlite:///no/such/folder/orders.db",
            "the database's folder /no/such/folder does not exist. Make it, or correct the path",
        ),
        ("sqlite:///proc/orders.db", "the database /proc/orders.db does not exist. Correct the path"),
    ] {
        for arguments in [&["doctor"][..], &["stats"], &["cleanup"]] {
            let answer = command(&[("DATABASE_URL", url)], arguments);
            assert!(answer.err.contains(wanted), "{arguments:?}: {answer:?}");
            assert!(answer.status == 2 && !answer.err.contains("tries again"), "{arguments:?}: {answer:?}");
        }
    }
    fixture.run("SELECT 1").await;
    fixture.store.disconnect().await;
}

/// A28: a command behind a pooler says what a worker says, which parameter was refused and what to do.
#[test]
fn a28_a_parameter_that_a_pooler_refuses_is_named_with_its_cure() {
    let url = std::env::var("IDEM_PGBOUNCER_URL");
    let url = url.unwrap_or_else(|_| "postgres://idem@127.0.0.1:26432/idem".to_owned());
    for arguments in [&["doctor"][..], &["outbox", "list"], &["cleanup"]] {
        let cure = "Have PgBouncer ignore it: add extra_float_digits to its ignore_startup_parameters";
        command(&[("DATABASE_URL", &url)], arguments).refused(cure);
    }
}

#[tokio::test]
async fn a28_a_parameter_that_the_server_refuses_is_named_and_its_value_is_not() {
    let fixture = Fixture::empty().await;
    let url = format!("{}?options[work_mem]=s3cr3t", fixture.url);
    let answer = command(&[("DATABASE_URL", &url)], &["doctor"]);
    assert!(!answer.err.contains("s3cr3t"), "{answer:?}");
    answer.refused("the server refuses the parameter work_mem that comes with the connection. Take it out");
    fixture.store.disconnect().await;
}

#[tokio::test]
async fn cleanup_without_tables_says_so_and_that_it_is_no_outage() {
    let fixture = Fixture::empty().await;
    fixture.idem("cleanup").refused("idem's tables are not there: check --schema, or run `idem migrate up`");
    fixture.store.disconnect().await;
}

/// The word that a person tries first must not lead to `erase`, which it resembles.
#[tokio::test]
async fn pause_and_resume_are_found_where_they_are_looked_for() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    fixture.idem("pause orders --reason deploy").ok();
    assert!(fixture.idem("consumers list").ok().contains("paused"));
    fixture.idem("resume orders").ok();
    assert!(!fixture.idem("consumers list").ok().contains("paused"));
    fixture.drop().await;
}

#[tokio::test]
async fn what_goes_to_psql_names_the_database() {
    let fixture = Fixture::empty().await;
    assert!(fixture.idem("migrate up").ok().contains(r#"idem migrate print --roles | psql -1 "$DATABASE_URL""#));
    fixture.deliver(&["order-1"]).await;
    fixture.idem("retention set orders 14d --yes").ok();
    fixture.drop().await;
}

/// One value a line, and whole seconds; JSON has all of it.
#[tokio::test]
async fn one_thing_is_shown_one_value_a_line() {
    let fixture = crate::dead_letters::fixture().await;
    let shown = fixture.idem("show order-3").ok();
    let letter = fixture.idem("dead-letters show 1").ok();
    for (text, name, value) in [(&shown, "consumer", "orders"), (&letter, "reason", "permanent"), (&letter, "id", "1")]
    {
        let is_line = |line: &str| line.split_once("  ").is_some_and(|(n, v)| n == name && v.trim() == value);
        assert!(text.lines().any(is_line), "{name}: {value} in\n{text}");
    }
    assert!(letter.lines().count() > 15 && letter.lines().all(|line| line.len() < 120), "{letter}");
    let at = shown.lines().find(|line| line.starts_with("processed at")).unwrap();
    assert!(at.ends_with('Z') && !at.contains('.'), "{at}");
    let exact = fixture.idem("show order-3 --json").json();
    assert!(exact["records"][0]["processed_at"].as_str().unwrap().contains('.'), "{exact}");
    fixture.drop().await;
}

/// `idem doctor | head -1` and `| less`, left early.
#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let fixture = Fixture::new().await;
    for arguments in [&["migrate", "print"][..], &["doctor", "--json"], &["completions", "bash"]] {
        let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
        idem.args(arguments).env("DATABASE_URL", &fixture.url).env("IDEM_SCHEMA", &fixture.schema);
        let mut idem = idem.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(idem.stdout.take());
        let output = idem.wait_with_output().unwrap();
        // The server that the tests share may have something for the doctor.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    fixture.drop().await;
}

/// A message that was replayed and processed must not look open again, or an operator has the producer send
/// it once more.
#[tokio::test]
async fn an_erased_key_still_says_how_its_replay_ended_and_who_erased_it() {
    let fixture = crate::dead_letters::fixture().await;
    let ended = "UPDATE dead_letters SET replayed_at = now(),
        replay_outcome = 'processed' WHERE id = 1";
    fixture.run(ended).await;
    fixture.idem("erase order-1 --reason art-17 --yes").ok();
    let listed = fixture.idem("dead-letters list --json").json();
    let letter = listed["dead_letters"].as_array().unwrap().iter().find(|row| row["id"] == 1).unwrap().clone();
    assert_eq!((letter["replay"].as_str(), letter["key"].as_str()), (Some("processed"), None), "{letter}");
    let shown = fixture.idem("show order-1 --json").json();
    assert_eq!(shown["audit"][0]["action"], "erase", "{shown}");
    assert!(shown["audit"][0]["details"].as_str().unwrap().ends_with(": art-17"), "{shown}");
    fixture.drop().await;
}
