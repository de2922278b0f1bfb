//! A whole JPEG as it is before upsampling and conversion to RGB: half the bytes of its pixels for 4:2:0.
//!
//! [`Planes::region`] makes the pixels that a crop needs, bit-equal to those that libjpeg-turbo makes of the whole
//! image: a triangle filter over the neighbouring samples of chroma, whose rounding alternates, then JFIF's
//! colours in integers. Neighbours come from outside the region, and are repeated at the edges of the image only.

use forebay_recipe::Rect;

use super::pixels::{Pixels, SLACK};
use crate::error::Fault;
use crate::kernels::Simd;

/// Luma, and two planes of chroma that may be halved in width and height.
#[derive(Debug)]
pub struct Planes {
    /// The planes one behind the other, rows without gaps, then [`SLACK`] bytes.
    bytes: Vec<u8>,
    size: (u32, u32),
    /// Pixels across and down that a chroma sample stands for.
    chroma: [u32; 2],
}

impl Planes {
    /// Empty planes; `chroma` is 1 or 2 across and down.
    pub(super) fn new(size: (u32, u32), chroma: [u32; 2]) -> Self {
        debug_assert!(chroma.iter().all(|by| (1..=2).contains(by)));
        Planes { bytes: vec![0; Self::bytes_of(size, chroma) as usize + SLACK], size, chroma }
    }

    /// Bytes of the samples.
    pub(super) fn bytes_of((width, height): (u32, u32), [across, down]: [u32; 2]) -> u64 {
        let chroma = u64::from(width.div_ceil(across)) * u64::from(height.div_ceil(down));
        u64::from(width) * u64::from(height) + 2 * chroma
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// Bytes held.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Samples across and down of a plane of chroma.
    fn halved(&self) -> (usize, usize) {
        let ((width, height), [across, down]) = (self.size, self.chroma);
        (width.div_ceil(across) as usize, height.div_ceil(down) as usize)
    }

    fn split(&self) -> (usize, usize) {
        let (width, height) = self.halved();
        (self.size.0 as usize * self.size.1 as usize, width * height)
    }

    /// The planes, to be filled.
    pub(super) fn parts_mut(&mut self) -> [&mut [u8]; 3] {
        let (luma, chroma) = self.split();
        let (luma, rest) = self.bytes.split_at_mut(luma);
        let (cb, cr) = rest.split_at_mut(chroma);
        [luma, cb, cr]
    }

    /// Makes at least the pixels of `wanted` in `out`, which may take `limit` bytes.
    pub fn region(&self, simd: Simd, wanted: Rect, limit: u64, out: &mut Pixels) -> Result<(), Fault> {
        // Two pixels have a sample of chroma in common.
        let x = wanted.x / self.chroma[0] * self.chroma[0];
        let rect = Rect { x, width: wanted.x + wanted.width - x, ..wanted };
        out.reset(rect, 3, limit)?;
        let (row, x) = (rect.width as usize * 3, x as usize);
        if row == 0 {
            return Ok(());
        }
        let rows = out.bytes_mut().chunks_exact_mut(row).take(rect.height as usize);
        let mut scratch = Scratch::new(rect.width as usize);
        for (y, out) in (rect.y as usize..).zip(rows) {
            let luma = &self.bytes[y * self.size.0 as usize + x..];
            let chroma = [0, 1].map(|plane| self.rows(plane, y));
            match self.chroma {
                // libjpeg's filter needs three samples.
                [2, down] if self.halved().0 > 2 => {
                    let sums = scratch.sums.each_mut();
                    sums.into_iter().zip(chroma).for_each(|(sums, rows)| self.sum(simd, rows, x, sums));
                    simd.rgb_halved(luma, scratch.sums.each_ref().map(|sums| &sums[..]), down == 2, out);
                }
                [1, 1] => simd.rgb(luma, chroma.map(|[near, _]| &near[x..]), out),
                chroma_by => {
                    for (full, [near, far]) in scratch.full.iter_mut().zip(chroma) {
                        let bias = 1 + y as u16 % 2;
                        for (i, full) in full[..row / 3].iter_mut().enumerate() {
                            *full = match chroma_by {
                                [2, _] => near[(x + i) / 2],
                                _ => ((u16::from(near[x + i]) * 3 + u16::from(far[x + i]) + bias) >> 2) as u8,
                            };
                        }
                    }
                    simd.rgb(luma, scratch.full.each_ref().map(|full| &full[..]), out);
                }
            }
        }
        Ok(())
    }

    /// The row of a plane of chroma that pixel row `y` lies in and the one that it is next nearest to; both go on to
    /// the end of all planes.
    fn rows(&self, plane: usize, y: usize) -> [&[u8]; 2] {
        let ((width, height), (luma, chroma)) = (self.halved(), self.split());
        let near = y / self.chroma[1] as usize;
        let far = match self.chroma[1] {
            1 => near,
            _ if y.is_multiple_of(2) => near.saturating_sub(1),
            _ => (near + 1).min(height - 1),
        };
        [near, far].map(|row| &self.bytes[luma + plane * chroma + row * width..])
    }

    /// Chroma from the sample left of pixel `x` on, weighed with the row that is next.
    fn sum(&self, simd: Simd, [near, far]: [&[u8]; 2], x: usize, sums: &mut [u16]) {
        let (width, first) = (self.halved().0, x / 2);
        let from = first.saturating_sub(1);
        let skip = usize::from(first == 0);
        let len = (width - from).min(sums.len() - skip);
        let into = &mut sums[skip..][..len];
        if self.chroma[1] == 2 {
            simd.add_rows(&near[from..][..len], &far[from..][..len], into);
        } else {
            into.iter_mut().zip(&near[from..]).for_each(|(sum, &near)| *sum = u16::from(near));
        }
        // Edges of the image are repeated.
        if skip == 1 {
            sums[0] = sums[1];
        }
        if skip + len < sums.len() {
            sums[skip + len] = sums[skip + len - 1];
        }
    }
}

/// Rows of chroma for a row of pixels, with what vectors read beyond it.
#[derive(Debug)]
struct Scratch {
    sums: [Vec<u16>; 2],
    full: [Vec<u8>; 2],
}

impl Scratch {
    fn new(width: usize) -> Self {
        let sums = || vec![0; width.next_multiple_of(SLACK) / 2 + 2];
        let full = || vec![0; width.next_multiple_of(SLACK)];
        Scratch { sums: [sums(), sums()], full: [full(), full()] }
    }
}

/// An image as it is kept.
#[derive(Debug)]
pub enum Picture {
    /// Pixels.
    Rgb(Pixels),
    /// All of an image, not converted yet.
    Planes(Planes),
}

impl Picture {
    /// Width and height.
    pub fn size(&self) -> (u32, u32) {
        match self {
            Picture::Rgb(pixels) => pixels.size(),
            Picture::Planes(planes) => planes.size(),
        }
    }

