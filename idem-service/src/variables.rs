//! Unknown variables with one of our prefixes: a misspelt setting that is ignored is found out in production.

use clap::{Arg, Command};

/// How idem's own variables begin.
const OURS: &str = "IDEM_";

/// Those with that prefix that belong to the command or to the project's own scripts and tests, each of which may stand in the
/// shell that a worker is started from. By their whole names, so that a misspelt one is still found out.
const OF_THE_HOUSE: [&str; 21] = [
    "IDEM_AMQP_MANAGEMENT_URL",
    "IDEM_AMQP_URL",
    "IDEM_BUG",
    "IDEM_CRASH_KILLS",
    "IDEM_FAILPOINTS",
    "IDEM_KAFKA_BROKERS",
    "IDEM_KAFKA_SSL_BROKERS",
    "IDEM_KAFKA_SSL_CA",
    "IDEM_OPERATOR",
    "IDEM_PGBOUNCER_URL",
    "IDEM_PORT_OFFSET",
    "IDEM_POSTGRES_URL",
    "IDEM_POSTGRES_VERSION",
    "IDEM_RABBITMQ_VERSION",
    "IDEM_REDIS_URL",
    "IDEM_REDIS_VERSION",
    "IDEM_SEED",
    "IDEM_SERVERS_SET",
    "IDEM_SQS_URL",
    "IDEM_TEST_ALL",
    "IDEM_TEST_RUN",
];

/// Those of `names` that begin like the broker's and are read by no flag, for a warning: another program's, such as
/// `KAFKA_HEAP_OPTS`.
///
/// # Errors
/// One line about the first unknown variable with our prefix, or with the broker's where it resembles a setting.
pub(crate) fn foreign(
    command: &Command,
    broker: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<Vec<String>, String> {
    let known: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_env()?.to_str()).collect();
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(OURS) || name.starts_with(broker))
        .filter(|name| {
            !known.contains(&name.as_str()) && !OF_THE_HOUSE.contains(&name.as_str()) && !is_of_kubernetes(name)
        })
        .collect();
    // The environment has no order, and the line should not change from start to start.
    unknown.sort();
    for name in &unknown {
        let words = name.trim_start_matches(OURS).trim_start_matches(broker).to_lowercase().replace('_', "-");
        let is_flag =
            |flag: &Arg| flag.get_long() == Some(&words) && !["help", "version"].contains(&flag.get_id().as_str());
        let hint = if let Some(variable) = meant(name, broker, &known) {
            format!("did you mean {variable}?")
        } else if command.get_arguments().any(is_flag) {
            format!("this setting has no variable, use the flag --{words}")
        } else if name.starts_with(OURS) {
            format!("those that there are: {}", known.join(", "))
        } else {
            continue;
        };
        return Err(format!("the variable {name} is unknown; {hint}"));
    }
    Ok(unknown)
}

/// The variable that a misspelt one should have been. One that begins like the broker's may well be another program's, so it has to
/// be more like one of the settings, and those of other names do not count.
fn meant<'a>(name: &str, broker: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.starts_with(OURS) {
        return nearest(name, known);
    }
    let settings: Vec<&str> =
        known.iter().filter(|known| known.starts_with(OURS) || known.starts_with(broker)).copied().collect();
    nearest(name, &settings).filter(|variable| similarity(name, variable) > 0.8)
}

/// The most similar of `known`, by the measure and the threshold that clap has for flags.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let similar = known.iter().map(|variable| (similarity(name, variable), *variable));
    similar.filter(|(similarity, _)| *similarity > 0.7).max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, v)| v)
}

fn similarity(one: &str, other: &str) -> f64 {
    // Their common prefix says nothing.
    let tail = |name: &str| name.split_once('_').map_or(name.to_owned(), |(_, tail)| tail.to_owned());
    strsim::jaro(&tail(one), &tail(other))
}

