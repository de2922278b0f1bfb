//! The vector kernels, all in one file: resampling in Pillow's integer arithmetic, upsampling and colours in
//! libjpeg's, and finish.
//!
//! Every kernel has a plain form beside it that says what it computes; [`Simd`] picks the AVX2 form when
//! the processor has it. Both give the same bits, and tests compare them.
//!
//! Resampling weights are 22-bit integers. A product of 8 × 22 bits does not fit the fast 16-bit
//! multiply-add, so each weight is split as `high · 2¹¹ + low`, two multiply-adds run, and the sums are
//! joined at the end. That is the same integer, not an approximation.
#![expect(unsafe_code, reason = "vector loads and stores through raw pointers")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use forebay_recipe::Dtype;

use crate::decode::SLACK;

/// Bits of a resampling weight, as in Pillow.
pub const WEIGHT_BITS: u32 = 22;
/// Where a weight is split for 16-bit multiplication.
const SPLIT_BITS: u32 = 11;
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// Weights of one axis: for each output place, where its taps start and what they weigh.
#[derive(Debug, Default)]
pub struct Taps {
    /// First tap and number of taps of each output.
    pub bounds: Vec<(u32, u32)>,
    /// Room per output in `weights`.
    pub stride: usize,
    /// Weights, `stride` per output, zero behind the last tap.
    pub weights: Vec<i32>,
    /// Room for the weights of one output before they are rounded.
    pub line: Vec<f64>,
    /// Pairs of taps, `stride / 2` per output: two low halves in one word, two high halves in the next.
    split: Vec<[i32; 2]>,
}

impl Taps {
    /// Derives the split form; call after `weights` changed.
    pub fn split(&mut self) {
        debug_assert_eq!(self.stride % 2, 0, "weights come in pairs");
        self.split.clear();
        let (pairs, _) = self.weights.as_chunks::<2>();
        let low = |w: i32| w & ((1 << SPLIT_BITS) - 1);
        let high = |w: i32| w >> SPLIT_BITS;
        let join = |a: i32, b: i32| (a & 0xffff) | (b << 16);
        self.split.extend(pairs.iter().map(|&[a, b]| [join(low(a), low(b)), join(high(a), high(b))]));
    }
}

/// Source rows: the first byte stands for place `origin` of the resampled axis.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// All bytes.
    pub bytes: &'a [u8],
    /// Distance from one row to the next.
    pub stride: usize,
    /// Where taps count from.
    pub origin: u32,
}

/// Which kernels this processor runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simd {
    /// The plain form.
    Plain,
    /// AVX2 with FMA and F16C.
    Avx2,
}

