//! The files of one dataset on the disk: its segments, and where in them each sample is.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Advice, fadvise};

use super::segment::{self, Kind, Record};
use crate::{Error, Result};

/// A segment takes no further record that would make it longer.
const SEGMENT: u64 = 64 << 20;
/// The file whose time says when the dataset was last used.
const USED: &str = "used";
/// No record begins there: it is being written.
const PENDING: u64 = 1;

/// One dataset.
#[derive(Debug)]
pub(super) struct Set {
    dir: PathBuf,
    identity: String,
    /// Bytes of its segments, with those that are promised.
    pub(super) bytes: AtomicU64,
    /// When it was last used, in nanoseconds since 1970.
    pub(super) used: AtomicU64,
    index: Mutex<Index>,
}

/// Where samples are: 8 bytes for each of the dataset.
#[derive(Debug, Default)]
struct Index {
    is_open: bool,
    /// The segment's number and the offset in it, 0 where the sample is not held.
    places: Vec<u64>,
    next: u32,
    current: Option<Current>,
}

/// The segment that is appended to.
#[derive(Debug)]
struct Current {
    number: u32,
    file: Arc<File>,
    end: u64,
}

/// Room for one record.
#[derive(Debug)]
pub(super) struct Claim {
    sample: u64,
    number: u32,
    file: Arc<File>,
    at: u64,
}

