//! Engine errors as the package's own exception classes, which are plain Python and pickle.

use forebay_engine::Error;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Turns an error into the exception class of its variant.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let module = py.import("forebay.errors")?;
        let text = error.to_string();
        let make = |class: &str, args: Bound<'_, PyTuple>| -> PyResult<PyErr> {
            Ok(PyErr::from_value(module.getattr(class)?.call1(args)?))
        };
        let class = match &error {
            Error::Sample { sample, path, stage, fault } => {
                let class = match fault {
                    forebay_engine::Fault::Changed { .. } => "SampleChangedError",
                    _ => "SampleError",
                };
                let path = path.clone().into_os_string();
                let args = (text, *sample, path, stage.to_string(), fault.to_string());
                return make(class, args.into_pyobject(py)?);
            }
            Error::NotFound(_) => "DatasetNotFoundError",
            Error::Io { .. } => "StorageError",
            Error::Newer { .. } => "VersionError",
            Error::Budget(_) => "BudgetError",
            Error::Ragged { .. } => "RaggedBatchError",
            Error::Recipe(_) => "RecipeError",
            Error::Forked => "ForkError",
            Error::Closed => "ClosedError",
            Error::Invalid(_) => "InvalidError",
            _ => "ForebayError",
        };
        make(class, (text,).into_pyobject(py)?)
    };
    build().unwrap_or_else(|problem| problem)
}
