//! Dependent sampling of Joader: jobs choose the same sample as often as their needs allow, and each of them
//! still draws uniformly from what it has not had.
//!
//! Jobs stand in the order of what they have left. Node `m` holds what all jobs from `m` on need and job
//! `m − 1` does not. At every node the jobs that came so far stay one after another with the ratio of their
//! remainders; the first that leaves takes all later ones along to the next node, except that job `m` itself
//! falls back on what it does not share with all later ones. A job whose buffer is full takes part in the
//! choice but gets nothing, so it is owed the sample still, as is everyone who chose another.
//!
//! Rounds run while a job that asked has not a whole batch; a buffer holds one. The cache is the pool. It
//! gives up what the fewest jobs need, a newcomer included, and keeps what nobody needs while there is room.

use std::collections::{BTreeMap, VecDeque};

use super::left::Left;
use super::{Item, Member, Rule, Scenario, Stock, Take, step};
use crate::Dice;

struct Job {
    step: usize,
    left: Left,
    buffer: VecDeque<Item>,
}

/// The rule.
pub(super) struct Joader {
    jobs: Vec<Job>,
    /// For every sample the jobs that need it, as bits.
    needs: Vec<u64>,
    /// Jobs that need anything, those with least first.
    order: Vec<usize>,
    /// For every place in the order, the jobs from there on, and how many samples all of them need.
    common: Vec<(u64, u64)>,
    room: usize,
    /// Copies by how many jobs need them, and sample.
    cache: BTreeMap<(u32, u32), Item>,
    dice: Dice,
}

fn bits(jobs: impl Iterator<Item = usize>) -> u64 {
    jobs.fold(0, |bits, job| bits | 1 << job)
}

impl Joader {
    pub(super) fn new(scenario: &Scenario, members: &[Member]) -> Self {
        let job =
            |member: &Member| Job { step: step(member), left: Left::new(member), buffer: VecDeque::new() };
        Joader {
            jobs: members.iter().map(job).collect(),
            needs: vec![0; scenario.samples as usize],
            order: Vec::new(),
            common: Vec::new(),
            room: scenario.slots() as usize,
            cache: BTreeMap::new(),
            dice: Dice::new(scenario.seed ^ 0x10ad),
        }
    }

    fn left(&self, job: usize) -> u64 {
        self.jobs[job].left.len() as u64
    }

    /// Says who needs a sample from now on.
    fn owe(&mut self, sample: u32, needs: u64) {
        let before = std::mem::replace(&mut self.needs[sample as usize], needs);
        if let Some(item) = self.cache.remove(&(before.count_ones(), sample)) {
            self.cache.insert((needs.count_ones(), sample), item);
        }
        for (jobs, count) in &mut self.common {
            *count += u64::from(needs & *jobs == *jobs);
            *count -= u64::from(before & *jobs == *jobs);
        }
    }

    /// Says whether a job needs what it has left.
    fn mark(&mut self, job: usize, needed: bool) {
        for at in 0..self.jobs[job].left.len() {
            let sample = self.jobs[job].left.items()[at];
            let others = self.needs[sample as usize] & !(1 << job);
            self.owe(sample, others | u64::from(needed) << job);
        }
    }

    /// Sorts jobs again if one overtook another or came or went.
    fn sort(&mut self) {
        let some = self.jobs.iter().filter(|job| job.left.len() > 0).count();
        let stands = self.order.is_sorted_by_key(|&job| self.left(job));
        if stands && some == self.order.len() && self.order.first().is_none_or(|&job| self.left(job) > 0) {
            return;
        }
        self.order = (0..self.jobs.len()).filter(|&job| self.left(job) > 0).collect();
        self.order.sort_by_key(|&job| self.jobs[job].left.len());
        let from = |at: usize| bits(self.order[at..].iter().copied());
        let count = |at: usize| {
            let (jobs, items) = (from(at), self.jobs[self.order[at]].left.items());
            (jobs, items.iter().filter(|&&sample| self.needs[sample as usize] & jobs == jobs).count() as u64)
        };
        self.common = (0..self.order.len()).map(count).collect();
    }

    /// What every job would take next: samples, each with the jobs that chose it.
    fn choose(&mut self) -> Vec<(u32, u64)> {
        self.sort();
        let (mut choices, mut group) = (Vec::new(), self.order.clone());
        // The jobs from the place before on, and how many samples they share: nodes before this one hold them.
        let (mut above, mut shared) = (u64::MAX, 0);
        for (at, (jobs, count)) in self.common.clone().into_iter().enumerate() {
            let mut before = count - shared;
            let stays = |&&job: &&usize| {
                let size = self.jobs[job].left.len() as u64 - shared;
                self.dice.below(size) < std::mem::replace(&mut before, size)
            };
            let stay = group.iter().take_while(stays).count();
            let mut leave = group.split_off(stay);
            if let Some(&one) = group.first() {
                let here = |needs: u64| needs & jobs == jobs && (at == 0 || needs & above != above);
                choices.push((self.any(one, here), bits(group.iter().copied())));
            }
            if leave.first() == Some(&self.order[at]) {
                let one = leave.remove(0);
                choices.push((self.any(one, |needs| needs & jobs != jobs), 1 << one));
            }
            (above, shared, group) = (jobs, count, leave);
            if group.is_empty() {
                break;
            }
        }
        choices
    }

