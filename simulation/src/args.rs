//! The options of the command line.

use simulation::{Rule, Theme};

/// The command line.
#[derive(Debug, Clone)]
pub(crate) struct Args {
    pub(crate) theme: Theme,
    pub(crate) seed: u64,
    pub(crate) lives: Option<u64>,
    pub(crate) jobs: usize,
    pub(crate) every_poll: bool,
    /// After how many polls the first process dies.
    pub(crate) dies_at: Option<u64>,
    pub(crate) trace: bool,
    pub(crate) whole: bool,
    pub(crate) teeth: bool,
    pub(crate) until: Option<Rule>,
    pub(crate) bug: Option<String>,
    pub(crate) page: Option<String>,
}

impl Args {
    /// Reads it, or says what is wrong with it.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            theme: Theme::Small,
            seed: 1,
            lives: None,
            jobs: 1,
            every_poll: false,
            dies_at: None,
            trace: false,
            whole: false,
            teeth: false,
            until: None,
            bug: None,
            page: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--theme" => args.theme = theme(&value()?)?,
                "--seed" => args.seed = number(&value()?)?,
                "--lives" => args.lives = Some(number(&value()?)?),
                "--jobs" => {
                    args.jobs = usize::try_from(number(&value()?)?.max(1)).map_err(|error| error.to_string())?
                }
                "--every-poll" => args.every_poll = true,
                "--dies-at" => args.dies_at = Some(number(&value()?)?),
                "--trace" => args.trace = true,
                "--whole" => args.whole = true,
                "--teeth" => args.teeth = true,
                "--until" => args.until = Some(rule(&value()?)?),
                "--page" => args.page = Some(value()?),
                "--bug" => args.bug = Some(value()?),
                other => return Err(format!("{other} is not known; the first lines of ./sim say what is")),
            }
        }
        Ok(args)
    }

    /// How many lives are run.
    pub(crate) fn lives(&self) -> u64 {
        self.lives.unwrap_or(if self.trace { 1 } else { 20_000 })
    }
}

fn theme(text: &str) -> Result<Theme, String> {
    Theme::ALL
        .into_iter()
        .find(|theme| theme.as_str() == text)
        .ok_or_else(|| format!("{text} is no theme; there are {}", Theme::ALL.map(Theme::as_str).join(", ")))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn rule(text: &str) -> Result<Rule, String> {
    let named = Rule::ALL.into_iter().find(|rule| format!("{rule:?}").eq_ignore_ascii_case(text));
    named.ok_or_else(|| format!("{text} is no rule; there are {:?}", Rule::ALL))
}
