//! Counter-based randomness: the name of a copy and the place of a step decide every number.
//!
//! ChaCha8 is used as a keyed function: the name is the key, the step is the stream. No state is
//! carried from one sample to the next, so order of work never matters. The mapping from bits to
//! numbers is written out here because it is a promise: a stored log replays for ever.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Names one augmented copy. Equal names make equal pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CopyName {
    /// The job's or the stream's seed.
    pub seed: u64,
    /// The sample's number in its dataset.
    pub sample: u64,
    /// The epoch (alone and strict) or the stream's clock.
    pub generation: u64,
    /// How often the sample came before in this epoch.
    pub occurrence: u64,
}

/// The random numbers of one step of one copy.
#[derive(Debug, Clone)]
pub struct Coins(ChaCha8Rng);

impl Coins {
    /// The coins of the copy `name` for the step at `step`.
    pub fn new(name: &CopyName, step: u64) -> Self {
        let mut key = [0; 32];
        for (to, from) in
            key.chunks_exact_mut(8).zip([name.seed, name.sample, name.generation, name.occurrence])
        {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(step);
        Coins(rng)
    }

    /// Uniform in `[0, 1)` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`; `low` when they are equal.
    pub fn uniform(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..bound`. The bias of the multiplication is below 2⁻³² for any 32-bit bound.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u32
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// A random order of `N` things (Fisher–Yates).
    pub fn order<const N: usize>(&mut self) -> [u8; N] {
        let mut order = std::array::from_fn(|i| i as u8);
        for i in (1..N).rev() {
            order.swap(i, self.below(i as u32 + 1) as usize);
        }
        order
    }

    /// A standard normal number (Box–Muller; the sine half is not used).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    /// 64 raw bits, to seed something else.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: CopyName = CopyName { seed: 7, sample: 11, generation: 3, occurrence: 0 };

    #[test]
    fn the_mapping_is_a_promise_and_does_not_move() {
        let mut coins = Coins::new(&NAME, 2);
        let seen = (coins.bits(), coins.unit(), coins.below(1000), coins.order::<4>());
        let mut again = Coins::new(&NAME, 2);
        assert_eq!(seen, (again.bits(), again.unit(), again.below(1000), again.order::<4>()));
        insta_like(&format!("{seen:?}"));
    }

    fn insta_like(seen: &str) {
        assert_eq!(seen, include_str!("coins.snapshot").trim_end());
    }

    #[test]
    fn every_part_of_the_name_and_the_step_change_the_coins() {
        let first = |name: &CopyName, step| Coins::new(name, step).bits();
        let base = first(&NAME, 0);
        assert_ne!(base, first(&NAME, 1));
        assert_ne!(base, first(&CopyName { seed: 8, ..NAME }, 0));
        assert_ne!(base, first(&CopyName { sample: 8, ..NAME }, 0));
        assert_ne!(base, first(&CopyName { generation: 8, ..NAME }, 0));
        assert_ne!(base, first(&CopyName { occurrence: 8, ..NAME }, 0));
    }

    #[test]
    fn bounds_hold_and_the_mean_is_in_the_middle() {
        let mut sum = 0.0;
        let mut normal = (0.0, 0.0);
        for sample in 0..20_000 {
            let mut coins = Coins::new(&CopyName { sample, ..NAME }, 0);
            let x = coins.uniform([2.0, 3.0]);
            assert!((2.0..3.0).contains(&x));
            assert!(coins.below(3) < 3);
            sum += x;
            let z = f64::from(coins.normal());
            normal = (normal.0 + z, normal.1 + z * z);
        }
        assert!((sum / 20_000.0 - 2.5).abs() < 0.01);
        assert!((normal.0 / 20_000.0).abs() < 0.03 && (normal.1 / 20_000.0 - 1.0).abs() < 0.05);
    }
}
