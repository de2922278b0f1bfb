//! The names of the copies of a batch, without what they have in common.

use crate::CopyName;

/// Copies of one seed, whose generations lie close to each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Of all.
    pub seed: u64,
    /// Of the first.
    pub generation: u64,
    /// How far the generation of each lies behind that; empty where none does.
    pub copies: Vec<u64>,
    /// How often each sample came before; empty where none did.
    pub occurrences: Vec<u64>,
}

impl Names {
    /// What the copies of one batch have in common and what not.
    pub fn of(names: &[CopyName]) -> Self {
        let first = names.first();
        let generation = first.map_or(0, |name| name.generation);
        let unless_all_0 = |list: Vec<u64>| if list.iter().all(|&one| one == 0) { Vec::new() } else { list };
        Names {
            seed: first.map_or(0, |name| name.seed),
            generation,
            copies: unless_all_0(names.iter().map(|name| name.generation.wrapping_sub(generation)).collect()),
            occurrences: unless_all_0(names.iter().map(|name| name.occurrence).collect()),
        }
    }

    /// The names, for the samples of the batch.
    pub fn whole(&self, samples: &[u64]) -> Vec<CopyName> {
        let of = |list: &[u64], at: usize| list.get(at).copied().unwrap_or_default();
        let name = |(at, &sample): (usize, &u64)| CopyName {
            seed: self.seed,
            sample,
            generation: self.generation.wrapping_add(of(&self.copies, at)),
            occurrence: of(&self.occurrences, at),
        };
        samples.iter().enumerate().map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_left_out_comes_back(
            seed: u64, copies in prop::collection::vec((any::<u64>(), any::<u64>(), 0u64..3), 0..9),
        ) {
            let name = |(sample, generation, occurrence)| CopyName { seed, sample, generation, occurrence };
            let names: Vec<CopyName> = copies.into_iter().map(name).collect();
            let samples: Vec<u64> = names.iter().map(|name| name.sample).collect();
            prop_assert_eq!(Names::of(&names).whole(&samples), names);
        }
    }
}
