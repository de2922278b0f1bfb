//! What a job asks for, and the share of the budget it gets.

use std::sync::Arc;

use forebay_policy::share::{Level, Order, Remainder};
use forebay_policy::{Picks, Rank};
use forebay_recipe::{Decode, Field, Output, Recipe};

use crate::batch::{COLUMN_ALIGN, Finisher};
use crate::cache::keeps_planes;
use crate::decode::SLACK;
use crate::storage::Dataset;
use crate::{Error, Result};

/// Two batches to lend and one in transit.
pub const MIN_SLOTS: u64 = 3;
/// One more lets the next batch be finished while the job is slow to ask.
const WANTED_SLOTS: u64 = 4;

/// Ranks that one job may have.
const MOST_RANKS: u32 = 1 << 16;

/// A slot that is mapped is a multiple of it, on every machine.
const PAGE: u64 = 1 << 16;

/// What to do with a sample that cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Tell the job.
    #[default]
    Raise,
    /// Leave it out; later samples move up.
    Skip,
    /// Repeat a neighbour and mark it.
    Substitute,
}

impl OnError {
    /// Reads `raise`, `skip` or `substitute`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "raise" => Ok(OnError::Raise),
            "skip" => Ok(OnError::Skip),
            "substitute" => Ok(OnError::Substitute),
            other => Err(Error::Invalid(format!("on_error {other:?} is not known"))),
        }
    }
}

/// Reads `pad`, `drop` or `uneven`.
pub fn remainder(text: &str) -> Result<Remainder> {
    match text {
        "pad" => Ok(Remainder::Pad),
        "drop" => Ok(Remainder::Drop),
        "uneven" => Ok(Remainder::Uneven),
        other => Err(Error::Invalid(format!("remainder {other:?} is not known"))),
    }
}

/// What a job draws.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The samples.
    pub dataset: Arc<Dataset>,
    /// Which of them it takes in an epoch.
    pub picks: Picks,
    /// What is done to them.
    pub recipe: Recipe,
    /// What the batch should be.
    pub output: Output,
    /// Samples in a batch.
    pub batch: u64,
    /// What becomes of samples that do not fill a step of all ranks.
    pub remainder: Remainder,
    /// Which rank this is.
    pub rank: u32,
    /// Ranks that train together, step by step.
    pub ranks: u32,
    /// Names the job that a rank belongs to, where a shared stream deals its steps.
    pub group: String,
    /// How many positions a sample may come late.
    pub late: u64,
    /// Names order and copies.
    pub seed: u64,
    /// Keyed order, else the dataset's.
    pub shuffle: bool,
    /// What to do with bad samples.
    pub on_error: OnError,
    /// Whether the job can take images of different sizes in one batch.
    pub ragged: bool,
    /// Batches are for another process: slots that it maps, given on without a copy.
    pub lend: bool,
    /// Draws from the stream that all sharing jobs of its dataset and recipe have in common.
    pub share: Option<Sharing>,
}

/// How a job shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sharing {
    /// In which order it takes samples; `late` and strict order are the spec's where it does not share.
    pub order: Order,
    /// The last form it shares.
    pub level: Level,
    /// Part of its draws that follow its own order.
    pub mixing: f64,
    /// Seed and clock of the stream that it drew from before, out of its state.
    pub before: Option<(u64, u64)>,
}

impl Sharing {
    /// From what a job says: order `None` is ready and 0 strict.
    pub fn parse(order: Option<u64>, level: &str, mixing: f64, before: Option<(u64, u64)>) -> Result<Self> {
        if !(0.0..=1.0).contains(&mixing) {
            return Err(Error::Invalid(format!("mixing {mixing} is not between 0 and 1")));
        }
        Ok(Sharing {
            order: match order {
                None => Order::Ready,
                Some(0) => Order::Strict,
                Some(late) => Order::Late(late),
            },
            level: match level {
                "encoded" => Level::Encoded,
                "decoded" => Level::Decoded,
                "augmented" => Level::Augmented,
                other => return Err(Error::Invalid(format!("level {other:?} is not known"))),
            },
            mixing,
            before,
        })
    }
}

