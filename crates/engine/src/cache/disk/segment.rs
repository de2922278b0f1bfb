//! The format of a segment: a header, then records back to back. Only appended to.
//!
//! ```text
//! segment: magic 8 | version u32 | check 4
//! record:  sample u64 | length u64 | checksum 16 | check 8 | bytes
//! ```
//! Numbers are little-endian. A check covers what stands before it in its header; the checksum covers the dataset's
//! identity, the sample and the bytes, so that a record is right only in its own place. Lengths are compared with the
//! file before they are used.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Opens every segment.
const MAGIC: &[u8; 8] = b"FBDISK\0\0";
/// The newest version that is understood.
pub(super) const VERSION: u32 = 1;
/// Bytes before the first record.
pub(super) const START: u64 = 16;
/// Bytes of a record before those of its sample.
pub(super) const HEADER: u64 = 40;

/// What a segment's first bytes say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It can be read.
    Ours,
    /// A newer Forebay wrote it.
    Newer(u32),
    /// It is damaged, or nothing of ours.
    Foreign,
}

/// The first bytes of a segment.
pub(super) fn start(version: u32) -> [u8; START as usize] {
    let mut bytes = [0; START as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let check = blake3::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&check.as_bytes()[..4]);
    bytes
}

/// Looks at the first bytes of a segment.
pub(super) fn kind(file: &File) -> io::Result<Kind> {
    let mut bytes = [0; START as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Kind::Foreign),
        Err(error) => return Err(error),
    }
    let version = u32::from_le_bytes(array(&bytes, 8));
    Ok(match version {
        _ if bytes != start(version) => Kind::Foreign,
        VERSION => Kind::Ours,
        0 => Kind::Foreign,
        newer => Kind::Newer(newer),
    })
}

/// What stands before the bytes of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) sample: u64,
    pub(super) length: u64,
    checksum: [u8; 16],
}

impl Record {
    pub(super) fn new(identity: &str, sample: u64, bytes: &[u8]) -> Self {
        Record { sample, length: bytes.len() as u64, checksum: checksum(identity, sample, bytes) }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER as usize] {
        let mut out = [0; HEADER as usize];
        out[..8].copy_from_slice(&self.sample.to_le_bytes());
        out[8..16].copy_from_slice(&self.length.to_le_bytes());
        out[16..32].copy_from_slice(&self.checksum);
        let check = blake3::hash(&out[..32]);
        out[32..].copy_from_slice(&check.as_bytes()[..8]);
        out
    }

    /// The record at `at`; nothing where none begins.
    pub(super) fn read(file: &File, at: u64) -> io::Result<Option<Self>> {
        let mut bytes = [0; HEADER as usize];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let record = Record {
            sample: u64::from_le_bytes(array(&bytes, 0)),
            length: u64::from_le_bytes(array(&bytes, 8)),
            checksum: array(&bytes, 16),
        };
        Ok(Some(record).filter(|record| record.to_bytes() == bytes))
    }

    /// Whether `bytes` are those that were written for `sample`.
    pub(super) fn is_of(&self, identity: &str, sample: u64, bytes: &[u8]) -> bool {
        *self == Record::new(identity, sample, bytes)
    }
}

/// Finds the records of a segment of `length` bytes: each sample with its offset, and where the last one ends.
pub(super) fn walk(file: &File, length: u64) -> io::Result<(Vec<(u64, u32)>, u64)> {
    let (mut found, mut at) = (Vec::new(), START);
    while let Some(record) = Record::read(file, at)? {
        let next = at.checked_add(HEADER).and_then(|at| at.checked_add(record.length));
        let (Some(next), Ok(offset)) = (next.filter(|next| *next <= length), u32::try_from(at)) else {
            break;
        };
        found.push((record.sample, offset));
        at = next;
    }
    Ok((found, at))
}

fn checksum(identity: &str, sample: u64, bytes: &[u8]) -> [u8; 16] {
    let mut hash = blake3::Hasher::new();
    hash.update(identity.as_bytes()).update(&sample.to_le_bytes()).update(bytes);
    array(hash.finalize().as_bytes(), 0)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}
