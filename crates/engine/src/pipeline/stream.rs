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

use forebay_policy::share::{self, Demand, Effect, Join, Level, Stream};
use forebay_policy::{Dice, Formed, Received};
use forebay_recipe::CopyName;

use super::job::{JobState, Outcome, Prepare, Step, To};
use super::run::{Failure, Made, Own, Source};
use super::spec::{OnError, Sharing, Spec};
use crate::cache::{Form, Keep, NO_SHELF, Ticket};
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
    /// The pool is of decoded samples, and each job makes its own copies of them.
    decoded: bool,
}

impl Key {
    pub(super) fn new(spec: &Spec) -> Self {
        let decoded = spec.draws_decoded();
        Key {
            dataset: spec.dataset.fingerprint().into(),
            copies: if decoded { spec.recipe.decoded_fingerprint() } else { spec.recipe.fingerprint() },
            on_error: spec.on_error,
            decoded,
        }
    }
}

/// A job's place in a stream.
#[derive(Debug)]
struct Seat {
    spec: Arc<Spec>,
    ranks: Vec<Rank>,
    counters: Arc<Counters>,
    ticket: Arc<Ticket>,
    demand: Demand,
    /// What it has drawn for its next step, by position, and what fills that up.
    hand: HashMap<u64, Arc<Made>>,
    pads: BTreeMap<u32, Arc<Made>>,
}

/// One process of a job.
#[derive(Debug, Default)]
struct Rank {
    /// The engine's job, while it is connected.
    job: Option<u64>,
    /// The epoch that it wants to begin when all others do, and what the job received of that.
    start: Option<(u64, Received)>,
}

impl Seat {
    /// The rank whose pace is the job's.
    fn first(&self) -> Option<usize> {
        self.ranks.iter().position(|rank| rank.job.is_some())
    }

    /// Samples per second that all ranks could use.
    fn per_sec(&self, now: f64) -> Option<f64> {
        self.demand.per_sec(now).map(|one| one * self.ranks.len() as f64)
    }
}

/// What became of a rank's wish to begin.
#[derive(Debug, PartialEq)]
pub(super) enum Begin {
    /// The epoch has begun.
    Now,
    /// Other ranks are not there yet.
    Later,
    /// Ranks do not agree; these jobs wait in vain.
    Never(Vec<u64>, String),
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
    /// Where the pool is of decoded samples: the spec with the steps of these alone.
    part: Option<Arc<Spec>>,
    form: Option<Form>,
    policy: Stream,
    dice: Dice,
    opened: Instant,
    pace: Pace,
    seats: BTreeMap<u32, Seat>,
    copies: Vec<Option<Arc<Made>>>,
    failures: BTreeMap<u64, (Stage, Fault)>,
    spare: Vec<Pixels>,
    /// Bytes of a sample; their mean where it varies.
    sample_bytes: u64,
    /// Bytes that the pool may hold, and whether a plan says so.
    room: u64,
    pub(super) planned: bool,
    threads: u64,
    /// Samples that have memory, in use or spare; decoded ones by their bytes.
    samples: u64,
    /// Bytes of decoded samples that are in the pool or in hands, and how many were made with which bytes.
    held: u64,
    made: (u64, u64),
    gauge: Arc<Gauge>,
}

impl StreamState {
    pub(super) fn open(key: Key, job: &JobState, threads: u64, gauge: Arc<Gauge>) -> Result<Self> {
        let spec = job.spec.clone();
        // Names of copies must never be made twice, on no host and in no other process.
        let random = RandomState::new();
        let (seed, clock) = (random.hash_one(0), random.hash_one(1));
        let sample_bytes = if key.decoded { spec.decoded_bytes() } else { job.share.sample_bytes };
        let part =
            key.decoded.then(|| Arc::new(Spec { recipe: spec.recipe.decoded_part(), ..(*spec).clone() }));
        Ok(StreamState {
            key,
            policy: Stream::new(spec.dataset.len(), 0, seed, clock).map_err(refused)?,
            form: part.as_ref().map(|part| Form {
                shelf: NO_SHELF,
                recipe: part.recipe.clone().into(),
                least: 0.0,
            }),
            part,
            spec,
            dice: Dice::new(random.hash_one(2)),
            opened: Instant::now(),
            pace: Pace::default(),
            seats: BTreeMap::new(),
            copies: Vec::new(),
            failures: BTreeMap::new(),
            spare: Vec::new(),
            sample_bytes,
            room: 0,
            planned: false,
            threads,
            samples: 0,
            held: 0,
            made: (0, 0),
            gauge,
        })
    }

