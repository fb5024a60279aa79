//! [`CloudEvent`], which finds the key of an event in its attributes.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::{
    json::{self, MemberError},
    key::{KEY_FIELD, KeySource, OutsidePayload, join, outside},
    message::Message,
    names::{IdempotencyKey, KeyError},
};

/// The extension attribute `idempotencykey` of a CloudEvent, else its `source` and `id` together, which CloudEvents
/// 1.0 makes unique for each event. Reads the binary mode of every binding (`ce_`, `ce-`, `cloudEvents_`,
/// `cloudEvents:`) and the structured mode (`content-type: application/cloudevents+json`).
#[derive(Debug, Clone, Copy)]
pub struct CloudEvent;

const PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudEvents_", "cloudEvents:"];

impl CloudEvent {
    /// Whether the attributes stand in the payload.
    fn is_structured(message: &Message) -> bool {
        ["content-type", "content_type", "Content-Type"]
            .iter()
            .find_map(|name| message.headers().text(name))
            .is_some_and(|kind| kind.starts_with("application/cloudevents+json"))
    }

    fn attribute<'a>(message: &'a Message, name: &str) -> Result<Option<Cow<'a, str>>, KeyError> {
        for prefix in PREFIXES {
            let header = format!("{prefix}{name}");
            let mut values = message.headers().all(&header);
            if let Some(first) = values.next() {
                if values.next().is_some() {
                    return Err(KeyError::Repeated { place: format!("cloudevents:{name}") });
                }
                let text = std::str::from_utf8(first.unwrap_or_default()).map_err(|_| KeyError::NotUtf8)?;
                // The binding to HTTP alone encodes values.
                let text = match percent_decode_str(text).decode_utf8() {
                    Ok(decoded) if prefix == "ce-" => decoded,
                    Ok(_) | Err(_) => Cow::Borrowed(text),
                };
                return Ok(Some(Cow::Owned(text.into_owned())));
            }
        }
        let Some(payload) = message.payload().filter(|_| Self::is_structured(message)) else { return Ok(None) };
        let place = || format!("cloudevents:{name}");
        match json::text_at(payload, &[name.to_owned()]) {
            Ok(found) => Ok(found.map(Cow::Owned)),
            Err(MemberError::NotJson) => Err(KeyError::NotJson { place: place() }),
            Err(MemberError::Repeated) => Err(KeyError::Repeated { place: place() }),
            Err(MemberError::NotText) => Err(KeyError::NotText { place: place() }),
        }
    }
}

impl KeySource for CloudEvent {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        if let Some(key) = Self::attribute(message, KEY_FIELD)? {
            return IdempotencyKey::new(&key).map(Some);
        }
        let source = Self::attribute(message, "source")?;
        let id = Self::attribute(message, "id")?;
        match (source, id) {
            (Some(source), Some(id)) => join(&source, &id).map(Some),
            (Some(_) | None, None) | (None, Some(_)) => Ok(None),
        }
    }

    fn outside_payload(&self, message: &Message) -> OutsidePayload {
        if Self::is_structured(message) { OutsidePayload::Unknown } else { outside(self.key(message)) }
    }

    fn rule(&self) -> String {
        "cloudevents".to_owned()
    }
}
