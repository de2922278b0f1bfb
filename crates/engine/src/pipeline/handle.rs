//! The job's end of the engine: start an epoch, take batches, leave.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_arena::Buffer;
use forebay_policy::{Received, Sequence};
use forebay_recipe::CopyName;

use super::bell::Bell;
use super::job::JobState;
use super::spec::MIN_SLOTS;
use super::stream::{Begin, StreamState};
use super::{Engine, Failure, Feeding, Shared, State};
use crate::batch::{Batch, Lease};
use crate::counters::Counters;
use crate::{Error, Result};

/// What [`Job::next`] found.
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Box<Batch>),
    /// The epoch is over.
    End,
    /// Nothing yet; ask again.
    Waiting,
    /// Nothing will come before more is fed.
    Hungry,
}

/// A training run that draws batches. Dropping it returns all it held.
#[derive(Debug)]
pub struct Job {
    engine: Arc<Engine>,
    id: u64,
    run: u64,
    arrived: Arc<Bell>,
    counters: Arc<Counters>,
    pid: u32,
}

impl Job {
    pub(super) fn new(engine: Arc<Engine>, id: u64, arrived: Arc<Bell>, counters: Arc<Counters>) -> Self {
        Job { engine, id, run: 0, arrived, counters, pid: std::process::id() }
    }

    /// Whether this process made the job; after a fork the child has no threads to serve it.
    pub fn is_mine(&self) -> bool {
        self.pid == std::process::id()
    }

