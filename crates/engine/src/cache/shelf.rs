//! One form of one folder's samples.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forebay_recipe::Recipe;

use crate::counters::Gauge;
use crate::decode::{Picture, SLACK};

/// Samples after which the mean size is believed.
const ENOUGH: u64 = 32;
/// What a kept sample costs beside its bytes.
const OVERHEAD: u64 = 128;
/// Densities that are remembered.
const SOME: usize = 256;
/// Pixels are hardly less than so many times as large as their file, and planes than half of that. What is not even
/// begun teaches nothing, so until some were seen the guess is a low one.
const SWELL: u64 = 3;

/// A sample that is kept.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The file.
    Encoded(Vec<u8>),
    /// The pixels.
    Decoded(Decoded),
}

/// The decoded form of a sample.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// Width and height of the image in its file: coins are drawn for it.
    pub(crate) size: (u32, u32),
    /// After the deterministic steps; planes where there are none and random ones follow.
    pub(crate) picture: Picture,
}

impl Kept {
    pub(super) fn bytes(&self) -> u64 {
        OVERHEAD
            + match self {
                Kept::Encoded(bytes) => bytes.capacity() as u64,
                Kept::Decoded(decoded) => decoded.picture.capacity() as u64,
            }
    }
}

/// Whether the decoded form of a recipe is kept as planes where a file has them: all of the image, and copies are made
/// of it. What is served as it is must be pixels.
pub(crate) fn keeps_planes(recipe: &Recipe) -> bool {
    recipe.split().prefix.is_empty() && recipe.has_augmented()
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Encoded,
    Decoded { fingerprint: String, recipe: Arc<Recipe> },
}

impl Kind {
    pub(super) fn recipe(&self) -> Option<Arc<Recipe>> {
        match self {
            Kind::Encoded => None,
            Kind::Decoded { recipe, .. } => Some(recipe.clone()),
        }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Kind::Encoded, Kind::Encoded) => true,
            (Kind::Decoded { fingerprint: a, .. }, Kind::Decoded { fingerprint: b, .. }) => a == b,
            _ => false,
        }
    }
}

#[derive(Debug)]
enum Entry<W> {
    /// A thread makes it; who waits for it.
    Flight(Vec<W>),
    Kept(Arc<Kept>),
}

