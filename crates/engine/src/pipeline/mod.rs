//! The main flow: jobs in, batches out.
//!
//! ```text
//!  job.start ─▶ order issues positions ─▶ worker: read, decode, augment ─▶ ready samples
//!  job.next ◀─ done batches ◀─ workers: finish rows into a slot ◀─ order forms a batch
//! ```
//!
//! One lock guards all bookkeeping. It is taken about twice per sample, for some hundred nanoseconds, while
//! a sample costs about a millisecond; pixels never move under it. Workers turn to the stream, or job without
//! one, that they served least; of a job they take rows of formed batches first, then its lowest position,
//! or what its stream prepares next. When every job has all the samples and batches in
//! hand that its share of the budget allows, workers rest.

mod bell;
mod fetch;
mod handle;
mod job;
mod replan;
mod run;
mod spec;
mod stream;

pub use forebay_policy::share::{Level, Order, Remainder};
pub use handle::{Job, Next};
pub use replan::{Decision, Planning, StreamSplit};
pub use run::{Failure, Feeding};
pub use spec::{MIN_SLOTS, OnError, Share, Sharing, Spec, remainder};

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use forebay_arena::Room;
use forebay_recipe::CopyName;

use crate::batch::{Finisher, Image, Value};
use crate::cache::{Cache, Disk, Look, NO_SHELF};
use crate::counters::{CoreTime, Counter, Gauge};
use crate::error::{Fault, Stage};
use crate::prepare::{self, Prepared, Preparer};
use crate::{Config, DiskFacts, Error, Result};
use bell::Bell;
use fetch::Fetch;
pub(crate) use fetch::count_read;
use job::{JobState, Outcome, Prepare, Task, To};
use replan::Planner;
use run::{Filling, Made, Own};
use stream::{Key, StreamState};

/// How many neighbours are tried for a sample that fails.
const NEIGHBOURS: u64 = 16;

/// Threads, a budget, and the jobs that draw from them.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    pid: u32,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    gauge: Arc<Gauge>,
    /// Time that threads had nothing to do, all of them together.
    idle_ns: Counter,
    /// Time that they worked, and that they had a core meanwhile.
    work_ns: Counter,
    core_ns: Counter,
    /// Files of slow devices, kept across restarts.
    disk: Option<Disk>,
    state: Mutex<State>,
    /// Workers without work wait here.
    work: Condvar,
    /// Threads that read files wait here.
    reads: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How many of them work; the others read.
    workers: AtomicUsize,
}

#[derive(Debug)]
struct State {
    jobs: BTreeMap<u64, JobState>,
    streams: BTreeMap<u64, StreamState>,
    cache: Cache<(Client, Prepare)>,
    /// Files that are read by threads of their own.
    fetch: Fetch,
    /// Work that waited for a sample that another thread made.
    resumed: VecDeque<(Client, Prepare)>,
    planner: Planner,
    next_job: u64,
    next_stream: u64,
    /// The job served last, so that each of a stream gets its turn.
    turn: u64,
    /// Nanoseconds that threads worked for each stream, and for each job without one.
    served: BTreeMap<Client, u64>,
    reserved: u64,
    idle: usize,
    stopping: bool,
    /// A thread met a bug: what it was doing is lost, so every job is told.
    broken: Option<String>,
}

/// Who the cores are shared between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    Stream(u64),
    Job(u64),
}

impl Engine {
    /// An engine without threads; they start with the first epoch. It takes the local disk that `config` names.
    pub fn open(config: Config) -> Result<Self> {
        let disk = config.disk.as_ref().map(Disk::open).transpose()?;
        Ok(Self::build(config, disk))
    }

    /// The same without a local disk.
    pub fn new(config: Config) -> Self {
        Self::build(Config { disk: None, ..config }, None)
    }

    fn build(config: Config, disk: Option<Disk>) -> Self {
        let gauge: Arc<Gauge> = Arc::default();
        let cache = Cache::new(config.cache, config.keep, gauge.clone());
        let fetch = Fetch::new(config.read_ahead(), gauge.clone());
        let shared = Shared {
            config,
            gauge,
            idle_ns: Counter::default(),
            work_ns: Counter::default(),
            core_ns: Counter::default(),
            disk,
            state: Mutex::new(State::new(cache, fetch)),
            work: Condvar::new(),
            reads: Condvar::new(),
            threads: Mutex::default(),
            workers: AtomicUsize::new(0),
        };
        Engine { shared: Arc::new(shared), pid: std::process::id() }
    }

