//! JPEG through libjpeg-turbo, into buffers that are reused.
//!
//! [`Decoder::decode`] decodes only the region a crop needs. Cutting at a block edge would change the
//! border pixels, because chroma upsampling looks at its neighbours: so the region is widened by
//! [`MARGIN`] pixels left and right (rows need none; the library keeps context rows itself). With the
//! margin the pixels inside are bit-equal to a full decode; tests compare them for every subsampling.
//! `jpeg.c` beside this file talks to the library and brings a faster Huffman decoder.
#![expect(unsafe_code, reason = "calls into C")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use forebay_recipe::Rect;
use turbojpeg_sys as tj;

use super::pixels::Pixels;
use super::planes::Planes;
use crate::error::Fault;

/// Pixels that fancy upsampling looks at on each side, rounded up.
const MARGIN: u32 = 2;

/// Scans of a progressive file beyond this are an attack, not a photograph.
const MAX_SCANS: c_int = 500;

/// What the library may always use.
const LEAST_MEMORY: u64 = 1 << 20;

/// `struct fb_jpeg` of jpeg.c.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn fb_jpeg_new(scan_limit: c_int) -> *mut Handle;
    fn fb_jpeg_free(handle: *mut Handle);
    fn fb_jpeg_message(handle: *const Handle) -> *const c_char;
    fn fb_jpeg_header(handle: *mut Handle, bytes: *const u8, length: usize, about: *mut [u32; 6]) -> c_int;
    fn fb_jpeg_decode(
        handle: *mut Handle,
        denominator: u32,
        x: u32,
        y: u32,
        width: u32,
        height: u32,
        memory: u64,
        fast: c_int,
        out: *mut u8,
    ) -> c_int;
    fn fb_jpeg_planes(handle: *mut Handle, memory: u64, fast: c_int, out: *const [*mut u8; 3]) -> c_int;
}

/// One decompressor. Keep one per thread: making it costs more than using it.
#[derive(Debug)]
pub struct Decoder {
    handle: NonNull<Handle>,
    /// Address and length of the bytes whose header was read last, and what it said; the C side points there.
    source: Option<(usize, usize, Header)>,
    fast: bool,
}

// SAFETY: a handle may move between threads as long as one uses it at a time.
unsafe impl Send for Decoder {}

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    components: u32,
    /// Pixels across one unit of the compressed data; 0 when it cannot be cut.
    unit: u32,
    lossless: bool,
    /// Pixels across and down that a chroma sample stands for, where the planes can be kept as they are.
    chroma: Option<[u32; 2]>,
}

impl Header {
    /// Bytes of the planes, if the image can be kept as such.
    pub fn planes_bytes(&self) -> Option<u64> {
        self.chroma.map(|chroma| Planes::bytes_of((self.width, self.height), chroma))
    }

