//! What is kept of samples beyond one copy: encoded or decoded forms, never evicted while they fit.
//!
//! A *shelf* holds one form of one folder: its bytes as stored, or its pixels after the deterministic steps of
//! one recipe. Jobs that have a form in common use one shelf, whatever else their recipes do. Until
//! something is measured the rule is plain: decoded if the whole set fits decoded, else encoded. A sample
//! that one thread is making for a shelf is not made by a second one: the other copy waits for it, and the
//! thread does something else. One decode serves all shelves of its folder.

mod disk;
mod shelf;

pub use disk::DiskFacts;
pub(crate) use disk::{Disk, Present};
pub(crate) use shelf::{Decoded, Kept, keeps_planes};

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_policy::share::Level;
use forebay_recipe::{Decode, Recipe};

use crate::counters::Gauge;
use crate::storage::Dataset;
use crate::{Error, Result};
use shelf::{Kind, Shelf, Use};

/// Pools keep at least this part of what jobs leave, if they can use it.
const POOLS: u64 = 8;

/// Which forms are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// As the plan says.
    #[default]
    Auto,
    /// None.
    Off,
    /// Decoded if the whole set fits decoded, else encoded: what is done until there is a plan.
    NoEvict,
    /// Files as they are stored.
    Encoded,
    /// Decoded, as many as fit.
    Decoded,
    /// Files, and what was used least recently goes.
    Lru,
    /// Decoded, and what was used least recently goes.
    LruDecoded,
    /// Parts of a hundred for files, pixels and pools.
    Split([u8; 3]),
}

impl Mode {
    /// Reads `auto`, `off`, `encoded`, `decoded`, `no-evict`, `lru`, `lru-decoded`, or parts such as `25-50-25`.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "auto" => Mode::Auto,
            "off" => Mode::Off,
            "no-evict" => Mode::NoEvict,
            "encoded" => Mode::Encoded,
            "decoded" => Mode::Decoded,
            "lru" => Mode::Lru,
            "lru-decoded" => Mode::LruDecoded,
            other => {
                let parts: Vec<u8> = other.split('-').map_while(|part| part.parse().ok()).collect();
                match <[u8; 3]>::try_from(parts) {
                    Ok(parts) if parts.iter().map(|&part| u32::from(part)).sum::<u32>() == 100 => {
                        Mode::Split(parts)
                    }
                    _ => {
                        return Err(Error::Invalid(format!(
                            "cache {other:?}: write auto, off, encoded, decoded, no-evict, lru, lru-decoded, or \
                             three parts of a hundred for files, pixels and pools such as 25-50-25"
                        )));
                    }
                }
            }
        })
    }

    fn is_lru(self) -> bool {
        matches!(self, Mode::Lru | Mode::LruDecoded)
    }
}

impl fmt::Display for Mode {
    /// As [`Mode::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Auto => write!(f, "auto"),
            Mode::Off => write!(f, "off"),
            Mode::NoEvict => write!(f, "no-evict"),
            Mode::Encoded => write!(f, "encoded"),
            Mode::Decoded => write!(f, "decoded"),
            Mode::Lru => write!(f, "lru"),
            Mode::LruDecoded => write!(f, "lru-decoded"),
            Mode::Split([files, pixels, pools]) => write!(f, "{files}-{pixels}-{pools}"),
        }
    }
}

/// The shelves of one job: for each part of its dataset one of files and, if it shares them, one of pixels.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    parts: Vec<(u64, Option<u64>)>,
    /// Samples whose file was looked at on behalf of the job, part by part: what is kept may be older.
    checked: Vec<Checked>,
}

/// A bit for each sample of a part.
#[derive(Debug, Default)]
struct Checked(Vec<AtomicU64>);

