//! A set of slot numbers that is counted, changed and probed at random in a few steps.

use crate::Dice;

/// A bitmap with two levels of summaries: bit `i` of a level says whether word `i` below is not 0.
#[derive(Debug, Clone, Default)]
pub(super) struct Bits {
    levels: [Vec<u64>; 3],
    count: u32,
}

impl Bits {
    /// Members.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// Makes room for the numbers below `bound`.
    pub(super) fn grow(&mut self, bound: usize) {
        let mut words = bound.div_ceil(64).max(1);
        for level in &mut self.levels {
            if level.len() < words {
                level.resize(words, 0);
            }
            words = words.div_ceil(64).max(1);
        }
    }

    #[cfg(test)]
    pub(super) fn contains(&self, i: u32) -> bool {
        self.levels[0].get(i as usize / 64).is_some_and(|word| word >> (i % 64) & 1 == 1)
    }

    /// Adds `i`, which must be below the bound and not be in.
    pub(super) fn insert(&mut self, i: u32) {
        debug_assert!(self.levels[0][i as usize / 64] >> (i % 64) & 1 == 0, "{i} is in");
        self.count += 1;
        let mut at = i as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let before = std::mem::replace(word, *word | 1 << (at % 64));
            if before != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Removes `i`, which must be in.
    pub(super) fn remove(&mut self, i: u32) {
        debug_assert!(self.levels[0][i as usize / 64] >> (i % 64) & 1 == 1, "{i} is not in");
        self.count -= 1;
        let mut at = i as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.levels.iter_mut().for_each(|level| level.fill(0));
        self.count = 0;
    }

    /// The members, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.levels[0].iter().enumerate().flat_map(|(at, &word)| {
            std::iter::successors((word != 0).then_some(word), |rest| {
                let rest = rest & (rest - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |rest| at as u32 * 64 + rest.trailing_zeros())
        })
    }

    /// The first member at or after a random number, going round; likelier behind a gap, never impossible.
    pub(super) fn probe(&self, dice: &mut Dice) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let start = dice.below(self.levels[0].len() as u64 * 64) as usize;
        self.next(start).or_else(|| self.next(0))
    }

    fn next(&self, from: usize) -> Option<u32> {
        let mut at = from;
        let mut depth = 0;
        // Up to the first level that has a member further on …
        let mut found = loop {
            let level = self.levels.get(depth)?;
            if let Some(word) = level.get(at / 64) {
                let rest = word & (!0u64 << (at % 64));
                if rest != 0 {
                    break at / 64 * 64 + rest.trailing_zeros() as usize;
                }
                if depth + 1 == self.levels.len() {
                    // The top level may have several words; there are few.
                    let later = level.iter().enumerate().skip(at / 64 + 1).find(|(_, word)| **word != 0)?;
                    break later.0 * 64 + later.1.trailing_zeros() as usize;
                }
            }
            at = at / 64 + 1;
            depth += 1;
        };
        // … and down to it.
        while depth > 0 {
            depth -= 1;
            found = found * 64 + self.levels[depth][found].trailing_zeros() as usize;
        }
        Some(found as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set(bound in 1u32..20_000, moves in prop::collection::vec(any::<u32>(), 0..300), seed: u64) {
            let (mut bits, mut set, mut dice) = (Bits::default(), BTreeSet::new(), Dice::new(seed));
            bits.grow(bound as usize);
            for i in moves {
                let i = i % bound;
                if set.insert(i) {
                    bits.insert(i);
                } else {
                    set.remove(&i);
                    bits.remove(i);
                }
                prop_assert_eq!(bits.len() as usize, set.len());
                prop_assert_eq!(bits.contains(i), set.contains(&i));
                let probed = bits.probe(&mut dice);
                prop_assert_eq!(probed.is_none(), set.is_empty());
                prop_assert!(probed.is_none_or(|i| set.contains(&i)));
                let from = i as usize + 1;
                prop_assert_eq!(bits.next(from), set.range(from as u32..).next().copied());
            }
            prop_assert!(bits.iter().eq(set.iter().copied()));
        }
    }

    #[test]
    fn a_probe_reaches_every_member() {
        let (mut bits, mut dice) = (Bits::default(), Dice::new(1));
        bits.grow(1000);
        (0..1000).step_by(37).for_each(|i| bits.insert(i));
        let seen: BTreeSet<_> = (0..2000).filter_map(|_| bits.probe(&mut dice)).collect();
        assert_eq!(seen.len(), bits.len() as usize);
    }
}
