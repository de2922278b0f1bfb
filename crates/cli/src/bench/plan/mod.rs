//! `forebay bench plan`: does the plan predict what is measured, and is its split the best one?
//!
//! Each cell is a scarce thing (a slow device or the cores), an amount of memory and a number of jobs. In each, all
//! splits of memory in steps of a quarter are measured once; then the planned one, the best of them, and other
//! ways to use the memory take turns, round by round. Cells are saved as they are done, so that a run can go on.

mod cell;
mod predict;
mod side;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use forebay_arena::throttle::{Device, Throttle};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::report::{Metric, Pair, Report, Series};
use super::script::{BATCH, Config, SIZE};
use super::setup::{SEED, Setup, warn};
use super::stat;
use super::window::Window;
use crate::rng::Rng;
use crate::{Answer, cache};
use cell::{Cell, name, splits};
use predict::Costs;
use side::Side;

const RATE: Metric = Metric { name: "samples_per_s", digits: 2 };
const PREDICTED: Metric = Metric { name: "predicted_samples_per_s", digits: 2 };
const READS: Metric = Metric { name: "reads_per_delivery", digits: 4 };
const CPU: Metric = Metric { name: "cpu_s_per_sample", digits: 6 };

/// Other ways to use the memory, by what `forebay serve --cache` calls them.
const RIVALS: [&str; 5] = ["no-evict", "encoded", "decoded", "lru", "lru-decoded"];
/// Loaders without a daemon, each job for itself.
const APART: [(&str, &str); 2] =
    [("torch", include_str!("../sides/torch.py")), ("forebay-unshared", include_str!("../sides/forebay.py"))];
/// Worker processes of PyTorch that are tried; a slow device wants more than there are cores.
const WORKERS: [usize; 2] = [1, 4];
/// What the plan chooses.
const PLANNED: &str = "planned";
/// The split that was fastest when all were measured.
const BEST: &str = "best";
/// A side that reaches less of the planned one after this many rounds is not measured further.
const FAR: (usize, f64) = (3, 0.85);
/// Rounds that others than the planned and the best split take part in.
const RIVAL_ROUNDS: usize = 6;
/// Slots of a job in `forebay serve`, and samples in hand beside two batches.
const SLOTS: u64 = 4;

/// Samples per second, reads per delivery and CPU seconds per sample of a side, round by round.
type Rounds = Vec<Option<[f64; 3]>>;

/// Arguments of `forebay bench plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanBench {
    #[command(flatten)]
    setup: Setup,
    /// Only this cell, such as storage-25-4; may be given more than once.
    #[arg(long)]
    cell: Vec<Cell>,
    /// The simulated device of the cells where storage is scarce: hdd, nfs, s3, or its numbers.
    #[arg(long, default_value = "hdd")]
    device: Device,
    /// Measure cells again that an earlier run has saved.
    #[arg(long)]
    fresh: bool,
    /// Only show what is saved.
    #[arg(long, conflicts_with = "fresh")]
    saved: bool,
}

/// What was measured of a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) cell: Cell,
    /// Bytes for what is kept and for pools.
    pub(crate) room: u64,
    pub(crate) costs: Costs,
    /// Each split: predicted and measured.
    pub(crate) splits: Vec<([u8; 3], f64, f64)>,
    /// The planned split: predicted, and what it gives each form in percent.
    pub(crate) predicted: f64,
    pub(crate) chosen: [f64; 3],
    pub(crate) binds: Vec<String>,
    pub(crate) best: String,
    /// Of each side.
    pub(crate) rounds: BTreeMap<String, Rounds>,
}

