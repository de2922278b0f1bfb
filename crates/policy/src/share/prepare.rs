//! Preparing: what the next free worker makes, and what has to go for it.

use super::job::Job;
use super::needs::ones;
use super::pool::{NONE, Owner, Slot, State};
use super::{Order, Stream};
use crate::Dice;

/// Needs that are compared for one preparation.
const CANDIDATES: usize = 32;
/// Samples looked at, at most, to find them; a job with few needs left walks its counts instead.
const PROBES: usize = 80;
/// With so many of them it is not worth while to walk.
const ENOUGH: usize = 6;
/// Walks, and neighbours taken from each.
const WALKS: u32 = 3;
const IN_A_WALK: u32 = 4;
/// Copies that are compared for eviction.
const VICTIMS: usize = 16;
/// Work ahead of a job ends at so many seconds of its demand, and not below so many of its steps: it may
/// never ask for it.
const AHEAD_SECONDS: f64 = 2.0;
const AHEAD_STEPS: u64 = 4;
/// For an epoch that a job may never begin, no more than so many of its steps or this part of the epoch.
const NEXT_STEPS: u64 = 2;
const NEXT_PART: u64 = 50;
/// Fixed point of scores.
const ONE: i32 = 1024;

/// A copy to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepare {
    /// Where it goes; [`Stream::ready`] or [`Stream::failed`] gives it back.
    pub slot: u32,
    /// The job that wants it most; others may draw it too.
    pub job: u32,
    /// Which sample.
    pub sample: u32,
    /// The name of the copy: seed, generation, occurrence.
    pub seed: u64,
    /// See `seed`.
    pub generation: u64,
    /// See `seed`.
    pub occurrence: u64,
}

/// What a job wants made.
#[derive(Debug, Clone, Copy)]
enum Wish {
    /// This sample, for the epoch it prepares.
    Sample(u32),
    /// This sample, for the rest of the epoch it draws.
    Lost(u32),
    /// This sample once more, to fill up a step.
    Pad(u32),
    /// Whatever serves most.
    Best,
}

/// How much a wish may cost others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haste {
    /// A job waits: evict, and if nothing can go, make it out of the job's reserve.
    Waited,
    /// It will be wanted: evict only what nobody is short of.
    Ahead,
}

impl Stream {
    /// The next copy to make. What a job waits for goes first; then, with `ahead`, what the job that would
    /// starve first has not in stock, up to its target.
    pub fn next(&mut self, ahead: bool, dice: &mut Dice) -> Option<Prepare> {
        for job in ones(self.begun) {
            if self.job(job).next.is_none() && self.needs.open(job) == 0 {
                self.open_next(job);
            }
        }
        let fastest = self.set_targets();
        // Stock does not help a job that waits for a certain sample.
        let urgent = self.by_hunger(Job::served, |stream, job| stream.urgent(job));
        if let Some((job, wish)) = urgent {
            self.served = self.served.max(self.job(job).served() as u64);
            return self.start(job, wish, Haste::Waited, dice);
        }
        if !ahead {
            return None;
        }
        let (job, wish) = self.by_hunger(|job| job.seconds(fastest), |stream, job| stream.run_ahead(job))?;
        self.start(job, wish, Haste::Ahead, dice)
    }

    /// Whether a job waits for something that nobody makes.
    pub fn neglects(&mut self, job: u32) -> bool {
        self.urgent(job).is_some()
    }

    /// The job with a wish that has least.
    fn by_hunger(
        &mut self,
        has: impl Fn(&Job) -> f64,
        wish: impl Fn(&mut Self, u32) -> Option<Wish>,
    ) -> Option<(u32, Wish)> {
        let mut best: Option<(f64, u32, Wish)> = None;
        for job in ones(self.begun) {
            let seconds = has(self.job(job));
            if best.is_none_or(|(least, _, _)| seconds < least)
                && let Some(wish) = wish(self, job)
            {
                best = Some((seconds, job, wish));
            }
        }
        best.map(|(_, job, wish)| (job, wish))
    }

