//! The index: a flat, versioned, checksummed file of fixed records, mapped read-only.
//!
//! ```text
//! magic 8 | version u32 | 0 u32 | written_ns u64 | files u64 | classes u64 | dirs u64 | checksum 32 | content 16
//! files:   name u64, length u32, class u32, size u64, mtime u64
//! classes: name u64, length u64        dirs: name u64, length u64, mtime u64
//! names, back to back
//! ```
//! All numbers are little-endian. It is written to a new file and renamed, so that a reader sees all of it
//! or none. Nothing read from it is trusted: lengths are checked before use.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_arena::Mapping;

use super::scan::{Dir, Entry, Scan};
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"FBINDEX\0";
const VERSION: u32 = 1;
const HEADER: usize = 96;
const FILE: usize = 32;
const CLASS: usize = 16;
const DIR: usize = 24;

/// A mapped index.
#[derive(Debug)]
pub(super) struct Index {
    map: Mapping,
    files: usize,
    classes: usize,
    dirs: usize,
}

impl Index {
    /// Maps `path`. `None`: there is none, or it is damaged, and a scan will replace it.
    pub(super) fn open(path: &Path) -> Result<Option<Index>> {
        let at = |source| Error::Io { path: path.to_path_buf(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(at(e)),
        };
        if file.metadata().map_err(at)?.len() < HEADER as u64 {
            return Ok(None);
        }
        let map = Mapping::open(&file).map_err(at)?;
        if &map[..8] != MAGIC {
            return Ok(None);
        }
        let found = u32::from_le_bytes(array(&map, 8));
        if found > VERSION {
            return Err(Error::Newer { path: path.to_path_buf(), found, known: VERSION });
        }
        let [files, classes, dirs] = [24, 32, 40].map(|at| u64::from_le_bytes(array(&map, at)));
        // Each record takes bytes of the file, so a count over its length is damage, and sums cannot overflow.
        let longest = map.len() as u64;
        if files > longest || classes > longest || dirs > longest {
            return Ok(None);
        }
        let index = Index { files: files as usize, classes: classes as usize, dirs: dirs as usize, map };
        if index.names() > index.map.len() || !index.is_whole() {
            return Ok(None);
        }
        Ok(Some(index))
    }

    /// Writes an index of `scan` and maps it.
    pub(super) fn write(path: &Path, scan: &Scan) -> Result<Index> {
        let at = |source| Error::Io { path: path.to_path_buf(), source };
        let mut body = Vec::with_capacity(scan.entries.len() * 80);
        let mut names = Vec::new();
        let mut name = |bytes: &[u8]| {
            names.extend_from_slice(bytes);
            (names.len() - bytes.len()) as u64
        };
        for Entry { name: bytes, class, size, mtime_ns } in &scan.entries {
            body.extend(name(bytes).to_le_bytes());
            body.extend((bytes.len() as u32).to_le_bytes());
            body.extend(class.to_le_bytes());
            body.extend(size.to_le_bytes());
            body.extend(mtime_ns.to_le_bytes());
        }
        for class in &scan.classes {
            body.extend(name(class).to_le_bytes());
            body.extend((class.len() as u64).to_le_bytes());
        }
        for Dir { name: bytes, mtime_ns } in &scan.dirs {
            body.extend(name(bytes).to_le_bytes());
            body.extend((bytes.len() as u64).to_le_bytes());
            body.extend(mtime_ns.to_le_bytes());
        }
        body.extend(names);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let mut header = Vec::with_capacity(HEADER);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend(0u32.to_le_bytes());
        header.extend(now.to_le_bytes());
        for count in [scan.entries.len(), scan.classes.len(), scan.dirs.len()] {
            header.extend((count as u64).to_le_bytes());
        }
        let content = content(scan);
        let content = &content.as_bytes()[..16];
        header.extend(checksum(&header, content, &body).as_bytes());
        header.extend(content);
        // Writers in other processes and threads get other names; whichever renames last wins, with the
        // same content.
        static WRITERS: AtomicU64 = AtomicU64::new(0);
        let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
        let fresh = path.with_extension(format!("{}-{writer}.new", std::process::id()));
        let write = || {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            let mut file = File::create(&fresh)?;
            file.write_all(&header)?;
            file.write_all(&body)?;
            fs::rename(&fresh, path)
        };
        write().map_err(at)?;
        Index::open(path)?
            .ok_or_else(|| at(std::io::Error::other("the index was damaged while it was written")))
    }

    /// Names the content by files, sizes and classes; not by times, which a copy on another machine changes.
    pub(super) fn fingerprint(&self) -> String {
        self.map[80..96].iter().map(|b| format!("{b:02x}")).collect()
    }

    /// When it was written.
    pub(super) fn written_ns(&self) -> i64 {
        i64::from_le_bytes(array(&self.map, 16))
    }

    pub(super) fn len(&self) -> usize {
        self.files
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = &[u8]> {
        let start = HEADER + self.files * FILE;
        (0..self.classes).map(move |i| self.name(start + i * CLASS, true))
    }

    /// Folders with the time each had.
    pub(super) fn dirs(&self) -> impl Iterator<Item = (&[u8], i64)> {
        let start = HEADER + self.files * FILE + self.classes * CLASS;
        (0..self.dirs).map(move |i| {
            let at = start + i * DIR;
            (self.name(at, true), i64::from_le_bytes(array(&self.map, at + 16)))
        })
    }

    /// Name, class, size and time of file `i`.
    ///
    /// # Panics
    /// When there is no such file.
    pub(super) fn file(&self, i: usize) -> (&[u8], u32, u64, i64) {
        assert!(i < self.files, "sample {i} of {}", self.files);
        let at = HEADER + i * FILE;
        (
            self.name(at, false),
            u32::from_le_bytes(array(&self.map, at + 12)),
            u64::from_le_bytes(array(&self.map, at + 16)),
            i64::from_le_bytes(array(&self.map, at + 24)),
        )
    }

    fn is_whole(&self) -> bool {
        let map = &self.map;
        checksum(&map[..48], &map[80..HEADER], &map[HEADER..]).as_bytes() == &map[48..80]
    }

    fn names(&self) -> usize {
        HEADER + self.files * FILE + self.classes * CLASS + self.dirs * DIR
    }

    fn name(&self, at: usize, wide: bool) -> &[u8] {
        let offset = u64::from_le_bytes(array(&self.map, at));
        let len = if wide {
            u64::from_le_bytes(array(&self.map, at + 8))
        } else {
            u64::from(u32::from_le_bytes(array(&self.map, at + 8)))
        };
        let start = (self.names() as u64).saturating_add(offset);
        // The checksum was right, so this holds unless someone forged both.
        self.map.get(start as usize..start.saturating_add(len) as usize).unwrap_or_default()
    }
}

/// Covers every byte of the file but its own.
fn checksum(header: &[u8], content: &[u8], body: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(content).update(body);
    hasher.finalize()
}

fn content(scan: &Scan) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for class in &scan.classes {
        hasher.update(&(class.len() as u64).to_le_bytes()).update(class);
    }
    for entry in &scan.entries {
        hasher.update(&(entry.name.len() as u64).to_le_bytes()).update(&entry.name);
        hasher.update(&entry.size.to_le_bytes());
    }
    hasher.finalize()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> Scan {
        Scan {
            classes: vec![b"cat".to_vec(), b"dog".to_vec()],
            dirs: vec![Dir { name: b"cat".to_vec(), mtime_ns: 5 }],
            entries: vec![
                Entry { name: b"cat/1.jpg".to_vec(), class: 0, size: 10, mtime_ns: -3 },
                Entry { name: b"dog/\xff.jpg".to_vec(), class: 1, size: 20, mtime_ns: 4 },
            ],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("deep/a.index");
        let index = Index::write(&path, &scan()).expect("written");
        assert_eq!(index.len(), 2);
        assert_eq!(index.file(1), (&b"dog/\xff.jpg"[..], 1, 20, 4));
        assert_eq!(index.classes().collect::<Vec<_>>(), [&b"cat"[..], b"dog"]);
        assert_eq!(index.dirs().collect::<Vec<_>>(), [(&b"cat"[..], 5)]);
        assert_eq!(fs::read_dir(dir.path().join("deep")).expect("listing").count(), 1, "no scraps");
    }

    #[test]
    fn damage_anywhere_is_noticed_and_a_newer_version_is_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.index");
        drop(Index::write(&path, &scan()).expect("written"));
        let good = fs::read(&path).expect("bytes");
        for at in (0..good.len()).filter(|at| !(8..12).contains(at)) {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            fs::write(&path, &bad).expect("written");
            assert!(Index::open(&path).expect("no error").is_none(), "damage at {at} went unnoticed");
        }
        for len in 0..good.len() {
            fs::write(&path, &good[..len]).expect("written");
            assert!(Index::open(&path).expect("no error").is_none(), "cut at {len} went unnoticed");
        }
        let mut newer = good;
        newer[8] = 2;
        fs::write(&path, &newer).expect("written");
        assert!(matches!(Index::open(&path), Err(Error::Newer { found: 2, known: 1, .. })));
    }
}