impl PlanBench {
    /// Costs, then cell by cell, then all that is saved.
    pub(crate) fn run(self) -> Result<Answer> {
        let images = if self.setup.quick { 256 } else { 384 };
        let data = self.setup.open_with(images)?;
        let (copies, python) = (self.setup.copies(&data)?, self.setup.python());
        let file = saved_in(data.fingerprint, &self.device, self.setup.quick)?;
        let mut done = if self.fresh { Vec::new() } else { load(&file) };
        let folder = tempfile::tempdir()?;
        let throttle = folder.path().join("device");
        Throttle::create(&throttle, self.device)?;
        let config = Config {
            output: "uint8",
            keep: true,
            throttle: Some(&throttle),
            ..Config::new(&data.root, &copies, self.setup.threads())
        };
        eprintln!("device: {}", self.device.describe());
        let cells = if self.cell.is_empty() { Cell::all() } else { self.cell.clone() };
        let missing = |done: &[Done], cell: &Cell| done.iter().all(|one| one.cell != *cell);
        let bytes: u64 = data.files.iter().filter_map(|file| fs::metadata(file).ok()).map(|m| m.len()).sum();
        let bench = Bench {
            python: &python,
            config: &config,
            samples: data.files.len() as u64,
            bytes,
            device: self.device,
            quick: self.setup.quick,
            rounds: self.setup.rounds.map_or(if self.setup.quick { 3 } else { 20 }, |rounds| rounds as usize),
        };
        if !self.saved && cells.iter().any(|cell| missing(&done, cell)) {
            let costs = bench.costs()?;
            for cell in &cells {
                if !missing(&done, cell) {
                    continue;
                }
                done.push(bench.cell(*cell, costs)?);
                fs::write(&file, serde_json::to_vec_pretty(&done)?)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
        done.retain(|one| cells.contains(&one.cell));
        done.sort_by_key(|one| cells.iter().position(|cell| *cell == one.cell));
        let report = report(Machine::read(self.setup.threads()), &done);
        self.setup.show(&report, &(table::table(&done) + &report.comparison()))?;
        Ok(if done.len() < cells.len() { Answer::No } else { Answer::Yes })
    }
}

/// Where cells are saved: they belong to the data, the device and the length of the run.
fn saved_in(fingerprint: u64, device: &Device, quick: bool) -> Result<PathBuf> {
    let folder = cache::folder("bench")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let device: String = device.to_string().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let quick = if quick { "-quick" } else { "" };
    Ok(folder.join(format!("plan-{fingerprint:016x}-{device}{quick}.json")))
}

fn load(file: &Path) -> Vec<Done> {
    let text = fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// What all cells have in common.
struct Bench<'a> {
    python: &'a Path,
    config: &'a Config<'a>,
    samples: u64,
    bytes: u64,
    device: Device,
    quick: bool,
    rounds: usize,
}

impl<'a> Bench<'a> {
    fn window(&self) -> Duration {
        Duration::from_millis(if self.quick { 1500 } else { 2000 })
    }

    /// A daemon's memory that leaves `room` for what is kept and for pools.
    fn memory(&self, cell: Cell, room: u64) -> u64 {
        let image = (SIZE * SIZE * 3) as u64;
        let slot = (BATCH as u64 * (image + 8) + 512).next_multiple_of(1 << 16);
        let samples = 2 * BATCH as u64 + 2 * self.config.threads as u64;
        let job = SLOTS * slot + samples * (image + 32);
        (room + cell.jobs as u64 * job) * 4 / 3 + 1024
    }

    fn daemon(&self, cell: Cell, room: u64, cache: &str) -> Result<Side<'a>> {
        let memory = self.memory(cell, room);
        Side::daemon(self.python, self.config, cell, (memory, cache), self.samples)
    }

    /// What work costs here, from one job that decodes every sample and one that has all of them decoded.
    fn costs(&self) -> Result<Costs> {
        let cell = Cell { storage: false, memory: 100, jobs: 1 };
        let encoded = self.bytes as f64 / self.samples as f64;
        let mut turns = Vec::new();
        let room = self.bytes * 12;
        let mut decoded = 0.0;
        for cache in ["off", "decoded"] {
            let mut side = self.daemon(cell, room, cache)?;
            turns.push((0..3).map(|_| side.turn(self.window())).collect::<Result<Vec<_>>>()?);
            let kept = turns.last().and_then(|turns: &Vec<Window>| turns[0].decoded_bytes());
            decoded = f64::max(decoded, kept.unwrap_or_default() as f64 / self.samples as f64);
        }
        let all: Vec<[f64; 5]> =
            turns[0].iter().zip(&turns[1]).map(|(a, b)| predict::costs(a, b)).collect::<Result<_>>()?;
        let middle = |at: usize| {
            let values: Vec<f64> = all.iter().map(|one| one[at]).collect();
            stat::quantile(&values, 0.5).unwrap_or_default()
        };
        let costs = Costs {
            samples: self.samples,
            encoded,
            decoded,
            augmented: (SIZE * SIZE * 3 + 32) as f64,
            read_s: middle(0),
            decode_s: middle(1),
            augment_s: middle(2),
            finish_s: middle(3),
            job_s: middle(4),
            cores: self.config.threads as f64,
            requests: self.device.nominal(64, encoded as u64, false),
        };
        let us = |seconds: f64| seconds * 1e6;
        eprintln!(
            "a sample costs: read {:.0} us, decode {:.0}, augment {:.0}, finish {:.0}, the job itself {:.0}; \
             {:.0} KB in its file, {:.0} decoded; the device reads {:.0}/s",
            us(costs.read_s),
            us(costs.decode_s),
            us(costs.augment_s),
            us(costs.finish_s),
            us(costs.job_s),
            costs.encoded / 1e3,
            costs.decoded / 1e3,
            costs.requests
        );
        Ok(costs)
    }

    fn cell(&self, cell: Cell, costs: Costs) -> Result<Done> {
        let room = costs.decoded_set() / 100 * cell.memory;
        let bar = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{spinner} {prefix} {elapsed} {msg}")?)
            .with_prefix(cell.to_string());
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut measured = Vec::new();
        for split in splits() {
            bar.set_message(name(split));
            let rate = self.daemon(cell, room, &name(split))?.turn(self.window())?.samples_per_s();
            measured.push((split, costs.predict(cell, room, split)?.total(), rate));
        }
        let best = measured.iter().max_by(|a, b| a.2.total_cmp(&b.2)).context("nothing was measured")?;
        let best = name(best.0);
        let plan = costs.best(cell, room)?;
        let split = plan.splits.first().copied().unwrap_or_default();
        let percent = |bytes: u64| 100.0 * bytes as f64 / room as f64;
        let rounds = self.rounds(cell, room, &best, &bar)?;
        bar.finish_and_clear();
        Ok(Done {
            cell,
            room,
            costs,
            splits: measured,
            predicted: plan.total(),
            chosen: [split.encoded, split.decoded, split.pool].map(percent),
            binds: plan.binds.iter().map(|resource| resource.name().to_string()).collect(),
            best,
            rounds,
        })
    }

    /// The planned split, the best one and its rivals, in turns.
    fn rounds(
        &self,
        cell: Cell,
        room: u64,
        best: &str,
        bar: &ProgressBar,
    ) -> Result<BTreeMap<String, Rounds>> {
        let mut sides: Vec<(String, Option<Side<'a>>, Rounds)> = Vec::new();
        bar.set_message("starting");
        let named = [(PLANNED, "auto"), (BEST, best)].into_iter().chain(RIVALS.map(|rival| (rival, rival)));
        for (name, cache) in named {
            sides.push((name.into(), Some(self.daemon(cell, room, cache)?), Vec::new()));
        }
        // Loaders that share nothing are another question than how to use memory: with several jobs it is asked.
        for (name, script) in APART.into_iter().filter(|_| cell.jobs > 1) {
            match self.apart(cell, room, name, script) {
                Ok(side) => sides.push((name.into(), Some(side), Vec::new())),
                Err(error) => bar.suspend(|| warn(&error.context(format!("{name} cannot run")))),
            }
        }
        let mut rng = Rng::new(SEED, 2);
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..sides.len()).collect();
            rng.shuffle(&mut order);
            for at in order {
                let (name, side, values) = &mut sides[at];
                bar.set_message(format!("round {} of {}: {name}", round + 1, self.rounds));
                let value = match side {
                    Some(side) => side.turn(self.window()).map(|window| Some(figures(&window))),
                    None => Ok(None),
                };
                values.push(value.unwrap_or_else(|error| {
                    bar.suspend(|| warn(&error.context(format!("{name} stopped"))));
                    *side = None;
                    None
                }));
            }
            let middle = |values: &[Option<[f64; 3]>]| {
                let rates: Vec<f64> = values.iter().flatten().map(|value| value[0]).collect();
                stat::quantile(&rates, 0.5).unwrap_or_default()
            };
            let planned = middle(&sides[0].2);
            for (name, side, values) in &mut sides {
                let far = round + 1 >= FAR.0 && middle(values) < FAR.1 * planned;
                let rival = name != PLANNED && name != BEST;
                if name != PLANNED && far || rival && round + 1 >= RIVAL_ROUNDS {
                    *side = None;
                }
            }
        }
        Ok(sides.into_iter().map(|(name, _, values)| (name, values)).collect())
    }

