//! Aligned, zeroed memory of a fixed size, made once and reused: from the heap, or a slot to lend.
#![expect(unsafe_code, reason = "allocation with a chosen alignment")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use thiserror::Error;

use crate::slot::Slot;
use crate::{Room, Short};

/// A cache line and the widest vector register; DLPack asks for 256 at most.
const ALIGN: usize = 256;

/// One block of batch memory.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    origin: Origin,
}

/// What the memory goes back to.
#[derive(Debug)]
enum Origin {
    Heap(Layout),
    Slot(Slot),
}

/// Why there is no lendable buffer.
#[derive(Debug, Error)]
pub enum Refused {
    /// It was not tried: too little memory would be left.
    #[error(transparent)]
    Short(#[from] Short),
    /// It was tried, and the kernel said no.
    #[error("the kernel gave no memory file of {bytes} B")]
    Kernel {
        /// The size asked for.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

// SAFETY: a Buffer owns its memory alone, like a Vec<u8>. Other processes only read a lent one, and when
// they may is between them and the lender: what they see is no memory of this program.
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
        Buffer { start, bytes: layout.size(), origin: Origin::Heap(layout) }
    }

    /// Zeroed memory of `bytes` bytes, rounded up to whole pages; other processes can map but not change it.
    ///
    /// Nothing is checked: beyond free memory this does not fail, it gets processes killed. Where the sum
    /// of all buffers is not known to fit, use [`afford`](Self::afford).
    pub fn lendable(bytes: usize) -> io::Result<Self> {
        let slot = Slot::make(bytes)?;
        let pages = slot.pages();
        Ok(Buffer { start: pages.start(), bytes: pages.bytes(), origin: Origin::Slot(slot) })
    }

    /// A [`lendable`](Self::lendable) buffer, if machine and cgroups have room for it now.
    ///
    /// Two callers at once may find the same room: a program's own budget still has to bound their sum.
    pub fn afford(bytes: usize) -> Result<Self, Refused> {
        Room::now().check(bytes as u64)?;
        Self::lendable(bytes).map_err(|source| Refused::Kernel { bytes, source })
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// What to send to a borrower, who makes a [`View`](crate::View) of it; `None` for heap memory.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.slot().map(Slot::descriptor)
    }

    /// A number that no other lendable buffer of this process has or had; `None` for heap memory.
    pub fn number(&self) -> Option<u64> {
        self.slot().map(Slot::number)
    }

    fn slot(&self) -> Option<&Slot> {
        match &self.origin {
            Origin::Heap(_) => None,
            Origin::Slot(slot) => Some(slot),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised, `bytes` long, and lives as long as `origin`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Origin::Heap(layout) = self.origin {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;

    #[test]
    fn is_aligned_zeroed_and_writable() {
        let pages = 3 * page_size();
        let lendable = Buffer::lendable(pages - 1).expect("a small slot");
        for (mut buffer, length) in [(Buffer::new(1000), 1000), (lendable, pages)] {
            assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
            assert!(buffer.iter().all(|&b| b == 0));
            buffer[length - 1] = 7;
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer[length - 1], 7);
        }
    }

    #[test]
    fn only_lendable_memory_has_a_descriptor_and_every_one_its_own_number() {
        let heap = Buffer::new(1);
        assert!(heap.descriptor().is_none() && heap.number().is_none());
        let first = Buffer::lendable(1).expect("a small slot");
        assert!(first.descriptor().is_some());
        let before = first.number();
        drop(first);
        assert!(Buffer::lendable(1).expect("a small slot").number() > before);
    }

    #[test]
    fn an_empty_lendable_buffer_is_one_page() {
        assert_eq!(Buffer::lendable(0).expect("a small slot").len(), page_size());
    }

    #[test]
    fn a_refusal_says_who_refused() {
        assert!(Buffer::afford(1).is_ok());
        // Neither asks the kernel for anything.
        assert!(matches!(Buffer::afford(usize::MAX), Err(Refused::Short(_))));
        assert!(Buffer::lendable(usize::MAX).is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput));
    }
}