impl Simd {
    /// The best this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Simd::Avx2;
        }
        Simd::Plain
    }

    /// Resamples `rows` RGB rows along x into `dst`, without gaps; `mirror` writes them from right to left.
    ///
    /// # Panics
    /// When a tap lies outside the source with its slack, or `dst` is too short.
    pub fn horizontal(self, src: Rows<'_>, rows: usize, taps: &Taps, mirror: bool, dst: &mut [u8]) {
        let width = taps.bounds.len();
        let end = |&(first, len): &(u32, u32)| (first + len - src.origin) as usize * 3;
        let reach = taps.bounds.iter().map(end).max().unwrap_or(0);
        assert!(
            rows == 0 || src.bytes.len() >= (rows - 1) * src.stride + reach + SLACK,
            "source rows with slack"
        );
        assert!(taps.bounds.iter().all(|&(first, _)| first >= src.origin), "taps inside the source");
        assert!(dst.len() >= rows * width * 3, "room for the result");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features were detected; source and room were checked above, and a pair of taps
            // reads at most 16 bytes from a tap that exists, which the slack covers.
            Simd::Avx2 => unsafe { horizontal_avx2(src, rows, taps, mirror, dst) },
            _ => horizontal_plain(src, rows, taps, mirror, dst),
        }
    }

    /// Resamples rows of `width` bytes along y; `mirror` writes the rows from bottom to top.
    ///
    /// # Panics
    /// When a tap lies outside the source, or `dst` is too short.
    pub fn vertical(self, src: Rows<'_>, width: usize, taps: &Taps, mirror: bool, dst: &mut [u8]) {
        let height = taps.bounds.len();
        let end = |&(first, len): &(u32, u32)| (first + len - src.origin) as usize;
        let reach = taps.bounds.iter().map(end).max().unwrap_or(0);
        assert!(reach == 0 || src.bytes.len() >= (reach - 1) * src.stride + width, "source rows");
        assert!(dst.len() >= height * width, "room for the result");
        for (y, &(first, len)) in taps.bounds.iter().enumerate() {
            let to = if mirror { height - 1 - y } else { y };
            let out = &mut dst[to * width..][..width];
            let rows = &src.bytes[(first - src.origin) as usize * src.stride..];
            match self {
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 if width >= 32 => {
                    let split = &taps.split[y * taps.stride / 2..][..taps.stride / 2];
                    // SAFETY: the features were detected; `rows` holds `len` rows (checked above) and `out`
                    // is `width` long, which is at least one vector.
                    unsafe { vertical_avx2(rows, src.stride, len as usize, split, out) }
                }
                _ => {
                    let weights = &taps.weights[y * taps.stride..][..len as usize];
                    for (x, out) in out.iter_mut().enumerate() {
                        *out = weigh(weights, |i| rows[i * src.stride + x]);
                    }
                }
            }
        }
    }

    /// Casts, normalises and lays out one RGB image.
    pub fn finish(self, src: &[u8], table: &Table, channels_last: bool, dst: &mut [u8]) {
        let pixels = src.len() / 3;
        assert!(dst.len() >= pixels * 3 * table.dtype.bytes(), "room for the image");
        match (self, table.dtype) {
            (_, Dtype::Uint8) if channels_last => dst[..src.len()].copy_from_slice(src),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features were detected and the room was checked.
            (Simd::Avx2, dtype) => unsafe {
                match (dtype, channels_last) {
                    (Dtype::Uint8, _) => finish_planes_avx2::<U8>(src, table, dst),
                    (Dtype::Float16, false) => finish_planes_avx2::<F16>(src, table, dst),
                    (Dtype::Float16, true) => finish_pixels_avx2::<F16>(src, table, dst),
                    (Dtype::Bfloat16, false) => finish_planes_avx2::<BF16>(src, table, dst),
                    (Dtype::Bfloat16, true) => finish_pixels_avx2::<BF16>(src, table, dst),
                    (_, false) => finish_planes_avx2::<F32>(src, table, dst),
                    (_, true) => finish_pixels_avx2::<F32>(src, table, dst),
                }
            },
            _ => finish_plain(src, table, channels_last, 0, dst),
        }
    }
}

impl Simd {
    /// Three times a row of chroma and once the next nearest row: the vertical half of fancy upsampling.
    pub fn add_rows(self, near: &[u8], far: &[u8], dst: &mut [u16]) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features were detected.
            Simd::Avx2 => unsafe { add_rows_avx2(near, far, dst) },
            _ => add_rows_plain(near, far, dst),
        }
    }

    /// Pixels from a row of luma and two of chroma of half its width, as [`Simd::add_rows`] makes them (`tall`) or
    /// samples as they are; from the sample to the left of the first one, to that right of the last.
    ///
    /// # Panics
    /// When luma does not reach [`SLACK`] beyond the row, or chroma half of that.
    pub fn rgb_halved(self, luma: &[u8], chroma: [&[u16]; 2], tall: bool, dst: &mut [u8]) {
        let width = dst.len() / 3;
        let reach = width.next_multiple_of(BLOCK);
        assert!(
            luma.len() >= reach && chroma.iter().all(|row| row.len() >= reach / 2 + 2),
            "rows with slack"
        );
        match (self, tall) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features were detected; the rows were checked.
            (Simd::Avx2, true) => unsafe { rgb_halved_avx2::<true>(luma, chroma, dst) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Simd::Avx2, false) => unsafe { rgb_halved_avx2::<false>(luma, chroma, dst) },
            _ => {
                for (x, (rgb, &luma)) in dst.as_chunks_mut::<3>().0.iter_mut().zip(luma).enumerate() {
                    *rgb = pixel(luma, chroma.map(|row| between(row, x, tall)));
                }
            }
        }
    }

    /// Pixels from a row of luma and two of chroma, all of one width.
    ///
    /// # Panics
    /// When a row does not reach [`SLACK`] beyond the last pixel.
    pub fn rgb(self, luma: &[u8], chroma: [&[u8]; 2], dst: &mut [u8]) {
        let reach = (dst.len() / 3).next_multiple_of(BLOCK);
        assert!(luma.len() >= reach && chroma.iter().all(|row| row.len() >= reach), "rows with slack");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the features were detected; the rows were checked.
            Simd::Avx2 => unsafe { rgb_avx2(luma, chroma, dst) },
            _ => {
                for (x, (rgb, &luma)) in dst.as_chunks_mut::<3>().0.iter_mut().zip(luma).enumerate() {
                    *rgb = pixel(luma, chroma.map(|row| row[x]));
                }
            }
        }
    }
}