    /// A loader in each process; of PyTorch the best number of workers.
    fn apart(&self, cell: Cell, room: u64, name: &str, script: &'static str) -> Result<Side<'a>> {
        // All of them together have what the daemon has.
        let memory = self.memory(cell, room) / cell.jobs as u64;
        let side =
            |threads| Side::apart(self.python, self.config, cell, (script, threads, memory), self.samples);
        if name != "torch" {
            return side(0);
        }
        let mut best: Option<(f64, Side<'a>)> = None;
        for threads in WORKERS {
            let mut side = side(threads)?;
            let rate = side.turn(self.window())?.samples_per_s();
            if best.as_ref().is_none_or(|(most, _)| rate > *most) {
                best = Some((rate, side));
            }
        }
        best.map(|(_, side)| side).context("no number of workers is tried")
    }
}

/// Samples per second, reads per delivery, CPU seconds per sample.
fn figures(window: &Window) -> [f64; 3] {
    let reads = window.counted("reads", "deliveries").unwrap_or_default();
    [window.samples_per_s(), reads, window.cpu_s_per_sample().unwrap_or_default()]
}

fn report(machine: Machine, done: &[Done]) -> Report {
    let sides = |name: &str| match name {
        PLANNED => Some("planned"),
        BEST => Some(BEST),
        other => RIVALS.iter().chain(APART.iter().map(|(name, _)| name)).find(|one| **one == other).copied(),
    };
    let mut series = Vec::new();
    let mut pairs = Vec::new();
    for one in done {
        let case = one.cell.to_string();
        let lone =
            |side, metric, value| Series { side, case: case.clone(), metric, values: vec![Some(value)] };
        series.push(lone("planned", PREDICTED, one.predicted));
        for (name, rounds) in &one.rounds {
            let Some(side) = sides(name) else { continue };
            for (at, metric) in [RATE, READS, CPU].into_iter().enumerate() {
                let values = rounds.iter().map(|round| round.map(|values| values[at])).collect();
                series.push(Series { side, case: case.clone(), metric, values });
            }
            if name != PLANNED {
                pairs.push(Pair::new(("planned", case.clone()), (side, case.clone()), case.clone()));
            }
        }
    }
    Report::new("plan", machine, &series, &[RATE], &pairs, SEED)
}
