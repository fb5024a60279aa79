//! Reads the command line, the environment and the file of settings, or reports in one line the error in them.

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _, error::ErrorKind, parser::ValueSource,
};

use crate::{broker::Broker, config, refusal, settings::Settings, values::has_password, variables, variables::Named};

/// A worker's command line, read.
#[derive(Debug)]
pub(crate) struct CommandLine<B, A> {
    pub(crate) settings: Settings,
    pub(crate) broker: B,
    /// The application's own.
    pub(crate) own: A,
    /// The names of all flags.
    pub(crate) flags: Vec<String>,
    /// Everything that was given, without secrets, for the log.
    pub(crate) given: String,
    /// The files with secrets that were read, each with its flag or variable.
    pub(crate) secrets: Vec<(PathBuf, String)>,
    /// The flags whose password stands in the list of processes.
    pub(crate) exposed: Vec<String>,
    /// Variables that begin like the broker's and that nothing reads.
    pub(crate) foreign: Vec<String>,
}

/// The application's own settings.
pub(crate) struct Own<F> {
    /// Adds their flags.
    pub(crate) flags: fn(Command) -> Command,
    /// Reads their values.
    pub(crate) read: F,
}

/// Of an application without settings of its own.
#[cfg(test)]
impl Own<fn(&ArgMatches) -> Result<(), clap::Error>> {
    pub(crate) fn none() -> Self {
        Self { flags: |command| command, read: |_| Ok(()) }
    }
}

/// The end of a command line that starts no worker.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Help or the version was asked for, and printed.
    Answered,
    /// One line that names the error.
    Refused(String),
}

/// Reads `arguments`, whose first is the program's name, the variables that flags have, and the file that one of them
/// names. `variables` are the names of all that are set.
pub(crate) fn read<B: Broker, A>(
    name: &'static str,
    version: &'static str,
    own: Own<impl FnOnce(&ArgMatches) -> Result<A, clap::Error>>,
    arguments: Vec<OsString>,
    variables: impl IntoIterator<Item = String>,
) -> Result<CommandLine<B, A>, Stop> {
    let command = command::<B>(name, version, own.flags);
    let Matched { command, matches, foreign, exposed, files } = matches(command, B::VARIABLES, arguments, variables)?;
    let refused = |error| Stop::Refused(refusal::line(&error, &command));
    let settings = Settings::from_arg_matches(&matches).map_err(refused)?;
    let broker = B::from_arg_matches(&matches).map_err(refused)?;
    let own = (own.read)(&matches).map_err(refused)?;
    let secrets = secrets(&command, &matches, settings.flags.key_secret_file.clone(), files);
    let given = given(&command, &matches);
    let flags = command.get_arguments().filter_map(|flag| Some(flag.get_long()?.to_owned())).collect();
    Ok(CommandLine { settings, broker, own, flags, given, secrets, exposed, foreign })
}

/// The values of a command's flags.
#[derive(Debug)]
pub(crate) struct Matched {
    /// With its variables and its help.
    pub(crate) command: Command,
    pub(crate) matches: ArgMatches,
    /// Variables that begin like the broker's and that nothing reads.
    pub(crate) foreign: Vec<String>,
    /// The flags whose password stands in the list of processes.
    pub(crate) exposed: Vec<String>,
    /// The files with secrets that variables name, each with its variable.
    pub(crate) files: Vec<(PathBuf, String)>,
}

