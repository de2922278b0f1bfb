//! The files of a bench: found, named by a fingerprint, and read once so that the page cache is warm.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};

use crate::hint::Hinted;

/// An image folder's JPEGs.
#[derive(Debug)]
pub(crate) struct Data {
    /// The image folder.
    pub(crate) root: PathBuf,
    /// Its JPEGs, sorted.
    pub(crate) files: Vec<PathBuf>,
    /// Changes with any file's name, size or time: names the copies that other loaders convert to.
    pub(crate) fingerprint: u64,
}

impl Data {
    /// Lists `root`; it must hold at least one epoch of `batch`.
    pub(crate) fn open(root: &Path, batch: usize) -> Result<Self> {
        let root = root.canonicalize().with_context(|| format!("cannot open {}", root.display()))?;
        let mut files = Vec::new();
        for entry in list(&root)? {
            if entry.is_dir() {
                gather(&entry, &mut files)?;
            }
        }
        files.sort();
        if files.len() < batch {
            bail!(Hinted::new(
                format!(
                    "{} has {} JPEGs in its class folders, a batch takes {batch}",
                    root.display(),
                    files.len()
                ),
                "leave --data out to generate a data set",
            ));
        }
        // FNV-1a: the same on every machine and release.
        let mut fingerprint = 0xcbf2_9ce4_8422_2325_u64;
        let mut mix = |bytes: &[u8]| {
            for &byte in bytes {
                fingerprint = (fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for file in &files {
            let meta = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
            let changed = meta
                .modified()
                .ok()
                .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
                .unwrap_or_default();
            mix(file.as_os_str().as_encoded_bytes());
            mix(&meta.len().to_le_bytes());
            mix(&changed.as_nanos().to_le_bytes());
        }
        Ok(Self { root, files, fingerprint })
    }

    /// Reads every file once; returns their bytes together.
    pub(crate) fn warm(&self) -> Result<u64> {
        self.files.iter().try_fold(0, |sum, file| {
            let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            Ok(sum + bytes.len() as u64)
        })
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot list {}", folder.display());
    fs::read_dir(folder).with_context(context)?.map(|entry| Ok(entry.with_context(context)?.path())).collect()
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in list(folder)? {
        if path.is_dir() {
            gather(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("jpg") || end.eq_ignore_ascii_case("jpeg"))
        {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jpegs_in_class_folders_count_and_changes_show() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        for (name, text) in [("a/1.jpg", "x"), ("a/2.JPEG", "y"), ("a/3.txt", "no"), ("4.jpg", "no class")] {
            fs::write(root.path().join(name), text).unwrap();
        }
        let data = Data::open(root.path(), 2).unwrap();
        assert_eq!(data.files.len(), 2);
        assert_eq!(data.warm().unwrap(), 2);
        fs::write(root.path().join("a/1.jpg"), "longer").unwrap();
        assert_ne!(Data::open(root.path(), 2).unwrap().fingerprint, data.fingerprint);
        assert!(Data::open(root.path(), 3).is_err());
    }
}
