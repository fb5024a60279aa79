//! Lines for a pipe, a terminal or a file whose reader may stand still.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// How many bytes of lines may wait to be written.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// How long the thread waits before it tries again where a descriptor is in non-blocking mode, as another process may have set it.
const FULL_FOR: Duration = Duration::from_millis(10);

/// Takes lines without waiting, and writes them on its own thread. A line that finds no room is lost and counted, and so is a line that
/// cannot be written. The first line after a gap says how many lines are missing.
///
/// A thread, and not a non-blocking descriptor: that mode would be shared with every process that has the same terminal or pipe.
pub(super) struct Outlet {
    shared: Arc<Shared>,
    open: fn() -> Box<dyn Write + Send>,
    has_thread: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Since the start of the process.
    lost: AtomicU64,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    /// The bytes of `lines` and of the line that is being written.
    bytes: usize,
    /// Lines that found no room since the last line that did.
    lost: u64,
    is_writing: bool,
}

impl State {
    fn has_work(&self) -> bool {
        !self.lines.is_empty() || self.lost > 0
    }
}

struct Line {
    /// How many lines are missing before it.
    lost_before: u64,
    text: Box<[u8]>,
}

impl Line {
    fn bytes(&self) -> usize {
        self.text.len() + size_of::<Self>()
    }
}

impl Outlet {
    /// Writes to what `open` returns. `gap` is the line that says how many lines are missing.
    pub(super) fn new(open: fn() -> Box<dyn Write + Send>, gap: impl Fn(u64) -> String + Send + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let write = move || of_thread.run(&mut *open(), &gap);
        let has_thread = thread::Builder::new().name("log".to_owned()).spawn(write).is_ok();
        Self { shared, open, has_thread }
    }

    /// Takes a line, with its end.
    pub(super) fn push(&self, text: &[u8]) {
        if !self.has_thread {
            // The process ends because the system gives no threads, and this line says so.
            let _ = (self.open)().write_all(text);
            return;
        }
        let mut state = self.shared.state();
        let line = Line { lost_before: state.lost, text: text.into() };
        if state.bytes + line.bytes() > BYTES_MAX {
            state.lost += 1;
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.lost = 0;
        state.bytes += line.bytes();
        state.lines.push_back(line);
        self.shared.changed.notify_all();
    }

    /// Waits until every line is written, for this time at most.
    pub(super) fn flush(&self, within: Duration) {
        let state = self.shared.state();
        let waits = |state: &mut State| state.is_writing || state.has_work();
        if self.has_thread {
            drop(self.shared.changed.wait_timeout_while(state, within, waits));
        }
    }

    /// How many lines were lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of the thread.
    fn run(&self, to: &mut dyn Write, gap: &dyn Fn(u64) -> String) {
        let mut missing = 0;
        loop {
            let (lost, line) = self.next();
            missing += lost;
            if missing > 0 && write(to, gap(missing).as_bytes()) {
                missing = 0;
            }
            if line.as_ref().is_some_and(|line| !write(to, &line.text)) {
                missing += 1;
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            let mut state = self.state();
            state.bytes -= line.as_ref().map_or(0, Line::bytes);
            state.is_writing = false;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next line, and how many are missing before it. A gap behind the last line is reported without waiting for another line.
    fn next(&self) -> (u64, Option<Line>) {
        let waits = |state: &mut State| !state.has_work();
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        match state.lines.pop_front() {
            Some(line) => (line.lost_before, Some(line)),
            None => (mem::take(&mut state.lost), None),
        }
    }
}

/// Whether all of it was written.
fn write(to: &mut dyn Write, mut text: &[u8]) -> bool {
    while !text.is_empty() {
        match to.write(text) {
            Ok(0) => return false,
            Ok(count) => text = &text[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::park_timeout(FULL_FOR),
            // A pipe that nothing reads any more, or a full disk: the next line may find it otherwise.
            Err(_) => return false,
        }
    }
    to.flush().is_ok()
}
