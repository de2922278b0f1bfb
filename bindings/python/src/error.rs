//! Engine errors as the package's own exception classes, which are plain Python and pickle.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use forebay_engine::Error;
use forebay_wire::FaultKind;
use forebay_wire::client;
use pyo3::prelude::*;

/// An exception of the package: its class, its message, and the sample that it is about.
fn make(py: Python<'_>, class: &str, text: String, sample: Option<(u64, OsString, String, String)>) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let class = py.import("forebay.errors")?.getattr(class)?;
        let error = match sample {
            Some((sample, path, stage, cause)) => class.call1((text, sample, path, stage, cause)),
            None => class.call1((text,)),
        };
        error.map(PyErr::from_value)
    };
    build().unwrap_or_else(|problem| problem)
}

/// Turns an error into the exception class of its variant.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    let class = match error {
        Error::Sample { sample, path, stage, fault } => {
            let changed = matches!(fault, forebay_engine::Fault::Changed { .. });
            let class = if changed { "SampleChangedError" } else { "SampleError" };
            let sample = (sample, path.into_os_string(), stage.to_string(), fault.to_string());
            return make(py, class, text, Some(sample));
        }
        Error::NotFound(_) => "DatasetNotFoundError",
        Error::Io { .. } | Error::Taken { .. } => "StorageError",
        Error::Newer { .. } => "VersionError",
        Error::Budget(_) => "BudgetError",
        Error::Ragged { .. } => "RaggedBatchError",
        Error::Recipe(_) => "RecipeError",
        Error::Forked => "ForkError",
        Error::Closed => "ClosedError",
        Error::Invalid(_) => "InvalidError",
        _ => "ForebayError",
    };
    make(py, class, text, None)
}

/// The same for what a daemon says, or no longer says.
pub(crate) fn raise_wire(py: Python<'_>, error: client::Error) -> PyErr {
    let text = error.to_string();
    let client::Error::Fault(fault) = error else { return make(py, "DaemonError", text, None) };
    let class = match fault.kind() {
        FaultKind::Sample => "SampleError",
        FaultKind::Changed => "SampleChangedError",
        FaultKind::NotFound => "DatasetNotFoundError",
        FaultKind::Storage => "StorageError",
        FaultKind::Version => "VersionError",
        FaultKind::Budget => "BudgetError",
        FaultKind::Ragged => "RaggedBatchError",
        FaultKind::Recipe => "RecipeError",
        FaultKind::Closed => "ClosedError",
        FaultKind::Invalid => "InvalidError",
        FaultKind::Taken => "JobNameError",
        FaultKind::Draining => "DaemonError",
        FaultKind::Other => "ForebayError",
    };
    let sample = fault.failure.map(|f| (f.sample, OsString::from_vec(f.path), f.stage, f.cause));
    make(py, class, text, sample)
}
