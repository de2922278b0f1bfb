//! JPEG through libjpeg-turbo's TurboJPEG interface, into buffers that are reused.
//!
//! [`Decoder::decode`] decodes only the region a crop needs. Cutting at a block edge would change the
//! border pixels, because chroma upsampling looks at its neighbours: so the region is widened by
//! [`MARGIN`] pixels left and right (rows need none; the library keeps context rows itself). With the
//! margin the pixels inside are bit-equal to a full decode; tests compare them for every subsampling.
#![expect(unsafe_code, reason = "calls into libjpeg-turbo")]

use std::ffi::CStr;

use forebay_recipe::Rect;
use turbojpeg_sys as tj;

use super::pixels::Pixels;
use crate::error::Fault;

/// Pixels that fancy upsampling looks at on each side, rounded up.
const MARGIN: u32 = 2;

/// Scans of a progressive file beyond this are an attack, not a photograph.
const MAX_SCANS: i32 = 500;

/// One decompressor. Keep one per thread: making it costs more than using it.
#[derive(Debug)]
pub struct Decoder {
    handle: tj::tjhandle,
}

// SAFETY: a TurboJPEG handle may move between threads as long as one uses it at a time.
unsafe impl Send for Decoder {}

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    subsampling: i32,
    colorspace: i32,
    lossless: bool,
}

/// Chroma layout of a JPEG to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subsampling {
    /// Full chroma.
    S444,
    /// Half width.
    S422,
    /// Half width and height.
    S420,
    /// Half height.
    S440,
    /// Quarter width.
    S411,
    /// No chroma.
    Gray,
}

impl Decoder {
    /// A new decompressor.
    pub fn open() -> Result<Self, Fault> {
        // SAFETY: plain constructor; null is checked below.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as i32) };
        if handle.is_null() {
            return Err(Fault::Unsupported("libjpeg-turbo could not start: is there memory left?".into()));
        }
        // SAFETY: the handle is ours.
        unsafe { tj::tj3Set(handle, tj::TJPARAM_TJPARAM_SCANLIMIT as i32, MAX_SCANS) };
        Ok(Decoder { handle })
    }

    /// Reads the header.
    pub fn header(&mut self, bytes: &[u8]) -> Result<Header, Fault> {
        let result = self.read_header(bytes);
        self.renew_after(result)
    }

