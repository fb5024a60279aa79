use idem_core::internal::UNREADABLE_HEADERS;

use super::*;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, 0, 1];
    frame.extend(length(payload.len()));
    frame.extend(payload);
    frame.push(END);
    frame
}

/// A content header with these headers, as the table's own bytes.
fn header(table: &[u8]) -> Vec<u8> {
    let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    payload.extend(ONLY_HEADERS);
    payload.extend(length(table.len()));
    payload.extend(table);
    frame(HEADER, &payload)
}

/// `x`: an array in an array, to this depth.
fn nested(depth: usize) -> Vec<u8> {
    let mut value = vec![b'V'];
    for _ in 0..depth {
        let mut outer = vec![b'A'];
        outer.extend(length(value.len()));
        outer.extend(&value);
        value = outer;
    }
    [&[1, b'x'][..], &value].concat()
}

fn passed(frames: &mut Frames, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.pass(bytes, &mut out).unwrap();
    out
}

/// The value of the one header in a content header that was replaced.
fn kept(frame: &[u8]) -> &[u8] {
    assert!(read(&frame[BEFORE..frame.len() - 1]).is_some());
    let at = frame.windows(UNREADABLE_HEADERS.len()).position(|part| part == UNREADABLE_HEADERS.as_bytes()).unwrap();
    &frame[at + UNREADABLE_HEADERS.len() + 5..frame.len() - 1]
}

#[test]
fn frames_pass_as_they_are_however_they_are_cut() {
    let every_type = b"\x01atY\x01bb\x01\x01cB\x01\x01ds\0\x01\x01eU\0\x01\x01fu\0\x01\x01gI\0\0\0\x01\x01hi\0\0\0\x01\
        \x01il\0\0\0\0\0\0\0\x01\x01jL\0\0\0\0\0\0\0\x01\x01kf\0\0\0\0\x01ld\0\0\0\0\0\0\0\0\x01mD\0\0\0\0\x01\
        \x01nS\0\0\0\x01\xff\x01ox\0\0\0\x01\xff\x01pT\0\0\0\0\0\0\0\x01\x01qF\0\0\0\x03\x01rV\x01sA\0\0\0\x02VV";
    let all = [
        frame(METHOD, &[&DELIVER[..], b"\x01c\0\0\0\0\0\0\0\x01\0\x02ex\x03key"].concat()),
        header(every_type),
        frame(BODY, b"payload"),
        frame(HEARTBEAT, b""),
        header(&nested(DEPTH_MAX - 1)),
        frame(METHOD, &[&RETURN[..], b"\x01\x38\x08NO_ROUTE\0\x01k"].concat()),
        frame(BODY, &[0xCE; 70_000]),
    ]
    .concat();
    for size in [1, 2, 3, 7, 8, 64, 1_000, all.len()] {
        let mut frames = Frames::new(0);
        let out: Vec<u8> = all.chunks(size).flat_map(|chunk| passed(&mut frames, chunk)).collect();
        assert!(out == all, "in parts of {size}");
    }
}

/// G14: 10 kB of arrays in arrays overflow the stack of the client library.
#[test]
fn g14_properties_that_the_library_cannot_read_become_one_header() {
    let too_many = (0..=VALUES_MAX).flat_map(|_| [1, b'x', b'V']).collect();
    for (table, what) in [
        (nested(DEPTH_MAX), "too deep"),
        (nested(20_000), "far too deep"),
        (too_many, "too many values"),
        (b"\x01\xffV".to_vec(), "a name that is no UTF-8"),
        (b"\x01xz".to_vec(), "a type that is unknown"),
        (b"\x01xS\0\0\0\x09abc".to_vec(), "a value that is longer than its table"),
        (b"\x05x".to_vec(), "a name that is longer than its table"),
    ] {
        let original = header(&table);
        let out = passed(&mut Frames::new(0), &original);
        assert!(kept(&out) == &original[BEFORE + BEFORE_PROPERTIES..original.len() - 1], "{what}");
        assert_eq!(out[..3], original[..3], "kind and channel");
        assert_eq!(
            out[BEFORE..BEFORE + BEFORE_PROPERTIES],
            original[BEFORE..BEFORE + BEFORE_PROPERTIES],
            "the body's size"
        );
        // However it is cut.
        let mut frames = Frames::new(0);
        assert!(original.chunks(5).flat_map(|chunk| passed(&mut frames, chunk)).collect::<Vec<_>>() == out, "{what}");
    }
}