impl Checked {
    fn new(samples: u64) -> Self {
        Checked((0..samples.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Sets a bit; whether it was set before.
    fn set(&self, at: u64) -> bool {
        let Some(word) = self.0.get(at as usize / 64) else { return false };
        word.fetch_or(1 << (at % 64), Ordering::Relaxed) >> (at % 64) & 1 == 1
    }
}

/// The number of no shelf: what is made for it is kept by whom it is made for.
pub(crate) const NO_SHELF: u64 = u64::MAX;

/// A form that is to be kept of what a thread makes.
#[derive(Debug)]
pub(crate) enum Keep {
    /// The bytes.
    Encoded(u64),
    /// The result of the deterministic steps of a recipe.
    Decoded(Form),
}

/// A decoded form that is to be kept.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    /// By which shelf; [`NO_SHELF`] where whoever wants it keeps it.
    pub(crate) shelf: u64,
    /// Made by the deterministic steps of this recipe.
    pub(crate) recipe: Arc<Recipe>,
    /// Not if there are fewer bytes of file for a byte of it: others save more time with its room.
    pub(crate) least: f32,
}

impl Keep {
    /// The shelf that it is for.
    pub(crate) fn shelf(&self) -> u64 {
        match self {
            Keep::Encoded(shelf) | Keep::Decoded(Form { shelf, .. }) => *shelf,
        }
    }
}

/// For each shelf that was to keep something, what it gets, and for pixels the bytes of file for each byte of them.
pub(crate) type Forms = Vec<(u64, Option<Arc<Kept>>, Option<f32>)>;

/// What a copy is made from, if not from the file.
#[derive(Debug)]
pub(crate) struct From {
    /// What is kept.
    pub(crate) kept: Arc<Kept>,
    /// The recipe whose decoded form it is, if that is not the copy's own: one with fewer of the same steps.
    pub(crate) base: Option<Arc<Recipe>>,
    /// The file is to be looked at first: the job has not used it yet.
    pub(crate) check: bool,
}

/// What there is of a sample.
#[derive(Debug)]
pub(crate) enum Look {
    /// It is to be made from its file, or from what is kept, and these forms of it kept.
    Make(Option<From>, Vec<Keep>),
    /// A thread makes it for this shelf: ask again when it is done.
    Busy(u64),
}

/// What the shelves of a job are to hold.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// Bytes of files and of pixels.
    pub(crate) targets: [u64; 2],
    /// Bytes of the pixels of all samples.
    pub(crate) pixels: u64,
}

/// All shelves; `W` is work that waits for a sample.
#[derive(Debug)]
pub(crate) struct Cache<W> {
    mode: Mode,
    /// Forms are kept also when no job is left.
    keep: bool,
    shelves: BTreeMap<u64, Shelf<W>>,
    next: u64,
    gauge: Arc<Gauge>,
    /// Bytes for all shelves.
    room: u64,
    /// Something was learnt that may change the plan.
    stale: bool,
}

impl<W> Cache<W> {
    pub(crate) fn new(mode: Mode, keep: bool, gauge: Arc<Gauge>) -> Self {
        Cache { mode, keep, shelves: BTreeMap::new(), next: 0, gauge, room: 0, stale: false }
    }

    /// The shelves of a job that takes `samples` samples of `dataset` in an epoch.
    pub(crate) fn join(&mut self, dataset: &Dataset, recipe: &Recipe, level: Level, samples: u64) -> Ticket {
        let parts = dataset.parts().iter().map(|folder| {
            let part = samples.min(folder.len());
            let encoded = self.shelf(folder.identity(), Kind::Encoded, folder.bytes(), folder.len());
            let decoded = (level >= Level::Decoded && recipe.has_decoded()).then(|| {
                let form = Kind::Decoded {
                    fingerprint: recipe.decoded_fingerprint(),
                    recipe: recipe.clone().into(),
                };
                self.shelf(folder.identity(), form, folder.bytes(), folder.len())
            });
            for id in [Some(encoded), decoded].into_iter().flatten() {
                if let Some(shelf) = self.shelves.get_mut(&id) {
                    shelf.jobs.push(part);
                    shelf.only += u64::from(decoded.is_none());
                }
            }
            (encoded, decoded)
        });
        let parts = parts.collect();
        Ticket { parts, checked: dataset.parts().iter().map(|folder| Checked::new(folder.len())).collect() }
    }

