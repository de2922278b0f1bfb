//! Who is here: the names of jobs, and what `forebay status` shows of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay_engine::Counters;
use forebay_wire::{Number, StatusJob};
use std::os::unix::ffi::OsStrExt;

/// One job, as others see it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    /// Which rank of how many.
    pub(crate) rank: (u32, u32),
    pub(crate) pid: u32,
    pub(crate) root: PathBuf,
    pub(crate) samples: u64,
    /// Samples in an epoch of all ranks.
    pub(crate) epoch_samples: u64,
    pub(crate) batch: u64,
    pub(crate) counters: Arc<Counters>,
    pub(crate) joined: Instant,
    pub(crate) epoch: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) lent: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Board(Arc<Mutex<BTreeMap<u64, Option<Arc<Listed>>>>>);

/// A connection's place on the board; it is empty again when this is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    board: Board,
    id: u64,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Option<Arc<Listed>>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A connection that is no job yet.
    pub(crate) fn enter(&self) -> Entry {
        let mut all = self.lock();
        let id = all.last_key_value().map_or(0, |(id, _)| id + 1);
        all.insert(id, None);
        Entry { board: Board(self.0.clone()), id }
    }

    pub(crate) fn connections(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn jobs(&self) -> usize {
        self.lock().values().flatten().count()
    }

    pub(crate) fn list(&self) -> Vec<StatusJob> {
        self.lock().values().flatten().map(|job| job.status()).collect()
    }
}

impl Entry {
    /// The process of a live job of that name and rank.
    pub(crate) fn holder(&self, name: &str, rank: u32) -> Option<u32> {
        let all = self.board.lock();
        all.values().flatten().find(|job| job.name == name && job.rank.0 == rank).map(|job| job.pid)
    }

    /// Lists the job, or says whose the name is.
    pub(crate) fn list(&self, job: Arc<Listed>) -> Result<(), u32> {
        let mut all = self.board.lock();
        if let Some(other) =
            all.values().flatten().find(|other| other.name == job.name && other.rank.0 == job.rank.0)
        {
            return Err(other.pid);
        }
        all.insert(self.id, Some(job));
        Ok(())
    }

    /// The job has left.
    pub(crate) fn unlist(&self) {
        self.board.lock().insert(self.id, None);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.board.lock().remove(&self.id);
    }
}

impl Listed {
    fn status(&self) -> StatusJob {
        StatusJob {
            name: match self.rank {
                (_, 1) => self.name.clone(),
                (rank, ranks) => format!("{} rank {rank} of {ranks}", self.name),
            },
            pid: self.pid,
            root: self.root.as_os_str().as_bytes().to_vec(),
            batch: self.batch,
            epoch: self.epoch.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            samples: self.epoch_samples,
            lent: self.lent.load(Ordering::Relaxed),
            numbers: numbers(&self.counters),
            age_ns: self.joined.elapsed().as_nanos() as u64,
        }
    }
}

/// Counters as messages carry them.
pub(crate) fn numbers(counters: &Counters) -> Vec<Number> {
    let number = |(name, value): (&str, u64)| Number { name: name.into(), value };
    counters.list().into_iter().map(number).collect()
}