    /// Bytes held.
    pub fn capacity(&self) -> usize {
        match self {
            Picture::Rgb(pixels) => pixels.capacity(),
            Picture::Planes(planes) => planes.capacity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use turbojpeg_sys as tj;

    use super::*;
    use crate::decode::Decoder;
    use crate::decode::jpeg::{Subsampling, encode_with};

    /// Smooth with noise: planes differ from sample to sample, colours are clipped here and there.
    fn image(width: usize, height: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..width * height * 3)
            .map(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((i / 7 * (i % 3 + 1)) as u8).wrapping_add((state >> 58) as u8)
            })
            .collect()
    }

    #[derive(Debug, Clone)]
    struct File {
        width: usize,
        height: usize,
        quality: u8,
        subsampling: Subsampling,
        restart: i32,
        progressive: bool,
        seed: u64,
    }

    impl File {
        fn bytes(&self) -> Vec<u8> {
            let parameters = [
                (tj::TJPARAM_TJPARAM_RESTARTBLOCKS, self.restart),
                (tj::TJPARAM_TJPARAM_PROGRESSIVE, i32::from(self.progressive)),
            ];
            let rgb = image(self.width, self.height, self.seed);
            encode_with(&rgb, self.width, self.height, self.quality, self.subsampling, &parameters)
                .expect("a JPEG")
        }
    }

    fn file(largest: usize) -> impl Strategy<Value = File> {
        use Subsampling::*;
        let subsampling = prop::sample::select(vec![S444, S422, S420, S440]);
        let how = (prop::sample::select(vec![0, 0, 1, 3]), any::<bool>(), any::<u64>());
        (1..largest, 1..largest, 5u8..101, subsampling, how).prop_map(
            |(width, height, quality, subsampling, (restart, progressive, seed))| File {
                width,
                height,
                quality,
                subsampling,
                restart,
                progressive,
                seed,
            },
        )
    }

