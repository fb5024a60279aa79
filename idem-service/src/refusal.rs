//! clap's refusal of a wrong command line, as one line without the value of a secret.

use clap::{
    Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// One line that names the flag, its error, and the cure.
pub(crate) fn line(error: &Error, command: &Command) -> String {
    let flag = text(error, ContextKind::InvalidArg);
    #[allow(clippy::wildcard_enum_match_arm, reason = "clap's kinds are open, and most need no words of their own")]
    match error.kind() {
        ErrorKind::UnknownArgument => unknown(error, &flag),
        ErrorKind::MissingRequiredArgument => missing(&flag, command),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => wrong_value(error, &flag, command),
        ErrorKind::ArgumentConflict => conflict(error, &flag),
        // Its rendering quotes the value.
        ErrorKind::TooManyValues => format!("{} takes no value", name_of(&flag)),
        kind => format!("{flag} {}", kind.as_str().unwrap_or("cannot be read")).trim_start().to_owned(),
    }
}

/// clap reports a flag that is given twice as one that conflicts with itself.
fn conflict(error: &Error, flag: &str) -> String {
    let (flag, prior) = (name_of(flag), text(error, ContextKind::PriorArg));
    match name_of(&prior) {
        prior if prior.is_empty() || prior == flag => format!("{flag} is given more than once"),
        prior => format!("{flag} cannot be given together with {prior}"),
    }
}

/// An argument that is no flag is not repeated: it may be a password after a blank that should not
/// be there.
fn unknown(error: &Error, flag: &str) -> String {
    if !flag.starts_with('-') {
        return "there is an argument that belongs to no flag (it is not shown): every setting is a flag, such as \
                --lanes 2"
            .to_owned();
    }
    match text(error, ContextKind::SuggestedArg).as_str() {
        "" => format!("the flag {flag} is unknown; --help-all lists those that there are"),
        similar => format!("the flag {flag} is unknown; did you mean {similar}?"),
    }
}

/// `flags` is as in the usage: `--consumer <NAME>, --topic <NAME>`.
fn missing(flags: &str, command: &Command) -> String {
    let names: Vec<String> = flags
        .split(", ")
        .map(|usage| {
            let flag = name_of(usage);
            let variable = find(command, flag).and_then(|argument| argument.get_env()?.to_str());
            variable.map_or(flag.to_owned(), |variable| format!("{flag} (or the variable {variable})"))
        })
        .collect();
    format!("{} must be given", names.join(" and "))
}

fn wrong_value(error: &Error, usage: &str, command: &Command) -> String {
    let flag = name_of(usage);
    let value = text(error, ContextKind::InvalidValue);
    let is_secret = find(command, flag).is_none_or(clap::Arg::is_hide_env_values_set);
    let shown = if is_secret { "has a wrong value (it is not shown)".to_owned() } else { format!("is {value:?}") };
    let rule = std::error::Error::source(error).map(ToString::to_string).filter(|_| !is_secret);
    let allowed = text(error, ContextKind::ValidValue);
    match (rule, allowed.as_str(), value.as_str()) {
        (_, "", "") => format!("{flag} needs a value"),
        (Some(rule), ..) => format!("{flag} {shown}, but {rule}"),
        (None, "", _) => format!("{flag} {shown}"),
        (None, allowed, _) => format!("{flag} {shown}, but it must be one of {allowed}"),
    }
}

/// The flag without the name of its value.
fn name_of(usage: &str) -> &str {
    usage.split([' ', '[', '=']).next().unwrap_or(usage)
}

fn find<'a>(command: &'a Command, flag: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| argument.get_long() == flag.strip_prefix("--"))
}

fn text(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        Some(ContextValue::StyledStr(text)) => text.to_string(),
        Some(ContextValue::StyledStrs(texts)) => texts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        // A number, a flag of clap's own, or nothing; the enum is open.
        Some(_) | None => String::new(),
    }
}
