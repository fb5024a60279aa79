//! Every command that docs/guide/operations.md shows is run here, as it stands there and in its order.

use std::{path::Path, process::Command};

use crate::{dead_letters, fixture::Fixture};

const GUIDE: &str = include_str!("../../../docs/guide/operations.md");

/// The lines of the guide's shell blocks.
fn commands() -> Vec<&'static str> {
    let mut commands = Vec::new();
    let mut is_shell = false;
    for line in GUIDE.lines() {
        match line {
            "```sh" => is_shell = true,
            "```" => is_shell = false,
            line if is_shell => commands.push(line),
            _ => {}
        }
    }
    commands
}

fn run(fixture: &Fixture, folder: &Path, line: &str) -> (Option<i32>, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_idem")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder).env("PATH", path);
    shell.env("DATABASE_URL", format!("{}?options=-c%20search_path%3D{}", fixture.url, fixture.schema));
    let output = shell.env("IDEM_SCHEMA", &fixture.schema).env("IDEM_OPERATOR", "ada").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn every_command_of_the_guide_does_what_it_says() {
    let fixture = dead_letters::fixture().await;
    let folder = std::env::temp_dir().join(&fixture.schema);
    std::fs::create_dir(&folder).unwrap();
    let commands = commands();
    assert!(commands.len() > 25, "{commands:?}");
    for line in commands {
        let (status, error) = run(&fixture, &folder, line);
        // The server that the tests share may have something for the doctor.
        assert!(
            status == Some(0) || (line.starts_with("idem doctor") && status == Some(1)),
            "{line}: {status:?} {error}"
        );
    }
    for file in ["cleanup.sql", "migrations.sql", "roles.sql"] {
        assert!(std::fs::read_to_string(folder.join(file)).unwrap().len() > 1_000, "{file}");
    }
    assert_eq!(fixture.texts("SELECT name FROM consumers").await, ["purchases"]);
    std::fs::remove_dir_all(folder).unwrap();
    fixture.drop().await;
}
