//! An opened image folder, folders one behind the other, and which samples of them are taken.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_engine::{Error, storage};
use forebay_policy::{self as policy, Weights};
use pyo3::prelude::*;

use crate::error::raise;

/// A scanned or mapped image folder.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Folder(pub(crate) Arc<storage::Folder>);

#[pymethods]
impl Folder {
    #[new]
    #[pyo3(signature = (root, progress=None))]
    fn open(py: Python<'_>, root: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let report = |found: u64| {
            if let Some(progress) = &progress {
                // A progress bar that fails must not end the scan.
                Python::attach(|py| progress.call1(py, (found,)).map(|_| ()).unwrap_or(()));
            }
        };
        let folder = py.detach(|| storage::Folder::open(&root, threads, &report));
        Ok(Folder(Arc::new(folder.map_err(|e| raise(py, e))?)))
    }

    fn __len__(&self) -> usize {
        self.0.len() as usize
    }

    #[getter]
    fn root(&self) -> PathBuf {
        self.0.root().to_path_buf()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.0.fingerprint()
    }

    fn classes(&self) -> Vec<&OsStr> {
        self.0.classes().map(OsStr::from_bytes).collect()
    }

    fn targets(&self) -> Vec<u32> {
        (0..self.0.len()).map(|sample| self.0.target(sample)).collect()
    }

    /// The file of a sample, relative to the root.
    fn name(&self, sample: u64) -> PyResult<&OsStr> {
        if sample >= self.0.len() {
            return Err(pyo3::exceptions::PyIndexError::new_err("sample index out of range"));
        }
        Ok(OsStr::from_bytes(self.0.name(sample)))
    }
}

/// Folders one behind the other.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Dataset(pub(crate) Arc<storage::Dataset>);

#[pymethods]
impl Dataset {
    #[new]
    fn build(py: Python<'_>, folders: Vec<PyRef<'_, Folder>>) -> PyResult<Self> {
        let parts = folders.iter().map(|folder| folder.0.clone()).collect();
        Ok(Dataset(Arc::new(storage::Dataset::build(parts).map_err(|e| raise(py, e))?)))
    }

    fn __len__(&self) -> usize {
        self.0.len() as usize
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.0.fingerprint()
    }
}

/// Which samples a job takes in an epoch.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Picks(pub(crate) policy::Picks);

#[pymethods]
impl Picks {
    /// All samples, or the given ones of `n`; where `ordered`, in their order.
    #[new]
    #[pyo3(signature = (samples=None, n=0, ordered=false))]
    fn of(py: Python<'_>, samples: Option<Vec<u32>>, n: u64, ordered: bool) -> PyResult<Self> {
        let Some(samples) = samples else { return Ok(Picks(policy::Picks::All)) };
        let many = || raise(py, Error::Invalid(format!("{n} samples are too many to pick from")));
        let n = u32::try_from(n).map_err(|_| many())?;
        let picks = py.detach(|| policy::Picks::of(samples, n, ordered));
        Ok(Picks(picks.map_err(|e| raise(py, Error::Invalid(e.to_string())))?))
    }

    /// A draw for every epoch, by weights of the `n` samples.
    #[staticmethod]
    fn weighted(
        py: Python<'_>,
        weights: Vec<f64>,
        samples: u64,
        replacement: bool,
        n: u64,
    ) -> PyResult<Self> {
        let picks = policy::Picks::Weighted(Arc::new(Weights { weights, samples, replacement }));
        picks.check(n).map_err(|e| raise(py, Error::Invalid(e.to_string())))?;
        Ok(Picks(picks))
    }

    /// Whether every sample comes once at most, in an order that is the loader's own.
    fn is_set(&self) -> bool {
        self.0.subset().is_some()
    }

    /// The sample at each position of an epoch over `n`.
    fn sequence(&self, py: Python<'_>, n: u64, shuffle: bool, seed: u64, epoch: u64) -> Vec<u64> {
        py.detach(|| {
            let sequence = policy::Sequence::new(&self.0, n, shuffle, seed, epoch);
            (0..sequence.len()).map(|position| sequence.at(position).0).collect()
        })
    }
}
