//! A shared stream inside the engine: the policy decides, this file holds the copies.
//!
//! A copy is one allocation with a count. The pool has it until the policy lets it go, a job's hand has it
//! from its draw until its batch is finished; whoever comes last gives the memory back. Pools take what the
//! jobs have left of the budget, and shrink when another job joins.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_policy::share::{self, Demand, Effect, Join, Remainder, Stream};
use forebay_policy::{Dice, Formed, Received};
use forebay_recipe::CopyName;

use super::job::{JobState, Outcome, Prepare, To};
use super::run::{Failure, Made, Source};
use super::spec::{OnError, Sharing, Spec};
use crate::counters::{Counters, Gauge};
use crate::decode::{Pixels, SLACK};
use crate::error::{Fault, Stage};
use crate::{Error, Result};

/// Seconds over which the making of copies is counted.
const WINDOW: f64 = 0.25;

/// What jobs must have in common to draw the same copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    dataset: String,
    copies: String,
    on_error: OnError,
}

impl Key {
    pub(super) fn new(spec: &Spec) -> Self {
        Key { dataset: spec.folder.fingerprint(), copies: spec.recipe.fingerprint(), on_error: spec.on_error }
    }
}

/// A job's place in a stream.
#[derive(Debug)]
struct Seat {
    job: u64,
    counters: Arc<Counters>,
    demand: Demand,
    /// What it has drawn for its next step, by position.
    hand: HashMap<u64, Arc<Made>>,
}

/// How fast copies are made. No job gets more of them than that, however much faster it could be: a loop that
/// does nothing with its batches must not count a thousand times as much as one that trains.
#[derive(Debug, Default)]
struct Pace {
    since: Duration,
    made: u64,
    per_sec: Option<f64>,
}

impl Pace {
    /// A copy was made.
    fn made(&mut self, now: Duration) {
        self.made += 1;
        let seconds = now.saturating_sub(self.since).as_secs_f64();
        if seconds >= WINDOW {
            let rate = self.made as f64 / seconds;
            // It may have been low only because nobody wanted more.
            let slow = |old: f64| old + 0.5 * (rate - old);
            self.per_sec = Some(self.per_sec.map_or(rate, |old| rate.max(slow(old))));
            (self.since, self.made) = (now, 0);
        }
    }

    /// What a job can make use of, with room to show that it wants more.
    fn cap(&self, demand: Option<f64>) -> Option<f64> {
        Some(demand?.min(1.25 * self.per_sec.unwrap_or(f64::INFINITY)))
    }
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) key: Key,
    spec: Arc<Spec>,
    policy: Stream,
    dice: Dice,
    opened: Instant,
    pace: Pace,
    seats: BTreeMap<u32, Seat>,
    copies: Vec<Option<Arc<Made>>>,
    failures: BTreeMap<u64, (Stage, Fault)>,
    spare: Vec<Pixels>,
    sample_bytes: u64,
    threads: u64,
    /// Samples that have memory, in use or spare.
    samples: u64,
    gauge: Arc<Gauge>,
}

impl StreamState {
    pub(super) fn open(key: Key, job: &JobState, threads: u64, gauge: Arc<Gauge>) -> Result<Self> {
        let spec = job.spec.clone();
        // Names of copies must never be made twice, on no host and in no other process.
        let random = RandomState::new();
        let (seed, clock) = (random.hash_one(0), random.hash_one(1));
        Ok(StreamState {
            key,
            policy: Stream::new(spec.folder.len(), 0, seed, clock).map_err(refused)?,
            spec,
            dice: Dice::new(random.hash_one(2)),
            opened: Instant::now(),
            pace: Pace::default(),
            seats: BTreeMap::new(),
            copies: Vec::new(),
            failures: BTreeMap::new(),
            spare: Vec::new(),
            sample_bytes: job.share.sample_bytes,
            threads,
            samples: 0,
            gauge,
        })
    }

    pub(super) fn join(&mut self, job: &JobState, sharing: Sharing) -> Result<u32> {
        let spec = &job.spec;
        let join = Join {
            batch: u32::try_from(spec.batch)
                .map_err(|_| Error::Invalid("a batch is too large to be shared".into()))?,
            ranks: 1,
            remainder: if spec.drop_last { Remainder::Drop } else { Remainder::Pad },
            order: sharing.order,
            level: sharing.level,
            mixing: sharing.mixing,
            seed: spec.seed,
            shuffle: spec.shuffle,
            subset: None,
            used_to: sharing.before.filter(|(seed, _)| *seed == self.policy.seed()).map(|(_, clock)| clock),
        };
        let bit = self.policy.join(join).map_err(refused)?;
        let seat = Seat {
            job: job.id,
            counters: job.counters.clone(),
            demand: Demand::default(),
            hand: HashMap::new(),
        };
        self.seats.insert(bit, seat);
        Ok(bit)
    }

