//! A job and its batches.

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_engine::pipeline::{self, Failure, Feeding, Next, OnError, Sharing, Spec, remainder};
use forebay_engine::{Error, Result};
use forebay_policy::{Deal, Rank, Received};
use forebay_recipe::{CopyName, Recipe};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::batch::Batch;
use crate::dataset::{Dataset, Picks};
use crate::error::raise;
use crate::{engine, parse_output};

/// How a job shares, as Python says it; order `None` is ready and 0 strict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wish {
    pub(crate) order: Option<u64>,
    pub(crate) level: String,
    pub(crate) mixing: f64,
    pub(crate) before: Option<(u64, u64)>,
}

/// What a job is besides its dataset and recipe.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Terms<'py> {
    pub(crate) name: String,
    pub(crate) picks: PyRef<'py, Picks>,
    pub(crate) output: Option<String>,
    pub(crate) batch: u64,
    pub(crate) remainder: String,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) late: u64,
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
    pub(crate) on_error: String,
    pub(crate) ragged: bool,
    pub(crate) share: Option<Wish>,
}

/// How long to wait before looking for Ctrl-C.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// What [`pipeline::Job::pool`] tells.
const POOL: [&str; 3] = ["stream_jobs", "pool_copies", "pool_slots"];

/// Numbers as Python shows them: times in seconds.
pub(crate) fn set_metrics<'a>(
    metrics: &Bound<'_, PyDict>,
    numbers: impl IntoIterator<Item = (&'a str, u64)>,
) -> PyResult<()> {
    for (name, value) in numbers {
        match name.strip_suffix("_ns") {
            Some(stage) => metrics.set_item(format!("{stage}_seconds"), value as f64 / 1e9)?,
            None => metrics.set_item(name, value)?,
        }
    }
    Ok(())
}

/// PyTorch's error when a batch takes longer than `timeout` seconds; 0 is never.
pub(crate) fn timed_out(start: Instant, timeout: f64) -> PyResult<()> {
    if timeout > 0.0 && start.elapsed().as_secs_f64() >= timeout {
        let text = format!("DataLoader timed out after {timeout} seconds");
        return Err(pyo3::exceptions::PyTimeoutError::new_err(text));
    }
    Ok(())
}

/// A job of this process's engine.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Job {
    job: Mutex<Option<pipeline::Job>>,
    /// After a fork another thread of the parent may have held the lock: it is not touched then.
    pid: u32,
}

impl Job {
    fn lock(&self) -> MutexGuard<'_, Option<pipeline::Job>> {
        self.job.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn is_mine(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Runs `act` on the open job without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut pipeline::Job) -> Result<T> + Send,
    ) -> PyResult<T> {
        if !self.is_mine() {
            return Err(raise(py, Error::Forked));
        }
        py.detach(|| act(self.lock().as_mut().ok_or(Error::Closed)?)).map_err(|e| raise(py, e))
    }
}

#[pymethods]
impl Job {
    #[new]
    fn open(py: Python<'_>, dataset: &Dataset, recipe: &str, terms: Terms<'_>) -> PyResult<Self> {
        let share = terms
            .share
            .map(|Wish { order, level, mixing, before }| Sharing::parse(order, &level, mixing, before));
        let spec = Spec {
            dataset: dataset.0.clone(),
            picks: terms.picks.0.clone(),
            recipe: Recipe::from_json(recipe).map_err(|e| raise(py, e.into()))?,
            output: parse_output(py, terms.output.as_deref())?,
            batch: terms.batch,
            remainder: remainder(&terms.remainder).map_err(|e| raise(py, e))?,
            rank: terms.rank,
            ranks: terms.ranks,
            group: terms.name,
            late: terms.late,
            seed: terms.seed,
            shuffle: terms.shuffle,
            on_error: OnError::parse(&terms.on_error).map_err(|e| raise(py, e))?,
            ragged: terms.ragged,
            lend: false,
            share: share.transpose().map_err(|e| raise(py, e))?,
        };
        let job = py.detach(|| engine()?.join(spec)).map_err(|e| raise(py, e))?;
        Ok(Job { job: Mutex::new(Some(job)), pid: std::process::id() })
    }

