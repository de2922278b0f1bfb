//! What every bench is told, and what it does with it: data, Python, pace, output.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::data::Data;
use super::report::Report;
use super::script::BATCH;
use super::{machine, plot};
use crate::generate::Parameters;
use crate::rng::Rng;
use crate::{cache, demo, hint, python};

/// Of pictures, orders and resamples.
pub(crate) const SEED: u64 = 1;
/// What to do about a side that is not installed.
pub(crate) const CURE: &str =
    "`make bench-env` makes a Python environment with every side; or name one with --python";
const CLASSES: u64 = 100;

/// Arguments of all benches.
#[derive(Debug, Args)]
pub(crate) struct Setup {
    /// Fewer and shorter rounds: under 3 minutes, for a first look.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds that every side takes part in; without it, the bench's own number, or fewer when time runs out.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: Option<u64>,
    /// An image folder with JPEGs; generated if it does not exist. Default: a generated one in the cache.
    #[arg(long)]
    data: Option<PathBuf>,
    /// How many JPEGs to generate; default: 2000, or 1000 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u64).range(64..))]
    images: Option<u64>,
    /// Threads or worker processes of each loader, and the cores that all share.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Let Forebay keep decoded images in memory, which no other side does; without it, it decodes in every
    /// epoch, as with a dataset that is larger than memory.
    #[arg(long)]
    pub(crate) keep: bool,
    /// The Python that has the loaders; default: .bench-env, the active environment, else python3.
    #[arg(long, env = "FOREBAY_PYTHON")]
    python: Option<PathBuf>,
    /// Also draw the rates into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

impl Setup {
    /// Makes or finds the data, keeps to the cores and warms the page cache.
    pub(crate) fn open(&self) -> Result<Data> {
        self.open_with(if self.quick { 1000 } else { 2000 })
    }

    /// The same with so many images where nothing else is said.
    pub(crate) fn open_with(&self, images: u64) -> Result<Data> {
        let images = self.images.unwrap_or(images);
        let parameters = Parameters { images, classes: CLASSES.min(images), seed: SEED };
        let root = match &self.data {
            Some(root) => root.clone(),
            None => cache::folder("generated")?.join(parameters.folder()),
        };
        if self.data.is_none() || !root.exists() {
            demo::prepare(&root, parameters)?;
        }
        let data = Data::open(&root, BATCH)?;
        machine::keep_to(self.threads());
        let bytes = data.warm()?;
        eprintln!(
            "{} JPEGs, {:.0} KB each on average, in {}",
            data.files.len(),
            bytes as f64 / data.files.len() as f64 / 1e3,
            data.root.display()
        );
        Ok(data)
    }

    /// What Forebay's daemon keeps.
    pub(crate) fn cache(&self) -> &'static str {
        if self.keep { "auto" } else { "off" }
    }

    /// Of each loader.
    pub(crate) fn threads(&self) -> usize {
        self.threads as usize
    }

    /// The folder for what other loaders convert `data` to.
    pub(crate) fn copies(&self, data: &Data) -> Result<PathBuf> {
        let copies = cache::folder("bench")?.join(format!("{:016x}", data.fingerprint));
        fs::create_dir_all(&copies).with_context(|| format!("cannot create {}", copies.display()))?;
        Ok(copies)
    }

    /// The Python that runs the sides.
    pub(crate) fn python(&self) -> PathBuf {
        python::find(self.python.as_deref(), &[Path::new(".bench-env")])
    }

    /// Draws and prints.
    pub(crate) fn show(&self, report: &Report, table: &str) -> Result<()> {
        if let Some(file) = &self.svg {
            fs::write(file, plot::svg(report)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            print!("{table}");
        }
        Ok(())
    }
}

/// A side may fail without ending the others' run.
pub(crate) fn warn(error: &anyhow::Error) {
    eprint!("{}", hint::render(error).replacen("error:", "warning:", 1));
}

/// When rounds begin, and in what order the sides take their turns.
#[derive(Debug)]
pub(crate) struct Pace {
    begun: Instant,
    limit: Duration,
    longest: Duration,
    round: Option<Instant>,
    rng: Rng,
}

impl Pace {
    /// No round after the first starts that would probably end more than `limit` after `begun`.
    pub(crate) fn new(begun: Instant, limit: Duration) -> Self {
        Self { begun, limit, longest: Duration::ZERO, round: None, rng: Rng::new(SEED, 1) }
    }

    /// A new random order of `turns`; `None` when there is no time for it.
    pub(crate) fn next(&mut self, turns: usize) -> Option<Vec<usize>> {
        self.longest = self.longest.max(self.round.take().map_or(Duration::ZERO, |start| start.elapsed()));
        if !self.longest.is_zero() && self.begun.elapsed().saturating_add(self.longest) > self.limit {
            return None;
        }
        self.round = Some(Instant::now());
        let mut order: Vec<usize> = (0..turns).collect();
        self.rng.shuffle(&mut order);
        Some(order)
    }

    /// What to say when [`Pace::next`] had no time after so many rounds.
    pub(crate) fn excuse(&self, done: usize) -> String {
        format!("warning: stopped after {done} rounds to stay within {} s", self.limit.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_has_a_turn_in_each_round_until_time_runs_out() {
        let mut pace = Pace::new(Instant::now(), Duration::MAX);
        let mut order = pace.next(5).unwrap();
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert!(pace.next(5).is_some());
        let mut late = Pace::new(Instant::now(), Duration::from_millis(30));
        assert!(late.next(1).is_some());
        std::thread::sleep(Duration::from_millis(20));
        // The next round would probably end 40 ms after the beginning.
        assert!(late.next(1).is_none());
    }
}
