//! The files of `deploy/`: they parse, and name only what exists. Neither Docker nor Kubernetes is needed, or asked.

use std::collections::BTreeSet;

use serde::Deserialize as _;
use serde_json::Value;

use super::programs;

const ALERTS: &str = "deploy/prometheus/alerts.yaml";
const DASHBOARD: &str = "deploy/grafana/idem.json";
const KUBERNETES: [&str; 3] = ["cleanup", "migrate", "worker"];

/// The documents of a YAML file.
fn yaml(path: &str) -> Vec<Value> {
    let text = programs::read(path);
    let documents = serde_yaml_ng::Deserializer::from_str(&text).map(Value::deserialize);
    documents.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Everything in `value` that stands under this name.
fn all<'v>(value: &'v Value, name: &str) -> Vec<&'v Value> {
    let inside: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(list) => Box::new(list.iter()),
        Value::Object(members) => Box::new(members.values()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Box::new(std::iter::empty()),
    };
    value.get(name).into_iter().chain(inside.flat_map(|value| all(value, name))).collect()
}

fn texts<'v>(value: &'v Value, name: &str) -> Vec<&'v str> {
    all(value, name).into_iter().filter_map(Value::as_str).collect()
}

/// The metrics of an expression in Prometheus' language.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(move |c| !is_in_name(c));
    words.filter(|word| word.starts_with("idem_") || word.starts_with("consumer_"))
}

/// The flags that a program has.
async fn flags(program: &str) -> BTreeSet<String> {
    let help = programs::output(program, &["--help-all"]).await;
    let flags = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    flags.map(|flag| flag.trim_end_matches([',', ']', '.']).to_owned()).collect()
}

/// The variables that a program's flags have.
pub(super) async fn variables(program: &str) -> BTreeSet<String> {
    let help = programs::output(program, &["--help-all"]).await;
    let shown = help.split("[env: ").skip(1).filter_map(|rest| rest.split(['=', ']']).next());
    shown.map(str::to_owned).collect()
}

/// Fails unless each setting of this TOML is a flag of the program.
pub(super) async fn are_settings(program: &str, text: &str) {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    let flags = flags(program).await;
    assert!(!table.is_empty());
    for name in table.keys() {
        assert!(flags.contains(name), "{program} has no setting {name}");
    }
}

#[test]
fn each_metric_of_dashboard_and_alerts_is_in_the_table_of_metrics() {
    let observing = programs::read("docs/internals/metrics.md");
    let dashboard: Value = serde_json::from_str(&programs::read(DASHBOARD)).unwrap();
    let alerts = yaml(ALERTS);
    let mut expressions = texts(&dashboard, "expr");
    let in_dashboard = expressions.len();
    expressions.extend(alerts.iter().flat_map(|document| texts(document, "expr")));
    assert!(in_dashboard > 15 && expressions.len() > in_dashboard + 10, "{expressions:?}");
    for expression in expressions {
        let mut names = metrics(expression).peekable();
        assert!(names.peek().is_some(), "{expression} names no metric");
        for name in names {
            let name = name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count");
            assert!(observing.contains(&format!("| `{name}` |")), "{name} of {expression} does not exist");
        }
    }
}

#[test]
fn each_alert_says_what_it_means_what_to_check_and_the_cure() {
    let alerts = yaml(ALERTS);
    let names: BTreeSet<&str> = alerts.iter().flat_map(|document| texts(document, "alert")).collect();
    let runbooks: BTreeSet<String> =
        alerts.iter().flat_map(|document| texts(document, "runbook_url")).map(str::to_owned).collect();
    let page = programs::read("docs/internals/alerts.md");
    let parts: Vec<(&str, &str)> =
        page.split("\n## ").skip(1).map(|part| part.split_once('\n').expect("a heading and a text")).collect();
    assert_eq!(names, parts.iter().map(|(name, _)| *name).collect());
    let home = "https://github.com/idem-rs/idem/blob/main/docs/internals/alerts.md";
    let wanted = names.iter().map(|name| format!("{home}#{}", name.to_lowercase())).collect();
    assert_eq!(runbooks, wanted);
    for (name, text) in parts {
        for part in ["\n**Meaning.** ", "\n**Check.** ", "\n**Cure.** "] {
            assert!(text.contains(part), "{name} lacks {part}");
        }
    }
}

/// `./test alerts` runs promtool on it.
#[test]
fn each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let alerts = yaml(ALERTS);
    let names: BTreeSet<&str> = alerts.iter().flat_map(|document| texts(document, "alert")).collect();
    let tests = yaml("deploy/prometheus/alerts.test.yaml");
    let (mut fires, mut rests) = (BTreeSet::new(), BTreeSet::new());
    for test in
        tests.iter().flat_map(|document| all(document, "alert_rule_test")).flat_map(|list| list.as_array().unwrap())
    {
        let does_fire = test["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
        let set = if does_fire { &mut fires } else { &mut rests };
        set.insert(test["alertname"].as_str().unwrap());
    }
    assert_eq!((&fires, &rests), (&names, &names));
}

#[tokio::test]
async fn what_kubernetes_starts_is_there() {
    let documents: Vec<Value> =
        KUBERNETES.iter().flat_map(|name| yaml(&format!("deploy/kubernetes/{name}.yaml"))).collect();
    let kinds: Vec<&str> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    let wanted = ["CronJob", "Job", "ConfigMap", "Deployment", "PodDisruptionBudget", "NetworkPolicy", "ScaledObject"];
    assert_eq!(kinds, wanted);
    for document in &documents {
        for container in all(document, "containers").into_iter().flat_map(|list| list.as_array().unwrap()) {
            let arguments: Vec<&str> =
                container["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()).collect();
            if container["command"] == serde_json::json!(["idem"]) {
                programs::output("idem", &[arguments.as_slice(), &["--help"]].concat()).await;
            } else {
                assert_eq!(arguments[0], "--config");
            }
            assert_eq!(container["env"][0]["name"], "DATABASE_URL");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{container}");
        }
    }
    let settings = documents.iter().find_map(|document| document["data"]["worker.toml"].as_str()).unwrap();
    are_settings("kafka-worker", settings).await;
    let table: toml::Table = settings.parse().unwrap();
    let drain: u64 = table["drain"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
    let grace = documents.iter().flat_map(|document| all(document, "terminationGracePeriodSeconds")).next();
    assert!(grace.and_then(Value::as_u64).unwrap() > drain);
}

#[tokio::test]
async fn the_service_of_systemd_and_the_settings_of_the_guide_are_there() {
    let unit = programs::read("deploy/systemd/ledger-worker.service");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/")).unwrap();
    let mut words = command.split_whitespace();
    let flags = flags(words.next().unwrap()).await;
    let given: Vec<&str> = words.filter_map(|word| word.strip_prefix("--")).collect();
    assert!(!given.is_empty() && given.iter().all(|flag| flags.contains(*flag)), "{given:?}");

    let [settings] = &programs::blocks(&programs::read("docs/guide/settings.md"), "toml")[..] else {
        panic!("there are other settings")
    };
    are_settings("kafka-worker", settings).await;
}

#[test]
fn the_image_has_the_programs_that_the_files_start_and_no_rights() {
    let file = programs::read("deploy/Dockerfile");
    for wanted in ["/programs/worker", "target/release/idem", "USER 65532", "ENTRYPOINT [\"worker\"]"] {
        assert!(file.contains(wanted), "{wanted}");
    }
}
