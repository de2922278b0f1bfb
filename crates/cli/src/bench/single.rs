//! `forebay bench single`: one job, every loader, taking turns.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::data::Data;
use super::machine::{self, Machine};
use super::plot;
use super::report::{Pair, Report, Series};
use super::side::{BATCH, Bare, Config, Python, Side, Started};
use crate::generate::Parameters;
use crate::hint::Hinted;
use crate::rng::Rng;
use crate::{Answer, cache, demo, hint, python};

const SEED: u64 = 1;
const CLASSES: u64 = 100;
const CURE: &str = "`make bench-env` makes a Python environment with every side; or name one with --python";

/// Arguments of `forebay bench single`.
#[derive(Debug, Args)]
pub(crate) struct Single {
    /// Fewer and shorter rounds: under 3 minutes, for a first look.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds that every side takes part in; default: 24, or 4 with --quick, or fewer when time runs out.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// An image folder with JPEGs; generated if it does not exist. Default: a generated one in the cache.
    #[arg(long)]
    data: Option<PathBuf>,
    /// How many JPEGs to generate; default: 2000, or 1000 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u64).range(64..))]
    images: Option<u64>,
    /// Threads or worker processes of each side, and the cores they share.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// The Python that has the loaders; default: .bench-env, the active environment, else python3.
    #[arg(long, env = "FOREBAY_PYTHON")]
    python: Option<PathBuf>,
    /// Only these sides.
    #[arg(long, value_delimiter = ',')]
    sides: Vec<Name>,
    /// Also draw the rates into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Name {
    /// Forebay's Python loader, with exact and with scaled decoding.
    Forebay,
    /// The same crops decoded and resized by the same codecs in a bare loop.
    Native,
    /// A bare full decode to RGB by libjpeg-turbo, and nothing else.
    Decode,
    /// PyTorch's DataLoader, ImageFolder and Pillow.
    Torch,
    /// PyTorch's DataLoader with torchvision.io and v2 transforms.
    TorchIo,
    /// DALI on the CPU.
    Dali,
    /// FFCV.
    Ffcv,
    /// SPDL.
    Spdl,
    /// WebDataset.
    Webdataset,
}

/// How one side in one case is made.
#[derive(Debug, Clone, Copy)]
struct Entry {
    name: Name,
    side: &'static str,
    case: &'static str,
    /// `None` for loops in this process.
    script: Option<&'static str>,
}

const fn entry(name: Name, side: &'static str, case: &'static str, script: Option<&'static str>) -> Entry {
    Entry { name, side, case, script }
}

const ENTRIES: [Entry; 10] = [
    entry(Name::Forebay, "forebay", "exact", Some(include_str!("sides/forebay.py"))),
    entry(Name::Forebay, "forebay", "scaled", Some(include_str!("sides/forebay.py"))),
    entry(Name::Native, "native", "later", None),
    entry(Name::Decode, "decode", "later", None),
    entry(Name::Torch, "torch", "later", Some(include_str!("sides/torch.py"))),
    entry(Name::TorchIo, "torch-io", "later", Some(include_str!("sides/torch_io.py"))),
    entry(Name::Dali, "dali", "later", Some(include_str!("sides/dali.py"))),
    entry(Name::Ffcv, "ffcv", "later", Some(include_str!("sides/ffcv.py"))),
    entry(Name::Spdl, "spdl", "later", Some(include_str!("sides/spdl.py"))),
    entry(Name::Webdataset, "webdataset", "later", Some(include_str!("sides/webdataset.py"))),
];

/// Lengths of a run. Skipped batches exceed what any side prefetches; both are even, because loaders
/// with two workers deliver in pairs.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rounds: usize,
    skip: usize,
    batches: usize,
    firsts: usize,
    /// No round starts that would probably end after this.
    limit: Duration,
}

impl Plan {
    fn new(quick: bool, rounds: Option<u64>) -> Self {
        let plan = if quick {
            Self { rounds: 4, skip: 6, batches: 8, firsts: 1, limit: Duration::from_secs(170) }
        } else {
            Self { rounds: 24, skip: 8, batches: 16, firsts: 3, limit: Duration::from_secs(1740) }
        };
        match rounds {
            Some(rounds) => Self { rounds: rounds as usize, limit: Duration::MAX, ..plan },
            None => plan,
        }
    }
}

