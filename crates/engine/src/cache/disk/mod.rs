//! The local disk: files that came from a slow device, kept across restarts.
//!
//! A directory of the user's with a folder for each dataset, named by its identity, and in it append-only segments
//! ([`segment`]). Nothing that is read from them is believed without its checksum: what is damaged is forgotten,
//! read from storage again and written anew. The bytes of all segments stay within a limit. When it is reached,
//! datasets that no job uses go whole, those used longest ago first; of the others nothing is evicted.
//!
//! One process has the directory, by a lock that ends with it. A disk that fails is written no more; serving goes on
//! from storage.

mod segment;
mod set;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::DiskConfig;
use crate::counters::Counter;
use crate::{Error, Result};
use set::Set;

/// The directory, and what is in it.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    limit: u64,
    books: Mutex<Books>,
    errors: Counter,
    /// A write failed: none is tried again.
    stopped: AtomicBool,
    _lock: File,
}

#[derive(Debug, Default)]
struct Books {
    /// Bytes of all segments, with those that are promised.
    bytes: u64,
    sets: HashMap<String, Arc<Set>>,
}

/// What the local disk holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// Bytes of its files now.
    pub bytes: u64,
    /// The most there may be; 0 where no disk is used.
    pub limit: u64,
    /// Reads and writes that failed, and records that were damaged.
    pub errors: u64,
    /// A write failed, so none is tried again.
    pub stopped: bool,
}

/// A dataset that a job uses: it is not evicted until this is dropped.
#[derive(Debug)]
pub(crate) struct Present(Arc<Set>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.use_now();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for set in self.lock().sets.values() {
            // Which dataset goes first is all that depends on it.
            let _ = set.note_use();
        }
    }
}

impl Disk {
    /// Takes the directory and looks what is there.
    pub(crate) fn open(config: &DiskConfig) -> Result<Self> {
        let dir = config.dir.clone();
        let at = |source| Error::Io { path: dir.clone(), source };
        fs::create_dir_all(&dir).map_err(at)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"));
        let lock = lock.map_err(at)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Taken { path: dir }),
            Err(errno) => return Err(at(errno.into())),
        }
        let mut books = Books::default();
        for entry in fs::read_dir(&dir).map_err(at)?.flatten() {
            if let Some(name) = entry.file_name().to_str().filter(|name| is_identity(name))
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
            {
                books.add(&dir, name);
            }
        }
        // The limit may have been higher before.
        books.make_room(config.bytes, 0);
        Ok(Disk {
            dir,
            limit: config.bytes,
            books: Mutex::new(books),
            errors: Counter::default(),
            stopped: AtomicBool::new(false),
            _lock: lock,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A job begins to use a dataset of `samples`.
    pub(crate) fn enter(&self, identity: &str, samples: u64) -> Result<Present> {
        // Held before the directory is looked into, so that it is not evicted meanwhile.
        let present = Present(self.lock().add(&self.dir, identity));
        present.0.use_now();
        if let Err(error) = present.0.note_use() {
            self.stop(&error);
        }
        match present.0.open(samples) {
            Ok(cut) => {
                let mut books = self.lock();
                books.bytes = books.bytes.saturating_sub(cut);
            }
            Err(Error::Io { source, .. }) => self.stop(&source),
            Err(error) => return Err(error),
        }
        Ok(present)
    }

    /// Reads the `size` bytes of a sample; false if it is not held. What is damaged is forgotten, and an error.
    pub(crate) fn get(&self, identity: &str, sample: u64, size: u64, into: &mut Vec<u8>) -> io::Result<bool> {
        let Some(set) = self.set(identity) else { return Ok(false) };
        set.get(sample, size, into).inspect_err(|_| self.errors.add(1))
    }

    /// Keeps the file of a sample, if there is room.
    pub(crate) fn put(&self, identity: &str, sample: u64, bytes: &[u8]) -> io::Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(set) = self.set(identity) else { return Ok(()) };
        let claim = set.claim(sample, bytes.len() as u64, |need| {
            let granted = self.lock().make_room(self.limit, need);
            set.bytes.fetch_add(if granted { need } else { 0 }, Ordering::Relaxed);
            granted
        });
        let put = claim.and_then(|claim| claim.map_or(Ok(()), |claim| set.fill(&claim, bytes)));
        put.inspect_err(|error| self.stop(error))
    }

    /// What it holds.
    pub(crate) fn facts(&self) -> DiskFacts {
        DiskFacts {
            bytes: self.lock().bytes,
            limit: self.limit,
            errors: self.errors.get(),
            stopped: self.stopped.load(Ordering::Relaxed),
        }
    }

    fn set(&self, identity: &str) -> Option<Arc<Set>> {
        self.lock().sets.get(identity).cloned()
    }

    /// Writes nothing from now on, and says so once.
    fn stop(&self, error: &io::Error) {
        self.errors.add(1);
        if !self.stopped.swap(true, Ordering::Relaxed) {
            let dir = self.dir.display();
            eprintln!("forebay: {dir}: {error}; nothing more is kept there, files come from storage");
        }
    }
}

impl Books {
    fn add(&mut self, dir: &Path, identity: &str) -> Arc<Set> {
        if let Some(set) = self.sets.get(identity) {
            return set.clone();
        }
        let set = Arc::new(Set::new(dir.join(identity), identity));
        self.bytes += set.bytes.load(Ordering::Relaxed);
        self.sets.insert(identity.into(), set.clone());
        set
    }

    /// Promises `need` bytes, and evicts what no job uses for them; false if that is not enough.
    fn make_room(&mut self, limit: u64, need: u64) -> bool {
        if need > limit {
            return false;
        }
        while self.bytes.saturating_add(need) > limit {
            let unused = self.sets.iter().filter(|(_, set)| Arc::strong_count(set) == 1);
            let oldest = unused.min_by_key(|(_, set)| set.used.load(Ordering::Relaxed));
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { return false };
            if let Some(set) = self.sets.remove(&name) {
                self.bytes = self.bytes.saturating_sub(set.remove());
            }
        }
        self.bytes += need;
        true
    }
}

/// Whether a folder's name is one that datasets have; all else in the directory is left alone.
fn is_identity(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
