//! The sliding window of tf.data service: the fastest trainer moves it, and the others get what is in it. It
//! is as long as the pool.
//!
//! A trainer that fell behind the window goes on at its start; what it skipped it never sees in that epoch.
//! A trainer's epoch is a pass of the sequence, so nothing comes twice in it; who joins late begins at the
//! window's start, with a short epoch. The service itself knows no epochs, only an endless sequence.

use super::line::{Line, lines};
use super::{Item, Member, Rule, Scenario, Stock, Take, step};

struct Job {
    line: usize,
    step: u64,
    cursor: u64,
    /// The pass that its epoch is, from the first batch on.
    lap: Option<u64>,
}

/// The rule.
pub(super) struct Window {
    lines: Vec<Line>,
    jobs: Vec<Job>,
}

impl Window {
    pub(super) fn new(scenario: &Scenario, members: &[Member]) -> Self {
        let (lines, on) = lines(scenario, members, None);
        let job = |(member, line)| Job { line, step: step(member) as u64, cursor: 0, lap: None };
        Window { lines, jobs: members.iter().zip(on).map(job).collect() }
    }
}

impl Rule for Window {
    fn begin(&mut self, job: usize, _epoch: u64) {
        self.jobs[job].lap = None;
    }

    fn leave(&mut self, _job: usize) {}

    fn draw(&mut self, _now: f64, job: usize, stock: &mut Stock, batch: &mut Vec<Item>) -> Take {
        let job = &mut self.jobs[job];
        let line = &mut self.lines[job.line];
        let cursor = job.cursor.max(line.start());
        let lap = cursor / line.pass();
        if job.lap.is_some_and(|begun| begun != lap) {
            return Take::End;
        }
        job.lap = Some(lap);
        job.cursor = (cursor + job.step).min((lap + 1) * line.pass());
        batch.extend((cursor..job.cursor).map(|position| line.at(position, stock)));
        Take::Batch
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_near, jobs, report};
    use crate::simulate::{Policy, Scenario};

    #[test]
    fn a_slow_trainer_misses_what_it_had_no_time_for() {
        // The window moves as fast as the fastest trainer, so a share of 1 − 1 / ratio passes by.
        for ratio in [2.0, 4.0] {
            let report = report(Policy::Window, &jobs(Scenario::default(), 64, &[ratio, 1.0]));
            let epochs = report.jobs[1].epochs - 1;
            assert_near(report.missed as f64 / (20_000 * epochs) as f64, 1.0 - 1.0 / ratio, 0.01);
            assert_near(report.ratio, ratio / (ratio + 1.0), 0.01);
            assert_eq!((report.twice, report.waited), (0, 0.0));
        }
    }

    #[test]
    fn trainers_in_step_miss_nothing() {
        let report =
            report(Policy::Window, &jobs(Scenario { jitter: 0.0, ..Scenario::default() }, 64, &[1.0; 4]));
        assert_near(report.ratio, 0.25, 0.003);
        assert_eq!((report.missed, report.twice), (0, 0));
    }
}
