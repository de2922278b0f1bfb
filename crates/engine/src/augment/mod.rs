//! Drawn operations to pixels.
//!
//! The leading crops, one resize, further crops and flips fold into a [`Head`]: one rectangle of the
//! source, resampled once, written once, mirrored while it is written. The head also says which pixels
//! of the source are needed at all, so that the decoder makes no others. What follows runs in place.

mod color;
mod head;
mod pixelwise;
mod resize;

pub use head::Head;

use forebay_recipe::{Op, Rect};

use crate::decode::{Picture, Pixels};
use crate::error::Fault;
use crate::kernels::{Simd, Taps};
use resize::View;

/// What one thread needs to augment; kept between samples.
#[derive(Debug)]
pub struct Augmenter {
    simd: Simd,
    taps: [Taps; 2],
    temp: Vec<u8>,
    image: Pixels,
    other: Pixels,
}

impl Default for Augmenter {
    fn default() -> Self {
        Augmenter::new(Simd::detect())
    }
}

impl Augmenter {
    /// Scratch for the given kernels.
    pub fn new(simd: Simd) -> Self {
        Augmenter {
            simd,
            taps: Default::default(),
            temp: Vec::new(),
            image: Pixels::default(),
            other: Pixels::default(),
        }
    }

    /// Bytes held between samples.
    pub fn capacity(&self) -> usize {
        self.temp.capacity() + self.image.capacity() + self.other.capacity()
    }

    /// Gives memory back when it is far above what is usual.
    pub fn trim(&mut self, keep: usize) {
        if self.temp.len() > keep {
            self.temp = Vec::new();
        }
        self.image.trim(keep);
        self.other.trim(keep);
    }

    /// The rectangle of the source that `head` reads.
    pub fn wanted(&mut self, head: &Head) -> Rect {
        head.wanted(&mut self.taps)
    }

    /// Runs `head` on `src`, a decode at 1/`denominator`, then the other operations, into `out`, which may
    /// take `room` bytes; images on the way may take `limit`.
    #[expect(clippy::too_many_arguments, reason = "source, work and result, each with its bound")]
    pub fn run(
        &mut self,
        src: &Pixels,
        denominator: u32,
        head: &Head,
        rest: &[Op],
        limit: u64,
        room: u64,
        out: &mut Pixels,
    ) -> Result<(), Fault> {
        let size = Rect::whole(head.window.width, head.window.height);
        // Steps that keep the size run in place, in the result's own memory.
        let resizes = |op: &Op| matches!(op, Op::Crop(_) | Op::Pad { .. } | Op::Resize { .. });
        if !rest.iter().any(resizes) {
            out.reset(size, 3, room)?;
            head.run(self.simd, src, denominator, &mut self.taps, &mut self.temp, out);
            return rest.iter().try_for_each(|op| self.op(op, limit, out));
        }
        let mut image = std::mem::take(&mut self.image);
        let result = (|| {
            image.reset(size, 3, limit)?;
            head.run(self.simd, src, denominator, &mut self.taps, &mut self.temp, &mut image);
            rest.iter().try_for_each(|op| self.op(op, limit, &mut image))?;
            out.reset(image.rect(), 3, room)?;
            let rgb = image.rgb();
            out.bytes_mut()[..rgb.len()].copy_from_slice(rgb);
            Ok(())
        })();
        self.image = image;
        result
    }

    /// As [`Augmenter::run`], on an image in full size. Of planes those pixels that `head` reads are made first, in
    /// `scratch`, which may take four times `limit`.
    #[expect(clippy::too_many_arguments, reason = "source, work and result, each with its bound")]
    pub fn run_on(
        &mut self,
        src: &Picture,
        scratch: &mut Pixels,
        head: &Head,
        rest: &[Op],
        limit: u64,
        room: u64,
        out: &mut Pixels,
    ) -> Result<(), Fault> {
        let src = match src {
            Picture::Rgb(pixels) => pixels,
            Picture::Planes(planes) => {
                planes.region(self.simd, self.wanted(head), limit.saturating_mul(4), scratch)?;
                scratch
            }
        };
        self.run(src, 1, head, rest, limit, room, out)
    }