    /// Whether it is the last that leaves.
    pub(super) fn leave(&mut self, bit: u32) -> bool {
        self.policy.leave(bit);
        self.apply();
        if let Some(seat) = self.seats.remove(&bit) {
            seat.hand.into_values().for_each(|made| self.give(made));
        }
        self.seats.is_empty()
    }

    pub(super) fn begin(&mut self, bit: u32, epoch: u64, received: &Received) -> Result<()> {
        // Only what is skipped stays out: the others are told, and may try again.
        if self.spec.on_error != OnError::Skip {
            self.policy.forgive();
        }
        self.policy.begin(bit, epoch, received).map_err(refused)?;
        self.apply();
        let Some(seat) = self.seats.get_mut(&bit) else { return Ok(()) };
        seat.demand.returned();
        let demand = seat.demand.per_sec(self.opened.elapsed().as_secs_f64());
        self.policy.set_demand(bit, self.pace.cap(demand));
        std::mem::take(&mut seat.hand).into_values().for_each(|made| self.give(made));
        Ok(())
    }

    /// Seed and clock, for states.
    pub(super) fn clock(&self) -> (u64, u64) {
        (self.policy.seed(), self.policy.clock())
    }

    /// The folder it serves.
    pub(super) fn root(&self) -> &Path {
        self.spec.folder.root()
    }

    /// Jobs, copies in the pool, and how many it may hold.
    pub(super) fn facts(&self) -> [u64; 3] {
        [self.seats.len() as u64, u64::from(self.policy.resident()), u64::from(self.policy.slots())]
    }

    /// The job asks. One in another process says itself for how long it was busy with how many samples: it
    /// is sent its next batch before it asks for it.
    pub(super) fn asked(&mut self, bit: u32, busy: Option<(Duration, u64)>) {
        let now = self.opened.elapsed().as_secs_f64();
        if let Some(seat) = self.seats.get_mut(&bit) {
            if let Some((busy, samples)) = busy {
                seat.demand.took(now - busy.as_secs_f64(), samples);
            }
            seat.demand.asked(now);
        }
        for (&bit, seat) in &self.seats {
            self.policy.set_demand(bit, self.pace.cap(seat.demand.per_sec(now)));
        }
    }

    pub(super) fn took(&mut self, bit: u32, samples: u64) {
        let now = self.opened.elapsed().as_secs_f64();
        if let Some(seat) = self.seats.get_mut(&bit) {
            seat.demand.took(now, samples);
        }
    }

    /// Bytes that it can make use of.
    pub(super) fn appetite(&self) -> u64 {
        self.spec.folder.len().saturating_mul(self.sample_bytes)
    }

    /// Sets how many bytes the pool may hold.
    pub(super) fn resize(&mut self, bytes: u64) {
        let slots = u32::try_from(bytes / self.sample_bytes).unwrap_or(u32::MAX / 2);
        self.policy.resize(slots);
        self.apply();
        let spare = std::mem::take(&mut self.spare).len() as u64;
        self.gauge.sub(spare * self.sample_bytes);
        self.samples -= spare;
    }

    /// The next copy to make.
    pub(super) fn task(&mut self, id: u64) -> Option<Prepare> {
        let share::Prepare { slot, job, sample, seed, generation, occurrence } =
            self.policy.next(true, &mut self.dice)?;
        self.apply();
        let sample = u64::from(sample);
        let pixels = self.spare.pop().unwrap_or_else(|| {
            self.samples += 1;
            self.gauge.add(self.sample_bytes);
            Pixels::default()
        });
        let counters = self.seats.get(&job).map(|seat| seat.counters.clone()).unwrap_or_default();
        Some(Prepare {
            to: To::Stream { stream: id, slot },
            name: CopyName { seed, sample, generation, occurrence },
            substitute: self.failures.contains_key(&sample) && self.spec.on_error == OnError::Substitute,
            room: self.sample_bytes - (SLACK as u64).min(self.sample_bytes),
            pixels,
            spec: self.spec.clone(),
            counters,
        })
    }

    /// Books what became of a copy.
    pub(super) fn settle(&mut self, slot: u32, outcome: Outcome) {
        for (sample, stage, fault) in outcome.failures {
            self.failures.insert(sample, (stage, fault));
        }
        match outcome.made {
            Ok(made) => {
                self.pace.made(self.opened.elapsed());
                if self.copies.len() <= slot as usize {
                    self.copies.resize(slot as usize + 1, None);
                }
                self.copies[slot as usize] = Some(made);
                self.policy.ready(slot, &mut self.dice);
            }
            Err(pixels) => {
                self.spare.push(pixels);
                self.policy.failed(slot, &mut self.dice);
            }
        }
        self.apply();
    }

