//! Who still needs which sample: one word of job bits per sample, and counts that find a random need.
//!
//! *Open* needs are those for which the pool holds no copy that the job may draw; only they are counted, so
//! the k-th open need of a job is found by walking counts instead of samples. An epoch's turn marks blocks
//! as stale for the job and writes their words when one of them changes.

use super::subset::Subset;
use std::sync::Arc;

/// Samples in a block.
pub(super) const BLOCK: usize = 512;
/// Blocks in a group of them.
const GROUP: usize = 64;

/// Words as narrow as the number of jobs allows.
#[derive(Debug, Clone)]
enum Words {
    W8(Vec<u8>),
    W16(Vec<u16>),
    W32(Vec<u32>),
    W64(Vec<u64>),
}

macro_rules! each {
    ($words:expr, $v:ident => $body:expr) => {
        match $words {
            Words::W8($v) => $body,
            Words::W16($v) => $body,
            Words::W32($v) => $body,
            Words::W64($v) => $body,
        }
    };
}

#[expect(
    trivial_numeric_casts,
    clippy::unnecessary_cast,
    reason = "one of the four widths is the word's own"
)]
impl Words {
    fn new(n: usize) -> Self {
        Words::W8(vec![0; n])
    }

    fn width(&self) -> usize {
        match self {
            Words::W8(_) => 8,
            Words::W16(_) => 16,
            Words::W32(_) => 32,
            Words::W64(_) => 64,
        }
    }

    fn widened(&self) -> Words {
        match self {
            Words::W8(v) => Words::W16(v.iter().map(|&w| w.into()).collect()),
            Words::W16(v) => Words::W32(v.iter().map(|&w| w.into()).collect()),
            Words::W32(v) => Words::W64(v.iter().map(|&w| w.into()).collect()),
            Words::W64(v) => Words::W64(v.clone()),
        }
    }

    #[inline]
    fn get(&self, at: usize) -> u64 {
        each!(self, v => v[at] as u64)
    }

    #[inline]
    fn set(&mut self, at: usize, bit: u32, on: bool) {
        each!(self, v => if on { v[at] |= 1 << bit } else { v[at] &= !(1 << bit) })
    }

    /// Clears the bits of `and` and sets those of `or`.
    fn rewrite(&mut self, range: std::ops::Range<usize>, and: u64, or: u64) {
        macro_rules! write {
            ($v:ident, $kind:ty) => {
                $v[range].iter_mut().for_each(|word| *word = *word & !(and as $kind) | or as $kind)
            };
        }
        match self {
            Words::W8(v) => write!(v, u8),
            Words::W16(v) => write!(v, u16),
            Words::W32(v) => write!(v, u32),
            Words::W64(v) => write!(v, u64),
        }
    }

    fn bytes(&self) -> usize {
        each!(self, v => size_of_val(&v[..]))
    }
}

/// The needs of all jobs of a stream.
#[derive(Debug, Clone)]
pub(super) struct Needs {
    n: u32,
    words: Words,
    /// Jobs whose turn is not yet written to a block.
    stale: Vec<u64>,
    /// Open needs by block and job, and by group of blocks and job.
    counts: Vec<u16>,
    groups: Vec<u32>,
    open: [u32; 64],
    /// Whether the pool holds or awaits any copy of a sample.
    present: Vec<u64>,
    subsets: [Option<Arc<Subset>>; 64],
    /// Jobs that train on a subset.
    partial: u64,
}

impl Needs {
    pub(super) fn new(n: u32) -> Self {
        let words = Words::new(n as usize);
        let blocks = (n as usize).div_ceil(BLOCK);
        Needs {
            n,
            stale: vec![0; blocks],
            counts: vec![0; blocks * words.width()],
            groups: vec![0; blocks.div_ceil(GROUP) * words.width()],
            words,
            open: [0; 64],
            present: vec![0; (n as usize).div_ceil(64)],
            subsets: std::array::from_fn(|_| None),
            partial: 0,
        }
    }

    /// Makes sure that job `job` has a bit.
    pub(super) fn widen(&mut self, job: u32) {
        while self.words.width() <= job as usize {
            let old = self.words.width();
            self.words = self.words.widened();
            let width = self.words.width();
            self.counts = spread(&self.counts, old, width);
            self.groups = spread(&self.groups, old, width);
        }
    }

