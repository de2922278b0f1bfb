//! How well an order is shuffled: three numbers, 0 is best.

use crate::Dice;

/// Followed samples at most; more would only make the numbers dearer.
const TRACKED: u32 = 20_000;
/// Classes of the label skew: the samples are taken as sorted by class, as image folders are.
const CLASSES: u32 = 10;

/// Watches the order of one job, epoch after epoch.
#[derive(Debug, Clone)]
pub struct Watch {
    first: u32,
    n: u32,
    /// Every so manieth sample is followed.
    every: u32,
    now: Vec<u32>,
    before: Vec<u32>,
    /// Follower of each sample, in this epoch and the one before; only where all are followed.
    next: Vec<u32>,
    next_before: Vec<u32>,
    last: u32,
    position: u32,
    epochs: u64,
    correlation: Mean,
    repeated: Mean,
    skew: Mean,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean(f64, f64);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 += value;
        self.1 += 1.0;
    }

    fn get(self) -> Option<f64> {
        (self.1 > 0.0).then(|| self.0 / self.1)
    }
}

/// The three numbers, where there was enough to see.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Quality {
    /// Rank correlation of a sample's position in one epoch and the next.
    pub correlation: Option<f64>,
    /// Share of neighbouring pairs repeated from the epoch before, less chance.
    pub repeated: Option<f64>,
    /// Total-variation distance of a batch's labels from the mean, less that of a full shuffle.
    pub skew: Option<f64>,
}

const NONE: u32 = u32::MAX;

impl Watch {
    /// For a job that draws the samples `first..first + n`.
    pub fn new(first: u32, n: u32) -> Self {
        let every = n.div_ceil(TRACKED).max(1);
        let tracked = n.div_ceil(every) as usize;
        let all = if every == 1 { n as usize } else { 0 };
        Watch {
            first,
            n,
            every,
            now: vec![NONE; tracked],
            before: vec![NONE; tracked],
            next: vec![NONE; all],
            next_before: vec![NONE; all],
            last: NONE,
            position: 0,
            epochs: 0,
            correlation: Mean::default(),
            repeated: Mean::default(),
            skew: Mean::default(),
        }
    }

    /// A batch was received.
    pub fn batch(&mut self, samples: impl Iterator<Item = u32> + Clone) {
        let mut labels = [0u32; CLASSES as usize];
        let mut size = 0u32;
        for sample in samples {
            let at = sample - self.first;
            if at.is_multiple_of(self.every) {
                self.now[(at / self.every) as usize] = self.position;
            }
            if self.every == 1 {
                if self.last != NONE {
                    self.next[self.last as usize] = at;
                }
                self.last = at;
            }
            self.position += 1;
            labels[(u64::from(at) * u64::from(CLASSES) / u64::from(self.n)) as usize] += 1;
            size += 1;
        }
        // Short batches are skewed by their size.
        if size >= 2 * CLASSES {
            self.skew.add(distance(&labels, size) - floor(size));
        }
    }

    /// An epoch ended; `whole` if all of it was seen.
    pub fn end(&mut self, whole: bool) {
        if whole && self.epochs > 0 {
            if let Some(r) = pearson(&self.before, &self.now) {
                self.correlation.add(r);
            }
            if self.every == 1 && self.n > 2 {
                let same =
                    self.next.iter().zip(&self.next_before).filter(|(a, b)| **a != NONE && a == b).count();
                self.repeated.add(same as f64 / f64::from(self.n - 1) - 1.0 / f64::from(self.n));
            }
        }
        std::mem::swap(&mut self.now, &mut self.before);
        std::mem::swap(&mut self.next, &mut self.next_before);
        self.now.fill(NONE);
        self.next.fill(NONE);
        (self.position, self.last) = (0, NONE);
        self.epochs = if whole { self.epochs + 1 } else { 0 };
    }

    /// Forgets what was averaged so far, not the order of the epoch before.
    pub fn restart(&mut self) {
        (self.correlation, self.repeated, self.skew) = Default::default();
    }

    /// The numbers so far.
    pub fn quality(&self) -> Quality {
        Quality { correlation: self.correlation.get(), repeated: self.repeated.get(), skew: self.skew.get() }
    }
}

/// Correlation of positions; they are ranks already, so this is Spearman's.
fn pearson(a: &[u32], b: &[u32]) -> Option<f64> {
    let pairs = || {
        a.iter()
            .zip(b)
            .filter(|(x, y)| **x != NONE && **y != NONE)
            .map(|(x, y)| (f64::from(*x), f64::from(*y)))
    };
    let count = pairs().count() as f64;
    if count < 3.0 {
        return None;
    }
    let (sx, sy) = pairs().fold((0.0, 0.0), |(sx, sy), (x, y)| (sx + x, sy + y));
    let (mx, my) = (sx / count, sy / count);
    let (xx, yy, xy) = pairs().fold((0.0, 0.0, 0.0), |(xx, yy, xy), (x, y)| {
        (xx + (x - mx) * (x - mx), yy + (y - my) * (y - my), xy + (x - mx) * (y - my))
    });
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt())
}

fn distance(labels: &[u32; CLASSES as usize], size: u32) -> f64 {
    let even = 1.0 / f64::from(CLASSES);
    labels.iter().map(|count| (f64::from(*count) / f64::from(size) - even).abs()).sum::<f64>() / 2.0
}

/// The distance that a full shuffle has at this batch size, drawn once per size.
fn floor(size: u32) -> f64 {
    use std::cell::RefCell;
    use std::collections::HashMap;
    thread_local!(static KNOWN: RefCell<HashMap<u32, f64>> = RefCell::default());
    KNOWN.with_borrow_mut(|known| {
        *known.entry(size).or_insert_with(|| {
            let mut dice = Dice::new(u64::from(size));
            let rounds = 2000;
            let sum: f64 = (0..rounds)
                .map(|_| {
                    let mut labels = [0; CLASSES as usize];
                    (0..size).for_each(|_| labels[dice.below(u64::from(CLASSES)) as usize] += 1);
                    distance(&labels, size)
                })
                .sum();
            sum / f64::from(rounds)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Permutation;

    fn watch(orders: impl Iterator<Item = Vec<u32>>) -> Quality {
        let mut watch = Watch::new(0, 2000);
        for order in orders {
            order.chunks(50).for_each(|batch| watch.batch(batch.iter().copied()));
            watch.end(true);
        }
        watch.quality()
    }

    #[test]
    fn a_full_shuffle_scores_nothing_and_the_same_order_scores_one() {
        let keyed = |epoch| (0..2000).map(|p| Permutation::new(2000, 1, epoch).at(p) as u32).collect();
        let good = watch((0..8).map(keyed));
        assert!(good.correlation.is_some_and(|r| r.abs() < 0.04), "{good:?}");
        assert!(good.repeated.is_some_and(|r| r.abs() < 0.002), "{good:?}");
        assert!(good.skew.is_some_and(|s| s.abs() < 0.01), "{good:?}");
        let same = watch((0..3).map(|_| keyed(0)));
        assert!(same.correlation.is_some_and(|r| r > 0.999) && same.repeated.is_some_and(|r| r > 0.99));
        let sorted = watch((0..2).map(|_| (0..2000).collect()));
        assert!(sorted.skew.is_some_and(|s| s > 0.7), "{sorted:?}");
    }
}
