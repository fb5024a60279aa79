//! The file with settings, in TOML: those that neither a flag nor a variable gives.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource, value_parser};
use toml::{Table, Value};

use crate::{values::has_password, variables};

const FLAG: &str = "config";

/// The flag that names the file.
pub(crate) fn flag() -> Arg {
    let help = "Read settings from this file, in TOML and named like the flags; flags and variables win over it";
    Arg::new(FLAG).long(FLAG).env("IDEM_CONFIG").value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
}

/// `arguments` and, before them, each setting of the file that no flag and no variable gives. So a value from the file is
/// checked, shown and hidden exactly as one of the command line.
///
/// # Errors
/// One line that names the file, and shows no value of it: each may be a password.
pub(crate) fn with_file(command: &Command, mut arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    // A fault of the command line itself is reported when it is parsed for good.
    let Ok(given) = command.clone().ignore_errors(true).try_get_matches_from(&arguments) else { return Ok(arguments) };
    let Some(path) = given.get_one::<PathBuf>(FLAG) else { return Ok(arguments) };
    let added = read(path)
        .and_then(|table| added(&table, command, &given))
        .map_err(|why| format!("the file {} of --{FLAG} {why}", path.display()))?;
    let program = arguments.len().min(1);
    arguments.splice(program..program, added);
    Ok(arguments)
}

/// The file of settings, if one is given and holds a secret value.
pub(crate) fn with_secrets(command: &Command, given: &ArgMatches) -> Option<PathBuf> {
    let path = given.get_one::<PathBuf>(FLAG)?;
    let table = read(path).ok()?;
    let is_hidden = |name: &str| find(command, name).is_ok_and(Arg::is_hide_env_values_set);
    // Of a URL, only a password is one.
    let is_secret = |value: &Value| value.as_str().is_none_or(|text| !text.contains("://") || has_password(text));
    table.iter().any(|(name, value)| is_hidden(name) && is_secret(value)).then(|| path.clone())
}

fn read(path: &Path) -> Result<Table, String> {
    parsed(&std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?)
}

pub(crate) fn parsed(text: &str) -> Result<Table, String> {
    text.parse().map_err(|error: toml::de::Error| {
        // The error's own text quotes the line.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("is no TOML: line {line}: {}", error.message())
    })
}

pub(crate) fn added(table: &Table, command: &Command, given: &ArgMatches) -> Result<Vec<OsString>, String> {
    let mut added = Vec::new();
    for (name, value) in table {
        let argument = find(command, name)?;
        let values = values(argument, value).map_err(|why| format!("has {name}, which {why}"))?;
        let source = given.value_source(argument.get_id().as_str());
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            added.extend(values.iter().map(|value| format!("--{name}{value}").into()));
        }
    }
    Ok(added)
}

fn find<'c>(command: &'c Command, name: &str) -> Result<&'c Arg, String> {
    let settings = || command.get_arguments().filter(|argument| argument.get_long() != Some(FLAG));
    settings().find(|argument| argument.get_long() == Some(name)).ok_or_else(|| {
        let known: Vec<&str> = settings().filter_map(Arg::get_long).collect();
        let hint = match variables::nearest(&name.replace('_', "-"), &known) {
            Some(similar) => format!("did you mean {similar}?"),
            None => "--help-all lists those that there are".to_owned(),
        };
        format!("has the setting {name}, which is unknown; {hint}")
    })
}

/// The values behind the flag's name, one for each time that the flag is given.
fn values(argument: &Arg, value: &Value) -> Result<Vec<String>, &'static str> {
    let is_switch = !argument.get_action().takes_values();
    let is_repeatable = matches!(argument.get_action(), ArgAction::Append);
    match value {
        Value::Boolean(is_on) if is_switch => Ok(if *is_on { vec![String::new()] } else { Vec::new() }),
        _ if is_switch => Err("must be true or false"),
        Value::Boolean(is_on) => Ok(vec![if *is_on { "=on" } else { "=off" }.to_owned()]),
        Value::String(text) => Ok(vec![format!("={text}")]),
        Value::Integer(number) => Ok(vec![format!("={number}")]),
        Value::Array(list) if is_repeatable => {
            let texts = list.iter().map(|value| value.as_str().map(|text| format!("={text}")));
            texts.collect::<Option<_>>().ok_or("must be a list of texts")
        }
        Value::Array(_) => Err("is a list, but it takes one value"),
        Value::Float(_) | Value::Datetime(_) => Err("must be a text, such as \"5s\", or a whole number"),
        Value::Table(_) => Err("is a table; settings stand at the top of the file, without groups"),
    }
}

#[cfg(test)]
mod tests;
