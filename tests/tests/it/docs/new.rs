//! The files that `idem new` writes parse, and name only things that exist. `./test outside` builds and runs it.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::Value;
use tokio::process::Command;

use super::{deploy, programs};

const BROKERS: [(&str, &str); 3] = [("kafka", "kafka-worker"), ("rabbitmq", "amqp-worker"), ("sqs", "sqs-worker")];

/// A folder for the folders that the command makes.
fn place() -> PathBuf {
    let place = std::env::temp_dir().join(format!("idem_new_{:08x}", fastrand::u32(..)));
    std::fs::create_dir(&place).unwrap();
    place
}

async fn new(place: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut idem = Command::new(programs::folder().join("idem"));
    let output = idem.arg("new").args(arguments).env_clear().current_dir(place).output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    let document = Value::deserialize(serde_yaml_ng::Deserializer::from_str(&text));
    document.unwrap_or_else(|error| panic!("{}: {error}\n{text}", path.display()))
}

#[tokio::test]
async fn each_worker_has_settings_that_exist_an_image_without_root_and_services_that_wait_for_each_other() {
    let place = place();
    for (broker, program) in BROKERS {
        for store in ["postgres", "sqlite"] {
            let name = format!("on-{broker}-{store}");
            assert_eq!(new(&place, &[&name, "--broker", broker, "--store", store]).await, (Some(0), String::new()));
            let folder = place.join(&name);
            deploy::are_settings(program, &std::fs::read_to_string(folder.join("worker.toml")).unwrap()).await;

            let compose = yaml(&folder.join("compose.yaml"));
            let services = compose["services"].as_object().unwrap();
            let waits_for = |service: &str| {
                let after = services[service]["depends_on"].as_object();
                after.map(|after| after.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
            };
            assert!(services.keys().flat_map(|service| waits_for(service)).all(|other| services.contains_key(&other)));
            assert_eq!(waits_for("worker").len(), if store == "postgres" { 2 } else { 1 }, "{compose}");
            let flags = deploy::variables(program).await;
            let variables = services["worker"]["environment"].as_object().unwrap();
            for variable in variables.keys().filter(|variable| !variable.starts_with("AWS_")) {
                assert!(flags.contains(variable), "{program} reads no {variable}");
            }

            let ci = yaml(&folder.join(".github/workflows/ci.yaml"));
            let has_database = ci["jobs"]["test"]["env"]["DATABASE_URL"].is_string();
            assert_eq!(has_database, store == "postgres", "{ci}");
            // A service that ends is waited for until it has; one that stays, until it is healthy.
            for after in services.values().filter_map(|service| service["depends_on"].as_object()) {
                for (other, waits) in after {
                    let stays = services[other]["healthcheck"].is_object();
                    let wanted = if stays { "service_healthy" } else { "service_completed_successfully" };
                    let unhealthy = other == "sqs" && waits["condition"] == "service_started";
                    assert!(waits["condition"] == wanted || unhealthy, "{name}: {other}: {waits}");
                }
            }
            let image = std::fs::read_to_string(folder.join("Dockerfile")).unwrap();
            let copied: Vec<&str> = image.lines().filter_map(|line| line.strip_prefix("COPY ")).collect();
            let ours = copied.iter().filter(|line| !line.starts_with("--from="));
            for path in ours.filter_map(|line| line.split(' ').next()) {
                assert!(folder.join(path).exists(), "{name}: the image copies {path}, which is not there");
            }
            assert!(image.contains(&format!("cp target/release/{name} /worker")), "{image}");
            let ignored = std::fs::read_to_string(folder.join(".dockerignore")).unwrap();
            assert!(ignored.lines().all(|line| !["src", "Cargo.toml", "worker.toml"].contains(&line)), "{ignored}");
            assert!(image.contains("USER 65532") && image.matches("\nFROM ").count() == 1, "{image}");
            let same = |ours: &str, theirs: &str| {
                assert_eq!(programs::read(ours), std::fs::read_to_string(folder.join(theirs)).unwrap());
            };
            same("deploy/prometheus/alerts.yaml", "deploy/alerts.yaml");
            same("deploy/grafana/idem.json", "deploy/dashboard.json");
        }
    }
    std::fs::remove_dir_all(place).unwrap();
}

/// An image is made of what is in the folder, and the crates of a clone are not.
#[tokio::test]
async fn a_worker_on_the_crates_of_a_clone_is_told_that_its_image_cannot_be_built() {
    let place = place();
    let clone = programs::root();
    let mut idem = Command::new(programs::folder().join("idem"));
    idem.args(["new", "mine", "--broker", "sqs", "--store", "sqlite", "--crates"]).arg(clone).env_clear();
    let output = idem.current_dir(&place).output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("\nDocker cannot build its image: "), "{said}");
    std::fs::remove_dir_all(place).unwrap();
}

#[tokio::test]
async fn a_folder_that_is_there_a_bad_name_and_a_missing_choice_are_refused_in_one_line() {
    let place = place();
    std::fs::create_dir(place.join("mine")).unwrap();
    std::fs::write(place.join("mine/notes"), "keep me").unwrap();
    for (arguments, wanted) in [
        (
            &["mine", "--broker", "kafka", "--store", "sqlite"][..],
            "there is a mine here already, and nothing was changed",
        ),
        (&["../up", "--broker", "kafka", "--store", "sqlite"], "begin with a letter"),
        (&["mine2", "--broker", "kafka", "--store", "sqlite", "--crates", "."], "there is no idem-service in it"),
        (&["mine2", "--broker", "nats", "--store", "sqlite"], "[possible values: kafka, rabbitmq, sqs]"),
        (&["mine2", "--broker", "kafka"], "--store <STORE>"),
    ] {
        let (status, error) = new(&place, arguments).await;
        assert!(status == Some(2) && error.contains(wanted), "{arguments:?}: {status:?} {error}");
    }
    let left: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(
        (left, std::fs::read_to_string(place.join("mine/notes")).unwrap()),
        (vec!["mine".into()], "keep me".into())
    );
    std::fs::remove_dir_all(place).unwrap();
}
