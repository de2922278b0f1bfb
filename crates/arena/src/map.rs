//! A read-only mapping of a file that only Forebay writes.

use std::fs::File;
use std::io;
use std::ops::Deref;

/// Bytes of a whole file. The file must be one that is replaced by rename and never changed in place.
#[derive(Debug)]
pub struct Mapping(memmap2::Mmap);

impl Mapping {
    /// Maps `file` read-only.
    #[expect(unsafe_code, reason = "mapping a file")]
    pub fn open(file: &File) -> io::Result<Self> {
        // SAFETY: the caller maps only index files. Those are written to a new file and renamed into
        // place, so the bytes behind this mapping never change or shrink.
        unsafe { memmap2::Mmap::map(file) }.map(Mapping)
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