    /// Targets in proportion to demand: half the pool for the fastest. Returns the fastest's demand.
    fn set_targets(&mut self) -> f64 {
        let known = self.jobs.iter().flatten().filter_map(|job| job.demand);
        let fastest = known.fold(0.0, f64::max);
        let half = f64::from(self.pool.capacity) / 2.0;
        for job in self.jobs.iter_mut().flatten() {
            let part = job.demand.map_or(1.0, |demand| if fastest > 0.0 { demand / fastest } else { 1.0 });
            job.target = (half * part).ceil() as u32;
        }
        if fastest > 0.0 { fastest } else { 1.0 }
    }

    /// What a job with an open step waits for and nobody makes.
    fn urgent(&mut self, job: u32) -> Option<Wish> {
        let state = self.job(job);
        let hand = state.hand.as_ref()?;
        // The lowest position first: only that is sure to be drawn, and so to end.
        if let Some(&sample) = state.lost.iter().min_by_key(|&&sample| state.pass.keyed.position(sample)) {
            return Some(Wish::Lost(sample));
        }
        // With nothing to repeat, what is left may still be made, or fail for good.
        if hand.pads > hand.pads_done.len() as u64 + hand.pads_flight
            && let Some(sample) = self.pad(job)
        {
            return Some(Wish::Pad(sample));
        }
        if state.next.is_some() {
            return None;
        }
        let (missing, bound) = (hand.missing, hand.bound);
        let short = hand.room() > u64::from(state.ready.len() + state.flight);
        let flexible = !state.is_strict();
        if missing > 0
            && let Some(sample) = self.in_order(job, bound)
        {
            return Some(Wish::Sample(sample));
        }
        (short && flexible && self.needs.open(job) > 0).then_some(Wish::Best)
    }

    /// What a job under its target shall have in stock.
    fn run_ahead(&mut self, job: u32) -> Option<Wish> {
        let state = self.job(job);
        let seconds = state.demand.unwrap_or(0.0) * AHEAD_SECONDS;
        let mut enough = (AHEAD_STEPS * state.full()).max(seconds as u64).min(u64::from(state.target));
        if let Some(next) = &state.next {
            enough = enough.min((NEXT_STEPS * state.full()).max(next.share / NEXT_PART));
        }
        if u64::from(state.stock()) >= enough || self.needs.open(job) == 0 {
            return None;
        }
        let pass = state.ahead();
        let drawn = if state.next.is_some() { 0 } else { state.pass.drawn };
        let bound = match state.join.order {
            Order::Strict => pass.share,
            Order::Late(late) => {
                let reach = drawn + pass.failed.len() as u64 + state.full() + u64::from(state.target);
                reach.saturating_sub(late).min(pass.share)
            }
            Order::Ready => 0,
        };
        let strict = state.is_strict();
        match self.in_order(job, bound) {
            Some(sample) => Some(Wish::Sample(sample)),
            None if strict => None,
            None => Some(Wish::Best),
        }
    }

    /// The lowest position below `bound`, of the epoch that a job prepares, that nothing covers.
    fn in_order(&mut self, job: u32, bound: u64) -> Option<u32> {
        let mut front = self.job(job).ahead().front;
        let bound = bound.min(self.job(job).ahead().share);
        let mut found = None;
        while front < bound {
            let sample = self.job(job).ahead().keyed.at(front);
            if self.is_uncovered(job, sample) {
                found = Some(sample);
                break;
            }
            front += 1;
        }
        self.job_mut(job).ahead_mut().front = front;
        found
    }

    #[inline]
    pub(super) fn is_uncovered(&self, job: u32, sample: u32) -> bool {
        self.needs.has(sample, job)
            && (!self.needs.is_present(sample) || self.pool.covered(sample) >> job & 1 == 0)
    }

