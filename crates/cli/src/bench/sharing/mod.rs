//! `forebay bench sharing`: several training processes over the same images, every loader in turn.
//!
//! A side's processes are forked by one that has imported it, and live through the run where they can;
//! their loaders, and what feeds them, are made anew for each turn. `server` is what feeds jobs.

mod server;
mod table;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::jobs::{Jobs, Turn};
use super::machine::Machine;
use super::report::{Metric, Pair, Report, Series};
use super::script::{Config, Started};
use super::setup::{CURE, Pace, SEED, Setup, warn};
use super::window::Window;
use crate::Answer;
use crate::daemon::Daemon;
use crate::hint::Hinted;
use server::Server;

/// Samples per second of all jobs together.
pub(crate) const RATE: Metric = Metric { name: "samples_per_s", digits: 2 };
/// Samples per second of one job.
const JOB: Metric = Metric { name: "job_samples_per_s", digits: 2 };
/// The slowest job's rate over the fastest one's.
const FAIRNESS: Metric = Metric { name: "fairness", digits: 4 };
/// CPU seconds of all processes for each delivered sample.
const CPU: Metric = Metric { name: "cpu_s_per_sample", digits: 6 };
/// Where the side counts both.
const PREPARATIONS: Metric = Metric { name: "preparations_per_delivery", digits: 4 };

/// Enough for a pool of all generated images and the batches of eight jobs.
pub(crate) const MEMORY: u64 = 4 << 30;
/// More than any side has prefetched when its jobs begin together.
pub(crate) const SKIP: usize = 6;
/// What PyTorch users try: worker processes for each training process.
const WORKERS: [usize; 3] = [0, 1, 2];

/// Arguments of `forebay bench sharing`.
#[derive(Debug, Args)]
pub(crate) struct Sharing {
    #[command(flatten)]
    setup: Setup,
    /// Only these sides.
    #[arg(long, value_delimiter = ',')]
    sides: Vec<Name>,
    /// How many processes load at once; default: 1,2,4,8, or 1,4 with --quick.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=64))]
    processes: Vec<u64>,
    /// The type of pixels in a batch.
    #[arg(long, value_enum, default_value_t = Output::Float32)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Normalised.
    Float32,
    /// As decoded.
    Uint8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Forebay's loader in every process, fed by one daemon.
    Forebay,
    /// Forebay's loader in every process, each for itself.
    ForebayUnshared,
    /// PyTorch's DataLoader and Pillow, with the best of 0, 1 and 2 workers for each process.
    Torch,
    /// DALI on the CPU.
    Dali,
    /// FFCV.
    Ffcv,
    /// TensorSocket: one PyTorch DataLoader for all processes.
    Tensorsocket,
}

/// How one side is made.
#[derive(Debug, Clone, Copy)]
struct Entry {
    name: Name,
    side: &'static str,
    script: &'static str,
}

const ENTRIES: [Entry; 6] = [
    Entry { name: Name::Forebay, side: "forebay", script: include_str!("../sides/forebay.py") },
    Entry {
        name: Name::ForebayUnshared,
        side: "forebay-unshared",
        script: include_str!("../sides/forebay.py"),
    },
    Entry { name: Name::Torch, side: "torch", script: include_str!("../sides/torch.py") },
    Entry { name: Name::Dali, side: "dali", script: include_str!("../sides/dali.py") },
    Entry { name: Name::Ffcv, side: "ffcv", script: include_str!("../sides/ffcv.py") },
    Entry {
        name: Name::Tensorsocket,
        side: "tensorsocket",
        script: include_str!("../sides/tensorsocket.py"),
    },
];

/// Lengths of a run.
#[derive(Debug, Clone)]
struct Plan {
    rounds: usize,
    window: Duration,
    cases: Vec<usize>,
    limit: Duration,
}