    pub(super) fn join(&mut self, job: &JobState, sharing: Sharing) -> Result<u32> {
        let spec = &job.spec;
        if spec.ranks > 1
            && let Some((&bit, seat)) = self.seats.iter_mut().find(|(_, seat)| seat.spec.group == spec.group)
        {
            let of = |spec: &Spec| (spec.rank().ranks, spec.batch, spec.remainder, spec.seed, spec.shuffle);
            let shares = |sharing: Sharing| (sharing.order, sharing.level, sharing.mixing);
            let same = of(&seat.spec) == of(spec)
                && seat.spec.share.map(shares) == Some(shares(sharing))
                && seat.spec.picks == spec.picks;
            let rank = &mut seat.ranks[(spec.rank as usize).min(seat.spec.ranks as usize - 1)];
            if !same || rank.job.is_some() {
                let what =
                    if same { "is there already" } else { "has other arguments than the ranks before it" };
                return Err(Error::Invalid(format!("rank {} of job {} {what}", spec.rank, spec.group)));
            }
            *rank = Rank { job: Some(job.id), start: None };
            return Ok(bit);
        }
        let join = Join {
            batch: u32::try_from(spec.batch)
                .map_err(|_| Error::Invalid("a batch is too large to be shared".into()))?,
            ranks: spec.ranks,
            remainder: spec.remainder,
            order: sharing.order,
            // All jobs draw the decoded samples of a pool of such.
            level: if self.key.decoded { Level::Augmented } else { sharing.level },
            mixing: sharing.mixing,
            seed: spec.seed,
            shuffle: spec.shuffle,
            subset: spec.picks.subset().flatten(),
            used_to: sharing.before.filter(|(seed, _)| *seed == self.policy.seed()).map(|(_, clock)| clock),
        };
        let bit = self.policy.join(join).map_err(refused)?;
        let mut ranks: Vec<Rank> = (0..spec.ranks).map(|_| Rank::default()).collect();
        ranks[spec.rank as usize].job = Some(job.id);
        let seat = Seat {
            spec: spec.clone(),
            ranks,
            counters: job.counters.clone(),
            ticket: job.ticket.clone(),
            demand: Demand::default(),
            hand: HashMap::new(),
            pads: BTreeMap::new(),
        };
        self.seats.insert(bit, seat);
        Ok(bit)
    }

    /// The shelves that a job's copies are made from.
    pub(super) fn set_ticket(&mut self, job: &JobState) {
        if let Some((_, bit)) = job.seat
            && let Some(seat) = self.seats.get_mut(&bit)
        {
            seat.ticket = job.ticket.clone();
        }
    }

    /// Whether it is the last that leaves.
    pub(super) fn leave(&mut self, bit: u32, rank: u32) -> bool {
        let Some(seat) = self.seats.get_mut(&bit) else { return self.seats.is_empty() };
        seat.ranks[rank as usize] = Rank::default();
        if seat.first().is_some() {
            return false;
        }
        self.policy.leave(bit);
        self.apply();
        if let Some(seat) = self.seats.remove(&bit) {
            seat.hand.into_values().chain(seat.pads.into_values()).for_each(|made| self.give(made));
        }
        self.seats.is_empty()
    }

    /// Tells the other ranks of a job that one has left before the end of their epoch: its part of further
    /// steps would be given to nobody.
    pub(super) fn tell_left(&mut self, bit: u32, rank: u32, jobs: &mut BTreeMap<u64, JobState>) {
        let Some(seat) = self.seats.get(&bit) else { return };
        if self.policy.is_over(bit) && !self.policy.is_open(bit) {
            return;
        }
        let why = format!(
            "rank {rank} of job {} has left in mid-epoch; start all ranks again from one state",
            seat.spec.group
        );
        for (_, job) in self.drawing(bit, jobs) {
            let Some(job) = jobs.get_mut(&job) else { continue };
            job.runs[0].halted = true;
            job.runs[0].fault = Some(Error::Invalid(why.clone()));
            job.tell_end();
        }
    }