    fn shelf(&mut self, dataset: &str, form: Kind, bytes: u64, samples: u64) -> u64 {
        let known = self.shelves.iter().find(|(_, shelf)| shelf.dataset == dataset && shelf.form == form);
        if let Some((&id, _)) = known {
            return id;
        }
        self.next += 1;
        let lru = self.mode.is_lru();
        let shelf = Shelf::new(dataset.into(), form, (bytes, samples), lru, self.gauge.clone());
        self.shelves.insert(self.next, shelf);
        self.next
    }

    /// A job has left. What it used is kept as long as there is room.
    pub(crate) fn leave(&mut self, ticket: &Ticket, dataset: &Dataset, samples: u64) {
        for ((encoded, decoded), folder) in ticket.parts.iter().zip(dataset.parts()) {
            let part = samples.min(folder.len());
            for id in [Some(encoded), decoded.as_ref()].into_iter().flatten() {
                if let Some(shelf) = self.shelves.get_mut(id)
                    && let Some(at) = shelf.jobs.iter().position(|&job| job == part)
                {
                    shelf.jobs.swap_remove(at);
                    shelf.stale |= part < folder.len();
                    shelf.only -= u64::from(decoded.is_none());
                }
            }
        }
    }

    /// What there is of the sample `at` of a part.
    pub(crate) fn look(&mut self, ticket: &Ticket, (part, at): (usize, u64)) -> Look {
        let mut look = self.find(ticket, (part, at));
        if let Look::Make(from, _) = &mut look {
            // What is read from the file is checked then.
            let checked = ticket.checked.get(part).is_some_and(|part| part.set(at));
            if let Some(from) = from {
                from.check = !checked;
            }
        }
        look
    }

    fn find(&mut self, ticket: &Ticket, (part, at): (usize, u64)) -> Look {
        let Some(&(encoded, decoded)) = ticket.parts.get(part) else { return Look::Make(None, Vec::new()) };
        let mut keep = Vec::new();
        if let Some(id) = decoded
            && let Some(shelf) = self.shelves.get_mut(&id)
        {
            match shelf.look(at) {
                Use::Kept(kept) => {
                    shelf.touch(at);
                    return Look::Make(Some(From { kept, base: None, check: false }), Vec::new());
                }
                Use::Busy => return Look::Busy(id),
                found => {
                    let wanted = matches!(found, Use::Wanted);
                    if let Some((base, recipe)) = self.base(id, at) {
                        return Look::Make(Some(base), self.keep_one(id, at, recipe, wanted));
                    }
                    if let Some((base, ..)) = self.bases(id).find(|(_, shelf, _)| shelf.is_busy(at)) {
                        return Look::Busy(base);
                    }
                    if wanted {
                        keep = self.decode_for(id, at);
                    }
                }
            }
        }
        let mut kept = None;
        if let Some(shelf) = self.shelves.get_mut(&encoded) {
            match shelf.look(at) {
                Use::Kept(bytes) => {
                    shelf.touch(at);
                    kept = Some(From { kept: bytes, base: None, check: false });
                }
                // Who makes pixels for a shelf does not wait for another who reads.
                Use::Busy if keep.is_empty() => return Look::Busy(encoded),
                Use::Wanted => {
                    shelf.begin(at);
                    keep.push(Keep::Encoded(encoded));
                }
                Use::Busy | Use::Closed => {}
            }
        }
        Look::Make(kept, keep)
    }

    /// A kept form of the sample that the first of the shelf's steps have made, and the shelf's own recipe.
    fn base(&self, id: u64, at: u64) -> Option<(From, Arc<Recipe>)> {
        let found = self.bases(id).filter_map(|(_, shelf, base)| match shelf.look(at) {
            Use::Kept(kept) => Some((base.split().prefix.end, From { kept, base: Some(base), check: false })),
            _ => None,
        });
        // The longest leaves the least to do.
        let (_, from) = found.max_by_key(|(steps, _)| *steps)?;
        Some((from, self.shelves[&id].form.recipe()?))
    }