    /// Begins an epoch after what was received of it (JSON): by all ranks, and beyond that by this one in so many
    /// steps.
    fn start(&self, py: Python<'_>, epoch: u64, received: &str, own: &str, steps: u64) -> PyResult<()> {
        let read = |text: &str| {
            serde_json::from_str::<Received>(text)
                .map_err(|e| raise(py, Error::Invalid(format!("the received set is damaged: {e}"))))
        };
        let (received, own) = (read(received)?, read(own)?);
        self.with(py, |job| job.start_rank(epoch, &received, &own, steps))
    }

    fn start_fed(&self, py: Python<'_>, epoch: u64, base: u64, skipped: u64, given: bool) -> PyResult<()> {
        let feeding = Feeding { base, skipped, given, ..Feeding::default() };
        self.with(py, |job| job.start_fed(epoch, feeding))
    }

    /// Begins an epoch of copies that a log names, after `base` of them.
    fn start_listed(&self, py: Python<'_>, epoch: u64, base: u64) -> PyResult<()> {
        self.with(py, |job| job.start_listed(epoch, base))
    }

    /// Adds a batch of copies: (seed, sample, generation, occurrence), and whether each is more than padding.
    fn feed_copies(&self, py: Python<'_>, copies: Vec<(u64, u64, u64, u64, bool)>) -> PyResult<()> {
        let copy = |(seed, sample, generation, occurrence, valid)| {
            (CopyName { seed, sample, generation, occurrence }, valid)
        };
        self.with(py, |job| job.list(copies.into_iter().map(copy).collect()))
    }

    fn feed(&self, py: Python<'_>, samples: Vec<u64>) -> PyResult<()> {
        self.with(py, |job| job.feed(&samples))
    }

    fn feed_end(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |job| job.feed_end())
    }

    /// The next batch; `None` at the end of the epoch; `False` when more must be fed first; `TimeoutError`
    /// after `timeout` seconds (0: never).
    fn next<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyAny>> {
        let start = Instant::now();
        loop {
            match self.with(py, |job| job.next(PATIENCE))? {
                Next::Batch(batch) => return Ok(Batch::from(*batch).into_pyobject(py)?.into_any()),
                Next::End => return Ok(py.None().into_bound(py)),
                Next::Hungry => return Ok(PyBool::new(py, false).to_owned().into_any()),
                Next::Waiting => py.check_signals()?,
            }
            timed_out(start, timeout)?;
        }
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = PyDict::new(py);
        if !self.is_mine() {
            return Ok(metrics);
        }
        let facts = py.detach(|| {
            let guard = self.lock();
            let job = guard.as_ref()?;
            let engine = job.engine();
            Some((
                job.counters().list(),
                engine.memory(),
                engine.idle_ns(),
                engine.config().clone(),
                job.pool(),
                engine.kept(),
                engine.disk().bytes,
            ))
        });
        if let Some((counters, (now, peak), idle_ns, config, pool, [encoded, decoded], disk)) = facts {
            set_metrics(&metrics, counters)?;
            let engine = [("idle_ns", idle_ns), ("bytes", now), ("peak_bytes", peak)];
            set_metrics(&metrics, engine)?;
            set_metrics(&metrics, [("budget_bytes", config.memory), ("threads", config.threads as u64)])?;
            set_metrics(
                &metrics,
                [("encoded_bytes", encoded), ("decoded_bytes", decoded), ("disk_bytes", disk)],
            )?;
            set_metrics(&metrics, POOL.into_iter().zip(pool.into_iter().flatten()))?;
        }
        Ok(metrics)
    }

    /// What memory is planned with, and what was decided, as JSON.
    fn planning(&self, py: Python<'_>) -> PyResult<String> {
        let planning = self.with(py, |job| Ok(job.engine().planning()))?;
        Ok(serde_json::to_string(&planning).unwrap_or_default())
    }

    /// Seed and clock of the shared stream, if it draws from one.
    fn clock(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        self.with(py, |job| Ok(job.clock()))
    }

    /// (sample, path, stage, cause) of what failed.
    fn quarantine(&self, py: Python<'_>) -> PyResult<Vec<(u64, OsString, String, String)>> {
        let failures = self.with(py, |job| job.quarantine())?;
        Ok(failures.into_iter().map(|f| (f.sample, f.path.into_os_string(), f.stage, f.cause)).collect())
    }

    fn set_quarantine(&self, py: Python<'_>, failures: Vec<(u64, OsString, String, String)>) -> PyResult<()> {
        let failures = failures
            .into_iter()
            .map(|(sample, path, stage, cause)| Failure { sample, path: path.into(), stage, cause })
            .collect();
        self.with(py, |job| job.set_quarantine(failures))
    }

    /// Leaves the engine.
    fn close(&self, py: Python<'_>) {
        if self.is_mine() {
            py.detach(|| drop(self.lock().take()));
        }
    }
}