/// What each of the 256 byte values becomes in each channel, exactly as torch computes it in f32.
#[derive(Debug, Clone)]
pub struct Table {
    dtype: Dtype,
    scale: bool,
    channels: [(f32, f32); 3],
    values: Box<[[f32; 256]; 3]>,
}

impl Table {
    /// The table of `(x / 255 − mean) / std`, with the parts that are wanted.
    pub fn new(dtype: Dtype, scale: bool, normalize: Option<([f32; 3], [f32; 3])>) -> Self {
        let (mean, std) = normalize.unwrap_or(([0.0; 3], [1.0; 3]));
        let channels = [0, 1, 2].map(|c| (mean[c], std[c]));
        let values = channels.map(|(mean, std)| {
            std::array::from_fn(|x| {
                let x = if scale { x as f32 / 255.0 } else { x as f32 };
                (x - mean) / std
            })
        });
        Table { dtype, scale, channels, values: Box::new(values) }
    }

    /// Element type of the result.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
}

/// Writes `value` as element `at` of `dst`.
pub fn store(dst: &mut [u8], dtype: Dtype, at: usize, value: f32) {
    let bytes = dtype.bytes();
    let to = &mut dst[at * bytes..][..bytes];
    match dtype {
        Dtype::Float32 => to.copy_from_slice(&value.to_ne_bytes()),
        Dtype::Float16 => to.copy_from_slice(&half::f16::from_f32(value).to_ne_bytes()),
        Dtype::Bfloat16 => to.copy_from_slice(&half::bf16::from_f32(value).to_ne_bytes()),
        _ => to[0] = value as u8,
    }
}

fn finish_plain(src: &[u8], table: &Table, channels_last: bool, from: usize, dst: &mut [u8]) {
    let pixels = src.len() / 3;
    for (pixel, rgb) in src.chunks_exact(3).enumerate().skip(from) {
        for (c, &x) in rgb.iter().enumerate() {
            let at = if channels_last { pixel * 3 + c } else { c * pixels + pixel };
            match table.dtype {
                Dtype::Uint8 => dst[at] = x,
                dtype => store(dst, dtype, at, table.values[c][x as usize]),
            }
        }
    }
}