    /// What happened so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.engine.shared
    }

    fn with<T>(&self, act: impl FnOnce(&mut JobState) -> T) -> Result<T> {
        if !self.is_mine() {
            return Err(Error::Forked);
        }
        let mut state = self.shared().lock();
        let result = state.jobs.get_mut(&self.id).map(act).ok_or(Error::Closed)?;
        self.shared().wake(&state);
        Ok(result)
    }

    /// As `with`, for what makes no work.
    fn look<T>(&self, act: impl FnOnce(&mut JobState) -> T) -> Result<T> {
        if !self.is_mine() {
            return Err(Error::Forked);
        }
        self.shared().lock().jobs.get_mut(&self.id).map(act).ok_or(Error::Closed)
    }

    /// Begins an epoch of the job's own order after what was received of it. What was prepared ahead for
    /// it is used; what was prepared for another epoch is dropped.
    pub fn start(&mut self, epoch: u64, received: &Received) -> Result<()> {
        self.start_rank(epoch, received, &Received::default(), 0)
    }

    /// As [`Job::start`], for a rank with a fixed share that has received `own` of what all ranks had left, in so
    /// many steps.
    pub fn start_rank(&mut self, epoch: u64, received: &Received, own: &Received, steps: u64) -> Result<()> {
        check_epoch(epoch)?;
        let none = Received::default();
        let (seat, spec) = self.with(|job| (job.seat, job.spec.clone()))?;
        if !received.is_sound(spec.samples()) || !own.is_sound(spec.samples()) {
            return Err(Error::Invalid(format!(
                "the received set does not fit an epoch of {} samples",
                spec.samples()
            )));
        }
        if let Some((id, bit)) = seat {
            return self.start_shared(id, bit, spec.rank, epoch, received);
        }
        // A weighted draw takes a while: not under the lock.
        let sequence = Sequence::new(&spec.picks, spec.dataset.len(), spec.shuffle, spec.seed, epoch);
        let fresh = *received == none && *own == none && steps == 0;
        self.run = self.with(|job| {
            let ahead = job.runs.iter().find(|run| fresh && run.fresh && run.next == 0 && run.epoch == epoch);
            let ahead = ahead.filter(|run| run.fault.is_none()).map(|run| run.id);
            job.cancel(|run| Some(run.id) == ahead);
            let run = ahead.unwrap_or_else(|| job.open_keyed(sequence, epoch, received, (own, steps)));
            job.form();
            run
        })?;
        self.engine.spawn()
    }

    fn start_shared(&mut self, id: u64, bit: u32, rank: u32, epoch: u64, received: &Received) -> Result<()> {
        let shared = self.shared().clone();
        let mut state = shared.lock();
        let State { jobs, streams, .. } = &mut *state;
        let stream = streams.get_mut(&id).ok_or(Error::Closed)?;
        let begin = stream.begin(bit, rank, epoch, received)?;
        let job = jobs.get_mut(&self.id).ok_or(Error::Closed)?;
        job.cancel(|_| false);
        self.run = job.open_shared(epoch);
        if let Begin::Never(ranks, why) = begin {
            for rank in ranks {
                if let Some(job) = jobs.get_mut(&rank)
                    && let Some(run) = job.runs.front_mut()
                {
                    run.fault = Some(Error::Invalid(why.clone()));
                    job.tell_end();
                }
            }
        }
        state.pump(id);
        shared.wake(&state);
        drop(state);
        self.engine.spawn()
    }

    /// Begins an epoch of copies that a log names, after `base` of them.
    pub fn start_listed(&mut self, epoch: u64, base: u64) -> Result<()> {
        check_epoch(epoch)?;
        self.run = self.with(|job| {
            job.cancel(|_| false);
            job.open_listed(epoch, base)
        })?;
        self.engine.spawn()
    }

    /// Adds a batch of copies, each with whether it is more than padding.
    pub fn list(&mut self, copies: Vec<(CopyName, bool)>) -> Result<()> {
        let id = self.run;
        let n = self.with(|job| job.spec.dataset.len())?;
        if let Some((bad, _)) = copies.iter().find(|(name, _)| name.sample >= n) {
            return Err(Error::Invalid(format!(
                "the log names sample {}, but there are {n} samples",
                bad.sample
            )));
        }
        self.shared().make_room(self.id, copies.len() as u64)?;
        self.with(|job| {
            if let Some(run) = job.run(id) {
                run.list(copies);
            }
            job.form();
        })
    }

    /// Lets the shared stream, if there is one, know what the job does.
    fn tell_stream(&self, state: &mut State, tell: impl FnOnce(&mut StreamState, u32, u32)) {
        let seat = state.jobs.get(&self.id).and_then(|job| Some((job.seat?, job.spec.rank)));
        let Some(((id, bit), rank)) = seat else { return };
        if let Some(stream) = state.streams.get_mut(&id) {
            tell(stream, bit, rank);
            state.pump(id);
        }
    }

    /// Seed and clock of the shared stream; copies up to it are used.
    pub fn clock(&self) -> Option<(u64, u64)> {
        if !self.is_mine() {
            return None;
        }
        let state = self.shared().lock();
        let (id, _) = state.jobs.get(&self.id)?.seat?;
        Some(state.streams.get(&id)?.clock())
    }

    /// Jobs of the shared stream, copies in its pool, and how many it may hold.
    pub fn pool(&self) -> Option<[u64; 3]> {
        if !self.is_mine() {
            return None;
        }
        let state = self.shared().lock();
        let (id, _) = state.jobs.get(&self.id)?.seat?;
        Some(state.streams.get(&id)?.facts())
    }

    /// Begins an epoch whose samples are fed.
    pub fn start_fed(&mut self, epoch: u64, feeding: Feeding) -> Result<()> {
        check_epoch(epoch)?;
        self.run = self.with(|job| {
            job.cancel(|_| false);
            job.open_fed(epoch, feeding)
        })?;
        self.engine.spawn()
    }

    /// Adds samples to a fed epoch.
    pub fn feed(&mut self, samples: &[u64]) -> Result<()> {
        let id = self.run;
        let n = self.with(|job| job.spec.dataset.len())?;
        if let Some(bad) = samples.iter().find(|&&sample| sample >= n) {
            return Err(Error::Invalid(format!(
                "the sampler yielded index {bad}, but there are {n} samples"
            )));
        }
        self.shared().make_room(self.id, samples.len() as u64)?;
        self.with(|job| {
            if let Some(run) = job.run(id) {
                run.feed(samples);
            }
        })
    }

    /// Says that nothing more will be fed.
    pub fn feed_end(&mut self) -> Result<()> {
        let id = self.run;
        self.with(|job| {
            if let Some(run) = job.run(id) {
                run.order.close();
            }
            job.form();
        })
    }

    /// Makes a first slot while workers make the first samples: its pages take as long as half a batch.
    pub fn make_slot(&mut self) -> Result<()> {
        let Some(bytes) = self.with(JobState::first_slot)? else { return Ok(()) };
        let slot = Buffer::afford(bytes).ok();
        let mut state = self.shared().lock();
        match state.jobs.get_mut(&self.id) {
            Some(job) => {
                job.give_first(slot);
                if let Some((stream, _)) = job.seat {
                    state.pump(stream);
                }
                self.shared().wake(&state);
            }
            None => self.shared().gauge.sub(bytes as u64),
        }
        Ok(())
    }

    /// Says that the job, which is in another process, wants its next batch, and for how long it was busy
    /// with the one before.
    pub fn ask(&mut self, busy: Duration, samples: u64) -> Result<()> {
        self.look(|_| ())?;
        let mut state = self.shared().lock();
        self.tell_stream(&mut state, |stream, bit, rank| stream.asked(bit, rank, Some((busy, samples))));
        self.shared().wake(&state);
        Ok(())
    }

    /// The next batch, if there is one by now; [`Job::bell`] rings when it is worth asking.
    pub fn poll_next(&mut self) -> Result<Next> {
        self.arrived.hush();
        let shared = self.engine.shared.clone();
        self.poll(&mut shared.lock())
    }

    /// Becomes readable when [`Job::poll_next`] may find something; only of a job that is lent to.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.arrived.descriptor()
    }

    /// Numbers of slots that were lent, came back, and are no more.
    pub fn retired(&mut self) -> Result<Vec<u64>> {
        self.look(|job| std::mem::take(&mut job.retired))
    }

    /// The next batch; waits for it no longer than `patience`.
    pub fn next(&mut self, patience: Duration) -> Result<Next> {
        self.look(|_| ())?;
        let start = Instant::now();
        let shared = self.engine.shared.clone();
        let mut state = shared.lock();
        self.tell_stream(&mut state, |stream, bit, rank| stream.asked(bit, rank, None));
        shared.wake(&state);
        let taken = loop {
            match self.poll(&mut state)? {
                Next::Waiting => {}
                found @ (Next::End | Next::Hungry) => return Ok(found),
                Next::Batch(batch) => break batch,
            }
            let waited = start.elapsed();
            if waited >= patience {
                self.counters.wait_ns.lap(start);
                return Ok(Next::Waiting);
            }
            state = self.arrived.wait(state, patience - waited);
        };
        self.counters.wait_ns.lap(start);
        drop(state);
        Ok(Next::Batch(taken))
    }

    fn poll(&self, state: &mut State) -> Result<Next> {
        if let Some(bug) = &state.broken {
            return Err(Error::Panic(bug.clone()));
        }
        let job = state.jobs.get_mut(&self.id).ok_or(Error::Closed)?;
        // Two slots are the job's to hold, more only where the budget gave more.
        let may_hold = job.share.slots.saturating_sub(2).max(2);
        let full = job.lent >= may_hold;
        let lend = job.spec.lend;
        // The third is on its way to a process that copies it out and gives it back.
        if lend && job.lent >= MIN_SLOTS {
            return Ok(Next::Waiting);
        }
        let run = job.run(self.run).ok_or(Error::Closed)?;
        if let Some((buffer, label)) = run.done.remove(&run.next) {
            run.next += 1;
            run.fresh = false;
            let lease = if full && !lend {
                let mut own = Buffer::new(buffer.len());
                own.copy_from_slice(&buffer);
                job.give_slot(buffer);
                self.counters.copied_batches.add(1);
                Lease::new(own, None)
            } else {
                job.lent += 1;
                job.lent_bytes += buffer.len() as u64;
                Lease::new(buffer, Some(self.returner()))
            };
            job.form();
            let samples = label.positions.len() as u64;
            self.counters.batches.add(1);
            self.counters.deliveries.add(samples);
            self.tell_stream(state, |stream, bit, rank| stream.took(bit, rank, samples));
            self.shared().wake(state);
            return Ok(Next::Batch(Box::new(Batch {
                lease: Arc::new(lease),
                columns: label.plan.columns,
                positions: label.positions,
                samples: label.names.iter().map(|name| name.sample).collect(),
                valid: label.valid,
                names: label.names,
                skipped: label.skipped,
                others: label.others,
            })));
        }
        if run.is_failed() {
            let error = run.fault.take();
            run.fault = Some(Error::Closed);
            return Err(error.unwrap_or(Error::Closed));
        }
        Ok(match run {
            run if run.is_over() => Next::End,
            run if run.is_hungry() => Next::Hungry,
            _ => Next::Waiting,
        })
    }

    /// Gives a slot back to this job, or to nobody if the job has left.
    fn returner(&self) -> Box<dyn FnOnce(Buffer) + Send + Sync> {
        let shared = Arc::downgrade(self.shared());
        let id = self.id;
        Box::new(move |buffer| {
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.lock();
            match state.jobs.get_mut(&id) {
                Some(job) => {
                    job.lent -= 1;
                    job.lent_bytes -= buffer.len() as u64;
                    if job.spec.lend {
                        // A batch may have waited for this one to come back.
                        job.arrived.ring();
                    }
                    job.give_slot(buffer);
                    job.form();
                    if let Some((stream, _)) = job.seat {
                        state.pump(stream);
                    }
                    shared.wake(&state);
                }
                None => {
                    shared.gauge.sub(buffer.len() as u64);
                    state.reserved -= buffer.len() as u64;
                    state.share_out(&shared.config);
                }
            }
        })
    }

    /// Samples that failed so far.
    pub fn quarantine(&self) -> Result<Vec<Failure>> {
        let own = self.look(|job| job.quarantine.clone())?;
        let state = self.shared().lock();
        let seat = state.jobs.get(&self.id).and_then(|job| job.seat);
        let stream = seat.and_then(|(id, _)| state.streams.get(&id));
        let mut all = own;
        for failure in stream.into_iter().flat_map(|stream| stream.quarantine()) {
            all.entry(failure.sample).or_insert(failure);
        }
        Ok(all.into_values().collect())
    }

    /// Marks samples as failed, as a loaded state says. A shared stream tries them all the same: what one job
    /// says of a sample is no reason to keep it from others.
    pub fn set_quarantine(&mut self, failures: Vec<Failure>) -> Result<()> {
        self.with(|job| job.quarantine = failures.into_iter().map(|f| (f.sample, f)).collect())
    }
}

/// The epoch after must have a number too.
fn check_epoch(epoch: u64) -> Result<()> {
    if epoch < 1 << 62 { Ok(()) } else { Err(Error::Invalid(format!("there is no epoch {epoch}"))) }
}

impl Drop for Job {
    fn drop(&mut self) {
        // In a forked child nothing may be touched: other threads may have held the lock.
        if !self.is_mine() {
            return;
        }
        let mut state = self.shared().lock();
        let gone = state.remove(self.id, &self.shared().config);
        self.shared().wake(&state);
        drop(state);
        drop(gone);
    }
}
