//! [`Frames`]: rewrites the broker's frames such that the client library can read them.
//!
//! The broker passes a producer's properties on as they are, and the library cannot take everything that they may hold. It
//! reads tables within tables by recursion, so a header of 10 kB ends the process with an overflow of its stack (G14); and at
//! a name that is no UTF-8, a type it does not know or a frame beyond the maximum it gives up the connection. Either way the
//! message comes back at the next start, for ever. So each frame of that kind is looked through before the library sees it,
//! without recursion, and properties that it could not read are replaced by one header that holds them as bytes.

use std::io;

use idem_core::internal::UNREADABLE_HEADERS;

/// How deep tables and arrays may stand in each other. Of its 2 MiB of stack the library takes about 8 KiB a level in a build
/// without optimisation, and 1 KiB with it; 26,000 levels fit into a frame of 128 KiB.
const DEPTH_MAX: usize = 64;

/// How many values the headers may have, those in tables and arrays included. Each takes a hundred bytes once it is read.
const VALUES_MAX: usize = 4_096;

/// The largest frame that is looked through. Brokers allow 128 KiB by default.
const FRAME_MAX: usize = 16 << 20;

/// Before a frame's payload stand its kind, channel and size, and behind it one byte.
const BEFORE: usize = 7;
const AROUND: usize = BEFORE + 1;
const END: u8 = 0xCE;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;

/// Class and method of those methods that matter here.
const TUNE: [u8; 4] = [0, 10, 0, 30];
const RETURN: [u8; 4] = [0, 60, 0, 50];
const DELIVER: [u8; 4] = [0, 60, 0, 60];

/// Before the properties in a content header stand class, weight and the size of the body.
const BEFORE_PROPERTIES: usize = 12;

/// Properties that are nothing but headers.
const ONLY_HEADERS: [u8; 2] = (1_u16 << 13).to_be_bytes();

/// Passes on the broker's bytes, frame by frame.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The beginning of a frame that has not come whole.
    held: Vec<u8>,
    passing: Passing,
    /// The largest frame that the library accepts; 0 where it has no limit.
    frame_max: usize,
}

#[derive(Debug)]
enum Passing {
    /// The next byte begins a frame.
    Frames,
    /// The number of bytes of a frame's payload that pass as they are.
    Bytes(usize),
    /// This is not AMQP, such as the answer to a protocol that the other side does not speak.
    Everything,
}

impl Frames {
    /// `frame_max` is the library's request, 0 where it leaves that to the broker.
    pub(crate) fn new(frame_max: usize) -> Self {
        Self { held: Vec::new(), passing: Passing::Frames, frame_max }
    }

    /// Appends to `out` the bytes that may be passed on once these have come.
    ///
    /// # Errors
    /// A frame is larger than any that a broker sends.
    pub(crate) fn pass(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() {
            match &mut self.passing {
                Passing::Everything => {
                    out.extend_from_slice(bytes);
                    return Ok(());
                }
                Passing::Bytes(left) => {
                    let (now, later) = bytes.split_at((*left).min(bytes.len()));
                    out.extend_from_slice(now);
                    bytes = later;
                    *left -= now.len();
                    if *left == 0 {
                        self.passing = Passing::Frames;
                    }
                }
                Passing::Frames => bytes = self.next(bytes, out)?,
            }
        }
        Ok(())
    }