    /// A rank wants to begin an epoch after what its job received of it. It begins when all ranks want it.
    pub(super) fn begin(&mut self, bit: u32, rank: u32, epoch: u64, received: &Received) -> Result<Begin> {
        let Some(seat) = self.seats.get_mut(&bit) else { return Err(Error::Closed) };
        seat.ranks[rank as usize].start = Some((epoch, received.clone()));
        if seat.ranks.iter().any(|rank| rank.start.is_none()) {
            return Ok(Begin::Later);
        }
        let starts: Vec<(u64, Received)> =
            seat.ranks.iter_mut().filter_map(|rank| rank.start.take()).collect();
        if starts.iter().any(|start| *start != starts[0]) {
            let jobs = seat.ranks.iter().filter_map(|rank| rank.job).collect();
            let steps: Vec<String> = starts
                .iter()
                .map(|(epoch, received)| format!("{} of epoch {epoch}", received.count()))
                .collect();
            let why = format!(
                "the ranks of job {} want to go on from different places (samples received: {}); load one state in all of them",
                seat.spec.group,
                steps.join(", ")
            );
            return Ok(Begin::Never(jobs, why));
        }
        // Only what is skipped stays out: the others are told, and may try again.
        if self.spec.on_error != OnError::Skip {
            self.policy.forgive();
        }
        self.policy.begin(bit, epoch, received).map_err(refused)?;
        self.apply();
        let Some(seat) = self.seats.get_mut(&bit) else { return Ok(Begin::Now) };
        seat.demand.returned();
        let demand = seat.per_sec(self.opened.elapsed().as_secs_f64());
        self.policy.set_demand(bit, self.pace.cap(demand));
        let hand = std::mem::take(&mut seat.hand).into_values();
        let hand = hand.chain(std::mem::take(&mut seat.pads).into_values());
        hand.collect::<Vec<_>>().into_iter().for_each(|made| self.give(made));
        Ok(Begin::Now)
    }

    /// Seed and clock, for states.
    pub(super) fn clock(&self) -> (u64, u64) {
        (self.policy.seed(), self.policy.clock())
    }

    /// The folder it serves.
    pub(super) fn root(&self) -> &Path {
        self.spec.dataset.root()
    }

    /// Jobs, copies in the pool, and how many it may hold.
    pub(super) fn facts(&self) -> [u64; 3] {
        [self.seats.len() as u64, u64::from(self.policy.resident()), u64::from(self.policy.slots())]
    }

    /// The job asks. One in another process says itself for how long it was busy with how many samples: it
    /// is sent its next batch before it asks for it.
    pub(super) fn asked(&mut self, bit: u32, rank: u32, busy: Option<(Duration, u64)>) {
        let now = self.opened.elapsed().as_secs_f64();
        if let Some(seat) = self.seats.get_mut(&bit).filter(|seat| seat.first() == Some(rank as usize)) {
            if let Some((busy, samples)) = busy {
                seat.demand.took(now - busy.as_secs_f64(), samples);
            }
            seat.demand.asked(now);
        }
        for (&bit, seat) in &self.seats {
            self.policy.set_demand(bit, self.pace.cap(seat.per_sec(now)));
        }
    }

    pub(super) fn took(&mut self, bit: u32, rank: u32, samples: u64) {
        let now = self.opened.elapsed().as_secs_f64();
        if let Some(seat) = self.seats.get_mut(&bit).filter(|seat| seat.first() == Some(rank as usize)) {
            seat.demand.took(now, samples);
        }
    }

    /// Bytes that it can make use of.
    pub(super) fn appetite(&self) -> u64 {
        self.spec.dataset.len().saturating_mul(self.sample_bytes)
    }

    /// Whether its pool is of decoded samples.
    pub(super) fn is_decoded(&self) -> bool {
        self.key.decoded
    }

    /// Bytes that the pool may hold.
    pub(super) fn bytes(&self) -> u64 {
        self.room
    }

    /// Samples per second that a job could use, if that is known.
    pub(super) fn demand(&self, bit: u32) -> Option<f64> {
        self.seats.get(&bit)?.per_sec(self.opened.elapsed().as_secs_f64())
    }

    /// Sets how many bytes the pool may hold.
    pub(super) fn resize(&mut self, bytes: u64) {
        self.room = bytes;
        let slots = u32::try_from(bytes / self.sample_bytes).unwrap_or(u32::MAX / 2);
        self.policy.resize(slots);
        self.apply();
        let spare = std::mem::take(&mut self.spare).len() as u64;
        if !self.key.decoded {
            self.gauge.sub(spare * self.sample_bytes);
            self.samples -= spare;
        }
    }

