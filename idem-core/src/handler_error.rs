//! [`HandlerError`]: the answer of a handler that failed.

use std::{error::Error, fmt, time::Duration};

use crate::{
    error::{BoxError, ErrorClass, chain},
    message::decode_error::DecodePayloadError,
    results::result::ResultBody,
};

/// The error of a handler that could not handle its message.
///
/// `?` turns any error into one, also `anyhow::Error` and texts. The class is then found from the chain of sources:
/// errors of the database by their code, a [`DecodePayloadError`](crate::message::DecodePayloadError) as permanent, everything
/// unknown as transient with bounded attempts. [`permanent`](Self::permanent), [`transient`](Self::transient) and
/// [`with_class`](Self::with_class) decide it by hand. A broken connection is never the handler's fault, whatever it answers:
/// the engine probes the connection first.
///
/// To drop a message on purpose, answer `Ok(())` and write nothing: its key is then recorded, so that it does not come back.
/// An error never drops a message.
///
/// # In helpers and tests
/// It does not implement [`Error`] itself, which is what lets `?` take everything that does. `?` also turns it into a
/// `Box<dyn Error>`, and [`into_inner`](Self::into_inner) into one that can be sent. A helper's answer can be classed anew:
///
/// ```
/// use std::time::Duration;
///
/// use idem_core::{ErrorClass, HandlerError};
///
/// fn read(amount: &str) -> Result<u32, HandlerError> {
///     Ok(amount.parse()?)
/// }
///
/// fn check(amount: &str) -> Result<u32, HandlerError> {
///     // A helper's error, or any other one.
///     let cents = read(amount).map_err(HandlerError::permanent)?;
///     if cents > 1_000_000 {
///         return Err(HandlerError::retry_after("the provider takes no such amount today", Duration::from_secs(600)));
///     }
///     Ok(cents)
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     assert_eq!(check("1177")?, 1177);
///     let error = check("much").unwrap_err();
///     assert_eq!(error.class(), Some(ErrorClass::Permanent));
///     assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
///     assert_eq!(read("much").unwrap_err().class(), None); // the engine finds it
///     Ok(())
/// }
/// ```
pub struct HandlerError {
    class: Option<ErrorClass>,
    retry_after: Option<Duration>,
    /// In a box, because few errors have any of it and each is an `Err` of many functions.
    rare: Option<Box<Rare>>,
    inner: BoxError,
}

#[derive(Default)]
struct Rare {
    /// The operation's final answer. Core alone sets it, for the work of a [`RunOnce`](crate::RunOnce).
    outcome: Option<ResultBody>,
    code: Option<&'static str>,
}

/// The longest wait that a handler may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

impl HandlerError {
    /// The message can never succeed: dead-letter it at once.
    pub fn permanent(error: impl Into<Self>) -> Self {
        error.into().with_class(ErrorClass::Permanent)
    }

    /// The message may succeed later: hold it for a back-off and try again, up to the configured attempts.
    pub fn transient(error: impl Into<Self>) -> Self {
        error.into().with_class(ErrorClass::Transient)
    }

    /// The message may succeed after this long, as a provider says that answers `Retry-After`: it is held for that time in
    /// place of the back-off, and the attempt counts. At most an hour; where the broker does not leave it in hand for so
    /// long, it is given back, with the delay where the broker knows one.
    pub fn retry_after(error: impl Into<Self>, after: Duration) -> Self {
        Self { retry_after: Some(after.min(RETRY_AFTER_MAX)), ..Self::transient(error) }
    }

    /// The same error in this class, whatever it was in before. A delay that
    /// [`retry_after`](Self::retry_after) asked for is forgotten.
    ///
    /// Beside permanent and transient, [`ErrorClass::Infrastructure`] holds the message without charging it an attempt, at
    /// most for [`database_wait_max`](crate::config::WorkerSettings::database_wait_max), after which each failure counts;
    /// [`ErrorClass::Fatal`] stops the worker, for a person to change something; [`ErrorClass::RunUnitAgain`] runs the whole
    /// unit again at once, a few times.
    #[must_use]
    pub fn with_class(self, class: ErrorClass) -> Self {
        Self { class: Some(class), retry_after: None, ..self }
    }

