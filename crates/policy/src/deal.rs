//! A rank's fixed share of an epoch, where no daemon deals.
//!
//! What is left of an epoch is cut into *global steps* of a batch for every rank; in a step the ranks'
//! batches stand one behind the other. So any rank can say what all of them have after a whole step, and
//! another number of ranks can go on from there.

use serde::{Deserialize, Serialize};

use crate::Received;
use crate::share::Remainder;

/// Which rank of how many, in batches of how many samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Which.
    pub rank: u32,
    /// Of how many.
    pub ranks: u32,
    /// Samples in a batch of one rank.
    pub batch: u64,
    /// What becomes of samples that do not fill a step.
    pub remainder: Remainder,
}

/// A position of the epoch that a rank is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where in the epoch's order.
    pub position: u64,
    /// How often padding repeats it.
    pub repeat: u64,
}

/// The share of one rank.
#[derive(Debug, Clone)]
pub struct Deal {
    rank: Rank,
    /// Positions of the epoch, and those that are left of it.
    positions: u64,
    left: u64,
    base: u64,
    /// Positions above the base that are not left, ascending.
    holes: Vec<u64>,
}

impl Deal {
    /// Deals what `received` has left of an epoch of `positions`.
    pub fn new(rank: Rank, positions: u64, received: &Received) -> Self {
        let mut holes: Vec<u64> = received
            .beyond
            .iter()
            .chain(received.failed.iter().copied())
            .filter(|&p| p >= received.base)
            .collect();
        holes.sort_unstable();
        let base = received.base.min(positions);
        Deal { rank, positions, left: positions - base - holes.len() as u64, base, holes }
    }

    fn full(&self) -> u64 {
        self.rank.batch * u64::from(self.rank.ranks)
    }

    /// Whole steps, and samples that fill no further one.
    fn whole(&self) -> (u64, u64) {
        (self.left / self.full(), self.left % self.full())
    }

    /// Steps of every rank.
    pub fn steps(&self) -> u64 {
        let (whole, rest) = self.whole();
        whole + u64::from(rest > 0 && self.rank.remainder != Remainder::Drop)
    }

    /// The first position that no whole step holds.
    pub fn whole_end(&self) -> u64 {
        let (whole, _) = self.whole();
        if whole == 0 { self.base } else { self.rest(whole * self.full() - 1) + 1 }
    }

    /// Where this rank's batch begins in the last step, if that is not a whole one, and how large it is.
    fn last(&self) -> (u64, u64) {
        let (ranks, rank) = (u64::from(self.rank.ranks), u64::from(self.rank.rank));
        let (_, rest) = self.whole();
        let size = match self.rank.remainder {
            Remainder::Drop => 0,
            Remainder::Pad => rest.next_multiple_of(ranks),
            Remainder::Uneven => rest,
        };
        // As `share::deal`: the first ranks have one more.
        let before = |rank: u64| rank * (size / ranks) + rank.min(size % ranks);
        (before(rank), before(rank + 1) - before(rank))
    }

    /// Samples that this rank is given, repeats included.
    pub fn len(&self) -> u64 {
        self.whole().0 * self.rank.batch + self.last().1
    }

