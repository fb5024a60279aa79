//! The rows of a statement's answer, through any driver.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use idem_core::{Retention, StoreError};
use uuid::Uuid;

use crate::check::errors::unreadable;

/// One value of a row, of a type that idem's statements answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// NULL of any type.
    Null,
    /// `bool`.
    Bool(bool),
    /// `int4`.
    Int4(i32),
    /// `int8`.
    Int8(i64),
    /// `text`.
    Text(String),
    /// `bytea`.
    Bytes(Vec<u8>),
    /// `uuid`.
    Uuid(Uuid),
    /// `text[]`.
    Texts(Vec<String>),
    /// Of a type that no statement's answer is read as.
    Other,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    columns: Arc<[String]>,
    values: Vec<Value>,
}

impl Row {
    /// A row of these columns, whose names all rows of one answer share.
    #[must_use]
    pub fn new(columns: Arc<[String]>, values: Vec<Value>) -> Self {
        Self { columns, values }
    }

    /// The value of a column.
    ///
    /// # Errors
    /// Where there is no such column, or its value has another type.
    pub fn get<'r, T: FromValue<'r>>(&'r self, column: &str) -> Result<T, StoreError> {
        let index = self.columns.iter().position(|name| name == column);
        let value = index.and_then(|index| self.values.get(index));
        value
            .and_then(T::from_value)
            .ok_or_else(|| unreadable(format!("column {column} is missing or of another type")))
    }

    /// An instant, which comes as microseconds since the Unix epoch.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn instant(&self, column: &str) -> Result<SystemTime, StoreError> {
        self.get(column).map(from_microseconds)
    }

    /// An instant that may be NULL.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn optional_instant(&self, column: &str) -> Result<Option<SystemTime>, StoreError> {
        Ok(self.get::<Option<i64>>(column)?.map(from_microseconds))
    }
}

/// A type that a [`Value`] can be read as.
pub trait FromValue<'r>: Sized {
    /// `None` where the value is of another type.
    fn from_value(value: &'r Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty: $variant:ident($value:ident) => $read:expr;)+) => {$(
        impl<'r> FromValue<'r> for $type {
            fn from_value(value: &'r Value) -> Option<Self> {
                if let Value::$variant($value) = value { Some($read) } else { None }
            }
        }
    )+};
}

from_value! {
    i64: Int8(number) => *number;
    &'r str: Text(text) => text;
    String: Text(text) => text.clone();
    &'r [u8]: Bytes(bytes) => bytes;
    Vec<u8>: Bytes(bytes) => bytes.clone();
    Vec<String>: Texts(texts) => texts.clone();
}

impl FromValue<'_> for Uuid {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Uuid(id) = *value {
            return Some(id);
        }
        // SQLite has bytes in their place.
        <&[u8]>::from_value(value).and_then(|bytes| Self::from_slice(bytes).ok())
    }
}

impl FromValue<'_> for bool {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bool(yes) = *value {
            return Some(yes);
        }
        // SQLite has numbers in their place.
        i64::from_value(value).map(|number| number != 0)
    }
}

impl FromValue<'_> for i32 {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Int4(number) = *value {
            return Some(number);
        }
        // SQLite has one width of integers.
        i64::from_value(value)?.try_into().ok()
    }
}

impl<'r, T: FromValue<'r>> FromValue<'r> for Option<T> {
    fn from_value(value: &'r Value) -> Option<Self> {
        if *value == Value::Null { Some(None) } else { T::from_value(value).map(Some) }
    }
}

/// Microseconds for a parameter; a time that does not fit is for ever.
#[must_use]
pub fn microseconds(time: Duration) -> Option<i64> {
    i64::try_from(time.as_micros()).ok()
}

/// A retention as a parameter: NULL keeps for ever.
#[must_use]
pub fn retention(retention: Retention) -> Option<i64> {
    match retention {
        Retention::For(time) => microseconds(time),
        Retention::Forever => None,
    }
}

/// An instant in µs since the Unix epoch, as the statements answer it.
#[must_use]
pub fn from_microseconds(time: i64) -> SystemTime {
    let span = Duration::from_micros(time.unsigned_abs());
    let instant =
        if time < 0 { SystemTime::UNIX_EPOCH.checked_sub(span) } else { SystemTime::UNIX_EPOCH.checked_add(span) };
    instant.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A session as an operator finds it, from the columns `pid int4`, `login text` and `application text`.
pub(crate) fn session(row: &Row) -> Result<String, StoreError> {
    let (pid, login, application): (i32, &str, &str) = (row.get("pid")?, row.get("login")?, row.get("application")?);
    let printable = |text: &str| text.chars().filter(|c| !c.is_control()).take(100).collect::<String>();
    Ok(format!("process {pid} (login {}, application {:?})", printable(login), printable(application)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_what_they_are() {
        let columns = ["id", "key", "hash"].map(str::to_owned);
        let row = Row::new(columns.into(), vec![Value::Int4(7), Value::Text("a".to_owned()), Value::Null]);
        assert_eq!((row.get("id").ok(), row.get("key").ok()), (Some(7_i32), Some("a")));
        assert_eq!(row.get::<Option<Vec<u8>>>("hash").ok(), Some(None));
        assert!(row.get::<i64>("id").is_err() && row.get::<Vec<u8>>("hash").is_err() && row.get::<i32>("x").is_err());
    }

    #[test]
    fn instants_before_and_after_1970() {
        let day = Duration::from_secs(86_400);
        assert_eq!(from_microseconds(86_400_000_000), SystemTime::UNIX_EPOCH + day);
        assert_eq!(from_microseconds(-86_400_000_000), SystemTime::UNIX_EPOCH - day);
    }
}
