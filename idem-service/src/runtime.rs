//! The runtime of a worker, whose threads have room on their stacks for unoptimised futures.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A debug build needs up to 1.5 MiB of the 2 MiB that tokio's threads have by default, before the handler's own futures. Only
/// used pages take memory.
const STACK_BYTES: usize = 4 << 20;

pub(crate) fn build() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recurses until this many bytes of stack lie between here and `top`. Returns how many levels that took.
    fn deep(top: usize, bytes: usize) -> usize {
        let here = std::hint::black_box([0_u8; 4 << 10]);
        let address = std::ptr::from_ref(&here).addr();
        if top.abs_diff(address) > bytes { usize::from(here[0]) } else { 1 + deep(top, bytes) }
    }

    /// A handler's future in a debug build has 1.5 MiB under it, and may need as much again; less would abort the process.
    #[test]
    fn a_task_has_three_megabytes_of_stack() {
        let runtime = build().unwrap();
        let descend = async {
            let top = 0_u8;
            deep(std::ptr::from_ref(&top).addr(), 3 << 20)
        };
        assert!(runtime.block_on(runtime.spawn(descend)).unwrap() > 0);
    }
}
