//! One epoch of one job, being prepared and delivered.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use forebay_arena::{Buffer, Cut};
use forebay_policy::{Deal, Epoch, Sequence};
use forebay_recipe::{CopyName, Drawn};

use super::spec::Spec;
use crate::Error;
use crate::batch::{Finisher, Plan, Value};
use crate::counters::Counters;
use crate::decode::Pixels;
use crate::error::Fault;

/// An augmented sample, waiting for its batch.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) name: CopyName,
    pub(super) valid: bool,
    pub(super) drawn: Drawn,
    /// In the order of the recipe's fields.
    pub(super) values: Vec<Value>,
    /// Memory that was not needed: the image is served as the cache has it. It counts as in use all the same,
    /// or nothing would bound how far a job works ahead.
    pub(super) spare: Option<Pixels>,
}

impl Made {
    /// Bytes of its pixels.
    pub(super) fn bytes(&self) -> u64 {
        self.values.iter().map(|value| value.capacity() as u64).sum()
    }

    /// The memory to use again.
    pub(super) fn into_pixels(self) -> Option<Pixels> {
        self.spare.or_else(|| {
            self.values.into_iter().find_map(|value| match value {
                Value::Image(pixels) => Some(pixels),
                Value::Kept(_) | Value::Class(_) => None,
            })
        })
    }
}

/// How a job makes its own copies of decoded samples.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) spec: Arc<Spec>,
    pub(super) counters: Arc<Counters>,
    /// Tells its copies from those of other jobs of the stream.
    pub(super) number: u64,
}

impl Own {
    /// The name of the job's copy of a decoded sample.
    pub(super) fn name(&self, of: CopyName) -> CopyName {
        CopyName { occurrence: self.number, ..of }
    }
}

/// A batch being finished by several threads.
#[derive(Debug)]
pub(super) struct Filling {
    /// Size of its slot.
    pub(super) bytes: u64,
    pub(super) job: u64,
    pub(super) run: u64,
    pub(super) number: u64,
    /// The slot is one that another process maps.
    pub(super) lend: bool,
    /// A slot that was free; else one is made.
    pub(super) slot: Mutex<Option<Buffer>>,
    pub(super) cut: OnceLock<Result<Cut, String>>,
    /// Read by all who fill, taken by the one who finishes.
    pub(super) made: RwLock<Vec<Arc<Made>>>,
    /// The stream that its samples go back to, if they are shared.
    pub(super) stream: Option<u64>,
    /// Its samples are decoded ones; this makes the job's own copies of them.
    pub(super) own: Option<Own>,
    /// A copy could not be made.
    pub(super) fault: OnceLock<(u64, Fault)>,
    pub(super) finisher: Arc<Finisher>,
    pub(super) label: Label,
}

impl Filling {
    /// The slot in pieces. Whoever comes first makes it if there was none: filling it with pages takes as
    /// long as some samples, and nobody's lock is held meanwhile.
    pub(super) fn cut(&self) -> Result<&Cut, &str> {
        let cut = self.cut.get_or_init(|| {
            let slot = self.slot.lock().unwrap_or_else(|e| e.into_inner()).take();
            let bytes = self.bytes as usize;
            let buffer = match slot {
                Some(buffer) => buffer,
                None if self.lend => Buffer::afford(bytes).map_err(|refused| refused.to_string())?,
                None => Buffer::new(bytes),
            };
            Ok(Cut::new(buffer, self.label.plan.ends.clone()))
        });
        cut.as_ref().map_err(String::as_str)
    }

    /// The samples it is made of, once.
    pub(super) fn take_made(&self) -> Vec<Arc<Made>> {
        std::mem::take(&mut *self.made.write().unwrap_or_else(|e| e.into_inner()))
    }

    /// The same batch, which did not get a slot, of the same samples.
    pub(super) fn again(&self, made: Vec<Arc<Made>>) -> Filling {
        Filling {
            slot: Mutex::default(),
            cut: OnceLock::new(),
            made: RwLock::new(made),
            own: self.own.clone(),
            fault: OnceLock::new(),
            finisher: self.finisher.clone(),
            label: self.label.clone(),
            ..*self
        }
    }

    /// With a slot that was free.
    pub(super) fn with_slot(self, buffer: Buffer) -> Filling {
        Filling { bytes: buffer.len() as u64, slot: Mutex::new(Some(buffer)), ..self }
    }

    /// Whether there was no memory for its slot.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.cut.get(), Some(Err(_)))
    }

    /// Whether its slot does not exist, or not yet.
    pub(super) fn is_unmade(&self) -> bool {
        let given = self.slot.lock().unwrap_or_else(|e| e.into_inner()).is_some();
        !given && !matches!(self.cut.get(), Some(Ok(_)))
    }

    /// Whether nothing is left for another thread.
    pub(super) fn is_claimed(&self) -> bool {
        matches!(self.cut.get(), Some(Ok(cut)) if cut.is_claimed())
    }
}

/// What is known of a batch besides its bytes.
#[derive(Debug, Clone)]
pub(super) struct Label {
    pub(super) plan: Plan,
    pub(super) positions: Vec<u64>,
    pub(super) names: Vec<CopyName>,
    pub(super) valid: Vec<bool>,
    pub(super) skipped: Vec<u64>,
    pub(super) others: Vec<u64>,
}

/// A sample that could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub sample: u64,
    /// Its file.
    pub path: PathBuf,
    /// Where it failed.
    pub stage: String,
    /// Why.
    pub cause: String,
}

