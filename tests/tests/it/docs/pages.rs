//! The pages of `docs`: the guide's commands run, its statements do what the text says, all links lead somewhere.

use std::path::Path;

use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx};
use idem_sqlx::PostgresStore;
use idem_testkit::{Decide as _, message};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, query_scalar, raw_sql};
use tokio::process::Command;

use super::programs;
use crate::support::postgres::FreshPostgres;

/// The pages whose commands are run here. Those of operations.md are run by the tests of the command itself, where each
/// meets the rows that it is about.
const RUN_HERE: [&str; 5] = ["http", "keys-and-retention", "privacy", "situations", "when-a-message-fails"];
// Blocks of `bash` are run by other tests: of the guide to HTTP by those of payments-api.
const RUN_ELSEWHERE: [&str; 3] = ["getting-started", "operations", "signs"];

struct Accepting;

impl Handler<PostgresStore> for Accepting {
    async fn handle(&self, _: &Message, _: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// The pages of a folder, by their names without the ending.
fn pages(folder: &str) -> Vec<String> {
    let files = std::fs::read_dir(programs::root().join(folder)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> = names.filter_map(|name| name.strip_suffix(".md").map(str::to_owned)).collect();
    pages.sort();
    pages
}

#[tokio::test]
async fn every_command_of_the_pages_does_what_it_says() {
    for page in RUN_HERE {
        let place = FreshPostgres::create("idem_pages").await;
        let store = PostgresStore::connect(&place.url()).await.unwrap();
        store.migrate().await.unwrap();
        let consumer = DedupConsumer::builder(store.clone(), "orders").handler(Accepting);
        let consumer = consumer.effects(Effects::InTransaction).build().unwrap();
        assert!(consumer.decisions(vec![message("order-1", "250")]).await.unwrap()[0].is_processed());
        let text = programs::read(&format!("docs/guide/{page}.md"));
        let setup = AssertSqlSafe(programs::blocks(&text, "sql").concat());
        let mut database = PgConnection::connect(&place.url()).await.unwrap();
        raw_sql(setup).execute(&mut database).await.unwrap();
        database.close().await.unwrap();
        let script = programs::blocks(&text, "sh").concat();
        let path = format!("{}:{}", programs::folder().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("bash");
        shell.args(["-euxo", "pipefail", "-c", &script]).env("PATH", path).env("DATABASE_URL", place.url());
        let output = shell.output().await.unwrap();
        assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
        store.disconnect().await;
        place.remove().await;
    }
}

#[test]
fn no_page_has_commands_that_nobody_runs() {
    let with_commands = pages("docs/guide").into_iter().filter(|page| {
        let text = programs::read(&format!("docs/guide/{page}.md"));
        !programs::blocks(&text, "sh").is_empty()
    });
    let mut run = [&RUN_HERE[..], &RUN_ELSEWHERE].concat();
    run.sort_unstable();
    assert_eq!(with_commands.collect::<Vec<_>>(), run);
}

/// Each second block of SQL runs twice, and must leave what it left once; except for the one that is
/// shown because it does not.
#[tokio::test]
async fn natural_idempotency_is_as_the_page_says() {
    let page = programs::read("docs/internals/natural-idempotency.md");
    let place = FreshPostgres::create("idem_natural").await;
    let mut database = PgConnection::connect(&place.url()).await.unwrap();
    let mut sections = 0;
    for section in page.split("\n### ").skip(1) {
        let [setup, statement] = &programs::blocks(section, "sql")[..] else { continue };
        sections += 1;
        let table = setup.strip_prefix("CREATE TABLE ").and_then(|rest| rest.split(' ').next()).unwrap();
        raw_sql(AssertSqlSafe(setup.as_str())).execute(&mut database).await.unwrap();
        let mut states = Vec::new();
        for _ in 0..2 {
            let done = raw_sql(AssertSqlSafe(statement.as_str())).execute(&mut database).await.unwrap();
            assert!(!states.is_empty() || done.rows_affected() == 1, "{statement} does nothing");
            let all = AssertSqlSafe(format!("SELECT jsonb_agg(to_jsonb(t))::text FROM {table} AS t"));
            states.push(query_scalar::<_, String>(all).fetch_one(&mut database).await.unwrap());
        }
        let is_idempotent = !section.starts_with("Not idempotent");
        assert_eq!(states[0] == states[1], is_idempotent, "{statement}: {states:?}");
    }
    assert_eq!(sections, 4);
    database.close().await.unwrap();
    place.remove().await;
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    for folder in ["docs", "docs/decisions", "docs/guide", "docs/errors", "docs/internals", "deploy", "benches", "."] {
        for page in pages(folder) {
            let text = programs::read(&format!("{folder}/{page}.md"));
            for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.contains("://") {
                    continue;
                }
                let (file, heading) = link.split_once('#').unwrap_or((link, ""));
                let path = if file.is_empty() {
                    programs::root().join(folder).join(format!("{page}.md"))
                } else {
                    programs::root().join(folder).join(file)
                };
                assert!(path.exists(), "{folder}/{page}.md links to {link}");
                assert!(heading.is_empty() || has_heading(&path, heading), "{folder}/{page}.md links to {link}");
            }
        }
    }
}

/// A worker's page links to these for operators, at any hour.
#[test]
fn what_a_workers_page_links_to_is_there() {
    let mut links = 0;
    for file in ["idem-service/src/page.rs", "idem-service/src/page/attention.rs", "idem-core/src/standing/rows.rs"] {
        let text = programs::read(file);
        // Those of reasons are made of their names, and other tests hold those against the pages that there are.
        let links_in = |folder: &'static str| text.split(folder).skip(1).filter_map(|rest| rest.split('"').next());
        let guide = links_in("\"guide/").map(|rest| format!("guide/{rest}"));
        let internals = links_in("\"internals/").map(|rest| format!("internals/{rest}"));
        let errors = links_in("\"errors/").filter(|rest| !rest.contains('{')).map(|rest| format!("errors/{rest}"));
        for link in guide.chain(internals).chain(errors) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let path = programs::root().join("docs").join(file);
            assert!(path.exists() && (heading.is_empty() || has_heading(&path, heading)), "{link}");
            links += 1;
        }
    }
    assert!(links > 10, "they were sought in the wrong place");
}

/// Whether the page has a heading that is found under this name, as GitHub makes names of headings.
fn has_heading(page: &Path, name: &str) -> bool {
    let text = std::fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches(['#', ' ']));
    let name_of = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(name_of).any(|heading| heading == name)
}

/// T29: an error that leaves `main` is printed as `Debug`. Programs that people copy print it themselves, in words.
#[test]
fn no_program_to_copy_lets_an_error_leave_main() {
    fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_built = path.file_name().is_some_and(|name| name == "target");
            if path.is_dir() && !is_built {
                sources(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![programs::root().join("README.md")];
    for folder in ["examples", "idem-cli/templates", "docs/guide"] {
        sources(&programs::root().join(folder), &mut found);
    }
    assert!(found.len() > 50, "{found:?}");
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut mains =
            text.lines().filter(|line| line.contains("fn main() -> ") && !line.trim_start().starts_with('#'));
        assert!(mains.all(|line| line.contains("ExitCode")), "{} prints its errors as Debug", path.display());
    }
}
