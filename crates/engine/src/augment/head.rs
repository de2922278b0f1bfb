//! The geometric head of a drawn recipe: crop, resize, crop, flip, as one operation.

use forebay_recipe::{Filter, Op, Rect};

use super::pixelwise;
use super::resize::{self, Axis, View};
use crate::decode::Pixels;
use crate::kernels::{Simd, Taps};

/// Crop `source`, resample it to `size`, keep `window` of that, mirror.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// What is left of the source before resampling.
    pub source: Rect,
    /// Width and height after resampling, and the filter.
    pub size: (u32, u32, Filter),
    /// What is kept of that.
    pub window: Rect,
    /// Mirror left and right, top and bottom.
    pub mirror: [bool; 2],
}

impl Head {
    /// Folds as many leading operations as possible; the others are returned.
    pub fn fold(width: u32, height: u32, ops: &[Op]) -> (Head, &[Op]) {
        let mut head = Head {
            source: Rect::whole(width, height),
            size: (width, height, Filter::Bilinear),
            window: Rect::whole(width, height),
            mirror: [false; 2],
        };
        let mut resized = false;
        for (done, op) in ops.iter().enumerate() {
            match op {
                Op::Crop(rect) => {
                    let window = &mut head.window;
                    // The rectangle counts from the mirrored image's corner.
                    let x = if head.mirror[0] { window.width - rect.width - rect.x } else { rect.x };
                    let y = if head.mirror[1] { window.height - rect.height - rect.y } else { rect.y };
                    *window = Rect { x: window.x + x, y: window.y + y, ..*rect };
                    if !resized {
                        head.source = *window;
                    }
                }
                // Mirroring and resampling do not commute to the last bit, and one resize is all there is.
                Op::Resize { width, height, filter } if !resized && head.mirror == [false; 2] => {
                    resized = true;
                    head.size = (*width, *height, *filter);
                    head.window = Rect::whole(*width, *height);
                }
                Op::FlipHorizontal => head.mirror[0] ^= true,
                Op::FlipVertical => head.mirror[1] ^= true,
                _ => return (head.closed(resized), &ops[done..]),
            }
        }
        (head.closed(resized), &[])
    }

    /// Without a resize the crop is the whole head.
    fn closed(mut self, resized: bool) -> Head {
        if !resized {
            self.source = self.window;
            self.size = (self.window.width, self.window.height, Filter::Bilinear);
            self.window = Rect::whole(self.window.width, self.window.height);
        }
        self
    }

    /// The two axes; `denominator` is that of the decode.
    fn axes(&self, denominator: u32) -> [Axis; 2] {
        let axis = |start: u32, len: u32, output: u32, wanted: std::ops::Range<u32>| {
            // Pixels of the scaled image that the span touches.
            let first = start / denominator;
            let end = (start + len).div_ceil(denominator);
            let place = |at: u32| f64::from(at) / f64::from(denominator) - f64::from(first);
            Axis { input: end - first, span: (place(start), place(start + len)), output, wanted }
        };
        let (source, window) = (self.source, self.window);
        [
            axis(source.x, source.width, self.size.0, window.x..window.x + window.width),
            axis(source.y, source.height, self.size.1, window.y..window.y + window.height),
        ]
    }

    /// The rectangle of the source, in full-size pixels, that is read.
    pub(super) fn wanted(&self, taps: &mut [Taps; 2]) -> Rect {
        let axes = self.axes(1);
        let whole = axes.iter().all(|axis| axis.wanted.len() == axis.output as usize);
        if whole {
            return self.source;
        }
        let [x, y] = [0, 1].map(|i| {
            let axis = &axes[i];
            if self.size.2 == Filter::Nearest {
                let places = axis.nearest();
                places.first().copied().unwrap_or(0)..places.last().map_or(0, |last| last + 1)
            } else if axis.is_needed() {
                axis.taps(self.size.2, &mut taps[i]);
                resize::reach(&taps[i])
            } else {
                axis.wanted.clone()
            }
        });
        Rect {
            x: self.source.x + x.start,
            y: self.source.y + y.start,
            width: x.end - x.start,
            height: y.end - y.start,
        }
    }

    /// The largest of 1, 2, 4 and 8 at which the decoded source is still no smaller than the result.
    pub fn denominator(&self) -> u32 {
        let fits = |d: u32| self.source.width / d >= self.size.0 && self.source.height / d >= self.size.1;
        [8, 4, 2].into_iter().find(|&d| fits(d)).unwrap_or(1)
    }

    pub(super) fn run(
        &self,
        simd: Simd,
        src: &Pixels,
        denominator: u32,
        taps: &mut [Taps; 2],
        temp: &mut Vec<u8>,
        out: &mut Pixels,
    ) {
        let axes = self.axes(denominator);
        let held = src.rect();
        let stride = held.width as usize * 3;
        // Taps count from the source's corner; the view says which of those pixels its first byte is.
        let (x, y) = (self.source.x / denominator, self.source.y / denominator);
        let skip = |corner: u32, held: u32| corner.saturating_sub(held);
        let bytes = &src.bytes()[skip(y, held.y) as usize * stride + skip(x, held.x) as usize * 3..];
        let view = View { bytes, stride, x: held.x.saturating_sub(x), y: held.y.saturating_sub(y) };
        let room = self.window.width as usize * self.window.height as usize * 3;
        let out = &mut out.bytes_mut()[..room];
        if self.size.2 == Filter::Nearest && axes.iter().any(Axis::is_needed) {
            let [columns, rows] =
                axes.each_ref().map(|axis| axis.nearest().into_iter().map(Some).collect::<Vec<_>>());
            pixelwise::gather(view, &columns, &rows, [0; 3], out);
            let row = columns.len() * 3;
            if self.mirror[0] {
                pixelwise::flip_horizontal(out, row);
            }
            if self.mirror[1] {
                pixelwise::flip_vertical(out, row);
            }
            return;
        }
        for (axis, taps) in axes.iter().zip(taps.iter_mut()) {
            if axis.is_needed() {
                axis.taps(self.size.2, taps);
            }
        }
        resize::resample(simd, view, &axes, taps, self.mirror, temp, out);
    }
}
