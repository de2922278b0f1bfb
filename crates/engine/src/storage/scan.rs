//! The parallel walk of an image folder, in torchvision's order and with its errors.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Result};

/// What torchvision takes for an image.
pub const EXTENSIONS: [&str; 9] = [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Folders nested deeper are taken for a loop of links.
const MAX_DEPTH: usize = 40;

/// One file of a class. Names are bytes relative to the root, as Linux has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) class: u32,
    pub(super) size: u64,
    pub(super) mtime_ns: i64,
}

/// A directory and when it last changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dir {
    pub(super) name: Vec<u8>,
    pub(super) mtime_ns: i64,
}

/// Everything a scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) classes: Vec<Vec<u8>>,
    pub(super) dirs: Vec<Dir>,
    pub(super) entries: Vec<Entry>,
}

/// Nanoseconds since the epoch of a file's last change.
pub(super) fn mtime_ns(meta: &fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// Scans `root` on `threads` threads; `progress` is told the number of files found so far.
pub(super) fn scan(root: &Path, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Result<Scan> {
    let at = |source| Error::Io { path: root.to_path_buf(), source };
    let meta = fs::metadata(root).map_err(at)?;
    let mut classes = Vec::new();
    for entry in fs::read_dir(root).map_err(at)? {
        let entry = entry.map_err(at)?;
        if is_dir(&entry) {
            classes.push(entry.file_name().into_vec());
        }
    }
    classes.sort_unstable();
    if classes.is_empty() {
        return Err(Error::NotFound(format!("Couldn't find any class folder in {}.", root.display())));
    }
    let next = AtomicUsize::new(0);
    let found = AtomicUsize::new(0);
    let parts: Vec<Mutex<Option<Result<Scan>>>> = classes.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, classes.len()) {
            scope.spawn(|| {
                loop {
                    let class = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(name), Some(part)) = (classes.get(class), parts.get(class)) else { return };
                    let result = scan_class(root, name, class as u32);
                    if let Ok(scan) = &result {
                        let more = scan.entries.len();
                        progress((found.fetch_add(more, Ordering::Relaxed) + more) as u64);
                    }
                    *part.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
                }
            });
        }
    });
    let mut all = Scan { dirs: vec![Dir { name: Vec::new(), mtime_ns: mtime_ns(&meta) }], ..Scan::default() };
    let mut empty = Vec::new();
    for (part, class) in parts.into_iter().zip(&classes) {
        let part = part.into_inner().unwrap_or_else(|e| e.into_inner());
        let part = part.expect("every class was scanned before the threads ended")?;
        if part.entries.is_empty() {
            empty.push(String::from_utf8_lossy(class).into_owned());
        }
        all.dirs.extend(part.dirs);
        all.entries.extend(part.entries);
    }
    if !empty.is_empty() {
        return Err(Error::NotFound(format!(
            "Found no valid file for the classes {}. Supported extensions are: {}",
            empty.join(", "),
            EXTENSIONS.join(", ")
        )));
    }
    all.classes = classes;
    Ok(all)
}

fn is_dir(entry: &fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
        Ok(kind) => kind.is_dir(),
        Err(_) => false,
    }
}

fn scan_class(root: &Path, class_name: &[u8], class: u32) -> Result<Scan> {
    let mut scan = Scan::default();
    // (folder, files in it); sorted by folder name as torchvision sorts os.walk.
    let mut folders: Vec<(Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    let mut open = vec![(class_name.to_vec(), 1)];
    while let Some((folder, depth)) = open.pop() {
        let path = join(root, &folder);
        let at = |source| Error::Io { path: path.clone(), source };
        if depth > MAX_DEPTH {
            return Err(at(io::Error::other("folders are nested too deeply; is there a loop of links?")));
        }
        let meta = fs::metadata(&path).map_err(at)?;
        scan.dirs.push(Dir { name: folder.clone(), mtime_ns: mtime_ns(&meta) });
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).map_err(at)? {
            let entry = entry.map_err(at)?;
            let name = entry.file_name().into_vec();
            if is_dir(&entry) {
                let mut inner = folder.clone();
                inner.push(b'/');
                inner.extend(name);
                open.push((inner, depth + 1));
            } else if is_image(&name) {
                files.push(name);
            }
        }
        files.sort_unstable();
        folders.push((folder, files));
    }
    folders.sort_unstable();
    for (folder, files) in folders {
        for file in files {
            let mut name = folder.clone();
            name.push(b'/');
            name.extend(file);
            // A broken link is listed, as torchvision lists it, and fails when it is read.
            let meta = fs::metadata(join(root, &name)).ok();
            let (size, mtime_ns) = meta.as_ref().map_or((0, 0), |meta| (meta.len(), mtime_ns(meta)));
            scan.entries.push(Entry { name, class, size, mtime_ns });
        }
    }
    scan.dirs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(scan)
}

fn is_image(name: &[u8]) -> bool {
    let tail = &name[name.len().saturating_sub(8)..].to_ascii_lowercase();
    EXTENSIONS.iter().any(|extension| tail.ends_with(extension.as_bytes()))
}

/// `root` with a name relative to it.
pub(super) fn join(root: &Path, name: &[u8]) -> PathBuf {
    if name.is_empty() { root.to_path_buf() } else { root.join(OsStr::from_bytes(name)) }
}