    /// What it was started with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Bytes held now and at most.
    pub fn memory(&self) -> (u64, u64) {
        (self.shared.gauge.now(), self.shared.gauge.peak())
    }

    /// Nanoseconds that its threads had nothing to do, added up.
    pub fn idle_ns(&self) -> u64 {
        self.shared.idle_ns.get()
    }

    /// Its shared streams: their folders, and how many jobs, copies and places for copies each has.
    pub fn streams(&self) -> Vec<(PathBuf, [u64; 3])> {
        let state = self.shared.lock();
        state.streams.values().map(|stream| (stream.root().to_path_buf(), stream.facts())).collect()
    }

    /// Bytes of files and of pixels that it keeps.
    pub fn kept(&self) -> [u64; 2] {
        self.shared.lock().cache.facts()
    }

    /// What is planned with now, and what was decided about memory, and why.
    pub fn planning(&self) -> Planning {
        let state = self.shared.lock();
        let made_for = state.planner.made_for();
        let streams = made_for.iter().flat_map(|(_, loads)| loads);
        Planning {
            machine: made_for.map(|(machine, _)| *machine),
            streams: streams.map(|(client, load)| (state.root(*client), load.clone())).collect(),
            decisions: state.planner.decisions().cloned().collect(),
        }
    }

    /// What it keeps on the local disk.
    pub fn disk(&self) -> DiskFacts {
        self.shared.disk.as_ref().map(Disk::facts).unwrap_or_default()
    }

    /// Whether no job draws from it.
    pub fn is_idle(&self) -> bool {
        self.shared.lock().jobs.is_empty()
    }

    /// Adds a job, if the budget has room for it.
    pub fn join(self: &Arc<Self>, spec: Spec) -> Result<Job> {
        spec.check()?;
        let finisher = Finisher::new(&spec.recipe, spec.output)?;
        let bell = if spec.lend { Bell::pollable() } else { Ok(Bell::default()) };
        let bell = bell.map_err(|e| Error::Invalid(format!("no descriptor is left for the job: {e}")))?;
        let config = &self.shared.config;
        // Files are read, so not under the lock.
        let room = spec.lend.then(Room::now);
        // Summed over all files once, and then known.
        spec.dataset.parts().iter().for_each(|folder| _ = (folder.identity(), folder.bytes()));
        let enter = |disk: &Disk| {
            spec.dataset.parts().iter().map(|folder| disk.enter(folder.identity(), folder.len())).collect()
        };
        let present: Vec<_> = self.shared.disk.as_ref().map_or(Ok(Vec::new()), enter)?;
        let mut state = self.shared.lock();
        if let Some(bug) = &state.broken {
            return Err(Error::Panic(bug.clone()));
        }
        let left = (config.memory - config.scratch()).saturating_sub(state.reserved);
        let share = Share::plan(&spec, &finisher, left, config.memory, config.threads as u64)?;
        if let Some(room) = room {
            let least = Share { slots: share.slots.min(MIN_SLOTS), samples: 0, ..share };
            room.check(least.bytes()).map_err(|short| Error::Budget(short.to_string()))?;
        }
        state.reserved += share.bytes();
        let id = state.next_job;
        state.next_job += 1;
        let mut job = JobState::new(id, spec, finisher, share, bell, self.shared.gauge.clone());
        job.present = present;
        let (arrived, counters) = (job.arrived.clone(), job.counters.clone());
        let seated = state.seat(&mut job, config.threads as u64, &self.shared.gauge);
        let level = job.spec.level();
        job.ticket = state.cache.join(&job.spec.dataset, &job.spec.recipe, level, job.spec.samples()).into();
        if let Some((stream, _)) = job.seat
            && let Some(stream) = state.streams.get_mut(&stream)
        {
            stream.set_ticket(&job);
        }
        state.enter(job.client());
        state.jobs.insert(id, job);
        if let Err(error) = seated {
            state.remove(id, config);
            return Err(error);
        }
        state.planner.want(format!("job {id} joined"));
        state.share_out(config);
        Ok(Job::new(self.clone(), id, arrived, counters))
    }

