//! What is kept of samples beyond one copy: encoded or decoded forms, never evicted while they fit.
//!
//! A *shelf* holds one form of one folder: its bytes as stored, or its pixels after the deterministic steps of
//! one recipe. Jobs that have a form in common use one shelf, whatever else their recipes do. Until
//! something is measured the rule is plain: decoded if the whole set fits decoded, else encoded. A sample
//! that one thread is making for a shelf is not made by a second one: the other copy waits for it, and the
//! thread does something else. One decode serves all shelves of its folder.

mod shelf;

pub(crate) use shelf::{Decoded, Kept};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_policy::share::Level;
use forebay_recipe::{Decode, Recipe};

use crate::counters::Gauge;
use crate::storage::Dataset;
use crate::{Error, Result};
use shelf::{Form, Shelf, Use};

/// Pools keep at least this part of what jobs leave, if they can use it.
const POOLS: u64 = 8;

/// Which forms are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Decoded if the whole set fits decoded, else encoded.
    #[default]
    Auto,
    /// None.
    Off,
    /// Files as they are stored.
    Encoded,
    /// Decoded, as many as fit.
    Decoded,
}

impl Mode {
    /// Reads `auto`, `off`, `encoded` or `decoded`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Mode::Auto),
            "off" => Ok(Mode::Off),
            "encoded" => Ok(Mode::Encoded),
            "decoded" => Ok(Mode::Decoded),
            other => Err(Error::Invalid(format!("cache {other:?}: write auto, off, encoded or decoded"))),
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

/// A form that is to be kept of what a thread makes.
#[derive(Debug)]
pub(crate) enum Keep {
    /// The bytes.
    Encoded(u64),
    /// The result of the deterministic steps of a recipe.
    Decoded(u64, Arc<Recipe>),
}

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

/// All shelves; `W` is work that waits for a sample.
#[derive(Debug)]
pub(crate) struct Cache<W> {
    mode: Mode,
    /// Forms are kept also when no job is left.
    keep: bool,
    shelves: BTreeMap<u64, Shelf<W>>,
    next: u64,
    gauge: Arc<Gauge>,
    /// Something was learnt that may change the plan.
    stale: bool,
}

impl<W> Cache<W> {
    pub(crate) fn new(mode: Mode, keep: bool, gauge: Arc<Gauge>) -> Self {
        Cache { mode, keep, shelves: BTreeMap::new(), next: 0, gauge, stale: false }
    }

    /// The shelves of a job that takes `samples` samples of `dataset` in an epoch.
    pub(crate) fn join(&mut self, dataset: &Dataset, recipe: &Recipe, level: Level, samples: u64) -> Ticket {
        let parts = dataset.parts().iter().map(|folder| {
            let part = samples.min(folder.len());
            let encoded = self.shelf(folder.identity(), Form::Encoded, folder.bytes(), folder.len());
            let decoded = (level >= Level::Decoded && recipe.has_decoded()).then(|| {
                let form = Form::Decoded {
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

    fn shelf(&mut self, dataset: &str, form: Form, bytes: u64, samples: u64) -> u64 {
        let known = self.shelves.iter().find(|(_, shelf)| shelf.dataset == dataset && shelf.form == form);
        if let Some((&id, _)) = known {
            return id;
        }
        self.next += 1;
        self.shelves.insert(self.next, Shelf::new(dataset.into(), form, bytes, samples, self.gauge.clone()));
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
                Use::Kept(bytes) => kept = Some(From { kept: bytes, base: None, check: false }),
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
                vec![Keep::Decoded(id, recipe)]
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
                keep.push(Keep::Decoded(other, recipe));
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
    pub(crate) fn settle(&mut self, at: u64, kept: Vec<(u64, Option<Arc<Kept>>)>) -> Vec<W> {
        let mut waited = Vec::new();
        for (id, kept) in kept {
            if let Some(shelf) = self.shelves.get_mut(&id) {
                waited.extend(shelf.settle(at, kept));
                self.stale |= shelf.has_learnt();
            }
        }
        waited
    }

    /// Whether the plan should be made again.
    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// Splits `room` bytes between pools, which can use `appetite`, and shelves; says what pools get.
    pub(crate) fn plan(&mut self, room: u64, appetite: u64) -> u64 {
        let mut left = if self.mode == Mode::Off { 0 } else { room - appetite.min(room / POOLS) };
        // Small sets first: they serve most samples with their bytes. What no job uses comes last.
        let mut order: Vec<(bool, bool, u64, u64)> = (self.shelves.iter())
            .map(|(&id, shelf)| (shelf.jobs.is_empty(), shelf.form == Form::Encoded, shelf.need(), id))
            .collect();
        order.sort_unstable();
        let jobs: usize = self.shelves.values().map(|shelf| shelf.jobs.len()).sum();
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
            let limit = match (idle, encoded) {
                (true, _) if !self.keep && jobs == 0 => 0,
                // Pools of jobs that are here go before forms for jobs that may come.
                (true, _) => Some(shelf.bytes())
                    .filter(|held| *held <= left.min((room - taken).saturating_sub(appetite)))
                    .unwrap_or(0),
                (_, false) if self.mode == Mode::Decoded => need.min(left),
                // Until sizes are known there must be room to learn them.
                (_, false) if self.mode == Mode::Auto && need <= left && shelf.is_guess() => {
                    need.max(left / 2)
                }
                (_, false) if self.mode == Mode::Auto && need <= left => need,
                // What is nearly all there is not thrown away for a job that comes and goes.
                (_, false) if self.mode == Mode::Auto && shelf.bytes() >= need / 2 => left,
                // Files are kept for jobs whose pixels are not.
                (_, true) if !shelf.is_served(&served) => need.min(left).min(room / 2),
                _ => 0,
            };
            served.push((shelf.dataset.clone(), !encoded && limit == 0));
            shelf.set_limit(limit);
            left -= limit;
            taken += limit;
        }
        self.shelves.retain(|_, shelf| !shelf.jobs.is_empty() || shelf.bytes() > 0 || shelf.is_waited_for());
        room - taken
    }

    /// Bytes of files and of pixels that are kept.
    pub(crate) fn facts(&self) -> [u64; 2] {
        let held = |encoded: bool| {
            let some = self.shelves.values().filter(|shelf| (shelf.form == Form::Encoded) == encoded);
            some.map(Shelf::bytes).sum()
        };
        [held(true), held(false)]
    }
}
