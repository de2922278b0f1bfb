//! Drawing: a job's hand is filled from the pool until it is a step.

use super::job::{Hand, deal};
use super::needs::ones;
use super::pool::{NOBODY, NONE, State};
use super::{Effect, Order, Remainder, Step, Stream, Taken};
use crate::Dice;

/// Ready copies that are compared for an ordinary draw.
const CANDIDATES: usize = 6;

impl Stream {
    /// Lets a job's next step be filled, if none is; its memory is the caller's to have.
    pub fn open(&mut self, job: u32, dice: &mut Dice) {
        let served = self.served;
        let state = self.job_mut(job);
        if state.hand.is_none() && !state.is_over() {
            state.hand = Some(Hand::default());
            state.taken = state.taken.max(served);
            self.plan(job);
            self.fill(job, dice);
        }
    }

    /// A job's step, if it is full; the next may be opened then.
    pub fn take(&mut self, job: u32) -> Option<Step> {
        if !self.is_full(job) {
            return None;
        }
        let state = self.job_mut(job);
        let Hand { mut taken, pads, mut pads_done, .. } = state.hand.take()?;
        state.taken += taken.len() as u64;
        if state.join.order != Order::Ready {
            taken.sort_unstable_by_key(|one| one.position);
        }
        // A failure may have made some of them needless.
        pads_done.sort_unstable_by_key(|(number, _)| *number);
        taken.extend(pads_done.into_iter().take(pads as usize).map(|(_, taken)| taken));
        let sizes = deal(taken.len() as u64, state.join.ranks);
        let skipped = std::mem::take(&mut state.pass.untold);
        Some(Step { taken, sizes, skipped })
    }

    /// Whether [`Stream::take`] has something.
    pub fn is_full(&self, job: u32) -> bool {
        let Some(hand) = &self.job(job).hand else { return false };
        let padded = hand.pads_done.len() as u64 >= hand.pads;
        // Where all that could be repeated is bad, a step goes without.
        hand.taken.len() as u64 >= hand.size && (padded || hand.pads_flight == 0 && self.pad(job).is_none())
    }

    /// Settles how large the step in hand is and which positions it must hold; takes those that are ready.
    pub(super) fn plan(&mut self, job: u32) {
        let state = self.jobs[job as usize].as_mut().expect("a job");
        let Some(mut hand) = state.hand.take() else { return };
        let (full, ranks) = (state.full(), u64::from(state.join.ranks));
        let held = hand.taken.len() as u64;
        let left = state.pass.left + held;
        if left < full && state.join.remainder == Remainder::Drop {
            return; // failures have left too few for a step
        }
        hand.size = left.min(full);
        if hand.size == 0 {
            return; // all that was to be in it has failed
        }
        hand.pads = match state.join.remainder {
            Remainder::Pad if left < full => left.next_multiple_of(ranks) - left,
            _ => 0,
        };
        (hand.missing, hand.bound) = (0, 0);
        let late = match state.join.order {
            Order::Strict => Some(0),
            Order::Late(late) => Some(late),
            Order::Ready => None,
        };
        let size = hand.size;
        state.hand = Some(hand);
        let Some(late) = late else { return };
        self.advance(job);
        let pass = self.pass(job);
        let due = (pass.drawn - held + size).saturating_sub(late);
        let (mut rank, mut position) = (pass.rank(), pass.cursor);
        let mut missing = 0;
        // After a resume from a looser order more may be late than fit: the lowest come first.
        let held = |stream: &Self| stream.job(job).hand.as_ref().map_or(0, |hand| hand.taken.len() as u64);
        while rank < due && position < self.pass(job).share && held(self) + missing < size {
            if !self.pass(job).failed.contains(&position) {
                rank += 1;
                let sample = self.pass(job).keyed.at(position);
                if self.is_live(job, sample) {
                    match self.find(job, sample) {
                        Some(slot) if self.pool.slots[slot as usize].state == State::Ready => {
                            self.draw(job, slot)
                        }
                        _ => missing += 1,
                    }
                }
            }
            position += 1;
        }
        if let Some(hand) = &mut self.job_mut(job).hand {
            (hand.missing, hand.bound) = (missing, position);
        }
    }

    /// Draws ready copies while any will do. Now and then a place is for the lowest live position instead,
    /// ready or not.
    pub(super) fn fill(&mut self, job: u32, dice: &mut Dice) {
        if self.job(job).is_strict() {
            return; // all that is in its step is due
        }
        while self.job(job).hand.as_ref().is_some_and(|hand| hand.room() > 0) {
            if self.follows_order(job, dice) {
                self.take_lowest(job);
                continue;
            }
            let Some(slot) = self.choose_ready(job, dice) else { return };
            self.draw(job, slot);
            self.forget_coin(job);
        }
    }