/// The values of this command's flags by the command line, the variables, the files that those name and the file of
/// settings, and the unread variables that begin with `prefix`.
pub(crate) fn matches(
    command: Command,
    prefix: &str,
    arguments: Vec<OsString>,
    variables: impl IntoIterator<Item = String>,
) -> Result<Matched, Stop> {
    let set: Vec<String> = variables.into_iter().collect();
    let Named { command, names: known, files } = variables::named(command, &set).map_err(Stop::Refused)?;
    let command = &mut with_help(command);
    let exposed = exposed(command, &arguments);
    let (arguments, files) = variables::with_files(command, files, arguments).map_err(Stop::Refused)?;
    let arguments = config::with_file(command, arguments).map_err(Stop::Refused)?;
    let matches = match command.try_get_matches_from_mut(arguments) {
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A reader that went away wants no help any more.
            let _ = error.print();
            return Err(Stop::Answered);
        }
        matches => matches,
    };
    // First, because a misspelt variable is why a required one is missing.
    let foreign = variables::foreign(command, &known, prefix, &set).map_err(Stop::Refused)?;
    let matches = matches.map_err(|error| match (error.kind(), &foreign[..]) {
        // One of them may have been meant, such as KAFKA_BOOTSTRAP_SERVERS.
        (ErrorKind::MissingRequiredArgument, [_, ..]) => {
            let line = refusal::line(&error, command);
            Stop::Refused(format!("{line}; set, and no settings of this worker: {}", foreign.join(" ")))
        }
        _ => Stop::Refused(refusal::line(&error, command)),
    })?;
    Ok(Matched { command: command.clone(), matches, foreign, exposed, files })
}

/// The usual flags are one screen; the others are behind `--help-all`.
fn with_help(command: Command) -> Command {
    let flag = |name: &'static str, does: ArgAction| Arg::new(name).long(name).action(does).help_heading("Help");
    command
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(flag("help", ArgAction::HelpShort).short('h').help("Print the usual settings"))
        .arg(flag("help-all", ArgAction::HelpLong).help("Print all settings"))
        .arg(flag("version", ArgAction::Version).short('V').help("Print the version"))
}

/// The files with secrets that are read, each with its flag or variable.
pub(crate) fn secrets(
    command: &Command,
    matches: &ArgMatches,
    key_secret: Option<PathBuf>,
    files: Vec<(PathBuf, String)>,
) -> Vec<(PathBuf, String)> {
    let config = config::with_secrets(command, matches).map(|file| (file, "--config".to_owned()));
    let key_secret = key_secret.map(|file| (file, "--key-secret-file".to_owned()));
    config.into_iter().chain(key_secret).chain(files).collect()
}

fn command<B: Broker>(name: &'static str, version: &'static str, own: fn(Command) -> Command) -> Command {
    // The broker's flags and the application's first: readers look for those.
    let brokers = B::augment_args(Command::new(name).version(version));
    let own = own(brokers.next_help_heading("Application"));
    let command = Settings::augment_args(own.next_help_heading("Worker").arg(config::flag()));
    // Otherwise clap takes the documentation of the structs that hold the flags.
    command.about("Consumes messages; their handlers' writes are committed exactly once").long_about(None)
}

/// The flags that were given, by the command line, a variable or the file.
pub(crate) fn given(command: &Command, matches: &ArgMatches) -> String {
    let mut given = Vec::new();
    for argument in command.get_arguments() {
        let (id, Some(flag)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        if !matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        if !argument.get_action().takes_values() {
            given.extend(matches.get_flag(id).then(|| format!("--{flag}")));
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let value = if argument.is_hide_env_values_set() { "…".into() } else { value.to_string_lossy() };
            given.push(format!("--{flag}={value}"));
        }
    }
    given.join(" ")
}

/// The flags that have a password on the command line itself.
fn exposed(command: &Command, arguments: &[OsString]) -> Vec<String> {
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(arguments) else { return Vec::new() };
    let secret = command.get_arguments().filter(|argument| argument.is_hide_env_values_set());
    let exposed = secret.filter(|argument| {
        let id = argument.get_id().as_str();
        matches.value_source(id) == Some(ValueSource::CommandLine)
            && matches.get_raw(id).into_iter().flatten().any(|value| has_password(&value.to_string_lossy()))
    });
    exposed.filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect()
}

#[cfg(test)]
mod tests;