    /// The next copy to make.
    pub(super) fn task(&mut self, id: u64) -> Option<Prepare> {
        let share::Prepare { slot, job, sample, seed, generation, occurrence } =
            self.policy.next(true, &mut self.dice)?;
        self.apply();
        let sample = u64::from(sample);
        let pixels = self.spare.pop().unwrap_or_else(|| {
            if !self.key.decoded {
                self.samples += 1;
                self.gauge.add(self.sample_bytes);
            }
            Pixels::default()
        });
        let seat = self.seats.get(&job);
        let counters = seat.map(|seat| seat.counters.clone()).unwrap_or_default();
        let ticket = seat.map(|seat| seat.ticket.clone()).unwrap_or_default();
        Some(Prepare {
            to: To::Stream { stream: id, slot },
            name: CopyName { seed, sample, generation, occurrence },
            valid: true,
            substitute: self.failures.contains_key(&sample) && self.spec.on_error == OnError::Substitute,
            // What decoding may take is limited by the thread's scratch.
            room: if self.key.decoded {
                u64::MAX
            } else {
                self.sample_bytes - (SLACK as u64).min(self.sample_bytes)
            },
            pixels,
            spec: match (&self.part, seat) {
                (Some(part), _) => part.clone(),
                (None, Some(seat)) => seat.spec.clone(),
                (None, None) => self.spec.clone(),
            },
            counters,
            ticket,
            kept: None,
            keep: self.form.iter().cloned().map(Keep::Decoded).collect(),
            fetched: None,
        })
    }