/// The weighted sum of bytes, rounded and clipped.
fn weigh(weights: &[i32], byte: impl Fn(usize) -> u8) -> u8 {
    let sum = weights.iter().enumerate().fold(HALF, |sum, (i, w)| sum.wrapping_add(i32::from(byte(i)) * w));
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

fn horizontal_plain(src: Rows<'_>, rows: usize, taps: &Taps, mirror: bool, dst: &mut [u8]) {
    let width = taps.bounds.len();
    for y in 0..rows {
        let row = &src.bytes[y * src.stride..];
        for (x, &(first, len)) in taps.bounds.iter().enumerate() {
            let weights = &taps.weights[x * taps.stride..][..len as usize];
            let pixels = &row[(first - src.origin) as usize * 3..];
            let to = if mirror { width - 1 - x } else { x };
            for c in 0..3 {
                dst[(y * width + to) * 3 + c] = weigh(weights, |i| pixels[i * 3 + c]);
            }
        }
    }
}

/// Pixels that are converted at once.
const BLOCK: usize = 32;
/// Factors of chroma in colours, in 1/65536: 1.402, 1.772, 0.34414 and 0.71414, less what is added as a whole.
const CR_RED: i16 = 26345;
const CB_BLUE: i16 = -14942;
const CB_GREEN: i16 = -22554;
const CR_GREEN: i16 = 18734;
/// Rounding of fancy upsampling, left and right half of a sample, and bits: `[not tall, tall]`.
const BIAS: [[i16; 2]; 2] = [[1, 2], [8, 7]];
const BITS: [i32; 2] = [2, 4];

#[inline(always)]
fn add_rows_plain(near: &[u8], far: &[u8], dst: &mut [u16]) {
    for ((sum, &near), &far) in dst.iter_mut().zip(near).zip(far) {
        *sum = u16::from(near) * 3 + u16::from(far);
    }
}

/// Chroma of pixel `x`: three parts of its own sample and one of the nearer neighbour.
fn between(row: &[u16], x: usize, tall: bool) -> u8 {
    let at = x / 2 + 1;
    let other = if x.is_multiple_of(2) { at - 1 } else { at + 1 };
    let bias = BIAS[usize::from(tall)][x % 2] as u16;
    ((row[at] * 3 + row[other] + bias) >> BITS[usize::from(tall)]) as u8
}

/// JFIF's colours in libjpeg's integers.
fn pixel(luma: u8, chroma: [u8; 2]) -> [u8; 3] {
    let (luma, [cb, cr]) = (i32::from(luma), chroma.map(|c| i32::from(c) - 128));
    let part = |sum: i32| (sum + (1 << 15)) >> 16;
    let red = cr + part(cr * i32::from(CR_RED));
    let green = part(cb * i32::from(CB_GREEN) + cr * i32::from(CR_GREEN)) - cr;
    let blue = 2 * cb + part(cb * i32::from(CB_BLUE));
    [red, green, blue].map(|colour| (luma + colour).clamp(0, 255) as u8)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_rows_avx2(near: &[u8], far: &[u8], dst: &mut [u16]) {
    // The compiler does it by itself once it may.
    add_rows_plain(near, far, dst);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn rgb_halved_avx2<const TALL: bool>(luma: &[u8], chroma: [&[u16]; 2], dst: &mut [u8]) {
    let bits = BITS[usize::from(TALL)];
    // Chroma counts from 128.
    let bias = BIAS[usize::from(TALL)].map(|bias| _mm256_set1_epi16(bias - (128 << bits)));
    for (block, out) in dst.chunks_mut(BLOCK * 3).enumerate() {
        // SAFETY: the rows reach to the end of the block (checked by the caller).
        let luma = unsafe { _mm256_loadu_si256(luma.as_ptr().add(block * BLOCK).cast()) };
        let [cb, cr] = chroma.map(|row| {
            // SAFETY: as above, and two samples further.
            let [last, this, next] = [0, 1, 2]
                .map(|i| unsafe { _mm256_loadu_si256(row.as_ptr().add(block * BLOCK / 2 + i).cast()) });
            let three = _mm256_add_epi16(this, _mm256_add_epi16(this, this));
            [(last, bias[0]), (next, bias[1])].map(|(other, bias)| {
                let sum = _mm256_add_epi16(_mm256_add_epi16(three, other), bias);
                if TALL { _mm256_srai_epi16::<4>(sum) } else { _mm256_srai_epi16::<2>(sum) }
            })
        });
        put_rgb(luma, cb, cr, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn rgb_avx2(luma: &[u8], chroma: [&[u8]; 2], dst: &mut [u8]) {
    let middle = _mm256_set1_epi16(128);
    for (block, out) in dst.chunks_mut(BLOCK * 3).enumerate() {
        // SAFETY: the rows reach to the end of the block (checked by the caller).
        let [luma, cb, cr] = [luma, chroma[0], chroma[1]]
            .map(|row| unsafe { _mm256_loadu_si256(row.as_ptr().add(block * BLOCK).cast()) });
        let [cb, cr] = [cb, cr].map(|row| halves(row).map(|half| _mm256_sub_epi16(half, middle)));
        put_rgb(luma, cb, cr, out);
    }
}

/// Even and odd bytes as words.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn halves(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(bytes)]
}

/// For each part of 16 bytes of the output and each channel, the bytes to pick: eight even pixels come before eight odd
/// ones.
#[cfg(target_arch = "x86_64")]
static PICKS: [[[i8; 16]; 3]; 3] = {
    let mut picks = [[[-1; 16]; 3]; 3];
    let mut at = 0;
    while at < 48 {
        let pixel = at / 3;
        picks[at / 16][at % 3][at % 16] = ((pixel % 2) * 8 + pixel / 2) as i8;
        at += 1;
    }
    picks
};

/// Converts a block, even and odd pixels apart, and writes as much of it as there is room for.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn put_rgb(luma: __m256i, cb: [__m256i; 2], cr: [__m256i; 2], out: &mut [u8]) {
    let luma = halves(luma);
    // (x · factor + 2¹⁵) >> 16, of which only the upper half of a product is at hand.
    let part = |x: __m256i, factor: i16| {
        let product = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16(factor));
        _mm256_srai_epi16::<1>(_mm256_add_epi16(product, _mm256_set1_epi16(1)))
    };
    let factors = _mm256_set1_epi32(i32::from(CR_GREEN) << 16 | i32::from(CB_GREEN) & 0xffff);
    let green = |pairs: __m256i| {
        let sum = _mm256_add_epi32(_mm256_madd_epi16(pairs, factors), _mm256_set1_epi32(1 << 15));
        _mm256_srai_epi32::<16>(sum)
    };
    let colours = [0, 1].map(|i| {
        let (luma, cb, cr) = (luma[i], cb[i], cr[i]);
        let red = _mm256_add_epi16(cr, part(cr, CR_RED));
        let (low, high) = (_mm256_unpacklo_epi16(cb, cr), _mm256_unpackhi_epi16(cb, cr));
        let green = _mm256_sub_epi16(_mm256_packs_epi32(green(low), green(high)), cr);
        let blue = _mm256_add_epi16(_mm256_add_epi16(cb, cb), part(cb, CB_BLUE));
        [red, green, blue].map(|colour| _mm256_add_epi16(luma, colour))
    });
    let channels = [0, 1, 2].map(|c| _mm256_packus_epi16(colours[0][c], colours[1][c]));
    let parts = [0, 1, 2].map(|part| {
        let [red, green, blue] = [0, 1, 2].map(|c| {
            // SAFETY: sixteen bytes are read from an array of sixteen.
            let pick = unsafe { _mm_loadu_si128(PICKS[part][c].as_ptr().cast()) };
            _mm256_shuffle_epi8(channels[c], _mm256_broadcastsi128_si256(pick))
        });
        _mm256_or_si256(_mm256_or_si256(red, green), blue)
    });
    let store = |to: &mut [u8; BLOCK * 3]| {
        for (i, part) in parts.into_iter().enumerate() {
            // SAFETY: three times sixteen bytes of each lane are a block.
            unsafe {
                let to = to.as_mut_ptr().add(i * 16);
                _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(part));
                _mm_storeu_si128(to.add(48).cast(), _mm256_extracti128_si256::<1>(part));
            }
        }
    };
    match out.first_chunk_mut() {
        Some(out) => store(out),
        None => {
            let mut block = [0; BLOCK * 3];
            store(&mut block);
            out.copy_from_slice(&block[..out.len()]);
        }
    }
}

/// Four rows at a time share each output's weights, two in each vector, one a lane. A pair of taps is
/// multiplied at once as (r0 r1)(g0 g1)(b0 b1).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn horizontal_avx2(src: Rows<'_>, rows: usize, taps: &Taps, mirror: bool, dst: &mut [u8]) {
    let width = taps.bounds.len();
    let room = taps.stride / 2;
    let pairs =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    let half = _mm256_set1_epi32(HALF);
    let mut y = 0;
    while y < rows {
        // At the end the last row is done up to four times, always with the same result.
        let row = [0, 1, 2, 3].map(|i| (y + i).min(rows - 1));
        // SAFETY: each row starts inside `src` (checked by the caller).
        let from = row.map(|row| unsafe { src.bytes.as_ptr().add(row * src.stride) });
        // SAFETY: each row starts inside `dst` (checked by the caller).
        let into = row.map(|row| unsafe { dst.as_mut_ptr().add(row * width * 3) });
        for to in 0..width {
            let x = if mirror { width - 1 - to } else { to };
            let (first, len) = taps.bounds[x];
            let mut at = (first - src.origin) as usize * 3;
            let mut low = [half; 2];
            let mut high = [_mm256_setzero_si256(); 2];
            let weights = &taps.split[x * room..][..(len as usize).div_ceil(2)];
            for &[weight_low, weight_high] in weights {
                let (weight_low, weight_high) =
                    (_mm256_set1_epi32(weight_low), _mm256_set1_epi32(weight_high));
                for i in 0..2 {
                    // SAFETY: the pair's first tap lies in the row, so 16 bytes from it end inside the slack.
                    let two = unsafe {
                        let a = _mm_loadu_si128(from[i * 2].add(at).cast());
                        let b = _mm_loadu_si128(from[i * 2 + 1].add(at).cast());
                        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b)
                    };
                    let two = _mm256_shuffle_epi8(two, pairs);
                    low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(two, weight_low));
                    high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(two, weight_high));
                }
                at += 6;
            }
            let sum = [0, 1].map(|i| {
                let sum = _mm256_add_epi32(low[i], _mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(high[i]));
                _mm256_srai_epi32::<{ WEIGHT_BITS as i32 }>(sum)
            });
            // Rows 0 and 2 come out in the low lane, 1 and 3 in the high one.
            let words = _mm256_packs_epi32(sum[0], sum[1]);
            let bytes = _mm256_packus_epi16(words, words);
            let (even, odd) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            let (even, odd) = (_mm_cvtsi128_si64(even) as u64, _mm_cvtsi128_si64(odd) as u64);
            let pixels = [even as u32, odd as u32, (even >> 32) as u32, (odd >> 32) as u32];
            for i in 0..4 {
                // SAFETY: pixel `to` of the row is inside `dst`; a fourth byte is written only where a further
                // pixel of the same row follows and overwrites it.
                unsafe {
                    let out = into[i].add(to * 3);
                    let rgb = pixels[i].to_le_bytes();
                    if to + 1 < width {
                        out.cast::<[u8; 4]>().write_unaligned(rgb);
                    } else {
                        out.cast::<[u8; 3]>().write_unaligned([rgb[0], rgb[1], rgb[2]]);
                    }
                }
            }
        }
        y += 4;
    }
}

