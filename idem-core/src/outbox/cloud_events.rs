//! Writes events as CloudEvents 1.0, for all publishers.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::IgnoredAny;

use crate::{
    config_error::ConfigError,
    key::KEY_FIELD,
    message::headers::Headers,
    outbox::{
        collect::{CAUSE, CAUSED_BY},
        limits::DestinationLimits,
        rows::{NewEvent, OutgoingEvent},
    },
};

/// The media type of an event in structured mode.
pub const STRUCTURED: &str = "application/cloudevents+json";

/// The form in which events are sent, as [CloudEvents 1.0](https://github.com/cloudevents/spec).
///
/// Every event has the plain headers `idempotencykey`, which is its id, `idemcause`, the key of the message at the beginning
/// of the chain, and `idemcausedby`, the key of the message whose handler published it. It also has the attributes of
/// CloudEvents: `specversion`, `id`, `source`, `type`, `time` (in binary mode), `datacontenttype`, and the extensions `idempotencykey`,
/// `correlationid` (as `idemcause`) and `causationid` (as `idemcausedby`). An event without a
/// [type](crate::Event::event_type) is not a CloudEvent, and has the plain headers alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CloudEvents {
    is_structured: bool,
    hides_causes: bool,
    source: Option<Box<str>>,
}

/// An event in the form that a broker accepts.
#[derive(Clone)]
#[non_exhaustive]
pub struct Wire {
    /// The headers, each name once: idem's plain ones, the handler's, and in binary mode those of CloudEvents. The media type is
    /// not among them.
    pub headers: Headers,
    /// The media type of the payload.
    pub content_type: Option<Box<str>>,
    /// The payload; in structured mode with the attributes around it.
    pub payload: Bytes,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No payload (S4); Headers hide their values.
        f.debug_struct("Wire")
            .field("headers", &self.headers)
            .field("content_type", &self.content_type)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish()
    }
}

impl CloudEvents {
    /// The attributes are headers, and the payload is the handler's. This is the default.
    #[must_use]
    pub fn binary() -> Self {
        Self::default()
    }

    /// The payload is a JSON object with the attributes and, as its member `data`, the handler's payload, or `data_base64` if
    /// that is not text. So the key is in the payload too. `time` is left out, because it is the row's: an event that its handler
    /// publishes again, after an `idem forget` or a restore, has the same bytes, and is a copy to receivers that compare payloads.
    #[must_use]
    pub fn structured() -> Self {
        Self { is_structured: true, ..Self::default() }
    }

    /// Whether events are sent in structured mode.
    #[must_use]
    pub const fn is_structured(&self) -> bool {
        self.is_structured
    }

