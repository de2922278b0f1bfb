//! Resampling with Pillow's integer arithmetic, so that pixels are equal and not merely close.
//!
//! The order of the two passes is Pillow's too: vertical first when the height shrinks by more than twice
//! what the width shrinks (Pillow 13; older versions always go horizontal first, which differs by one
//! level in a few values).

use std::f64::consts::PI;
use std::ops::Range;

use forebay_recipe::Filter;

use crate::kernels::{Rows, Simd, Taps, WEIGHT_BITS};

/// One axis of a resize: `input` pixels of which `from..to` become `output`, and which outputs are wanted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    /// Pixels there are.
    pub(super) input: u32,
    /// Part of them that is resampled.
    pub(super) span: (f64, f64),
    /// Pixels of the whole result.
    pub(super) output: u32,
    /// Those that are wanted.
    pub(super) wanted: Range<u32>,
}

impl Axis {
    /// Whether this axis changes at all.
    pub(super) fn is_needed(&self) -> bool {
        self.output != self.input || self.span.0 != 0.0 || self.span.1 != f64::from(self.output)
    }

    /// Fills `taps` with Pillow's coefficients for the wanted outputs.
    pub(super) fn taps(&self, filter: Filter, taps: &mut Taps) {
        // Each filter gets a loop of its own: a call per weight would cost as much as the weight.
        match filter {
            // Nearest has no weights and is handled apart.
            Filter::Nearest | Filter::Box => {
                self.fill(0.5, taps, |x| f64::from(u8::from(x > -0.5 && x <= 0.5)))
            }
            Filter::Bilinear => self.fill(1.0, taps, |x| (1.0 - x.abs()).max(0.0)),
            Filter::Hamming => self.fill(1.0, taps, hamming),
            Filter::Bicubic => self.fill(2.0, taps, bicubic),
            Filter::Lanczos => self.fill(3.0, taps, lanczos),
        }
    }

    fn fill(&self, reach: f64, taps: &mut Taps, kernel: impl Fn(f64) -> f64) {
        let scale = (self.span.1 - self.span.0) / f64::from(self.output);
        let filter_scale = scale.max(1.0);
        let support = reach * filter_scale;
        let inverse = 1.0 / filter_scale;
        taps.stride = (support.ceil() as usize * 2 + 1).next_multiple_of(2);
        taps.bounds.clear();
        taps.weights.clear();
        taps.line.resize(taps.stride, 0.0);
        for place in self.wanted.clone() {
            let center = self.span.0 + (f64::from(place) + 0.5) * scale;
            let first = (center - support + 0.5).max(0.0) as u32;
            let end = ((center + support + 0.5) as u32).min(self.input);
            let line = &mut taps.line[..(end - first) as usize];
            let mut sum = 0.0;
            for (i, weight) in line.iter_mut().enumerate() {
                *weight = kernel((i as f64 + f64::from(first) - center + 0.5) * inverse);
                sum += *weight;
            }
            let at = taps.weights.len();
            taps.weights.extend(line.iter().map(|&weight| {
                let weight = if sum != 0.0 { weight / sum } else { weight };
                let fixed = weight * f64::from(1u32 << WEIGHT_BITS);
                (if weight < 0.0 { fixed - 0.5 } else { fixed + 0.5 }) as i32
            }));
            taps.weights.resize(at + taps.stride, 0);
            taps.bounds.push((first, end - first));
        }
        taps.split();
    }

    /// Where the nearest-neighbour filter reads, stepping as Pillow does.
    pub(super) fn nearest(&self) -> Vec<u32> {
        let step = (self.span.1 - self.span.0) / f64::from(self.output);
        let mut at = self.span.0 + step * 0.5;
        let mut places = Vec::with_capacity(self.output as usize);
        for _ in 0..self.output {
            places.push((at as u32).min(self.input - 1));
            at += step;
        }
        places[self.wanted.start as usize..self.wanted.end as usize].to_vec()
    }
}