/// One output row from `len` rows, 32 bytes at a time, two rows a step.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn vertical_avx2(rows: &[u8], stride: usize, len: usize, split: &[[i32; 2]], out: &mut [u8]) {
    let width = out.len();
    let half = _mm256_set1_epi32(HALF);
    let mut x = 0;
    loop {
        let mut low = [half; 4];
        let mut high = [_mm256_setzero_si256(); 4];
        for (pair, &[weight_low, weight_high]) in split[..len.div_ceil(2)].iter().enumerate() {
            let (weight_low, weight_high) = (_mm256_set1_epi32(weight_low), _mm256_set1_epi32(weight_high));
            let above = pair * 2;
            // An odd last row is paired with itself; its partner weighs nothing.
            let below = (above + 1).min(len - 1);
            for part in 0..2 {
                // SAFETY: both rows exist and `x + 32 <= width`.
                let (a, b) = unsafe {
                    let at = |row: usize| rows.as_ptr().add(row * stride + x + part * 16).cast();
                    (_mm_loadu_si128(at(above)), _mm_loadu_si128(at(below)))
                };
                let (a, b) = (_mm256_cvtepu8_epi16(a), _mm256_cvtepu8_epi16(b));
                let both = [_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)];
                for (i, both) in both.into_iter().enumerate() {
                    let at = part * 2 + i;
                    low[at] = _mm256_add_epi32(low[at], _mm256_madd_epi16(both, weight_low));
                    high[at] = _mm256_add_epi32(high[at], _mm256_madd_epi16(both, weight_high));
                }
            }
        }
        let sum = [0, 1, 2, 3].map(|i| {
            let sum = _mm256_add_epi32(low[i], _mm256_slli_epi32::<{ SPLIT_BITS as i32 }>(high[i]));
            _mm256_srai_epi32::<{ WEIGHT_BITS as i32 }>(sum)
        });
        let bytes =
            _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
        // SAFETY: `x + 32 <= width`.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(x).cast(), bytes) };
        if x + 32 == width {
            return;
        }
        // The last step may overlap the one before; it writes the same bytes again.
        x = (x + 32).min(width - 32);
    }
}