/// A side that started, with all it measured.
struct Running {
    entry: Entry,
    side: Box<dyn Side>,
    first: Vec<Option<f64>>,
    later: Vec<Option<f64>>,
    alive: bool,
}

impl Single {
    /// Data, sides, rounds, report.
    pub(crate) fn run(self) -> Result<Answer> {
        let begun = Instant::now();
        let threads = self.threads as usize;
        let plan = Plan::new(self.quick, self.rounds);
        let data = self.data()?;
        machine::keep_to(threads);
        let bytes = data.warm()?;
        eprintln!(
            "{} JPEGs, {:.0} KB each on average, in {}",
            data.files.len(),
            bytes as f64 / data.files.len() as f64 / 1e3,
            data.root.display()
        );
        let mut machine = Machine::read(threads);
        let (mut sides, absent) = self.start(&data, threads, &mut machine)?;
        if absent.contains(&Name::Torch) {
            eprintln!("error: the torch side cannot run, so there is nothing to compare with\nhint: {CURE}");
            return Ok(Answer::No);
        }
        take_turns(&mut sides, plan, begun)?;
        let report = report(machine, &sides);
        if let Some(file) = &self.svg {
            fs::write(file, plot::svg(&report))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report.table());
        }
        let lost = |name| sides.iter().any(|one| one.entry.name == name && !one.alive);
        let whole = !absent.contains(&Name::Forebay) && !lost(Name::Forebay) && !lost(Name::Torch);
        Ok(if whole { Answer::Yes } else { Answer::No })
    }

    fn data(&self) -> Result<Data> {
        let images = self.images.unwrap_or(if self.quick { 1000 } else { 2000 });
        let parameters = Parameters { images, classes: CLASSES.min(images), seed: SEED };
        let root = match &self.data {
            Some(root) => root.clone(),
            None => cache::folder("generated")?.join(parameters.folder()),
        };
        if self.data.is_none() || !root.exists() {
            demo::prepare(&root, parameters)?;
        }
        Data::open(&root, BATCH)
    }

    /// Starts all Python sides at once, then waits for each: imports and conversions overlap.
    fn start(
        &self,
        data: &Data,
        threads: usize,
        machine: &mut Machine,
    ) -> Result<(Vec<Running>, BTreeSet<Name>)> {
        let wanted = |entry: &&Entry| self.sides.is_empty() || self.sides.contains(&entry.name);
        let copies = cache::folder("bench")?.join(format!("{:016x}", data.fingerprint));
        fs::create_dir_all(&copies).with_context(|| format!("cannot create {}", copies.display()))?;
        let python = python::find(self.python.as_deref(), &[Path::new(".bench-env")]);

        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar.set_message("starting the sides");
        let mut opened = Vec::new();
        for entry in ENTRIES.iter().filter(wanted) {
            let process = match entry.script {
                Some(script) => {
                    let config = Config::new(&data.root, &copies, entry.case, threads, SEED);
                    Some(Python::open(&python, script, &config)?)
                }
                None => None,
            };
            opened.push((*entry, process));
        }
        let (mut sides, mut absent) = (Vec::new(), BTreeSet::new());
        for (entry, process) in opened {
            bar.set_message(format!("waiting for {} {}", entry.side, entry.case));
            let side: Box<dyn Side> = match process {
                None => Box::new(Bare::new(data, entry.name == Name::Decode, threads, SEED)?),
                Some(mut process) => match process.wait() {
                    Ok(Started::Ready(version)) => {
                        machine.versions.insert(entry.side.into(), version);
                        Box::new(process)
                    }
                    Ok(Started::Missing(why)) => {
                        let said = format!("{} is missing in {}: {why}", entry.side, python.display());
                        if absent.insert(entry.name) {
                            bar.suspend(|| warn(&Hinted::new(said, CURE).into()));
                        }
                        continue;
                    }
                    Err(error) => {
                        let said = format!("{} {} cannot run", entry.side, entry.case);
                        bar.suspend(|| warn(&error.context(said)));
                        absent.insert(entry.name);
                        continue;
                    }
                },
            };
            sides.push(Running { entry, side, first: Vec::new(), later: Vec::new(), alive: true });
        }
        bar.finish_and_clear();
        Ok((sides, absent))
    }
}