impl Spec {
    /// How it shares, if copies of its recipe can be shared: their size must not vary, and no sample may come
    /// twice in an epoch.
    pub fn sharing(&self) -> Option<Sharing> {
        self.share.filter(|_| self.recipe.output_size().is_some() && self.picks.subset().is_some())
    }

    /// Whether it draws decoded samples from a pool of such and makes its own copies of them.
    pub(super) fn draws_decoded(&self) -> bool {
        self.sharing().is_some_and(|sharing| {
            sharing.level == Level::Decoded
                && sharing.order != Order::Strict
                // A scaled decode may depend on the copy.
                && self.recipe.decode() == Decode::Exact
                && self.recipe.has_augmented()
                // What cannot be augmented is found out too late to be left out.
                && self.on_error == OnError::Raise
        })
    }

    /// Mean bytes of a decoded sample, as far as that is known before any was seen.
    pub(super) fn decoded_bytes(&self) -> u64 {
        let pixels =
            self.recipe.decoded_size().map(|(height, width)| u64::from(height) * u64::from(width) * 3);
        let files: u64 = self.dataset.parts().iter().map(|folder| folder.bytes()).sum();
        let guess = if keeps_planes(&self.recipe) { 3 } else { 6 };
        pixels.unwrap_or(guess * files / self.dataset.len().max(1)) + SLACK as u64
    }

    /// The last form that it has in common with others.
    pub(super) fn level(&self) -> Level {
        self.share.map_or(Level::Augmented, |sharing| sharing.level)
    }

    /// Samples in an epoch of all ranks.
    pub fn samples(&self) -> u64 {
        self.picks.len(self.dataset.len())
    }

    pub(super) fn rank(&self) -> Rank {
        Rank { rank: self.rank, ranks: self.ranks, batch: self.batch, remainder: self.remainder }
    }

    /// Checks what no type says.
    pub(super) fn check(&self) -> Result<()> {
        if self.batch == 0 {
            return Err(Error::Invalid("a batch needs at least one sample".into()));
        }
        if self.rank >= self.ranks || self.ranks > MOST_RANKS {
            return Err(Error::Invalid(format!("there is no rank {} of {}", self.rank, self.ranks)));
        }
        self.batch
            .checked_mul(self.ranks.into())
            .ok_or_else(|| Error::Invalid("a step of all ranks is too large".into()))?;
        self.picks.check(self.dataset.len()).map_err(|error| Error::Invalid(error.to_string()))
    }

    /// Size of a slot that holds `bytes`: whole pages where they are mapped.
    pub(super) fn slot_bytes(&self, bytes: u64) -> u64 {
        if self.lend { bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX) } else { bytes }
    }
}

/// A job's part of the memory budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Batch slots.
    pub slots: u64,
    /// Bytes of one.
    pub slot_bytes: u64,
    /// Augmented samples in hand.
    pub samples: u64,
    /// Bytes of one at most.
    pub sample_bytes: u64,
    /// Bytes of lists of samples.
    pub listed: u64,
}

