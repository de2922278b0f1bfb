//! What storage gives: whole files, in random order, by more and more readers at once.

use std::fs::File;
use std::time::{Duration, Instant};

use forebay_policy::Permutation;
use rustix::fs::{Advice, fadvise, fdatasync};

use super::{Options, share};
use crate::error::Stage;
use crate::storage::Dataset;
use crate::{Error, Result};

/// Readers at once. More than this no store of files asks for.
const READERS: [usize; 4] = [1, 4, 16, 64];
/// For each number of them.
const LONGEST: Duration = Duration::from_millis(1000);
/// For each sample that is measured: many readers need many files to be busy.
const FILES: u64 = 4;
/// The largest file that is read.
const LIMIT: u64 = 1 << 30;

/// What some readers got.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests in flight.
    pub inflight: usize,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Files per second.
    pub requests_per_s: f64,
}

/// What storage gives in one state.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// With one request in flight, and with more.
    pub rates: Vec<Rate>,
}

impl Store {
    /// With one request in flight.
    pub fn one(&self) -> Rate {
        self.rates[0]
    }

    /// The most files per second, with as few requests in flight as come within 3 % of it.
    pub fn best(&self) -> Rate {
        let most = self.rates.iter().map(|rate| rate.requests_per_s).fold(0.0, f64::max);
        let enough = |rate: &&Rate| rate.requests_per_s >= 0.97 * most;
        self.rates.iter().find(enough).copied().unwrap_or(self.rates[0])
    }
}

/// Reads with each number of readers; `warm` leaves what the page cache has and fills it first.
pub(super) fn measure(
    dataset: &Dataset,
    options: &Options,
    warm: bool,
    progress: &(dyn Fn(&str, f64) + Sync),
) -> Result<Store> {
    let count = options.samples.saturating_mul(FILES).min(dataset.len());
    let what =
        if warm { "reading what is in the page cache" } else { "reading what is not in the page cache" };
    let mut rates = Vec::new();
    for (level, inflight) in READERS.into_iter().enumerate() {
        progress(what, level as f64 / READERS.len() as f64);
        // Other files each time, where there are enough: a device may remember too.
        let order = Permutation::new(dataset.len(), options.seed, if warm { 0 } else { level as u64 });
        let samples: Vec<u64> = (0..count).map(|i| order.at(i)).collect();
        if !warm {
            samples.iter().try_for_each(|&sample| forget(dataset, sample))?;
        } else if level == 0 {
            read(dataset, &samples, options.config.threads, LONGEST)?;
        }
        rates.push(read(dataset, &samples, inflight, LONGEST)?);
    }
    Ok(Store { rates })
}

/// Drops the pages of a file from the page cache, written back first: only clean ones go.
fn forget(dataset: &Dataset, sample: u64) -> Result<()> {
    let path = dataset.path(sample);
    let drop = || {
        let file = File::open(&path)?;
        // Neither may be possible (a read-only store); then the read is as warm as it is.
        let _ = fdatasync(&file);
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        Ok(())
    };
    drop().map_err(|e: std::io::Error| failed(dataset, sample, e.into()))
}

/// Reads `samples` by `inflight` threads for at most `longest`.
fn read(dataset: &Dataset, samples: &[u64], inflight: usize, longest: Duration) -> Result<Rate> {
    let begun = Instant::now();
    let done = share(
        inflight,
        samples.len() as u64,
        || begun.elapsed() < longest,
        || Ok((Vec::new(), 0u64, 0u64)),
        |(buffer, files, bytes), index| {
            let sample = samples[index as usize];
            dataset.read(sample, LIMIT, buffer).map_err(|fault| failed(dataset, sample, fault))?;
            *files += 1;
            *bytes += buffer.len() as u64;
            Ok(())
        },
    )?;
    let seconds = begun.elapsed().as_secs_f64();
    let (files, bytes) = done.iter().fold((0, 0), |sum, one| (sum.0 + one.1, sum.1 + one.2));
    Ok(Rate { inflight, bytes_per_s: bytes as f64 / seconds, requests_per_s: files as f64 / seconds })
}

pub(super) fn failed(dataset: &Dataset, sample: u64, fault: crate::Fault) -> Error {
    Error::Sample { sample, path: dataset.path(sample), stage: Stage::Read, fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_least_that_is_about_as_good() {
        let rate = |inflight, files| Rate { inflight, bytes_per_s: files * 10.0, requests_per_s: files };
        let store = Store { rates: vec![rate(1, 50.0), rate(4, 99.0), rate(16, 100.0), rate(64, 90.0)] };
        assert_eq!((store.one().inflight, store.best().inflight), (1, 4));
    }
}