    /// Sets the `source` of events, a URI reference. Defaults to `/idem/<tenant>/<consumer>`, percent-encoded, and
    /// `/idem/<consumer>` where there is only one tenant. A consumer that was renamed keeps its first name there, from which the ids of
    /// its events are derived: a copy that goes after that has the bytes of the one before.
    ///
    /// # Errors
    /// [`ConfigError`] if it is empty, longer than 500 bytes, or not a URI reference.
    pub fn source(self, source: &str) -> Result<Self, ConfigError> {
        let is_fine = (1..=500).contains(&source.len())
            && source.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte));
        if is_fine {
            Ok(Self { source: Some(source.into()), ..self })
        } else {
            Err(ConfigError::new("cloud_events.source", format!("{source:?}"), "a URI reference of 1 to 500 bytes"))
        }
    }

    /// Leaves out `correlationid` and `causationid`, which are keys of other messages, for receivers that are somebody else.
    #[must_use]
    pub fn without_causes(self) -> Self {
        Self { hides_causes: true, ..self }
    }

    /// The attributes of CloudEvents, without a prefix; none if the event has no type.
    #[must_use]
    pub fn attributes(&self, event: &OutgoingEvent) -> Vec<(&'static str, String)> {
        let Some(event_type) = &event.event_type else { return Vec::new() };
        let source = || match event.tenant.as_ref() {
            "" => format!("/idem/{}", of_uri(event.derives_as.as_str())),
            tenant => format!("/idem/{}/{}", of_uri(tenant), of_uri(event.derives_as.as_str())),
        };
        let mut attributes = vec![
            ("specversion", "1.0".to_owned()),
            ("id", event.key.as_str().to_owned()),
            ("source", self.source.as_deref().map_or_else(source, str::to_owned)),
            ("type", event_type.to_string()),
            ("time", rfc3339(event.created_at)),
        ];
        attributes.extend(event.content_type.as_ref().map(|kind| ("datacontenttype", kind.to_string())));
        attributes.push((KEY_FIELD, event.key.as_str().to_owned()));
        if !self.hides_causes {
            let text = |name: &'static str, header: &str| Some((name, event.headers.text(header)?.to_owned()));
            attributes.extend(text("correlationid", CAUSE));
            attributes.extend(text("causationid", CAUSED_BY));
        }
        attributes
    }

    /// The event with its attributes as headers that have this prefix, such as `ce_` on Kafka. For HTTP take
    /// [`over_http`](Self::over_http).
    #[must_use]
    pub fn on_wire(&self, event: &OutgoingEvent, prefix: &str) -> Wire {
        self.written(event, |headers, attributes| put(headers, attributes, prefix, str::to_owned))
    }

    /// The event as the binding to HTTP has it: the attributes are headers that begin with `ce-`, with their values percent-encoded.
    #[must_use]
    pub fn over_http(&self, event: &OutgoingEvent) -> Wire {
        // All but printable ASCII, without the quote and the percent sign (HTTP binding 1.0.2, 3.1.3.2).
        let encoded = |value: &str| utf8_percent_encode(value, IN_HEADER).to_string();
        self.written(event, |headers, attributes| put(headers, attributes, "ce-", encoded))
    }

    /// The event with its attributes as one header, a JSON object, for brokers that take few headers.
    #[must_use]
    pub fn on_wire_together(&self, event: &OutgoingEvent, name: &str) -> Wire {
        self.written(event, |headers, attributes| {
            headers.push(name, Some(format!("{{{}}}", members(attributes)).into()))
        })
    }

    fn written(&self, event: &OutgoingEvent, put: impl FnOnce(&mut Headers, &[(&str, String)])) -> Wire {
        let mut attributes = self.attributes(event);
        let is_structured = self.is_structured && !attributes.is_empty();
        let has_content_type = is_structured || event.content_type.is_some();
        let mut headers = Headers::default();
        headers.push(KEY_FIELD, Some(event.key.as_str().to_owned().into()));
        for (name, value) in event.headers.iter() {
            // The media type has a place of its own, and each name is there once, because some brokers allow no repeats.
            let is_content_type = has_content_type && name.eq_ignore_ascii_case("content-type");
            if !is_content_type && headers.all(name).next().is_none() {
                headers.push(name, value.map(Bytes::copy_from_slice));
            }
        }
        if is_structured {
            attributes.retain(|(name, _)| *name != "time");
            let payload = structured(event, &attributes);
            return Wire { headers, content_type: Some(STRUCTURED.into()), payload };
        }
        if !attributes.is_empty() {
            put(&mut headers, &attributes);
        }
        Wire { headers, content_type: event.content_type.clone(), payload: event.payload.clone() }
    }
}

/// Adds the attributes that have no place of their own as headers.
fn put(headers: &mut Headers, attributes: &[(&str, String)], prefix: &str, encoded: impl Fn(&str) -> String) {
    for (name, value) in attributes.iter().filter(|(name, _)| *name != "datacontenttype") {
        headers.push(&format!("{prefix}{name}"), Some(encoded(value).into()));
    }
}

/// The members of a JSON object, without its braces.
fn members(attributes: &[(&str, String)]) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let members: Vec<String> =
        attributes.iter().map(|(name, value)| format!("{}:{}", quoted(name), quoted(value))).collect();
    members.join(",")
}

fn structured(event: &OutgoingEvent, attributes: &[(&str, String)]) -> Bytes {
    let data = match Data::of(event.content_type.as_deref(), &event.payload) {
        Data::Nothing => String::new(),
        Data::Json(text) => format!(",\"data\":{text}"),
        Data::Text(text) => format!(",\"data\":{}", serde_json::Value::from(text)),
        Data::Bytes => format!(",\"data_base64\":\"{}\"", base64(&event.payload)),
    };
    format!("{{{}{data}}}", members(attributes)).into()
}

/// How many bytes the payload has in structured mode at least, without the attributes.
fn structured_bytes(content_type: Option<&str>, payload: &[u8]) -> usize {
    match Data::of(content_type, payload) {
        // Text may grow by what is escaped in it.
        Data::Nothing | Data::Json(_) | Data::Text(_) => payload.len(),
        Data::Bytes => payload.len().div_ceil(3) * 4,
    }
}

