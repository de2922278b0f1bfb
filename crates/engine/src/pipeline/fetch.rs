//! Files that the system has not in memory are read by threads of their own: no core waits for a device.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::job::Prepare;
use super::{Client, Shared, State};
use crate::Fault;
use crate::counters::{CoreTime, Counters, Gauge};

/// Reads that are asked for and not yet taken by who decodes, at most, and threads that read.
const MOST: usize = 64;

/// Reads asked for, under way and done.
#[derive(Debug)]
pub(super) struct Fetch {
    waiting: VecDeque<(Client, Prepare)>,
    done: VecDeque<(Client, Prepare)>,
    out: usize,
    bytes: u64,
    room: u64,
    threads: usize,
    idle: usize,
    /// No thread could be started.
    alone: bool,
    turn: bool,
    gauge: Arc<Gauge>,
    device: Device,
}

/// What the device was seen to do.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Device {
    /// Reads that have ended, and their bytes.
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// Time in which at least one read was under way, but for the present one.
    busy: Duration,
    since: Option<Instant>,
    under_way: usize,
}

impl Device {
    /// Time in which at least one read was under way.
    pub(super) fn busy(&self) -> Duration {
        self.busy + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn begin(&mut self) {
        self.under_way += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    fn end(&mut self, bytes: u64) {
        self.under_way -= 1;
        (self.reads, self.bytes) = (self.reads + 1, self.bytes + bytes);
        if self.under_way == 0
            && let Some(since) = self.since.take()
        {
            self.busy += since.elapsed();
        }
    }
}

impl Fetch {
    /// Reads ahead into at most `room` bytes.
    pub(super) fn new(room: u64, gauge: Arc<Gauge>) -> Self {
        Fetch {
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            out: 0,
            bytes: 0,
            room,
            threads: 0,
            idle: 0,
            alone: false,
            turn: false,
            gauge,
            device: Device::default(),
        }
    }

    /// What the device was seen to do.
    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Takes a read on; gives it back if there is no room.
    fn ask(&mut self, client: Client, task: Prepare) -> Option<Prepare> {
        let bytes = task.spec.dataset.size(task.name.sample);
        if self.alone || self.out >= MOST || self.out > 0 && self.bytes + bytes > self.room {
            return Some(task);
        }
        self.count(bytes);
        self.waiting.push_back((client, task));
        None
    }

    fn count(&mut self, bytes: u64) {
        (self.out, self.bytes) = (self.out + 1, self.bytes + bytes);
        self.gauge.add(bytes);
    }

    fn uncount(&mut self, task: Prepare) -> Prepare {
        let bytes = task.spec.dataset.size(task.name.sample);
        (self.out, self.bytes) = (self.out - 1, self.bytes - bytes);
        self.gauge.sub(bytes);
        task
    }

    /// Whether the device could have more to do, every second time.
    pub(super) fn is_thirsty(&mut self) -> bool {
        self.turn = !self.turn;
        let under_way = self.out - self.done.len();
        self.turn && under_way < MOST / 4 && self.out < MOST && self.bytes < self.room
    }

    /// What has been read.
    pub(super) fn take(&mut self) -> Option<(Client, Prepare)> {
        let (client, task) = self.done.pop_front()?;
        Some((client, self.uncount(task)))
    }
}

impl Shared {
    /// Lets another thread read the file of a task; gives the task back where that cannot be.
    pub(super) fn fetch(self: &Arc<Self>, client: Client, task: Prepare) -> Option<Prepare> {
        let mut state = self.lock();
        let fetch = &mut state.fetch;
        if let Some(task) = fetch.ask(client, task) {
            return Some(task);
        }
        if fetch.idle >= fetch.waiting.len() || fetch.threads >= MOST {
            drop(state);
            self.reads.notify_one();
            return None;
        }
        let number = fetch.threads;
        fetch.threads += 1;
        drop(state);
        if self.start_reader(number).is_ok() {
            return None;
        }
        // No thread is to be had. Those there are get to it; without any, workers read from now on.
        let mut state = self.lock();
        let fetch = &mut state.fetch;
        fetch.threads -= 1;
        if fetch.threads == 0 {
            fetch.alone = true;
            fetch.done.append(&mut fetch.waiting);
        }
        None
    }

    fn start_reader(self: &Arc<Self>, number: usize) -> std::io::Result<()> {
        let shared = self.clone();
        let name = format!("forebay-read-{number}");
        let thread = std::thread::Builder::new().name(name).stack_size(512 << 10);
        let thread = thread.spawn(move || shared.watch(|| shared.read_until_stopped()))?;
        self.threads.lock().unwrap_or_else(|e| e.into_inner()).push(thread);
        Ok(())
    }

    fn read_until_stopped(&self) -> Result<(), Fault> {
        let limit = self.config.thread_scratch() / 4;
        let mut state = self.lock();
        while !state.stopping {
            let Some((client, mut task)) = state.fetch.waiting.pop_front() else {
                state.fetch.idle += 1;
                state = self.reads.wait(state).unwrap_or_else(|e| e.into_inner());
                state.fetch.idle -= 1;
                continue;
            };
            drop(state);
            let mut bytes = Vec::new();
            let read = self.read(&task, limit, &mut bytes);
            task.fetched = Some(Box::new(read.map(|()| bytes)));
            state = self.end_read(client, task);
        }
        Ok(())
    }

    /// Reads the file of a task: from the local disk, else from its device, and then it is kept there.
    pub(super) fn read(&self, task: &Prepare, limit: u64, into: &mut Vec<u8>) -> Result<(), Fault> {
        let (dataset, sample) = (&task.spec.dataset, task.name.sample);
        if self.read_disk(task, limit, into) {
            // It may have changed since it was looked for in memory.
            return dataset.check(sample);
        }
        self.lock().fetch.device.begin();
        let start = Instant::now();
        let read = dataset.read(sample, limit, into);
        let bytes = if read.is_ok() { into.len() } else { 0 };
        self.lock().fetch.device.end(bytes as u64);
        count_read(&task.counters, bytes, start, read.as_ref().is_ok_and(|device| *device));
        read?;
        // Also where it has come into memory meanwhile: to look for it there made the system read it.
        if let Some(disk) = &self.disk {
            let (part, at) = dataset.place(sample);
            let put = disk.put(dataset.parts()[part].identity(), at, into);
            task.counters.disk_errors.add(u64::from(put.is_err()));
        }
        Ok(())
    }

    /// Reads the file of a task from the local disk; says whether it was there.
    fn read_disk(&self, task: &Prepare, limit: u64, into: &mut Vec<u8>) -> bool {
        let (dataset, sample, counters) = (&task.spec.dataset, task.name.sample, &task.counters);
        let (size, (part, at)) = (dataset.size(sample), dataset.place(sample));
        let Some(disk) = self.disk.as_ref().filter(|_| size <= limit) else { return false };
        let start = CoreTime::now();
        let held = match disk.get(dataset.parts()[part].identity(), at, size, into) {
            Ok(held) => held,
            Err(_) => {
                counters.disk_errors.add(1);
                false
            }
        };
        if held {
            counters.reads.add(1);
            counters.disk_hits.add(1);
            counters.read_bytes.add(size);
            // Not the time that it waited: plans take this for the work of a read.
            counters.read_ns.spend(start);
        }
        held
    }

    fn end_read(&self, client: Client, task: Prepare) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.fetch.done.push_back((client, task));
        if state.idle > 0 {
            self.work.notify_one();
        }
        state
    }
}

/// Counts a read of a file.
pub(crate) fn count_read(counters: &Counters, bytes: usize, start: Instant, device: bool) {
    counters.reads.add(1);
    counters.device_reads.add(u64::from(device));
    counters.read_bytes.add(bytes as u64);
    let nanoseconds = start.elapsed().as_nanos() as u64;
    counters.read_ns.add(nanoseconds);
    counters.device_ns.add(if device { nanoseconds } else { 0 });
}
