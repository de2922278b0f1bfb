//! A job that draws with replacement, in strict order and for itself.
//!
//! Weighted samplers do so. Every occurrence of a sample is a need of its own, so a copy serves one
//! position of one job and the stream has no part in it; [`Epoch`] says what is prepared next and when a
//! batch may leave, as it does for an engine that serves one job.

use std::collections::VecDeque;

use super::{Member, Served, Take};
use crate::share::Remainder;
use crate::{Cut, Dice, Epoch};

/// Steps that are prepared or held at once.
const STEPS: u64 = 2;
/// Set in the numbers of all copies made here, and in none of the stream's.
const OWN: u64 = 1 << 63;
/// Where the job stands in a number; below it the copies of the job are counted.
const JOB: u32 = 56;

/// One such job. The number of a copy is also the token of its preparation.
pub(super) struct Draws {
    job: usize,
    first: u32,
    len: u64,
    ranks: u64,
    step: u64,
    drop_last: bool,
    pad: bool,
    dice: Dice,
    epoch: Epoch,
    /// Copies of all epochs before this one.
    before: u64,
    /// Copies of this epoch that are begun.
    begun: u64,
    /// Samples that are begun and not delivered.
    samples: VecDeque<u32>,
    /// What was begun when it asked, while it waits.
    asked: Option<u64>,
}

impl Draws {
    pub(super) fn new(job: usize, member: &Member) -> Self {
        let group = &member.group;
        Draws {
            job,
            first: member.range.0,
            len: u64::from(member.len()),
            ranks: u64::from(group.ranks),
            step: u64::from(group.batch) * u64::from(group.ranks),
            drop_last: group.remainder == Remainder::Drop,
            pad: group.remainder == Remainder::Pad,
            // Another sequence than the stream's, whatever the seed.
            dice: Dice::new(member.seed ^ 0x05ee_d0f0_d4a3),
            epoch: Epoch::new(0, Cut::Every { batch: 1, drop_last: false }, 0),
            before: 0,
            begun: 0,
            samples: VecDeque::new(),
            asked: None,
        }
    }

    /// The job that a token belongs to, if it is one of these.
    pub(super) fn job_of(token: u64) -> Option<usize> {
        (token & OWN != 0).then_some((token & !OWN) as usize >> JOB)
    }

    pub(super) fn begin(&mut self) {
        // What fills up the last step is prepared like the rest, and not counted as delivered.
        let positions = if self.pad { self.len.next_multiple_of(self.ranks) } else { self.len };
        let cut = Cut::Every { batch: self.step, drop_last: self.drop_last };
        self.epoch = Epoch::new(positions, cut, 0);
        self.before += std::mem::take(&mut self.begun);
        self.samples.clear();
    }

    pub(super) fn ask(&mut self) {
        self.asked = Some(self.begun);
    }

    /// Whether it waits for a sample that nobody makes.
    pub(super) fn is_urgent(&self) -> bool {
        self.asked.is_some() && self.epoch.in_hand() < self.step && !self.epoch.is_issued()
    }

    /// The next preparation, in order.
    pub(super) fn work(&mut self, ahead: bool) -> Option<u64> {
        let room = ahead && self.epoch.in_hand() < STEPS * self.step;
        if !room && !self.is_urgent() {
            return None;
        }
        let position = self.epoch.issue()?;
        self.begun = position + 1;
        self.samples.push_back(self.first + self.dice.below(self.len) as u32);
        Some(self.number(position))
    }

    fn number(&self, position: u64) -> u64 {
        OWN | (self.job as u64) << JOB | (self.before + position)
    }

    pub(super) fn done(&mut self, token: u64) {
        self.epoch.ready(token - self.number(0));
    }

    pub(super) fn take(&mut self, batch: &mut Vec<Served>) -> Take {
        let Some(formed) = self.epoch.form() else {
            return if self.epoch.is_done() { Take::End } else { Take::Wait };
        };
        let known = self.asked.take().unwrap_or(0);
        let samples = self.samples.drain(..formed.positions.len());
        let served: Vec<(u64, u32)> = formed.positions.iter().copied().zip(samples).collect();
        batch.extend(
            served.into_iter().filter(|&(position, _)| position < self.len).map(|(position, sample)| {
                Served { sample, copy: self.number(position), hit: position < known }
            }),
        );
        Take::Batch
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Group, Policy, Report, Scenario, run};
    use super::*;

    fn report(scenario: &Scenario) -> Report {
        run(scenario, Policy::Forebay, &mut |_| ()).expect("a sound scenario")
    }

    fn scenario(groups: Vec<Group>) -> Scenario {
        Scenario { samples: 1000, pool: 0.1, mixing: 0.0, jobs: groups, ..Scenario::default() }
    }

    #[test]
    fn an_epoch_is_as_long_as_the_range_and_misses_about_one_sample_in_e() {
        let group = Group { ranks: 3, batch: 7, subset: Some([0.5, 1.0]), ..Group::default() };
        let member = &scenario(vec![group]).members().expect("sound")[0];
        let mut draws = Draws::new(5, member);
        let mut all = Vec::new();
        for epoch in 0..2 {
            draws.begin();
            draws.ask();
            let mut steps = 0;
            loop {
                while let Some(token) = draws.work(false) {
                    assert_eq!(Draws::job_of(token), Some(5));
                    draws.done(token);
                }
                assert!(draws.epoch.in_hand() <= draws.step);
                match draws.take(&mut all) {
                    Take::Batch => steps += 1,
                    Take::End => break,
                    Take::Wait => panic!("nothing is late here"),
                }
                draws.ask();
            }
            assert_eq!((steps, all.len()), (24, 500 * (epoch + 1)));
        }
        let mut copies: Vec<u64> = all.iter().map(|served| served.copy).collect();
        copies.sort_unstable();
        copies.dedup();
        assert_eq!(copies.len(), 1000, "every occurrence is a copy of its own");
        assert!(all.iter().all(|served| (500..1000).contains(&served.sample) && !served.hit));
        let mut first: Vec<u32> = all[..500].iter().map(|served| served.sample).collect();
        first.sort_unstable();
        first.dedup();
        assert!((285..350).contains(&first.len()), "{} different", first.len());
    }

    #[test]
    fn it_shares_nothing_and_leaves_the_sharing_of_others_alone() {
        let own = Group { replacement: true, ..Group::default() };
        let two = Group { count: 2, ..Group::default() };
        let alone = report(&scenario(vec![own.clone()]));
        assert_eq!((alone.ratio, alone.bound, alone.repeats), (1.0, 1.0, Some(0)));
        let both = report(&scenario(vec![own, two]));
        assert!((0.66..0.69).contains(&both.ratio), "{}", both.ratio);
        assert!((0.66..=both.ratio).contains(&both.bound), "{} over {}", both.ratio, both.bound);
        assert_eq!((both.missed, both.twice, both.repeats, both.waited), (0, 0, Some(0), 0.0));
    }

    #[test]
    fn with_workers_it_has_two_steps_at_hand_and_gets_its_turns() {
        let own = Group { replacement: true, ..Group::default() };
        let scenario = Scenario {
            workers: 4,
            prepare: 4.0 / 3000.0,
            ..scenario(vec![own, Group { count: 3, ..Group::default() }])
        };
        let report = report(&scenario);
        assert_eq!((report.missed, report.twice, report.repeats), (0, 0, Some(0)));
        assert_eq!(report.neglected, 0);
        assert!(report.jobs.iter().all(|job| job.waited < 0.1), "{:?}", report.jobs);
        assert!(report.hits > 0.9, "{}", report.hits);
    }
}