    /// The denominator that the library really decodes at: lossless files come in full size only.
    pub fn denominator(&self, wanted: u32) -> u32 {
        if self.lossless { 1 } else { wanted }
    }
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
        Self::with(true)
    }

    /// One that leaves Huffman decoding to the library, to compare with.
    pub fn open_plain() -> Result<Self, Fault> {
        Self::with(false)
    }

    fn with(fast: bool) -> Result<Self, Fault> {
        // SAFETY: plain constructor; null is checked.
        let handle = NonNull::new(unsafe { fb_jpeg_new(MAX_SCANS) }).ok_or_else(|| {
            Fault::Unsupported("libjpeg-turbo could not start: is there memory left?".into())
        })?;
        Ok(Decoder { handle, source: None, fast })
    }

    /// Reads the header.
    pub fn header(&mut self, bytes: &[u8]) -> Result<Header, Fault> {
        let lossless = check_markers(bytes)?;
        let mut about = [0; 6];
        // SAFETY: pointer and length describe one live slice; the handle is ours. The C side keeps the pointer,
        // and `decode` uses it only while it is given the same slice.
        let code = unsafe { fb_jpeg_header(self.handle.as_ptr(), bytes.as_ptr(), bytes.len(), &mut about) };
        self.source = None;
        self.check(code)?;
        let [width, height, components, precision, unit, layout] = about;
        if precision != 8 {
            return Err(Fault::Unsupported("JPEG with more than 8 bits per channel".into()));
        }
        if !matches!(components, 1 | 3 | 4) {
            return Err(Fault::Unsupported(format!("JPEG with {components} channels")));
        }
        // The library cannot cut lossless files.
        let unit = if lossless { 0 } else { unit };
        let chroma = (layout != 0 && !lossless).then_some([layout >> 2, layout & 3]);
        let header = Header { width, height, components, unit, lossless, chroma };
        self.source = Some((bytes.as_ptr().addr(), bytes.len(), header));
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
        self.open_again(bytes, header)?;
        let region = region(header, wanted, denominator);
        let channels = if header.components == 4 { 4 } else { 3 };
        out.reset(region, channels, limit)?;
        // A progressive file keeps all its coefficients while it is decoded; a baseline one needs little.
        let used = u64::from(region.width) * u64::from(region.height) * channels as u64;
        let memory = (limit - used).max(LEAST_MEMORY);
        let rows = out.bytes_mut();
        assert!(
            rows.len() >= region.width as usize * region.height as usize * channels,
            "sized for the region"
        );
        // SAFETY: the C side reads the slice whose header was read last, which is `bytes` (checked above), and
        // writes width × height × channels bytes, for which there is room (asserted).
        let code = unsafe {
            fb_jpeg_decode(
                self.handle.as_ptr(),
                denominator,
                region.x,
                region.y,
                region.width,
                region.height,
                memory,
                c_int::from(self.fast && !header.lossless),
                rows.as_mut_ptr(),
            )
        };
        // The header is used up.
        self.source = None;
        self.check(code)?;
        if channels == 4 {
            out.cmyk_to_rgb();
        }
        Ok(())
    }

    /// Decodes the whole image to its planes, after [`Decoder::header`] of the same bytes; nothing where its layout
    /// is not one that can be kept so. It fails where a whole [`Decoder::decode`] would.
    pub fn planes(&mut self, bytes: &[u8], header: &Header, limit: u64) -> Result<Option<Planes>, Fault> {
        let Some(chroma) = header.chroma else { return Ok(None) };
        self.open_again(bytes, header)?;
        // As many bytes as the pixels would take: what may be decoded does not depend on the form.
        let need = u64::from(header.width) * u64::from(header.height) * 3;
        if need > limit {
            return Err(Fault::TooLarge { need, allowed: limit });
        }
        let memory = (limit - need).max(LEAST_MEMORY);
        let mut planes = Planes::new((header.width, header.height), chroma);
        let out = planes.parts_mut().map(<[u8]>::as_mut_ptr);
        // SAFETY: the C side reads the slice whose header was read last, which is `bytes`, and writes the samples
        // of each plane, which are as many as `Planes::new` made from the same header.
        let code = unsafe { fb_jpeg_planes(self.handle.as_ptr(), memory, c_int::from(self.fast), &out) };
        self.source = None;
        self.check(code)?;
        Ok(Some(planes))
    }

    /// Makes sure that the header which was read last is that of `bytes`.
    fn open_again(&mut self, bytes: &[u8], header: &Header) -> Result<(), Fault> {
        if self.source != Some((bytes.as_ptr().addr(), bytes.len(), *header))
            && self.header(bytes)? != *header
        {
            return Err(Fault::Corrupt("the header belongs to another image".into()));
        }
        Ok(())
    }

    fn message(&self) -> String {
        // SAFETY: the message is a NUL-ended string that lives as long as the handle.
        unsafe { CStr::from_ptr(fb_jpeg_message(self.handle.as_ptr())) }.to_string_lossy().into_owned()
    }

    fn check(&self, code: c_int) -> Result<(), Fault> {
        match code {
            0 => Ok(()),
            1 => Err(Fault::Truncated),
            3 => Err(Fault::NotAnImage(format!(": {}", self.message()))),
            4 => Err(Fault::Unsupported(format!(
                "decoding needs more memory than a worker may use ({}); raise FOREBAY_MEMORY",
                self.message()
            ))),
            _ => Err(Fault::Corrupt(self.message())),
        }
    }
}

/// The rectangle of the scaled image to decode for `wanted`.
fn region(header: &Header, wanted: Rect, denominator: u32) -> Rect {
    let whole = Rect::whole(header.width.div_ceil(denominator), header.height.div_ceil(denominator));
    if header.unit == 0 {
        return whole;
    }
    let unit = (header.unit / denominator).max(1);
    let left = (wanted.x / denominator).saturating_sub(MARGIN) / unit * unit;
    let right = ((wanted.x + wanted.width).div_ceil(denominator) + MARGIN).min(whole.width);
    let top = wanted.y / denominator;
    let bottom = (wanted.y + wanted.height).div_ceil(denominator).min(whole.height);
    Rect { x: left, y: top, width: right - left, height: bottom - top }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: made in `with`, freed once.
        unsafe { fb_jpeg_free(self.handle.as_ptr()) }
    }
}

/// Checks that the file has image data and that an end marker closes it, before the codec sees it; says whether
/// it is lossless.
///
/// A crop may stop before a missing end, and whether a sample fails must not depend on its crop.
fn check_markers(bytes: &[u8]) -> Result<bool, Fault> {
    let mut at = 2;
    let mut lossless = false;
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
            0xda if bytes[at..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]) => return Ok(lossless),
            0xda => return Err(Fault::Truncated),
            marker => {
                lossless |= matches!(marker, 0xc3 | 0xc7 | 0xcb | 0xcf);
                let length = bytes.get(at + 2..at + 4).ok_or(Fault::Truncated)?;
                at += 2 + usize::from(u16::from_be_bytes([length[0], length[1]]));
            }
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
    encode_with(rgb, width, height, quality, subsampling, &[])
}