    /// Takes the bytes of the frame at hand, and returns those behind it.
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> io::Result<&'a [u8]> {
        let before = self.held.len();
        // Nearly always it is all there, and nothing is put aside.
        if before == 0
            && let Some((frame, later)) = whole(bytes)?
        {
            self.examine(frame, out);
            return Ok(later);
        }
        let wanted = self.size()?.unwrap_or(BEFORE).saturating_sub(before);
        let (now, later) = bytes.split_at(wanted.min(bytes.len()));
        self.held.extend_from_slice(now);
        if self.held.len() < BEFORE {
            return Ok(later);
        }
        match self.held[0] {
            METHOD | HEADER => {
                if self.size()? == Some(self.held.len()) {
                    let frame = std::mem::take(&mut self.held);
                    self.examine(&frame, out);
                    self.held = frame;
                    self.held.clear();
                }
            }
            BODY | HEARTBEAT => {
                self.passing = Passing::Bytes(payload_size(&self.held) + 1);
                out.append(&mut self.held);
            }
            _ => {
                self.passing = Passing::Everything;
                out.append(&mut self.held);
            }
        }
        Ok(later)
    }

    /// How large the frame at hand is that is looked through as a whole, once that is known.
    fn size(&self) -> io::Result<Option<usize>> {
        if self.held.len() < BEFORE || !matches!(self.held[0], METHOD | HEADER) {
            return Ok(None);
        }
        bounded(payload_size(&self.held) + AROUND).map(Some)
    }

    fn examine(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        let payload = &frame[BEFORE..frame.len() - 1];
        match frame[0] {
            METHOD => {
                if payload.starts_with(&TUNE) {
                    self.tune(payload);
                }
                match legible(payload) {
                    Some(legible) => put(frame, &[&legible], out),
                    None => out.extend_from_slice(frame),
                }
            }
            HEADER if read(payload).is_none() || self.is_too_large(frame.len()) => self.unreadable(frame, payload, out),
            _ => out.extend_from_slice(frame),
        }
    }

    fn is_too_large(&self, frame: usize) -> bool {
        self.frame_max > 0 && frame > self.frame_max
    }

    /// The lower limit counts, as it does for the library.
    fn tune(&mut self, payload: &[u8]) {
        let Some(theirs) = payload.get(6..10).and_then(|bytes| bytes.try_into().ok()) else { return };
        let theirs = u32::from_be_bytes(theirs) as usize;
        self.frame_max = match (self.frame_max, theirs) {
            (0, limit) | (limit, 0) => limit,
            (ours, theirs) => ours.min(theirs),
        };
    }

    /// The properties as bytes in one header. They are cut where the frame would become too large.
    fn unreadable(&self, frame: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        let Some((start, properties)) = payload.split_at_checked(BEFORE_PROPERTIES) else {
            // Shorter than any content header: the library reports that.
            return out.extend_from_slice(frame);
        };
        let name = UNREADABLE_HEADERS.as_bytes();
        let entry = 1 + name.len() + 1 + 4;
        let around = AROUND + start.len() + ONLY_HEADERS.len() + 4 + entry;
        let room = if self.frame_max == 0 { FRAME_MAX } else { self.frame_max.saturating_sub(around) };
        let properties = &properties[..properties.len().min(room)];
        put(
            frame,
            &[
                start,
                &ONLY_HEADERS,
                &length(entry + properties.len()),
                &[u8::try_from(name.len()).unwrap_or(u8::MAX)],
                name,
                b"x",
                &length(properties.len()),
                properties,
            ],
            out,
        );
    }
}

/// The first frame of these bytes where it is one that is looked through and is there as a whole.
fn whole(bytes: &[u8]) -> io::Result<Option<(&[u8], &[u8])>> {
    if bytes.len() < BEFORE || !matches!(bytes[0], METHOD | HEADER) {
        return Ok(None);
    }
    Ok(bytes.split_at_checked(bounded(payload_size(bytes) + AROUND)?))
}

fn payload_size(frame: &[u8]) -> usize {
    u32::from_be_bytes([frame[3], frame[4], frame[5], frame[6]]) as usize
}

fn bounded(size: usize) -> io::Result<usize> {
    if size > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the broker sends a frame of {size} bytes")));
    }
    Ok(size)
}

/// Lengths here are bounded by [`FRAME_MAX`].
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// Puts a frame of the same kind and channel with another payload.
fn put(frame: &[u8], payload: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(&frame[..3]);
    out.extend_from_slice(&length(payload.iter().map(|part| part.len()).sum()));
    payload.iter().for_each(|part| out.extend_from_slice(part));
    out.push(END);
}