/// First and one past the last source pixel that `taps` read.
pub(super) fn reach(taps: &Taps) -> Range<u32> {
    let first = taps.bounds.iter().map(|&(first, _)| first).min().unwrap_or(0);
    let end = taps.bounds.iter().map(|&(first, len)| first + len).max().unwrap_or(0);
    first..end
}

/// RGB rows: bytes, distance between rows, and the pixel that the first byte stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) stride: usize,
    pub(super) x: u32,
    pub(super) y: u32,
}

impl<'a> View<'a> {
    /// The view from pixel (x, y) on.
    pub(super) fn at(self, x: u32, y: u32) -> View<'a> {
        let skip = (y - self.y) as usize * self.stride + (x - self.x) as usize * 3;
        View { bytes: &self.bytes[skip..], x, y, ..self }
    }

    /// The rows for resampling along x.
    fn across(self) -> Rows<'a> {
        Rows { bytes: self.bytes, stride: self.stride, origin: self.x }
    }

    /// The rows for resampling along y.
    fn down(self) -> Rows<'a> {
        Rows { bytes: self.bytes, stride: self.stride, origin: self.y }
    }
}

/// Runs the passes that are needed into `out`; `temp` holds what is between them.
pub(super) fn resample(
    simd: Simd,
    src: View<'_>,
    axes: &[Axis; 2],
    taps: &[Taps; 2],
    mirror: [bool; 2],
    temp: &mut Vec<u8>,
    out: &mut [u8],
) {
    let [x, y] = axes;
    let [across, down] = taps;
    let width = x.wanted.len();
    // Pillow: "scaled down more than twice the amount the width is".
    let (dx, dy) = (i64::from(x.input) - i64::from(x.output), i64::from(y.input) - i64::from(y.output));
    let vertical_first = dy > 0 && dy > dx * 2;
    let rows = if y.is_needed() { reach(down) } else { y.wanted.clone() };
    let columns = if x.is_needed() { reach(across) } else { x.wanted.clone() };
    match (x.is_needed(), y.is_needed()) {
        (true, true) if vertical_first => {
            let stride = columns.len() * 3;
            grow(temp, y.wanted.len() * stride + crate::decode::SLACK);
            simd.vertical(src.at(columns.start, src.y).down(), stride, down, mirror[1], temp);
            let between = Rows { bytes: temp, stride, origin: columns.start };
            simd.horizontal(between, y.wanted.len(), across, mirror[0], out);
        }
        (true, true) => {
            grow(temp, rows.len() * width * 3);
            simd.horizontal(src.at(src.x, rows.start).across(), rows.len(), across, mirror[0], temp);
            let between = Rows { bytes: temp, stride: width * 3, origin: rows.start };
            simd.vertical(between, width * 3, down, mirror[1], out);
        }
        (true, false) => {
            simd.horizontal(src.at(src.x, rows.start).across(), rows.len(), across, mirror[0], out);
            if mirror[1] {
                super::pixelwise::flip_vertical(out, width * 3);
            }
        }
        (false, true) => {
            simd.vertical(src.at(columns.start, src.y).down(), width * 3, down, mirror[1], out);
            if mirror[0] {
                super::pixelwise::flip_horizontal(out, width * 3);
            }
        }
        (false, false) => super::pixelwise::copy(src.at(x.wanted.start, y.wanted.start), width, mirror, out),
    }
}

fn grow(temp: &mut Vec<u8>, len: usize) {
    if temp.len() < len {
        temp.resize(len, 0);
    }
}

fn hamming(x: f64) -> f64 {
    match x.abs() {
        0.0 => 1.0,
        x if x >= 1.0 => 0.0,
        x => {
            let x = x * PI;
            // Pillow writes these two constants in single precision.
            x.sin() / x * (f64::from(0.54f32) + f64::from(0.46f32) * x.cos())
        }
    }
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    match x.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}

fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}
