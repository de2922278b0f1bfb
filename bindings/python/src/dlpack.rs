//! CPU memory as DLPack, so that torch, NumPy and JAX take it without a copy.
//!
//! The deleter may run without the GIL, on any thread, at interpreter exit, and in forked children. It only
//! drops an `Arc` of a lease, which knows what to do in each case.
#![expect(unsafe_code, reason = "C structs handed to other libraries")]

use std::ffi::{CStr, c_void};

use forebay_recipe::{Dtype, Span};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::batch::Memory;

const CPU: i32 = 1;
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What a managed tensor keeps alive.
struct Context {
    _memory: Memory,
    dims: Vec<i64>,
}

/// A field of a batch.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Tensor {
    memory: Memory,
    span: Span,
}

impl Tensor {
    pub(crate) fn new(memory: Memory, span: Span) -> Self {
        let elements: usize = span.shape.iter().product();
        assert!(span.offset + elements * span.dtype.bytes() <= memory.len(), "the field lies in the slot");
        Tensor { memory, span }
    }

    fn dl_tensor(&self, context: &mut Context) -> DlTensor {
        let (code, bits) = match self.span.dtype {
            Dtype::Uint8 => (1, 8),
            Dtype::Int64 => (0, 64),
            Dtype::Float16 => (2, 16),
            Dtype::Bfloat16 => (4, 16),
            _ => (2, 32),
        };
        let ndim = self.span.shape.len();
        let dims = context.dims.as_mut_ptr();
        DlTensor {
            // The offset is folded into the pointer: consumers have ignored `byte_offset` before.
            // SAFETY: the field lies inside the memory (checked in `new`).
            data: unsafe { self.memory.as_ptr().add(self.span.offset) }.cast(),
            device: Device { kind: CPU, id: 0 },
            ndim: ndim as i32,
            dtype: DataType { code, bits, lanes: 1 },
            shape: dims,
            // SAFETY: `dims` holds shape and strides, `ndim` each.
            strides: unsafe { dims.add(ndim) },
            byte_offset: 0,
        }
    }
}

#[pymethods]
impl Tensor {
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let refuse = |why: &str| Err(pyo3::exceptions::PyBufferError::new_err(why.to_string()));
        if stream.is_some() || dl_device.is_some_and(|(kind, _)| kind != CPU) {
            return refuse("a batch lives in CPU memory; move the tensor to the device afterwards");
        }
        if copy == Some(true) {
            return refuse("copy the tensor after taking it");
        }
        let dims = self.span.shape.iter().chain(&self.span.strides).map(|&d| d as i64).collect();
        let mut context = Box::new(Context { _memory: self.memory.clone(), dims });
        let tensor = self.dl_tensor(&mut context);
        let context = Box::into_raw(context).cast();
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let (pointer, name): (*mut c_void, _) = if versioned {
            let managed = ManagedVersioned {
                major: 1,
                minor: 0,
                context,
                deleter: Some(delete_versioned),
                flags: 0,
                tensor,
            };
            (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
        } else {
            let managed = Managed { tensor, context, deleter: Some(delete) };
            (Box::into_raw(Box::new(managed)).cast(), PLAIN)
        };
        // SAFETY: the capsule owns `pointer` until a consumer renames it; the destructor frees it otherwise.
        unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)))
        }
    }

    fn __dlpack_device__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (CPU, 0).into_pyobject(py)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.span.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.span.dtype.name()
    }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: DLPack calls this once with the pointer that was boxed in `__dlpack__`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: boxed there as well.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as in `delete`.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

/// Frees what no consumer took: a taken capsule has another name.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter passes the dying capsule; names are compared before pointers are used.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
