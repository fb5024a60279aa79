//! Calls of the user's code that is no handler: it runs in tasks that everybody's messages depend on.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The answer of `function`; `None` where it panicked. The panic's text may quote a payload, and the panic hook has printed
/// it for the developer (S4).
pub(crate) fn caught<T>(function: impl FnOnce() -> T) -> Option<T> {
    // State that the function shares with its next call is its own affair, as it is for a handler that panics.
    catch_unwind(AssertUnwindSafe(function)).ok()
}
