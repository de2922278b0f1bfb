//! Randomness as an argument: a small seeded generator that callers own and pass in.

/// SplitMix64. Equal seeds make equal decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dice(u64);

impl Dice {
    /// A generator for any seed.
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::permute::mix(self.0)
    }

    /// Uniform in `0..bound`; `bound` is not 0. The bias is below `bound` / 2⁶⁴.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}