/// How a payload stands in structured mode.
enum Data<'p> {
    Nothing,
    /// Unchanged, so that numbers keep their digits.
    Json(&'p str),
    /// As a string.
    Text(&'p str),
    /// In base64.
    Bytes,
}

impl<'p> Data<'p> {
    fn of(content_type: Option<&str>, payload: &'p [u8]) -> Self {
        let kind = content_type.map(|kind| kind.split(';').next().unwrap_or_default().trim());
        // Without a media type the data of this format is JSON.
        let says_json =
            kind.is_none_or(|kind| kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json"));
        match std::str::from_utf8(payload).ok() {
            Some("") => Self::Nothing,
            Some(text) if says_json && serde_json::from_str::<IgnoredAny>(text).is_ok() => Self::Json(text),
            Some(text) if kind.is_some_and(|kind| kind.starts_with("text/")) => Self::Text(text),
            Some(_) | None => Self::Bytes,
        }
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit <= chunk.len() { char::from(DIGITS[value]) } else { '=' });
        }
    }
    text
}

/// What the binding to HTTP lets stand in a value.
const IN_HEADER: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// The unreserved characters of RFC 3986 stand.
const IN_URI: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn of_uri(text: &str) -> String {
    utf8_percent_encode(text, IN_URI).to_string()
}

/// In UTC, with microseconds. The days are counted as in Howard Hinnant's `civil_from_days`.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400 + 719_468, since.as_secs() % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second, micros) = (seconds / 3_600, seconds / 60 % 60, seconds % 60, since.subsec_micros());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

impl DestinationLimits {
    /// How many bytes the payload has on its way at least, where that is more than the destination can ever take. What goes beside it
    /// is not counted: only the publisher knows that.
    pub(crate) fn refuses(&self, event: &NewEvent) -> Option<usize> {
        let max = usize::try_from(self.message_bytes_max?).ok()?;
        let bytes = event.payload.len();
        if bytes > max {
            return Some(bytes);
        }
        // Whether it is JSON is looked at only where that decides.
        let grows = self.is_structured && event.event_type.is_some() && bytes.div_ceil(3) * 4 > max;
        let bytes = if grows { structured_bytes(event.content_type.as_deref(), &event.payload) } else { bytes };
        (bytes > max).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        key::default_key_source,
        message::Message,
        names::{ConsumerName, IdempotencyKey, Tenant},
        outbox::rows::EventNumber,
    };

    fn event(content_type: Option<&str>, payload: &'static [u8]) -> OutgoingEvent {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_000_000_123_456);
        let name = ConsumerName::new("ledger/ä").expect("a name");
        let key = IdempotencyKey::new("k\"1").expect("a key");
        let mut event = OutgoingEvent::new(EventNumber(1), name, key, payload.into(), time);
        event.event_type = Some("Charged".into());
        event.content_type = content_type.map(Into::into);
        event.headers.push("region", Some("eu".into()));
        event.headers.push(CAUSE, Some("root".into()));
        event.headers.push(CAUSED_BY, Some("order-1".into()));
        event
    }

    #[test]
    fn o26_binary_mode_has_every_required_attribute_and_the_plain_headers() {
        let wire = CloudEvents::binary().on_wire(&event(Some("application/json"), b"{}"), "ce_");
        for (name, value) in [
            ("idempotencykey", "k\"1"),
            ("idemcause", "root"),
            ("idemcausedby", "order-1"),
            ("region", "eu"),
            ("ce_specversion", "1.0"),
            ("ce_id", "k\"1"),
            ("ce_source", "/idem/ledger%2F%C3%A4"),
            ("ce_type", "Charged"),
            ("ce_time", "2001-09-09T01:46:40.123456Z"),
            ("ce_idempotencykey", "k\"1"),
            ("ce_correlationid", "root"),
            ("ce_causationid", "order-1"),
        ] {
            assert_eq!(wire.headers.text(name), Some(value), "{name}");
        }
        // The binding gives it a place of its own.
        assert_eq!(wire.headers.text("ce_datacontenttype"), None);
        assert_eq!((wire.content_type.as_deref(), &wire.payload[..]), (Some("application/json"), &b"{}"[..]));
    }

    #[test]
    fn o26_over_http_values_are_percent_encoded() {
        let mut event = event(None, b"");
        event.key = IdempotencyKey::new("Euro € \"%\" 😀 a/b~").expect("a key");
        let wire = CloudEvents::binary().over_http(&event);
        // The binding's own example is of the first and the last of these.
        assert_eq!(wire.headers.text("ce-id"), Some("Euro%20%E2%82%AC%20%22%25%22%20%F0%9F%98%80%20a/b~"));
        assert_eq!(wire.headers.text("ce-source"), Some("/idem/ledger%252F%25C3%25A4"));
        assert_eq!(wire.headers.text("ce-time"), Some("2001-09-09T01:46:40.123456Z"));
        assert_eq!(wire.headers.text("ce-datacontenttype"), None);
    }