#[test]
fn g14_text_properties_are_looked_at_too() {
    let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    // content_type, delivery_mode, priority, timestamp, app_id.
    payload.extend(0b1001_1000_0100_1000_u16.to_be_bytes());
    payload.extend(b"\x02ok\x02\x03\0\0\0\0\0\0\0\x01\x03app");
    let good = frame(HEADER, &payload);
    assert_eq!(passed(&mut Frames::new(0), &good), good);
    let last = payload.len() - 1;
    payload[last] = 0xFF;
    kept(&passed(&mut Frames::new(0), &frame(HEADER, &payload)));
    payload.push(0);
    kept(&passed(&mut Frames::new(0), &frame(HEADER, &payload)));
}

/// The library gives up the connection at a frame that is larger than was agreed, which a broker sends that has added a
/// header of its own.
#[test]
fn g14_no_frame_is_larger_than_what_was_agreed() {
    let mut frames = Frames::new(0);
    let tune = frame(METHOD, &[&TUNE[..], &[0, 0], &8_192_u32.to_be_bytes(), &[0, 60]].concat());
    assert_eq!(passed(&mut frames, &tune), tune);
    let text = |size: usize| [&b"\x01xS"[..], &length(size), &vec![b'a'; size]].concat();
    let fits = header(&text(8_000));
    assert_eq!(passed(&mut frames, &fits), fits);
    let out = passed(&mut frames, &header(&text(9_000)));
    assert_eq!(out.len(), 8_192);
    assert!(kept(&out).len() > 8_100);
    // The lower limit counts.
    let mut ours = Frames::new(4_096);
    passed(&mut ours, &tune);
    assert!(ours.is_too_large(4_097) && !ours.is_too_large(4_096));
}

#[test]
fn g14_names_that_are_no_text_are_made_legible() {
    let deliver = |key: &[u8]| {
        let key = [&[u8::try_from(key.len()).unwrap()], key].concat();
        frame(METHOD, &[&DELIVER[..], b"\x01c\0\0\0\0\0\0\0\x01\0\x02ex", &key].concat())
    };
    assert_eq!(passed(&mut Frames::new(0), &deliver(b"a\xffb")), deliver("a\u{fffd}b".as_bytes()));
    let cut = passed(&mut Frames::new(0), &deliver(&[0xFF; 255]));
    assert_eq!(cut, deliver("\u{fffd}".repeat(85).as_bytes()));
}

#[test]
fn what_is_no_amqp_passes_and_frames_beyond_any_measure_end_the_connection() {
    let mut frames = Frames::new(0);
    assert_eq!(passed(&mut frames, b"AMQP\0\0\x09\x01 and more"), b"AMQP\0\0\x09\x01 and more");
    let huge = [&[HEADER, 0, 1][..], &[0x7F, 0xFF, 0xFF, 0xFF]].concat();
    for size in [1, 7] {
        let mut frames = Frames::new(0);
        let passed: io::Result<Vec<()>> = huge.chunks(size).map(|chunk| frames.pass(chunk, &mut Vec::new())).collect();
        let refused = passed.is_err() || frames.pass(&[0], &mut Vec::new()).is_err();
        assert!(refused, "in parts of {size}");
    }
}

/// Whatever comes, nothing panics, and nothing larger than allowed is passed on.
#[test]
fn j1_arbitrary_bytes_harm_nothing() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut table: Vec<u8> =
            (0..random.usize(..200)).map(|_| b"AFSxVtbB\0\0\0\x01\x02\x05\x09\xff"[random.usize(..16)]).collect();
        if random.bool() {
            table = nested(random.usize(..80));
            let at = random.usize(..table.len());
            table[at] = random.u8(..);
        }
        let original = header(&table);
        let out = passed(&mut Frames::new(4_096), &original);
        assert!(out.len() <= 4_096 && read(&out[BEFORE..out.len() - 1]).is_some());
    }
}

/// The deepest value let through takes less than half of the 2 MiB stack of the library's thread, also without
/// optimisation.
#[test]
fn g14_the_deepest_table_that_passes_fits_half_of_the_stack() {
    let table = nested(DEPTH_MAX - 1);
    let bytes = [&length(table.len())[..], &table].concat();
    let read = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let (rest, table) = lapin::types::parsing::parse_field_table(&bytes[..]).unwrap();
        // Comparing and dropping go as deep.
        (rest.len(), table == table.clone())
    });
    assert_eq!(read.unwrap().join().unwrap(), (0, true));
}

const STACK: usize = 1 << 20;
