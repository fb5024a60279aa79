//! Where a message's type is: [`TypePlace`].

use std::borrow::Cow;

use crate::{
    json::MemberError,
    key::JsonMember,
    message::{Message, decode_error::DecodePayloadError},
};

/// Where a message's type stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypePlace {
    /// It is [`Message::message_type`].
    Message,
    /// It is in a header or attribute of this name, which occurs once.
    Header(String),
    /// It is a text in the JSON payload.
    Json(JsonMember),
}

impl TypePlace {
    /// The type of `message`; `None` where it has none there.
    #[must_use]
    pub fn of<'a>(&self, message: &'a Message) -> Option<Cow<'a, str>> {
        self.read(message).unwrap_or_default()
    }

    /// The same, with an error for a payload whose type cannot be determined.
    pub(crate) fn read<'a>(&self, message: &'a Message) -> Result<Option<Cow<'a, str>>, DecodePayloadError> {
        let member = match self {
            Self::Message => return Ok(message.message_type().map(Cow::Borrowed)),
            Self::Header(name) => return Ok(message.headers().text(name).map(Cow::Borrowed)),
            Self::Json(member) => member,
        };
        member.text(message).map(|found| found.map(Cow::Owned)).map_err(|error| {
            let pointer = member.pointer();
            DecodePayloadError::new(match error {
                MemberError::NotJson => format!("no JSON with a type at {pointer}"),
                MemberError::Repeated => format!("the type at {pointer} is repeated, so readers may disagree about it"),
                MemberError::NotText => format!("the type at {pointer} is no text"),
            })
        })
    }
}
