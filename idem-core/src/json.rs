//! JSON as the engine needs it: one member by pointer, depth, and a canonical form, each refusing repeated members.

pub(crate) mod exact;

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// JSON deeper than this is refused before it is parsed (S10).
pub(crate) const DEPTH_MAX: usize = 64;

/// Counts brackets outside of strings, so that no parser has to recurse to find out.
pub(crate) fn deeper_than_max(json: &[u8]) -> bool {
    // Nearly every payload has so few brackets that it cannot be, which this checks many bytes at a time.
    if json.iter().filter(|byte| matches!(byte, b'{' | b'[')).count() <= DEPTH_MAX {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Why a member could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberError {
    /// The payload is no JSON, is too deep, or the pointer's parents are no objects or arrays.
    NotJson,
    /// A member repeats on the way to the pointer, so readers may disagree about which one counts.
    Repeated,
    /// The member exists and is no string.
    NotText,
}

const REPEATED: &str = "idem: repeated member";
const NOT_TEXT: &str = "idem: member is no string";

/// The string at `path` (unescaped JSON pointer tokens); `None` where no such member exists or it is null.
pub(crate) fn text_at(json: &[u8], path: &[String]) -> Result<Option<String>, MemberError> {
    if deeper_than_max(json) {
        return Err(MemberError::NotJson);
    }
    let mut parser = serde_json::Deserializer::from_slice(json);
    let found = At { path }.deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
    found.map_err(|error| {
        let text = error.to_string();
        if text.starts_with(REPEATED) {
            MemberError::Repeated
        } else if text.starts_with(NOT_TEXT) {
            MemberError::NotText
        } else {
            MemberError::NotJson
        }
    })
}

struct At<'a> {
    path: &'a [String],
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! scalar {
    ($($method:ident: $type:ty),*) => {$(
        fn $method<E: serde::de::Error>(self, _: $type) -> Result<Self::Value, E> {
            if self.path.is_empty() { Err(E::custom(NOT_TEXT)) } else { Err(E::custom("no container")) }
        }
    )*};
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    scalar!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        if self.path.is_empty() { Ok(None) } else { Err(E::custom("no container")) }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if self.path.is_empty() { Ok(Some(text.to_owned())) } else { Err(E::custom("no container")) }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((member, rest)) = self.path.split_first() else {
            return Err(A::Error::custom(NOT_TEXT));
        };
        let (mut seen, mut found) = (Names::default(), None);
        while let Some(Name(name)) = map.next_key()? {
            if name == member.as_str() {
                found = map.next_value_seed(At { path: rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            if !seen.insert(name) {
                return Err(A::Error::custom(REPEATED));
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let Some((index, rest)) = self.path.split_first() else {
            return Err(A::Error::custom(NOT_TEXT));
        };
        let index: usize = index.parse().map_err(|_| A::Error::custom("no container"))?;
        for _ in 0..index {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = seq.next_element_seed(At { path: rest })?.flatten();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// A member's name, copied only where it is escaped.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The names of an object's members so far. Every message's payload is looked through, and most objects have a few: those
/// are kept without an allocation.
#[derive(Default)]
struct Names<'a> {
    few: [Option<Cow<'a, str>>; 8],
    others: BTreeSet<Cow<'a, str>>,
}

impl<'a> Names<'a> {
    /// Whether the name is new.
    fn insert(&mut self, name: Cow<'a, str>) -> bool {
        for place in &mut self.few {
            match place {
                Some(known) if *known == name => return false,
                Some(_) => {}
                None => {
                    *place = Some(name);
                    return true;
                }
            }
        }
        self.others.insert(name)
    }
}

/// A JSON value whose written form is the same for every order of members and every spacing.
///
/// It is our own tree and not `serde_json::Value`, because that one keeps the last of repeated members silently and
/// changes its order with a feature that any crate of an application can turn on.
#[derive(Debug)]
pub(crate) enum Canonical {
    Scalar(String),
    List(Vec<Canonical>),
    Object(Vec<(String, Canonical)>),
}

impl Canonical {
    pub(crate) fn at(&self, path: &[String]) -> Option<&Self> {
        path.iter().try_fold(self, |tree, token| match tree {
            Self::Object(members) => members.iter().find(|(name, _)| name == token).map(|(_, value)| value),
            Self::List(items) => items.get(token.parse::<usize>().ok()?),
            Self::Scalar(_) => None,
        })
    }

    pub(crate) fn remove(&mut self, path: &[String]) {
        let Some((token, rest)) = path.split_first() else { return };
        match self {
            Self::Object(members) if rest.is_empty() => members.retain(|(name, _)| name != token),
            Self::Object(members) => {
                if let Some((_, child)) = members.iter_mut().find(|(name, _)| name == token) {
                    child.remove(rest);
                }
            }
            Self::List(items) => {
                if let Some(child) = token.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                    if rest.is_empty() {
                        // The items behind it keep their places, and with them the pointers that name them.
                        *child = Self::Scalar(String::new());
                    } else {
                        child.remove(rest);
                    }
                }
            }
            Self::Scalar(_) => {}
        }
    }

    pub(crate) fn write(&self, out: &mut String) {
        match self {
            Self::Scalar(text) => out.push_str(text),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                let mut sorted: Vec<_> = members.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                out.push('{');
                for (index, (name, value)) in sorted.into_iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(&quoted(name));
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The tokens of a JSON pointer (RFC 6901); `None` where it is malformed.
pub(crate) fn pointer(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.strip_prefix('/')?.split('/').map(unescape).collect()
}

/// A tilde stands only before `0` or `1` (RFC 6901 §3).
fn unescape(token: &str) -> Option<String> {
    let stray = token.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1']));
    (!stray).then(|| token.replace("~1", "/").replace("~0", "~"))
}

#[cfg(test)]
mod tests;
