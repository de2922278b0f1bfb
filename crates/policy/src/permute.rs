//! A keyed permutation of `0..n` without a table.
//!
//! A Feistel network over the smallest power of two that holds `n`, walked until the value falls inside
//! (at most two rounds of the network on average, except for tiny `n`). The width is the *bit length of
//! n − 1*: taking the ceiling of a logarithm instead is one bit short just above powers of two and
//! repeats an index there.

/// Rounds of the network. Four are a permutation that looks random; eight leave no visible trace.
const ROUNDS: usize = 8;

/// Narrower networks have too few keys to reach every order of a handful of samples.
const MIN_BITS: u32 = 8;

/// A bijection of `0..n` chosen by a seed and an epoch.
///
/// ```
/// let order = forebay_policy::Permutation::new(5, 42, 0);
/// let mut samples: Vec<u64> = (0..5).map(|position| order.at(position)).collect();
/// samples.sort();
/// assert_eq!(samples, [0, 1, 2, 3, 4]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    left_bits: u32,
    right_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..n` for one epoch.
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(MIN_BITS);
        let mut state = mix(seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(mix(epoch ^ 0xd1b5_4a32_d192_ed03));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Permutation { n, left_bits: bits / 2, right_bits: bits - bits / 2, keys }
    }

    /// How many things are permuted.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Whether there is nothing to permute.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The sample at a position.
    ///
    /// # Panics
    /// When `position` is not below `n`.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.n, "position {position} of {}", self.n);
        let mut value = position;
        loop {
            value = self.network(value);
            if value < self.n {
                return value;
            }
        }
    }

    /// The position of a sample: the inverse of [`Permutation::at`].
    ///
    /// # Panics
    /// When `sample` is not below `n`.
    pub fn position(&self, sample: u64) -> u64 {
        assert!(sample < self.n, "sample {sample} of {}", self.n);
        let mut value = sample;
        loop {
            value = self.network_back(value);
            if value < self.n {
                return value;
            }
        }
    }

    fn network_back(&self, value: u64) -> u64 {
        let mask = |bits: u32| (1u64 << bits) - 1;
        // An even number of rounds leaves the widths as they began.
        let (mut left_bits, mut right_bits) = (self.left_bits, self.right_bits);
        let (mut left, mut right) = (value >> right_bits, value & mask(right_bits));
        for key in self.keys.iter().rev() {
            (left_bits, right_bits) = (right_bits, left_bits);
            let before = right ^ (mix(left ^ key) & mask(left_bits));
            (left, right) = (before, left);
        }
        (left << right_bits) | right
    }

    fn network(&self, value: u64) -> u64 {
        let mask = |bits: u32| (1u64 << bits) - 1;
        let (mut left_bits, mut right_bits) = (self.left_bits, self.right_bits);
        let (mut left, mut right) = (value >> right_bits, value & mask(right_bits));
        for key in self.keys {
            let next = left ^ (mix(right ^ key) & mask(left_bits));
            (left, right) = (right, next);
            (left_bits, right_bits) = (right_bits, left_bits);
        }
        (left << right_bits) | right
    }
}

/// The finaliser of SplitMix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn assert_bijection(n: u64, seed: u64, epoch: u64) {
        let permutation = Permutation::new(n, seed, epoch);
        let mut seen = vec![false; n as usize];
        for position in 0..n {
            let sample = permutation.at(position) as usize;
            assert!(!std::mem::replace(&mut seen[sample], true), "{sample} twice for n = {n}");
            assert_eq!(permutation.position(sample as u64), position, "the inverse for n = {n}");
        }
    }

    #[test]
    fn is_a_bijection_around_powers_of_two() {
        for bits in 0..=18 {
            for n in [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                assert_bijection(n, 3, 5);
            }
        }
    }

    proptest! {
        #[test]
        fn is_a_bijection_for_any_size_seed_and_epoch(n in 0u64..3000, seed: u64, epoch: u64) {
            assert_bijection(n, seed, epoch);
        }
    }

    #[test]
    fn reaches_every_order_of_four_about_equally() {
        let mut counts = HashMap::new();
        for epoch in 0..24_000 {
            let permutation = Permutation::new(4, 1, epoch);
            let order: Vec<_> = (0..4).map(|p| permutation.at(p)).collect();
            *counts.entry(order).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Chi-square with 23 degrees of freedom: 49.7 is the 0.999 quantile.
        let chi: f64 = counts.values().map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 49.7, "chi-square {chi}");
    }

    #[test]
    fn one_epoch_says_nothing_about_the_next() {
        let n = 10_000;
        let (a, b) = (Permutation::new(n, 9, 0), Permutation::new(n, 9, 1));
        let mean = (n - 1) as f64 / 2.0;
        let (mut covariance, mut variance) = (0.0, 0.0);
        for position in 0..n {
            let (x, y) = (a.at(position) as f64 - mean, b.at(position) as f64 - mean);
            covariance += x * y;
            variance += x * x;
        }
        assert!((covariance / variance).abs() < 0.04);
    }

    #[test]
    fn the_order_is_a_promise_and_does_not_move() {
        let permutation = Permutation::new(1000, 42, 7);
        let first: Vec<_> = (0..8).map(|p| permutation.at(p)).collect();
        assert_eq!(format!("{first:?}"), include_str!("permute.snapshot").trim_end());
    }
}