    /// Books what became of a copy.
    pub(super) fn settle(&mut self, slot: u32, outcome: Outcome) {
        for (sample, stage, fault) in outcome.failures {
            self.failures.insert(sample, (stage, fault));
        }
        match outcome.made {
            Ok(made) => {
                self.count(&made);
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

    /// Counts a decoded sample, whose size nobody knew before.
    fn count(&mut self, made: &Made) {
        if !self.key.decoded {
            return;
        }
        let bytes = made.bytes();
        self.held += bytes;
        self.gauge.add(bytes);
        self.made = (self.made.0 + 1, self.made.1 + bytes);
        let mean = (self.made.1 / self.made.0).max(1);
        // What jobs have in hand is theirs; the pool is as many as fit by the mean of all made so far.
        let slots = u32::try_from(self.room / mean).unwrap_or(u32::MAX / 2);
        self.sample_bytes = mean;
        if slots != self.policy.slots() {
            self.policy.resize(slots);
            self.apply();
        }
    }

    /// Does what the policy decided.
    fn apply(&mut self) {
        for effect in self.policy.effects() {
            match effect {
                Effect::Draw { job, slot, position, pad } => {
                    let copy = self.copies[slot as usize].clone();
                    match (self.seats.get_mut(&job), copy) {
                        (Some(seat), Some(made)) if pad > 0 => _ = seat.pads.insert(pad, made),
                        (Some(seat), Some(made)) => _ = seat.hand.insert(position, made),
                        _ => {}
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
        let Some(made) = Arc::into_inner(made) else { return };
        if self.key.decoded {
            self.held -= made.bytes();
            self.gauge.sub(made.bytes());
        } else if let Some(pixels) = made.into_pixels() {
            self.spare.push(pixels);
        }
    }

    /// Samples that failed.
    pub(super) fn quarantine(&self) -> impl Iterator<Item = Failure> + '_ {
        let listed = if self.spec.on_error == OnError::Raise { None } else { Some(&self.failures) };
        listed.into_iter().flatten().map(|(&sample, (stage, fault))| Failure {
            sample,
            path: self.spec.dataset.path(sample),
            stage: stage.to_string(),
            cause: fault.to_string(),
        })
    }

    /// Opens, fills and finishes steps of every job as far as they go; `jobs` are the engine's.
    pub(super) fn pump(&mut self, id: u64, jobs: &mut BTreeMap<u64, JobState>) {
        let bits: Vec<u32> = self.seats.keys().copied().collect();
        bits.into_iter().for_each(|bit| self.pump_job(id, bit, jobs));
    }

    /// Ranks that draw: those that want to begin another epoch or have failed do not.
    fn drawing(&self, bit: u32, jobs: &BTreeMap<u64, JobState>) -> Vec<(usize, u64)> {
        let ranks = self.seats.get(&bit).map(|seat| &seat.ranks[..]).unwrap_or_default();
        let some = ranks.iter().enumerate().filter(|(_, rank)| rank.start.is_none());
        let some = some.filter_map(|(at, rank)| Some((at, rank.job?)));
        let draws = |job: &u64| {
            let run = jobs.get(job).and_then(|job| job.runs.front());
            run.is_some_and(|run| run.fault.is_none() && !run.halted)
        };
        some.filter(|(_, job)| draws(job)).collect()
    }

    fn pump_job(&mut self, id: u64, bit: u32, jobs: &mut BTreeMap<u64, JobState>) {
        let ranks = self.drawing(bit, jobs);
        if ranks.is_empty() {
            return;
        }
        let threads = self.threads;
        let all = |jobs: &BTreeMap<u64, JobState>, can: &dyn Fn(&JobState) -> bool| {
            ranks.iter().all(|(_, job)| jobs.get(job).is_none_or(can))
        };
        loop {
            // One step in hand beside those being finished, as the job's share allows. Ranks go in step: none is
            // dealt more than the slowest has slots for.
            let spare = |job: &JobState| {
                let steps = (job.share.samples.saturating_sub(threads) / job.spec.batch.max(1)).max(1);
                job.unfinished < steps
            };
            if !self.policy.is_open(bit) && all(jobs, &spare) {
                self.policy.open(bit, &mut self.dice);
                self.apply();
            }
            if !self.policy.is_full(bit) || !all(jobs, &JobState::has_slot) {
                break;
            }
            let Some(step) = self.policy.take(bit) else { break };
            if self.deal(id, bit, step, &ranks, jobs) {
                break;
            }
        }
        let over = self.policy.is_over(bit) && !self.policy.is_open(bit);
        if over {
            let skipped = self.policy.skipped(bit);
            self.raises(bit, &skipped, &ranks, jobs);
        }
        for (_, job) in ranks {
            let Some(job) = jobs.get_mut(&job) else { continue };
            if over {
                job.runs[0].source = Source::Shared { over: true };
            }
            job.tell_end();
        }
    }

    /// Begins the batches of a step, one for each rank; whether the job must be told of a failure instead.
    fn deal(
        &mut self,
        id: u64,
        bit: u32,
        step: share::Step,
        ranks: &[(usize, u64)],
        jobs: &mut BTreeMap<u64, JobState>,
    ) -> bool {
        let Some(seat) = self.seats.get_mut(&bit) else { return true };
        let (mut hand, mut pads) = (std::mem::take(&mut seat.hand), std::mem::take(&mut seat.pads));
        let made = step.taken.iter().filter_map(|taken| match taken.valid {
            true => hand.remove(&taken.position),
            false => pads.pop_first().map(|(_, made)| made),
        });
        let mut made: Vec<Option<Arc<Made>>> = made.map(Some).collect();
        debug_assert_eq!(made.len(), step.taken.len(), "what was drawn is in hand");
        hand.into_values().chain(pads.into_values()).for_each(|made| self.give(made));
        let failed = self.raises(bit, &step.skipped, ranks, jobs);
        let mut start = 0;
        for (rank, &size) in step.sizes.iter().enumerate() {
            let part = start..start + size as usize;
            start = part.end;
            let job = ranks.iter().find(|(at, _)| *at == rank).and_then(|(_, job)| jobs.get_mut(job));
            let Some(job) = job.filter(|_| !failed) else { continue };
            let others = step.taken[..part.start].iter().chain(&step.taken[part.end..]);
            let mine = &step.taken[part.clone()];
            let step = Step {
                formed: Formed {
                    positions: mine.iter().map(|taken| taken.position).collect(),
                    skipped: step.skipped.clone(),
                },
                others: others.filter(|taken| taken.valid).map(|taken| taken.position).collect(),
                pads: mine.iter().filter(|taken| !taken.valid).count(),
            };
            let part = made[part].iter_mut().filter_map(Option::take).collect();
            let own = self.key.decoded.then(|| Own {
                spec: job.spec.clone(),
                counters: job.counters.clone(),
                number: job.id + 1,
            });
            job.assemble(0, step, part, (Some(id), own)).into_iter().for_each(|made| self.give(made));
        }
        made.into_iter().flatten().for_each(|made| self.give(made));
        failed
    }

    /// Whether a job must be told of a failure instead of going on.
    fn raises(
        &mut self,
        bit: u32,
        skipped: &[u64],
        ranks: &[(usize, u64)],
        jobs: &mut BTreeMap<u64, JobState>,
    ) -> bool {
        let Some(&position) = skipped.first() else { return false };
        // Where neighbours stand in, a sample is skipped only when none of them could be made.
        if self.spec.on_error == OnError::Skip {
            return false;
        }
        let sample = u64::from(self.policy.sample(bit, position));
        for (_, job) in ranks {
            let Some(job) = jobs.get_mut(job) else { continue };
            let (stage, fault) = match self.failures.get(&sample) {
                Some((stage, fault)) => (*stage, fault.again()),
                None => (Stage::Read, Fault::Corrupt("it failed before".into())),
            };
            let path = self.spec.dataset.path(sample);
            job.runs[0].fault = Some(Error::Sample { sample, path, stage, fault });
        }
        true
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        let bytes = if self.key.decoded { self.held } else { self.samples * self.sample_bytes };
        self.gauge.sub(bytes);
    }
}

fn refused(error: share::Error) -> Error {
    Error::Invalid(error.to_string())
}
