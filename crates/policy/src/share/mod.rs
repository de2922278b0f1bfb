//! Many jobs, one pool: every job is given every sample of its share once per epoch, and no copy twice.
//!
//! A [`Stream`] knows who needs what ([`needs`]), which copies are there ([`pool`]) and how far each job
//! is. It is pure: the caller brings randomness and rates, does what is returned, and says when it is done.
//!
//! ```text
//!  begin, open ─▶ draw ready copies into the hand ─▶ take: a step, when the hand is full
//!  next ─▶ (caller prepares) ─▶ ready, or failed ─▶ drawn by who waits, kept for who needs it
//! ```
//!
//! One rule serves all orders. A job's *keyed order* is a fresh random permutation each epoch. In strict
//! order a step is the next positions of it; with a lateness D a step must hold the positions that would
//! come later than D and may hold anything else; in ready order nothing is due. `mixing` lets a part of
//! the draws follow the keyed order: the lowest position not yet drawn is a uniformly random need.

mod bits;
mod claims;
mod demand;
mod draw;
mod job;
mod needs;
mod pass;
mod pool;
mod prepare;
mod spec;
mod subset;

pub use demand::Demand;
pub use job::{Join, Step, Taken, deal};
pub use prepare::Prepare;
pub use spec::{Level, Order, Remainder};
pub use subset::Subset;

use std::collections::BTreeSet;

use crate::{Deal, Rank, Received};
use job::Job;
use needs::Needs;
use pass::Pass;
use pool::{NOBODY, Owner, Pool};

/// Jobs that one stream can have.
pub const MOST_JOBS: usize = 64;

/// Why a stream refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The 65th job.
    #[error(
        "a stream serves {MOST_JOBS} jobs at most; wait until one has left, or let this one run with share=False"
    )]
    Jobs,
    /// More samples than are numbered.
    #[error("{0} samples are more than the 2147483647 that a shared stream can number; run with share=False")]
    Samples(u64),
    /// A job that cannot be.
    #[error("{0}")]
    Job(&'static str),
    /// A received set that does not fit.
    #[error("the received set does not fit a share of {0} samples")]
    Received(u64),
}

/// What the caller must do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Keep the copy in `slot` for the step of `job`, as the one at `position`.
    Draw {
        /// Who.
        job: u32,
        /// Which copy.
        slot: u32,
        /// For which position.
        position: u64,
        /// Where it only fills up the step: the how manieth to do so; else 0.
        pad: u32,
    },
    /// Let the copy in `slot` go.
    Free {
        /// Which.
        slot: u32,
    },
}

/// One dataset with one recipe, drawn by up to 64 jobs.
#[derive(Debug, Clone)]
pub struct Stream {
    n: u32,
    seed: u64,
    /// Number of the last copy, and of the one before the first.
    clock: u64,
    opened: u64,
    needs: Needs,
    pool: Pool,
    jobs: Vec<Option<Job>>,
    active: u64,
    /// Jobs that have begun an epoch, so that their needs mean something.
    begun: u64,
    /// Jobs that take any copy, and jobs in strict order that share theirs.
    shared: u64,
    strict: u64,
    /// Samples that failed.
    bad: BTreeSet<u32>,
    /// Samples that the job had which was served last: who did not wait gains no claim by it.
    served: u64,
    effects: Vec<Effect>,
}

impl Stream {
    /// A stream of `samples` samples with room for `slots` copies. `seed` and `clock` name its copies; both
    /// are drawn at random for each opening, so that no name is ever made twice.
    pub fn new(samples: u64, slots: u32, seed: u64, clock: u64) -> Result<Self, Error> {
        let n = u32::try_from(samples).ok().filter(|&n| n <= u32::MAX / 2).ok_or(Error::Samples(samples))?;
        Ok(Stream {
            n,
            seed,
            clock,
            opened: clock,
            needs: Needs::new(n),
            pool: Pool::new(slots),
            jobs: (0..MOST_JOBS).map(|_| None).collect(),
            active: 0,
            begun: 0,
            shared: 0,
            strict: 0,
            bad: BTreeSet::new(),
            served: 0,
            effects: Vec::new(),
        })
    }

    /// Number of the copy made last.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Names this opening together with the clock.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes held for the samples, apart from pool and subsets.
    pub fn bytes(&self) -> usize {
        self.needs.bytes()
    }

    /// Copies that are held or awaited in the pool.
    pub fn resident(&self) -> u32 {
        self.pool.resident
    }

    /// Copies that the pool may hold.
    pub fn slots(&self) -> u32 {
        self.pool.capacity
    }

    /// Jobs that have joined.
    pub fn len(&self) -> usize {
        self.active.count_ones() as usize
    }

    /// Whether no job is there.
    pub fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Changes how many copies the pool may hold; what is too much goes.
    pub fn resize(&mut self, slots: u32) {
        self.pool.capacity = slots;
        let ready: Vec<u32> = self.pool.ready.iter().collect();
        for slot in ready {
            if self.pool.resident <= slots {
                break;
            }
            self.evict(slot);
        }
    }

