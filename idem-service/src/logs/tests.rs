//! The log's thread, on a pipe that the test reads when it wants to.

use std::{
    io::{BufRead as _, BufReader, PipeReader, PipeWriter, pipe},
    sync::Mutex,
};

use super::{outlet::BYTES_MAX, *};

/// Only a thread that hangs needs longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The end that the next outlet writes to. One test at a time has it.
static WRITER: Mutex<Option<PipeWriter>> = Mutex::new(None);

fn outlet() -> (Outlet, PipeReader) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap();
    let (reader, writer) = pipe().unwrap();
    *WRITER.lock().unwrap() = Some(writer);
    let outlet =
        Outlet::new(|| Box::new(WRITER.lock().unwrap().take().unwrap()), |lost| format!("{lost} are missing\n"));
    // Its thread has the end once a line has come.
    outlet.push(b"first\n");
    outlet.flush(PATIENCE);
    (outlet, reader)
}

fn line(number: usize) -> String {
    format!("{number:>7} {}\n", "x".repeat(1_000))
}

/// J92: a pipe that nothing reads takes no more than its bytes and the outlet's, and no caller waits. Once it is read, every line is
/// there or counted, in order, and the gap is where lines are missing.
#[test]
fn j92_what_finds_no_room_is_counted_where_it_is_missing() {
    let (outlet, reader) = outlet();
    let pushed = 3 * BYTES_MAX / 1_000;
    (0..pushed).for_each(|number| outlet.push(line(number).as_bytes()));
    let lost = outlet.lost();
    assert!(lost > 0, "{pushed} lines are over the bound");
    let reading = thread::spawn(move || {
        BufReader::new(reader).lines().map(Result::unwrap).take_while(|line| line != "last").collect::<Vec<_>>()
    });
    outlet.flush(PATIENCE);
    outlet.push(b"last\n");
    let (mut next, mut missing) = (0, 0);
    for text in &reading.join().unwrap()[1..] {
        match text.strip_suffix(" are missing") {
            Some(count) => missing += count.parse::<usize>().unwrap(),
            None => {
                next += std::mem::take(&mut missing);
                assert_eq!(format!("{text}\n"), line(next));
                next += 1;
            }
        }
    }
    assert_eq!((next + missing, outlet.lost()), (pushed, lost));
}
