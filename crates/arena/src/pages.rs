//! Whole pages mapped from a descriptor, unmapped when dropped: what a slot and a view have in common.
#![expect(unsafe_code, reason = "mapping, advising and unmapping memory")]

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munlock, munmap};
use rustix::param::page_size;

/// A readable and writable mapping that nobody else unmaps.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a Pages owns its range of addresses alone; who reads and writes there is its owner's affair.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` gives an address, and advice that is safe from any thread.
unsafe impl Sync for Pages {}

/// `bytes` rounded up to whole pages, one page at least.
pub(crate) fn whole(bytes: usize) -> io::Result<usize> {
    let rounded = bytes.max(1).checked_next_multiple_of(page_size());
    rounded.filter(|&rounded| rounded <= isize::MAX as usize).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} B do not fit the address space"))
    })
}

impl Pages {
    /// Maps the first `bytes` (whole pages) of `file`, to be written as `sharing` says.
    pub(crate) fn map(file: impl AsFd, bytes: usize, sharing: MapFlags) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without an address or MAP_FIXED the kernel picks a range that nothing else uses.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, sharing, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, bytes })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The addresses of these pages.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr().addr();
        start..start + self.bytes
    }

    /// Faults every page in, for reading or for writing; `false` where the kernel (before 5.14) cannot.
    pub(crate) fn populate(&self, advice: Advice) -> io::Result<bool> {
        // SAFETY: the range is ours, and populating changes no byte.
        match unsafe { madvise(self.start.as_ptr().cast(), self.bytes, advice) } {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::INVAL) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the kernel have the pages, even where this process locks all it maps.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        // SAFETY: the range is ours, and unlocking changes no byte.
        Ok(unsafe { munlock(self.start.as_ptr().cast(), self.bytes) }?)
    }

    /// Gives the pages at these addresses up; the next access finds what the file holds.
    ///
    /// # Safety
    /// For a private mapping, nobody may hold a reference into the range: its bytes change.
    pub(crate) unsafe fn give_up(&self, range: Range<usize>) -> io::Result<()> {
        assert!(
            self.range().start <= range.start && range.end <= self.range().end,
            "these pages are not ours"
        );
        let start = self.start.as_ptr().with_addr(range.start);
        // SAFETY: the range is ours, and the caller promises that nobody looks.
        Ok(unsafe { madvise(start.cast(), range.len(), Advice::LinuxDontNeed) }?)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nobody borrows from an owner that is being dropped.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// How often this process holds the memory file with this inode, as a descriptor or a mapping. Tests run
/// side by side, so numbers of descriptors and addresses are reused at any time; inodes are not.
#[cfg(test)]
pub(crate) fn holds(inode: u64) -> usize {
    use std::os::unix::fs::MetadataExt;

    let memory = |name: &str| name.starts_with("/memfd:");
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten().filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|link| memory(&link.to_string_lossy()))
            && std::fs::metadata(entry.path()).is_ok_and(|found| found.ino() == inode)
    });
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    let mappings = maps.lines().filter(|line| {
        let mut fields = line.split_whitespace().skip(4);
        fields.next() == Some(&inode.to_string()) && fields.next().is_some_and(memory)
    });
    descriptors.count() + mappings.count()
}
