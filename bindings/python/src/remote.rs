//! A job of a daemon. Reconnecting is Python's: it knows what was received.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_wire::client::{Client, DEADLINE, Error, Next};
use forebay_wire::{
    Answer, Ask, Done, Failure, Failures, Fed, Feed, Join, Open, Part, Parts, Sharing, Start, Trouble, picks,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::batch::Batch;
use crate::dataset::Dataset;
use crate::error::raise_wire;
use crate::loader::{PATIENCE, Terms, Wish, set_metrics, timed_out};

type Row = (u64, OsString, String, String);

/// A connection to a daemon, and the job that it has become.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Remote {
    client: Mutex<Option<Client>>,
    pid: u32,
}

impl Remote {
    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Client) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        if !self.is_mine() {
            return Err(raise_wire(py, Error::Lost(Trouble::Closed)));
        }
        py.detach(|| act(self.lock().as_mut().ok_or(Error::Lost(Trouble::Closed))?))
            .map_err(|e| raise_wire(py, e))
    }

    /// Asks and waits, looking for Ctrl-C meanwhile.
    fn call(&self, py: Python<'_>, ask: Ask, patience: Option<Duration>) -> PyResult<Answer> {
        let id = self.with(py, |client| client.send(ask))?;
        self.wait(py, id, patience)
    }

    fn wait(&self, py: Python<'_>, id: u64, patience: Option<Duration>) -> PyResult<Answer> {
        let start = Instant::now();
        loop {
            if let Some(answer) = self.with(py, |client| client.answer(id, PATIENCE))? {
                return Ok(answer);
            }
            py.check_signals()?;
            if patience.is_some_and(|patience| start.elapsed() >= patience) {
                return Err(raise_wire(py, Error::Lost(Trouble::Late)));
            }
        }
    }

    fn ask(&self, py: Python<'_>, ask: Ask) -> PyResult<Answer> {
        self.call(py, ask, Some(DEADLINE))
    }
}

#[pymethods]
impl Remote {
    #[new]
    fn connect(py: Python<'_>, socket: PathBuf) -> PyResult<Self> {
        let client = py.detach(|| Client::connect(&socket)).map_err(|e| raise_wire(py, e))?;
        Ok(Remote { client: Mutex::new(Some(client)), pid: std::process::id() })
    }

    /// Whether this process connected; a forked child must connect for itself.
    fn is_mine(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Has the daemon make or find the index of a folder. A scan takes as long as it takes.
    fn open(&self, py: Python<'_>, root: PathBuf) -> PyResult<()> {
        let ask = Ask::Open(Open { root: root.into_os_string().into_vec() });
        self.call(py, ask, None).map(|_| ())
    }

    fn join(&self, py: Python<'_>, dataset: &Dataset, recipe: String, terms: Terms<'_>) -> PyResult<()> {
        let sharing = terms.share.map(|Wish { order, level, mixing, before }| Sharing {
            order,
            level,
            mixing,
            seed: before.map(|(seed, _)| seed),
            clock: before.map(|(_, clock)| clock),
        });
        let parts = dataset.0.parts().iter().map(|folder| Part {
            root: folder.root().as_os_str().as_bytes().to_vec(),
            fingerprint: folder.fingerprint(),
        });
        let join = Join {
            parts: Parts::pack(parts.collect()),
            picks: picks::send(&terms.picks.0),
            recipe,
            output: terms.output.unwrap_or_default(),
            batch: terms.batch,
            remainder: terms.remainder,
            rank: terms.rank,
            ranks: terms.ranks,
            late: terms.late,
            seed: terms.seed,
            shuffle: terms.shuffle,
            on_error: terms.on_error,
            ragged: terms.ragged,
            sharing,
            name: terms.name,
        };
        self.call(py, Ask::Join(join), None).map(|_| ())
    }

    /// Begins an epoch after what was received of it (JSON), which was so many samples, and beyond that by
    /// this rank, in so many steps.
    fn start(
        &self,
        py: Python<'_>,
        epoch: u64,
        received: String,
        count: u64,
        own: String,
        steps: u64,
    ) -> PyResult<()> {
        let start = Start { epoch, received, fed: None, own, steps };
        let id = self.with(py, |client| client.start(start, count))?;
        self.wait(py, id, Some(DEADLINE)).map(|_| ())
    }

    /// `passed` of the `base` positions are not fed again; `seen` says how often each sample stands there.
    #[expect(clippy::too_many_arguments, reason = "what an epoch is")]
    fn start_fed(
        &self,
        py: Python<'_>,
        epoch: u64,
        base: u64,
        skipped: u64,
        given: bool,
        passed: u64,
        seen: Vec<u8>,
    ) -> PyResult<()> {
        let fed = Fed { base, skipped, given, passed, seen };
        let start = Start { epoch, fed: Some(fed), ..Start::default() };
        let id = self.with(py, |client| client.start(start, base - skipped.min(base)))?;
        self.wait(py, id, Some(DEADLINE)).map(|_| ())
    }

    fn feed(&self, py: Python<'_>, samples: Vec<u64>) -> PyResult<()> {
        self.ask(py, Ask::Feed(Feed { samples, end: false })).map(|_| ())
    }

    fn feed_end(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, Ask::Feed(Feed { samples: Vec::new(), end: true })).map(|_| ())
    }