    /// The first position that fills up a step.
    pub(super) fn pad(&self, job: u32) -> Option<u32> {
        let state = self.job(job);
        let hand = state.hand.as_ref()?;
        let skip = hand.pads_done.len() as u64 + hand.pads_flight;
        let live = (0..state.pass.share).filter(|position| !state.pass.failed.contains(position));
        let samples = live.map(|position| state.pass.keyed.at(position));
        let samples: Vec<u32> =
            samples.filter(|sample| !self.bad.contains(sample)).take(skip as usize + 1).collect();
        // A share smaller than its padding goes round.
        (!samples.is_empty()).then(|| samples[skip as usize % samples.len()])
    }

    /// Begins a copy for a job, if there is room for it.
    fn start(&mut self, job: u32, wish: Wish, haste: Haste, dice: &mut Dice) -> Option<Prepare> {
        let direct = match wish {
            Wish::Pad(_) => job,
            _ if self.make_room(job, haste, dice) => NONE,
            _ if haste == Haste::Waited => job,
            _ => return None,
        };
        let sample = match wish {
            Wish::Sample(sample) | Wish::Lost(sample) | Wish::Pad(sample) => sample,
            Wish::Best => self.choose(job, dice)?,
        };
        let state = self.job(job);
        let epoch = match wish {
            Wish::Lost(_) | Wish::Pad(_) => state.pass.epoch,
            _ => state.ahead().epoch,
        };
        let owner = state.owner(epoch);
        let pad = match (wish, &mut self.job_mut(job).hand) {
            (Wish::Pad(_), Some(hand)) => {
                hand.pads_begun += 1;
                hand.pads_begun
            }
            _ => 0,
        };
        self.clock = self.clock.wrapping_add(1);
        let copy = Slot {
            sample,
            next: NONE,
            state: State::Flight,
            owner,
            generation: self.clock,
            cover: 0,
            tail: 0,
            direct,
            pad,
            twin: false,
        };
        let slot = self.pool.insert(copy);
        self.needs.set_present(sample, true);
        match wish {
            Wish::Pad(_) => {
                if let Some(hand) = &mut self.job_mut(job).hand {
                    hand.pads_flight += 1;
                }
            }
            Wish::Lost(_) => {
                self.pool.slots[slot as usize].tail |= 1 << job;
                let state = self.job_mut(job);
                state.lost.retain(|&lost| lost != sample);
                state.tail_flight += 1;
            }
            _ => {}
        }
        if pad == 0 {
            let covered = self.pool.covered(sample);
            let mask = self.needs.word(sample)
                & self.members(owner)
                & !covered
                & !self.pool.slots[slot as usize].tail;
            self.cover(slot, mask);
        }
        let (seed, generation, occurrence) = match owner {
            Owner::Named { seed, epoch } | Owner::Own { name: Some((seed, epoch)), .. } => {
                (seed, epoch, self.repeats(job, wish))
            }
            _ => (self.seed, self.clock, 0),
        };
        Some(Prepare { slot, job, sample, seed, generation, occurrence })
    }

    /// Which occurrence of its sample in the epoch a copy is; only padding repeats one.
    fn repeats(&self, job: u32, wish: Wish) -> u64 {
        let hand = self.job(job).hand.as_ref();
        match wish {
            Wish::Pad(_) => {
                1 + hand.map_or(0, |h| {
                    (h.pads_done.len() as u64 + h.pads_flight - 1) / self.pass(job).share.max(1)
                })
            }
            _ => 0,
        }
    }

