//! Runs of all cases and seeds, on all cores: each run is one thread's work, and none knows of another.
//!
//! Threads take the next run from a counter. Results are put back in the order of the cases, so what is
//! printed does not depend on who was faster.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use forebay_policy::simulate::{self, Report, Scenario, Wrong};
use indicatif::{ProgressBar, ProgressStyle};

use super::cases::Case;
use super::outcome::Outcome;

/// Parts of a run on the progress bar.
const PARTS: f64 = 1000.0;

/// Runs every case with the scenario's seed and those after it.
pub(super) fn run(cases: Vec<Case>, seeds: u64, threads: usize) -> Result<Vec<Outcome>> {
    let seeds = seeds as usize;
    let runs = cases.len() * seeds;
    let threads = threads.clamp(1, runs.max(1));
    let shown = Shown::new(runs, threads)?;
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Result<Report, Wrong>>>> = Mutex::new(vec![None; runs]);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (shown, next, done, cases) = (&shown, &next, &done, &cases);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index / seeds) else { break };
                    let seed = case.scenario.seed.wrapping_add((index % seeds) as u64);
                    let scenario = Scenario { seed, ..case.scenario.clone() };
                    let report = simulate::run(&scenario, case.policy, &mut shown.follow(thread, case));
                    if report.is_err() {
                        // Nobody begins another: all of it ends in this error.
                        next.store(runs, Ordering::Relaxed);
                    }
                    done.lock().expect("a thread that panics ends the program")[index] = Some(report);
                    shown.end(thread);
                }
            });
        }
    });
    shown.bar.finish_and_clear();
    let mut reports = done.into_inner().context("a run panicked")?.into_iter();
    let mut outcomes = Vec::new();
    for case in cases {
        let own = reports.by_ref().take(seeds).flatten().collect::<Result<Vec<_>, _>>();
        outcomes.push(Outcome { reports: own.map_err(|wrong| case.refuse(&wrong))?, case });
    }
    Ok(outcomes)
}

/// The progress bar, with how many runs ended and what every thread is at.
struct Shown {
    bar: ProgressBar,
    runs: usize,
    now: Mutex<(usize, Vec<String>)>,
}

impl Shown {
    fn new(runs: usize, threads: usize) -> Result<Self> {
        let style = ProgressStyle::with_template("{bar:20} {elapsed} (about {eta} left) {wide_msg}")?;
        let bar = ProgressBar::new(runs as u64 * PARTS as u64).with_style(style);
        Ok(Self { bar, runs, now: Mutex::new((0, vec![String::new(); threads])) })
    }

    /// What a run tells about its progress, as a bar.
    fn follow(&self, thread: usize, case: &Case) -> impl FnMut(f64) {
        let mut told = 0;
        move |share: f64| {
            let parts = (share.clamp(0.0, 1.0) * PARTS) as u64;
            let name = format!("{} {} {:.0} %", case.scenario.name, case.policy.name(), share * 100.0);
            self.bar.inc(parts.saturating_sub(told));
            told = told.max(parts);
            self.say(thread, name, 0);
        }
    }

    /// A run is over.
    fn end(&self, thread: usize) {
        self.say(thread, String::new(), 1);
    }

    fn say(&self, thread: usize, name: String, ended: usize) {
        let Ok(mut now) = self.now.lock() else { return };
        let (done, names) = &mut *now;
        *done += ended;
        names[thread] = name;
        let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        self.bar.set_message(format!("{done}/{} runs: {}", self.runs, names.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::Cases;
    use super::super::source;
    use super::*;
    use forebay_policy::simulate::Policy;

    #[test]
    fn results_stand_in_the_order_of_the_cases_whatever_the_threads() {
        let cases = Cases {
            scenarios: source::read(&["8-staggered".into(), "one".into()]).unwrap(),
            policies: vec![Policy::Forebay, Policy::Lru],
            pools: vec![0.05],
            mixings: vec![],
            samples: Some(300),
            workers: Some(2),
            prepare: Some(1e-4),
        };
        let cases = cases.list().unwrap();
        let (alone, many) = (run(cases.clone(), 3, 1).unwrap(), run(cases, 3, 4).unwrap());
        for (one, other) in alone.iter().zip(&many) {
            assert_eq!(one.reports, other.reports);
            assert_eq!(one.reports.len(), 3);
            assert_ne!(one.reports[0], one.reports[1]);
        }
        let names: Vec<_> =
            many.iter().map(|one| (&*one.case.scenario.name, one.case.policy.name())).collect();
        assert_eq!(
            names,
            [("8-staggered", "forebay"), ("8-staggered", "lru"), ("one", "forebay"), ("one", "lru")]
        );
    }
}
