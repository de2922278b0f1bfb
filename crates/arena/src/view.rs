//! A borrower's sight of a lent buffer, in its own process.
//!
//! The mapping is private and writable: a framework may normalise in place, and neither lender nor other
//! borrowers see it. Pages that nobody wrote show the lender's next batch by themselves, at no cost; a
//! written page is a stale copy until [`View::clean`] drops it. So one view serves a slot for its whole
//! life, and a batch that is only read costs no page fault and no copy.
#![expect(unsafe_code, reason = "mapped memory as bytes")]

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FsWord, SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{Advice, MapFlags};

use crate::dirty::{Dirty, MOST, find};
use crate::pages::{Pages, whole};

/// `TMPFS_MAGIC`. Files of huge pages can be sealed too, but run out of pages in the middle of a write.
const TMPFS: FsWord = 0x0102_1994;

/// A private mapping of a buffer that another process lends.
#[derive(Debug)]
pub struct View {
    pages: Pages,
    bytes: usize,
}

impl View {
    /// Maps the first `bytes` of a lent buffer.
    ///
    /// The file must be sealed against shrinking, growing and writing: with a file that its maker can cut
    /// short, every access here would be a possible SIGBUS. The maker's own mapping still writes: the
    /// borrower looks at the bytes only while it holds the lease, and the lender writes only while nobody
    /// holds one.
    pub fn map(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let long = fstat(&file)?.st_size;
        if bytes == 0 || u64::try_from(long).unwrap_or(0) < bytes as u64 {
            return refuse(format!("a view of {bytes} B into a file of {long} B"));
        }
        if fstatfs(&file)?.f_type != TMPFS {
            return refuse("a lent file must be a memory file of ordinary pages".into());
        }
        let seals = fcntl_get_seals(&file)?;
        let unwritable = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
        if !unwritable || !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return refuse(format!(
                "a lent file must not shrink, grow or be written, but has the seals {seals:?}"
            ));
        }
        let pages = Pages::map(&file, whole(bytes)?, MapFlags::PRIVATE)?;
        // A process that locks all its memory (`mlockall`) has copied every page by now.
        pages.unlock()?;
        // SAFETY: nobody knows these pages yet.
        unsafe { pages.give_up(pages.range()) }?;
        // Never for writing, nor MAP_POPULATE: either would make a stale copy of every page. Where the
        // kernel cannot populate, the first reads do.
        pages.populate(Advice::LinuxPopulateRead)?;
        Ok(View { pages, bytes })
    }

    /// Address of the first byte; the borrower may write there while it holds the lease.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.start().as_ptr()
    }

    /// The bytes asked for, not rounded.
    #[expect(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// What the lender wrote, and over it what this process wrote. Only while holding the lease.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, and the file cannot shrink. The lease keeps the lender from writing meanwhile.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// Forgets what this process wrote, before the lease goes back; returns how many pages that were.
    ///
    /// Where the kernel does not tell which pages were written, drops all and returns 0. Fails for pages
    /// that are locked in memory (`mlock`).
    ///
    /// The caller promises that nobody holds a reference from [`bytes`](Self::bytes) or uses
    /// [`as_ptr`](Self::as_ptr) meanwhile: written bytes turn back into the lender's.
    pub fn clean(&self) -> io::Result<usize> {
        self.forget(find(self.pages.range()))
    }

    fn forget(&self, dirty: io::Result<Dirty>) -> io::Result<usize> {
        let (pages, regions) = match dirty {
            Ok(dirty) if dirty.regions.len() <= MOST => (dirty.pages, dirty.regions),
            Ok(dirty) => (dirty.pages, vec![self.pages.range()]),
            Err(_) => (0, vec![self.pages.range()]),
        };
        for region in regions {
            // SAFETY: the caller promises that nobody looks.
            unsafe { self.pages.give_up(region) }?;
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::param::page_size;

    use super::*;
    use crate::Buffer;
    use crate::dirty::find_both_ways;
    use crate::pages::holds;

    const PAGES: usize = 300;

    fn lent(pages: usize) -> (Buffer, View) {
        let mut buffer = Buffer::lendable(pages * page_size()).expect("a small slot");
        buffer.fill(1);
        let view = view_of(&buffer);
        (buffer, view)
    }

    fn view_of(buffer: &Buffer) -> View {
        let file = buffer.descriptor().expect("it is lendable").try_clone_to_owned().expect("a descriptor");
        View::map(file, buffer.len()).expect("a sealed slot")
    }

    fn write(view: &View, page: usize, value: u8) {
        assert!(page * page_size() < view.len());
        // SAFETY: inside the view, and no test holds a reference into it here.
        unsafe { view.as_ptr().add(page * page_size()).write_volatile(value) }
    }

    fn shows(view: &View, value: u8) -> bool {
        view.bytes().iter().all(|&byte| byte == value)
    }

    #[test]
    fn untouched_pages_show_the_next_batch_and_written_ones_after_cleaning() {
        let few: Vec<usize> = vec![0, 7, 8, 9, PAGES - 1];
        let every_second: Vec<usize> = (0..PAGES).step_by(2).collect();
        let exactly_most: Vec<usize> = (0..MOST).map(|i| 3 * i).collect();
        for written in [vec![], few, exactly_most, every_second, (0..PAGES).collect()] {
            let (mut buffer, view) = lent(PAGES);
            assert!(shows(&view, 1));
            written.iter().for_each(|&page| write(&view, page, 99));
            buffer.fill(2);
            for page in 0..PAGES {
                let (first, rest) = if written.contains(&page) { (99, 1) } else { (2, 2) };
                let bytes = &view.bytes()[page * page_size()..][..page_size()];
                assert!(bytes[0] == first && bytes[1..].iter().all(|&b| b == rest), "page {page}");
            }
            assert_eq!(view.clean().expect("not locked"), written.len());
            assert!(shows(&view, 2));
            assert_eq!(view.clean().expect("not locked"), 0);
            buffer.fill(3);
            assert!(shows(&view, 3));
        }
    }

    #[test]
    fn scanning_and_reading_the_pagemap_find_the_same_pages() {
        let every = |pages: usize, step: usize| (0..pages).map(|i| i * step).collect::<Vec<_>>();
        let three_regions = vec![3, 4, 5, 100, 102];
        let cases = [(vec![], 0), (three_regions, 3), (every(PAGES, 1), 1), (every(PAGES / 2, 2), MOST + 1)];
        for (written, regions) in cases {
            let (mut buffer, view) = lent(PAGES);
            buffer.fill(2);
            written.iter().for_each(|&page| write(&view, page, 99));
            for dirty in find_both_ways(view.pages.range()) {
                assert_eq!((dirty.pages, dirty.regions.len()), (written.len(), regions));
                written.iter().for_each(|&page| write(&view, page, 99));
                assert_eq!(view.forget(Ok(dirty)).expect("not locked"), written.len());
                assert!(shows(&view, 2));
            }
        }
    }

    #[test]
    fn where_the_kernel_does_not_tell_everything_is_dropped() {
        let (mut buffer, view) = lent(PAGES);
        (0..PAGES).step_by(7).for_each(|page| write(&view, page, 99));
        buffer.fill(2);
        assert_eq!(view.forget(Err(io::ErrorKind::PermissionDenied.into())).expect("not locked"), 0);
        assert!(shows(&view, 2));
    }

    #[test]
    fn borrowers_do_not_see_each_other() {
        let (buffer, first) = lent(2);
        let second = view_of(&buffer);
        write(&first, 1, 9);
        assert!(shows(&second, 1) && !shows(&first, 1));
        assert!(buffer.iter().all(|&byte| byte == 1));
        assert_eq!(second.clean().expect("not locked"), 0);
        assert_eq!(first.clean().expect("not locked"), 1);
    }

    #[test]
    fn a_view_outlives_its_lender_and_leaves_nothing() {
        let (buffer, view) = lent(2);
        let inode = fstat(buffer.descriptor().expect("it is lendable")).expect("an open file").st_ino;
        assert_eq!(holds(inode), 3);
        drop(buffer);
        assert_eq!(holds(inode), 1);
        assert!(shows(&view, 1));
        drop(view);
        assert_eq!(holds(inode), 0);
    }

    #[test]
    fn a_view_may_be_shorter_than_its_file_but_not_longer_or_empty() {
        let buffer = Buffer::lendable(2 * page_size()).expect("a small slot");
        let map = |bytes| {
            let file = buffer.descriptor().expect("it is lendable").try_clone_to_owned();
            View::map(file.expect("a descriptor"), bytes)
        };
        assert_eq!(map(page_size() + 1).expect("long enough").bytes().len(), page_size() + 1);
        assert_eq!(map(page_size() + 1).expect("long enough").clean().expect("not locked"), 0);
        assert!(map(0).is_err() && map(2 * page_size() + 1).is_err() && map(usize::MAX).is_err());
    }

    #[test]
    fn a_file_that_its_maker_can_still_change_is_refused() {
        let all = SealFlags::SHRINK | SealFlags::GROW;
        let wanting = [
            SealFlags::empty(),
            all,
            SealFlags::SHRINK | SealFlags::FUTURE_WRITE,
            SealFlags::GROW | SealFlags::FUTURE_WRITE,
        ];
        let make = |seals| {
            let file =
                memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memory file");
            ftruncate(&file, page_size() as u64).expect("not sealed yet");
            fcntl_add_seals(&file, seals).expect("not sealed yet");
            (fstat(&file).expect("an open file").st_ino, View::map(file, page_size()))
        };
        for seals in wanting {
            let (inode, view) = make(seals);
            assert!(view.is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput), "{seals:?}");
            assert_eq!(holds(inode), 0);
        }
        for enough in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
            assert!(make(all | enough).1.is_ok());
        }
        let ordinary = tempfile::tempfile().expect("a file");
        ordinary.set_len(page_size() as u64).expect("room on the disk");
        assert!(View::map(ordinary.into(), page_size()).is_err());
    }

    #[test]
    fn a_forked_child_finds_its_own_pages() {
        let (_buffer, view) = lent(4);
        // The parent's file is open before the fork, and the parent's page is clean afterwards.
        assert_eq!(view.clean().expect("not locked"), 0);
        // SAFETY: the child touches memory and files only, and ends without running anything of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            write(&view, 2, 9);
            let cleaned = matches!(view.clean(), Ok(1)) && shows(&view, 1);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!cleaned)) }
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(view.clean().expect("not locked"), 0);
    }
}