impl Plan {
    fn new(quick: bool, rounds: Option<u64>, processes: &[u64]) -> Self {
        let (most, window, cases, limit): (_, _, &[u64], _) =
            if quick { (2, 1500, &[1, 4], 160) } else { (10, 3000, &[1, 2, 4, 8], 1700) };
        let chosen = if processes.is_empty() { cases } else { processes };
        let mut cases: Vec<usize> = chosen.iter().map(|&count| count as usize).collect();
        cases.sort_unstable();
        cases.dedup();
        Self {
            rounds: rounds.map_or(most, |rounds| rounds as usize),
            window: Duration::from_millis(window),
            cases,
            limit: rounds.map_or(Duration::from_secs(limit), |_| Duration::MAX),
        }
    }
}

/// A side that started, with all it measured.
struct Running<'a> {
    entry: Entry,
    jobs: Jobs<'a>,
    /// What Forebay's daemon keeps.
    cache: &'static str,
    cases: Vec<Case>,
}

/// A number of processes.
struct Case {
    count: usize,
    threads: usize,
    windows: Vec<Option<Window>>,
    alive: bool,
}

impl Sharing {
    /// Data, sides, PyTorch's best setting, rounds, report.
    pub(crate) fn run(self) -> Result<Answer> {
        let begun = Instant::now();
        let plan = Plan::new(self.setup.quick, self.setup.rounds, &self.processes);
        let data = self.setup.open()?;
        let (copies, python) = (self.setup.copies(&data)?, self.setup.python());
        let output = match self.output {
            Output::Float32 => "float32",
            Output::Uint8 => "uint8",
        };
        let config = Config {
            output,
            keep: self.setup.keep,
            ..Config::new(&data.root, &copies, self.setup.threads())
        };
        let mut machine = Machine::read(self.setup.threads());
        let mut sides = self.start(&python, &config, &plan, &mut machine)?;
        for side in sides.iter_mut().filter(|side| side.entry.name == Name::Torch) {
            let chosen = side.choose(plan.window / 2);
            machine.versions.entry(side.entry.side.into()).and_modify(|version| version.push_str(&chosen));
        }
        take_turns(&mut sides, &plan, begun)?;
        let report = report(machine, &sides, &plan.cases);
        self.setup.show(&report, &table::table(&report))?;
        let whole = |name| sides.iter().any(|one| one.entry.name == name && one.is_whole());
        let missed = [Name::Forebay, Name::Torch].into_iter().any(|name| self.wants(name) && !whole(name));
        Ok(if missed { Answer::No } else { Answer::Yes })
    }

    fn wants(&self, name: Name) -> bool {
        self.sides.is_empty() || self.sides.contains(&name)
    }

    /// The sides that can run; they import and convert at the same time.
    fn start<'a>(
        &self,
        python: &'a Path,
        config: &Config<'a>,
        plan: &Plan,
        machine: &mut Machine,
    ) -> Result<Vec<Running<'a>>> {
        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut sides = Vec::new();
        for entry in ENTRIES.into_iter().filter(|entry| self.wants(entry.name)) {
            // A process with Forebay chooses its threads by itself.
            let own = matches!(entry.name, Name::Forebay | Name::ForebayUnshared);
            let threads = if own { 0 } else { config.threads };
            let jobs = Jobs::open(python, entry.script, Config { threads, ..config.clone() })?;
            let case = |&count: &usize| Case { count, threads, windows: Vec::new(), alive: true };
            let cache = self.setup.cache();
            sides.push(Running { entry, jobs, cache, cases: plan.cases.iter().map(case).collect() });
        }
        sides.retain_mut(|side| {
            bar.set_message(format!("waiting for {}", side.entry.side));
            let why = match side.jobs.wait() {
                Ok(Started::Ready(version)) => {
                    machine.versions.insert(side.entry.side.into(), version);
                    return true;
                }
                Ok(Started::Missing(why)) => {
                    let said = format!("{} is missing in {}: {why}", side.entry.side, python.display());
                    Hinted::new(said, CURE).into()
                }
                Err(error) => error.context(format!("{} cannot run", side.entry.side)),
            };
            bar.suspend(|| warn(&why));
            false
        });
        bar.finish_and_clear();
        Ok(sides)
    }
}