/// Constants of one lane pattern. Division by a constant is done as a product with the reciprocal and one
/// correction step, which rounds exactly as a division does.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Lanes {
    scale: bool,
    mean: __m256,
    std: __m256,
    inverse: __m256,
}

#[cfg(target_arch = "x86_64")]
impl Lanes {
    #[target_feature(enable = "avx2,fma")]
    fn new(table: &Table, channel: impl Fn(usize) -> usize) -> Self {
        let gather = |value: &dyn Fn((f32, f32)) -> f32| {
            let lanes: [f32; 8] = std::array::from_fn(|i| value(table.channels[channel(i)]));
            // SAFETY: eight floats are read from an array of eight.
            unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
        };
        Lanes {
            scale: table.scale,
            mean: gather(&|(mean, _)| mean),
            std: gather(&|(_, std)| std),
            inverse: gather(&|(_, std)| 1.0 / std),
        }
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn divide(a: __m256, by: __m256, inverse: __m256) -> __m256 {
        let quotient = _mm256_mul_ps(a, inverse);
        let rest = _mm256_fnmadd_ps(quotient, by, a);
        _mm256_fmadd_ps(rest, inverse, quotient)
    }

    /// Eight bytes in the low half of `bytes` to eight normalised floats.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn apply(&self, bytes: __m128i) -> __m256 {
        let mut x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        if self.scale {
            x = Self::divide(x, _mm256_set1_ps(255.0), _mm256_set1_ps(1.0 / 255.0));
        }
        Self::divide(_mm256_sub_ps(x, self.mean), self.std, self.inverse)
    }
}