    /// As [`crate::loader::Job::next`].
    fn next<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyAny>> {
        let start = Instant::now();
        loop {
            match self.with(py, |client| client.next(PATIENCE))? {
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
        let Answer::Facts(facts) = self.ask(py, Ask::Facts(Done {}))? else { return Ok(metrics) };
        set_metrics(&metrics, facts.numbers.iter().map(|number| (number.name.as_str(), number.value)))?;
        let (copied, waited) = self.with(py, |client| Ok((client.copied(), client.waited())))?;
        set_metrics(&metrics, [("copied_batches", copied), ("wait_ns", waited.as_nanos() as u64)])?;
        Ok(metrics)
    }

    /// What memory is planned with, and what was decided, as JSON.
    fn planning(&self, py: Python<'_>) -> PyResult<String> {
        let Answer::Status(status) = self.ask(py, Ask::Status(Done {}))? else { return Ok(String::new()) };
        Ok(status.planning)
    }

    /// Seed and clock of the shared stream, as of the batch received last.
    fn clock(&self) -> Option<(u64, u64)> {
        // After a fork another thread of the parent may have held the lock.
        if !self.is_mine() {
            return None;
        }
        self.lock().as_ref()?.clock()
    }

    fn quarantine(&self, py: Python<'_>) -> PyResult<Vec<Row>> {
        let Answer::Failures(list) = self.ask(py, Ask::Failures(Done {}))? else { return Ok(Vec::new()) };
        let row = |f: Failure| (f.sample, OsStr::from_bytes(&f.path).to_owned(), f.stage, f.cause);
        Ok(list.failures.into_iter().map(row).collect())
    }

    fn set_quarantine(&self, py: Python<'_>, failures: Vec<Row>) -> PyResult<()> {
        let failure =
            |(sample, path, stage, cause): Row| Failure { sample, path: path.into_vec(), stage, cause };
        let failures = failures.into_iter().map(failure).collect();
        self.ask(py, Ask::Quarantine(Failures { failures })).map(|_| ())
    }

    /// Leaves the daemon. Batches that are still held stay valid.
    fn close(&self, py: Python<'_>) {
        if self.is_mine() {
            py.detach(|| {
                if let Some(mut client) = self.lock().take() {
                    // A daemon that is gone has forgotten the job.
                    let _ = client.leave();
                }
            });
        }
    }
}

/// Where the daemon of this user listens.
#[pyfunction]
pub(crate) fn default_socket() -> PathBuf {
    forebay_wire::default_socket()
}