    /// Of some open needs of a job the one that jobs with an empty stock need, and jobs with a full stock
    /// do not.
    fn choose(&mut self, job: u32, dice: &mut Dice) -> Option<u32> {
        let open = self.needs.open(job);
        if open == 0 {
            return None;
        }
        let others = self.shared & !(1 << job);
        let alone = self.job(job).owner(0) != Owner::Shared || others == 0;
        if alone {
            // The next of its own order is as good as any.
            let share = self.job(job).ahead().share;
            return self.in_order(job, share);
        }
        let score = self.scorer();
        let mut best: Option<(i32, u32)> = None;
        let mut weigh = |sample: u32, word: u64| {
            let score = score.of(word & others);
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, sample));
            }
        };
        let mut found = 0;
        if u64::from(open) * 12 >= u64::from(self.n) {
            for _ in 0..PROBES {
                let sample = dice.below(u64::from(self.n)) as u32;
                let mut word = self.needs.word(sample);
                if word >> job & 1 == 0 {
                    continue;
                }
                if self.needs.is_present(sample) {
                    word &= !self.pool.covered(sample);
                    if word >> job & 1 == 0 {
                        continue;
                    }
                }
                weigh(sample, word);
                found += 1;
                if found == CANDIDATES {
                    break;
                }
            }
        }
        let walks = if found >= ENOUGH { 0 } else { WALKS };
        for _ in 0..walks {
            let k = dice.below(u64::from(open)) as u32;
            let mut some = 0;
            self.needs.select(
                job,
                k,
                |sample| self.is_uncovered(job, sample),
                |sample| {
                    weigh(sample, self.needs.word(sample) & !self.pool.covered(sample));
                    some += 1;
                    some < IN_A_WALK
                },
            );
        }
        best.map(|(_, sample)| sample)
    }

    fn scorer(&self) -> Scorer {
        let mut weights = [0; 64];
        for state in self.jobs.iter().flatten() {
            weights[state.bit as usize] = weight(state);
        }
        Scorer(weights)
    }

    /// Makes room for one copy, evicting another if need be.
    fn make_room(&mut self, job: u32, haste: Haste, dice: &mut Dice) -> bool {
        while self.pool.resident >= self.pool.capacity {
            if !self.evict_one(job, haste, dice) {
                return false;
            }
        }
        true
    }

    /// Lets go the copy that is missed least, if one may go.
    fn evict_one(&mut self, job: u32, haste: Haste, dice: &mut Dice) -> bool {
        let score = self.scorer();
        // A job that may never ask again is no reason to keep a copy.
        let asleep = self.jobs.iter().flatten().filter(|job| job.is_silent());
        let silent = asleep.fold(0, |mask, job| mask | job.mask());
        let value = |slot: u32| {
            let copy = &self.pool.slots[slot as usize];
            let cover = copy.cover & !silent;
            let needed = score.of(cover) + ONE * cover.count_ones() as i32;
            // The job's own stock would be made again; the rest of an epoch would be waited for.
            let own = if copy.cover >> job & 1 == 1 { 4 * ONE } else { 0 };
            needed + own + 8 * ONE * copy.tail.count_ones() as i32
        };
        let victim = (0..VICTIMS).filter_map(|_| self.pool.ready.probe(dice)).min_by_key(|&slot| value(slot));
        let Some(victim) = victim.filter(|&slot| self.pool.slots[slot as usize].direct == NONE) else {
            return false;
        };
        if haste == Haste::Ahead && value(victim) >= ONE / 8 {
            return false;
        }
        self.evict(victim);
        true
    }
}

/// How much a job wants for stock: 1 when it has none, −1 when it has twice its target.
fn weight(job: &Job) -> i32 {
    if job.is_silent() {
        return 0; // it may never ask again
    }
    let (stock, target) = (i64::from(job.stock()), i64::from(job.target.max(1)));
    ((target - stock) * i64::from(ONE) / target).clamp(-i64::from(ONE), i64::from(ONE)) as i32
}

struct Scorer([i32; 64]);

impl Scorer {
    #[inline]
    fn of(&self, word: u64) -> i32 {
        ones(word).map(|job| self.0[job as usize]).sum()
    }
}