    /// Shelves of the same folder whose steps are the first of the shelf's own.
    fn bases(&self, id: u64) -> impl Iterator<Item = (u64, &Shelf<W>, Arc<Recipe>)> {
        let (own, recipe) = (&self.shelves[&id], self.shelves[&id].form.recipe());
        self.shelves.iter().filter_map(move |(&other, shelf)| {
            let base = shelf.form.recipe().filter(|_| shelf.dataset == own.dataset)?;
            recipe.as_ref()?.continues(&base).then_some((other, shelf, base))
        })
    }

    fn keep_one(&mut self, id: u64, at: u64, recipe: Arc<Recipe>, wanted: bool) -> Vec<Keep> {
        match self.shelves.get_mut(&id).filter(|_| wanted) {
            Some(shelf) => {
                shelf.begin(at);
                vec![Keep::Decoded(Form { shelf: id, recipe, least: shelf.least() })]
            }
            None => Vec::new(),
        }
    }

    /// One decode makes what all open shelves of the folder lack; a scaled one only what its own steps need.
    fn decode_for(&mut self, id: u64, at: u64) -> Vec<Keep> {
        let own = &self.shelves[&id];
        let (dataset, Some(recipe)) = (own.dataset.clone(), own.form.recipe()) else { return Vec::new() };
        let exact = recipe.decode() == Decode::Exact;
        let mut keep = Vec::new();
        for (&other, shelf) in &mut self.shelves {
            let Some(recipe) = shelf.form.recipe() else { continue };
            let fits = other == id
                || exact
                    && !shelf.jobs.is_empty()
                    && shelf.dataset == dataset
                    && recipe.decode() == Decode::Exact;
            if fits && matches!(shelf.look(at), Use::Wanted) {
                shelf.begin(at);
                keep.push(Keep::Decoded(Form { shelf: other, recipe, least: shelf.least() }));
            }
        }
        keep
    }

    /// Lets work wait for a sample that a shelf said was busy.
    pub(crate) fn park(&mut self, shelf: u64, at: u64, work: W) {
        if let Some(shelf) = self.shelves.get_mut(&shelf) {
            shelf.park(at, work);
        }
    }

    /// Books what a thread made of a sample for the shelves that `kept` names; gives back who waited.
    pub(crate) fn settle(&mut self, at: u64, kept: Forms) -> Vec<W> {
        let mut waited = Vec::new();
        let is_file = |id: &u64| self.shelves.get(id).is_some_and(|shelf| shelf.form == Kind::Encoded);
        let (files, pixels): (Forms, Forms) = kept.into_iter().partition(|(id, ..)| is_file(id));
        let mut needless = false;
        // Pixels first: where they are kept, nobody may need the file.
        for (id, kept, density) in pixels.into_iter().chain(files) {
            let Some(shelf) = self.shelves.get_mut(&id) else { continue };
            density.into_iter().for_each(|density| shelf.saw(density));
            let kept = kept.filter(|_| shelf.form != Kind::Encoded || !needless);
            let (who, kept) = shelf.settle(at, kept);
            waited.extend(who);
            self.stale |= shelf.has_learnt();
            let Some(kept) = kept else { continue };
            let fits = self.make_room(kept.bytes());
            match self.shelves.get_mut(&id) {
                Some(shelf) if fits => {
                    shelf.put(at, kept);
                    needless |= self.replace_file(id, at);
                }
                Some(shelf) => shelf.close(),
                None => {}
            }
        }
        waited
    }

    /// Makes room for `bytes`: what a shelf holds beyond its target goes for what another lacks.
    fn make_room(&mut self, bytes: u64) -> bool {
        let held: u64 = self.shelves.values().map(Shelf::bytes).sum();
        let mut over = (held + bytes).saturating_sub(self.room);
        while over > 0 {
            let most = self.shelves.values_mut().max_by_key(|shelf| shelf.excess());
            let Some(shelf) = most.filter(|shelf| shelf.excess() > 0) else { return false };
            let before = shelf.bytes();
            // Some at once: it is walked to find them.
            shelf.shrink(before - shelf.excess().min(over.max(before / 64)));
            over = over.saturating_sub(before - shelf.bytes());
        }
        true
    }

