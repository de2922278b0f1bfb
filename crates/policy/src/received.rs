//! What a job has received in an epoch: all positions below `base`, and a few beyond it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::Positions;

/// The received set: all below a base, and what overtook it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Every position below this is received or skipped.
    pub base: u64,
    /// Positions below `base` that were skipped because their sample failed.
    pub skipped: u64,
    /// Received positions above `base`.
    pub beyond: Positions,
    /// Skipped positions above `base`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub failed: BTreeSet<u64>,
}

impl Received {
    /// Adds the positions of a received batch and those skipped on the way to it. What padding repeats is in
    /// already.
    pub fn add(&mut self, positions: &[u64], skipped: &[u64]) {
        self.beyond.extend(positions.iter().copied().filter(|&position| position >= self.base));
        self.failed.extend(skipped.iter().filter(|&&position| position >= self.base));
        loop {
            if self.beyond.remove(self.base) {
                self.base += 1;
            } else if self.failed.remove(&self.base) {
                self.base += 1;
                self.skipped += 1;
            } else {
                return;
            }
        }
    }

    /// How many samples were received.
    pub fn count(&self) -> u64 {
        self.base - self.skipped + self.beyond.len()
    }

    /// Whether this position needs no more work.
    pub fn contains(&self, position: u64) -> bool {
        position < self.base || self.beyond.contains(position) || self.failed.contains(&position)
    }

    /// Whether the numbers can be true for an epoch of `n` positions; a state comes from outside.
    pub fn is_sound(&self, n: u64) -> bool {
        self.base <= n
            && self.skipped <= self.base
            && self.beyond.iter().chain(self.failed.iter().copied()).all(|p| (self.base..n).contains(&p))
            && !self.failed.iter().any(|&p| self.beyond.contains(p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_follows_what_closes_the_gap() {
        let mut received = Received::default();
        received.add(&[1, 2, 5], &[]);
        assert_eq!((received.base, received.beyond.len(), received.count()), (0, 3, 3));
        received.add(&[0], &[3]);
        assert_eq!((received.base, received.skipped, received.count()), (4, 1, 4));
        assert!(received.contains(3) && received.contains(5) && !received.contains(4));
        assert!(received.is_sound(6) && !received.is_sound(5));
    }
}
