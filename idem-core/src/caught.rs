//! Calls of user code other than handlers: it runs in tasks on which all messages depend.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bugs::{self, Bug};

/// The answer of `function`; `None` where it panicked. The panic's text may quote a payload, and the panic hook has printed
/// it for the developer (S4).
pub(crate) fn caught<T>(function: impl FnOnce() -> T) -> Option<T> {
    if bugs::planted(Bug::CatchesNothing) {
        return Some(function());
    }
    // State that the function shares with its next call is the function's own concern, as for a handler that panics.
    catch_unwind(AssertUnwindSafe(function)).ok()
}
