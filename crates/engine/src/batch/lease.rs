//! Memory lent to a job: it goes back to where it came from when the last handle is dropped.

use std::fmt;
use std::os::fd::BorrowedFd;

use forebay_arena::Buffer;

type Return = Box<dyn FnOnce(Buffer) + Send + Sync>;

/// A slot in the hands of a job.
pub struct Lease {
    buffer: Option<Buffer>,
    back: Option<Return>,
    pid: u32,
}

impl Lease {
    /// Lends `buffer`; `back` gets it when the lease ends. Without `back` it is simply freed.
    pub fn new(buffer: Buffer, back: Option<Return>) -> Self {
        Lease { buffer: Some(buffer), back, pid: std::process::id() }
    }

    /// Number of the slot, where it is one that another process maps.
    pub fn slot(&self) -> Option<u64> {
        self.buffer.as_ref()?.number()
    }

    /// The descriptor to pass to that process.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.buffer.as_ref()?.descriptor()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }

    /// Address of the first byte. The job may write: the memory is its own until the lease ends.
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ref().map_or(std::ptr::null_mut(), Buffer::as_ptr)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("bytes", &self.bytes().len()).field("pid", &self.pid).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child the locks behind `back` may be held by threads that do not exist there.
        if std::process::id() != self.pid {
            std::mem::forget((self.back.take(), self.buffer.take()));
        } else if let (Some(back), Some(buffer)) = (self.back.take(), self.buffer.take()) {
            back(buffer);
        }
    }
}