    /// All pixels, as the library makes them and from planes.
    fn both(bytes: &[u8], simd: Simd) -> [Result<Vec<u8>, String>; 2] {
        let mut decoder = Decoder::open().expect("libjpeg-turbo");
        let mut decode = |planes: bool| {
            let header = decoder.header(bytes)?;
            let (all, mut out) = (Rect::whole(header.size().0, header.size().1), Pixels::default());
            if planes {
                let planes = decoder.planes(bytes, &header, 1 << 20)?.expect("a layout that has planes");
                planes.region(simd, all, 1 << 20, &mut out)?;
            } else {
                decoder.decode(bytes, &header, all, 1, 1 << 20, &mut out)?;
            }
            Ok::<_, Fault>(out.rgb().to_vec())
        };
        [false, true].map(|planes| decode(planes).map_err(|fault| fault.to_string()))
    }

    #[test]
    fn other_layouts_have_no_planes() {
        let rgb = [(tj::TJPARAM_TJPARAM_COLORSPACE, tj::TJCS_TJCS_RGB as i32)];
        for (subsampling, parameters) in
            [(Subsampling::S411, &[][..]), (Subsampling::Gray, &[]), (Subsampling::S444, &rgb)]
        {
            let bytes = encode_with(&image(40, 30, 1), 40, 30, 80, subsampling, parameters).expect("a JPEG");
            let mut decoder = Decoder::open().expect("libjpeg-turbo");
            let header = decoder.header(&bytes).expect("a header");
            assert!(header.planes_bytes().is_none());
            assert!(decoder.planes(&bytes, &header, 1 << 20).expect("no error").is_none());
        }
    }

    #[test]
    fn half_of_the_bytes_and_no_more_than_pixels_may_take() {
        let bytes = encode_with(&image(500, 375, 1), 500, 375, 80, Subsampling::S420, &[]).expect("a JPEG");
        let mut decoder = Decoder::open().expect("libjpeg-turbo");
        let header = decoder.header(&bytes).expect("a header");
        let planes = decoder.planes(&bytes, &header, 500 * 375 * 3).expect("room").expect("planes");
        assert_eq!(header.planes_bytes(), Some(500 * 375 + 2 * 250 * 188));
        assert_eq!(planes.capacity(), 500 * 375 + 2 * 250 * 188 + SLACK);
        let refused = decoder.planes(&bytes, &header, 500 * 375 * 3 - 1);
        assert!(matches!(refused, Err(Fault::TooLarge { .. })), "{refused:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        #[test]
        fn any_region_is_what_the_library_makes_of_the_whole(
            file in file(71), places in prop::array::uniform4(0.0f64..1.0), plain: bool,
        ) {
            let bytes = file.bytes();
            let simd = if plain { Simd::Plain } else { Simd::detect() };
            let mut decoder = Decoder::open().expect("libjpeg-turbo");
            let header = decoder.header(&bytes).expect("a header");
            let (width, height) = header.size();
            let (mut whole, mut part) = (Pixels::default(), Pixels::default());
            decoder.decode(&bytes, &header, Rect::whole(width, height), 1, 1 << 20, &mut whole).expect("pixels");
            let planes = decoder.planes(&bytes, &header, 1 << 20).expect("decoded").expect("planes");
            let [x, y] = [(places[0], width), (places[1], height)].map(|(place, size)| (place * f64::from(size)) as u32);
            let [across, down] = [(places[2], width - x), (places[3], height - y)]
                .map(|(place, size)| 1 + (place * f64::from(size)) as u32);
            let wanted = Rect { x, y, width: across.min(width - x), height: down.min(height - y) };
            planes.region(simd, wanted, 1 << 20, &mut part).expect("room");
            let held = part.rect();
            for y in wanted.y..wanted.y + wanted.height {
                let row = |pixels: &Pixels| {
                    let rect = pixels.rect();
                    let at = ((y - rect.y) * rect.width + wanted.x - rect.x) as usize * 3;
                    pixels.rgb()[at..][..wanted.width as usize * 3].to_vec()
                };
                prop_assert_eq!(row(&whole), row(&part), "row {} of {:?} in {:?}", y, wanted, held);
            }
        }

        #[test]
        fn damaged_files_fail_alike_or_give_the_same_pixels(
            file in file(71), cut in prop::option::of(0.0f64..1.0), end: bool,
            damage in prop::collection::vec((0.0f64..1.0, any::<u8>()), 0..4),
        ) {
            let mut bytes = file.bytes();
            let marker = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).expect("a scan");
            for (place, value) in damage {
                let at = marker + (place * (bytes.len() - marker) as f64) as usize;
                bytes[at] = value;
            }
            if let Some(cut) = cut {
                bytes.truncate((cut * bytes.len() as f64) as usize);
            }
            // A file that ends early but has an end marker is decoded as far as it goes.
            if end {
                bytes.extend([0xff, 0xd9]);
            }
            let [pixels, planes] = both(&bytes, Simd::detect());
            prop_assert_eq!(pixels, planes);
        }
    }
}