/// How an epoch whose samples are fed goes on.
#[derive(Debug, Clone, Default)]
pub struct Feeding {
    /// Positions received before.
    pub base: u64,
    /// How many of them failed.
    pub skipped: u64,
    /// Each feeding is one batch.
    pub given: bool,
    /// Positions received before that are not fed again; all others before `base` are, and passed over.
    pub passed: u64,
    /// How often each sample stands at those.
    pub seen: HashMap<u64, u64>,
}

/// Where a run's samples come from.
#[derive(Debug)]
pub(super) enum Source {
    /// The order of the epoch, or a rank's share of it.
    Keyed(Sequence, Option<Deal>),
    /// A log names the copies.
    Listed(VecDeque<(CopyName, bool)>),
    /// A sampler in the job's process feeds them.
    Fed {
        /// Positions still to be passed over when resuming.
        skip: u64,
        samples: VecDeque<(u64, u64)>,
        seen: HashMap<u64, u64>,
    },
    /// A shared stream decides; `over` when it has no further step.
    Shared { over: bool },
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: u64,
    pub(super) epoch: u64,
    pub(super) order: Epoch,
    pub(super) source: Source,
    pub(super) ready: HashMap<u64, Arc<Made>>,
    /// Batches formed so far, and the number of the next to deliver.
    pub(super) formed: u64,
    pub(super) next: u64,
    pub(super) filling: u64,
    pub(super) done: BTreeMap<u64, (Buffer, Label)>,
    /// The first failure that the job must be told.
    pub(super) fault: Option<Error>,
    /// No further batch is formed.
    pub(super) halted: bool,
    /// Positions in hand that will never be ready because of it.
    pub(super) stuck: u64,
    /// Starts at the epoch's first position and nothing was delivered yet.
    pub(super) fresh: bool,
    /// The job was told that there is nothing left to wait for.
    pub(super) told: bool,
}

impl Run {
    pub(super) fn new(id: u64, epoch: u64, order: Epoch, source: Source, fresh: bool) -> Self {
        Run {
            id,
            epoch,
            order,
            source,
            ready: HashMap::new(),
            formed: 0,
            next: 0,
            filling: 0,
            done: BTreeMap::new(),
            fault: None,
            halted: false,
            stuck: 0,
            fresh,
            told: false,
        }
    }

    /// The next position to prepare, with the name of its copy, and whether it is more than padding.
    pub(super) fn issue(&mut self, spec: &Spec) -> Option<(u64, CopyName, bool)> {
        if self.fault.is_some() {
            return None;
        }
        let position = self.order.issue()?;
        let (sample, occurrence, valid) = match &mut self.source {
            Source::Keyed(sequence, None) => {
                let (sample, occurrence) = sequence.at(position);
                (sample, occurrence, true)
            }
            Source::Keyed(sequence, Some(deal)) => {
                let place = deal.at(position);
                let (sample, occurrence) = sequence.at(place.position);
                (sample, occurrence + place.repeat * sequence.stride(), place.repeat == 0)
            }
            Source::Fed { samples, .. } => {
                let (sample, occurrence) = samples.pop_front().expect("the order knows only fed positions");
                (sample, occurrence, true)
            }
            Source::Listed(copies) => {
                let (name, valid) = copies.pop_front().expect("the order knows only listed positions");
                return Some((position, name, valid));
            }
            Source::Shared { .. } => return None,
        };
        Some((position, CopyName { seed: spec.seed, sample, generation: self.epoch, occurrence }, valid))
    }

    /// Adds a batch that a log names.
    pub(super) fn list(&mut self, copies: Vec<(CopyName, bool)>) {
        let Source::Listed(listed) = &mut self.source else { return };
        self.told = false;
        self.order.feed(copies.len() as u64);
        listed.extend(copies);
    }

    /// Adds what a sampler yielded.
    pub(super) fn feed(&mut self, fed: &[u64]) {
        let Source::Fed { skip, samples, seen } = &mut self.source else { return };
        self.told = false;
        let mut added = 0;
        for &sample in fed {
            let count = seen.entry(sample).or_default();
            let occurrence = std::mem::replace(count, *count + 1);
            if *skip > 0 {
                *skip -= 1;
            } else {
                samples.push_back((sample, occurrence));
                added += 1;
            }
        }
        if added > 0 {
            self.order.feed(added);
        }
    }

    /// Whether nothing more can come before the sampler feeds more.
    pub(super) fn is_hungry(&self) -> bool {
        let starved = match &self.source {
            Source::Fed { samples, .. } => samples.is_empty(),
            Source::Listed(copies) => copies.is_empty(),
            _ => false,
        };
        starved
            && !self.order.is_closed()
            && self.filling == 0
            && self.done.is_empty()
            && self.order.in_hand() == self.ready.len() as u64
    }

    /// Whether every batch has been delivered.
    pub(super) fn is_over(&self) -> bool {
        let over = match self.source {
            Source::Shared { over } => over,
            _ => self.order.is_done(),
        };
        over && self.filling == 0 && self.done.is_empty()
    }

    /// Whether the failure must be told now: nothing else can still be delivered before it.
    pub(super) fn is_failed(&self) -> bool {
        self.fault.is_some()
            && self.filling == 0
            && self.done.is_empty()
            && self.order.in_hand() <= self.stuck + self.ready.len() as u64
    }
}
