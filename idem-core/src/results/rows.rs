//! For authors of stores: the rows of results, as they are written and as they are read.

use std::time::{Duration, SystemTime};

use crate::{
    names::{IdempotencyKey, ScopeId},
    results::result::ResultBody,
};

/// A result in the form in which it is stored with the record of its key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewResult {
    /// The scope of the key.
    pub scope: ScopeId,
    /// The key.
    pub key: IdempotencyKey,
    /// Whether it is an error, which is an outcome of the operation too.
    pub is_error: bool,
    /// The result. If it is sealed, the body is the sealed one, and there are no headers.
    pub result: ResultBody,
    /// The number of the key that it is sealed with; 0 where it is not.
    pub sealed_with: u16,
    /// After how long cleanup removes all of it but kind, status and reference, by the database's clock; `None` if it is kept as
    /// long as the record of its key.
    pub kept_for: Option<Duration>,
}

impl NewResult {
    /// A result for this key, not sealed.
    #[must_use]
    pub fn new(scope: ScopeId, key: IdempotencyKey, is_error: bool, result: ResultBody) -> Self {
        Self { scope, key, is_error, result, sealed_with: 0, kept_for: None }
    }
}

/// A stored result.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptResult {
    /// Whether it is an error.
    pub is_error: bool,
    /// The result as appended, and still sealed if it was; without body and headers if they are gone.
    pub result: ResultBody,
    /// The number of the key that it is sealed with; 0 where it is not.
    pub sealed_with: u16,
    /// When its time is over; `None` if it is kept as long as the record of its key.
    pub until: Option<SystemTime>,
    /// Why body and headers are gone; `None` if they are there.
    pub gone: Option<Gone>,
}

/// Why a stored result has no body and no headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// They were erased, for privacy, and the reference with them.
    Erased,
    /// Their time was over, and cleanup has removed them.
    Expired,
}

impl KeptResult {
    /// A result that is complete, as appended.
    #[must_use]
    pub fn new(is_error: bool, result: ResultBody, sealed_with: u16) -> Self {
        Self { is_error, result, sealed_with, until: None, gone: None }
    }

    /// A result whose body and headers were erased.
    #[must_use]
    pub fn erased(is_error: bool, status: Option<u16>) -> Self {
        let result = ResultBody { status, ..ResultBody::default() };
        Self { is_error, result, sealed_with: 0, until: None, gone: Some(Gone::Erased) }
    }

    /// A result whose time is over.
    #[must_use]
    pub fn expired(is_error: bool, status: Option<u16>, reference: Option<Box<str>>) -> Self {
        let result = ResultBody { status, reference, ..ResultBody::default() };
        Self { is_error, result, sealed_with: 0, until: None, gone: Some(Gone::Expired) }
    }
}