/// A delivered or returned message's method with names that are text, where some of them are not: exchanges and routing
/// keys are any bytes to the broker. `None` where nothing has to change.
fn legible(payload: &[u8]) -> Option<Vec<u8>> {
    let mut rest = Bytes(payload);
    let method = rest.take(4)?;
    let mut parts: [&[u8]; 5] = [method, &[], &[], &[], &[]];
    if method == DELIVER {
        (parts[1], parts[2]) = (rest.short()?, rest.take(9)?);
    } else if method == RETURN {
        (parts[1], parts[2]) = (rest.take(2)?, rest.short()?);
    } else {
        return None;
    }
    (parts[3], parts[4]) = (rest.short()?, rest.short()?);
    let names = if method == DELIVER { [1, 3, 4] } else { [2, 3, 4] };
    if names.iter().all(|name| std::str::from_utf8(parts[*name]).is_ok()) {
        return None;
    }
    let mut legible = Vec::with_capacity(payload.len() * 2);
    for (number, part) in parts.iter().enumerate() {
        if names.contains(&number) {
            let text = String::from_utf8_lossy(part);
            let text = &text[..text.floor_char_boundary(usize::from(u8::MAX))];
            legible.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            legible.extend_from_slice(text.as_bytes());
        } else {
            legible.extend_from_slice(part);
        }
    }
    Some(legible)
}

/// Reads a content header as the library does; `None` where it could not.
fn read(payload: &[u8]) -> Option<()> {
    let mut rest = Bytes(payload);
    rest.take(BEFORE_PROPERTIES)?;
    let flags = rest.take(2)?;
    let flags = u16::from_be_bytes([flags[0], flags[1]]);
    for property in (2..16).rev().filter(|bit| flags & (1 << bit) != 0) {
        match property {
            13 => table(rest.long()?)?,
            12 | 11 => drop(rest.take(1)?),
            6 => drop(rest.take(8)?),
            _ => rest.text()?,
        }
    }
    rest.0.is_empty().then_some(())
}

/// Walks through a table. Open tables are kept in a list of fixed length, because nothing here may recurse.
fn table(bytes: &[u8]) -> Option<()> {
    let mut open: [(Bytes<'_>, bool); DEPTH_MAX] = [(Bytes(&[]), false); DEPTH_MAX];
    open[0] = (Bytes(bytes), true);
    let (mut depth, mut values) = (1, 0);
    while depth > 0 {
        let (rest, has_names) = &mut open[depth - 1];
        if rest.0.is_empty() {
            depth -= 1;
            continue;
        }
        if *has_names {
            rest.text()?;
        }
        values += 1;
        if values > VALUES_MAX {
            return None;
        }
        let inner = match rest.take(1)?[0] {
            b't' | b'b' | b'B' => rest.take(1).map(|_| None),
            b's' | b'U' | b'u' => rest.take(2).map(|_| None),
            b'I' | b'i' | b'f' => rest.take(4).map(|_| None),
            b'D' => rest.take(5).map(|_| None),
            b'L' | b'l' | b'd' | b'T' => rest.take(8).map(|_| None),
            b'S' | b'x' => rest.long().map(|_| None),
            b'A' => rest.long().map(|array| Some((Bytes(array), false))),
            b'F' => rest.long().map(|table| Some((Bytes(table), true))),
            b'V' => Some(None),
            _ => None,
        }?;
        if let Some(inner) = inner {
            *open.get_mut(depth)? = inner;
            depth += 1;
        }
    }
    Some(())
}

/// The bytes not read yet.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }

    fn text(&mut self) -> Option<()> {
        std::str::from_utf8(self.short()?).ok().map(|_| ())
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.take(4)?;
        self.take(u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize)
    }
}

#[cfg(test)]
mod tests;
