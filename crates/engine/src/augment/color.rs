//! Brightness, contrast, saturation and hue with Pillow's arithmetic, in place.
//!
//! Brightness and contrast depend on one byte at a time, so they are tables of 256 entries.

/// Pillow's blend of one byte: `from + factor · (to − from)` in single precision, cut off, clipped.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let value = f32::from(from) + factor * (f32::from(to) - f32::from(from));
    value.clamp(0.0, 255.0) as u8
}

/// ITU-R 601 luma with Pillow's integer weights.
fn luma(rgb: [u8; 3]) -> u8 {
    let [r, g, b] = rgb.map(u32::from);
    ((r * 19_595 + g * 38_470 + b * 7_471 + 0x8000) >> 16) as u8
}

fn map_bytes(rgb: &mut [u8], map: impl Fn(u8) -> u8) {
    let table: [u8; 256] = std::array::from_fn(|x| map(x as u8));
    rgb.iter_mut().for_each(|x| *x = table[usize::from(*x)]);
}

/// Blends with black.
pub(super) fn brightness(rgb: &mut [u8], factor: f64) {
    map_bytes(rgb, |x| blend(0, x, factor as f32));
}

/// Blends with the mean grey of the image.
pub(super) fn contrast(rgb: &mut [u8], factor: f64) {
    let (pixels, _) = rgb.as_chunks::<3>();
    let sum: u64 = pixels.iter().map(|&p| u64::from(luma(p))).sum();
    let mean = (sum as f64 / pixels.len().max(1) as f64 + 0.5) as u8;
    map_bytes(rgb, |x| blend(mean, x, factor as f32));
}

/// Blends each pixel with its own grey.
pub(super) fn saturation(rgb: &mut [u8], factor: f64) {
    let (pixels, _) = rgb.as_chunks_mut::<3>();
    for pixel in pixels {
        let gray = luma(*pixel);
        *pixel = pixel.map(|x| blend(gray, x, factor as f32));
    }
}

/// Turns the hue by `shift` turns, through 8-bit HSV as Pillow and torchvision do.
pub(super) fn hue(rgb: &mut [u8], shift: f64) {
    // torchvision: np.uint8(hue_factor * 255), which wraps.
    let turn = ((shift * 255.0) as i32).rem_euclid(256) as u8;
    let (pixels, _) = rgb.as_chunks_mut::<3>();
    for pixel in pixels {
        let [h, s, v] = to_hsv(*pixel);
        *pixel = from_hsv([h.wrapping_add(turn), s, v]);
    }
}

fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let s = range / f32::from(max);
    let [rc, gc, bc] = [r, g, b].map(|x| f32::from(max - x) / range);
    // Pillow mixes single and double precision here; the casts say where.
    let h = if r == max {
        bc - gc
    } else if g == max {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let h = (f64::from(h) / 6.0 + 1.0) % 1.0;
    [(f64::from(h as f32) * 255.0) as u8, (f64::from(s) * 255.0) as u8, max]
}

fn from_hsv([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let sixth = f64::from(h) * 6.0 / 255.0;
    let i = sixth.floor();
    let f = f64::from((sixth - i) as f32);
    let fs = f64::from((f64::from(s) / 255.0) as f32);
    let level = |x: f64| (f64::from(v) * x).round().clamp(0.0, 255.0) as u8;
    let (p, q, t) = (level(1.0 - fs), level(1.0 - fs * f), level(1.0 - fs * (1.0 - f)));
    match i as u32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}
