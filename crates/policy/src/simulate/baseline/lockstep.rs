//! Jobs that go through every epoch together, none further ahead of the slowest than a buffer holds.
//!
//! An epoch begins with all jobs of the line that run at that moment and ends when the last of them ended it
//! or left. Who comes in between waits for the next one, unless the buffer still holds the beginning and
//! the system lets it catch up.

use super::line::{Line, lines};
use super::{Item, Member, Rule, Scenario, Stock, Take, step};

struct Job {
    line: usize,
    step: u64,
    start: f64,
    left: bool,
    /// How far it is in the epoch of its line, if it takes part.
    cursor: Option<u64>,
}

/// The rule.
pub(super) struct Lockstep {
    lines: Vec<Line>,
    /// Where the present epoch of each line begins.
    origins: Vec<u64>,
    jobs: Vec<Job>,
    /// Whether who comes late may catch up from the buffer.
    catch_up: bool,
}

impl Lockstep {
    /// A buffer holds such a share of the epoch, or what the pool does.
    pub(super) fn new(scenario: &Scenario, members: &[Member], buffer: Option<f64>, catch_up: bool) -> Self {
        let (lines, on) = lines(scenario, members, buffer);
        let job = |(member, line): (&Member, usize)| Job {
            line,
            step: step(member) as u64,
            start: member.start,
            left: false,
            cursor: None,
        };
        let origins = vec![0; lines.len()];
        Lockstep { lines, origins, jobs: members.iter().zip(on).map(job).collect(), catch_up }
    }

    /// The slowest on a line, if any takes part in its epoch.
    fn slowest(&self, line: usize) -> Option<u64> {
        self.jobs.iter().filter(|job| job.line == line).filter_map(|job| job.cursor).min()
    }

    /// Lets a job take part, if it may.
    fn admit(&mut self, now: f64, job: usize) {
        let at = self.jobs[job].line;
        if self.slowest(at).is_some() {
            let line = &self.lines[at];
            let made = line.end() - self.origins[at];
            if self.catch_up && made < line.pass() && line.start() <= self.origins[at] {
                self.jobs[job].cursor = Some(0);
            }
            return;
        }
        self.lines[at].skip_to_pass();
        self.origins[at] = self.lines[at].end();
        // By the clock and not by who has asked: jobs that start at one instant start one after another.
        for job in self.jobs.iter_mut().filter(|job| job.line == at && job.start <= now && !job.left) {
            job.cursor = Some(0);
        }
    }
}

impl Rule for Lockstep {
    fn begin(&mut self, job: usize, epoch: u64) {
        if epoch > 0 {
            self.jobs[job].cursor = None;
        }
    }

    fn leave(&mut self, job: usize) {
        self.jobs[job].left = true;
        self.jobs[job].cursor = None;
    }

    fn draw(&mut self, now: f64, job: usize, stock: &mut Stock, batch: &mut Vec<Item>) -> Take {
        if self.jobs[job].cursor.is_none() {
            self.admit(now, job);
        }
        let at = self.jobs[job].line;
        let (Some(cursor), Some(slowest)) = (self.jobs[job].cursor, self.slowest(at)) else {
            return Take::Wait;
        };
        let line = &mut self.lines[at];
        let end = (cursor + self.jobs[job].step).min(line.pass());
        if cursor == end {
            return Take::End;
        }
        if end - slowest > line.room {
            return Take::Wait;
        }
        batch.extend((cursor..end).map(|position| line.at(self.origins[at] + position, stock)));
        self.jobs[job].cursor = Some(end);
        Take::Batch
    }
}