    /// Names the cause, such as `account-closed`. Dead letters with different codes are different groups, which an operator lists, replays and
    /// drops one by one. Without a code, all failures of a handler that have no code of the database's are one group.
    ///
    /// ```
    /// # use idem_core::HandlerError;
    /// let error = HandlerError::permanent("the account is closed").with_code("account-closed");
    /// assert_eq!(error.code(), Some("account-closed"));
    /// ```
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.rare.get_or_insert_default().code = Some(code);
        self
    }

    /// The code that [`with_code`](Self::with_code) set.
    #[must_use]
    pub fn code(&self) -> Option<&'static str> {
        self.rare.as_ref()?.code
    }

    /// The class that was set by hand; `None` where the engine is to find it.
    #[must_use]
    pub fn class(&self) -> Option<ErrorClass> {
        self.class
    }

    /// The operation is refused for good, with this answer.
    pub(crate) fn final_result(outcome: ResultBody) -> Self {
        let inner = "the operation was refused for good".into();
        let rare = Some(Box::new(Rare { outcome: Some(outcome), code: None }));
        Self { class: Some(ErrorClass::Permanent), retry_after: None, rare, inner }
    }

    /// The operation's final answer, where the error has one.
    pub(crate) fn take_outcome(&mut self) -> Option<ResultBody> {
        self.rare.as_mut()?.outcome.take()
    }

    /// The delay before the next attempt, where the handler asked for one.
    pub(crate) fn wanted_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The error that the handler answered with.
    #[must_use]
    pub fn inner(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.inner
    }

    /// The error that the handler answered with, without its class.
    #[must_use]
    pub fn into_inner(self) -> BoxError {
        self.inner
    }

    /// The first error of type `E` in the chain of sources, the error itself included.
    #[must_use]
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        chain(&*self.inner).find_map(|error| error.downcast_ref())
    }

    /// The class that was set by hand, or that one of `classify` and core's own errors gives;
    /// [`Transient`](ErrorClass::Transient) where neither knows it. `classify` is a store's:
    /// [`Store::classify`](crate::Store::classify).
    #[must_use]
    pub fn class_by(&self, classify: impl Fn(&(dyn Error + 'static)) -> Option<ErrorClass>) -> ErrorClass {
        let is_permanent =
            || self.downcast_ref::<DecodePayloadError>().is_some() || self.downcast_ref::<UnknownTypeError>().is_some();
        match self.class {
            Some(class) => class,
            None if is_permanent() => ErrorClass::Permanent,
            None => classify(&*self.inner).unwrap_or(ErrorClass::Transient),
        }
    }
}

/// The work was to run again, because its transaction could not be committed, and that of an [operation](crate::once::Operation) cannot: its steps
/// are gone.
/// The failure that is made of it names the cause, which is that of the run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the transaction could not be committed, and its steps cannot be repeated: ask again with the same key")]
pub struct CannotRepeat;

impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self { class: None, retry_after: None, rare: None, inner: error.into() }
    }
}

/// For tests and programs, whose functions end in any error. There is none into a [`BoxError`], because that conversion
/// would meet the one from everything that a `BoxError` can be made of: use [`HandlerError::into_inner`].
impl From<HandlerError> for Box<dyn Error> {
    fn from(error: HandlerError) -> Self {
        error.inner
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError").field("class", &self.class).field("inner", &self.inner).finish()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

/// A message of a type for which a [`Router`](crate::Router) has no handler. It is permanent: dead-lettered as `unknown-type`, never
/// dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown message type {}: add a handler for it with Router::on, or one for every other type with Router::fallback", .0.as_deref().map_or("(none)".to_owned(), |t| format!("{t:?}")))]
pub struct UnknownTypeError(pub Option<String>);