/// Whether Kubernetes sets this variable by itself, in each pod beside a service of that name: a service called `kafka`
/// must not keep workers from starting. <https://kubernetes.io/docs/concepts/services-networking/service/>
fn is_of_kubernetes(name: &str) -> bool {
    let is_numbered =
        |(index, port): (usize, &str)| name[index + port.len()..].starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.match_indices("_PORT_").any(is_numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign_of(name: &str) -> Result<Vec<String>, String> {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let command = Command::new("worker")
            .arg(flag("consumer").env("IDEM_CONSUMER"))
            .arg(flag("retention").env("IDEM_RETENTION"))
            .arg(flag("topic").env("KAFKA_TOPIC"))
            .arg(flag("database-url").env("DATABASE_URL"))
            .arg(flag("brokers").env("KAFKA_BROKERS"))
            .arg(flag("group").env("KAFKA_GROUP"))
            .arg(flag("schema").env("IDEM_SCHEMA"))
            .arg(flag("lanes"))
            .arg(flag("version"));
        foreign(&command, "KAFKA_", [name.to_owned(), "PATH".to_owned()])
    }

    fn refused(name: &str) -> Option<String> {
        foreign_of(name).err()
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_nearest_one() {
        for (name, hint) in [
            ("IDEM_CONSUMERS", "did you mean IDEM_CONSUMER?"),
            ("IDEM_RETENTON", "did you mean IDEM_RETENTION?"),
            ("KAFKA_TOPICS", "did you mean KAFKA_TOPIC?"),
            ("IDEM_OPERATORS", "those that there are: "),
            ("IDEM_LANES", "use the flag --lanes"),
            ("KAFKA_GROUP_ID", "did you mean KAFKA_GROUP?"),
            ("KAFKA_RETENTION", "did you mean IDEM_RETENTION?"),
            ("KAFKA_LANES", "use the flag --lanes"),
            ("IDEM_SASL_PASSWORD", "those that there are: IDEM_CONSUMER, IDEM_RETENTION, KAFKA_TOPIC"),
        ] {
            let line = refused(name).unwrap_or_else(|| panic!("{name} is let through"));
            assert!(line.contains(name) && line.contains(hint), "{line}");
        }
    }

    #[test]
    fn known_foreign_and_kubernetes_variables_are_let_through() {
        for name in [
            "IDEM_CONSUMER",
            "IDEM_OPERATOR",
            "IDEM_PORT_OFFSET",
            "IDEM_POSTGRES_URL",
            "IDEM_POSTGRES_VERSION",
            "KAFKA_TOPIC",
            "SQS_QUEUE",
            "idem_consumers",
            "XIDEM_A",
            "KAFKA_SERVICE_HOST",
            "KAFKA_SERVICE_PORT",
            "KAFKA_SERVICE_PORT_TCP_CLIENT",
            "KAFKA_PORT",
            "KAFKA_PORT_9092_TCP",
            "KAFKA_PORT_9092_TCP_ADDR",
            "KAFKA_PORT_9092_TCP_PORT",
            "KAFKA_BROKER_0_PORT_9092_TCP_PROTO",
        ] {
            assert_eq!(foreign_of(name), Ok(Vec::new()));
        }
    }

    /// Images and charts set them for other programs, and no flag reads them.
    #[test]
    fn j35_another_programs_variables_of_the_broker_are_let_through_and_named() {
        for name in [
            "KAFKA_SASL_PASSWORD",
            "KAFKA_SASL_MECHANISM",
            "KAFKA_HEAP_OPTS",
            "KAFKA_OPTS",
            "KAFKA_HOME",
            "KAFKA_VERSION",
            "KAFKA_URL",
            "KAFKA_SCHEMA_REGISTRY_URL",
            "KAFKA_BOOTSTRAP_SERVERS",
            "KAFKA_PORT_NUMBER",
        ] {
            assert_eq!(foreign_of(name), Ok(vec![name.to_owned()]));
        }
    }
}
