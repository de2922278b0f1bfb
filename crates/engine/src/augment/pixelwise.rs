//! Copies, flips and padding of interleaved RGB.

use forebay_recipe::PadMode;

use super::resize::View;

/// Copies rows, mirrored where asked.
pub(super) fn copy(src: View<'_>, width: usize, mirror: [bool; 2], out: &mut [u8]) {
    let row = width * 3;
    for (y, to) in out.chunks_exact_mut(row).enumerate() {
        to.copy_from_slice(&src.bytes[y * src.stride..][..row]);
        if mirror[0] {
            flip_row(to);
        }
    }
    if mirror[1] {
        flip_vertical(out, row);
    }
}

fn flip_row(row: &mut [u8]) {
    let (pixels, _) = row.as_chunks_mut::<3>();
    pixels.reverse();
}

/// Mirrors each row of `row` bytes.
pub(super) fn flip_horizontal(bytes: &mut [u8], row: usize) {
    bytes.chunks_exact_mut(row).for_each(flip_row);
}

/// Mirrors the order of rows of `row` bytes.
pub(super) fn flip_vertical(bytes: &mut [u8], row: usize) {
    let height = bytes.len() / row;
    let (top, bottom) = bytes.split_at_mut(height.div_ceil(2) * row);
    for (a, b) in top.chunks_exact_mut(row).zip(bottom.chunks_exact_mut(row).rev()) {
        a.swap_with_slice(b);
    }
}

/// Where a padded axis reads; `None` is the colour.
pub(super) fn pad_axis(len: u32, before: u32, after: u32, mode: PadMode) -> Vec<Option<u32>> {
    let n = i64::from(len);
    (-i64::from(before)..n + i64::from(after))
        .map(|at| {
            let inside = match mode {
                PadMode::Constant if (0..n).contains(&at) => at,
                PadMode::Constant => return None,
                PadMode::Edge => at.clamp(0, n - 1),
                // Mirrors repeat when the border is wider than the image.
                PadMode::Reflect if n == 1 => 0,
                PadMode::Reflect => {
                    let at = at.rem_euclid(2 * (n - 1));
                    at.min(2 * (n - 1) - at)
                }
                PadMode::Symmetric => {
                    let at = at.rem_euclid(2 * n);
                    at.min(2 * n - 1 - at)
                }
            };
            Some(inside as u32)
        })
        .collect()
}

/// Builds an image by reading `columns` × `rows` of `src`.
pub(super) fn gather(
    src: View<'_>,
    columns: &[Option<u32>],
    rows: &[Option<u32>],
    fill: [u8; 3],
    out: &mut [u8],
) {
    for (row, to) in rows.iter().zip(out.chunks_exact_mut(columns.len() * 3)) {
        let (to, _) = to.as_chunks_mut::<3>();
        match row {
            None => to.fill(fill),
            Some(y) => {
                let from = &src.bytes[(y - src.y) as usize * src.stride..];
                for (column, to) in columns.iter().zip(to) {
                    *to = match column {
                        None => fill,
                        Some(x) => {
                            let at = (x - src.x) as usize * 3;
                            [from[at], from[at + 1], from[at + 2]]
                        }
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_reads_where_numpy_does() {
        let read =
            |mode| pad_axis(3, 4, 4, mode).into_iter().map(|x| x.map_or(-1, i64::from)).collect::<Vec<_>>();
        assert_eq!(read(PadMode::Constant), [-1, -1, -1, -1, 0, 1, 2, -1, -1, -1, -1]);
        assert_eq!(read(PadMode::Edge), [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]);
        assert_eq!(read(PadMode::Reflect), [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]);
        assert_eq!(read(PadMode::Symmetric), [2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]);
    }

    #[test]
    fn flipping_twice_changes_nothing() {
        let image: Vec<u8> = (0..5 * 3 * 3).collect();
        let mut flipped = image.clone();
        flip_horizontal(&mut flipped, 9);
        assert_ne!(flipped, image);
        flip_horizontal(&mut flipped, 9);
        flip_vertical(&mut flipped, 9);
        assert_ne!(flipped, image);
        flip_vertical(&mut flipped, 9);
        assert_eq!(flipped, image);
    }
}
