//! `forebay bench single`: one job, every loader, taking turns.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::data::Data;
use super::machine::Machine;
use super::report::{IMAGES, Pair, Report, Series};
use super::script::{Config, Python, Started};
use super::setup::{CURE, Pace, SEED, Setup, warn};
use super::side::{Bare, Side};
use crate::Answer;
use crate::hint::Hinted;

/// Arguments of `forebay bench single`.
#[derive(Debug, Args)]
pub(crate) struct Single {
    #[command(flatten)]
    setup: Setup,
    /// Only these sides.
    #[arg(long, value_delimiter = ',')]
    sides: Vec<Name>,
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
        let threads = self.setup.threads();
        let plan = Plan::new(self.setup.quick, self.setup.rounds);
        let data = self.setup.open()?;
        let mut machine = Machine::read(threads);
        let (mut sides, absent) = self.start(&data, threads, &mut machine)?;
        if absent.contains(&Name::Torch) {
            eprintln!("error: the torch side cannot run, so there is nothing to compare with\nhint: {CURE}");
            return Ok(Answer::No);
        }
        take_turns(&mut sides, plan, begun)?;
        let report = report(machine, &sides);
        self.setup.show(&report, &report.table())?;
        let lost = |name| sides.iter().any(|one| one.entry.name == name && !one.alive);
        let whole = !absent.contains(&Name::Forebay) && !lost(Name::Forebay) && !lost(Name::Torch);
        Ok(if whole { Answer::Yes } else { Answer::No })
    }

    /// Starts all Python sides at once, then waits for each: imports and conversions overlap.
    fn start(
        &self,
        data: &Data,
        threads: usize,
        machine: &mut Machine,
    ) -> Result<(Vec<Running>, BTreeSet<Name>)> {
        let wanted = |entry: &&Entry| self.sides.is_empty() || self.sides.contains(&entry.name);
        let (copies, python) = (self.setup.copies(data)?, self.setup.python());

        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar.set_message("starting the sides");
        let mut opened = Vec::new();
        for entry in ENTRIES.iter().filter(wanted) {
            let process = match entry.script {
                Some(script) => {
                    let config = Config {
                        decode: entry.case,
                        keep: self.setup.keep,
                        ..Config::new(&data.root, &copies, threads)
                    };
                    Some(Python::open(&python, &[script, include_str!("sides/single.py")], &config)?)
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

/// First epochs, then rounds; a new random order each time.
fn take_turns(sides: &mut [Running], plan: Plan, begun: Instant) -> Result<()> {
    let turns = (plan.firsts + plan.rounds) * sides.len();
    let bar = ProgressBar::new(turns as u64).with_style(ProgressStyle::with_template(
        "{wide_bar} {pos}/{len} turns, {elapsed} (about {eta} left) {msg}",
    )?);
    let mut pace = Pace::new(begun, plan.limit);
    for turn in 0..plan.firsts + plan.rounds {
        let is_first = turn < plan.firsts;
        let Some(order) = pace.next(sides.len()) else {
            bar.suspend(|| eprintln!("{}", pace.excuse(turn.saturating_sub(plan.firsts))));
            break;
        };
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
    let series = |one: &Running, case: String, values: &[Option<f64>]| Series {
        side: one.entry.side,
        case,
        metric: IMAGES,
        values: values.into(),
    };
    let later = sides.iter().map(|one| series(one, one.entry.case.into(), &one.later));
    let firsts = sides.iter().map(|one| series(one, first(one.entry.case), &one.first));
    let series: Vec<Series> = later.chain(firsts).collect();
    let others = || ENTRIES.iter().filter(|entry| entry.name != Name::Forebay);
    let exact = |entry: &Entry| Pair::new(("forebay", "exact"), (entry.side, entry.case), "exact");
    let first = |entry: &Entry| Pair::new(("forebay", "exact-first"), (entry.side, "first"), "exact-first");
    let mut pairs: Vec<Pair> = others().map(exact).collect();
    pairs.push(Pair::new(("forebay", "scaled"), ("torch", "later"), "scaled"));
    pairs.push(Pair::new(("native", "later"), ("decode", "later"), "later"));
    pairs.extend(others().map(first));
    Report::new("single", machine, &series, &[IMAGES], &pairs, SEED)
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