impl Running<'_> {
    /// Whether all its cases ran to the end.
    fn is_whole(&self) -> bool {
        self.cases.iter().all(|case| case.alive && !case.windows.is_empty())
    }

    fn turn(&mut self, count: usize, threads: usize, skip: usize, window: Duration) -> Result<Window> {
        let mut server = match self.entry.name {
            Name::Forebay => {
                let daemon = Daemon::open(MEMORY, crate::demo::cores(), self.cache, None)?;
                Some(Server::Daemon(daemon))
            }
            Name::Tensorsocket => Some(Server::producer(self.jobs.producer(count)?)?),
            _ => None,
        };
        let place = server.as_ref().map(Server::place);
        let measured = self.jobs.turn(Turn { count, beside: None, threads, server: place, skip, window });
        measured.map_err(|error| match server.as_mut().and_then(Server::complaint) {
            Some(complaint) => error.context(complaint),
            None => error,
        })
    }

    /// Tries numbers of workers for each number of processes, keeps the fastest, and tells them. A worker
    /// of PyTorch has two batches ready.
    fn choose(&mut self, window: Duration) -> String {
        let mut told = Vec::new();
        for index in 0..self.cases.len() {
            let count = self.cases[index].count;
            let rate = |threads| {
                let window = self.turn(count, threads, 2 * threads + 1, window).inspect_err(warn).ok()?;
                Some((window.samples_per_s(), threads))
            };
            let best = WORKERS.into_iter().filter_map(rate).max_by(|one, other| one.0.total_cmp(&other.0));
            if let Some((_, threads)) = best {
                self.cases[index].threads = threads;
                told.push(format!("{threads} at {count}"));
            }
        }
        format!("; workers for each process: {}", told.join(", "))
    }
}

