//! One program outside of the workspace, from the empty folder to the worker that has handled a message.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection, query_scalar, raw_sql};

use crate::{broker, packages};

/// The README's name for its program.
const NAME: &str = "purchases";

/// A folder that `idem new` has made.
pub(crate) struct Project {
    broker: &'static str,
    store: &'static str,
    /// The folder in which the project's folder is.
    place: PathBuf,
    /// A name of its own for databases, topics and queues, because tests share their servers.
    unique: String,
}

impl Project {
    pub(crate) fn new(broker: &'static str, store: &'static str) -> Self {
        let unique = format!("outside_{:08x}", fastrand::u32(..));
        let place = std::env::temp_dir().join(&unique);
        fs::create_dir(&place).unwrap();
        let crates = packages::unpacked();
        let mut idem = Command::new(env!("CARGO_BIN_EXE_idem"));
        idem.args(["new", NAME, "--broker", broker, "--store", store, "--crates"]).arg(crates).current_dir(&place);
        succeeded("idem new", idem.output().unwrap());
        let project = Self { broker, store, place, unique };
        // The versions that idem is tested with, and nothing to ask a registry for.
        fs::copy(packages::root().join("Cargo.lock"), project.path("Cargo.lock")).unwrap();
        succeeded("cargo fmt --check", project.cargo(&["fmt", "--check"], ""));
        project
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.place.join(NAME).join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn cargo(&self, arguments: &[&str], database: &str) -> Output {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg(arguments[0]).current_dir(self.path("."));
        clean(&mut cargo);
        if arguments[0] != "fmt" {
            cargo.arg("--offline").arg("--config").arg(profiles());
        }
        cargo.args(&arguments[1..]).env("CARGO_TARGET_DIR", target()).env("DATABASE_URL", database);
        cargo.envs(self.login().iter().copied()).output().unwrap()
    }

    /// Its tests pass on its database, and its worker takes a message once.
    pub(crate) async fn works(self) {
        let database = self.database().await;
        let tested = succeeded("cargo test", self.cargo(&["test"], &database));
        assert!(tested.contains("a_purchase_counts_once ... ok"), "{tested}");
        succeeded("cargo build", self.cargo(&["build"], &database));
        let queue = broker::Queue::make(self.broker, &self.unique).await;
        for cents in ["250", "250", "999"] {
            queue.publish(&format!(r#"{{"idempotencykey":"order-1","customer":"1","cents":{cents}}}"#)).await;
        }
        // The file's settings hold, but for those that would collide with other tests.
        let mut worker = tokio::process::Command::new(target().join("debug").join(NAME));
        worker.args(["--config", "worker.toml", "--until-idle", "2s", "--admin", "127.0.0.1:0"]);
        worker.args(queue.flags()).envs(self.login().iter().copied()).envs(queue.variables());
        worker.env("DATABASE_URL", &database).current_dir(self.path("."));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("IDEM_")) {
            worker.env_remove(name);
        }
        let told = succeeded("the worker", worker.output().await.unwrap());
        assert!(told.contains(r#""processed":1,"duplicates":1,"conflicts":1"#), "{told}");
        assert_eq!(self.cents(&database).await, 250);
        queue.remove().await;
        self.remove().await;
    }

    /// The URL of a database of its own.
    async fn database(&self) -> String {
        match self.store {
            "sqlite" => format!("sqlite:{}.db", self.unique),
            "dynamodb" => format!("dynamodb:{}?endpoint={}", self.unique, dynamodb()),
            _ => create_database(&self.unique).await,
        }
    }

    /// The variables of AWS by which the store is reached; SQS has the same.
    fn login(&self) -> &'static [(&'static str, &'static str)] {
        match self.store {
            "dynamodb" => &[("AWS_REGION", "eu-central-1"), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x")],
            _ => &[],
        }
    }

    /// What DynamoDB answers to this operation on the table.
    fn of_table(&self, operation: &str, more: &str) -> String {
        let (target, table) = (format!("X-Amz-Target: DynamoDB_20120810.{operation}"), &self.unique);
        let body = format!(r#"{{"TableName": "{table}"{more}}}"#);
        let mut curl = Command::new("curl");
        curl.args(["-fsS", "--aws-sigv4", "aws:amz:eu-central-1:dynamodb", "--user", "x:x", "-H", &target]);
        curl.args(["-H", "Content-Type: application/x-amz-json-1.0", "-d", &body, &dynamodb()]);
        succeeded(operation, curl.output().unwrap())
    }

    /// The customer's total.
    async fn cents(&self, database: &str) -> i64 {
        if self.store == "dynamodb" {
            let key = r#", "ConsistentRead": true, "Key": {"pk": {"S": "customer#1"}, "sk": {"S": "total"}}"#;
            let item: serde_json::Value = serde_json::from_str(&self.of_table("GetItem", key)).unwrap();
            return item["Item"]["cents"]["N"].as_str().unwrap().parse().unwrap();
        }
        let total = "SELECT cents FROM customers WHERE customer = '1'";
        if self.store == "sqlite" {
            let file = self.path(&format!("{}.db", self.unique));
            let mut connection = SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
            return query_scalar(total).fetch_one(&mut connection).await.unwrap();
        }
        let mut connection = PgConnection::connect(database).await.unwrap();
        query_scalar(total).fetch_one(&mut connection).await.unwrap()
    }

    async fn remove(self) {
        match self.store {
            "postgres" => drop_database(&self.unique).await,
            "dynamodb" => drop(self.of_table("DeleteTable", "")),
            _ => {}
        }
        fs::remove_dir_all(self.place).unwrap();
    }
}

/// Where DynamoDB is.
fn dynamodb() -> String {
    std::env::var("IDEM_DYNAMODB_URL").expect("IDEM_DYNAMODB_URL, as ./servers url dynamodb prints it")
}

/// Takes from cargo the variables that it sets for a test's package: build scripts take them for theirs, ring would be built again here, and
/// after this in the workspace once more, with all that depends on it.
pub(crate) fn clean(cargo: &mut Command) {
    let of_a_package = |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in std::env::vars().map(|(name, _)| name).filter(of_a_package) {
        cargo.env_remove(name);
    }
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER"); // no planted bugs
}

/// Makes a database on the server that tests share, and answers its URL.
pub(crate) async fn create_database(name: &str) -> String {
    let server = std::env::var("IDEM_POSTGRES_URL").expect("IDEM_POSTGRES_URL, as ./servers url postgres prints it");
    let mut connection = PgConnection::connect(&server).await.unwrap();
    raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await.unwrap();
    format!("{}/{name}", server.rsplit_once('/').unwrap().0)
}

pub(crate) async fn drop_database(name: &str) {
    let server = std::env::var("IDEM_POSTGRES_URL").unwrap();
    let mut connection = PgConnection::connect(&server).await.unwrap();
    raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut connection).await.unwrap();
}

pub(crate) fn target() -> PathBuf {
    let own = Path::new(env!("CARGO_BIN_EXE_idem")).parent().and_then(Path::parent).unwrap();
    own.to_owned()
}

/// A file with the workspace's own profiles, so that shared dependencies are compiled once.
pub(crate) fn profiles() -> PathBuf {
    let manifest = fs::read_to_string(packages::root().join("Cargo.toml")).unwrap();
    let file = packages::kept().join("profiles.toml");
    fs::write(&file, &manifest[manifest.find("[profile.").unwrap()..]).unwrap();
    file
}

/// Its output.
pub(crate) fn succeeded(what: &str, output: Output) -> String {
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{printed}\n{errors}", output.status);
    printed.into_owned()
}
