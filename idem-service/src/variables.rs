//! Unknown variables with one of our prefixes: a misspelt setting that is ignored is found out in production.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Arg, Command, builder::BoolishValueParser, parser::ValueSource};

use crate::secret_files;

/// How idem's own variables begin.
const OURS: &str = "IDEM_";

/// How the variables end that name a file with the value.
const FILE: &str = "_FILE";

/// Those with that prefix that belong to the command or to the project's own scripts and tests, each of which may stand in the
/// shell that a worker is started from. By their whole names, so that a misspelt one is still found out.
const OF_THE_HOUSE: [&str; 22] = [
    "IDEM_AMQP_MANAGEMENT_URL",
    "IDEM_AMQP_URL",
    "IDEM_BUG",
    "IDEM_CRASH_KILLS",
    "IDEM_DYNAMODB_URL",
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

/// The flags that print something and end.
const PRINTS: [&str; 3] = ["help", "help-all", "version"];

/// A command whose flags have their variables.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) command: Command,
    /// The names of all variables.
    pub(crate) names: Vec<String>,
    /// The flags whose value is in a file that a variable names, each with that variable.
    pub(crate) files: Vec<(String, String)>,
}

/// Gives each flag its variable, `IDEM_` and its name. A flag that has another one too, such as `DATABASE_URL`, reads the
/// variable that is among `set`. The value of a secret may also be in the file that the variable with `_FILE` behind its
/// name names.
///
/// # Errors
/// One line about a flag with two of its variables set.
pub(crate) fn named(command: Command, set: &[String]) -> Result<Named, String> {
    let (mut names, mut files, mut both) = (Vec::new(), Vec::new(), None);
    let is_set = |name: &str| set.iter().any(|set| set == name);
    let command = command.mut_args(|flag| {
        let Some(long) = flag.get_long().filter(|long| !PRINTS.contains(long)) else { return flag };
        let own = format!("{OURS}{}", long.to_uppercase().replace('-', "_"));
        let other = flag.get_env().and_then(|name| name.to_str()).filter(|name| *name != own).map(str::to_owned);
        let direct: Vec<String> = [own.clone()].into_iter().chain(other.clone()).collect();
        let of_files = direct.iter().filter(|_| flag.is_hide_env_values_set()).map(|name| format!("{name}{FILE}"));
        let all: Vec<String> = direct.iter().cloned().chain(of_files).collect();
        if let [one, another, ..] = &all.iter().filter(|name| is_set(name)).collect::<Vec<_>>()[..] {
            both.get_or_insert(format!("{one} and {another} are both set, and are one setting: unset one of them"));
        }
        files
            .extend(all[direct.len()..].iter().filter(|name| is_set(name)).map(|name| (long.to_owned(), name.clone())));
        let reads_other = other.is_some() && !is_set(&own);
        names.extend(all);
        // Of a process there is one command.
        let flag = if reads_other { flag } else { flag.env(&*own.leak()) };
        if flag.get_action().takes_values() { flag } else { flag.value_parser(BoolishValueParser::new()) }
    });
    both.map_or(Ok(Named { command, names, files }), Err)
}

/// Files that were read, each with the variable that names it.
pub(crate) type FilesRead = Vec<(PathBuf, String)>;

/// `arguments` and, before them, each flag whose value is in a file that a variable of `files` names, unless the flag is
/// given. Returns these files, each with its variable.
///
/// # Errors
/// One line that names the variable. Its value is not shown: it may be the secret itself.
pub(crate) fn with_files(
    command: &Command,
    files: Vec<(String, String)>,
    mut arguments: Vec<OsString>,
) -> Result<(Vec<OsString>, FilesRead), String> {
    // An error of the command line itself is reported when it is parsed for good.
    let Ok(given) = command.clone().ignore_errors(true).try_get_matches_from(&arguments) else {
        return Ok((arguments, Vec::new()));
    };
    let is_given = |long: &str| {
        let flag = command.get_arguments().find(|flag| flag.get_long() == Some(long));
        flag.is_some_and(|flag| given.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine))
    };
    let (mut added, mut read) = (Vec::new(), Vec::new());
    for (long, variable) in files.into_iter().filter(|(long, _)| !is_given(long)) {
        let file = PathBuf::from(std::env::var_os(&variable).unwrap_or_default());
        added.push(format!("--{long}={}", in_file(&variable, &file)?).into());
        read.push((file, variable));
    }
    let program = arguments.len().min(1);
    arguments.splice(program..program, added);
    Ok((arguments, read))
}

