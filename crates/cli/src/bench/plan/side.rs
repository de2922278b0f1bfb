//! One way to use the memory, kept running from turn to turn: a daemon of its own and the jobs it feeds.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::cell::Cell;
use crate::bench::jobs::{Jobs, Turn};
use crate::bench::script::{BATCH, Config, Started};
use crate::bench::window::Window;
use crate::daemon::Daemon;

/// Batches that may wait for a job between two turns.
const WAITING: usize = 5;
/// Epochs in which a side fills its memory before it is measured.
const WARM: usize = 2;

/// A side that runs.
#[derive(Debug)]
pub(crate) struct Side<'a> {
    daemon: Option<Daemon>,
    jobs: Jobs<'a>,
    count: usize,
    threads: usize,
    /// Batches of an epoch.
    epoch: usize,
    warm: bool,
}

impl<'a> Side<'a> {
    /// Forebay's daemon that keeps what `cache` says in `memory` bytes.
    pub(crate) fn daemon(
        python: &'a Path,
        config: &Config<'a>,
        cell: Cell,
        (memory, cache): (u64, &str),
        samples: u64,
    ) -> Result<Self> {
        let throttle = config.throttle.filter(|_| cell.storage);
        let daemon = Daemon::open(memory, config.threads, cache, throttle)?;
        let config = Config { threads: 0, stays: true, throttle, ..config.clone() };
        let jobs = Jobs::open(python, include_str!("../sides/forebay.py"), config)?;
        Self::start(Some(daemon), jobs, cell, 0, samples)
    }

    /// A loader in each process, for itself.
    pub(crate) fn apart(
        python: &'a Path,
        config: &Config<'a>,
        cell: Cell,
        (script, threads, memory): (&'static str, usize, u64),
        samples: u64,
    ) -> Result<Self> {
        let throttle = config.throttle.filter(|_| cell.storage);
        let memory = Some(memory);
        let config = Config { threads, memory, stays: true, throttle, ..config.clone() };
        let jobs = Jobs::open(python, script, config)?;
        Self::start(None, jobs, cell, threads, samples)
    }

    fn start(
        daemon: Option<Daemon>,
        mut jobs: Jobs<'a>,
        cell: Cell,
        threads: usize,
        samples: u64,
    ) -> Result<Self> {
        if let Started::Missing(why) = jobs.wait()? {
            bail!(why);
        }
        let epoch = samples as usize / BATCH;
        Ok(Side { daemon, jobs, count: cell.jobs, threads, epoch, warm: false })
    }

    /// A window of its steady state.
    pub(crate) fn turn(&mut self, window: Duration) -> Result<Window> {
        let skip = if self.warm { WAITING } else { WARM * self.epoch + WAITING };
        self.warm = true;
        let server = self.daemon.as_ref().map(|daemon| (daemon.socket(), daemon.group()));
        let turn = Turn { count: self.count, beside: None, threads: self.threads, server, skip, window };
        self.jobs.turn(turn)
    }
}
