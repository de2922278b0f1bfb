//! Which pages of a private mapping this process has written, asked of the kernel.
//!
//! A page is a private copy when it is in memory or swapped out and does not belong to the file.
//! `PAGEMAP_SCAN` (Linux 6.7) answers that for a whole range in one call; older kernels show one word for
//! each page in `/proc/self/pagemap`. Both go through an open file that shows the pages of the process that
//! opened it and of no other, so it is opened anew each time: that takes 4 µs, and a forked child has its own.
#![expect(unsafe_code, reason = "an ioctl of our own")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use rustix::param::page_size;

const PAGEMAP: &str = "/proc/self/pagemap";

/// With more regions than this, giving up everything at once is faster than one by one.
pub(crate) const MOST: usize = 64;

/// What was written: how many pages, in which regions. One region more than [`MOST`] stands for many.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) pages: usize,
    pub(crate) regions: Vec<Range<usize>>,
}

/// The pages of `range` that this process has written.
pub(crate) fn find(range: Range<usize>) -> io::Result<Dirty> {
    let pagemap = File::open(PAGEMAP)?;
    scan(&pagemap, range.clone()).or_else(|_| read(&pagemap, range))
}

impl Dirty {
    fn add(&mut self, region: Range<usize>) {
        self.pages += region.len() / page_size();
        let full = self.regions.len() > MOST;
        match self.regions.last_mut() {
            Some(last) if last.end == region.start => last.end = region.end,
            _ if full => (),
            _ => self.regions.push(region),
        }
    }
}

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Question {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;

struct Scan<'a>(&'a mut Question);

// SAFETY: `PAGEMAP_SCAN` reads and writes one Question, whose size the opcode and the first field name,
// and returns the number of regions it wrote.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Question>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        usize::try_from(out).map_err(|_| Errno::RANGE)
    }
}

fn scan(pagemap: &File, range: Range<usize>) -> io::Result<Dirty> {
    let mut dirty = Dirty::default();
    let mut regions = [Region::default(); MOST];
    let mut from = range.start;
    // A call stops when its regions are full; what lies behind must not stay stale.
    while from < range.end {
        let mut question = Question {
            size: size_of::<Question>() as u64,
            start: from as u64,
            end: range.end as u64,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            category_inverted: IS_FILE,
            category_mask: IS_FILE,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            // One category for all, or neighbours of two kinds would count as two regions.
            return_mask: IS_FILE,
            ..Question::default()
        };
        // SAFETY: `vec` points to `vec_len` regions that live until after the call.
        let found = unsafe { ioctl(pagemap, Scan(&mut question)) }?;
        let found = regions.get(..found).ok_or(io::ErrorKind::InvalidData)?;
        found.iter().for_each(|region| dirty.add(region.start as usize..region.end as usize));
        if question.walk_end <= from as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        from = question.walk_end as usize;
    }
    Ok(dirty)
}

fn read(pagemap: &File, range: Range<usize>) -> io::Result<Dirty> {
    const WORD: usize = size_of::<u64>();
    let mut dirty = Dirty::default();
    let mut words = [0; 1024 * WORD];
    let page = page_size();
    let mut address = range.start;
    while address < range.end {
        let length = words.len().min((range.end - address) / page * WORD);
        let words = &mut words[..length];
        pagemap.read_exact_at(words, (address / page * WORD) as u64)?;
        for word in words.as_chunks::<WORD>().0 {
            let word = u64::from_ne_bytes(*word);
            let (file, held) = (word >> 61 & 1 == 1, word >> 62 != 0);
            if held && !file {
                dirty.add(address..address + page);
            }
            address += page;
        }
    }
    Ok(dirty)
}

/// Tests try both ways on kernels that have both.
#[cfg(test)]
pub(crate) fn find_both_ways(range: Range<usize>) -> Vec<Dirty> {
    let pagemap = File::open(PAGEMAP).expect("procfs");
    let read = read(&pagemap, range.clone()).expect("procfs");
    match scan(&pagemap, range) {
        Ok(scanned) => vec![scanned, read],
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::NOTTY.raw_os_error()));
            vec![read]
        }
    }
}