// Element types as constants, so that each kernel is compiled for one of them.
#[cfg(target_arch = "x86_64")]
const U8: u8 = 0;
#[cfg(target_arch = "x86_64")]
const F16: u8 = 1;
#[cfg(target_arch = "x86_64")]
const BF16: u8 = 2;
#[cfg(target_arch = "x86_64")]
const F32: u8 = 3;

/// Stores eight floats as eight elements.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn put<const DTYPE: u8>(dst: *mut u8, values: __m256) {
    // SAFETY: the caller has room for eight elements at `dst`.
    unsafe {
        match DTYPE {
            F16 => {
                _mm_storeu_si128(dst.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values));
            }
            BF16 => {
                let bits = _mm256_castps_si256(values);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let high = _mm256_srli_epi32::<16>(bits);
                let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(high, high));
                _mm_storeu_si128(dst.cast(), _mm256_castsi256_si128(packed));
            }
            _ => _mm256_storeu_ps(dst.cast(), values),
        }
    }
}

/// Interleaved pixels to three planes, sixteen pixels at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn finish_planes_avx2<const DTYPE: u8>(src: &[u8], table: &Table, dst: &mut [u8]) {
    let pixels = src.len() / 3;
    let whole = pixels / 16 * 16;
    let bytes = table.dtype.bytes();
    let lanes = [0, 1, 2].map(|c| Lanes::new(table, |_| c));
    // Byte `i` of channel `c` is source byte `3·i + c`, which lies in one of three vectors.
    let picks: [[__m128i; 3]; 3] = std::array::from_fn(|c| {
        std::array::from_fn(|part| {
            let index: [i8; 16] = std::array::from_fn(|i| {
                let at = 3 * i + c;
                if at / 16 == part { (at % 16) as i8 } else { -1 }
            });
            // SAFETY: sixteen bytes are read from an array of sixteen.
            unsafe { _mm_loadu_si128(index.as_ptr().cast()) }
        })
    });
    for pixel in (0..whole).step_by(16) {
        // SAFETY: pixels `pixel..pixel + 16` exist, which are 48 bytes.
        let parts: [__m128i; 3] =
            std::array::from_fn(|i| unsafe { _mm_loadu_si128(src.as_ptr().add(pixel * 3 + i * 16).cast()) });
        for c in 0..3 {
            let plane = _mm_or_si128(
                _mm_or_si128(
                    _mm_shuffle_epi8(parts[0], picks[c][0]),
                    _mm_shuffle_epi8(parts[1], picks[c][1]),
                ),
                _mm_shuffle_epi8(parts[2], picks[c][2]),
            );
            // SAFETY: sixteen elements of plane `c` are inside `dst` (checked by the caller).
            unsafe {
                let out = dst.as_mut_ptr().add((c * pixels + pixel) * bytes);
                if DTYPE == U8 {
                    _mm_storeu_si128(out.cast(), plane);
                } else {
                    put::<DTYPE>(out, lanes[c].apply(plane));
                    put::<DTYPE>(out.add(8 * bytes), lanes[c].apply(_mm_srli_si128::<8>(plane)));
                }
            }
        }
    }
    finish_plain(src, table, false, whole, dst);
}