    fn spawn(&self) -> Result<()> {
        let mut threads = self.shared.threads.lock().unwrap_or_else(|e| e.into_inner());
        while self.shared.workers.load(Ordering::Relaxed) < self.shared.config.threads {
            let number = self.shared.workers.load(Ordering::Relaxed);
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("forebay-{number}"))
                .spawn(move || shared.watch(|| shared.work_until_stopped()))
                .map_err(|e| Error::Invalid(format!("cannot start a thread: {e}")))?;
            threads.push(thread);
            self.shared.workers.store(number + 1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A forked child has neither the threads nor a lock that it may trust.
        if self.pid != std::process::id() {
            return;
        }
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        self.shared.reads.notify_all();
        // Workers may start further ones until they have ended.
        let take = || self.shared.threads.lock().unwrap_or_else(|e| e.into_inner()).pop();
        while let Some(thread) = take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug that was reported; the state is still the best there is.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn wake(&self, state: &State) {
        if state.idle > 0 {
            self.work.notify_all();
        }
    }

    /// Runs a thread's work, and tells every job if it ends in a bug.
    fn watch(&self, work: impl FnOnce() -> Result<(), Fault>) {
        let trouble = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => return,
            Ok(Err(fault)) => fault.to_string(),
            Err(panic) => message(&*panic),
        };
        let mut state = self.lock();
        state.broken = Some(trouble);
        state.jobs.values().for_each(|job| job.arrived.ring());
    }

    /// Gives a job a larger share when a batch is larger than those it was planned for.
    fn make_room(&self, id: u64, batch: u64) -> Result<()> {
        let mut state = self.lock();
        let reserved = state.reserved;
        let job = state.jobs.get_mut(&id).ok_or(Error::Closed)?;
        if batch <= job.planned {
            return Ok(());
        }
        let config = &self.config;
        let left = (config.memory - config.scratch()).saturating_sub(reserved - job.share.bytes());
        let spec = Spec { batch, ..(*job.spec).clone() };
        let share = Share::plan(&spec, &job.finisher, left, config.memory, config.threads as u64)?;
        let reserved = reserved - job.share.bytes() + share.bytes();
        job.grow(batch, share);
        state.reserved = reserved;
        state.share_out(config);
        Ok(())
    }

    fn work_until_stopped(self: &Arc<Self>) -> Result<(), Fault> {
        let mut preparer = Preparer::open(self.config.thread_scratch())?;
        let mut state = self.lock();
        while !state.stopping {
            let Some((client, task)) = state.task() else {
                state.idle += 1;
                let start = Instant::now();
                state = self.work.wait(state).unwrap_or_else(|e| e.into_inner());
                self.idle_ns.lap(start);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let (start, core) = (Instant::now(), CoreTime::now());
            let before = preparer.capacity() as u64;
            // Rows of decoded samples grow the scratch too.
            let count = |preparer: &Preparer| {
                let after = preparer.capacity() as u64;
                self.gauge.add(after.saturating_sub(before));
                self.gauge.sub(before.saturating_sub(after));
            };
            state = match task {
                Task::Fill(filling) => {
                    let state = self.fill(&filling, &mut preparer);
                    count(&preparer);
                    state
                }
                Task::Prepare(task) => {
                    let outcome = self.prepare(&mut preparer, client, task);
                    count(&preparer);
                    let mut state = self.lock();
                    if let Some(outcome) = outcome {
                        state.settle(outcome, &self.config);
                    }
                    state
                }
            };
            let worked = start.elapsed().as_nanos() as u64;
            self.work_ns.add(worked);
            self.core_ns.spend(core);
            if let Some(served) = state.served.get_mut(&client) {
                *served += worked;
            }
            // What was settled may be work for others.
            self.wake(&state);
            state = self.replan(state);
        }
        self.gauge.sub(preparer.capacity() as u64);
        Ok(())
    }

    /// Makes a sample, unless its file is to be read first.
    fn prepare(self: &Arc<Self>, preparer: &mut Preparer, client: Client, task: Prepare) -> Option<Outcome> {
        let unread = task.kept.is_none() && task.fetched.is_none() && !task.substitute;
        if unread && !preparer.read_now(&task.spec.dataset, task.name.sample, &task.counters) {
            let task = self.fetch(client, task)?;
            // There is no room to read ahead.
            if self.disk.is_some() {
                preparer.read_by(task.name.sample, |limit, into| self.read(&task, limit, into).is_ok());
            }
            return Some(prepare(preparer, task));
        }
        Some(prepare(preparer, task))
    }

    /// Finishes rows until none is left, then books the batch if this was the last.
    fn fill(&self, filling: &Arc<Filling>, preparer: &mut Preparer) -> MutexGuard<'_, State> {
        let start = CoreTime::now();
        let cut = match filling.cut() {
            Ok(cut) => cut,
            Err(why) => return self.refuse(filling, why),
        };
        let (mut whole, mut copied) = (None, 0);
        let made = filling.made.read().unwrap_or_else(|e| e.into_inner());
        while let Some(mut piece) = cut.claim() {
            // Pieces come column by column.
            let (field, sample) = (piece.index() / made.len(), piece.index() % made.len());
            let Made { values, drawn, .. } = &*made[sample];
            match (&values[field], &filling.own) {
                (Value::Kept(image), Some(Own { spec, counters, .. })) => {
                    let (name, before) = (&filling.label.names[sample], CoreTime::now());
                    let copy = preparer.copy(&spec.recipe, name, image.decoded(), counters);
                    copied += CoreTime::now().since(before);
                    match copy {
                        Ok((drawn, copy)) => filling.finisher.write(copy, &drawn, &mut piece),
                        Err(fault) => _ = filling.fault.set((name.sample, fault)),
                    }
                }
                // It did not fit a thread's memory as a whole.
                (Value::Image(pixels), Some(_)) => {
                    let (need, allowed) = (pixels.capacity() as u64, self.config.thread_scratch() / 2);
                    let sample = filling.label.names[sample].sample;
                    _ = filling.fault.set((sample, Fault::TooLarge { need: need.max(allowed + 1), allowed }));
                }
                (value, _) => filling.finisher.write(value, drawn, &mut piece),
            }
            drop(piece);
            whole = whole.or_else(|| cut.take());
        }
        if made.is_empty() {
            // A batch without samples has no last piece.
            whole = cut.take();
        }
        drop(made);
        let mut free = Vec::new();
        if whole.is_some() {
            free = filling.take_made();
        }
        let mut state = self.lock();
        if let Some(job) = state.jobs.get_mut(&filling.job) {
            job.counters.finish_ns.add(CoreTime::now().since(start).saturating_sub(copied));
            if filling.stream.is_none() {
                free.drain(..).for_each(|made| job.give_made(made));
            }
            if let Some(buffer) = whole {
                job.filled(filling, buffer);
            }
            job.form();
        } else if let Some(buffer) = whole {
            self.gauge.sub(buffer.len() as u64);
        }
        if let Some(id) = filling.stream {
            if let Some(stream) = state.streams.get_mut(&id) {
                free.into_iter().for_each(|made| stream.give(made));
            }
            state.pump(id);
        }
        state
    }
}

impl Shared {
    /// Takes back what a batch was to be made of, when there is no memory for it.
    fn refuse(&self, filling: &Arc<Filling>, why: &str) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let mut free = filling.take_made();
        // Another thread may have been here before; a batch without samples is told by its place.
        let first = state.jobs.get(&filling.job).is_some_and(|job| job.is_filling(filling));
        if free.is_empty() && (!filling.label.positions.is_empty() || !first) {
            return state;
        }
        match state.jobs.get_mut(&filling.job) {
            Some(job) => {
                let less;
                (free, less) = job.refused(filling, free, why);
                if filling.stream.is_none() {
                    free.drain(..).for_each(|made| job.give_made(made));
                }
                state.reserved -= less;
            }
            None => self.gauge.sub(filling.bytes),
        }
        if let Some(id) = filling.stream {
            if let Some(stream) = state.streams.get_mut(&id) {
                free.into_iter().for_each(|made| stream.give(made));
            }
            state.pump(id);
        }
        state
    }
}

