//! WebP (lossy, lossless, first frame of an animation) to RGB; alpha is dropped.

use std::io::Cursor;

use forebay_recipe::Rect;
use image_webp::{DecodingError, WebPDecoder};

use super::pixels::Pixels;
use crate::error::Fault;

pub(super) fn size(bytes: &[u8]) -> Result<(u32, u32), Fault> {
    Ok(WebPDecoder::new(Cursor::new(bytes)).map_err(fault)?.dimensions())
}

pub(super) fn decode(bytes: &[u8], limit: u64, out: &mut Pixels) -> Result<(), Fault> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(fault)?;
    decoder.set_memory_limit(usize::try_from(limit).unwrap_or(usize::MAX));
    let (width, height) = decoder.dimensions();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    out.reset(Rect::whole(width, height), channels, limit)?;
    let need = width as usize * height as usize * channels;
    let frame = &mut out.bytes_mut()[..need];
    if decoder.is_animated() {
        decoder.read_frame(frame).map_err(fault)?;
    } else {
        decoder.read_image(frame).map_err(fault)?;
    }
    if channels == 4 {
        for i in 0..width as usize * height as usize {
            frame.copy_within(i * 4..i * 4 + 3, i * 3);
        }
    }
    Ok(())
}

fn fault(error: DecodingError) -> Fault {
    match error {
        DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Fault::Truncated,
        other => Fault::Corrupt(other.to_string()),
    }
}