/// Samples by the time of their last use.
#[derive(Debug, Default)]
struct Used {
    clock: u64,
    times: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Used {
    fn touch(&mut self, at: u64) {
        self.forget(at);
        self.clock += 1;
        self.times.insert(at, self.clock);
        self.order.insert(self.clock, at);
    }

    fn forget(&mut self, at: u64) {
        if let Some(time) = self.times.remove(&at) {
            self.order.remove(&time);
        }
    }
}

/// What a shelf has of a sample.
#[derive(Debug)]
pub(super) enum Use {
    Kept(Arc<Kept>),
    Busy,
    /// It may be kept if it is made.
    Wanted,
    /// There is no room for it.
    Closed,
}

#[derive(Debug)]
pub(super) struct Shelf<W> {
    pub(super) dataset: String,
    pub(super) form: Kind,
    /// For each job that uses it, how many samples it takes in an epoch.
    pub(super) jobs: Vec<u64>,
    /// A job has left that took only some samples: others may need the room of those.
    pub(super) stale: bool,
    /// Jobs among them that use no shelf of pixels.
    pub(super) only: u64,
    /// Of the folder.
    samples: u64,
    encoded: u64,
    entries: HashMap<u64, Entry<W>>,
    bytes: u64,
    /// How much it is to hold. It may hold more for as long as nobody else needs the room.
    target: u64,
    /// A sample did not fit.
    full: bool,
    /// Where what was used least recently goes for what is new: when each sample was used.
    used: Option<Used>,
    /// Samples seen and their bytes.
    seen: (u64, u64),
    /// Bytes of file for a byte of this form, of some samples, sorted; and how many were seen.
    densities: Vec<f32>,
    dense: u64,
    gauge: Arc<Gauge>,
}

impl<W> Shelf<W> {
    pub(super) fn new(
        dataset: String,
        form: Kind,
        (encoded, samples): (u64, u64),
        lru: bool,
        gauge: Arc<Gauge>,
    ) -> Self {
        let (jobs, entries) = (Vec::new(), HashMap::new());
        Shelf {
            dataset,
            form,
            jobs,
            stale: false,
            only: 0,
            samples,
            encoded,
            entries,
            bytes: 0,
            target: 0,
            full: false,
            used: lru.then(Used::default),
            seen: (0, 0),
            densities: Vec::new(),
            dense: 0,
            gauge,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Samples that its jobs take.
    pub(super) fn used(&self) -> u64 {
        self.jobs.iter().fold(0u64, |sum, &job| sum.saturating_add(job)).min(self.samples)
    }

    /// Bytes of all samples, as far as that is known.
    pub(super) fn need_of_all(&self) -> u64 {
        self.need_of(self.samples)
    }

    /// Bytes of the samples that its jobs take, as far as that is known.
    pub(super) fn need(&self) -> u64 {
        self.need_of(self.used())
    }

    fn need_of(&self, used: u64) -> u64 {
        let part =
            |bytes: u64| (u128::from(bytes) * u128::from(used) / u128::from(self.samples.max(1))) as u64;
        let fixed = self.form.recipe().and_then(|recipe| recipe.decoded_size());
        let need = match (&self.form, fixed) {
            (Kind::Encoded, _) => part(self.encoded) + used * OVERHEAD,
            (_, Some((height, width))) => {
                let pixels = u64::from(height) * u64::from(width) * 3 + SLACK as u64 + OVERHEAD;
                return used.saturating_mul(pixels);
            }
            (_, None) if self.seen.0 >= ENOUGH.min(used) && self.seen.0 > 0 => {
                (u128::from(self.seen.1) * u128::from(used) / u128::from(self.seen.0)) as u64
            }
            (Kind::Decoded { recipe, .. }, None) if keeps_planes(recipe) => {
                part(self.encoded).saturating_mul(SWELL) / 2
            }
            (_, None) => part(self.encoded).saturating_mul(SWELL),
        };
        // A mean of some is a little more or less than that of all.
        need + need / 16
    }

    /// Whether what it needs is not known yet.
    pub(super) fn is_guess(&self) -> bool {
        let fixed = self.form.recipe().is_none_or(|recipe| recipe.decoded_size().is_some());
        !fixed && self.seen.0 < ENOUGH.min(self.samples)
    }

    /// Whether the pixels of its folder are kept for all who want them.
    pub(super) fn is_served(&self, served: &[(String, bool)]) -> bool {
        let mut mine = served.iter().filter(|(dataset, _)| *dataset == self.dataset).peekable();
        let decoded = mine.peek().is_some();
        decoded && self.only == 0 && mine.all(|(_, refused)| !refused)
    }

    /// Whether the mean size has just become known well enough.
    pub(super) fn has_learnt(&self) -> bool {
        let unfixed = self.form.recipe().is_some_and(|recipe| recipe.decoded_size().is_none());
        unfixed && (self.seen.0 >= ENOUGH && self.seen.0.is_power_of_two() || self.seen.0 == self.samples)
    }

    pub(super) fn look(&self, at: u64) -> Use {
        match self.entries.get(&at) {
            Some(Entry::Kept(kept)) => Use::Kept(kept.clone()),
            Some(Entry::Flight(_)) => Use::Busy,
            None if self.used.is_some() && self.target > 0 => Use::Wanted,
            None if !self.full && self.bytes < self.target => Use::Wanted,
            None => Use::Closed,
        }
    }

    /// Learns how many bytes of file there were for a byte of a sample's pixels. Decoding takes time for both, reading
    /// for the file: the more there are, the more time a byte of pixels saves.
    pub(super) fn saw(&mut self, density: f32) {
        self.dense += 1;
        // Of all that were seen, some: each with less and less weight would forget the first.
        if self.densities.len() >= SOME {
            let step = self.dense / SOME as u64;
            if !self.dense.is_multiple_of(step.max(1)) {
                return;
            }
            self.densities.remove((self.dense / step.max(1)) as usize * 37 % SOME);
        }
        let at = self.densities.partition_point(|other| *other < density);
        self.densities.insert(at, density);
    }

    /// Below which density a sample is not kept: what is above it fills the room.
    pub(super) fn least(&self) -> f32 {
        let part = self.target as f64 / self.need().max(1) as f64;
        // A little more than fits: the part is known from some samples only.
        let part = part * 1.1 + 0.02;
        if part >= 1.0 || self.densities.len() < SOME / 4 || self.used.is_some() {
            return 0.0;
        }
        self.densities[((1.0 - part) * self.densities.len() as f64) as usize]
    }

    /// A sample is used.
    pub(super) fn touch(&mut self, at: u64) {
        if let Some(used) = &mut self.used {
            used.touch(at);
        }
    }

    pub(super) fn is_busy(&self, at: u64) -> bool {
        matches!(self.entries.get(&at), Some(Entry::Flight(_)))
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry, Entry::Flight(_)))
    }

    /// A thread begins to make a sample.
    pub(super) fn begin(&mut self, at: u64) {
        self.entries.insert(at, Entry::Flight(Vec::new()));
    }

    pub(super) fn park(&mut self, at: u64, work: W) {
        if let Some(Entry::Flight(waiting)) = self.entries.get_mut(&at) {
            waiting.push(work);
        }
    }

