//! Programs that use idem's packages: the README's, that of `idem new` and those of the pages on HTTP, built outside of the workspace and run on real
//! servers. `./test outside` runs one of `idem new`, `./test --all outside` all; by hand: `cargo test -p idem-cli --test outside`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test anything unexpected is a failure"
)]

mod broker;
mod http;
mod packages;
mod project;

use self::project::Project;

const README: &str = include_str!("../../../README.md");
const TESTING: &str = include_str!("../../../docs/guide/testing.md");

/// The blocks of the page that are in this language, as they stand there.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let parts = page.split("\n```").skip(1).step_by(2);
    let blocks = parts.filter_map(|part| part.split_once('\n')).filter(|(marked, _)| *marked == language);
    blocks.map(|(_, text)| format!("{text}\n")).collect()
}

/// The block with this in it.
fn block(page: &str, language: &str, mark: &str) -> String {
    let found: Vec<String> = blocks(page, language).into_iter().filter(|text| text.contains(mark)).collect();
    let [block] = &found[..] else { panic!("{} blocks of {language} have {mark}", found.len()) };
    block.clone()
}

/// The first page's program is the one that `idem new` writes, so that both are tried here: with its own test on PostgreSQL,
/// the guide's test in memory next to it, and then as a worker.
#[tokio::test]
async fn the_readmes_program_on_kafka_and_postgres() {
    let project = Project::new("kafka", "postgres");
    for (page, language, mark, path) in [
        (README, "toml", "[dependencies]", "Cargo.toml"),
        (README, "rust", "fn main() -> ExitCode", "src/main.rs"),
        (TESTING, "rust", "PgConnection::connect", "src/tests.rs"),
    ] {
        let (shown, written) = (block(page, language, mark), project.read(path));
        // It also has the paths of this test's packages.
        let written = written.split("\n[patch.crates-io]").next().unwrap();
        assert_eq!(shown.trim_end(), written.trim_end(), "{path} of the page and of `idem new`");
    }
    project.write("tests/memory.rs", &block(TESTING, "rust", "MemoryStore::new()"));
    project.works().await;
}

#[tokio::test]
async fn the_other_workers_that_idem_new_writes() {
    if std::env::var_os("IDEM_TEST_ALL").is_none() {
        return;
    }
    for (broker, store) in [
        ("kafka", "sqlite"),
        ("rabbitmq", "sqlite"),
        ("rabbitmq", "postgres"),
        ("sqs", "postgres"),
        ("sqs", "sqlite"),
        ("sqs", "dynamodb"),
    ] {
        Project::new(broker, store).works().await;
    }
}
