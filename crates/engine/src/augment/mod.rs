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

use crate::decode::Pixels;
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
