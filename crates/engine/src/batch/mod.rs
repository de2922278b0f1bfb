//! Augmented samples to a finished batch in lent memory.
//!
//! A sample is a record of fields, a batch a column for each of them. A slot holds all columns; each value is
//! a piece of it that some thread writes.

mod finish;
mod lease;

pub use finish::Finisher;
pub use lease::Lease;

use std::sync::Arc;

use forebay_recipe::{Column, CopyName, Field, Layout, Span, Values};

use crate::cache::{Decoded, Kept};
use crate::decode::{Picture, Pixels};

/// Columns start at multiples of this inside a slot.
pub(crate) const COLUMN_ALIGN: usize = 256;

/// One field of an augmented sample.
#[derive(Debug)]
#[non_exhaustive]
pub enum Value {
    /// RGB pixels.
    Image(Pixels),
    /// The decoded form, which is kept: RGB pixels where it is served, any where copies are made of it.
    Kept(Image),
    /// A class index.
    Class(i64),
}

/// A decoded sample that the cache has too.
#[derive(Debug)]
pub struct Image(Arc<Kept>);

impl Image {
    pub(crate) fn new(kept: Arc<Kept>) -> Self {
        Image(kept)
    }

    fn pixels(&self) -> Option<&Pixels> {
        match &self.decoded().picture {
            Picture::Rgb(pixels) => Some(pixels),
            Picture::Planes(_) => None,
        }
    }

    pub(crate) fn decoded(&self) -> &Decoded {
        match &*self.0 {
            Kept::Decoded(decoded) => decoded,
            Kept::Encoded(_) => unreachable!("only pixels are served"),
        }
    }
}

impl Value {
    /// The pixels of an image.
    pub fn pixels(&self) -> Option<&Pixels> {
        match self {
            Value::Image(pixels) => Some(pixels),
            Value::Kept(image) => image.pixels(),
            Value::Class(_) => None,
        }
    }

    /// Bytes held for it.
    pub fn capacity(&self) -> usize {
        match self {
            Value::Image(pixels) => pixels.capacity(),
            Value::Kept(image) => image.decoded().picture.capacity(),
            Value::Class(_) => 0,
        }
    }

    /// Shape of the finished value.
    pub fn shape(&self) -> Vec<usize> {
        self.pixels().map_or_else(Vec::new, |pixels| {
            vec![3, pixels.rect().height as usize, pixels.rect().width as usize]
        })
    }
}

/// A finished batch; its memory is lent until the last handle is gone.
#[derive(Debug)]
pub struct Batch {
    /// The memory.
    pub lease: Arc<Lease>,
    /// The fields, in the order of the recipe's.
    pub columns: Vec<Column>,
    /// Positions in the epoch's order.
    pub positions: Vec<u64>,
    /// The sample at each.
    pub samples: Vec<u64>,
    /// False where a neighbour stands in for a sample that failed.
    pub valid: Vec<bool>,
    /// The copy of each.
    pub names: Vec<CopyName>,
    /// Positions skipped since the batch before.
    pub skipped: Vec<u64>,
    /// Positions that other ranks are given in this step.
    pub others: Vec<u64>,
}

/// Where everything of a batch goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The fields.
    pub columns: Vec<Column>,
    /// End of each value in bytes, column by column, sample by sample. A value lies at the end of its piece,
    /// which starts where the piece before ends.
    pub ends: Vec<usize>,
    /// Bytes in all.
    pub bytes: usize,
}

impl Plan {
    /// Lays out a batch; `shape` says the shape of a field (first) of a sample (second).
    pub fn new(fields: &[Field], samples: usize, shape: impl Fn(usize, usize) -> Vec<usize>) -> Plan {
        let mut end: usize = 0;
        let mut ends = Vec::with_capacity(fields.len() * samples);
        let mut columns = Vec::with_capacity(fields.len());
        for (number, field) in fields.iter().enumerate() {
            end = end.next_multiple_of(COLUMN_ALIGN);
            let spans: Vec<Span> = (0..samples)
                .map(|sample| {
                    let shape = shape(number, sample);
                    let span = Span {
                        dtype: field.dtype,
                        strides: strides(&shape, field.layout),
                        offset: end,
                        shape,
                    };
                    end += span.shape.iter().product::<usize>() * field.dtype.bytes();
                    ends.push(end);
                    span
                })
                .collect();
            let values = match &spans[..] {
                [first, others @ ..] if others.iter().all(|span| span.shape == first.shape) => {
                    Values::Stacked(stacked(first, samples))
                }
                // A rank may be left without a sample in the last step.
                [] => {
                    let shape = field.shape.clone().unwrap_or_else(|| vec![3, 0, 0]);
                    let strides = strides(&shape, field.layout);
                    Values::Stacked(stacked(&Span { dtype: field.dtype, strides, offset: end, shape }, 0))
                }
                _ => Values::Ragged(spans),
            };
            columns.push(Column { field: field.clone(), values });
        }
        Plan { columns, ends, bytes: end }
    }
}

fn strides(shape: &[usize], layout: Layout) -> Vec<usize> {
    match (layout, shape) {
        (Layout::ChannelsLast, &[channels, _, width]) => vec![1, width * channels, channels],
        _ => (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect(),
    }
}

/// `samples` values like `first`, one behind the other.
fn stacked(first: &Span, samples: usize) -> Span {
    let mut span = first.clone();
    span.strides.insert(0, first.shape.iter().product());
    span.shape.insert(0, samples);
    span
}

#[cfg(test)]
mod tests {
    use forebay_recipe::{Dtype, Kind};

    use super::*;

    fn fields(dtype: Dtype, layout: Layout) -> [Field; 2] {
        let image = Field { name: "image".into(), kind: Kind::Image, dtype, shape: None, layout };
        let target = Field {
            name: "target".into(),
            kind: Kind::Class,
            dtype: Dtype::Int64,
            shape: Some(vec![]),
            layout: Layout::Nchw,
        };
        [image, target]
    }

    fn plan(dtype: Dtype, layout: Layout, sizes: &[(usize, usize)]) -> Plan {
        Plan::new(&fields(dtype, layout), sizes.len(), |field, sample| match field {
            0 => vec![3, sizes[sample].0, sizes[sample].1],
            _ => vec![],
        })
    }

    #[test]
    fn equal_shapes_stack_and_others_do_not() {
        let plan = plan(Dtype::Float32, Layout::Nchw, &[(2, 3), (2, 3)]);
        assert_eq!(plan.ends, [72, 144, 264, 272]);
        assert_eq!(plan.bytes, 272);
        let [Column { values: Values::Stacked(image), .. }, Column { values: Values::Stacked(target), .. }] =
            &plan.columns[..]
        else {
            panic!("stacked")
        };
        assert_eq!((&image.shape[..], &image.strides[..]), (&[2, 3, 2, 3][..], &[18, 6, 3, 1][..]));
        assert_eq!((&target.shape[..], &target.strides[..], target.offset), (&[2][..], &[1][..], 256));
    }

    #[test]
    fn ragged_values_lie_one_behind_the_other() {
        let plan = plan(Dtype::Uint8, Layout::ChannelsLast, &[(2, 3), (1, 3)]);
        let Values::Ragged(spans) = &plan.columns[0].values else { panic!("ragged") };
        assert_eq!((spans[1].offset, &spans[1].strides[..]), (18, &[1, 9, 3][..]));
        assert_eq!(plan.ends, [18, 27, 264, 272]);
    }
}
