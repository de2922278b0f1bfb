//! PNG to RGB with Pillow's meaning of every colour type.

use std::io::Cursor;

use forebay_recipe::Rect;
use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Transformations};

use super::pixels::Pixels;
use crate::error::Fault;

pub(super) fn size(bytes: &[u8]) -> Result<(u32, u32), Fault> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    let header = decoder.read_header_info().map_err(fault)?;
    Ok((header.width, header.height))
}

pub(super) fn decode(bytes: &[u8], limit: u64, out: &mut Pixels) -> Result<(), Fault> {
    let limits = Limits { bytes: usize::try_from(limit).unwrap_or(usize::MAX) };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::EXPAND);
    let header = decoder.read_header_info().map_err(fault)?;
    let (width, height) = (header.width, header.height);
    // Pillow opens 16-bit grey as integers and clips them; every other 16-bit type keeps the high byte.
    let clip = header.color_type == ColorType::Grayscale && header.bit_depth == BitDepth::Sixteen;
    out.reset(Rect::whole(width, height), 3, limit)?;
    let mut reader = decoder.read_info().map_err(fault)?;
    let need = reader.output_buffer_size().unwrap_or(usize::MAX);
    if need as u64 > limit {
        return Err(Fault::TooLarge { need: need as u64, allowed: limit });
    }
    let mut frame = vec![0; need];
    reader.next_frame(&mut frame).map_err(fault)?;
    let (color, depth) = reader.output_color_type();
    let wide = depth == BitDepth::Sixteen;
    let channels = color.samples();
    let gray = channels <= 2;
    let step = channels * if wide { 2 } else { 1 };
    let rgb = out.bytes_mut().chunks_exact_mut(3);
    for (pixel, from) in rgb.zip(frame.chunks_exact(step)) {
        let value = |channel: usize| match (wide, clip) {
            (true, true) if from[0] != 0 => 255,
            (true, true) => from[1],
            (true, false) => from[channel * 2],
            (false, _) => from[channel],
        };
        let [r, g, b] = if gray { [value(0); 3] } else { [value(0), value(1), value(2)] };
        pixel.copy_from_slice(&[r, g, b]);
    }
    Ok(())
}

fn fault(error: DecodingError) -> Fault {
    match error {
        DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Fault::Truncated,
        DecodingError::LimitsExceeded => {
            Fault::Unsupported("the PNG holds more data than a worker may use; raise FOREBAY_MEMORY".into())
        }
        other => Fault::Corrupt(other.to_string()),
    }
}
