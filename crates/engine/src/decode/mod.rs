//! Bytes to pixels. The format is told by the first bytes, never by the file's name.
//!
//! Colours follow Pillow's `convert("RGB")`, which is what torchvision's default loader does: alpha is
//! dropped, palettes are resolved, 16-bit grey is clipped, EXIF orientation is ignored.

pub mod jpeg;
mod pixels;
mod planes;
mod png;
mod webp;

pub use pixels::{Pixels, SLACK};
pub use planes::{Picture, Planes};

use forebay_recipe::Rect;

use crate::error::Fault;

/// Decoders of one thread.
#[derive(Debug)]
pub struct Decoder {
    jpeg: jpeg::Decoder,
}

/// An image whose header was read.
#[derive(Debug, Clone, Copy)]
pub enum Header {
    /// JPEG.
    Jpeg(jpeg::Header),
    /// PNG: width and height.
    Png(u32, u32),
    /// WebP: width and height.
    Webp(u32, u32),
}

impl Header {
    /// Width and height.
    pub fn size(&self) -> (u32, u32) {
        match *self {
            Header::Jpeg(header) => (header.width, header.height),
            Header::Png(width, height) | Header::Webp(width, height) => (width, height),
        }
    }

    /// Bytes of the image's planes, if it can be kept as such and they are fewer than those of its pixels.
    pub fn planes_bytes(&self) -> Option<u64> {
        match self {
            Header::Jpeg(header) => header.planes_bytes().filter(|&bytes| bytes < self.pixels_bytes()),
            _ => None,
        }
    }

    /// Bytes of the image's pixels.
    pub fn pixels_bytes(&self) -> u64 {
        u64::from(self.size().0) * u64::from(self.size().1) * 3
    }
}

impl Decoder {
    /// Decoders for one thread.
    pub fn open() -> Result<Self, Fault> {
        Ok(Decoder { jpeg: jpeg::Decoder::open()? })
    }

    /// Decoders that leave all JPEG work to libjpeg-turbo, to compare with.
    pub fn open_plain() -> Result<Self, Fault> {
        Ok(Decoder { jpeg: jpeg::Decoder::open_plain()? })
    }

    /// Recognises the format and reads the header; nothing is allocated for pixels yet.
    pub fn header(&mut self, bytes: &[u8]) -> Result<Header, Fault> {
        match bytes {
            [] => Err(Fault::NotAnImage(": it is empty".into())),
            [0xff, 0xd8, ..] => self.jpeg.header(bytes).map(Header::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => png::size(bytes).map(|(w, h)| Header::Png(w, h)),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                webp::size(bytes).map(|(w, h)| Header::Webp(w, h))
            }
            [b'B', b'M', ..]
            | [b'I', b'I', 42, 0, ..]
            | [b'M', b'M', 0, 42, ..]
            | [b'P', b'1'..=b'7', ..] => Err(Fault::Unsupported(
                "BMP, TIFF and PNM images are not supported yet; convert them to PNG, JPEG or WebP".into(),
            )),
            _ => Err(Fault::NotAnImage(String::new())),
        }
    }

    /// Decodes at least `wanted` (full-size coordinates) into `out`, whose `rect` then says what it holds.
    ///
    /// `denominator` other than 1 asks for a JPEG at 1/2, 1/4 or 1/8; other formats come in full size and
    /// return 1. No more than `limit` bytes of pixels are made.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        wanted: Rect,
        denominator: u32,
        limit: u64,
        out: &mut Pixels,
    ) -> Result<u32, Fault> {
        match header {
            Header::Jpeg(header) => {
                let denominator = header.denominator(denominator);
                self.jpeg.decode(bytes, header, wanted, denominator, limit, out)?;
                Ok(denominator)
            }
            // These codecs hold the image a second time while they work.
            Header::Png(..) => png::decode(bytes, limit / 2, out).map(|()| 1),
            Header::Webp(..) => webp::decode(bytes, limit / 2, out).map(|()| 1),
        }
    }

    /// Decodes the whole image to planes, within the `limit` that its pixels would have; nothing where they are not
    /// known to give the same pixels.
    pub fn planes(&mut self, bytes: &[u8], header: &Header, limit: u64) -> Result<Option<Planes>, Fault> {
        match header {
            Header::Jpeg(header) => self.jpeg.planes(bytes, header, limit),
            _ => Ok(None),
        }
    }
}
