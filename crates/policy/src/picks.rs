//! Which samples a job takes in an epoch: all, some, a list, or a weighted draw.
//!
//! A [`Sequence`] is the order of one epoch: which sample stands at which position, and how often it stood
//! there before. It is a function of the picks, the seed and the epoch, so every rank, every host and every
//! later run finds the same.

use std::collections::HashMap;
use std::sync::Arc;

use crate::share::Subset;
use crate::{Dice, Permutation};

/// Samples of a weighted draw at most: they are listed.
const MOST: u64 = 1 << 26;

/// The samples of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Picks {
    /// Every sample once.
    #[default]
    All,
    /// Some samples, each once.
    Some(Arc<Subset>),
    /// Samples in an order of their own, some perhaps more than once: each with how often it came before.
    List(Arc<Vec<(u32, u32)>>),
    /// A draw for every epoch.
    Weighted(Arc<Weights>),
}

/// A draw of samples by weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Of every sample.
    pub weights: Vec<f64>,
    /// Samples in an epoch.
    pub samples: u64,
    /// A sample may be drawn more than once.
    pub replacement: bool,
}

/// Why picks cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sample that is not there.
    #[error("sample {0} is not below {1}")]
    Sample(u64, u64),
    /// Numbers that are no weights.
    #[error("{0}")]
    Weights(&'static str),
}

impl Picks {
    /// The given samples of `0..n`: a subset where the order does not matter and none comes twice.
    pub fn of(samples: Vec<u32>, n: u32, ordered: bool) -> Result<Self, Error> {
        if let Some(&bad) = samples.iter().find(|&&sample| sample >= n) {
            return Err(Error::Sample(bad.into(), n.into()));
        }
        let subset = Subset::new(samples.clone(), n);
        let once = subset.len() as usize == samples.len();
        let fits = once && (!ordered || samples.is_sorted());
        Ok(if fits && subset.len() == n {
            Picks::All
        } else if fits {
            Picks::Some(Arc::new(subset))
        } else {
            Picks::List(Arc::new(counted(samples)))
        })
    }

    /// Checks what came from outside against a dataset of `n` samples.
    pub fn check(&self, n: u64) -> Result<(), Error> {
        match self {
            Picks::All => Ok(()),
            Picks::Some(subset) => match subset.samples().last() {
                Some(&last) if u64::from(last) >= n => Err(Error::Sample(last.into(), n)),
                _ => Ok(()),
            },
            Picks::List(list) => match list.iter().find(|(sample, _)| u64::from(*sample) >= n) {
                Some(&(bad, _)) => Err(Error::Sample(bad.into(), n)),
                None => Ok(()),
            },
            Picks::Weighted(weights) => weights.check(n),
        }
    }

    /// Samples in an epoch over a dataset of `n`.
    pub fn len(&self, n: u64) -> u64 {
        match self {
            Picks::All => n,
            Picks::Some(subset) => subset.len().into(),
            Picks::List(list) => list.len() as u64,
            Picks::Weighted(weights) => weights.samples,
        }
    }

    /// Bytes that it holds for an epoch.
    pub fn bytes(&self, n: u64) -> u64 {
        match self {
            Picks::All => 0,
            Picks::Some(subset) => 4 * u64::from(subset.len()) + n / 4,
            Picks::List(list) => 8 * list.len() as u64,
            // The draw of an epoch, and while it is made another list of it.
            Picks::Weighted(weights) => 16 * weights.weights.len() as u64 + 16 * weights.samples,
        }
    }

    /// The sample that stands `offset` behind another in what is picked of `n`, to stand in for it.
    pub fn neighbour(&self, sample: u64, offset: u64, n: u64) -> u64 {
        match self {
            Picks::Some(subset) if !subset.is_empty() => {
                let at = subset.samples().partition_point(|&other| u64::from(other) < sample) as u64;
                subset.samples()[((at + offset) % u64::from(subset.len())) as usize].into()
            }
            Picks::Weighted(weights) => {
                // What is never drawn stands in for nothing.
                let mut some = (1..=n)
                    .map(|step| (sample + step) % n)
                    .filter(|&other| weights.weights[other as usize] > 0.0);
                offset.checked_sub(1).and_then(|skip| some.nth(skip as usize)).unwrap_or(sample)
            }
            _ => (sample + offset) % n,
        }
    }

