//! `forebay bench neighbours`: what a job pays for one beside it that is slow, or that stands still.
//!
//! All jobs share one daemon. Each turn has a new one, so that nothing is left in it from the turn before.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::jobs::{Beside, Jobs, Turn};
use super::machine::Machine;
use super::report::{Metric, Pair, Report, Series};
use super::script::{BATCH, Config, Started};
use super::setup::{CURE, Pace, SEED, Setup};
use super::sharing::{MEMORY, RATE, SKIP};
use super::window::Window;
use crate::Answer;
use crate::daemon::Daemon;
use crate::hint::Hinted;

/// CPU seconds of the daemon, for all its jobs, for each sample that the measured job received.
const CPU: Metric = Metric { name: "daemon_cpu_s_per_sample", digits: 6 };
const SIDE: &str = "forebay";
/// How much slower the slow job is than the measured one alone.
const SLOWER: f64 = 10.0;
const CASES: [&str; 3] = ["alone", "slow", "stopped"];

/// Arguments of `forebay bench neighbours`.
#[derive(Debug, Args)]
pub(crate) struct Neighbours {
    #[command(flatten)]
    setup: Setup,
}

impl Neighbours {
    /// Data, one turn that sets the slow job's pace, rounds, report.
    pub(crate) fn run(self) -> Result<Answer> {
        let begun = Instant::now();
        let (most, window, limit) = if self.setup.quick { (6, 1500, 160) } else { (24, 3000, 1700) };
        let (rounds, limit) = match self.setup.rounds {
            Some(rounds) => (rounds as usize, Duration::MAX),
            None => (most, Duration::from_secs(limit)),
        };
        let data = self.setup.open()?;
        let (copies, python) = (self.setup.copies(&data)?, self.setup.python());
        let mut machine = Machine::read(self.setup.threads());
        let config = Config { threads: 0, keep: self.setup.keep, ..Config::new(&data.root, &copies, 0) };
        let mut jobs = Jobs::open(&python, include_str!("sides/forebay.py"), config)?;
        match jobs.wait()? {
            Started::Ready(version) => machine.versions.insert(SIDE.into(), version),
            Started::Missing(why) => {
                return Err(
                    Hinted::new(format!("Forebay is missing in {}: {why}", python.display()), CURE).into()
                );
            }
        };
        // By the end of its first epoch the pool has what it keeps for the other one.
        let skip = SKIP.max(data.files.len().div_ceil(BATCH));
        let mut turn = |beside| {
            let daemon = Daemon::open(MEMORY, self.setup.threads(), self.setup.cache(), None)?;
            let server = Some((daemon.socket(), daemon.group()));
            let window = Duration::from_millis(window);
            jobs.turn(Turn { count: 1, beside, threads: 0, server, skip, window })
        };
        let rate = turn(None)?.samples_per_s();
        let slow = Beside::Slow(Duration::from_secs_f64(SLOWER * BATCH as f64 / rate));
        let beside = [None, Some(slow), Some(Beside::Stopped)];
        let bar = ProgressBar::new((rounds * CASES.len()) as u64).with_style(ProgressStyle::with_template(
            "{wide_bar} {pos}/{len} turns, {elapsed} (about {eta} left) {msg}",
        )?);
        let mut pace = Pace::new(begun, limit);
        let mut windows = CASES.map(|_| Vec::new());
        for round in 0..rounds {
            let Some(order) = pace.next(CASES.len()) else {
                bar.suspend(|| eprintln!("{}", pace.excuse(round)));
                break;
            };
            for case in order {
                bar.set_message(CASES[case]);
                windows[case].push(turn(beside[case])?);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let report = report(machine, &windows);
        self.setup.show(&report, &table(&report))?;
        Ok(Answer::Yes)
    }
}

/// A value of a turn.
type Value = fn(&Window) -> Option<f64>;

fn report(machine: Machine, windows: &[Vec<Window>; 3]) -> Report {
    let metrics: [(Metric, Value); 2] =
        [(RATE, |window| Some(window.samples_per_s())), (CPU, Window::server_cpu_s_per_sample)];
    let series: Vec<Series> = metrics
        .into_iter()
        .flat_map(|(metric, value)| {
            CASES.iter().zip(windows).map(move |(&case, windows)| Series {
                side: SIDE,
                case: case.into(),
                metric,
                values: windows.iter().map(value).collect(),
            })
        })
        .collect();
    let pairs: Vec<Pair> = CASES[1..]
        .iter()
        .map(|&case| Pair::new((SIDE, case), (SIDE, CASES[0]), format!("{case}/{}", CASES[0])))
        .collect();
    Report::new("neighbours", machine, &series, &[RATE, CPU], &pairs, SEED)
}

/// A line for each neighbour, then paired ratios.
fn table(report: &Report) -> String {
    let mut text =
        format!("{:<10}{:<26}{:>12}{:>12}{:>12}{:>6}\n", "beside", "metric", "median", "p10", "p90", "runs");
    for one in report.results() {
        let digits = if one.metric == RATE.name { 0 } else { 6 };
        text.push_str(&format!(
            "{:<10}{:<26}{:>12.digits$}{:>12.digits$}{:>12.digits$}{:>6}\n",
            one.case, one.metric, one.median, one.p10, one.p90, one.runs
        ));
    }
    text + &report.comparison()
}

#[cfg(test)]
mod tests {
    use super::super::window::Told;
    use super::*;

    #[test]
    fn rates_and_cpu_time_are_compared_with_those_of_the_job_alone() {
        let window = |samples, cpu| {
            let arrivals = vec![(0.0, samples), (4.0, samples)];
            let counters = Default::default();
            let told = Told { arrivals, preparations: None, deliveries: None, counters, decoded_bytes: None };
            vec![Window::new(&[told], 1.0, 3.0, [9.0, cpu]).unwrap()]
        };
        let windows = [window(4000, 1.0), window(3000, 1.5), window(2000, 1.0)];
        let text = table(&report(Machine::read(2), &windows));
        let lines = [
            "slow      samples_per_s                      750         750         750     1\n",
            "alone     daemon_cpu_s_per_sample       0.000500    0.000500    0.000500     1\n",
            "forebay / forebay       slow/alone samples_per_s                   0.75  0.75 to 0.75\n",
            "forebay / forebay       stopped/alone daemon_cpu_s_per_sample      2.00  2.00 to 2.00\n",
        ];
        lines.iter().for_each(|line| assert!(text.contains(line), "{text}"));
    }
}
