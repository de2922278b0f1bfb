//! A part of the samples, for k-fold, filters and subsets.

use super::needs::BLOCK;

/// Some samples of a dataset, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    samples: Vec<u32>,
    bits: Vec<u64>,
    pub(super) counts: Vec<u16>,
}

impl Subset {
    /// The given samples of `0..n`; repeats count once, and what is not below `n` is left out.
    pub fn new(mut samples: Vec<u32>, n: u32) -> Self {
        samples.retain(|&sample| sample < n);
        samples.sort_unstable();
        samples.dedup();
        let mut bits = vec![0; (n as usize).div_ceil(64)];
        let mut counts = vec![0; (n as usize).div_ceil(BLOCK)];
        for &sample in &samples {
            bits[sample as usize / 64] |= 1 << (sample % 64);
            counts[sample as usize / BLOCK] += 1;
        }
        Subset { samples, bits, counts }
    }

    /// How many.
    pub fn len(&self) -> u32 {
        self.samples.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Ascending.
    pub fn samples(&self) -> &[u32] {
        &self.samples
    }

    /// Whether it has this one.
    pub fn contains(&self, sample: u32) -> bool {
        self.bits.get(sample as usize / 64).is_some_and(|word| word >> (sample % 64) & 1 == 1)
    }
}
