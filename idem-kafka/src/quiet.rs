//! Silences an expected panic of the client library.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Has panics inside of [`quietly`] pass by the panic hook that there is. The process has one hook for all its threads, so
/// this one hands everything else on to it. Done once a source, so that it stands before the hook that the application set;
/// one that is set later prints them again, one a record.
pub(crate) fn prepare() {
    let hook = take_hook();
    set_hook(Box::new(move |panic| {
        if !QUIET.get() {
            hook(panic);
        }
    }));
}

/// The answer of `call`; `None` where it panicked.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    QUIET.set(true);
    let answer = catch_unwind(AssertUnwindSafe(call)).ok();
    QUIET.set(false);
    answer
}