/// Every side with every number of processes, in a new random order each round.
fn take_turns(sides: &mut [Running<'_>], plan: &Plan, begun: Instant) -> Result<()> {
    let turns = sides.len() * plan.cases.len();
    let bar = ProgressBar::new((plan.rounds * turns) as u64).with_style(ProgressStyle::with_template(
        "{wide_bar} {pos}/{len} turns, {elapsed} (about {eta} left) {msg}",
    )?);
    let mut pace = Pace::new(begun, plan.limit);
    for round in 0..plan.rounds {
        let Some(order) = pace.next(turns) else {
            bar.suspend(|| eprintln!("{}", pace.excuse(round)));
            break;
        };
        for (side, case) in order.into_iter().map(|at| (at / plan.cases.len(), at % plan.cases.len())) {
            let side = &mut sides[side];
            let Case { count, threads, alive, .. } = side.cases[case];
            bar.set_message(format!("{} {count}", side.entry.side));
            let window =
                if alive { side.turn(count, threads, SKIP, plan.window).map(Some) } else { Ok(None) };
            let window = window.unwrap_or_else(|error| {
                bar.suspend(|| {
                    warn(&error.context(format!("{} stopped with {count} processes", side.entry.side)))
                });
                side.cases[case].alive = false;
                None
            });
            side.cases[case].windows.push(window);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A value for each round.
type Value = fn(&Window) -> Option<f64>;

fn report(machine: Machine, sides: &[Running<'_>], cases: &[usize]) -> Report {
    let metrics: [(Metric, Value); 4] = [
        (RATE, |window| Some(window.samples_per_s())),
        (FAIRNESS, Window::fairness),
        (CPU, Window::cpu_s_per_sample),
        (PREPARATIONS, Window::preparations_per_delivery),
    ];
    let mut series = Vec::new();
    for (metric, value) in metrics {
        for side in sides {
            series.extend(side.cases.iter().map(|case| Series {
                side: side.entry.side,
                case: case.count.to_string(),
                metric,
                values: case.windows.iter().map(|window| value(window.as_ref()?)).collect(),
            }));
        }
    }
    for side in sides {
        for case in &side.cases {
            series.extend((0..case.count).map(|job| Series {
                side: side.entry.side,
                case: format!("{} job {}", case.count, job + 1),
                metric: JOB,
                values:
                    case.windows.iter().map(|window| window.as_ref()?.rates().get(job).copied()).collect(),
            }));
        }
    }
    Report::new("sharing", machine, &series, &[RATE], &pairs(cases), SEED)
}

/// Forebay over every other side at the same number of processes, and over itself with the fewest.
fn pairs(cases: &[usize]) -> Vec<Pair> {
    let others = ENTRIES.iter().filter(|entry| entry.name != Name::Forebay);
    let same = others.flat_map(|entry| {
        let pair = |case: &usize| {
            let case = case.to_string();
            Pair::new(("forebay", case.clone()), (entry.side, case.clone()), case)
        };
        cases.iter().map(pair)
    });
    let fewest = cases.first().map_or_else(String::new, usize::to_string);
    let more = cases.iter().skip(1).map(|case| {
        let name = format!("{case}/{fewest}");
        Pair::new(("forebay", case.to_string()), ("forebay", fewest.clone()), name)
    });
    same.chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        sharing: Sharing,
    }

    /// Two sides and two numbers of processes; torch has no fairness.
    pub(super) fn report() -> Report {
        let one = |side, case: &str, metric, value| Series {
            side,
            case: case.into(),
            metric,
            values: vec![Some(value)],
        };
        let series = [
            one("forebay", "1", RATE, 1000.0),
            one("forebay", "4", RATE, 2000.0),
            one("torch", "4", RATE, 500.0),
            one("forebay", "1", FAIRNESS, 1.0),
            one("forebay", "4", FAIRNESS, 0.5),
            one("forebay", "1", CPU, 0.002),
            one("forebay", "4", CPU, 0.001),
            one("torch", "4", CPU, 0.004),
            one("forebay", "4", PREPARATIONS, 0.3),
        ];
        Report::new("sharing", Machine::read(2), &series, &[RATE], &pairs(&[1, 4]), SEED)
    }

    #[test]
    fn sides_and_processes_are_named_as_in_the_report() {
        let line = Line::parse_from(["sharing", "--sides", "forebay-unshared,torch", "--processes", "4,1,4"]);
        assert_eq!(line.sharing.sides, [Name::ForebayUnshared, Name::Torch]);
        assert_eq!(Plan::new(false, None, &line.sharing.processes).cases, [1, 4]);
        for entry in ENTRIES {
            assert_eq!(Name::from_str(entry.side, false).as_ref(), Ok(&entry.name));
        }
        assert!(Line::try_parse_from(["sharing", "--sides", "spdl"]).is_err());
        assert!(Line::try_parse_from(["sharing", "--processes", "0"]).is_err());
        assert!(Line::try_parse_from(["sharing", "--output", "float16"]).is_err());
    }

    #[test]
    fn a_number_of_rounds_lifts_the_limit() {
        assert!(Plan::new(true, None, &[]).limit < Duration::from_secs(180));
        assert!(Plan::new(false, None, &[]).limit < Duration::from_secs(1800));
        let plan = Plan::new(true, Some(30), &[]);
        assert_eq!((plan.rounds, plan.limit), (30, Duration::MAX));
    }

    #[test]
    fn the_json_has_a_case_for_each_number_of_processes_and_ratios_of_rates_alone() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["bench"], "sharing");
        assert_eq!(json["results"].as_array().unwrap().len(), 9);
        assert_eq!(json["results"][1]["case"], "4");
        assert_eq!(json["results"][1]["metric"], "samples_per_s");
        assert_eq!(json["results"][6]["median"], 0.001);
        let ratio = |of: &str, over: &str, case: &str| {
            let ratios = json["ratios"].as_array().unwrap();
            let same =
                |one: &&serde_json::Value| one["of"] == of && one["over"] == over && one["case"] == case;
            ratios.iter().find(same).map(|one| one["value"].as_f64().unwrap())
        };
        assert_eq!(ratio("forebay", "torch", "4"), Some(4.0));
        assert_eq!(ratio("forebay", "torch", "1"), None);
        assert_eq!(ratio("forebay", "forebay", "4/1"), Some(2.0));
        assert_eq!(json["ratios"].as_array().unwrap().len(), 2);
    }
}
