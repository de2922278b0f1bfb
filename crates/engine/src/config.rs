//! How much memory and how many threads a process gives to loading.

use std::path::PathBuf;

use forebay_arena::Room;

use crate::{CacheMode, Error, Result};

/// Nobody expects a loader to take more than this by itself.
const MOST: u64 = 16 << 30;
/// Less holds no batch of anything.
const LEAST: u64 = 1 << 20;

/// The engine's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Bytes for samples in hand, batches and scratch.
    pub memory: u64,
    /// Worker threads.
    pub threads: usize,
    /// Which forms of samples are kept.
    pub cache: CacheMode,
    /// They are kept also when no job is left.
    pub keep: bool,
    /// Where files of slow devices are kept across restarts.
    pub disk: Option<DiskConfig>,
}

/// A directory on a local disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// It is made where it is not there.
    pub dir: PathBuf,
    /// Bytes that all files in it may have.
    pub bytes: u64,
}

impl DiskConfig {
    /// Reads `"/path:100GB"`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::Invalid(format!(
                "{text:?} is not a directory with a size; write it like /local/forebay:100GB"
            ))
        };
        let (dir, size) = text.rsplit_once(':').filter(|(dir, _)| !dir.is_empty()).ok_or_else(wrong)?;
        let bytes = parse_bytes(size).ok().filter(|bytes| *bytes > 0).ok_or_else(wrong)?;
        Ok(DiskConfig { dir: std::path::absolute(dir).map_err(|_| wrong())?, bytes })
    }
}

impl Config {
    /// So many bytes and threads; forms are kept as they fit while there are jobs.
    pub fn new(memory: u64, threads: usize) -> Self {
        Config { memory, threads, cache: CacheMode::Auto, keep: false, disk: None }
    }

    /// From arguments, else `FOREBAY_MEMORY` and `FOREBAY_THREADS`, else what the machine allows: a quarter
    /// of the memory, at most 16 GB, and the cores that affinity and cgroup leave.
    ///
    /// `FOREBAY_CACHE` says which forms of samples are kept where `cache` does not; `FOREBAY_DISK` names a
    /// directory and its size where `disk` does not, and without it there is none.
    pub fn resolve(
        memory: Option<u64>,
        threads: Option<usize>,
        cache: Option<CacheMode>,
        disk: Option<DiskConfig>,
    ) -> Result<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let memory = match (memory, set("FOREBAY_MEMORY")) {
            (Some(bytes), _) => bytes,
            (None, Some(text)) => parse_bytes(&text)?,
            (None, None) => (Room::now().allowed() / 4).min(MOST),
        };
        let threads = match (threads, set("FOREBAY_THREADS")) {
            (Some(threads), _) => threads,
            (None, Some(text)) => text.parse().map_err(|_| {
                Error::Invalid(format!("FOREBAY_THREADS={text:?} is not a number of threads"))
            })?,
            // Counts both the affinity mask and the cgroup quota.
            (None, None) => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let cache = match (cache, set("FOREBAY_CACHE")) {
            (Some(mode), _) => mode,
            (None, Some(text)) => CacheMode::parse(&text)?,
            (None, None) => CacheMode::default(),
        };
        let disk = match (disk, set("FOREBAY_DISK")) {
            (None, Some(text)) => Some(DiskConfig::parse(&text)?),
            (disk, _) => disk,
        };
        if memory < LEAST {
            return Err(Error::Budget(format!("{memory} B is less than the least budget, {LEAST} B")));
        }
        if threads == 0 || threads > 1024 {
            return Err(Error::Invalid(format!("{threads} threads: choose between 1 and 1024")));
        }
        Ok(Config { memory, threads, cache, keep: false, disk })
    }

    /// The part of the budget that threads decode in, and that files are read ahead into.
    pub fn scratch(&self) -> u64 {
        self.memory / 4
    }

    /// The part of it for files that are read ahead.
    pub(crate) fn read_ahead(&self) -> u64 {
        self.scratch() / 8
    }

    /// What one thread decodes in.
    pub(crate) fn thread_scratch(&self) -> u64 {
        (self.scratch() - self.read_ahead()) / self.threads as u64
    }
}

/// Reads `"64GB"`, `"1.5 GiB"`, `"300000"`.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let wrong = || Error::Invalid(format!("{text:?} is not a size; write it like 64GB, 512MiB or 1000000"));
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = trimmed[digits.len()..].trim().to_ascii_lowercase();
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        "t" | "tb" => 1_000_000_000_000,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * factor as f64;
    if !(0.0..1e18).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_reads_as_a_path_and_a_size() {
        let disk = |dir: &str, bytes| Some(DiskConfig { dir: dir.into(), bytes });
        assert_eq!(DiskConfig::parse("/local/a:100GB").ok(), disk("/local/a", 100_000_000_000));
        assert_eq!(DiskConfig::parse("/a:b:5").ok(), disk("/a:b", 5));
        for bad in ["", "/local", ":5GB", "/local:", "/local:0", "/local:many"] {
            assert!(DiskConfig::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_bytes("64GB").ok(), Some(64_000_000_000));
        assert_eq!(parse_bytes(" 1.5 GiB ").ok(), Some(3 << 29));
        assert_eq!(parse_bytes("300000").ok(), Some(300_000));
        assert_eq!(parse_bytes("256mb").ok(), Some(256_000_000));
        for bad in ["", "GB", "-1", "1XB", "1e99GB", "nan"] {
            assert!(parse_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