impl State {
    fn new(cache: Cache<(Client, Prepare)>, fetch: Fetch) -> Self {
        State {
            jobs: BTreeMap::new(),
            streams: BTreeMap::new(),
            cache,
            fetch,
            resumed: VecDeque::new(),
            planner: Planner::new(),
            next_job: 0,
            next_stream: 0,
            turn: 0,
            served: BTreeMap::new(),
            reserved: 0,
            idle: 0,
            stopping: false,
            broken: None,
        }
    }

    /// The next piece of work that need not wait for what another thread makes.
    fn task(&mut self) -> Option<(Client, Task)> {
        // Now and then something new, though files are there: it may be one to ask the device for, which else
        // would have nothing to do until all are decoded.
        if !self.fetch.is_thirsty()
            && let Some((client, task)) = self.fetch.take()
        {
            return Some((client, Task::Prepare(task)));
        }
        let found = self.find_task();
        found.or_else(|| self.fetch.take().map(|(client, task)| (client, Task::Prepare(task))))
    }

    fn find_task(&mut self) -> Option<(Client, Task)> {
        loop {
            let (client, mut task) = match self.resumed.pop_front() {
                Some((client, task)) => (client, task),
                None => match self.choose()? {
                    (client, Task::Prepare(task)) => (client, task),
                    other => return Some(other),
                },
            };
            let place = task.spec.dataset.place(task.name.sample);
            if task.substitute {
                return Some((client, Task::Prepare(task)));
            }
            match self.cache.look(&task.ticket, place) {
                Look::Make(kept, keep) => {
                    task.kept = kept;
                    task.keep.extend(keep);
                }
                Look::Busy(shelf) => {
                    self.cache.park(shelf, place.1, (client, task));
                    continue;
                }
            }
            return Some((client, Task::Prepare(task)));
        }
    }