    /// A form of a sample is kept. If it is pixels, and nothing else is made from its file, the file goes, and need not
    /// be kept.
    fn replace_file(&mut self, id: u64, at: u64) -> bool {
        let Some(shelf) = self.shelves.get(&id).filter(|shelf| shelf.form != Kind::Encoded) else {
            return false;
        };
        let dataset = shelf.dataset.clone();
        let mine =
            self.shelves.values_mut().filter(|shelf| shelf.dataset == dataset && !shelf.jobs.is_empty());
        let (mut files, pixels): (Vec<_>, Vec<_>) = mine.partition(|shelf| shelf.form == Kind::Encoded);
        if pixels.len() > 1 || files.iter().any(|shelf| shelf.only > 0) {
            return false;
        }
        files.iter_mut().for_each(|shelf| shelf.drop_one(at));
        true
    }

    /// Whether the plan should be made again.
    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// Splits `room` bytes between pools, which can use `appetite`, and shelves, as the mode says or as is done
    /// until there is a plan; says what pools get.
    pub(crate) fn split(&mut self, room: u64, appetite: u64) -> u64 {
        let of = |part: u8| (u128::from(room) * u128::from(part) / 100) as u64;
        let least = appetite.min(room / POOLS);
        let mut left = match self.mode {
            Mode::Off => 0,
            Mode::Split([files, pixels, _]) => of(files) + of(pixels),
            _ => room - least,
        };
        // Small sets first: they serve most samples with their bytes. What no job uses comes last.
        let mut order: Vec<(bool, bool, u64, u64)> = (self.shelves.iter())
            .map(|(&id, shelf)| (shelf.jobs.is_empty(), shelf.form == Kind::Encoded, shelf.need(), id))
            .collect();
        order.sort_unstable();
        let mut served: Vec<(String, bool)> = Vec::new();
        let mut taken = 0;
        for (idle, encoded, need, id) in order {
            let Some(shelf) = self.shelves.get_mut(&id) else { continue };
            // Which samples its jobs take is not known here: all of them, if there is room.
            let all = shelf.need_of_all();
            let need = if all <= left { all } else { need };
            if !idle && all > left && shelf.stale {
                shelf.clear();
            }
            let rule = matches!(self.mode, Mode::Auto | Mode::NoEvict);
            let target = match (self.mode, encoded) {
                // It is held for jobs to come while nobody needs the room.
                _ if idle => 0,
                (Mode::Split([files, ..]), true) => all.min(of(files)).min(left),
                (Mode::Split([_, pixels, _]), false) if shelf.is_guess() => of(pixels).min(left),
                (Mode::Split([_, pixels, _]), false) => all.min(of(pixels)).min(left),
                (Mode::Decoded | Mode::LruDecoded, false) => need.min(left),
                (Mode::Decoded | Mode::LruDecoded, true) | (Mode::Off, _) => 0,
                (Mode::Lru, true) => need.min(left),
                // Until sizes are known there must be room to learn them.
                (_, false) if rule && need <= left && shelf.is_guess() => need.max(left / 2),
                (_, false) if rule && need <= left => need,
                // What is nearly all there is not thrown away for a job that comes and goes.
                (_, false) if rule && shelf.bytes() >= need / 2 => left,
                // Files are kept for jobs whose pixels are not.
                (_, true) if !shelf.is_served(&served) => need.min(left),
                _ => 0,
            };
            served.push((shelf.dataset.clone(), !encoded && target == 0));
            shelf.set_target(target);
            left -= target;
            taken += target;
        }
        let pools = match self.mode {
            Mode::Split([files, pixels, _]) => room - of(files) - of(pixels),
            _ => room - taken,
        };
        self.fit(room - pools.min(appetite));
        pools
    }

