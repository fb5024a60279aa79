//! The pages on HTTP: the program of `idem-http`'s front page with the page's commands, and the guide's endpoint with what it says of it.

use std::{fs, net::TcpListener, path::Path, process::Command};

use sqlx::{Connection as _, PgConnection, query_scalar};

use crate::{packages, project};

const FRONT_PAGE: &str = include_str!("../../../idem-http/src/lib.md");
const GUIDE: &str = include_str!("../../../docs/guide/http.md");

/// The first block of this kind that has this in it, with the lines that the documentation hides.
fn block(page: &str, kind: &str, mark: &str) -> String {
    let blocks = page.split("\n```").skip(1).step_by(2).filter_map(|part| part.split_once('\n'));
    let found = blocks.filter(|(marked, _)| *marked == kind).map(|(_, text)| text).find(|text| text.contains(mark));
    let lines = found.unwrap_or_else(|| panic!("no block of {kind} has {mark}")).lines();
    lines.map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line))).collect()
}

/// What stands for the commands that the pages name: crates come from their packages and from what cargo has, nothing is compiled twice, and
/// who types a command sees the one before it end.
const COMMANDS: &str = r#"
exec 2>&1; set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
cargo() {
    case "$*" in
    "add idem-"*) command cargo add --quiet --path "$CRATES/$2" "${@:3}" ;;
    # The others of its defaults are packages that the workspace does not have.
    "add axum") command cargo add --quiet axum --no-default-features --features http1,json,tokio ;;
    add\ *) command cargo add --quiet "${@:2}" ;;
    run*) exec cargo run --quiet --config "$PROFILES" "${@:2}" ;;
    *) command cargo "$1" --quiet --config "$PROFILES" "${@:2}" ;;
    esac
}
curl() { command curl --silent --show-error "$@"; echo; }
"#;

/// W153: the front page's program does what the page says, by the page's commands in an empty folder.
#[tokio::test]
async fn w153_the_pages_on_http_keep_their_word() {
    let name = format!("outside_{:08x}", fastrand::u32(..));
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir_all(folder.join("src/bin")).unwrap();
    let (first, second) = (format!("{name}_1"), format!("{name}_2"));
    let databases = [project::create_database(&first).await, project::create_database(&second).await];
    let addresses = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string());
    let crates = packages::unpacked();
    begin(&folder, &crates);
    let page = |text: String| {
        let local = text.replace("127.0.0.1:8080", &addresses[0]);
        local
            .replace("psql payments", &format!("psql {}", databases[0]))
            .replace("postgres://localhost/payments", &databases[0])
    };
    fs::write(folder.join("src/main.rs"), page(block(FRONT_PAGE, "no_run", "#[tokio::main]"))).unwrap();
    // The program that an endpoint stands in is the reader's.
    let endpoint = format!(
        "{}#[tokio::main]\nasync fn main() -> Result<(), Box<dyn std::error::Error>> {{\n    \
         let listener = tokio::net::TcpListener::bind({:?}).await?;\n    \
         let pool = sqlx::PgPool::connect(&std::env::var(\"DATABASE_URL\")?).await?;\n    \
         Ok(axum::serve(listener, routes(pool).await?).await?)\n}}\n",
        block(GUIDE, "rust,no_run", "idempotency.start()"),
        addresses[1]
    );
    fs::write(folder.join("src/bin/endpoint.rs"), endpoint).unwrap();
    let commands = page(block(FRONT_PAGE, "sh", "cargo run"));
    let again = commands.lines().last().unwrap();
    assert!(again.starts_with("curl "), "{commands}");
    let endpoint = format!(
        r#"psql {url} -c 'CREATE TABLE payments (customer text NOT NULL, cents bigint NOT NULL)'
        idem --database-url {url} migrate up
        DATABASE_URL={url} HASH_SECRET=$(openssl rand -hex 32) cargo run --bin endpoint &
        pay() {{ curl -i --retry 9 --retry-connrefused -H 'Content-Type: application/json' "$@" http://{at}/payments; }}
        pay -H 'Idempotency-Key: order-1' -d '{{"customer":"1","cents":1177}}'
        pay -H 'Idempotency-Key: order-1' -d '{{"customer":"1","cents":1177}}'
        pay -H 'Idempotency-Key: order-1' -d '{{"customer":"1","cents":1}}'
        pay -d '{{"customer":"1","cents":1177}}'"#,
        url = databases[1],
        at = addresses[1]
    );
    // serde is the endpoint's own.
    let script = format!("{COMMANDS}\ncargo add serde --features derive\n{commands}{again}\n{endpoint}\n");
    let printed = project::succeeded("the pages' commands", shell(&folder, &crates, &script));
    let answers: Vec<_> = printed.split("HTTP/1.1 ").skip(1).map(Answer::read).collect();
    let told: Vec<_> = answers.iter().map(|answer| (answer.status, answer.is_replayed)).collect();
    let wanted =
        [(200, Some(false)), (200, Some(true)), (201, Some(false)), (201, Some(true)), (422, None), (400, None)];
    assert_eq!(told, wanted, "{printed}");
    assert_eq!((answers[0].body, answers[1].body), ("1", "1"), "{printed}");
    for (name, url) in [first, second].iter().zip(&databases) {
        assert_eq!(cents(url).await, [1177], "{name}");
        project::drop_database(name).await;
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A package without dependencies, which takes idem's crates where they are and the versions that idem is tested with.
fn begin(folder: &Path, crates: &Path) {
    let names = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let patches: String = names.map(|name| format!("{name} = {{ path = {:?} }}\n", crates.join(&name))).collect();
    let manifest = format!(
        "[package]\nname = \"payments\"\nversion = \"0.1.0\"\nedition = \"2024\"\ndefault-run = \"payments\"\n\n\
         [dependencies]\n\n[patch.crates-io]\n{patches}"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::copy(packages::root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
}

fn shell(folder: &Path, crates: &Path, script: &str) -> std::process::Output {
    let mut shell = Command::new("timeout");
    project::clean(&mut shell);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("IDEM_")) {
        shell.env_remove(name);
    }
    let idem = Path::new(env!("CARGO_BIN_EXE_idem")).parent().unwrap();
    let path = format!("{}:{}", idem.display(), std::env::var("PATH").unwrap());
    shell.env("PATH", path).env("CRATES", crates).env("PROFILES", project::profiles()).env("CARGO_NET_OFFLINE", "true");
    shell.env("CARGO_TARGET_DIR", project::target()).current_dir(folder);
    shell.args(["1200", "bash", "-c", script]).output().unwrap()
}

struct Answer<'a> {
    status: u16,
    is_replayed: Option<bool>,
    body: &'a str,
}

impl<'a> Answer<'a> {
    fn read(text: &'a str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap()[..3].parse().unwrap();
        let is_replayed =
            lines.find_map(|line| line.strip_prefix("idempotent-replayed: ")).map(|value| value == "true");
        Self { status, is_replayed, body: body.lines().next().unwrap_or_default() }
    }
}

async fn cents(url: &str) -> Vec<i64> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    query_scalar("SELECT cents FROM payments").fetch_all(&mut connection).await.unwrap()
}
