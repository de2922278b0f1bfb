//! An image folder with its index: opens, notices change, reads files.

use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::index::Index;
use super::scan::{join, mtime_ns, scan};
use super::throttle;
use crate::error::Fault;
use crate::{Error, Result};

/// Timestamps finer than this are not to be trusted: a folder that changed so shortly before it was
/// indexed may change again without showing it.
const RACY_NS: i64 = 50_000_000;

/// A dataset laid out as `root/class/…/file`.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    index: Index,
    index_path: PathBuf,
    bytes: OnceLock<u64>,
    identity: OnceLock<String>,
}

impl Folder {
    /// Opens `root`, from its index when folders have not changed since, else by a scan.
    pub fn open(root: &Path, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        throttle::check()?;
        let root = fs::canonicalize(root).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                Error::NotFound(format!("No such file or directory: '{}'", root.display()))
            }
            _ => Error::Io { path: root.to_path_buf(), source },
        })?;
        let name = &blake3::hash(root.as_os_str().as_bytes()).to_hex()[..24];
        let index_path = cache_dir()?.join(format!("{name}.index"));
        let index = match Index::open(&index_path)? {
            Some(index) if is_current(&root, &index) => index,
            _ => Index::write(&index_path, &scan(&root, threads, progress)?)?,
        };
        Ok(Folder { root, index, index_path, bytes: OnceLock::new(), identity: OnceLock::new() })
    }

    /// The folder, absolute and without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.index.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Class names in order, as bytes.
    pub fn classes(&self) -> impl Iterator<Item = &[u8]> {
        self.index.classes()
    }

    /// Class of a sample.
    pub fn target(&self, sample: u64) -> u32 {
        self.index.file(sample as usize).1
    }

    /// File of a sample, relative to the root.
    pub fn name(&self, sample: u64) -> &[u8] {
        self.index.file(sample as usize).0
    }

    /// File of a sample.
    pub fn path(&self, sample: u64) -> PathBuf {
        join(&self.root, self.index.file(sample as usize).0)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        *self.bytes.get_or_init(|| (0..self.index.len()).map(|i| self.index.file(i).2).sum())
    }

    /// Names what is kept of it: the place, the content and the times of all files.
    pub fn identity(&self) -> &str {
        self.identity.get_or_init(|| {
            let mut hash = blake3::Hasher::new();
            hash.update(self.root.as_os_str().as_bytes()).update(self.fingerprint().as_bytes());
            (0..self.index.len()).for_each(|i| _ = hash.update(&self.index.file(i).3.to_le_bytes()));
            hash.finalize().to_hex()[..32].to_string()
        })
    }

    /// Whether a file is still the one that was indexed.
    pub fn check(&self, sample: u64) -> Result<(), Fault> {
        let (name, _, size, mtime) = self.index.file(sample as usize);
        self.compare(&fs::metadata(join(&self.root, name))?, size, mtime)
    }

    /// Names the content.
    pub fn fingerprint(&self) -> String {
        self.index.fingerprint()
    }

    /// Reads the file of a sample into `into`; at most `limit` bytes. Says whether the device was asked.
    pub fn read(&self, sample: u64, limit: u64, into: &mut Vec<u8>) -> Result<bool, Fault> {
        let mut file = self.file(sample, limit, into)?;
        let throttled = throttle::wait(&file)?;
        let have = cached(&file, into)?;
        if have == into.len() {
            return Ok(throttled);
        }
        file.seek(SeekFrom::Start(have as u64))?;
        // It may shrink between the check and the read.
        file.read_exact(&mut into[have..]).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => Fault::Truncated,
            _ => Fault::Io(e),
        })?;
        Ok(true)
    }

    /// Reads the file of a sample if the system has all of it in memory; says whether it had.
    pub fn read_now(&self, sample: u64, limit: u64, into: &mut Vec<u8>) -> Result<bool, Fault> {
        let file = self.file(sample, limit, into)?;
        Ok(!throttle::is_set() && cached(&file, into)? == into.len())
    }

    /// Bytes of the file of a sample, as it was indexed.
    pub fn size(&self, sample: u64) -> u64 {
        self.index.file(sample as usize).2
    }

    /// The file of a sample, as it was indexed, and room for it.
    fn file(&self, sample: u64, limit: u64, into: &mut Vec<u8>) -> Result<File, Fault> {
        let (name, _, size, mtime) = self.index.file(sample as usize);
        let file = File::open(join(&self.root, name))?;
        self.compare(&file.metadata()?, size, mtime)?;
        if size > limit {
            return Err(Fault::TooLarge { need: size, allowed: limit });
        }
        let size = size as usize;
        if into.len() < size {
            into.resize(size, 0);
        }
        into.truncate(size);
        Ok(file)
    }

    fn compare(&self, meta: &fs::Metadata, size: u64, mtime: i64) -> Result<(), Fault> {
        let now = (meta.len(), mtime_ns(meta));
        if now == (size, mtime) {
            return Ok(());
        }
        // The next open must not trust the index.
        let _ = fs::remove_file(&self.index_path);
        let say = |(size, time): (u64, i64)| {
            format!("{size} bytes of time {}.{:09}", time / 1_000_000_000, time % 1_000_000_000)
        };
        Err(Fault::Changed { was: say((size, mtime)), is: say(now) })
    }
}

/// Reads what the system has in memory, from the start up to what it would have to wait for.
fn cached(file: &File, into: &mut [u8]) -> Result<usize, Fault> {
    let mut have = 0;
    while have < into.len() {
        let rest = &mut [IoSliceMut::new(&mut into[have..])];
        match preadv2(file, rest, have as u64, ReadWriteFlags::NOWAIT) {
            Ok(0) => break,
            Ok(some) => have += some,
            Err(Errno::INTR) => {}
            // It would wait, or this file system cannot say.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => break,
            Err(error) => return Err(Fault::Io(error.into())),
        }
    }
    Ok(have)
}

fn is_current(root: &Path, index: &Index) -> bool {
    index.dirs().all(|(name, mtime)| {
        mtime.saturating_add(RACY_NS) < index.written_ns()
            && fs::metadata(join(root, name)).is_ok_and(|meta| mtime_ns(&meta) == mtime)
    })
}

/// Where indexes live: `FOREBAY_CACHE_DIR`, else the user's cache directory.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("FOREBAY_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("forebay")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/forebay")))
        .ok_or_else(|| Error::Invalid("no cache directory: set FOREBAY_CACHE_DIR".into()))
}
