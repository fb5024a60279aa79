//! The error of a payload that cannot be decoded.

/// The payload is not what the handler expected. Its text names the place, never the content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the payload is malformed: {problem}")]
pub struct DecodePayloadError {
    problem: String,
    cause: Option<&'static str>,
}

impl DecodePayloadError {
    /// An error with this text, for people's own decoders; it must not quote the payload.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), cause: None }
    }

    /// The cause, for the group of the dead letter. The text of a decoder of the program's is one up to the first number or quotation,
    /// so that a position or a count in it makes no group of its own.
    pub(crate) fn cause(&self) -> &str {
        let is_value = |character: char| character.is_ascii_digit() || matches!(character, '"' | '\'' | '`');
        self.cause.unwrap_or_else(|| self.problem.split(is_value).next().unwrap_or_default())
    }

    /// Serde's texts quote the payload ("invalid type: string \"secret\", expected u64"), so only those parts are
    /// kept that come from the program.
    pub(super) fn from_json(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let own = OWN_TEXTS.iter().find(|(own, _)| error.is_data() && text.starts_with(own));
        let category = match error.classify() {
            serde_json::error::Category::Io => "json-io",
            serde_json::error::Category::Syntax => "json-syntax",
            serde_json::error::Category::Data => "json-data",
            serde_json::error::Category::Eof => "json-eof",
        };
        let (is_missing, cause) = match text.starts_with("missing field") {
            true => (true, "missing-field"),
            false => (false, own.map_or(category, |(_, cause)| cause)),
        };
        let problem = if is_missing {
            text
        } else {
            let expected = match text.rsplit_once(", expected ") {
                Some((_, expected)) if own.is_some() => format!("expected {}", strip_position(expected)),
                _ => format!("{:?} error", error.classify()).to_lowercase(),
            };
            format!("{expected} at line {} column {}", error.line(), error.column())
        };
        Self { problem, cause: Some(cause) }
    }
}

/// The beginnings of serde's own error texts that end with the program's expectation, and the cause that each stands for. An error of a
/// type's own decoder may quote the payload anywhere.
const OWN_TEXTS: [(&str, &str); 5] = [
    ("invalid type: ", "invalid-type"),
    ("invalid value: ", "invalid-value"),
    ("invalid length ", "invalid-length"),
    ("unknown variant ", "unknown-variant"),
    ("unknown field ", "unknown-field"),
];

fn strip_position(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(head, _)| head)
}