/// A side may fail without ending the others' run.
fn warn(error: &anyhow::Error) {
    eprint!("{}", hint::render(error).replacen("error:", "warning:", 1));
}

/// First epochs, then rounds; a new random order each time.
fn take_turns(sides: &mut [Running], plan: Plan, begun: Instant) -> Result<()> {
    let turns = (plan.firsts + plan.rounds) * sides.len();
    let bar = ProgressBar::new(turns as u64).with_style(ProgressStyle::with_template(
        "{wide_bar} {pos}/{len} turns, {elapsed} (about {eta} left) {msg}",
    )?);
    let mut rng = Rng::new(SEED, 1);
    let mut longest = Duration::ZERO;
    for turn in 0..plan.firsts + plan.rounds {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        rng.shuffle(&mut order);
        let is_first = turn < plan.firsts;
        if begun.elapsed().saturating_add(longest) > plan.limit {
            let (done, limit) = (turn.saturating_sub(plan.firsts), plan.limit.as_secs());
            bar.suspend(|| eprintln!("warning: stopped after {done} rounds to stay within {limit} s"));
            break;
        }
        let start = Instant::now();
        for index in order {
            let one = &mut sides[index];
            bar.set_message(format!("{} {}", one.entry.side, one.entry.case));
            let measured = match (one.alive, is_first) {
                (false, _) => Ok(None),
                (true, true) => one.side.first(),
                (true, false) => one.side.round(plan.skip, plan.batches).map(Some),
            };
            let rate = measured.unwrap_or_else(|error| {
                one.alive = false;
                bar.suspend(|| {
                    warn(&error.context(format!("{} {} stopped", one.entry.side, one.entry.case)))
                });
                None
            });
            let rates = if is_first { &mut one.first } else { &mut one.later };
            rates.push(rate.map(|turn| turn.rate()));
            if one.alive {
                one.side.settle();
            }
            bar.inc(1);
        }
        if !is_first {
            longest = longest.max(start.elapsed());
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// `exact` and `scaled` are Forebay's later epochs; `first` marks first epochs of all.
fn report(machine: Machine, sides: &[Running]) -> Report {
    let first = |case: &str| match case {
        "later" => "first".to_owned(),
        case => format!("{case}-first"),
    };
    let later = sides.iter().map(|one| Series {
        side: one.entry.side,
        case: one.entry.case.into(),
        rates: one.later.clone(),
    });
    let firsts = sides.iter().map(|one| Series {
        side: one.entry.side,
        case: first(one.entry.case),
        rates: one.first.clone(),
    });
    let series: Vec<Series> = later.chain(firsts).collect();
    let others = || ENTRIES.iter().filter(|entry| entry.name != Name::Forebay);
    let exact =
        |entry: &Entry| Pair { of: ("forebay", "exact"), over: (entry.side, entry.case), case: "exact" };
    let first = |entry: &Entry| Pair {
        of: ("forebay", "exact-first"),
        over: (entry.side, "first"),
        case: "exact-first",
    };
    let mut pairs: Vec<Pair> = others().map(exact).collect();
    pairs.push(Pair { of: ("forebay", "scaled"), over: ("torch", "later"), case: "scaled" });
    pairs.push(Pair { of: ("native", "later"), over: ("decode", "later"), case: "later" });
    pairs.extend(others().map(first));
    Report::new("single", machine, &series, &pairs, SEED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        single: Single,
    }

    #[test]
    fn sides_are_named_as_in_the_report() {
        let line = Line::parse_from(["single", "--sides", "forebay,torch-io,webdataset", "--rounds", "2"]);
        assert_eq!(line.single.sides, [Name::Forebay, Name::TorchIo, Name::Webdataset]);
        for entry in ENTRIES {
            assert_eq!(Name::from_str(entry.side, false).as_ref(), Ok(&entry.name));
        }
        assert!(Line::try_parse_from(["single", "--sides", "tensorflow"]).is_err());
        assert!(Line::try_parse_from(["single", "--rounds", "0"]).is_err());
    }

    #[test]
    fn the_full_form_has_at_least_twenty_rounds() {
        assert!(Plan::new(false, None).rounds >= 20);
        assert!(Plan::new(true, None).rounds < 20);
        assert_eq!(Plan::new(true, Some(30)).rounds, 30);
    }
}