    /// Whether every sample comes once at most and its position in the keyed order is all there is to know.
    pub fn subset(&self) -> Option<Option<Arc<Subset>>> {
        match self {
            Picks::All => Some(None),
            Picks::Some(subset) => Some(Some(subset.clone())),
            Picks::List(_) | Picks::Weighted(_) => None,
        }
    }
}

impl Weights {
    fn check(&self, n: u64) -> Result<(), Error> {
        let sum: f64 = self.weights.iter().sum();
        if self.weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0)
            || sum <= 0.0
            || !sum.is_finite()
        {
            return Err(Error::Weights("weights should be finite, not negative, and not all 0"));
        }
        if self.weights.len() as u64 != n {
            return Err(Error::Weights("there should be one weight for each sample"));
        }
        if self.samples > MOST {
            return Err(Error::Weights("an epoch of a weighted draw has at most 67108864 samples"));
        }
        let some = self.weights.iter().filter(|weight| **weight > 0.0).count() as u64;
        if !self.replacement && self.samples > some {
            return Err(Error::Weights(
                "without replacement an epoch has no more samples than there are weights above 0",
            ));
        }
        Ok(())
    }

    /// The samples of an epoch, in order.
    fn draw(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut dice =
            Dice::new(crate::permute::mix(seed ^ 0x6d69_7865_6421_u64) ^ crate::permute::mix(epoch));
        if !self.replacement {
            // The smallest of exponential times whose rates are the weights (Efraimidis and Spirakis).
            let mut times: Vec<(f64, u32)> = (0u32..)
                .zip(&self.weights)
                .map(|(sample, weight)| (-(1.0 - dice.unit()).ln() / weight, sample))
                .collect();
            times.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            return times.into_iter().take(self.samples as usize).map(|(_, sample)| sample).collect();
        }
        let sums: Vec<f64> = self
            .weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let all = sums.last().copied().unwrap_or_default();
        let last = self.weights.iter().rposition(|weight| *weight > 0.0).unwrap_or_default();
        let one = |_| {
            let point = dice.unit() * all;
            sums.partition_point(|&sum| sum <= point).min(last) as u32
        };
        (0..self.samples).map(one).collect()
    }
}

/// The order of one epoch.
#[derive(Debug, Clone)]
pub struct Sequence {
    permutation: Option<Permutation>,
    subset: Option<Arc<Subset>>,
    /// Samples with how often each came before.
    listed: Option<Arc<Vec<(u32, u32)>>>,
    len: u64,
}

impl Sequence {
    /// The order of an epoch over `n` samples; without `shuffle` the picks' own.
    pub fn new(picks: &Picks, n: u64, shuffle: bool, seed: u64, epoch: u64) -> Self {
        let len = picks.len(n);
        let (subset, listed, shuffle) = match picks {
            Picks::All => (None, None, shuffle),
            Picks::Some(subset) => (Some(subset.clone()), None, shuffle),
            Picks::List(list) => (None, Some(list.clone()), shuffle),
            // A draw is random already.
            Picks::Weighted(weights) => (None, Some(Arc::new(counted(weights.draw(seed, epoch)))), false),
        };
        Sequence { permutation: shuffle.then(|| Permutation::new(len, seed, epoch)), subset, listed, len }
    }

    /// How many positions there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How far the occurrences of padding lie apart, so that no copy gets the name of another.
    pub fn stride(&self) -> u64 {
        if self.listed.is_some() { self.len } else { 1 }
    }