    fn op(&mut self, op: &Op, limit: u64, image: &mut Pixels) -> Result<(), Fault> {
        let size = image.rect();
        let bytes = size.width as usize * size.height as usize * 3;
        let row = size.width as usize * 3;
        match op {
            Op::Brightness { factor } => color::brightness(&mut image.bytes_mut()[..bytes], *factor),
            Op::Contrast { factor } => color::contrast(&mut image.bytes_mut()[..bytes], *factor),
            Op::Saturation { factor } => color::saturation(&mut image.bytes_mut()[..bytes], *factor),
            Op::Hue { shift } => color::hue(&mut image.bytes_mut()[..bytes], *shift),
            Op::FlipHorizontal => pixelwise::flip_horizontal(&mut image.bytes_mut()[..bytes], row),
            Op::FlipVertical => pixelwise::flip_vertical(&mut image.bytes_mut()[..bytes], row),
            Op::Pad { border: [left, top, right, bottom], fill, mode } => {
                let columns = pixelwise::pad_axis(size.width, *left, *right, *mode);
                let rows = pixelwise::pad_axis(size.height, *top, *bottom, *mode);
                let padded = Rect::whole(columns.len() as u32, rows.len() as u32);
                self.other.reset(padded, 3, limit)?;
                let src = View { bytes: image.bytes(), stride: row, x: 0, y: 0 };
                let room = columns.len() * rows.len() * 3;
                pixelwise::gather(src, &columns, &rows, *fill, &mut self.other.bytes_mut()[..room]);
                std::mem::swap(image, &mut self.other);
            }
            // A crop or resize behind other steps is a head of its own.
            op => {
                let (head, _) = Head::fold(size.width, size.height, std::slice::from_ref(op));
                let mut out = std::mem::take(&mut self.other);
                out.reset(Rect::whole(head.window.width, head.window.height), 3, limit)?;
                head.run(self.simd, image, 1, &mut self.taps, &mut self.temp, &mut out);
                self.other = std::mem::replace(image, out);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_recipe::Filter;
    use proptest::prelude::*;

    use super::*;

    fn noise(rect: Rect, seed: u64) -> Pixels {
        let mut pixels = Pixels::default();
        pixels.reset(rect, 3, 1 << 30).expect("room");
        let mut state = seed | 1;
        for byte in pixels.bytes_mut() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        pixels
    }

    fn filter() -> impl Strategy<Value = Filter> {
        use Filter::*;
        prop::sample::select(vec![Nearest, Box, Bilinear, Hamming, Bicubic, Lanczos])
    }

    proptest! {
        #[test]
        fn vector_and_plain_kernels_give_the_same_pixels(
            width in 1u32..150, height in 1u32..150, to in (1u32..150, 1u32..150), filter in filter(),
            mirror in prop::array::uniform2(any::<bool>()), seed: u64,
        ) {
            let src = noise(Rect::whole(width, height), seed);
            let mut ops = vec![
                Op::Crop(Rect { x: width / 3, y: height / 4, width: width - width / 3, height: height - height / 4 }),
                Op::Resize { width: to.0, height: to.1, filter },
            ];
            ops.extend(mirror[0].then_some(Op::FlipHorizontal));
            ops.extend(mirror[1].then_some(Op::FlipVertical));
            let (head, rest) = Head::fold(width, height, &ops);
            prop_assert!(rest.is_empty());
            let mut results = [Simd::Plain, Simd::detect()].map(|simd| {
                let mut out = Pixels::default();
                Augmenter::new(simd).run(&src, 1, &head, rest, 1 << 30, 1 << 30, &mut out).expect("pixels");
                out
            });
            let [plain, fast] = &mut results;
            prop_assert_eq!(plain.rgb(), fast.rgb());
        }

        #[test]
        fn folding_changes_no_pixel_and_reads_only_what_it_says(
            width in 8u32..90, height in 8u32..90, to in (8u32..90, 8u32..90), filter in filter(),
            flips in prop::array::uniform4(any::<bool>()), resize: bool, seed: u64,
        ) {
            let mut ops = vec![Op::Crop(Rect { x: width / 4, y: height / 4, width: width / 2, height: height / 2 })];
            let flip = |ops: &mut Vec<Op>, flips: &[bool]| {
                ops.extend(flips[0].then_some(Op::FlipHorizontal));
                ops.extend(flips[1].then_some(Op::FlipVertical));
            };
            let size = if resize { to } else { (width / 2, height / 2) };
            if resize {
                ops.push(Op::Resize { width: to.0, height: to.1, filter });
            }
            flip(&mut ops, &flips[..2]);
            ops.push(Op::Crop(Rect { x: size.0 / 3, y: size.1 / 5, width: size.0 - size.0 / 3, height: size.1 - size.1 / 5 }));
            flip(&mut ops, &flips[2..]);

            // One operation at a time.
            let mut slow = noise(Rect::whole(width, height), seed);
            let mut augmenter = Augmenter::default();
            for op in &ops {
                augmenter.op(op, 1 << 30, &mut slow).expect("pixels");
            }
            // Folded, from a source that holds only the wanted pixels.
            let whole = noise(Rect::whole(width, height), seed);
            let (head, rest) = Head::fold(width, height, &ops);
            prop_assert!(rest.is_empty());
            let wanted = augmenter.wanted(&head);
            let mut part = Pixels::default();
            part.reset(wanted, 3, 1 << 30).expect("room");
            for y in 0..wanted.height {
                let from = ((wanted.y + y) * width + wanted.x) as usize * 3;
                let row = wanted.width as usize * 3;
                part.bytes_mut()[y as usize * row..][..row].copy_from_slice(&whole.rgb()[from..][..row]);
            }
            let mut fast = Pixels::default();
            augmenter.run(&part, 1, &head, rest, 1 << 30, 1 << 30, &mut fast).expect("pixels");
            prop_assert_eq!(slow.rgb(), fast.rgb());
        }
    }
}