    /// Whether it is given nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position that is `index` among those left.
    fn rest(&self, index: u64) -> u64 {
        // A hole has as many of those left before it as its distance from the base, less the holes before it.
        let (mut low, mut high) = (0, self.holes.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.holes[middle] - self.base - middle as u64 <= index {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.base + index + low as u64
    }

    /// What this rank is given as its sample `index`.
    ///
    /// # Panics
    /// When it is given less.
    pub fn at(&self, index: u64) -> Place {
        assert!(index < self.len(), "sample {index} of {}", self.len());
        let (whole, rest) = self.whole();
        let (step, at) = (index / self.rank.batch, index % self.rank.batch);
        let place =
            if step < whole { u64::from(self.rank.rank) * self.rank.batch + at } else { self.last().0 + at };
        if step < whole || place < rest {
            return Place { position: self.rest(step * self.full() + place), repeat: 0 };
        }
        let pad = place - rest;
        Place { position: pad % self.positions, repeat: 1 + pad / self.positions }
    }

    /// What all ranks have received after so many steps, where each takes its share in order.
    pub fn after(&self, received: &Received, steps: u64) -> Received {
        let done = steps.saturating_mul(self.full()).min(self.left);
        let mut all = received.clone();
        if self.holes.is_empty() {
            all.base = self.base + done;
            return all;
        }
        self.add(&mut all, (0..done).map(|index| self.rest(index)));
        all
    }

    /// Adds what this rank has received to what the job has.
    pub fn merge(&self, all: &mut Received, own: &Received) {
        let place =
            |index: u64| Some(self.at(index)).filter(|place| place.repeat == 0).map(|place| place.position);
        let len = self.len();
        let beyond: Vec<u64> = own.beyond.iter().filter(|&index| index < len).collect();
        self.add(all, (0..own.base.min(len)).chain(beyond).filter_map(place));
    }

    fn add(&self, all: &mut Received, positions: impl Iterator<Item = u64>) {
        let positions: Vec<u64> = positions.collect();
        all.add(&positions, &[]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn remainder() -> impl Strategy<Value = Remainder> {
        prop::sample::select(vec![Remainder::Pad, Remainder::Drop, Remainder::Uneven])
    }

    proptest! {
        #[test]
        fn ranks_have_equal_steps_and_every_position_once(
            positions in 1u64..300, ranks in 1u32..9, batch in 1u64..12, remainder in remainder(),
            done in prop::collection::btree_set(0u64..300, 0..80),
        ) {
            let done: Vec<u64> = done.into_iter().filter(|&p| p < positions).collect();
            let mut received = Received::default();
            received.add(&done, &[]);
            let deals: Vec<Deal> =
                (0..ranks).map(|rank| Deal::new(Rank { rank, ranks, batch, remainder }, positions, &received)).collect();
            let left = positions - done.len() as u64;
            let mut all = Vec::new();
            for deal in &deals {
                prop_assert_eq!(deal.steps(), deals[0].steps());
                let sizes = deal.len();
                prop_assert!(sizes <= deal.steps() * batch && sizes + batch >= deal.steps() * batch);
                if remainder == Remainder::Pad {
                    prop_assert_eq!(sizes, deals[0].len(), "padded ranks have as many samples");
                }
                let places = (0..deal.len()).map(|index| deal.at(index));
                all.extend(places.filter(|place| place.repeat == 0).map(|place| place.position));
            }
            all.sort_unstable();
            let rest: Vec<u64> = (0..positions).filter(|p| !done.contains(p)).collect();
            let full = u64::from(ranks) * batch;
            let share = if remainder == Remainder::Drop { left / full * full } else { left };
            prop_assert_eq!(&all[..], &rest[..share as usize], "exactly once; drop leaves out the last");
        }

        #[test]
        fn a_stream_deals_the_same(rest in 0u64..200, ranks in 1u32..9, rank in 0u32..9) {
            let rank = Rank { rank: rank % ranks, ranks, batch: 1000, remainder: Remainder::Uneven };
            let deal = Deal::new(rank, rest, &Received::default());
            prop_assert_eq!(deal.len(), u64::from(crate::share::deal(rest, ranks)[rank.rank as usize]));
        }

        #[test]
        fn a_whole_step_of_one_rank_tells_of_all(
            positions in 1u64..200, ranks in 1u32..5, batch in 1u64..9, remainder in remainder(), steps in 0u64..12,
        ) {
            let rank = |rank| Rank { rank, ranks, batch, remainder };
            let deals: Vec<Deal> =
                (0..ranks).map(|r| Deal::new(rank(r), positions, &Received::default())).collect();
            let mut merged = Received::default();
            let mut told = Vec::new();
            for deal in &deals {
                let steps = steps.min(deal.steps());
                let own = Received { base: (steps * batch).min(deal.len()), ..Received::default() };
                deal.merge(&mut merged, &own);
                told.push(deal.after(&Received::default(), steps));
            }
            prop_assert!(told.iter().all(|one| *one == merged), "any rank can tell");
        }
    }
}