    /// A file that breaks off may leave a handle in a state that spoils the next image: take a new one.
    fn renew_after<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        if result.is_err() {
            *self = Decoder::open()?;
        }
        result
    }

    fn read_header(&mut self, bytes: &[u8]) -> Result<Header, Fault> {
        check_markers(bytes)?;
        // SAFETY: pointer and length describe one live slice; the handle is ours.
        let code = unsafe { tj::tj3DecompressHeader(self.handle, bytes.as_ptr(), bytes.len() as _) };
        if code != 0 {
            self.check()?;
        }
        let header = Header {
            width: self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH as i32) as u32,
            height: self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT as i32) as u32,
            subsampling: self.get(tj::TJPARAM_TJPARAM_SUBSAMP as i32),
            colorspace: self.get(tj::TJPARAM_TJPARAM_COLORSPACE as i32),
            lossless: self.get(tj::TJPARAM_TJPARAM_LOSSLESS as i32) == 1,
        };
        if self.get(tj::TJPARAM_TJPARAM_PRECISION as i32) != 8 {
            return Err(Fault::Unsupported("JPEG with more than 8 bits per channel".into()));
        }
        if header.width == 0 || header.height == 0 || header.width > 65_535 || header.height > 65_535 {
            return Err(Fault::Corrupt("the JPEG header has no size".into()));
        }
        Ok(header)
    }

    /// Decodes what `wanted` needs at 1/`denominator`, after [`Decoder::header`] of the same bytes.
    ///
    /// `wanted` is in full-size pixels. The result says which rectangle of the (scaled) image it holds.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        wanted: Rect,
        denominator: u32,
        limit: u64,
        out: &mut Pixels,
    ) -> Result<(), Fault> {
        let result = self.read_pixels(bytes, header, wanted, denominator, limit, out);
        self.renew_after(result)
    }

    fn read_pixels(
        &mut self,
        bytes: &[u8],
        header: &Header,
        wanted: Rect,
        denominator: u32,
        limit: u64,
        out: &mut Pixels,
    ) -> Result<(), Fault> {
        let region = self.region(header, wanted, denominator);
        let cmyk = matches!(header.colorspace as u32, tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK);
        let (format, channels) = if cmyk { (tj::TJPF_TJPF_CMYK, 4) } else { (tj::TJPF_TJPF_RGB, 3) };
        out.reset(region, channels, limit)?;
        let factor = tj::tjscalingfactor { num: 1, denom: denominator as i32 };
        let whole = (header.width.div_ceil(denominator), header.height.div_ceil(denominator));
        let crop = if (region.width, region.height) == whole {
            tj::tjregion { x: 0, y: 0, w: 0, h: 0 }
        } else {
            tj::tjregion {
                x: region.x as i32,
                y: region.y as i32,
                w: region.width as i32,
                h: region.height as i32,
            }
        };
        // SAFETY: the handle is ours; both calls check their numbers against the header.
        let set = unsafe {
            tj::tj3SetScalingFactor(self.handle, factor) | tj::tj3SetCroppingRegion(self.handle, crop)
        };
        if set != 0 {
            return Err(Fault::Corrupt(self.message()));
        }
        let pitch = region.width as usize * channels;
        let rows = out.bytes_mut();
        assert!(rows.len() >= pitch * region.height as usize, "the buffer was sized for the region");
        // SAFETY: `rows` holds height × pitch bytes (asserted), which is all that is written for a region of
        // this size at this pixel format; the input slice is live.
        let code = unsafe {
            tj::tj3Decompress8(
                self.handle,
                bytes.as_ptr(),
                bytes.len() as _,
                rows.as_mut_ptr(),
                pitch as i32,
                format,
            )
        };
        if code != 0 {
            self.check()?;
        }
        if cmyk {
            out.cmyk_to_rgb();
        }
        Ok(())
    }

    /// The rectangle of the scaled image to decode for `wanted`.
    fn region(&self, header: &Header, wanted: Rect, denominator: u32) -> Rect {
        let whole = Rect::whole(header.width.div_ceil(denominator), header.height.div_ceil(denominator));
        let mcu = match header.subsampling {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 => 8,
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 16,
            tj::TJSAMP_TJSAMP_411 => 32,
            // A layout the library cannot cut.
            _ => return whole,
        };
        if header.lossless {
            return whole;
        }
        let mcu = (mcu / denominator).max(1);
        let left = (wanted.x / denominator).saturating_sub(MARGIN) / mcu * mcu;
        let right = ((wanted.x + wanted.width).div_ceil(denominator) + MARGIN).min(whole.width);
        let top = wanted.y / denominator;
        let bottom = (wanted.y + wanted.height).div_ceil(denominator).min(whole.height);
        Rect { x: left, y: top, width: right - left, height: bottom - top }
    }

    /// Turns the handle's last trouble into a fault. Warnings about odd bytes are passed over, as Pillow
    /// does; an early end is not.
    fn check(&self) -> Result<(), Fault> {
        let message = self.message();
        // SAFETY: the handle is ours.
        let warning = unsafe { tj::tj3GetErrorCode(self.handle) } == tj::TJERR_TJERR_WARNING as i32;
        if message.contains("Premature end") {
            Err(Fault::Truncated)
        } else if warning {
            Ok(())
        } else if message.contains("Not a JPEG") || message.contains("SOI") {
            Err(Fault::NotAnImage(format!(": {message}")))
        } else {
            Err(Fault::Corrupt(message))
        }
    }

    fn message(&self) -> String {
        // SAFETY: the library returns a NUL-ended string that lives as long as the handle.
        unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.handle)) }.to_string_lossy().into_owned()
    }

    fn get(&self, parameter: i32) -> i32 {
        // SAFETY: the handle is ours.
        unsafe { tj::tj3Get(self.handle, parameter) }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: made in `open`, destroyed once.
        unsafe { tj::tj3Destroy(self.handle) }
    }
}

/// Checks that the file has image data and that an end marker closes it, before the codec sees it.
///
/// A crop may stop before a missing end, and whether a sample fails must not depend on its crop. And a
/// header that breaks off is taken by TurboJPEG for a file of tables, with the size of the image before.
fn check_markers(bytes: &[u8]) -> Result<(), Fault> {
    let mut at = 2;
    loop {
        // Like libjpeg, pass over bytes between markers.
        while *bytes.get(at).ok_or(Fault::Truncated)? != 0xff {
            at += 1;
        }
        match *bytes.get(at + 1).ok_or(Fault::Truncated)? {
            // Fill bytes, stuffed zeroes, and markers without a length.
            0xff => at += 1,
            0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
            0xd9 => return Err(Fault::Corrupt("the JPEG file has no image data".into())),
            0xda if bytes[at..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]) => return Ok(()),
            0xda => return Err(Fault::Truncated),
            _ => match bytes.get(at + 2..at + 4) {
                Some(&[high, low]) => at += 2 + usize::from(u16::from_be_bytes([high, low])),
                _ => return Err(Fault::Truncated),
            },
        }
    }
}

