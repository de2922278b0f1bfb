//! Folders one behind the other: what a job's samples are numbered in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Folder;
use crate::error::Fault;
use crate::{Error, Result};

/// One folder or several; samples of the second are numbered behind those of the first.
#[derive(Debug)]
pub struct Dataset {
    parts: Vec<Arc<Folder>>,
    /// Number of the first sample behind each part.
    ends: Vec<u64>,
    fingerprint: String,
}

impl Dataset {
    /// The given folders, at least one.
    pub fn build(parts: Vec<Arc<Folder>>) -> Result<Self> {
        let fingerprint = match &parts[..] {
            [] => return Err(Error::Invalid("a dataset needs at least one folder".into())),
            [one] => one.fingerprint(),
            many => {
                let mut hash = blake3::Hasher::new();
                many.iter().for_each(|part| _ = hash.update(part.fingerprint().as_bytes()).update(b"+"));
                hash.finalize().to_hex()[..32].to_string()
            }
        };
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        });
        Ok(Dataset { ends: ends.collect(), parts, fingerprint })
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The folders.
    pub fn parts(&self) -> &[Arc<Folder>] {
        &self.parts
    }

    /// Names the content.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The folder, or the first of them.
    pub fn root(&self) -> &Path {
        self.parts[0].root()
    }

    /// The part that a sample is in, and its number there.
    pub fn place(&self, sample: u64) -> (usize, u64) {
        let part = self.ends.partition_point(|&end| end <= sample);
        (part, sample - if part == 0 { 0 } else { self.ends[part - 1] })
    }

    /// Class of a sample.
    pub fn target(&self, sample: u64) -> u32 {
        let (part, at) = self.place(sample);
        self.parts[part].target(at)
    }

    /// File of a sample.
    pub fn path(&self, sample: u64) -> PathBuf {
        let (part, at) = self.place(sample);
        self.parts[part].path(at)
    }

    /// Whether the file of a sample is still the one that was indexed.
    pub fn check(&self, sample: u64) -> Result<(), Fault> {
        let (part, at) = self.place(sample);
        self.parts[part].check(at)
    }

    /// Reads the file of a sample into `into`; at most `limit` bytes. Says whether the device was asked.
    pub fn read(&self, sample: u64, limit: u64, into: &mut Vec<u8>) -> Result<bool, Fault> {
        let (part, at) = self.place(sample);
        self.parts[part].read(at, limit, into)
    }

    /// Reads the file of a sample if the system has all of it in memory; says whether it had.
    pub fn read_now(&self, sample: u64, limit: u64, into: &mut Vec<u8>) -> Result<bool, Fault> {
        let (part, at) = self.place(sample);
        self.parts[part].read_now(at, limit, into)
    }

    /// Bytes of the file of a sample, as it was indexed.
    pub fn size(&self, sample: u64) -> u64 {
        let (part, at) = self.place(sample);
        self.parts[part].size(at)
    }
}

impl From<Folder> for Dataset {
    fn from(folder: Folder) -> Self {
        let (fingerprint, ends) = (folder.fingerprint(), vec![folder.len()]);
        Dataset { parts: vec![Arc::new(folder)], ends, fingerprint }
    }
}