    /// Does what the policy decided.
    fn apply(&mut self) {
        for effect in self.policy.effects() {
            match effect {
                Effect::Draw { job, slot, position } => {
                    let copy = self.copies[slot as usize].clone();
                    if let (Some(seat), Some(made)) = (self.seats.get_mut(&job), copy) {
                        seat.hand.insert(position, made);
                    }
                }
                Effect::Free { slot } => {
                    if let Some(made) = self.copies.get_mut(slot as usize).and_then(Option::take) {
                        self.give(made);
                    }
                }
            }
        }
    }

    /// Takes back a copy; its memory, if nobody else has it.
    pub(super) fn give(&mut self, made: Arc<Made>) {
        if let Some(pixels) = Arc::into_inner(made).and_then(Made::into_pixels) {
            self.spare.push(pixels);
        }
    }

    /// Samples that failed.
    pub(super) fn quarantine(&self) -> impl Iterator<Item = Failure> + '_ {
        let listed = if self.spec.on_error == OnError::Raise { None } else { Some(&self.failures) };
        listed.into_iter().flatten().map(|(&sample, (stage, fault))| Failure {
            sample,
            path: self.spec.folder.path(sample),
            stage: stage.to_string(),
            cause: fault.to_string(),
        })
    }

    /// Opens, fills and finishes steps of every job as far as they go; `jobs` are the engine's.
    pub(super) fn pump(&mut self, id: u64, jobs: &mut BTreeMap<u64, JobState>) {
        let bits: Vec<(u32, u64)> = self.seats.iter().map(|(&bit, seat)| (bit, seat.job)).collect();
        for (bit, job) in bits {
            if let Some(job) = jobs.get_mut(&job) {
                self.pump_job(id, bit, job);
            }
        }
    }

    fn pump_job(&mut self, id: u64, bit: u32, job: &mut JobState) {
        let Some(run) = job.runs.front() else { return };
        if run.fault.is_some() || run.halted {
            return;
        }
        loop {
            // One step in hand beside those being finished, as the job's share allows.
            let steps = (job.share.samples.saturating_sub(self.threads) / job.spec.batch.max(1)).max(1);
            if !self.policy.is_open(bit) && job.unfinished < steps {
                self.policy.open(bit, &mut self.dice);
                self.apply();
            }
            if !self.policy.is_full(bit) || !job.has_slot() {
                break;
            }
            let Some(step) = self.policy.take(bit) else { break };
            let mut hand =
                self.seats.get_mut(&bit).map(|seat| std::mem::take(&mut seat.hand)).unwrap_or_default();
            let made: Vec<Arc<Made>> =
                step.taken.iter().filter_map(|taken| hand.remove(&taken.position)).collect();
            debug_assert_eq!(made.len(), step.taken.len(), "what was drawn is in hand");
            hand.into_values().for_each(|made| self.give(made));
            if self.raises(bit, &step.skipped, job) {
                made.into_iter().for_each(|made| self.give(made));
                break;
            }
            let formed = Formed {
                positions: step.taken.iter().map(|taken| taken.position).collect(),
                skipped: step.skipped,
            };
            job.assemble(0, formed, made, Some(id)).into_iter().for_each(|made| self.give(made));
        }
        if self.policy.is_over(bit) && !self.policy.is_open(bit) {
            let skipped = self.policy.skipped(bit);
            self.raises(bit, &skipped, job);
            job.runs[0].source = Source::Shared { over: true };
        }
        job.tell_end();
    }

    /// Whether the job must be told of a failure instead of going on.
    fn raises(&mut self, bit: u32, skipped: &[u64], job: &mut JobState) -> bool {
        let Some(&position) = skipped.first() else { return false };
        // Where neighbours stand in, a sample is skipped only when none of them could be made.
        if job.spec.on_error == OnError::Skip {
            return false;
        }
        let sample = u64::from(self.policy.sample(bit, position));
        let (stage, fault) = match self.failures.get(&sample) {
            Some((stage, fault)) => (*stage, fault.again()),
            None => (Stage::Read, Fault::Corrupt("it failed before".into())),
        };
        job.runs[0].fault = Some(Error::Sample { sample, path: self.spec.folder.path(sample), stage, fault });
        true
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        self.gauge.sub(self.samples * self.sample_bytes);
    }
}

fn refused(error: share::Error) -> Error {
    Error::Invalid(error.to_string())
}