    /// The sample at a position, and how often it comes before.
    ///
    /// # Panics
    /// When there is no such position.
    pub fn at(&self, position: u64) -> (u64, u64) {
        let index = self.permutation.as_ref().map_or(position, |keyed| keyed.at(position)) as usize;
        if let Some(listed) = &self.listed {
            let (sample, occurrence) = listed[index];
            return (sample.into(), occurrence.into());
        }
        (self.subset.as_ref().map_or(index as u64, |subset| subset.samples()[index].into()), 0)
    }
}

/// Samples with how often each came before.
fn counted(samples: Vec<u32>) -> Vec<(u32, u32)> {
    let mut seen: HashMap<u32, u32> = HashMap::new();
    let count = |sample| {
        let count = seen.entry(sample).or_default();
        (sample, std::mem::replace(count, *count + 1))
    };
    samples.into_iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(picks: &Picks, n: u64, shuffle: bool, epoch: u64) -> Vec<u64> {
        let sequence = Sequence::new(picks, n, shuffle, 3, epoch);
        (0..sequence.len()).map(|position| sequence.at(position).0).collect()
    }

    fn weighted(weights: &[f64], samples: u64, replacement: bool) -> Picks {
        Picks::Weighted(Arc::new(Weights { weights: weights.to_vec(), samples, replacement }))
    }

    #[test]
    fn samples_are_a_subset_where_that_says_all() {
        assert_eq!(Picks::of(vec![2, 0, 1], 3, false), Ok(Picks::All));
        assert!(matches!(Picks::of(vec![2, 0], 3, false), Ok(Picks::Some(_))));
        assert!(matches!(Picks::of(vec![2, 0], 3, true), Ok(Picks::List(_))));
        assert!(matches!(Picks::of(vec![1, 1], 3, false), Ok(Picks::List(_))));
        assert_eq!(Picks::of(vec![3], 3, false), Err(Error::Sample(3, 3)));
    }

    #[test]
    fn a_list_keeps_its_order_and_counts_repeats() {
        let picks = Picks::of(vec![5, 3, 5], 6, true).expect("samples");
        assert_eq!(samples(&picks, 6, false, 0), [5, 3, 5]);
        let sequence = Sequence::new(&picks, 6, true, 1, 4);
        let mut all: Vec<_> = (0..3).map(|position| sequence.at(position)).collect();
        all.sort_unstable();
        assert_eq!(all, [(3, 0), (5, 0), (5, 1)], "shuffled, each occurrence once");
    }

    #[test]
    fn weights_decide_how_often_a_sample_comes() {
        let picks = weighted(&[1.0, 0.0, 3.0], 40_000, true);
        let drawn = samples(&picks, 3, true, 0);
        let share = drawn.iter().filter(|&&sample| sample == 2).count() as f64 / 40_000.0;
        assert!((share - 0.75).abs() < 0.015 && !drawn.contains(&1), "{share}");
        assert_ne!(drawn, samples(&picks, 3, true, 1), "every epoch is a draw of its own");
        assert_eq!(drawn, samples(&picks, 3, true, 0));
    }

    #[test]
    fn without_replacement_nothing_comes_twice_and_heavy_ones_come_first() {
        let weights: Vec<f64> = (0..100).map(|sample| if sample < 10 { 1000.0 } else { 1.0 }).collect();
        let picks = weighted(&weights, 100, false);
        let drawn = samples(&picks, 100, true, 0);
        assert!(drawn[..10].iter().filter(|&&sample| sample < 10).count() >= 8);
        let mut sorted = drawn;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }

    #[test]
    fn numbers_that_are_no_weights_are_refused() {
        for picks in [
            weighted(&[1.0], 1, true),
            weighted(&[1.0, f64::NAN], 1, true),
            weighted(&[0.0, 0.0], 1, true),
            weighted(&[-1.0, 2.0], 1, true),
            weighted(&[1.0, 0.0], 2, false),
        ] {
            assert!(picks.check(2).is_err(), "{picks:?}");
        }
    }
}