    /// A thread has made a sample, or could not. Says who waited, and gives back what should be kept: the
    /// caller knows whether there is room for it.
    pub(super) fn settle(&mut self, at: u64, kept: Option<Arc<Kept>>) -> (Vec<W>, Option<Arc<Kept>>) {
        let waited = match self.entries.remove(&at) {
            Some(Entry::Flight(waiting)) => waiting,
            Some(kept) => {
                self.entries.insert(at, kept);
                return (Vec::new(), None);
            }
            None => Vec::new(),
        };
        let Some(kept) = kept else { return (waited, None) };
        let bytes = kept.bytes();
        self.seen = (self.seen.0 + 1, self.seen.1 + bytes);
        while self.bytes + bytes > self.target && bytes <= self.target {
            let oldest = self.used.as_ref().and_then(|used| used.order.first_key_value());
            let Some((_, &oldest)) = oldest else { break };
            self.drop_one(oldest);
        }
        self.full |= self.bytes + bytes > self.target;
        (waited, Some(kept).filter(|_| self.bytes + bytes <= self.target))
    }

    /// Keeps a sample.
    pub(super) fn put(&mut self, at: u64, kept: Arc<Kept>) {
        let bytes = kept.bytes();
        self.bytes += bytes;
        self.gauge.add(bytes);
        self.entries.insert(at, Entry::Kept(kept));
        self.touch(at);
    }

    /// Lets go a sample.
    pub(super) fn drop_one(&mut self, at: u64) {
        if let Some(Entry::Kept(kept)) = self.entries.get(&at) {
            let bytes = kept.bytes();
            self.entries.remove(&at);
            self.bytes -= bytes;
            self.gauge.sub(bytes);
            self.full = false;
        }
        if let Some(used) = &mut self.used {
            used.forget(at);
        }
    }

    /// Nothing more fits.
    pub(super) fn close(&mut self) {
        self.full = true;
    }

    /// Lets go all that is kept.
    pub(super) fn clear(&mut self) {
        self.shrink(0);
        self.full = false;
        self.stale = false;
    }

    /// Sets how much it is to hold.
    pub(super) fn set_target(&mut self, target: u64) {
        self.full &= self.target == target;
        self.target = target;
    }

    /// How much it is to hold.
    pub(super) fn target(&self) -> u64 {
        self.target
    }

    /// How much it holds beyond what it should.
    pub(super) fn excess(&self) -> u64 {
        self.bytes.saturating_sub(self.target)
    }

    /// Lets go samples until it holds `bytes` at most.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let over: Vec<u64> = self
            .entries
            .iter()
            .scan(self.bytes, |held, (&at, entry)| {
                let over = *held > bytes;
                if let Entry::Kept(kept) = entry {
                    *held -= kept.bytes();
                }
                over.then_some(at)
            })
            .collect();
        over.into_iter().for_each(|at| self.drop_one(at));
    }
}

impl<W> Drop for Shelf<W> {
    fn drop(&mut self) {
        self.gauge.sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_kept_and_closes_the_shelf() {
        let gauge: Arc<Gauge> = Arc::default();
        let mut shelf: Shelf<u32> = Shelf::new("data".into(), Kind::Encoded, (3000, 3), false, gauge.clone());
        let file = || Some(Arc::new(Kept::Encoded(vec![0; 1000])));
        shelf.set_target(2 * (1000 + OVERHEAD) + 500);
        for at in 0..3 {
            assert!(matches!(shelf.look(at), Use::Wanted));
            shelf.begin(at);
            shelf.park(at, at as u32);
            assert!(matches!(shelf.look(at), Use::Busy));
            let (waited, kept) = shelf.settle(at, file());
            assert_eq!(waited, [at as u32], "who waited is told");
            kept.into_iter().for_each(|kept| shelf.put(at, kept));
        }
        assert!(matches!(shelf.look(1), Use::Kept(_)) && matches!(shelf.look(2), Use::Closed));
        assert_eq!((shelf.bytes(), gauge.now()), (2 * (1000 + OVERHEAD), 2 * (1000 + OVERHEAD)));
        shelf.set_target(1500);
        assert_eq!(shelf.excess(), 2 * (1000 + OVERHEAD) - 1500, "held until the room is needed");
        shelf.shrink(1500);
        assert_eq!((shelf.bytes(), gauge.now()), (1000 + OVERHEAD, 1000 + OVERHEAD));
        drop(shelf);
        assert_eq!(gauge.now(), 0);
    }

    #[test]
    fn what_was_used_least_recently_goes() {
        let mut shelf: Shelf<u32> = Shelf::new("data".into(), Kind::Encoded, (9000, 9), true, Arc::default());
        shelf.set_target(2 * (1000 + OVERHEAD));
        for at in [0, 1, 0, 2] {
            if matches!(shelf.look(at), Use::Kept(_)) {
                shelf.touch(at);
                continue;
            }
            shelf.begin(at);
            let (_, kept) = shelf.settle(at, Some(Arc::new(Kept::Encoded(vec![0; 1000]))));
            shelf.put(at, kept.expect("there is room"));
        }
        let kept = [0, 1, 2].map(|at| matches!(shelf.look(at), Use::Kept(_)));
        assert_eq!(kept, [true, false, true]);
    }
}