/// As [`encode`], with parameters of the library's.
pub(super) fn encode_with(
    rgb: &[u8],
    width: usize,
    height: usize,
    quality: u8,
    subsampling: Subsampling,
    parameters: &[(u32, i32)],
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
        for &(parameter, value) in parameters {
            tj::tj3Set(handle, parameter as i32, value);
        }
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

    /// The file without its segments of one kind.
    fn without(bytes: &[u8], marker: u8) -> Vec<u8> {
        let mut out = bytes[..2].to_vec();
        let mut at = 2;
        while bytes[at + 1] != 0xda {
            let end = at + 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
            if bytes[at + 1] != marker {
                out.extend_from_slice(&bytes[at..end]);
            }
            at = end;
        }
        out.extend_from_slice(&bytes[at..]);
        out
    }

    #[test]
    fn a_file_without_its_tables_does_not_borrow_those_of_the_one_before() {
        let whole = encode(&image(40, 40, 1), 40, 40, 90, Subsampling::S444).expect("a JPEG");
        for marker in [0xdb, 0xc4] {
            let lacking = without(&whole, marker);
            let decode = |decoder: &mut Decoder, bytes: &[u8]| {
                let mut out = Pixels::default();
                let header = decoder.header(bytes).map_err(|f| f.to_string())?;
                decoder
                    .decode(bytes, &header, Rect::whole(40, 40), 1, 1 << 20, &mut out)
                    .map_err(|f| f.to_string())?;
                Ok::<_, String>(out.rgb().to_vec())
            };
            let fresh = decode(&mut Decoder::open().expect("libjpeg-turbo"), &lacking);
            let mut used = Decoder::open().expect("libjpeg-turbo");
            let other = encode(&image(40, 40, 2), 40, 40, 20, Subsampling::S420).expect("a JPEG");
            decode(&mut used, &other).expect("pixels");
            assert_eq!(decode(&mut used, &lacking), fresh, "marker {marker:x}");
        }
    }

    #[test]
    fn lossless_files_decode_whole_and_at_no_other_scale() {
        let rgb = image(64, 48, 3);
        // SAFETY: as in `encode`, with lossless coding switched on.
        let bytes = unsafe {
            let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as i32);
            tj::tj3Set(handle, tj::TJPARAM_TJPARAM_LOSSLESS as i32, 1);
            let (mut data, mut size) = (std::ptr::null_mut(), 0);
            let format = tj::TJPF_TJPF_RGB;
            let code = tj::tj3Compress8(handle, rgb.as_ptr(), 64, 192, 48, format, &mut data, &mut size);
            assert_eq!(code, 0);
            let bytes = std::slice::from_raw_parts(data, size as usize).to_vec();
            tj::tj3Free(data.cast());
            tj::tj3Destroy(handle);
            bytes
        };
        let mut decoder = super::super::Decoder::open().expect("libjpeg-turbo");
        let header = decoder.header(&bytes).expect("a header");
        let mut out = Pixels::default();
        let part = Rect { x: 30, y: 20, width: 8, height: 8 };
        assert_eq!(decoder.decode(&bytes, &header, part, 4, 1 << 20, &mut out).expect("pixels"), 1);
        assert_eq!(out.rect(), Rect::whole(64, 48));
        assert_eq!(out.rgb(), rgb);
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

        #[test]
        fn our_huffman_decoder_equals_the_librarys_on_whole_and_on_damaged_files(
            width in 1usize..260, height in 1usize..260, quality in 5u8..100, subsampling in subsampling(), seed: u64,
            damage in prop::collection::vec((0.0f64..1.0, any::<u8>()), 0..4), top in 0.0f64..1.0,
        ) {
            let mut bytes = encode(&image(width, height, seed), width, height, quality, subsampling).expect("a JPEG");
            // Behind the headers: damaged tables are the library's affair.
            let marker = bytes.windows(2).position(|w| w == [0xff, 0xda]).expect("a scan");
            let scan = marker + 2 + usize::from(u16::from_be_bytes([bytes[marker + 2], bytes[marker + 3]]));
            let span = bytes.len() - scan - 2;
            for (place, value) in damage {
                bytes[scan + (place * span as f64) as usize] = value;
            }
            let y = (top * height as f64) as u32;
            let wanted = Rect { x: 0, y, width: width as u32, height: height as u32 - y };
            let [ours, theirs] = [Decoder::open(), Decoder::open_plain()].map(|decoder| {
                let mut decoder = decoder.expect("libjpeg-turbo");
                let mut out = Pixels::default();
                let header = decoder.header(&bytes).map_err(|f| f.to_string())?;
                decoder.decode(&bytes, &header, wanted, 1, 1 << 24, &mut out).map_err(|f| f.to_string())?;
                Ok::<_, String>(out.rgb().to_vec())
            });
            prop_assert_eq!(ours, theirs);
        }
    }
}
