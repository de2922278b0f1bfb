//! The socket of a client, as its leases see it: they are dropped on any thread, without the interpreter's
//! lock, at its exit and in forked children.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use forebay_arena::Buffer;

use super::DEADLINE;
use crate::frame::{Sender, Trouble};
use crate::message::{Ask, Release, Request};

/// Memory for copies that is kept for the next.
const SPARE: usize = 3;
/// After so many batches that it wrote into a job gets copies.
const WRITTEN: u64 = 2;

#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    out: Mutex<Sender>,
    /// Slots to give back with the next chance.
    free: Mutex<Vec<u64>>,
    /// Slots in the hands of the job.
    held: AtomicU64,
    /// Batches that the job wrote into, much.
    written: AtomicU64,
    copied: AtomicU64,
    spare: Mutex<Vec<Buffer>>,
    pid: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Link {
            socket,
            out: Mutex::default(),
            free: Mutex::default(),
            held: AtomicU64::new(0),
            written: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            spare: Mutex::default(),
            pid: std::process::id(),
        }
    }

    pub(super) fn is_mine(&self) -> bool {
        self.pid == std::process::id()
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn send(&self, request: &Request) -> Result<(), Trouble> {
        let mut out = lock(&self.out);
        self.flush(&mut out)?;
        out.send(self.socket.as_fd(), request, None, Instant::now() + DEADLINE, None)?;
        drop(out);
        // What was given back meanwhile found the lock taken.
        self.try_flush();
        Ok(())
    }

    /// Gives a slot back, at once if the socket is free, else with the next message.
    pub(super) fn release(&self, slot: u64) {
        lock(&self.free).push(slot);
        self.try_flush();
    }

    fn try_flush(&self) {
        match self.out.try_lock() {
            // A lost connection has given all slots back.
            Ok(mut out) => drop(self.flush(&mut out)),
            Err(TryLockError::Poisoned(poisoned)) => drop(self.flush(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn flush(&self, out: &mut Sender) -> Result<(), Trouble> {
        let slots = std::mem::take(&mut *lock(&self.free));
        if slots.is_empty() {
            return Ok(());
        }
        let request = Request { id: 0, ask: Some(Ask::Release(Release { slots })) };
        out.send(self.socket.as_fd(), &request, None, Instant::now() + DEADLINE, None)
    }

    /// Takes one of the slots that the job may hold, if there is one left.
    pub(super) fn hold(&self, most: u64) -> bool {
        let take = |held| (held < most).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(super) fn let_go(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn write_only_copies(&self) {
        self.written.fetch_add(WRITTEN, Ordering::Relaxed);
    }

    pub(super) fn count_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the job writes so much that copies are cheaper than dropping the pages it wrote.
    pub(super) fn is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed) >= WRITTEN
    }

    pub(super) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Memory of the job's own with these bytes; used again, because fresh pages cost more than the copy.
    pub(super) fn copy(&self, bytes: &[u8]) -> Buffer {
        self.copied.fetch_add(1, Ordering::Relaxed);
        let mut spare = lock(&self.spare);
        let at = spare.iter().position(|buffer| buffer.len() == bytes.len());
        let found = at.map(|at| spare.swap_remove(at));
        drop(spare);
        let mut buffer = found.unwrap_or_else(|| Buffer::new(bytes.len()));
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub(super) fn keep(&self, buffer: Buffer) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }
}