    /// Whether the next place in hand follows the job's own order; thrown once for every place.
    fn follows_order(&mut self, job: u32, dice: &mut Dice) -> bool {
        let state = self.job_mut(job);
        if state.join.mixing <= 0.0 || state.next.is_some() {
            return false;
        }
        let mixing = state.join.mixing;
        state.hand.as_mut().is_some_and(|hand| *hand.coin.get_or_insert_with(|| dice.unit() < mixing))
    }

    fn forget_coin(&mut self, job: u32) {
        if let Some(hand) = &mut self.job_mut(job).hand {
            hand.coin = None;
        }
    }

    /// Gives a place in hand to the lowest live position that has none.
    fn take_lowest(&mut self, job: u32) {
        self.forget_coin(job);
        self.advance(job);
        let pass = self.pass(job);
        let bound = self.job(job).hand.as_ref().map_or(0, |hand| hand.bound);
        let mut position = pass.cursor.max(bound);
        while position < pass.share && !self.needs.has(pass.keyed.at(position), job) {
            position += 1;
        }
        let pass = self.pass(job);
        if position >= pass.share {
            return; // all live positions have a place
        }
        let slot = self.find(job, pass.keyed.at(position));
        let ready = slot.filter(|&slot| self.pool.slots[slot as usize].state == State::Ready);
        if let Some(hand) = &mut self.job_mut(job).hand {
            hand.bound = position + 1;
            hand.missing += u64::from(ready.is_none());
        }
        if let Some(slot) = ready {
            self.draw(job, slot);
        }
    }

    /// Of a few ready copies the one that fewest others wait for.
    fn choose_ready(&self, job: u32, dice: &mut Dice) -> Option<u32> {
        let state = self.job(job);
        let set = if state.next.is_some() { &state.tail } else { &state.ready };
        let waiting = |slot: u32| {
            let copy = &self.pool.slots[slot as usize];
            (copy.cover | copy.tail).count_ones()
        };
        (0..CANDIDATES).filter_map(|_| set.probe(dice)).min_by_key(|&slot| waiting(slot))
    }

    /// Moves the cursor of the epoch that a job draws over what is drawn or failed.
    pub(super) fn advance(&mut self, job: u32) {
        let mut cursor = self.pass(job).cursor;
        while cursor < self.pass(job).share && !self.is_live(job, self.pass(job).keyed.at(cursor)) {
            cursor += 1;
        }
        self.job_mut(job).pass.cursor = cursor;
    }

    /// Whether a sample of the epoch that a job draws is still to come.
    fn is_live(&self, job: u32, sample: u32) -> bool {
        let state = self.job(job);
        if state.next.is_none() {
            return self.needs.has(sample, job);
        }
        state.lost.contains(&sample) || self.find(job, sample).is_some()
    }

    /// The copy that a job counts on for a sample of the epoch it draws.
    pub(super) fn find(&self, job: u32, sample: u32) -> Option<u32> {
        let (mask, rest) = (1u64 << job, self.job(job).next.is_some());
        if !self.needs.is_present(sample) {
            return None;
        }
        self.pool.copies(sample).find(|&slot| {
            let copy = &self.pool.slots[slot as usize];
            let claims = if rest { copy.tail } else { copy.cover };
            claims & mask != 0
        })
    }

    /// Gives a ready copy to a job.
    fn draw(&mut self, job: u32, slot: u32) {
        let mask = 1u64 << job;
        let copy = &mut self.pool.slots[slot as usize];
        debug_assert_eq!(copy.state, State::Ready, "only what is ready is drawn");
        let (sample, generation) = (copy.sample, copy.generation);
        let rest = copy.tail & mask != 0;
        copy.tail &= !mask;
        copy.cover &= !mask;
        let useless = copy.cover | copy.tail == 0 && copy.direct == NONE;
        debug_assert_eq!(self.pool.used[slot as usize] & mask, 0, "no copy twice");
        self.pool.used[slot as usize] |= mask;
        let state = self.jobs[job as usize].as_mut().expect("a job");
        if rest {
            state.tail.remove(slot);
        } else {
            state.ready.remove(slot);
            self.needs.clear(sample, job);
        }
        state.pass.left -= 1;
        state.pass.drawn += 1;
        let position = state.pass.keyed.position(sample);
        if let Some(hand) = &mut state.hand {
            hand.taken.push(Taken { slot, sample, position, generation, valid: true });
        }
        self.effects.push(Effect::Draw { job, slot, position, pad: 0 });
        if useless {
            self.free(slot);
        }
    }