impl Set {
    /// What `dir` holds, before it is looked into.
    pub(super) fn new(dir: PathBuf, identity: &str) -> Self {
        let time = fs::metadata(dir.join(USED)).and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
        let bytes = segments(&dir).iter().map(|(_, _, bytes)| bytes).sum();
        Set {
            dir,
            identity: identity.into(),
            bytes: AtomicU64::new(bytes),
            used: AtomicU64::new(nanoseconds(time)),
            index: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// It is in use now.
    pub(super) fn use_now(&self) {
        self.used.store(nanoseconds(SystemTime::now()), Ordering::Relaxed);
    }

    /// Tells later processes when it was used, and makes its folder.
    pub(super) fn note_use(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.dir.join(USED))?;
        file.set_modified(UNIX_EPOCH + Duration::from_nanos(self.used.load(Ordering::Relaxed)))
    }

    /// Finds what it holds of `samples`, and cuts off what is damaged. Says how many bytes went.
    pub(super) fn open(&self, samples: u64) -> Result<u64> {
        let mut index = self.lock();
        if index.is_open {
            return Ok(0);
        }
        let mut places = vec![0; samples as usize];
        let (mut next, mut current, mut held) = (0, None, 0);
        for (number, path, _) in segments(&self.dir) {
            let at = |source| Error::Io { path: path.clone(), source };
            let file = OpenOptions::new().read(true).write(true).open(&path).map_err(at)?;
            match segment::kind(&file).map_err(at)? {
                Kind::Ours => {}
                Kind::Newer(found) => return Err(Error::Newer { path, found, known: segment::VERSION }),
                Kind::Foreign => {
                    fs::remove_file(&path).map_err(at)?;
                    continue;
                }
            }
            // Headers lie far apart: nothing is gained by reading ahead.
            let _ = fadvise(&file, 0, None, Advice::Random);
            let length = file.metadata().map_err(at)?.len();
            let (found, end) = segment::walk(&file, length).map_err(at)?;
            if end < length {
                file.set_len(end).map_err(at)?;
            }
            // The later of two records is the one that healed the other.
            for (sample, offset) in found {
                if let Some(place) = places.get_mut(sample as usize) {
                    *place = u64::from(number) << 32 | u64::from(offset);
                }
            }
            (next, held) = (number.saturating_add(1), held + end);
            current = Some(Current { number, file: Arc::new(file), end });
        }
        let before = self.bytes.swap(held, Ordering::Relaxed);
        *index = Index { is_open: true, places, next, current };
        Ok(before.saturating_sub(held))
    }

    /// Reads the `size` bytes of a sample; false if it is not held. What is damaged is forgotten, and an error.
    pub(super) fn get(&self, sample: u64, size: u64, into: &mut Vec<u8>) -> io::Result<bool> {
        let place = self.lock().places.get(sample as usize).copied().unwrap_or_default();
        if place <= PENDING {
            return Ok(false);
        }
        let read = self.read((place >> 32) as u32, place & 0xffff_ffff, sample, size, into);
        if read.is_err()
            && let Some(known) = self.lock().places.get_mut(sample as usize)
            && *known == place
        {
            *known = 0;
        }
        read.map(|()| true)
    }

    fn read(&self, number: u32, at: u64, sample: u64, size: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a record is damaged");
        let file = File::open(path(&self.dir, number))?;
        let record = Record::read(&file, at)?.filter(|record| record.length == size).ok_or_else(damaged)?;
        into.resize(size as usize, 0);
        file.read_exact_at(into, at + segment::HEADER)?;
        if record.is_of(&self.identity, sample, into) { Ok(()) } else { Err(damaged()) }
    }

    /// A place for the record of a sample, if it has none and `reserve` grants the bytes.
    pub(super) fn claim(
        &self,
        sample: u64,
        length: u64,
        reserve: impl FnOnce(u64) -> bool,
    ) -> io::Result<Option<Claim>> {
        let mut guard = self.lock();
        let index = &mut *guard;
        let Some(place) = index.places.get_mut(sample as usize).filter(|place| **place == 0) else {
            return Ok(None);
        };
        let need = segment::HEADER + length;
        let fits = |current: &Current| current.end + need <= SEGMENT;
        let fresh = !index.current.as_ref().is_some_and(fits);
        if !reserve(need + if fresh { segment::START } else { 0 }) {
            return Ok(None);
        }
        if fresh {
            let number = index.next;
            let open =
                OpenOptions::new().read(true).write(true).create_new(true).open(path(&self.dir, number));
            let file = Arc::new(open?);
            file.write_all_at(&segment::start(segment::VERSION), 0)?;
            index.next = number.checked_add(1).ok_or_else(|| io::Error::other("no number is left"))?;
            index.current = Some(Current { number, file, end: segment::START });
        }
        let Some(current) = &mut index.current else { return Ok(None) };
        let claim = Claim { sample, number: current.number, file: current.file.clone(), at: current.end };
        current.end += need;
        *place = PENDING;
        Ok(Some(claim))
    }

    /// Writes the record; it is found from then on.
    pub(super) fn fill(&self, claim: &Claim, bytes: &[u8]) -> io::Result<()> {
        let record = Record::new(&self.identity, claim.sample, bytes);
        // The header last: where there is one, its bytes were written.
        let written = claim
            .file
            .write_all_at(bytes, claim.at + segment::HEADER)
            .and_then(|()| claim.file.write_all_at(&record.to_bytes(), claim.at));
        if let Some(place) = self.lock().places.get_mut(claim.sample as usize) {
            let is = u64::from(claim.number) << 32 | claim.at;
            *place = if written.is_ok() { is } else { 0 };
        }
        written
    }

    /// Removes its files and says how many bytes of segments went; what is not ours stays.
    pub(super) fn remove(&self) -> u64 {
        let gone = segments(&self.dir).into_iter().filter(|(_, path, _)| fs::remove_file(path).is_ok());
        let bytes = gone.map(|(_, _, bytes)| bytes).sum();
        let _ = fs::remove_file(self.dir.join(USED));
        let _ = fs::remove_dir(&self.dir);
        bytes
    }
}

fn path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:06}.segment"))
}

/// Number, path and length of the segments of a folder, in order.
fn segments(dir: &Path) -> Vec<(u32, PathBuf, u64)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_suffix(".segment")?.parse().ok()?;
        let meta = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        // A number has one name, so that none is counted twice.
        Some((number, path(dir, number), meta.len())).filter(|(_, path, _)| *path == entry.path())
    });
    let mut ours: Vec<_> = ours.collect();
    ours.sort();
    ours
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