    /// The next piece of work, for the stream that the cores have served least, each of its jobs in turn.
    fn choose(&mut self) -> Option<(Client, Task)> {
        let mut jobs: Vec<(u64, bool, u64)> = Vec::with_capacity(self.jobs.len());
        for (&id, job) in &self.jobs {
            let served = self.served.get(&job.client()).copied().unwrap_or_default();
            jobs.push((served, id <= self.turn, id));
        }
        jobs.sort_unstable();
        let mut tried = None;
        for at in 0..jobs.len() {
            let (served, _, id) = jobs[at];
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let client = job.client();
            let task = job.task().or_else(|| {
                let (stream, _) = job.seat?;
                // Jobs of one stream stand beside each other, and none finds what another did not.
                if tried.replace(stream) == Some(stream) {
                    return None;
                }
                self.streams.get_mut(&stream)?.task(stream).map(Task::Prepare)
            });
            if let Some(task) = task {
                self.turn = id;
                // Who had nothing to do gains no claim to the cores by it.
                for (_, _, idle) in &jobs[..at] {
                    let Some(idle) = self.jobs.get(idle).map(JobState::client) else { continue };
                    if let Some(its) = self.served.get_mut(&idle) {
                        *its = (*its).max(served);
                    }
                }
                return Some((client, task));
            }
        }
        None
    }

    /// Who is new counts from where the least served of the others stands.
    fn enter(&mut self, client: Client) {
        let least = self.served.values().copied().min().unwrap_or_default();
        self.served.entry(client).or_insert(least);
    }

    /// Gives a sharing job its place in the stream of its dataset and recipe, which may be a new one.
    fn seat(&mut self, job: &mut JobState, threads: u64, gauge: &Arc<Gauge>) -> Result<()> {
        let Some(sharing) = job.spec.sharing() else { return Ok(()) };
        let key = Key::new(&job.spec);
        let known = self.streams.iter_mut().find(|(_, stream)| stream.key == key);
        if let Some((&id, stream)) = known {
            job.seat = Some((id, stream.join(job, sharing)?));
            return Ok(());
        }
        let mut stream = StreamState::open(key, job, threads, gauge.clone())?;
        self.next_stream += 1;
        job.seat = Some((self.next_stream, stream.join(job, sharing)?));
        self.streams.insert(self.next_stream, stream);
        Ok(())
    }

