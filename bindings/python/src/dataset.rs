//! An opened image folder.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_engine::storage;
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
