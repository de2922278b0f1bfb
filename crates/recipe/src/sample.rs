//! The vocabulary of samples: a sample is a record of named fields, each with a kind, a dtype and a
//! shape that may vary from sample to sample.

use serde::{Deserialize, Serialize};

/// What a field means, and so which steps act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Pixels: geometric and colour steps act on it.
    Image,
    /// A class index: no step acts on it.
    Class,
}

/// Element type of a field in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Dtype {
    /// Unsigned byte.
    Uint8,
    /// Signed 64-bit integer.
    Int64,
    /// IEEE half.
    Float16,
    /// Upper half of a float32.
    Bfloat16,
    /// IEEE single.
    Float32,
}

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::Uint8 => 1,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Float32 => 4,
            Dtype::Int64 => 8,
        }
    }

    /// The name PyTorch and NumPy use.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Uint8 => "uint8",
            Dtype::Int64 => "int64",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float32 => "float32",
        }
    }
}

/// How an image lies in a batch; the logical shape is NCHW either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Planes one after the other.
    #[default]
    Nchw,
    /// Channels of one pixel together (PyTorch's `channels_last`).
    ChannelsLast,
}

/// One named field of a sample as a batch carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Name, such as `image` or `target`.
    pub name: String,
    /// What it means.
    pub kind: Kind,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one sample, `None` where it varies.
    pub shape: Option<Vec<usize>>,
    /// How it lies in memory.
    pub layout: Layout,
}

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

/// The values of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// One tensor.
    Stacked(Span),
    /// One tensor per sample, because shapes differ.
    Ragged(Vec<Span>),
}

/// One field of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// What it is.
    pub field: Field,
    /// Where it is.
    pub values: Values,
}