    /// Takes a job out, with what it reserved.
    fn remove(&mut self, id: u64, config: &Config) -> Option<JobState> {
        let job = self.jobs.remove(&id)?;
        // What the job still holds counts until it comes back.
        self.reserved -= job.share.bytes().saturating_sub(job.lent_bytes);
        if job.seat.is_none() {
            self.served.remove(&job.client());
        }
        self.cache.leave(&job.ticket, &job.spec.dataset, job.spec.samples());
        if let Some((id, bit)) = job.seat {
            let waiting = job.take_waiting();
            let empty = self.streams.get_mut(&id).is_some_and(|stream| {
                waiting.into_iter().for_each(|made| stream.give(made));
                stream.leave(bit, job.spec.rank)
            });
            if empty {
                self.streams.remove(&id);
                self.served.remove(&Client::Stream(id));
            } else {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.tell_left(bit, job.spec.rank, &mut self.jobs);
                }
                self.pump(id);
            }
        }
        self.planner.want(format!("job {id} left"));
        if self.jobs.is_empty() {
            self.planner.forget();
        }
        self.share_out(config);
        Some(job)
    }

    /// Bytes for the cache and for pools.
    fn room(&self, config: &Config) -> u64 {
        (config.memory - config.scratch()).saturating_sub(self.reserved)
    }

    /// The cache and the pools hold what jobs have left of the budget, each as much as it can use.
    fn share_out(&mut self, config: &Config) {
        let room = self.room(config);
        let appetite = self.streams.values().map(StreamState::appetite).fold(0, u64::saturating_add);
        if self.planner.is_planned() && !self.jobs.is_empty() {
            return self.keep_plan(room);
        }
        let mut left = self.cache.split(room, appetite);
        let mut streams: Vec<&mut StreamState> = self.streams.values_mut().collect();
        streams.sort_by_key(|stream| stream.appetite());
        let count = streams.len() as u64;
        for (at, stream) in streams.into_iter().enumerate() {
            let part = (left / (count - at as u64)).min(stream.appetite());
            stream.resize(part);
            left -= part;
        }
    }

    fn settle(&mut self, mut outcome: Outcome, config: &Config) {
        let kept = std::mem::take(&mut outcome.kept);
        self.resumed.extend(self.cache.settle(outcome.at, kept));
        if self.cache.take_stale() {
            self.planner.want("sizes became known".into());
            self.share_out(config);
        }
        match outcome.to {
            To::Run { job, run, position } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.settle(run, position, outcome);
                }
            }
            To::Stream { stream: id, slot } => {
                let Some(stream) = self.streams.get_mut(&id) else { return };
                stream.settle(slot, outcome);
                self.pump(id);
            }
        }
    }

    /// Lets the jobs of a stream go on as far as they can.
    fn pump(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.pump(id, &mut self.jobs);
        }
    }
}

/// Makes a sample, or with [`OnError::Substitute`] one of its neighbours.
fn prepare(preparer: &mut Preparer, task: Prepare) -> Outcome {
    let Prepare {
        to, name, valid, substitute, room, mut pixels, spec, counters, kept, keep, fetched, ..
    } = task;
    let mut failures = Vec::new();
    let mut made = None;
    let tries = if spec.on_error == OnError::Substitute { NEIGHBOURS } else { 0 };
    let (file, unreadable) = match fetched.map(|read| *read) {
        Some(Ok(file)) => (Some(file), None),
        Some(Err(fault)) => (None, Some(fault)),
        None => (None, None),
    };
    let first = u64::from(substitute || unreadable.is_some());
    failures.extend(unreadable.map(|fault| (name.sample, Stage::Read, fault)));
    for offset in first..=tries {
        let own = offset == 0;
        let sample = spec.picks.neighbour(name.sample, offset, spec.dataset.len());
        let name = CopyName { sample, ..name };
        let order = prepare::Order {
            dataset: &spec.dataset,
            recipe: &spec.recipe,
            name: &name,
            room,
            kept: kept.as_ref().filter(|_| own),
            keep: if own { &keep } else { &[] },
            file: file.as_deref().filter(|_| own),
            counters: &counters,
        };
        let attempt = catch_unwind(AssertUnwindSafe(|| preparer.prepare(&order, &mut pixels)));
        match attempt {
            Ok(Ok(prepared)) => {
                made = Some((name, valid && own, prepared));
                break;
            }
            Ok(Err((stage, fault))) => failures.push((name.sample, stage, fault)),
            Err(panic) => failures.push((name.sample, Stage::Augment, Fault::Corrupt(message(&*panic)))),
        }
    }
    let (_, at) = spec.dataset.place(name.sample);
    let mut kept = Vec::new();
    let made = match made {
        Some((name, valid, Prepared { drawn, image, kept: forms })) => {
            kept = forms;
            let target = Value::Class(i64::from(spec.dataset.target(name.sample)));
            let (image, spare) = match image {
                Some(image) => (Value::Kept(Image::new(image)), Some(pixels)),
                None => (Value::Image(pixels), None),
            };
            Ok(Arc::new(Made { name, valid, drawn, values: vec![image, target], spare }))
        }
        None => Err(pixels),
    };
    // Who waits is told also where nothing came of it.
    for keep in keep {
        let shelf = keep.shelf();
        if shelf != NO_SHELF && kept.iter().all(|(other, ..)| *other != shelf) {
            kept.push((shelf, None, None));
        }
    }
    Outcome { to, failures, made, at, kept }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
    format!("a bug in Forebay: {text}")
}
