//! A batch, from this process's engine or lent by a daemon.

use std::sync::Arc;

use forebay_engine::batch;
use forebay_recipe::{Column, CopyName, Kind, Names, Span, Values};
use forebay_wire::client;
use pyo3::prelude::*;

use crate::dlpack::Tensor;

/// Whose memory a batch lies in.
#[derive(Clone)]
pub(crate) enum Memory {
    Own(Arc<batch::Lease>),
    Lent(Arc<client::Lease>),
}

impl Memory {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match self {
            Memory::Own(lease) => lease.as_ptr(),
            Memory::Lent(lease) => lease.as_ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::Own(lease) => lease.bytes().len(),
            Memory::Lent(lease) => lease.len(),
        }
    }
}

/// A finished batch.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Batch {
    memory: Memory,
    columns: Vec<Column>,
    #[pyo3(get)]
    pub(crate) positions: Vec<u64>,
    #[pyo3(get)]
    samples: Vec<u64>,
    #[pyo3(get)]
    valid: Vec<bool>,
    names: Vec<CopyName>,
    #[pyo3(get)]
    pub(crate) skipped: Vec<u64>,
    #[pyo3(get)]
    pub(crate) others: Vec<u64>,
}

impl From<batch::Batch> for Batch {
    fn from(batch: batch::Batch) -> Self {
        let batch::Batch { lease, columns, positions, samples, valid, names, skipped, others } = batch;
        Batch { memory: Memory::Own(lease), columns, positions, samples, valid, names, skipped, others }
    }
}

impl From<client::Batch> for Batch {
    fn from(batch: client::Batch) -> Self {
        let client::Batch { lease, columns, positions, samples, valid, names, skipped, others } = batch;
        Batch { memory: Memory::Lent(lease), columns, positions, samples, valid, names, skipped, others }
    }
}

#[pymethods]
impl Batch {
    /// (name, kind, tensor, or a list of tensors where shapes differ) of every field.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<(&str, &'static str, Bound<'py, PyAny>)>> {
        let tensor = |span: &Span| Tensor::new(self.memory.clone(), span.clone());
        let columns = self.columns.iter().map(|Column { field, values }| {
            let values = match values {
                Values::Stacked(span) => tensor(span).into_pyobject(py)?.into_any(),
                Values::Ragged(spans) => {
                    spans.iter().map(tensor).collect::<Vec<_>>().into_pyobject(py)?.into_any()
                }
            };
            let kind = match field.kind {
                Kind::Image => "image",
                Kind::Class => "class",
                _ => "other",
            };
            Ok((field.name.as_str(), kind, values))
        });
        columns.collect()
    }

    /// Seed of its copies, generation of the first, how far the others lie behind that, and how often each sample
    /// came before; the last two are empty where all are 0.
    fn names(&self) -> (u64, u64, Vec<u64>, Vec<u64>) {
        let Names { seed, generation, copies, occurrences } = Names::of(&self.names);
        (seed, generation, copies, occurrences)
    }

    fn __len__(&self) -> usize {
        self.positions.len()
    }
}
