//! A message's headers.

use std::fmt;

use bytes::Bytes;

/// Headers in the order of delivery. A name may repeat and a value may be absent, as Kafka allows.
///
/// Names are compared byte for byte.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Box<str>, Option<Bytes>)>);

impl Headers {
    /// Appends a header; an earlier one of the same name stays.
    pub fn push(&mut self, name: &str, value: Option<Bytes>) {
        self.0.push((name.into(), value));
    }

    /// All values of `name`, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Option<&'a [u8]>> {
        self.0.iter().filter(move |(n, _)| &**n == name).map(|(_, v)| v.as_deref())
    }

    /// The value of `name` where it occurs exactly once and is UTF-8.
    #[must_use]
    pub fn text<'a>(&'a self, name: &str) -> Option<&'a str> {
        let mut values = self.0.iter().filter(|(n, _)| &**n == name).map(|(_, value)| value.as_deref());
        let only = values.next()??;
        if values.next().is_some() { None } else { std::str::from_utf8(only).ok() }
    }

    /// Every header, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.0.iter().map(|(n, v)| (&**n, v.as_deref()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Room for so many, for a source that knows how many a message has.
    #[must_use]
    pub fn with_capacity(headers: usize) -> Self {
        Self(Vec::with_capacity(headers))
    }

    /// The bytes of all names and values, as a producer would count them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(n, v)| n.len() + v.as_ref().map_or(0, Bytes::len)).sum()
    }

    /// The memory that they take: each header costs its place in the list, also where name and value are empty.
    pub(super) fn memory(&self) -> usize {
        self.bytes() + self.0.len() * size_of::<(Box<str>, Option<Bytes>)>()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be as private as the payload (S4), so only names and sizes are printed.
        f.debug_map().entries(self.0.iter().map(|(n, v)| (n, v.as_ref().map(Bytes::len)))).finish()
    }
}
