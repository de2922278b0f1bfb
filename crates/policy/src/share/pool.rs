//! The copies that are ready or on their way, and who may draw them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::bits::Bits;
use crate::permute::mix;

/// No slot, no job.
pub(super) const NONE: u32 = u32::MAX;
/// The maker of a copy that nobody waits for any more.
pub(super) const NOBODY: u32 = u32::MAX - 1;

/// Who may draw a copy, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Every job that takes any copy.
    Shared,
    /// One job; in strict order, with this seed and epoch.
    Own { job: u32, name: Option<(u64, u64)> },
    /// Jobs in strict order with this seed and epoch.
    Named { seed: u64, epoch: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Flight,
    Ready,
}

/// One copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) sample: u32,
    /// Another copy of the same sample.
    pub(super) next: u32,
    pub(super) state: State,
    pub(super) owner: Owner,
    pub(super) generation: u64,
    /// Jobs that count on this copy for the epoch they prepare; at most one copy of a sample for a job.
    pub(super) cover: u64,
    /// Jobs that count on it for the epoch they draw, the next being opened already.
    pub(super) tail: u64,
    /// The job out of whose reserve it is made, if the pool had no room.
    pub(super) direct: u32,
    /// The how manieth that repeats a sample to fill up a step, if it does; else 0.
    pub(super) pad: u32,
    /// There was another copy of the sample beside it.
    pub(super) twin: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(u32::from(byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = mix(self.0 ^ u64::from(value));
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    pub(super) slots: Vec<Slot>,
    /// Jobs that were given the copy, which an epoch's end does not clear. Apart from the slots because an
    /// epoch's turn reads all of it.
    pub(super) used: Vec<u64>,
    free: Vec<u32>,
    heads: HashMap<u32, u32, BuildHasherDefault<Mixed>>,
    /// Copies that are ready, and those under way.
    pub(super) ready: Bits,
    pub(super) flying: Bits,
    /// Copies that count against the capacity.
    pub(super) resident: u32,
    pub(super) capacity: u32,
}

impl Pool {
    pub(super) fn new(capacity: u32) -> Self {
        Pool { capacity, ..Pool::default() }
    }

    pub(super) fn insert(&mut self, slot: Slot) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(slot);
            self.used.push(0);
            self.ready.grow(self.slots.len());
            self.flying.grow(self.slots.len());
            self.slots.len() as u32 - 1
        });
        let next = self.heads.insert(slot.sample, at).unwrap_or(NONE);
        self.slots[at as usize] = Slot { next, twin: next != NONE, ..slot };
        if next != NONE {
            self.slots[next as usize].twin = true;
        }
        self.flying.insert(at);
        self.used[at as usize] = 0;
        self.resident += u32::from(slot.direct == NONE);
        at
    }

    /// A copy is finished.
    pub(super) fn land(&mut self, at: u32) {
        debug_assert_eq!(self.slots[at as usize].state, State::Flight, "only what is under way gets ready");
        self.slots[at as usize].state = State::Ready;
        self.flying.remove(at);
        self.ready.insert(at);
    }

    /// Takes a copy out of the chain of its sample; whether it was the last of it.
    pub(super) fn remove(&mut self, at: u32) -> bool {
        let Slot { sample, next, state, direct, .. } = self.slots[at as usize];
        let mut last = false;
        let head = self.heads[&sample];
        if head == at {
            last = next == NONE;
            if last {
                self.heads.remove(&sample);
            } else {
                self.heads.insert(sample, next);
            }
        } else {
            let mut before = head;
            while self.slots[before as usize].next != at {
                before = self.slots[before as usize].next;
            }
            self.slots[before as usize].next = next;
        }
        match state {
            State::Ready => self.ready.remove(at),
            _ => self.flying.remove(at),
        }
        self.resident -= u32::from(direct == NONE);
        self.slots[at as usize].state = State::Free;
        self.free.push(at);
        last
    }

    /// The copies of a sample.
    pub(super) fn copies(&self, sample: u32) -> impl Iterator<Item = u32> + '_ {
        let head = self.heads.get(&sample).copied().unwrap_or(NONE);
        std::iter::successors((head != NONE).then_some(head), |&at| {
            let next = self.slots[at as usize].next;
            (next != NONE).then_some(next)
        })
    }

    /// Jobs that count on some copy of a sample.
    pub(super) fn covered(&self, sample: u32) -> u64 {
        self.copies(sample).fold(0, |mask, at| mask | self.slots[at as usize].cover)
    }
}