    /// What a plan gives the shelves of some jobs: bytes of files and of pixels for each ticket.
    pub(crate) fn follow(&mut self, parts: &[(&Ticket, u64, u64)], room: u64) {
        let mut targets: BTreeMap<u64, u64> = BTreeMap::new();
        for (ticket, files, pixels) in parts {
            let encoded: Vec<u64> = ticket.parts.iter().map(|part| part.0).collect();
            let decoded: Vec<u64> = ticket.parts.iter().filter_map(|part| part.1).collect();
            for (ids, bytes) in [(encoded, *files), (decoded, *pixels)] {
                let need = |id: &u64| self.shelves.get(id).map_or(0, Shelf::need_of_all);
                let all: u64 = ids.iter().map(need).sum();
                for id in ids {
                    let need = need(&id);
                    let part = (u128::from(bytes) * u128::from(need) / u128::from(all.max(1))) as u64;
                    let target = targets.entry(id).or_default();
                    *target = (*target + part).min(need);
                }
            }
        }
        for (id, shelf) in &mut self.shelves {
            shelf.set_target(targets.get(id).copied().unwrap_or_default());
        }
        self.squeeze(room);
    }

    /// Room that no plan needs goes to what jobs use all the same: pixels, small sets first, then files of others.
    fn spread(&self, targets: &mut BTreeMap<u64, u64>, room: u64) {
        let mut left = room.saturating_sub(targets.values().sum());
        let used = self.shelves.iter().filter(|(_, shelf)| !shelf.jobs.is_empty());
        let mut order: Vec<(bool, u64, u64)> =
            used.map(|(&id, shelf)| (shelf.form == Kind::Encoded, shelf.need_of_all(), id)).collect();
        order.sort_unstable();
        let mut served: Vec<(String, bool)> = Vec::new();
        for (files, need, id) in order {
            let target = targets.entry(id).or_default();
            let shelf = &self.shelves[&id];
            if !files || !shelf.is_served(&served) {
                let more = need.saturating_sub(*target).min(left);
                (*target, left) = (*target + more, left - more);
            }
            served.push((shelf.dataset.clone(), !files && *target < need));
        }
    }

    /// Shelves get along with `room` bytes, each with its part; or have what is left of it.
    pub(crate) fn squeeze(&mut self, room: u64) {
        let mut targets: BTreeMap<u64, u64> =
            self.shelves.iter().map(|(&id, shelf)| (id, shelf.target())).collect();
        let all: u64 = targets.values().sum();
        for target in targets.values_mut().filter(|_| all > room) {
            *target = (u128::from(*target) * u128::from(room) / u128::from(all)) as u64;
        }
        self.spread(&mut targets, room);
        for (id, shelf) in &mut self.shelves {
            shelf.set_target(targets.get(id).copied().unwrap_or_default());
        }
        self.fit(room);
    }

    /// What the shelves of a ticket are to hold.
    pub(crate) fn sizes(&self, ticket: &Ticket) -> Sizes {
        let mut sizes = Sizes::default();
        for (encoded, decoded) in &ticket.parts {
            if let Some(shelf) = self.shelves.get(encoded) {
                sizes.targets[0] += shelf.target();
            }
            if let Some(shelf) = decoded.and_then(|id| self.shelves.get(&id)) {
                sizes.targets[1] += shelf.target();
                sizes.pixels += shelf.need_of_all();
            }
        }
        sizes
    }

    /// Shelves hold `room` bytes at most from now on.
    fn fit(&mut self, room: u64) {
        self.room = room;
        if !self.make_room(0) {
            // Targets add up to less; what is left is a rounding.
            self.shelves.values_mut().for_each(|shelf| shelf.shrink(shelf.target()));
        }
        let unused = !self.keep && self.shelves.values().all(|shelf| shelf.jobs.is_empty());
        if unused {
            self.shelves.values_mut().for_each(|shelf| shelf.shrink(0));
        }
        self.shelves.retain(|_, shelf| !shelf.jobs.is_empty() || shelf.bytes() > 0 || shelf.is_waited_for());
    }

    /// Bytes of files and of pixels that are kept.
    pub(crate) fn facts(&self) -> [u64; 2] {
        let held = |encoded: bool| {
            let some = self.shelves.values().filter(|shelf| (shelf.form == Kind::Encoded) == encoded);
            some.map(Shelf::bytes).sum()
        };
        [held(true), held(false)]
    }
}