    /// Any sample that a job needs and that is needed as told. Nodes are reached as often as they hold the
    /// job's samples, so this takes one try on average.
    fn any(&mut self, job: usize, fits: impl Fn(u64) -> bool) -> u32 {
        loop {
            let sample = self.jobs[job].left.any(&mut self.dice);
            if fits(self.needs[sample as usize]) {
                return sample;
            }
        }
    }

    /// One sample for every job whose buffer has room.
    fn round(&mut self, stock: &mut Stock) {
        let full = |job: &Job| job.buffer.len() >= job.step;
        let open = bits((0..self.jobs.len()).filter(|&job| !full(&self.jobs[job])));
        for (sample, chosen) in self.choose() {
            let given = chosen & open;
            if given == 0 {
                continue;
            }
            let needs = self.needs[sample as usize];
            let cached = self.cache.get(&(needs.count_ones(), sample)).copied();
            let item = cached.unwrap_or_else(|| stock.prepare(sample));
            for job in (0..self.jobs.len()).filter(|job| given >> job & 1 == 1) {
                self.jobs[job].left.remove(sample);
                self.jobs[job].buffer.push_back(item);
            }
            self.owe(sample, needs & !given);
            if cached.is_none() {
                self.cache.insert(((needs & !given).count_ones(), sample), item);
                if self.cache.len() > self.room {
                    self.cache.pop_first();
                }
            }
        }
    }
}

impl Rule for Joader {
    fn begin(&mut self, job: usize, _epoch: u64) {
        self.jobs[job].left.fill();
        self.mark(job, true);
    }

    fn leave(&mut self, job: usize) {
        self.mark(job, false);
        self.jobs[job].left.clear();
        self.jobs[job].buffer.clear();
    }

    fn draw(&mut self, _now: f64, job: usize, stock: &mut Stock, batch: &mut Vec<Item>) -> Take {
        let step = self.jobs[job].step;
        while self.jobs[job].buffer.len() < step && self.jobs[job].left.len() > 0 {
            self.round(stock);
        }
        let buffer = &mut self.jobs[job].buffer;
        batch.extend(buffer.drain(..step.min(buffer.len())));
        if batch.is_empty() { Take::End } else { Take::Batch }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_near, jobs, report};
    use super::*;
    use crate::simulate::{Group, Policy};

    fn over(subsets: &[[f64; 2]]) -> (Joader, Vec<Member>) {
        let group = |&subset: &[f64; 2]| Group { subset: Some(subset), ..Group::default() };
        let jobs = subsets.iter().map(group).collect();
        let scenario = Scenario { samples: 100, jobs, ..Scenario::default() };
        let members = scenario.members().unwrap();
        let mut joader = Joader::new(&scenario, &members);
        (0..members.len()).for_each(|job| joader.begin(job, 0));
        (joader, members)
    }

    #[test]
    fn two_jobs_choose_the_same_as_often_as_can_be() {
        // Joader: the common part over the larger set.
        for (subsets, same) in [([[0.0, 0.6], [0.2, 1.0]], 0.5), ([[0.0, 0.3], [0.0, 1.0]], 0.3)] {
            let (mut joader, _) = over(&subsets);
            let rounds = 20_000;
            let both = (0..rounds).filter(|_| joader.choose().iter().any(|&(_, jobs)| jobs == 3)).count();
            assert_near(both as f64 / f64::from(rounds), same, 0.015);
        }
    }

    #[test]
    fn every_job_chooses_uniformly() {
        let (mut joader, members) = over(&[[0.0, 0.5], [0.2, 0.8], [0.3, 1.0], [0.0, 1.0]]);
        // What some have had makes the sets irregular.
        (0..8).for_each(|_| joader.round(&mut Stock::default()));
        let mut counts = vec![[0.0; 100]; members.len()];
        let rounds = 40_000;
        for _ in 0..rounds {
            let mut chosen = 0;
            for (sample, jobs) in joader.choose() {
                assert_eq!(chosen & jobs, 0, "a job chose twice");
                chosen |= jobs;
                (0..4).filter(|job| jobs >> job & 1 == 1).for_each(|job| counts[job][sample as usize] += 1.0);
            }
            assert_eq!(chosen, 0b1111);
        }
        for (job, counts) in counts.iter().enumerate() {
            let left = &joader.jobs[job].left;
            let mean = f64::from(rounds) / left.len() as f64;
            let chi: f64 = left.items().iter().map(|&s| (counts[s as usize] - mean).powi(2) / mean).sum();
            // Its mean is the freedom and its deviation the root of twice that; four of those are plenty.
            let freedom = left.len() as f64 - 1.0;
            assert!(
                chi < freedom + 4.0 * (2.0 * freedom).sqrt(),
                "job {job}: chi-square {chi} for {freedom}"
            );
            assert_eq!(counts.iter().sum::<f64>(), f64::from(rounds));
        }
    }

    #[test]
    fn jobs_in_step_prepare_once_for_all() {
        for count in [2, 4, 8] {
            let scenario = Scenario { jitter: 0.0, ..Scenario::default() };
            let report = report(Policy::Joader, &jobs(scenario, 8, &vec![1.0; count]));
            assert_near(report.ratio, 1.0 / count as f64, 0.01);
            assert_eq!((report.missed, report.twice), (0, 0));
        }
    }

    #[test]
    fn a_slow_job_is_owed_what_a_fast_one_took() {
        let report = report(Policy::Joader, &jobs(Scenario::default(), 64, &[3.0, 1.0]));
        assert_eq!((report.missed, report.twice, report.waited), (0, 0, 0.0));
        assert!(report.ratio > 0.75, "no fewer than the fast one takes");
    }
}