    /// Bytes held for all samples, subsets apart.
    pub(super) fn bytes(&self) -> usize {
        self.words.bytes()
            + size_of_val(&self.stale[..])
            + size_of_val(&self.counts[..])
            + size_of_val(&self.groups[..])
            + size_of_val(&self.present[..])
    }

    pub(super) fn set_subset(&mut self, job: u32, subset: Option<Arc<Subset>>) {
        self.partial = self.partial & !(1 << job) | u64::from(subset.is_some()) << job;
        self.subsets[job as usize] = subset;
    }

    /// The job needs all its samples, and all of them are open.
    pub(super) fn turn(&mut self, job: u32) {
        let width = self.words.width();
        self.groups.iter_mut().skip(job as usize).step_by(width).for_each(|count| *count = 0);
        let subset = self.subsets[job as usize].clone();
        for block in 0..self.stale.len() {
            self.stale[block] |= 1 << job;
            let count = match &subset {
                None => BLOCK.min(self.n as usize - block * BLOCK) as u16,
                Some(subset) => subset.counts[block],
            };
            self.counts[block * width + job as usize] = count;
            self.groups[block / GROUP * width + job as usize] += u32::from(count);
        }
        self.open[job as usize] = subset.map_or(self.n, |subset| subset.len());
    }

    /// Bits of the jobs that need `sample`; those of jobs that have left mean nothing.
    #[inline]
    pub(super) fn word(&self, sample: u32) -> u64 {
        let word = self.words.get(sample as usize);
        let stale = self.stale[sample as usize / BLOCK];
        if stale == 0 { word } else { self.refreshed(sample, word, stale) }
    }

    fn refreshed(&self, sample: u32, word: u64, stale: u64) -> u64 {
        let mut word = word & !stale | stale & !self.partial;
        for job in ones(stale & self.partial) {
            let inside = self.subsets[job as usize].as_ref().is_some_and(|subset| subset.contains(sample));
            word |= u64::from(inside) << job;
        }
        word
    }

    #[inline]
    pub(super) fn has(&self, sample: u32, job: u32) -> bool {
        self.word(sample) >> job & 1 == 1
    }

    /// Writes what turns have left undone in the block of `sample`.
    fn refresh(&mut self, sample: u32) {
        let block = sample as usize / BLOCK;
        let stale = std::mem::take(&mut self.stale[block]);
        if stale == 0 {
            return;
        }
        let range = block * BLOCK..((block + 1) * BLOCK).min(self.n as usize);
        self.words.rewrite(range.clone(), stale, stale & !self.partial);
        for job in ones(stale & self.partial) {
            if let Some(subset) = self.subsets[job as usize].clone() {
                for at in range.clone().filter(|&at| subset.contains(at as u32)) {
                    self.words.set(at, job, true);
                }
            }
        }
    }

    /// The job needs the sample no longer; its open count is the caller's to settle.
    pub(super) fn clear(&mut self, sample: u32, job: u32) {
        self.refresh(sample);
        self.words.set(sample as usize, job, false);
    }

    /// The job needs the sample, which is open.
    pub(super) fn add(&mut self, sample: u32, job: u32) {
        self.refresh(sample);
        self.words.set(sample as usize, job, true);
        self.uncover(sample, job);
    }

    /// A need is no longer open.
    #[inline]
    pub(super) fn cover(&mut self, sample: u32, job: u32) {
        let (block, width) = (sample as usize / BLOCK, self.words.width());
        self.counts[block * width + job as usize] -= 1;
        self.groups[block / GROUP * width + job as usize] -= 1;
        self.open[job as usize] -= 1;
    }

    /// A need is open again.
    #[inline]
    pub(super) fn uncover(&mut self, sample: u32, job: u32) {
        let (block, width) = (sample as usize / BLOCK, self.words.width());
        self.counts[block * width + job as usize] += 1;
        self.groups[block / GROUP * width + job as usize] += 1;
        self.open[job as usize] += 1;
    }

    /// Open needs of a job.
    #[inline]
    pub(super) fn open(&self, job: u32) -> u32 {
        self.open[job as usize]
    }