/// Encodes 8-bit RGB as a baseline JPEG.
pub fn encode(
    rgb: &[u8],
    width: usize,
    height: usize,
    quality: u8,
    subsampling: Subsampling,
) -> Result<Vec<u8>, crate::Error> {
    let invalid = |why: &str| crate::Error::Invalid(format!("JPEG encoding: {why}"));
    if width == 0 || height == 0 || width > 65_535 || height > 65_535 || rgb.len() != width * height * 3 {
        return Err(invalid("size and pixels do not agree"));
    }
    let layout = match subsampling {
        Subsampling::S444 => tj::TJSAMP_TJSAMP_444,
        Subsampling::S422 => tj::TJSAMP_TJSAMP_422,
        Subsampling::S420 => tj::TJSAMP_TJSAMP_420,
        Subsampling::S440 => tj::TJSAMP_TJSAMP_440,
        Subsampling::S411 => tj::TJSAMP_TJSAMP_411,
        Subsampling::Gray => tj::TJSAMP_TJSAMP_GRAY,
    };
    // SAFETY: constructor, setters and one compression on a handle of our own; `rgb` is width × height × 3
    // bytes (checked); the library allocates `data`, which is copied and freed here.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as i32);
        if handle.is_null() {
            return Err(invalid("libjpeg-turbo could not start"));
        }
        tj::tj3Set(handle, tj::TJPARAM_TJPARAM_QUALITY as i32, i32::from(quality.clamp(1, 100)));
        tj::tj3Set(handle, tj::TJPARAM_TJPARAM_SUBSAMP as i32, layout);
        let (mut data, mut size) = (std::ptr::null_mut(), 0);
        let code = tj::tj3Compress8(
            handle,
            rgb.as_ptr(),
            width as i32,
            (width * 3) as i32,
            height as i32,
            tj::TJPF_TJPF_RGB,
            &mut data,
            &mut size,
        );
        let result = if code == 0 {
            Ok(std::slice::from_raw_parts(data, size as usize).to_vec())
        } else {
            Err(invalid(&CStr::from_ptr(tj::tj3GetErrorStr(handle)).to_string_lossy()))
        };
        tj::tj3Free(data.cast());
        tj::tj3Destroy(handle);
        result
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image(width: usize, height: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..width * height * 3)
            .map(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((i / 5) as u8).wrapping_add((state >> 59) as u8)
            })
            .collect()
    }

    fn subsampling() -> impl Strategy<Value = Subsampling> {
        use Subsampling::*;
        prop::sample::select(vec![S444, S422, S420, S440, S411, Gray])
    }

    proptest! {
        #[test]
        fn a_cropped_decode_equals_a_full_one_and_old_state_does_no_harm(
            images in prop::collection::vec((1usize..80, 1usize..80, 40u8..98, subsampling(), any::<u64>(),
                prop::array::uniform4(0.0f64..1.0), any::<bool>()), 1..6),
        ) {
            let mut decoder = Decoder::open().expect("libjpeg-turbo");
            for (width, height, quality, subsampling, seed, [a, b, c, d], cut) in images {
                let bytes = encode(&image(width, height, seed), width, height, quality, subsampling).expect("a JPEG");
                if cut {
                    // A broken file in between must leave no trace.
                    let _ = decoder.header(&bytes[..bytes.len() / 2]).map(|header| {
                        let all = Rect::whole(header.width, header.height);
                        let _ = decoder.decode(&bytes[..bytes.len() / 2], &header, all, 1, 1 << 20, &mut Pixels::default());
                    });
                }
                let header = decoder.header(&bytes).expect("a header");
                let (mut full, mut part) = (Pixels::default(), Pixels::default());
                decoder.decode(&bytes, &header, Rect::whole(width as u32, height as u32), 1, 1 << 20, &mut full).expect("full");
                let x = (a * width as f64) as u32;
                let y = (b * height as f64) as u32;
                let wanted = Rect {
                    x,
                    y,
                    width: 1 + (c * f64::from(width as u32 - x - 1)) as u32,
                    height: 1 + (d * f64::from(height as u32 - y - 1)) as u32,
                };
                let header = decoder.header(&bytes).expect("a header");
                decoder.decode(&bytes, &header, wanted, 1, 1 << 20, &mut part)
                    .map_err(|fault| TestCaseError::fail(format!("{fault} for {wanted:?} of {width}x{height}")))?;
                let held = part.rect();
                for y in wanted.y..wanted.y + wanted.height {
                    for x in wanted.x..wanted.x + wanted.width {
                        let from = (y as usize * width + x as usize) * 3;
                        let at = ((y - held.y) as usize * held.width as usize + (x - held.x) as usize) * 3;
                        prop_assert_eq!(&full.rgb()[from..from + 3], &part.rgb()[at..at + 3], "pixel {}, {}", x, y);
                    }
                }
            }
        }
    }
}
