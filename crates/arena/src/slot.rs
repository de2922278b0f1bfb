//! Batch memory that other processes can see: one memory file for each slot.
//!
//! A file for each slot, and not one for all, so that a borrower who keeps its descriptor pins that slot
//! only. The order of the steps matters: the seals forbid every later writable mapping, so ours is made
//! before them; and pages are touched before anybody depends on them, since a memory file has no limit and
//! a page that cannot be had later is a SIGBUS or a killed process instead of an error.
#![expect(unsafe_code, reason = "touching mapped pages")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};
use rustix::param::page_size;

use crate::pages::{Pages, whole};

/// As in `/proc/self/maps`, so that `pmap` and `lsof` show whose memory it is.
const NAME: &str = "forebay-slot";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Pages that this process writes and that whoever has the descriptor can only read.
#[derive(Debug)]
pub(crate) struct Slot {
    pages: Pages,
    file: OwnedFd,
    number: u64,
}

impl Slot {
    /// A zeroed slot of `bytes` bytes or a little more, every page of it in memory.
    pub(crate) fn make(bytes: usize) -> io::Result<Self> {
        let bytes = whole(bytes)?;
        let file = create()?;
        ftruncate(&file, bytes as u64)?;
        let pages = Pages::map(&file, bytes, MapFlags::SHARED)?;
        if !pages.populate(Advice::LinuxPopulateWrite)? {
            touch(&pages);
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok(Slot { pages, file, number: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 the flag is unknown.
        Err(Errno::INVAL) => memfd_create(NAME, flags),
        made => made,
    };
    Ok(file?)
}

/// Populates by hand, without the clean error that `MADV_POPULATE_WRITE` gives.
fn touch(pages: &Pages) {
    for offset in (0..pages.bytes()).step_by(page_size()) {
        // SAFETY: inside the mapping, which is fresh: nobody else has its address, and it holds zeros.
        unsafe { pages.start().add(offset).write_volatile(0) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use rustix::fs::{FallocateFlags, fallocate, fcntl_get_seals, fstat};
    use rustix::mm::{MprotectFlags, mprotect};

    use super::*;
    use crate::pages::holds;

    #[test]
    fn a_borrower_of_the_descriptor_can_neither_write_nor_resize_nor_punch() {
        let slot = Slot::make(3 * page_size()).expect("a small slot");
        let path = format!("/proc/self/fd/{}", slot.file.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).expect("a second descriptor");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for file in [slot.file.as_fd(), again.as_fd()] {
            let length = 3 * page_size() as u64;
            assert_eq!(
                Pages::map(file, page_size(), MapFlags::SHARED).map_err(|e| e.kind()).err(),
                Some(io::ErrorKind::PermissionDenied)
            );
            assert_eq!(ftruncate(file, 0), Err(Errno::PERM));
            assert_eq!(ftruncate(file, length + 1), Err(Errno::PERM));
            assert_eq!(rustix::io::write(file, b"x"), Err(Errno::PERM));
            assert_eq!(fallocate(file, punch, 0, length), Err(Errno::PERM));
            assert_eq!(fallocate(file, FallocateFlags::empty(), 0, length * 2), Err(Errno::PERM));
            assert_eq!(fcntl_add_seals(file, SealFlags::WRITE), Err(Errno::PERM));
        }
        assert!(fcntl_get_seals(&slot.file).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE)));
    }

    #[test]
    fn a_shared_mapping_of_a_borrower_stays_read_only() {
        let slot = Slot::make(1).expect("a small slot");
        let (bytes, read) = (slot.pages.bytes(), rustix::mm::ProtFlags::READ);
        // SAFETY: a fresh range, unmapped below.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, read, MapFlags::SHARED, &slot.file, 0) };
        let start = start.expect("reading is allowed");
        // SAFETY: the range mapped above; nobody else knows it.
        let widened = unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) };
        assert_eq!(widened, Err(Errno::ACCESS));
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(start, bytes) }.expect("it was mapped");
    }

    #[test]
    fn all_of_it_is_in_memory_and_none_of_it_in_dev_shm() {
        let slot = Slot::make(100 * page_size()).expect("a small slot");
        let found = fstat(&slot.file).expect("an open file");
        assert_eq!(found.st_size as usize, slot.pages.bytes());
        assert_eq!(found.st_blocks as usize * 512, slot.pages.bytes());
        let link = std::fs::read_link(format!("/proc/self/fd/{}", slot.file.as_raw_fd())).expect("procfs");
        assert_eq!(link.to_string_lossy(), "/memfd:forebay-slot (deleted)");
        let shm = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        assert!(shm.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("forebay")));
    }

    #[test]
    fn pages_touched_by_hand_are_all_there() {
        let file = create().expect("a memory file");
        ftruncate(&file, 10 * page_size() as u64).expect("not sealed yet");
        let pages = Pages::map(&file, 10 * page_size(), MapFlags::SHARED).expect("not sealed yet");
        assert_eq!(fstat(&file).expect("an open file").st_blocks, 0);
        touch(&pages);
        assert_eq!(fstat(&file).expect("an open file").st_blocks as usize * 512, pages.bytes());
    }

    #[test]
    fn nothing_is_left_after_a_drop() {
        let slot = Slot::make(1).expect("a small slot");
        let inode = fstat(&slot.file).expect("an open file").st_ino;
        assert_eq!(holds(inode), 2);
        drop(slot);
        assert_eq!(holds(inode), 0);
    }
}