    /// A copy is finished: those who wait draw it, the pool keeps it for those who need it.
    pub fn ready(&mut self, slot: u32, dice: &mut Dice) {
        self.pool.land(slot);
        let copy = &self.pool.slots[slot as usize];
        if copy.pad > 0 {
            return self.pad_ready(slot);
        }
        let (sample, cover, tail, direct) = (copy.sample, copy.cover, copy.tail, copy.direct);
        let bound = self.pool.slots.len();
        for job in ones(cover) {
            let state = self.jobs[job as usize].as_mut().expect("a job that counts on a copy");
            state.flight -= 1;
            state.ready.grow(bound);
            state.ready.insert(slot);
        }
        for job in ones(tail) {
            let state = self.jobs[job as usize].as_mut().expect("a job that counts on a copy");
            state.tail_flight -= 1;
            state.tail.grow(bound);
            state.tail.insert(slot);
        }
        // Keep the copy while those who wait for it draw it.
        let maker = std::mem::replace(&mut self.pool.slots[slot as usize].direct, NOBODY);
        for job in ones(cover | tail) {
            self.offer(job, slot, sample, dice);
        }
        let copy = &mut self.pool.slots[slot as usize];
        copy.direct = maker;
        let wanted = copy.cover | copy.tail != 0;
        if direct != NONE {
            // It was made out of a job's reserve, which has it in hand now: the pool takes it if it can.
            if wanted && self.pool.resident < self.pool.capacity {
                self.pool.slots[slot as usize].direct = NONE;
                self.pool.resident += 1;
            } else {
                self.evict(slot);
            }
        } else if !wanted {
            self.free(slot);
        }
    }

    /// Lets a job that waits draw a copy that has just got ready.
    fn offer(&mut self, job: u32, slot: u32, sample: u32, dice: &mut Dice) {
        let copy = &self.pool.slots[slot as usize];
        let claims = if self.job(job).next.is_some() { copy.tail } else { copy.cover };
        if self.job(job).hand.is_none() || claims >> job & 1 == 0 {
            return; // or it counts on it for the epoch after this one
        }
        let state = self.job_mut(job);
        let bound = state.hand.as_ref().map_or(0, |hand| hand.bound);
        let due = bound > 0 && state.pass.keyed.position(sample) < bound;
        if due {
            if let Some(hand) = &mut state.hand {
                hand.missing -= 1;
            }
            self.draw(job, slot);
        } else {
            self.fill(job, dice);
        }
    }

    /// A repeat that fills up a step is finished.
    fn pad_ready(&mut self, slot: u32) {
        let copy = &self.pool.slots[slot as usize];
        let (job, sample, generation, pad) = (copy.direct, copy.sample, copy.generation, copy.pad);
        if job != NOBODY {
            let state = self.job_mut(job);
            let position = state.pass.keyed.position(sample);
            if let Some(hand) = &mut state.hand {
                hand.pads_flight -= 1;
                hand.pads_done.push((pad, Taken { slot, sample, position, generation, valid: false }));
                self.effects.push(Effect::Draw { job, slot, position, pad });
            }
        }
        self.free(slot);
    }

    /// A sample cannot be made: it leaves the order of every job that has no other copy of it.
    pub fn failed(&mut self, slot: u32, dice: &mut Dice) {
        let copy = self.pool.slots[slot as usize];
        self.bad.insert(copy.sample);
        if copy.pad > 0 {
            let waiting = copy.direct != NOBODY;
            self.free(slot);
            if waiting && let Some(hand) = &mut self.job_mut(copy.direct).hand {
                hand.pads_flight -= 1;
            }
            return;
        }
        // From flight to gone, as if it had been evicted.
        self.drop_claims(slot);
        self.free(slot);
        for job in ones(copy.tail) {
            let state = self.job_mut(job);
            state.lost.retain(|&sample| sample != copy.sample);
            self.skip(job, copy.sample, true);
        }
        let open = self.needs.word(copy.sample) & self.begun & !self.pool.covered(copy.sample);
        for job in ones(open) {
            self.needs.clear(copy.sample, job);
            self.needs.cover(copy.sample, job);
            self.skip(job, copy.sample, false);
        }
        for job in ones(open | copy.tail) {
            self.plan(job);
            self.fill(job, dice);
        }
    }

    /// A position leaves a job's order.
    fn skip(&mut self, job: u32, sample: u32, drawing: bool) {
        let state = self.job_mut(job);
        let pass = if drawing { &mut state.pass } else { state.ahead_mut() };
        let position = pass.keyed.position(sample);
        pass.left -= 1;
        pass.failed.insert(position);
        pass.untold.push(position);
        self.refill(job, drawing);
    }

    /// Samples that failed are tried again in epochs that begin from now on.
    pub fn forgive(&mut self) {
        self.bad.clear();
    }
}
