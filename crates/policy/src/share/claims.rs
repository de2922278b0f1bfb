//! Claims: which jobs count on which copies, and what becomes of copies that nobody counts on.
//!
//! A need is open or *covered* by exactly one copy. A copy without a claim goes; when a copy goes that has
//! claims, the needs are open again.

use super::job::Job;
use super::needs::ones;
use super::pool::{NONE, Owner, State};
use super::{Effect, Stream};

impl Stream {
    /// Counts on the copies that are there for the epoch that a job prepares. With `out` it needs all its
    /// samples but those, and no word has to be read for it.
    pub(super) fn cover_pool(&mut self, job: u32, out: Option<&Vec<u32>>) {
        let mask = 1u64 << job;
        let subset = self.job(job).join.subset.clone();
        for slot in 0..self.pool.slots.len() as u32 {
            if self.pool.used[slot as usize] & mask != 0 {
                continue;
            }
            let sample = self.pool.slots[slot as usize].sample;
            let needs = match out {
                None => self.needs.has(sample, job),
                Some(out) => {
                    subset.as_ref().is_none_or(|subset| subset.contains(sample))
                        && out.binary_search(&sample).is_err()
                }
            };
            if needs {
                self.try_cover(slot, job);
            }
        }
    }

    /// Lets a job count on a copy of a sample that it needs, if it may draw it.
    fn try_cover(&mut self, slot: u32, job: u32) {
        let copy = &self.pool.slots[slot as usize];
        let mask = 1u64 << job;
        let may = copy.state != State::Free
            && copy.pad == 0
            && (copy.direct == NONE || copy.direct == job)
            && self.pool.used[slot as usize] & mask == 0
            && (copy.cover | copy.tail) & mask == 0
            && self.members(copy.owner) & mask != 0
            && (!copy.twin || self.pool.covered(copy.sample) & mask == 0);
        if may {
            self.cover(slot, mask);
        }
    }

    /// The jobs of `mask` count on a copy from now on.
    pub(super) fn cover(&mut self, slot: u32, mask: u64) {
        let copy = &mut self.pool.slots[slot as usize];
        copy.cover |= mask;
        let (sample, ready) = (copy.sample, copy.state == State::Ready);
        let bound = self.pool.slots.len();
        for job in ones(mask) {
            self.needs.cover(sample, job);
            let state = self.jobs[job as usize].as_mut().expect("a job that needs a sample");
            if ready {
                state.ready.grow(bound);
                state.ready.insert(slot);
            } else {
                state.flight += 1;
            }
        }
    }

    /// Jobs that may draw copies of this owner now.
    pub(super) fn members(&self, owner: Owner) -> u64 {
        match owner {
            Owner::Shared => self.shared,
            Owner::Own { job, name } => {
                let fits = |state: &Job| match name {
                    None => !state.is_strict(),
                    Some(name) => state.is_strict() && name == (state.join.seed, state.ahead().epoch),
                };
                let state = self.jobs[job as usize].as_ref().filter(|state| fits(state));
                self.begun & u64::from(state.is_some()) << job
            }
            Owner::Named { seed, epoch } => ones(self.strict)
                .filter(|&job| {
                    let state = self.job(job);
                    state.join.seed == seed && state.ahead().epoch == epoch
                })
                .fold(0, |mask, job| mask | 1 << job),
        }
    }

    /// A job counts on no copy any more; its open needs are void until its turn. Returns the copies that it
    /// counted on.
    pub(super) fn retract(&mut self, job: u32) -> Vec<u32> {
        let state = self.job_mut(job);
        let mut left: Vec<u32> = state.ready.iter().chain(state.tail.iter()).collect();
        state.ready.clear();
        state.tail.clear();
        state.lost.clear();
        (state.flight, state.tail_flight) = (0, 0);
        let mask = 1u64 << job;
        for slot in left.iter().copied().chain(self.pool.flying.iter()) {
            let copy = &mut self.pool.slots[slot as usize];
            copy.cover &= !mask;
            copy.tail &= !mask;
        }
        left.sort_unstable();
        left
    }

    pub(super) fn free_useless(&mut self, slots: Vec<u32>) {
        for slot in slots {
            let copy = &self.pool.slots[slot as usize];
            if copy.state == State::Ready && copy.cover | copy.tail == 0 {
                self.free(slot);
            }
        }
    }

    /// Lets go a copy that no job counts on.
    pub(super) fn free(&mut self, slot: u32) {
        let sample = self.pool.slots[slot as usize].sample;
        if self.pool.remove(slot) {
            self.needs.set_present(sample, false);
        }
        self.effects.push(Effect::Free { slot });
    }

    /// Lets go a copy that jobs count on: they need another.
    pub(super) fn evict(&mut self, slot: u32) {
        let copy = self.pool.slots[slot as usize];
        self.drop_claims(slot);
        self.free(slot);
        // Another copy may do for some of them.
        let others: Vec<u32> = self.pool.copies(copy.sample).collect();
        for (other, job) in others.iter().flat_map(|&other| ones(copy.cover).map(move |job| (other, job))) {
            if self.is_uncovered(job, copy.sample) {
                self.try_cover(other, job);
            }
        }
    }

    pub(super) fn drop_claims(&mut self, slot: u32) {
        let copy = &mut self.pool.slots[slot as usize];
        let (sample, ready) = (copy.sample, copy.state == State::Ready);
        let (cover, tail) = (std::mem::take(&mut copy.cover), std::mem::take(&mut copy.tail));
        for job in ones(cover) {
            self.needs.uncover(sample, job);
            let state = self.jobs[job as usize].as_mut().expect("a job that counts on a copy");
            if ready {
                state.ready.remove(slot);
            } else {
                state.flight -= 1;
            }
            let ahead = state.ahead_mut();
            if ahead.front > 0 {
                ahead.front = ahead.front.min(ahead.keyed.position(sample));
            }
        }
        for job in ones(tail) {
            let state = self.jobs[job as usize].as_mut().expect("a job that counts on a copy");
            if ready {
                state.tail.remove(slot);
            } else {
                state.tail_flight -= 1;
            }
            state.lost.push(sample);
        }
    }
}
