//! A door for fuzz targets.

use std::io;

use crate::frames::Frames;

/// The bytes that the client library sees of these, which come one after the other.
///
/// # Errors
/// A frame is larger than any that a broker sends.
pub fn pass<'a>(frame_max: usize, bytes: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Vec<u8>> {
    let (mut frames, mut out) = (Frames::new(frame_max), Vec::new());
    bytes.into_iter().try_for_each(|bytes| frames.pass(bytes, &mut out))?;
    Ok(out)
}
