//! Variables that begin like one of ours and are none: a misspelt setting that is ignored is found out in production.

use clap::Command;

/// How idem's own variables begin.
const OURS: &str = "IDEM_";

/// One line about the first of `names` that begins like ours or the broker's and that no flag reads.
pub(crate) fn refuse_unknown(
    command: &Command,
    broker: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<(), String> {
    let known: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_env()?.to_str()).collect();
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(OURS) || name.starts_with(broker))
        .filter(|name| !known.contains(&name.as_str()) && !is_of_kubernetes(name))
        .collect();
    // The environment has no order, and the line should not change from start to start.
    unknown.sort();
    let Some(name) = unknown.first() else { return Ok(()) };
    let words = name.trim_start_matches(OURS).trim_start_matches(broker).to_lowercase().replace('_', "-");
    let hint = match nearest(name, &known) {
        Some(variable) => format!("did you mean {variable}?"),
        None if command.get_arguments().any(|flag| flag.get_long() == Some(&words)) => {
            format!("this setting has no variable, use the flag --{words}")
        }
        None => format!("those that there are: {}", known.join(", ")),
    };
    Err(format!("the variable {name} is unknown; {hint}"))
}

/// The most similar of `known`, by the measure and the threshold that clap has for flags.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // What they all begin with says nothing.
    let tail = |name: &str| name.split_once('_').map_or(name.to_owned(), |(_, tail)| tail.to_owned());
    let similar = known.iter().map(|variable| (strsim::jaro(&tail(name), &tail(variable)), *variable));
    similar.filter(|(similarity, _)| *similarity > 0.7).max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, v)| v)
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
    use clap::Arg;

    use super::*;

    fn refused(name: &str) -> Option<String> {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let command = Command::new("worker")
            .arg(flag("consumer").env("IDEM_CONSUMER"))
            .arg(flag("retention").env("IDEM_RETENTION"))
            .arg(flag("topic").env("KAFKA_TOPIC"))
            .arg(flag("lanes"));
        refuse_unknown(&command, "KAFKA_", [name.to_owned(), "PATH".to_owned()]).err()
    }

    #[test]
    fn an_unknown_variable_is_refused_with_the_nearest_one() {
        for (name, hint) in [
            ("IDEM_CONSUMERS", "did you mean IDEM_CONSUMER?"),
            ("IDEM_RETENTON", "did you mean IDEM_RETENTION?"),
            ("KAFKA_TOPICS", "did you mean KAFKA_TOPIC?"),
            ("IDEM_LANES", "use the flag --lanes"),
            ("IDEM_XYZ", "those that there are: IDEM_CONSUMER, IDEM_RETENTION, KAFKA_TOPIC"),
        ] {
            let line = refused(name).unwrap_or_else(|| panic!("{name} is let through"));
            assert!(line.contains(name) && line.contains(hint), "{line}");
        }
    }

    #[test]
    fn known_foreign_and_kubernetes_variables_are_let_through() {
        for name in [
            "IDEM_CONSUMER",
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
            assert_eq!(refused(name), None);
        }
        assert!(refused("KAFKA_PORT_NUMBER").is_some());
    }
}
