//! One job of a stream.

use std::sync::Arc;

use super::bits::Bits;
use super::pass::{Keyed, Pass};
use super::pool::Owner;
use super::spec::{Level, Order, Remainder};
use super::subset::Subset;

/// What a job is when it joins.
#[derive(Debug, Clone)]
pub struct Join {
    /// Samples in a batch of one rank.
    pub batch: u32,
    /// Ranks that draw together, step by step.
    pub ranks: u32,
    /// What becomes of samples that do not fill a step.
    pub remainder: Remainder,
    /// In which order it takes samples.
    pub order: Order,
    /// What it shares.
    pub level: Level,
    /// Part of its draws that follow its own order.
    pub mixing: f64,
    /// Names its order, and in strict order its copies.
    pub seed: u64,
    /// Keyed order; without it the dataset's, in strict order only.
    pub shuffle: bool,
    /// The samples it trains on; all without it.
    pub subset: Option<Arc<Subset>>,
    /// Copies of this opening of the stream numbered up to here count as used.
    pub used_to: Option<u64>,
}

impl Default for Join {
    fn default() -> Self {
        Join {
            batch: 1,
            ranks: 1,
            remainder: Remainder::Pad,
            order: Order::Ready,
            level: Level::Augmented,
            mixing: 0.0,
            seed: 0,
            shuffle: true,
            subset: None,
            used_to: None,
        }
    }
}

/// A sample that a job drew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The slot of its copy; it may hold another by now.
    pub slot: u32,
    /// Which sample.
    pub sample: u32,
    /// Its place in the job's keyed order.
    pub position: u64,
    /// Number of the copy.
    pub generation: u64,
    /// False where it only fills up a step.
    pub valid: bool,
}

/// One step of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Its samples, rank by rank.
    pub taken: Vec<Taken>,
    /// How many each rank gets.
    pub sizes: Vec<u32>,
    /// Positions that failed since the step before.
    pub skipped: Vec<u64>,
}

/// A step being filled.
#[derive(Debug, Clone, Default)]
pub(super) struct Hand {
    pub(super) taken: Vec<Taken>,
    /// Samples without repeats that it shall have.
    pub(super) size: u64,
    /// Repeats that fill it up, and those under way.
    pub(super) pads: u64,
    pub(super) pads_flight: u64,
    pub(super) pads_done: Vec<(u32, Taken)>,
    /// Repeats begun so far.
    pub(super) pads_begun: u32,
    /// Live positions below this must be in it.
    pub(super) bound: u64,
    /// Those of them that are not yet.
    pub(super) missing: u64,
    /// Whether the next place follows the job's own order, if that is thrown.
    pub(super) coin: Option<bool>,
}

impl Hand {
    /// Samples that may still be any.
    pub(super) fn room(&self) -> u64 {
        self.size.saturating_sub(self.taken.len() as u64 + self.missing)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) join: Join,
    pub(super) bit: u32,
    /// Samples of its steps so far; when a step opens, at least as many as whoever was served last has.
    pub(super) taken: u64,
    /// The epoch it draws.
    pub(super) pass: Pass,
    /// The epoch after it, once all that is left of this one is prepared.
    pub(super) next: Option<Pass>,
    /// Copies that cover the epoch it prepares.
    pub(super) ready: Bits,
    pub(super) flight: u32,
    /// Copies that cover what is left of the epoch it draws, once the next is opened.
    pub(super) tail: Bits,
    pub(super) tail_flight: u32,
    /// Samples of that rest whose copy was evicted.
    pub(super) lost: Vec<u32>,
    pub(super) hand: Option<Hand>,
    pub(super) demand: Option<f64>,
    pub(super) target: u32,
}

impl Job {
    pub(super) fn new(n: u32, bit: u32, join: Join) -> Self {
        let keyed = Keyed::new(n, join.subset.clone(), None);
        Job {
            taken: 0,
            pass: Pass::new(0, keyed, 0),
            join,
            bit,
            next: None,
            ready: Bits::default(),
            flight: 0,
            tail: Bits::default(),
            tail_flight: 0,
            lost: Vec::new(),
            hand: None,
            demand: None,
            target: 1,
        }
    }

    pub(super) fn mask(&self) -> u64 {
        1 << self.bit
    }

    pub(super) fn is_strict(&self) -> bool {
        self.join.order == Order::Strict
    }

    /// Samples in a full step.
    pub(super) fn full(&self) -> u64 {
        u64::from(self.join.batch) * u64::from(self.join.ranks)
    }

    /// The epoch that is prepared.
    pub(super) fn ahead(&self) -> &Pass {
        self.next.as_ref().unwrap_or(&self.pass)
    }

    pub(super) fn ahead_mut(&mut self) -> &mut Pass {
        self.next.as_mut().unwrap_or(&mut self.pass)
    }

    /// Whether it may never ask again.
    pub(super) fn is_silent(&self) -> bool {
        self.demand == Some(0.0)
    }

    /// A new epoch, with the share that its remainder leaves.
    pub(super) fn pass(&self, n: u32, epoch: u64) -> Pass {
        let key = self.join.shuffle.then_some((self.join.seed, epoch));
        let keyed = Keyed::new(n, self.join.subset.clone(), key);
        let len = keyed.len();
        let share =
            if self.join.remainder == Remainder::Drop { len / self.full() * self.full() } else { len };
        Pass::new(epoch, keyed, share)
    }

    /// Whose the copies are that it prepares.
    pub(super) fn owner(&self, epoch: u64) -> Owner {
        match (self.join.level, self.join.order) {
            (Level::Augmented, Order::Strict) => Owner::Named { seed: self.join.seed, epoch },
            (Level::Augmented, _) => Owner::Shared,
            (_, order) => {
                let name = (order == Order::Strict).then_some((self.join.seed, epoch));
                Owner::Own { job: self.bit, name }
            }
        }
    }

    /// Copies ready and under way for the epoch it prepares.
    pub(super) fn stock(&self) -> u32 {
        self.ready.len() + self.flight
    }

    /// Live positions beyond those in hand that its steps can use.
    pub(super) fn is_over(&self) -> bool {
        let left = self.pass.left;
        left == 0 || self.join.remainder == Remainder::Drop && left < self.full()
    }

    /// How full its hand and stock are, in seconds of its demand.
    pub(super) fn seconds(&self, fastest: f64) -> f64 {
        let stock = f64::from(self.ready.len() + self.tail.len() + self.tail_flight);
        (self.in_hand() + stock) / self.demand.unwrap_or(fastest).max(1e-9)
    }

    /// Samples in its hand and under way.
    fn in_hand(&self) -> f64 {
        let hand = self.hand.as_ref().map_or(0, |hand| hand.taken.len());
        hand as f64 + f64::from(self.flight)
    }

    /// Samples that it was served, with those in its hand. Jobs that wait are served by this, the fast no more
    /// than the slow; whoever has a full hand leaves the rest to the others.
    pub(super) fn served(&self) -> f64 {
        self.taken as f64 + self.in_hand()
    }
}

/// How many samples each rank gets of a step of `size`.
pub fn deal(size: u64, ranks: u32) -> Vec<u32> {
    let ranks = u64::from(ranks);
    (0..ranks).map(|rank| ((size + ranks - 1 - rank) / ranks) as u32).collect()
}