/// Interleaved pixels stay interleaved, eight pixels at a time: the channel pattern repeats every three vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn finish_pixels_avx2<const DTYPE: u8>(src: &[u8], table: &Table, dst: &mut [u8]) {
    let whole = src.len() / 24 * 24;
    let bytes = table.dtype.bytes();
    let lanes = [0, 1, 2].map(|part| Lanes::new(table, |i| (part * 8 + i) % 3));
    for at in (0..whole).step_by(24) {
        for (part, lanes) in lanes.iter().enumerate() {
            let at = at + part * 8;
            // SAFETY: eight source bytes and eight elements of room exist at `at`.
            unsafe {
                let eight = _mm_loadl_epi64(src.as_ptr().add(at).cast());
                put::<DTYPE>(dst.as_mut_ptr().add(at * bytes), lanes.apply(eight));
            }
        }
    }
    finish_plain(src, table, true, whole / 3, dst);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect()
    }

    proptest! {
        #[test]
        fn vector_and_plain_colours_are_equal(width in 0usize..140, tall: bool, seed: u64) {
            let near = noise(3 * 192, seed);
            let (far, luma) = (noise(3 * 192, !seed), noise(192, seed ^ 1));
            let [plain, fast] = [Simd::Plain, Simd::detect()].map(|simd| {
                let mut sums = vec![0; near.len()];
                simd.add_rows(&near, &far, &mut sums);
                if !tall {
                    sums = near.iter().copied().map(u16::from).collect();
                }
                let mut out = [vec![0; width * 3], vec![0; width * 3]];
                simd.rgb_halved(&luma, [&sums, &sums[190..]], tall, &mut out[0]);
                simd.rgb(&luma, [&near, &far], &mut out[1]);
                (sums, out)
            });
            prop_assert_eq!(plain, fast);
        }

        #[test]
        fn finish_equals_torchs_arithmetic_bit_for_bit(
            pixels in 0usize..70, seed: u64, scale: bool, normalize: bool, last: bool,
            mean in prop::array::uniform3(-1f32..1.0), std in prop::array::uniform3(0.05f32..300.0),
        ) {
            let src = noise(pixels * 3, seed);
            for dtype in [Dtype::Uint8, Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
                let table = Table::new(dtype, scale, normalize.then_some((mean, std)));
                let mut plain = vec![0; src.len() * dtype.bytes()];
                let mut fast = plain.clone();
                Simd::Plain.finish(&src, &table, last, &mut plain);
                Simd::detect().finish(&src, &table, last, &mut fast);
                prop_assert_eq!(plain, fast, "{:?}", dtype);
            }
        }
    }

    #[test]
    fn every_byte_value_is_exact_with_the_usual_constants() {
        let src: Vec<u8> = (0..=255).flat_map(|x| [x; 3]).collect();
        let usual = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        for normalize in [None, Some(usual)] {
            let table = Table::new(Dtype::Float32, true, normalize);
            let mut fast = vec![0; src.len() * 4];
            Simd::detect().finish(&src, &table, false, &mut fast);
            for c in 0..3 {
                for x in 0..256 {
                    let at = (c * 256 + x) * 4;
                    let seen = f32::from_ne_bytes(fast[at..at + 4].try_into().expect("four bytes"));
                    assert_eq!(seen.to_bits(), table.values[c][x].to_bits());
                }
            }
        }
    }
}
