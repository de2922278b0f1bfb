//! One endless sequence of samples for all jobs over the same range, of which the last few are held.
//!
//! Systems that share a sequence share it between jobs with equal input. Jobs over another range have a line
//! of their own. Batches are cut from the line by each job in its own size.

use std::collections::VecDeque;

use super::{Item, Member, Scenario, Stock, step};
use crate::Permutation;

/// The sequence: one permutation of the range after another.
pub(super) struct Line {
    first: u32,
    seed: u64,
    /// The pass that `order` is for.
    lap: u64,
    order: Permutation,
    /// How many are held at most.
    pub(super) room: u64,
    held: VecDeque<Item>,
    /// Position of the first that is held.
    start: u64,
}

impl Line {
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Position after the last that was wanted.
    pub(super) fn end(&self) -> u64 {
        self.start + self.held.len() as u64
    }

    /// Samples of one pass.
    pub(super) fn pass(&self) -> u64 {
        self.order.len()
    }

    /// Forgets everything and goes on at the next pass.
    pub(super) fn skip_to_pass(&mut self) {
        self.start = self.end().next_multiple_of(self.pass());
        self.held.clear();
    }

    /// What stands at a position that is not before the start; all until there is ordered.
    pub(super) fn at(&mut self, position: u64, stock: &mut Stock) -> Item {
        while self.end() <= position {
            let (lap, place) = (self.end() / self.pass(), self.end() % self.pass());
            if lap != self.lap {
                self.order = Permutation::new(self.pass(), self.seed, lap);
                self.lap = lap;
            }
            self.held.push_back(stock.prepare(self.first + self.order.at(place) as u32));
            if self.held.len() as u64 > self.room {
                self.held.pop_front();
                self.start += 1;
            }
        }
        self.held[(position - self.start) as usize]
    }
}

/// The lines of a scenario, and which one each job is on. A line holds so large a share of its range, without
/// that the pool is divided between lines by their lengths; but always the largest batch on it.
pub(super) fn lines(scenario: &Scenario, members: &[Member], share: Option<f64>) -> (Vec<Line>, Vec<usize>) {
    let mut ranges: Vec<_> = members.iter().map(|member| member.range).collect();
    ranges.sort_unstable();
    ranges.dedup();
    let total: u64 = ranges.iter().map(|range| u64::from(range.1 - range.0)).sum();
    let share = share.unwrap_or(f64::from(scenario.slots()) / total as f64);
    let line = |&range: &(u32, u32)| {
        let len = u64::from(range.1 - range.0);
        let on = members.iter().filter(|member| member.range == range);
        let largest = on.map(|member| step(member) as u64).max().unwrap_or(1);
        Line {
            first: range.0,
            seed: scenario.seed,
            lap: 0,
            order: Permutation::new(len, scenario.seed, 0),
            room: ((len as f64 * share).round() as u64).max(largest),
            held: VecDeque::new(),
            start: 0,
        }
    };
    let number = |member: &Member| ranges.partition_point(|&range| range < member.range);
    (ranges.iter().map(line).collect(), members.iter().map(number).collect())
}
