//! Aligned, zeroed memory of a fixed size, made once and reused.
#![expect(unsafe_code, reason = "allocation with a chosen alignment")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A cache line and the widest vector register; DLPack asks for 256 at most.
const ALIGN: usize = 256;

/// One block of batch memory.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a Buffer owns its memory alone, like a Vec<u8>.
unsafe impl Send for Buffer {}
// SAFETY: shared access is read-only through Deref.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed memory of `bytes` bytes, aligned for vector stores.
    pub fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).expect("batch sizes fit the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { start, layout }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised and `layout.size()` long.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_zeroed_and_writable() {
        let mut buffer = Buffer::new(1000);
        assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
        assert!(buffer.iter().all(|&b| b == 0));
        buffer[999] = 7;
        assert_eq!(buffer.len(), 1000);
        assert_eq!(buffer[999], 7);
    }
}