/// What a job has received in an epoch.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct ReceivedSet(Mutex<Received>);

#[pymethods]
impl ReceivedSet {
    /// Empty, or read from a state for an epoch of `n` positions.
    #[new]
    #[pyo3(signature = (text=None, n=u64::MAX))]
    fn open(py: Python<'_>, text: Option<&str>, n: u64) -> PyResult<Self> {
        let wrong = |why: &str| raise(py, Error::Invalid(format!("the state's received set {why}")));
        let received: Received = match text {
            None => Received::default(),
            Some(text) => serde_json::from_str(text).map_err(|e| wrong(&format!("is damaged: {e}")))?,
        };
        if !received.is_sound(n) {
            return Err(wrong(&format!("does not fit a dataset of {n} samples")));
        }
        Ok(ReceivedSet(Mutex::new(received)))
    }

    /// Adds a batch, with what other ranks were given in the same step.
    fn add(&self, batch: &Batch) {
        let mut received = self.lock();
        received.add(&batch.positions, &batch.skipped);
        received.add(&batch.others, &[]);
    }

    /// Adds all that another set has.
    fn absorb(&self, other: &ReceivedSet) {
        let other = other.lock().clone();
        let beyond: Vec<u64> = (0..other.base).chain(other.beyond.iter()).collect();
        let failed: Vec<u64> = other.failed.into_iter().collect();
        self.lock().add(&beyond, &failed);
    }

    /// Samples received.
    fn count(&self) -> u64 {
        self.lock().count()
    }

    /// Whether nothing was received.
    fn is_empty(&self) -> bool {
        *self.lock() == Received::default()
    }

    /// JSON of base, skipped, beyond, failed.
    fn json(&self) -> String {
        serde_json::to_string(&*self.lock()).expect("plain data always serialises")
    }

    /// What all ranks have after so many steps of fixed shares of what this leaves of `n`.
    fn after(&self, py: Python<'_>, rank: &str, n: u64, steps: u64) -> PyResult<Self> {
        let (rank, all) = (read_rank(py, rank)?, self.lock().clone());
        Ok(ReceivedSet(Mutex::new(Deal::new(rank, n, &all).after(&all, steps))))
    }

    /// Adds to `sum` what a rank with a fixed share of what this leaves of `n` has.
    fn merge_rank(
        &self,
        py: Python<'_>,
        rank: &str,
        n: u64,
        own: &ReceivedSet,
        sum: &ReceivedSet,
    ) -> PyResult<()> {
        let rank: Rank = read_rank(py, rank)?;
        let (all, own) = (self.lock().clone(), own.lock().clone());
        Deal::new(rank, n, &all).merge(&mut sum.lock(), &own);
        Ok(())
    }
}

impl ReceivedSet {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn read_rank(py: Python<'_>, text: &str) -> PyResult<Rank> {
    let wrong = |why: String| raise(py, Error::Invalid(format!("the state's rank is damaged: {why}")));
    let rank: Rank = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let fits =
        rank.rank < rank.ranks && rank.batch > 0 && rank.batch.checked_mul(rank.ranks.into()).is_some();
    if fits { Ok(rank) } else { Err(wrong(text.into())) }
}

/// Batches of a rank in a fresh epoch of `n` samples.
#[pyfunction]
pub(crate) fn rank_steps(py: Python<'_>, rank: &str, n: u64) -> PyResult<u64> {
    Ok(Deal::new(read_rank(py, rank)?, n, &Received::default()).steps())
}