    #[test]
    fn o26_structured_mode_has_the_key_in_the_payload() {
        let data = |content_type, payload| {
            let wire = CloudEvents::structured().on_wire(&event(content_type, payload), "ce_");
            assert_eq!(wire.content_type.as_deref(), Some(STRUCTURED));
            assert!(wire.headers.iter().all(|(name, _)| !name.starts_with("ce_")));
            let body: serde_json::Value = serde_json::from_slice(&wire.payload).expect("JSON");
            assert_eq!(
                (&body["specversion"], &body["id"], &body["idempotencykey"]),
                (&"1.0".into(), &"k\"1".into(), &"k\"1".into())
            );
            (body["data"].clone(), body["data_base64"].clone(), String::from_utf8(wire.payload.to_vec()).expect("text"))
        };
        let (json, _, text) = data(Some("application/json"), br#"{"cents": 12345678901234567890.10}"#);
        assert!(json.is_object() && text.contains("12345678901234567890.10"), "numbers keep their digits: {text}");
        assert_eq!(data(Some("text/plain"), b"a\"b").0, "a\"b");
        assert_eq!(data(Some("application/json"), b"{no").1, "e25v");
        assert_eq!(data(Some("image/png"), &[0xff, 0x00]).1, "/wA=");
        assert!(data(None, b"").0.is_null());
        // Brokers allow no repeats, and a receiver would take the handler's for that of the whole.
        let mut event = event(None, b"{}");
        event.headers.push("Content-Type", Some("text/plain".into()));
        let wire = CloudEvents::structured().on_wire(&event, "ce_");
        assert_eq!((wire.content_type.as_deref(), wire.headers.text("Content-Type")), (Some(STRUCTURED), None));
    }

    /// O65: a receiver that hashes payloads takes a copy for a copy.
    #[test]
    fn o65_an_event_has_the_same_bytes_each_time_its_handler_runs() {
        let first = event(Some("application/json"), b"{}");
        let mut second = first.clone();
        second.number = EventNumber(2);
        second.created_at += Duration::from_secs(60);
        for mode in [CloudEvents::binary(), CloudEvents::structured()] {
            let [first, second] = [&first, &second].map(|event| mode.on_wire(event, "ce_").payload);
            assert_eq!(first, second, "{mode:?}");
        }
    }

    #[test]
    fn o26_the_default_key_source_reads_every_form_back() {
        for payload in [&b"{\"cents\":1}"[..], b"no json", &[0xff]] {
            let event = event(Some("application/json"), payload);
            for mode in [CloudEvents::binary(), CloudEvents::structured()] {
                let mut wires: Vec<Wire> =
                    ["ce_", "cloudEvents_"].iter().map(|prefix| mode.on_wire(&event, prefix)).collect();
                wires.extend([mode.on_wire_together(&event, "ce"), mode.over_http(&event)]);
                for wire in wires {
                    let mut headers = wire.headers.clone();
                    if let Some(kind) = &wire.content_type {
                        headers.push("content-type", Some(kind.to_string().into()));
                    }
                    let message = Message::new(wire.payload.clone()).with_headers(headers);
                    let key = default_key_source().key(&message).expect("no malformed key");
                    assert_eq!(key.as_ref(), Some(&event.key), "{wire:?}");
                }
            }
        }
    }

    #[test]
    fn an_event_without_a_type_is_no_cloud_event() {
        let mut event = event(None, b"{}");
        event.event_type = None;
        let wire = CloudEvents::structured().on_wire(&event, "ce_");
        assert_eq!((&wire.payload[..], wire.headers.len()), (&b"{}"[..], 4));
    }

    #[test]
    fn a_source_is_a_uri_reference() {
        let source = |source: &str| CloudEvents::binary().source(source);
        assert!(source("urn:example:bank").is_ok() && source("/payments?x=1#y").is_ok());
        for refused in ["", "a b", "a\nb", "<x>", "ä"] {
            assert!(source(refused).is_err(), "{refused:?}");
        }
        let of = |tenant: Tenant| {
            let mut event = event(None, b"");
            event.tenant = tenant.as_str().into();
            CloudEvents::binary().attributes(&event)[2].1.clone()
        };
        assert_eq!(of(Tenant::new("north & south").expect("a tenant")), "/idem/north%20%26%20south/ledger%2F%C3%A4");
    }

    #[test]
    fn base64_and_times_are_as_others_write_them() {
        for (bytes, text) in [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes), text);
        }
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(4_102_444_800), "2100-01-01T00:00:00.000000Z");
    }
}