/// The text of the file that `variable` names, without the end of its last line.
///
/// # Errors
/// One line that names the variable and shows nothing of its value.
fn in_file(variable: &str, file: &Path) -> Result<String, String> {
    let refused = |why: String| format!("the variable {variable} names a file (it is not shown) that {why}");
    let text = std::fs::read_to_string(file).map_err(|error| refused(format!("cannot be read: {error}")))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(refused("is empty".to_owned())),
        text => Ok(text.to_owned()),
    }
}

/// The value of a secret that no flag has, by the variable `name` or in the file that this name with `_FILE` names.
///
/// # Errors
/// One line about both of them set, or about the file.
pub(crate) fn secret(name: &str) -> Result<Option<String>, String> {
    let of_file = format!("{name}{FILE}");
    match (std::env::var(name).ok(), std::env::var_os(&of_file)) {
        (Some(_), Some(_)) => Err(format!("{name} and {of_file} are both set, and are one setting: unset one of them")),
        (None, Some(file)) => {
            let value = in_file(&of_file, Path::new(&file))?;
            secret_files::warn_if_others_may(Path::new(&file), &of_file);
            Ok(Some(value))
        }
        (value, None) => Ok(value),
    }
}

/// Those of `set` that begin like the broker's and are read by no flag, for a warning: another program's, such as
/// `KAFKA_HEAP_OPTS`. `known` are the variables of the flags.
///
/// # Errors
/// One line about the first unknown variable with our prefix, or with the broker's where it resembles a setting.
pub(crate) fn foreign(
    command: &Command,
    known: &[String],
    broker: &str,
    set: &[String],
) -> Result<Vec<String>, String> {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let mut unknown: Vec<String> = set
        .iter()
        .filter(|name| name.starts_with(OURS) || name.starts_with(broker))
        .filter(|name| {
            !known.contains(&name.as_str()) && !OF_THE_HOUSE.contains(&name.as_str()) && !is_of_kubernetes(name)
        })
        .cloned()
        .collect();
    // The environment has no order, and the line should not change from start to start.
    unknown.sort();
    for name in &unknown {
        let words = name.trim_start_matches(OURS).trim_start_matches(broker).to_lowercase().replace('_', "-");
        let is_flag = |flag: &Arg| flag.get_long() == Some(&words) && !PRINTS.contains(&flag.get_id().as_str());
        let hint = if let Some(variable) = meant(name, broker, &known) {
            format!("did you mean {variable}?")
        } else if command.get_arguments().any(is_flag) {
            format!("did you mean {OURS}{}?", words.to_uppercase().replace('-', "_"))
        } else if name.starts_with(OURS) {
            "each setting has one, IDEM_ and the name of its flag: --help-all lists them".to_owned()
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
    let prefix = |name: &str| name.split('_').next().map(str::to_owned);
    let similar =
        known.iter().map(|variable| (similarity(name, variable), prefix(name) == prefix(variable), *variable));
    let similar = similar.filter(|(similarity, ..)| *similarity > 0.7);
    // Of the two names of a setting, the one with the same beginning.
    similar.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))).map(|(_, _, variable)| variable)
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

    fn command() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name);
        Command::new("worker")
            .arg(flag("consumer"))
            .arg(flag("retention"))
            .arg(flag("topic").env("KAFKA_TOPIC"))
            .arg(flag("database-url").env("DATABASE_URL").hide_env_values(true))
            .arg(flag("brokers").env("KAFKA_BROKERS"))
            .arg(flag("group").env("KAFKA_GROUP"))
            .arg(flag("schema"))
            .arg(flag("lanes"))
            .arg(flag("version"))
    }

    fn foreign_of(name: &str) -> Result<Vec<String>, String> {
        let set = [name.to_owned(), "PATH".to_owned()];
        let Named { command, names, .. } = named(command(), &set)?;
        foreign(&command, &names, "KAFKA_", &set)
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
            ("IDEM_OPERATORS", "each setting has one"),
            ("IDEM_LANE", "did you mean IDEM_LANES?"),
            ("KAFKA_GROUP_ID", "did you mean KAFKA_GROUP?"),
            ("KAFKA_RETENTION", "did you mean IDEM_RETENTION?"),
            ("KAFKA_LANES", "did you mean IDEM_LANES?"),
            ("IDEM_SASL_PASSWORD", "--help-all lists them"),
        ] {
            let line = refused(name).unwrap_or_else(|| panic!("{name} is let through"));
            assert!(line.contains(name) && line.contains(hint), "{line}");
        }
    }

    #[test]
    fn known_foreign_and_kubernetes_variables_are_let_through() {
        for name in [
            "IDEM_CONSUMER",
            "IDEM_TOPIC",
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

    #[test]
    fn each_flag_has_its_variable_and_of_two_one_may_be_set() {
        let read = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|name| (*name).to_owned()).collect();
            let Named { command, .. } = named(command(), &set)?;
            let flag = command.get_arguments().find(|flag| flag.get_long() == Some("database-url"));
            Ok::<_, String>(flag.and_then(|flag| flag.get_env()?.to_str()).unwrap_or_default().to_owned())
        };
        assert_eq!(read(&[]).as_deref(), Ok("DATABASE_URL"));
        assert_eq!(read(&["DATABASE_URL"]).as_deref(), Ok("DATABASE_URL"));
        assert_eq!(read(&["IDEM_DATABASE_URL"]).as_deref(), Ok("IDEM_DATABASE_URL"));
        let both = "IDEM_DATABASE_URL and DATABASE_URL are both set, and are one setting: unset one of them";
        assert_eq!(read(&["DATABASE_URL", "IDEM_DATABASE_URL"]), Err(both.to_owned()));
        let Named { command, names, .. } = named(command(), &[]).unwrap();
        let has_variable = |flag: &Arg| flag.get_env().is_some() || flag.get_long() == Some("version");
        assert!(command.get_arguments().all(has_variable) && names.contains(&"IDEM_LANES".to_owned()), "{names:?}");
    }

    #[test]
    fn a_secret_may_be_in_a_file_and_has_one_source() {
        let files = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|name| (*name).to_owned()).collect();
            named(command(), &set).map(|named| named.files)
        };
        let of = |variable: &str| Ok(vec![("database-url".to_owned(), variable.to_owned())]);
        assert_eq!(files(&["DATABASE_URL"]), Ok(Vec::new()));
        assert_eq!(files(&["DATABASE_URL_FILE"]), of("DATABASE_URL_FILE"));
        assert_eq!(files(&["IDEM_DATABASE_URL_FILE"]), of("IDEM_DATABASE_URL_FILE"));
        for both in [["DATABASE_URL", "DATABASE_URL_FILE"], ["IDEM_DATABASE_URL", "DATABASE_URL_FILE"]] {
            let refused = files(&both).unwrap_err();
            assert!(both.iter().all(|name| refused.contains(name)), "{refused}");
        }
        // Only secrets have one, and a misspelt one is found out.
        assert!(refused("IDEM_LANES_FILE").is_some());
        assert!(refused("IDEM_DATABASE_URL_FIL").is_some_and(|line| line.contains("IDEM_DATABASE_URL_FILE")));
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
