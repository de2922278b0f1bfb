//! A batch in the hands of a job: a private view of a slot, or a copy of it.

use std::sync::Arc;

use forebay_arena::{Buffer, View};

use rustix::param::page_size;

use super::link::Link;

/// Slots that a job may hold; a third batch is copied into its own memory.
const HOLD: u64 = 2;
/// A job that writes into more than a tenth of a batch is better served with copies.
const MUCH: usize = 10;

/// Memory lent to the job until the last handle is gone. The job may write: nobody else sees it.
#[derive(Debug)]
pub struct Lease {
    memory: Option<Memory>,
    link: Arc<Link>,
}

#[derive(Debug)]
enum Memory {
    Lent { view: Arc<View>, slot: u64 },
    Own(Buffer),
}

impl Lease {
    pub(super) fn new(link: Arc<Link>, view: Arc<View>, slot: u64) -> Self {
        let memory = if !link.is_written() && link.hold(HOLD) {
            Memory::Lent { view, slot }
        } else {
            let own = link.copy(view.bytes());
            link.release(slot);
            Memory::Own(own)
        };
        Lease { memory: Some(memory), link }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.memory {
            Some(Memory::Lent { view, .. }) => view.as_ptr(),
            Some(Memory::Own(buffer)) => buffer.as_ptr(),
            None => std::ptr::null_mut(),
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        match &self.memory {
            Some(Memory::Lent { view, .. }) => view.len(),
            Some(Memory::Own(buffer)) => buffer.len(),
            None => 0,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child gives nothing back: the slot is the parent's.
        if !self.link.is_mine() {
            return;
        }
        match self.memory.take() {
            Some(Memory::Lent { view, slot }) => {
                self.link.let_go();
                // What was written must be gone before the slot is filled again. Pages that are locked in
                // memory cannot be dropped: such a slot stays away until the job ends, and the job, which
                // holds two at most, gets copies of the others.
                let Ok(dirty) = view.clean() else { return self.link.write_only_copies() };
                if dirty * page_size() * MUCH > view.len() {
                    self.link.count_written();
                }
                self.link.release(slot);
            }
            Some(Memory::Own(buffer)) => self.link.keep(buffer),
            None => {}
        }
    }
}
