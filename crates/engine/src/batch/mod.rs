//! Augmented samples to a finished batch in lent memory.

mod finish;
mod lease;

pub use finish::Finisher;
pub use lease::Lease;

use std::sync::Arc;

use forebay_recipe::{Dtype, Layout};

/// Fields start at multiples of this inside a slot.
const FIELD_ALIGN: usize = 256;

/// Where one field of a batch, or of one sample of a ragged batch, lies in its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Element type.
    pub dtype: Dtype,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Steps between elements, in elements.
    pub strides: Vec<usize>,
    /// First byte.
    pub offset: usize,
}

/// The image field of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Images {
    /// One tensor.
    Stacked(Span),
    /// One tensor per sample, because shapes differ.
    Ragged(Vec<Span>),
}

/// A finished batch; its memory is lent until the last handle is gone.
#[derive(Debug)]
pub struct Batch {
    /// The memory.
    pub lease: Arc<Lease>,
    /// The images.
    pub images: Images,
    /// The class indices.
    pub targets: Span,
    /// Positions in the epoch's order.
    pub positions: Vec<u64>,
    /// The sample at each.
    pub samples: Vec<u64>,
    /// False where a neighbour stands in for a sample that failed.
    pub valid: Vec<bool>,
    /// Positions skipped since the batch before.
    pub skipped: Vec<u64>,
}

/// Where everything of a batch goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The images.
    pub images: Images,
    /// The class indices.
    pub targets: Span,
    /// End of each image, in bytes from the start; piece `i` starts where `i − 1` ends.
    pub ends: Vec<usize>,
    /// Bytes in all.
    pub bytes: usize,
}

impl Plan {
    /// Lays out a batch of images of the given (height, width).
    pub fn new(sizes: &[(u32, u32)], dtype: Dtype, layout: Layout) -> Plan {
        let mut end = 0;
        let ends: Vec<usize> = sizes
            .iter()
            .map(|&(h, w)| {
                end += h as usize * w as usize * 3 * dtype.bytes();
                end
            })
            .collect();
        let span = |count: Option<usize>, (h, w): (u32, u32), offset: usize| {
            let (h, w) = (h as usize, w as usize);
            let mut shape = vec![3, h, w];
            let mut strides = match layout {
                Layout::Nchw => vec![h * w, w, 1],
                Layout::ChannelsLast => vec![1, w * 3, 3],
            };
            if let Some(count) = count {
                shape.insert(0, count);
                strides.insert(0, h * w * 3);
            }
            Span { dtype, shape, strides, offset }
        };
        let images = if sizes.windows(2).all(|pair| pair[0] == pair[1]) {
            Images::Stacked(span(Some(sizes.len()), sizes.first().copied().unwrap_or((0, 0)), 0))
        } else {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            Images::Ragged(sizes.iter().zip(starts).map(|(&size, at)| span(None, size, at)).collect())
        };
        let offset = end.next_multiple_of(FIELD_ALIGN);
        let targets = Span { dtype: Dtype::Int64, shape: vec![sizes.len()], strides: vec![1], offset };
        Plan { images, targets, ends, bytes: offset + sizes.len() * 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sizes_stack_and_others_do_not() {
        let plan = Plan::new(&[(2, 3), (2, 3)], Dtype::Float32, Layout::Nchw);
        assert_eq!(plan.ends, [72, 144]);
        assert_eq!(plan.targets.offset, 256);
        assert_eq!(plan.bytes, 256 + 16);
        let Images::Stacked(span) = plan.images else { panic!("stacked") };
        assert_eq!((span.shape, span.strides), (vec![2, 3, 2, 3], vec![18, 6, 3, 1]));
        let plan = Plan::new(&[(2, 3), (1, 3)], Dtype::Uint8, Layout::ChannelsLast);
        let Images::Ragged(spans) = plan.images else { panic!("ragged") };
        assert_eq!((spans[1].offset, &spans[1].strides[..]), (18, &[1, 9, 3][..]));
    }
}