impl Share {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        let samples = self.samples.saturating_mul(self.sample_bytes);
        self.slots.saturating_mul(self.slot_bytes).saturating_add(samples).saturating_add(self.listed)
    }

    /// What the job takes of `left` bytes, or why it cannot run.
    pub fn plan(spec: &Spec, finisher: &Finisher, left: u64, memory: u64, threads: u64) -> Result<Share> {
        // No sum below may overflow: a batch of more samples than there are bytes fits nowhere.
        if spec.batch > left || spec.late > left {
            return Err(Error::Budget(format!("a batch of {} samples does not fit {left} B", spec.batch)));
        }
        let listed = spec.picks.bytes(spec.dataset.len());
        if listed > left {
            return Err(Error::Budget(format!(
                "the list of samples of an epoch takes {listed} B, but only {left} B of {memory} B are left; \
                 raise FOREBAY_MEMORY or take fewer samples"
            )));
        }
        let least = spec.batch + threads;
        let late = if spec.sharing().is_some() { 0 } else { spec.late };
        let wanted = 2 * spec.batch + late + 2 * threads;
        let fields = spec.recipe.fields(finisher.as_data());
        let (Some((height, width)), Some(shapes)) = (
            spec.recipe.output_size(),
            fields.iter().map(|field| field.shape.clone()).collect::<Option<Vec<_>>>(),
        ) else {
            // Sizes vary: half of what is left, split so that every slot can hold a batch of the largest.
            let element = finisher.as_data().dtype.bytes() as u64;
            let parts = least + MIN_SLOTS * spec.batch * element;
            let pages = if spec.lend { MIN_SLOTS * PAGE } else { 0 };
            let sample_bytes = (left - listed).saturating_sub(pages) / 2 / parts;
            if sample_bytes <= SLACK as u64 {
                return Err(Error::Budget(format!(
                    "{} B are left for {parts} parts of a batch of {} samples; raise FOREBAY_MEMORY or use a smaller batch",
                    left / 2,
                    spec.batch
                )));
            }
            let slot_bytes = spec.slot_bytes(sample_bytes * spec.batch * element + 512 + spec.batch * 8);
            return Ok(Share { slots: MIN_SLOTS, slot_bytes, samples: least, sample_bytes, listed });
        };
        let slot_bytes = spec.slot_bytes(slot_bytes(&fields, &shapes, spec.batch));
        let mut sample_bytes = u64::from(height) * u64::from(width) * 3 + SLACK as u64;
        if spec.draws_decoded() {
            sample_bytes = sample_bytes.max(spec.decoded_bytes());
        }
        let mut share = Share { slots: MIN_SLOTS, slot_bytes, samples: least, sample_bytes, listed };
        if share.bytes() > left {
            return Err(Error::Budget(format!(
                "this job needs {} = {MIN_SLOTS} batches x {slot_bytes} B + {least} samples x {sample_bytes} B, \
                 but only {left} B of {memory} B are left; raise FOREBAY_MEMORY or forebay.configure(memory=…), \
                 or use a smaller batch or output=\"uint8\"",
                share.bytes(),
            )));
        }
        // More where there is room for it.
        for grown in
            [Share { samples: wanted, ..share }, Share { samples: wanted, slots: WANTED_SLOTS, ..share }]
        {
            if grown.bytes() <= left {
                share = grown;
            }
        }
        Ok(share)
    }
}

/// Bytes of a batch of equal samples, as [`crate::batch::Plan`] lays it out.
fn slot_bytes(fields: &[Field], shapes: &[Vec<usize>], samples: u64) -> u64 {
    fields.iter().zip(shapes).fold(0u64, |end, (field, shape)| {
        let value = (shape.iter().product::<usize>() * field.dtype.bytes()) as u64;
        let start = end.checked_next_multiple_of(COLUMN_ALIGN as u64).unwrap_or(u64::MAX);
        start.saturating_add(value.saturating_mul(samples))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Plan;

    #[test]
    fn a_slot_is_as_large_as_the_plan_of_its_batch() {
        let recipe = r#"{"steps": [{"op": "center_crop", "height": 5, "width": 7}, {"op": "to_float", "scale": true}]}"#;
        let recipe = Recipe::from_json(recipe).expect("a recipe");
        let fields = recipe.fields(&recipe.finish(Output::default()).expect("fits"));
        let shapes: Vec<_> = fields.iter().map(|field| field.shape.clone().expect("fixed")).collect();
        for samples in [1, 2, 63] {
            let plan = Plan::new(&fields, samples, |field, _| shapes[field].clone());
            assert_eq!(slot_bytes(&fields, &shapes, samples as u64), plan.bytes as u64);
        }
        assert_eq!(slot_bytes(&fields, &shapes, u64::MAX), u64::MAX, "saturates");
    }
}
