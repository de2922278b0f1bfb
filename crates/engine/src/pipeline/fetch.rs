//! Files that the system has not in memory are read by threads of their own: no core waits for a device.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::job::Prepare;
use super::{Client, Shared, State};
use crate::counters::{Counters, Gauge};

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
        if self.out >= MOST || self.out > 0 && self.bytes + bytes > self.room {
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
        // No thread is to be had. Those there are get to it; without any it is read here.
        let fetch = &mut self.lock().fetch;
        fetch.threads -= 1;
        let (_, task) = fetch.waiting.pop_back().filter(|_| fetch.threads == 0)?;
        Some(fetch.uncount(task))
    }

    fn start_reader(self: &Arc<Self>, number: usize) -> std::io::Result<()> {
        let shared = self.clone();
        let name = format!("forebay-read-{number}");
        let thread = std::thread::Builder::new().name(name).stack_size(128 << 10);
        let thread = thread.spawn(move || shared.watch(|| shared.read_until_stopped()))?;
        self.threads.lock().unwrap_or_else(|e| e.into_inner()).push(thread);
        Ok(())
    }

    fn read_until_stopped(&self) -> Result<(), crate::Fault> {
        let limit = self.config.thread_scratch() / 4;
        let mut state = self.lock();
        while !state.stopping {
            let Some((client, mut task)) = state.fetch.waiting.pop_front() else {
                state.fetch.idle += 1;
                state = self.reads.wait(state).unwrap_or_else(|e| e.into_inner());
                state.fetch.idle -= 1;
                continue;
            };
            state.fetch.device.begin();
            drop(state);
            let start = Instant::now();
            let mut bytes = Vec::new();
            let read = task.spec.dataset.read(task.name.sample, limit, &mut bytes);
            count_read(&task.counters, bytes.len(), start, read.as_ref().is_ok_and(|device| *device));
            task.fetched = Some(Box::new(read.map(|_| bytes)));
            state = self.end_read(client, task);
        }
        Ok(())
    }

    fn end_read(&self, client: Client, task: Prepare) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let bytes = task.fetched.as_ref().and_then(|read| (**read).as_ref().ok()).map_or(0, Vec::len);
        state.fetch.device.end(bytes as u64);
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