    /// What the caller must do now.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn job(&self, job: u32) -> &Job {
        self.jobs[job as usize].as_ref().expect("a job that has joined and not left")
    }

    fn job_mut(&mut self, job: u32) -> &mut Job {
        self.jobs[job as usize].as_mut().expect("a job that has joined and not left")
    }

    /// Adds a job; its epochs are begun separately.
    pub fn join(&mut self, join: Join) -> Result<u32, Error> {
        if join.batch == 0 || join.ranks == 0 {
            return Err(Error::Job("a batch needs at least one sample, a job at least one rank"));
        }
        if !join.shuffle && join.order != Order::Strict {
            return Err(Error::Job("only strict order can do without shuffle"));
        }
        let bit = (!self.active).trailing_zeros();
        if bit as usize >= MOST_JOBS {
            return Err(Error::Jobs);
        }
        self.needs.widen(bit);
        self.needs.set_subset(bit, join.subset.clone());
        if let Some(clock) = join.used_to {
            let reach = clock.wrapping_sub(self.opened);
            for (used, slot) in self.pool.used.iter_mut().zip(&self.pool.slots) {
                let known = slot.owner == Owner::Shared && slot.generation.wrapping_sub(self.opened) <= reach;
                *used |= u64::from(known) << bit;
            }
        }
        let job = Job::new(self.n, bit, join);
        self.active |= job.mask();
        self.jobs[bit as usize] = Some(job);
        Ok(bit)
    }

    /// Removes a job. What only it could use goes.
    pub fn leave(&mut self, job: u32) {
        self.void_step(job);
        let left = self.retract(job);
        let mask = !(1u64 << job);
        self.active &= mask;
        self.begun &= mask;
        self.shared &= mask;
        self.strict &= mask;
        self.jobs[job as usize] = None;
        self.needs.set_subset(job, None);
        self.pool.used.iter_mut().for_each(|used| *used &= mask);
        self.free_useless(left);
    }

    /// Begins an epoch of a job after what was received of it. What was prepared for it is kept.
    pub fn begin(&mut self, job: u32, epoch: u64, received: &Received) -> Result<(), Error> {
        let n = self.n;
        self.void_step(job);
        let begun = self.begun >> job & 1 == 1;
        let state = self.job_mut(job);
        let fresh = *received == Received::default();
        let opened = state.next.as_ref().is_some_and(|next| next.epoch == epoch);
        let rest = state.tail.len() + state.tail_flight + state.lost.len() as u32;
        if fresh && opened && rest == 0 && begun {
            state.pass = state.next.take().expect("an opened epoch");
            return Ok(());
        }
        let mut pass = state.pass(n, epoch);
        if !received.is_sound(pass.keyed.len()) {
            return Err(Error::Received(pass.keyed.len()));
        }
        if state.join.remainder == Remainder::Drop && !received.count().is_multiple_of(state.full()) {
            // It went on with steps of another size: what is left is cut anew.
            let Join { batch, ranks, remainder, .. } = state.join;
            let rank = Rank { rank: 0, ranks, batch: batch.into(), remainder };
            let share = Deal::new(rank, pass.keyed.len(), received).whole_end();
            pass = Pass::new(epoch, pass.keyed, share);
        }
        state.next = None;
        state.pass = pass;
        let (strict, augmented) = (state.is_strict(), state.join.level == Level::Augmented);
        self.begun |= 1 << job;
        let group = if strict { &mut self.strict } else { &mut self.shared };
        *group |= u64::from(augmented) << job;
        let left = self.retract(job);
        let out = self.turn(job);
        if !fresh {
            self.resume(job, received);
        }
        self.cover_pool(job, fresh.then_some(&out));
        self.free_useless(left);
        Ok(())
    }

    /// Drops the step in hand; repeats under way were for that step alone.
    fn void_step(&mut self, job: u32) {
        self.job_mut(job).hand = None;
        for slot in self.pool.flying.iter() {
            let copy = &mut self.pool.slots[slot as usize];
            if copy.direct == job && copy.pad > 0 {
                copy.direct = NOBODY;
            }
        }
    }

    /// All samples of the epoch that a job prepares are needed, but those that failed or are left out, which
    /// are returned ascending.
    fn turn(&mut self, job: u32) -> Vec<u32> {
        self.needs.turn(job);
        let state = self.job(job);
        let subset = state.join.subset.clone();
        let pass = state.ahead().clone();
        let mut out: Vec<(u32, u64)> =
            (pass.share..pass.keyed.len()).map(|p| (pass.keyed.at(p), p)).collect();
        let bad = self.bad.iter().filter(|&&sample| subset.as_ref().is_none_or(|s| s.contains(sample)));
        out.extend(bad.map(|&sample| (sample, pass.keyed.position(sample))));
        out.sort_unstable();
        out.dedup();
        let mut failed = Vec::new();
        for &(sample, position) in &out {
            self.needs.clear(sample, job);
            self.needs.cover(sample, job);
            if position < pass.share {
                failed.push(position);
            }
        }
        let ahead = self.job_mut(job).ahead_mut();
        ahead.left -= failed.len() as u64;
        ahead.failed.extend(&failed);
        ahead.untold.extend(&failed);
        for _ in failed {
            self.refill(job, false);
        }
        out.into_iter().map(|(sample, _)| sample).filter(|&sample| !self.needs.has(sample, job)).collect()
    }

    /// With `drop`, a position that was left out comes in for one that failed, in the epoch that a job draws
    /// or in the one it prepares.
    fn refill(&mut self, job: u32, drawing: bool) {
        loop {
            let state = self.jobs[job as usize].as_mut().expect("a job");
            let rest = drawing && state.next.is_some();
            let drop = state.join.remainder == Remainder::Drop;
            let pass = if drawing { &mut state.pass } else { state.ahead_mut() };
            if pass.share >= pass.keyed.len() || !drop {
                return;
            }
            let position = pass.share;
            pass.share += 1;
            let sample = pass.keyed.at(position);
            if self.bad.contains(&sample) {
                pass.failed.insert(position);
                pass.untold.push(position);
                continue;
            }
            pass.left += 1;
            if rest {
                return state.lost.push(sample);
            }
            return self.needs.add(sample, job);
        }
    }

    /// Takes out of a new pass what was received or skipped before.
    fn resume(&mut self, job: u32, received: &Received) {
        // What failed before need not have failed here; positions come in for it all the same.
        let known = &self.job(job).pass.failed;
        let below = known.iter().filter(|&&position| position < received.base).count() as u64;
        let beyond = received.failed.iter().filter(|&position| !known.contains(position)).count() as u64;
        for _ in 0..received.skipped.saturating_sub(below) + beyond {
            self.refill(job, false);
        }
        let pass = self.job(job).pass.clone();
        let done = (0..received.base).chain(received.beyond.iter()).chain(received.failed.iter().copied());
        let gone = done.filter(|&position| position < pass.share);
        let mut left = 0;
        for position in gone {
            let sample = pass.keyed.at(position);
            if self.needs.has(sample, job) {
                self.needs.clear(sample, job);
                self.needs.cover(sample, job);
                left += 1;
            }
        }
        let state = self.job_mut(job);
        state.pass.left -= left;
        state.pass.drawn = received.count();
        // What was skipped before is known; below the base only the number is.
        state.pass.untold.retain(|&position| !received.contains(position));
        state.pass.failed.retain(|&position| position >= received.base);
        state.pass.failed.extend(&received.failed);
        state.pass.failed.extend(0..received.skipped.min(received.base));
        state.pass.cursor = received.base;
        state.pass.front = received.base;
    }

    /// Opens the next epoch of a job whose needs are all prepared: for preparing, not for drawing.
    fn open_next(&mut self, job: u32) {
        let state = self.jobs[job as usize].as_mut().expect("a job");
        let epoch = state.pass.epoch + 1;
        let next = state.pass(self.n, epoch);
        state.next = Some(next);
        std::mem::swap(&mut state.ready, &mut state.tail);
        state.tail_flight = std::mem::take(&mut state.flight);
        let mask = state.mask();
        for slot in state.tail.iter().chain(self.pool.flying.iter()) {
            let copy = &mut self.pool.slots[slot as usize];
            copy.tail |= copy.cover & mask;
            copy.cover &= !mask;
        }
        let out = self.turn(job);
        self.cover_pool(job, Some(&out));
    }

    /// Whether a job's epoch has no further step.
    pub fn is_over(&self, job: u32) -> bool {
        let state = self.job(job);
        state.is_over() && state.hand.as_ref().is_none_or(|hand| hand.taken.is_empty() && hand.pads == 0)
    }

    /// Positions of a job's epoch that failed and were not told with a step.
    pub fn skipped(&mut self, job: u32) -> Vec<u64> {
        std::mem::take(&mut self.job_mut(job).pass.untold)
    }

    /// Samples per second that a job could use; 0 while it is silent, nothing while that is unknown.
    pub fn set_demand(&mut self, job: u32, per_sec: Option<f64>) {
        self.job_mut(job).demand = per_sec;
    }

    /// The sample at a position of the epoch that a job draws.
    pub fn sample(&self, job: u32, position: u64) -> u32 {
        self.pass(job).keyed.at(position)
    }

    /// Whether a step of a job is being filled or waits to be taken.
    pub fn is_open(&self, job: u32) -> bool {
        self.job(job).hand.is_some()
    }

    /// The epoch that a job draws.
    fn pass(&self, job: u32) -> &Pass {
        &self.job(job).pass
    }
}

#[cfg(test)]
mod tests;
