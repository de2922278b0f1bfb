//! The desk between the driver and a policy: it takes requests, hands out preparations in the order in which
//! they were wanted, and gives a batch away when all of it is there.
//!
//! A policy is a [`Rule`] that draws whole batches of [`Item`]s, some of them from its cache and some that
//! the [`Stock`] is told to prepare. Papers treat prefetching as given, so every job has up to [`AHEAD`]
//! batches drawn before it asks, but only where preparation takes time.

use std::collections::VecDeque;

use super::super::{Member, Served, System, Take};

/// Batches drawn for a job before it asks, as PyTorch's loader does by default.
const AHEAD: usize = 2;

/// Not prepared yet.
const PENDING: u64 = u64::MAX;

/// One copy of a sample, perhaps still to be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) sample: u32,
    number: u64,
}

/// Every copy that was ever wanted, by number.
#[derive(Debug, Default)]
pub(super) struct Stock {
    queue: VecDeque<u64>,
    /// How many were finished before each copy.
    ready: Vec<u64>,
    finished: u64,
}

impl Stock {
    /// Orders a new copy.
    pub(super) fn prepare(&mut self, sample: u32) -> Item {
        let number = self.ready.len() as u64;
        self.ready.push(PENDING);
        self.queue.push_back(number);
        Item { sample, number }
    }

    pub(super) fn has(&self, item: Item) -> bool {
        self.ready[item.number as usize] != PENDING
    }

    fn finish(&mut self, number: u64) {
        self.ready[number as usize] = self.finished;
        self.finished += 1;
    }
}

/// What a policy decides.
pub(super) trait Rule {
    /// A job begins an epoch; with the first one it joins.
    fn begin(&mut self, job: usize, epoch: u64);
    /// A job ends for good.
    fn leave(&mut self, job: usize);
    /// Draws a job's next batch into `batch`, which comes empty, or says that its epoch is over, or that it
    /// must wait for other jobs; it may be asked again then.
    fn draw(&mut self, now: f64, job: usize, stock: &mut Stock, batch: &mut Vec<Item>) -> Take;
}

#[derive(Debug, Default)]
struct Job {
    runs: bool,
    drawn: VecDeque<Vec<Item>>,
    /// Copies finished before it asked.
    asked: u64,
}

/// A policy at work.
pub(super) struct Desk<R> {
    rule: R,
    jobs: Vec<Job>,
    stock: Stock,
}

impl<R: Rule + 'static> Desk<R> {
    pub(super) fn boxed(jobs: usize, rule: R) -> Box<dyn System> {
        let jobs = (0..jobs).map(|_| Job::default()).collect();
        Box::new(Desk { rule, jobs, stock: Stock::default() })
    }
}

impl<R: Rule> Desk<R> {
    fn draw(&mut self, now: f64, job: usize) -> Take {
        let mut batch = Vec::new();
        let take = self.rule.draw(now, job, &mut self.stock, &mut batch);
        if take == Take::Batch {
            self.jobs[job].drawn.push_back(batch);
        }
        take
    }

    /// Draws for those who have least until there is something to prepare.
    fn draw_ahead(&mut self, now: f64) {
        for depth in 0..AHEAD {
            for job in 0..self.jobs.len() {
                if !self.stock.queue.is_empty() {
                    return;
                }
                if self.jobs[job].runs && self.jobs[job].drawn.len() == depth {
                    self.draw(now, job);
                }
            }
        }
    }
}

impl<R: Rule> System for Desk<R> {
    fn join(&mut self, _now: f64, job: usize, _member: &Member) {
        self.jobs[job].runs = true;
    }

    fn leave(&mut self, _now: f64, job: usize) {
        self.rule.leave(job);
        self.jobs[job] = Job::default();
    }

    fn begin(&mut self, _now: f64, job: usize, epoch: u64) {
        self.rule.begin(job, epoch);
    }

    fn ask(&mut self, now: f64, job: usize) {
        self.jobs[job].asked = self.stock.finished;
        if self.jobs[job].drawn.is_empty() {
            self.draw(now, job);
        }
    }

    fn take(&mut self, now: f64, job: usize, batch: &mut Vec<Served>) -> Take {
        if self.jobs[job].drawn.is_empty() {
            let take = self.draw(now, job);
            if take != Take::Batch {
                return take;
            }
        }
        let (state, stock) = (&mut self.jobs[job], &self.stock);
        let Some(items) = state.drawn.pop_front_if(|items| items.iter().all(|&item| stock.has(item))) else {
            return Take::Wait;
        };
        let asked = state.asked;
        batch.extend(items.iter().map(|item| Served {
            sample: item.sample,
            copy: item.number,
            hit: stock.ready[item.number as usize] < asked,
        }));
        Take::Batch
    }

    fn work(&mut self, now: f64, ahead: bool) -> Option<u64> {
        if ahead {
            self.draw_ahead(now);
        }
        self.stock.queue.pop_front()
    }

    fn done(&mut self, _now: f64, token: u64) {
        self.stock.finish(token);
    }
}
