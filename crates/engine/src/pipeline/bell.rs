//! Tells a job that something came: a condition for the thread that waits, a descriptor for one that polls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, MutexGuard};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug, Default)]
pub(super) struct Bell {
    waiting: Condvar,
    event: Option<OwnedFd>,
}

impl Bell {
    /// With a descriptor that becomes readable when the bell rings.
    pub(super) fn pollable() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { event: Some(event), ..Bell::default() })
    }

    pub(super) fn ring(&self) {
        self.waiting.notify_all();
        if let Some(event) = &self.event {
            // It fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor silent again.
    pub(super) fn hush(&self) {
        if let Some(event) = &self.event {
            // It fails when nothing rang.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, patience: Duration) -> MutexGuard<'a, T> {
        self.waiting.wait_timeout(guard, patience).map_or_else(|e| e.into_inner().0, |(guard, _)| guard)
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }
}