    /// The `k`-th open need of a job and those behind it in its block, passed to `found` until that says
    /// stop; `is_open` tells among the samples that it needs.
    pub(super) fn select(
        &self,
        job: u32,
        mut k: u32,
        is_open: impl Fn(u32) -> bool,
        mut found: impl FnMut(u32) -> bool,
    ) -> Option<()> {
        let (width, job_at) = (self.words.width(), job as usize);
        let mut group = 0;
        loop {
            let count = *self.groups.get(group * width + job_at)?;
            if k < count {
                break;
            }
            k -= count;
            group += 1;
        }
        let mut block = group * GROUP;
        loop {
            let count = u32::from(*self.counts.get(block * width + job_at)?);
            if k < count {
                break;
            }
            k -= count;
            block += 1;
        }
        let range = block * BLOCK..((block + 1) * BLOCK).min(self.n as usize);
        let mut look = |sample: u32| {
            if !is_open(sample) {
                return true;
            }
            if k > 0 {
                k -= 1;
                return true;
            }
            found(sample)
        };
        if self.stale[block] >> job & 1 == 1 {
            let mut needed = range.map(|at| at as u32).filter(|&sample| self.has(sample, job));
            needed.all(look);
            return Some(());
        }
        each!(&self.words, v => {
            for (word, sample) in v[range.clone()].iter().zip(range.start as u32..) {
                if *word >> job & 1 == 1 && !look(sample) {
                    break;
                }
            }
        });
        Some(())
    }

    #[inline]
    pub(super) fn is_present(&self, sample: u32) -> bool {
        self.present[sample as usize / 64] >> (sample % 64) & 1 == 1
    }

    pub(super) fn set_present(&mut self, sample: u32, present: bool) {
        let word = &mut self.present[sample as usize / 64];
        *word = *word & !(1 << (sample % 64)) | u64::from(present) << (sample % 64);
    }
}

/// The set bits of a word, as numbers.
#[inline]
pub(super) fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let job = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (job < 64).then_some(job)
    })
}

fn spread<T: Copy + Default>(values: &[T], old: usize, new: usize) -> Vec<T> {
    let mut wide = vec![T::default(); values.len() / old * new];
    for (from, to) in values.chunks_exact(old).zip(wide.chunks_exact_mut(new)) {
        to[..old].copy_from_slice(from);
    }
    wide
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_counts_and_selection_agree_with_plain_sets(
            n in 1u32..5000, moves in prop::collection::vec((0u32..40, any::<u32>(), 0u8..8), 1..400),
            every in 1u32..5,
        ) {
            let mut needs = Needs::new(n);
            let subset = Arc::new(Subset::new((0..n).step_by(every as usize).collect(), n));
            // For each job: what it needs, and what of it is open.
            let mut model: Vec<(BTreeSet<u32>, BTreeSet<u32>)> = vec![Default::default(); 40];
            for (job, pick, what) in moves {
                needs.widen(job);
                let (need, open) = &mut model[job as usize];
                let sample = pick % n;
                match what {
                    0 => {
                        let part = (job % 3 == 0).then(|| subset.clone());
                        *need = part.as_ref().map_or((0..n).collect(), |s| s.samples().iter().copied().collect());
                        *open = need.clone();
                        needs.set_subset(job, part);
                        needs.turn(job);
                    }
                    1..=3 if open.remove(&sample) => needs.cover(sample, job),
                    4..=6 if need.contains(&sample) && !open.contains(&sample) => {
                        need.remove(&sample);
                        needs.clear(sample, job);
                    }
                    7 if need.contains(&sample) && open.insert(sample) => needs.uncover(sample, job),
                    _ => {}
                }
                let (need, open) = &model[job as usize];
                prop_assert_eq!(needs.open(job) as usize, open.len());
                prop_assert_eq!(needs.has(sample, job), need.contains(&sample));
                if !open.is_empty() {
                    let k = pick % open.len() as u32;
                    let mut found = Vec::new();
                    needs.select(job, k, |s| open.contains(&s), |s| {
                        found.push(s);
                        found.len() < 3
                    });
                    let block = open.iter().nth(k as usize).map_or(0, |s| s / BLOCK as u32);
                    let behind = open.iter().skip(k as usize).take_while(|&s| s / BLOCK as u32 == block).take(3);
                    prop_assert!(behind.eq(&found));
                }
            }
        }
    }

    #[test]
    fn a_sample_costs_its_word_and_less_than_a_byte() {
        for jobs in [8u32, 16, 32, 64] {
            let mut needs = Needs::new(1_000_000);
            needs.widen(jobs - 1);
            let per_sample = needs.bytes() as f64 / 1e6;
            assert!(per_sample <= f64::from(jobs + 8) / 8.0, "{per_sample} B for {jobs} jobs");
        }
    }
}
