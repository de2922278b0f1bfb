//! One epoch of one job: which position to prepare next, and when a batch may leave.
//!
//! The delivery rule: with `nd` positions delivered and `b = min(batch, what is left)`, a batch leaves
//! when `b` samples are ready and every undelivered position up to `nd + b − 1 − D` is among them; it
//! takes the lowest ready positions. With `D = 0` that is strict order; otherwise no sample comes more
//! than `D` positions late, and no batch waits for one slow sample until it is that late. Positions
//! whose sample failed leave the order, so that later ones move up.

use std::collections::VecDeque;

use crate::Received;

/// How positions are cut into batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// Every so many; the last may be shorter, or is left out.
    Every {
        /// Samples in a batch.
        batch: u64,
        /// Leave out a shorter last batch.
        drop_last: bool,
    },
    /// As given by a batch sampler, in strict order.
    Given(VecDeque<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Pending,
    Ready,
    Delivered,
    Failed,
}

/// The order of one epoch. Effects are returned as values; nothing here waits.
///
/// ```
/// use forebay_policy::{Cut, Epoch};
///
/// let mut epoch = Epoch::new(3, Cut::Every { batch: 2, drop_last: false }, 0);
/// while let Some(position) = epoch.issue() {
///     epoch.ready(position);
/// }
/// assert_eq!(epoch.form().map(|batch| batch.positions), Some(vec![0, 1]));
/// assert_eq!(epoch.form().map(|batch| batch.positions), Some(vec![2]));
/// assert!(epoch.is_done());
/// ```
#[derive(Debug, Clone)]
pub struct Epoch {
    cut: Cut,
    late: u64,
    /// Positions that exist so far; all of them once `closed`.
    positions: u64,
    closed: bool,
    /// Lowest position that is neither delivered nor failed; `window[i]` is position `base + i`.
    base: u64,
    window: VecDeque<Mark>,
    /// Next position to hand out.
    issued: u64,
    /// Where the next given batch starts.
    start: u64,
    delivered: u64,
    failed: u64,
    pending: u64,
    ready: u64,
    /// Failed positions not yet reported with a batch.
    skipped: Vec<u64>,
    /// Batches that there shall be, whatever fails, and those formed; the last may be empty.
    steps: u64,
    formed: u64,
    /// Positions delivered before it was resumed.
    resumed: u64,
}

/// A batch that may leave now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Formed {
    /// Its positions, ascending.
    pub positions: Vec<u64>,
    /// Positions that failed since the batch before.
    pub skipped: Vec<u64>,
}

impl Epoch {
    /// An epoch of `positions` positions, no sample more than `late` positions late.
    pub fn new(positions: u64, cut: Cut, late: u64) -> Self {
        Epoch {
            cut,
            late,
            positions,
            closed: true,
            base: 0,
            window: VecDeque::new(),
            issued: 0,
            start: 0,
            delivered: 0,
            failed: 0,
            pending: 0,
            ready: 0,
            skipped: Vec::new(),
            steps: 0,
            formed: 0,
            resumed: 0,
        }
    }

    /// An epoch whose positions from `base` on are still to be fed, in strict order; `skipped` of those before
    /// it had failed.
    pub fn open(cut: Cut, base: u64, skipped: u64) -> Self {
        let delivered = base - skipped.min(base);
        let new = Epoch::new(base, cut, 0);
        let failed = base - delivered;
        Epoch { closed: false, base, issued: base, start: base, delivered, failed, resumed: delivered, ..new }
    }

    /// There are at least so many batches, of which some were formed before: ranks that train together take
    /// equal steps.
    pub fn with_steps(self, steps: u64, formed: u64) -> Self {
        Epoch { steps, formed, ..self }
    }

    /// Continues a new epoch after what was received.
    pub fn resume(mut self, received: &Received) -> Self {
        self.base = received.base;
        self.issued = received.base;
        self.failed = received.skipped + received.failed.len() as u64;
        self.delivered = received.count();
        self.resumed = self.delivered;
        let last = received.beyond.last().max(received.failed.last().copied());
        let reach = last.map_or(0, |last| last + 1 - self.base);
        self.window = (0..reach)
            .map(|i| match self.base + i {
                p if received.beyond.contains(p) => Mark::Delivered,
                p if received.failed.contains(&p) => Mark::Failed,
                _ => Mark::Pending,
            })
            .collect();
        self
    }

    /// Adds positions to an open epoch: one batch of a batch sampler, or some of a sampler.
    pub fn feed(&mut self, positions: u64) {
        debug_assert!(!self.closed, "a closed epoch is complete");
        self.positions += positions;
        if let Cut::Given(sizes) = &mut self.cut {
            sizes.push_back(positions);
        }
    }

    /// Says that nothing more will be fed.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// End of the share: with `drop_last` the last positions that do not fill a batch are left out, and
    /// each failure before them moves the end up by one where that fills a batch again.
    fn end(&self) -> u64 {
        match self.cut {
            Cut::Every { batch, drop_last: true } if self.closed => {
                let live = self.positions - self.failed.min(self.positions);
                // What was left when it was resumed is cut anew: batches may have had another size before.
                let before = self.resumed.min(live);
                (before + (live - before) / batch * batch + self.failed).min(self.positions)
            }
            _ => self.positions,
        }
    }

    /// The next position to prepare, ascending; `None` when all are handed out.
    pub fn issue(&mut self) -> Option<u64> {
        while self.issued < self.end() {
            let position = self.issued;
            self.issued += 1;
            let place = (position - self.base) as usize;
            if place == self.window.len() {
                self.window.push_back(Mark::Pending);
            }
            if self.window[place] == Mark::Pending {
                self.pending += 1;
                return Some(position);
            }
            self.advance();
        }
        None
    }

    /// How many positions are handed out and neither delivered nor failed.
    pub fn in_hand(&self) -> u64 {
        self.pending + self.ready
    }

    /// The sample at `position` is ready.
    ///
    /// # Panics
    /// When the position was not handed out or is decided already.
    pub fn ready(&mut self, position: u64) {
        self.mark(position, Mark::Ready);
        self.ready += 1;
    }

    /// The sample at `position` cannot be made.
    ///
    /// # Panics
    /// When the position was not handed out or is decided already.
    pub fn fail(&mut self, position: u64) {
        self.mark(position, Mark::Failed);
        self.failed += 1;
        self.skipped.push(position);
        self.advance();
    }

    fn mark(&mut self, position: u64, mark: Mark) {
        let place = &mut self.window[(position - self.base) as usize];
        assert_eq!(*place, Mark::Pending, "position {position} was decided twice");
        *place = mark;
        self.pending -= 1;
    }

    fn advance(&mut self) {
        while self.base < self.issued && matches!(self.window.front(), Some(Mark::Delivered | Mark::Failed)) {
            self.window.pop_front();
            self.base += 1;
        }
    }

    /// Samples of the batch to come: `b` of the rule; 0 when there is none, or not yet.
    fn next_size(&self) -> u64 {
        match &self.cut {
            Cut::Every { batch, drop_last } => {
                let left = self.end().saturating_sub(self.delivered + self.failed);
                match left {
                    _ if left >= *batch => *batch,
                    _ if *drop_last || !self.closed => 0,
                    _ => left,
                }
            }
            Cut::Given(sizes) => sizes.front().copied().unwrap_or(0),
        }
    }

    /// The next batch, if it may leave.
    pub fn form(&mut self) -> Option<Formed> {
        if matches!(self.cut, Cut::Given(_)) {
            return self.form_given();
        }
        let size = self.next_size();
        if self.ready < size {
            return None;
        }
        let end = self.end();
        let inside = self.window.iter().take(end.saturating_sub(self.base) as usize);
        let ready = inside.filter(|mark| **mark == Mark::Ready).count() as u64;
        if size == 0 && self.closed && self.formed < self.steps {
            return Some(self.take(0, end));
        }
        if size == 0 || ready < size || !self.is_due(size) {
            return None;
        }
        Some(self.take(size, end))
    }

    /// Whether every position that a batch of `size` must contain is ready.
    fn is_due(&self, size: u64) -> bool {
        let due = (self.delivered + size).saturating_sub(self.late);
        // Ranks count places among the positions that did not fail.
        let beyond = self.window.iter().filter(|m| **m == Mark::Delivered).count() as u64;
        let mut rank = self.delivered - beyond;
        let mut ready = 0;
        for mark in &self.window {
            // After a resume from a looser order more may be late than fit: the lowest come first.
            if rank >= due || ready == size {
                break;
            }
            match mark {
                Mark::Pending => return false,
                Mark::Failed => {}
                Mark::Ready | Mark::Delivered => rank += 1,
            }
            ready += u64::from(*mark == Mark::Ready);
        }
        true
    }

    fn form_given(&mut self) -> Option<Formed> {
        while let Cut::Given(sizes) = &mut self.cut
            && let Some(&size) = sizes.front()
        {
            let end = self.start + size;
            if self.issued < end {
                return None;
            }
            let inside = end.saturating_sub(self.base) as usize;
            if self.window.iter().take(inside).any(|mark| *mark == Mark::Pending) {
                return None;
            }
            sizes.pop_front();
            self.start = end;
            // A given batch may have lost all its samples; then the next one follows. One that never had any is
            // one of a rank that was left without.
            if size == 0 || self.window.iter().take(inside).any(|mark| *mark == Mark::Ready) {
                return Some(self.take(u64::MAX, end));
            }
        }
        None
    }

    fn take(&mut self, size: u64, end: u64) -> Formed {
        let mut positions = Vec::new();
        for (position, mark) in (self.base..end).zip(&mut self.window) {
            if positions.len() as u64 == size {
                break;
            }
            if *mark == Mark::Ready {
                *mark = Mark::Delivered;
                positions.push(position);
            }
        }
        self.formed += 1;
        self.delivered += positions.len() as u64;
        self.ready -= positions.len() as u64;
        self.advance();
        Formed { positions, skipped: std::mem::take(&mut self.skipped) }
    }

    /// Whether all its positions are known.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether every batch of the epoch has left.
    pub fn is_done(&self) -> bool {
        let left = match &self.cut {
            // One of them may be empty.
            Cut::Given(sizes) => !sizes.is_empty(),
            Cut::Every { .. } => self.next_size() > 0 || self.formed < self.steps,
        };
        self.closed && !left
    }

    /// Whether every position has been handed out, so that a next epoch may be prepared.
    pub fn is_issued(&self) -> bool {
        self.closed && self.issued >= self.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs an epoch with `slots` samples in hand at most, finishing them in an order that `pick` chooses,
    /// and returns the batches. Fails when the epoch stops before its end.
    fn run(mut epoch: Epoch, slots: u64, fails: &[u64], mut pick: impl FnMut(usize) -> usize) -> Vec<Formed> {
        let mut batches = Vec::new();
        let mut pending = Vec::new();
        while !epoch.is_done() {
            while epoch.in_hand() < slots {
                let Some(position) = epoch.issue() else { break };
                pending.push(position);
            }
            if let Some(formed) = epoch.form() {
                batches.push(formed);
                continue;
            }
            assert!(!pending.is_empty(), "nothing in hand, and the epoch is not done");
            let position = pending.swap_remove(pick(pending.len()));
            if fails.contains(&position) {
                epoch.fail(position)
            } else {
                epoch.ready(position)
            }
            while let Some(formed) = epoch.form() {
                batches.push(formed);
            }
        }
        batches
    }

    fn delivered(batches: &[Formed]) -> Vec<u64> {
        batches.iter().flat_map(|b| b.positions.clone()).collect()
    }

    #[test]
    fn empty_batches_come_where_they_are_given_or_promised() {
        let mut given = Epoch::open(Cut::Given(VecDeque::new()), 0, 0);
        for size in [1, 0, 0] {
            given.feed(size);
        }
        given.close();
        let batches = run(given, 3, &[], |_| 0);
        assert_eq!(batches.iter().map(|batch| batch.positions.len()).collect::<Vec<_>>(), [1, 0, 0]);
        let mut last = Epoch::open(Cut::Given(VecDeque::new()), 0, 0);
        last.feed(0);
        last.close();
        assert!(!last.is_done(), "an empty batch is one all the same");
        assert!(last.form().is_some() && last.is_done());
        // A rank whose samples failed has as many steps as the others.
        let cut = Cut::Every { batch: 2, drop_last: false };
        let batches = run(Epoch::new(6, cut.clone(), 0).with_steps(4, 0), 6, &[1, 2, 3], |_| 0);
        assert_eq!(batches.iter().map(|batch| batch.positions.len()).collect::<Vec<_>>(), [2, 1, 0, 0]);
        let received = Received { base: 6, skipped: 3, ..Received::default() };
        let batches = run(Epoch::new(6, cut, 0).with_steps(4, 3).resume(&received), 6, &[], |_| 0);
        assert_eq!(batches.len(), 1, "one of the empty ones was received before");
    }

    proptest! {
        #[test]
        fn every_epoch_is_a_permutation_and_nobody_is_later_than_promised(
            n in 0u64..200, batch in 1u64..20, late in 0u64..40, extra in 0u64..50, drop_last: bool,
            fails in prop::collection::vec(0u64..200, 0..5), seed: u64,
        ) {
            let mut state = seed | 1;
            let mut pick = |len: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % len
            };
            let cut = Cut::Every { batch, drop_last };
            let batches = run(Epoch::new(n, cut, late), batch + late + extra, &fails, &mut pick);
            let order = delivered(&batches);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            let live: Vec<_> = (0..n).filter(|p| !fails.contains(p)).collect();
            let whole = live.len() / batch as usize * batch as usize;
            let share = if drop_last { &live[..whole] } else { &live[..] };
            prop_assert_eq!(sorted.len(), share.len());
            // A failure that shows after a later position has left cannot call that one back.
            if late == 0 || !drop_last || live.len() == n as usize {
                prop_assert_eq!(&sorted, share, "exactly once, the last positions left out");
            }
            sorted.dedup();
            prop_assert_eq!(sorted.len(), share.len(), "nobody twice");
            for b in &batches[..batches.len().saturating_sub(1)] {
                prop_assert_eq!(b.positions.len() as u64, batch);
            }
            for (index, position) in order.iter().enumerate() {
                let rank = live.partition_point(|p| p < position);
                // Within a batch the order is ascending, so the bound counts from the batch's last place.
                prop_assert!(index <= rank + late as usize, "position {position} came at {index}");
            }
            if late == 0 {
                prop_assert!(order.is_sorted(), "strict order is the order");
            }
        }

        #[test]
        fn resuming_after_any_batch_delivers_exactly_the_rest(
            n in 1u64..100, batch in 1u64..10, late in 0u64..40, then in 0u64..40, stop in 0usize..20,
            fails in prop::collection::vec(0u64..100, 0..4), seed: u64,
        ) {
            let mut state = seed | 1;
            let mut pick = |len: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % len
            };
            let make = |late| Epoch::new(n, Cut::Every { batch, drop_last: false }, late);
            let batches = run(make(late), batch + late + 3, &fails, &mut pick);
            let stop = stop.min(batches.len());
            let mut received = Received::default();
            for b in &batches[..stop] {
                received.add(&b.positions, &b.skipped);
            }
            prop_assert!(received.is_sound(n));
            // Also with less lateness, and memory, than before.
            let rest = run(make(then).resume(&received), batch + then + 1, &fails, &mut pick);
            let mut all = delivered(&batches[..stop]);
            all.extend(delivered(&rest));
            all.sort_unstable();
            prop_assert_eq!(all, (0..n).filter(|p| !fails.contains(p)).collect::<Vec<_>>());
            if late == 0 && then == 0 {
                prop_assert_eq!(delivered(&rest), delivered(&batches[stop..]));
            }
        }

        #[test]
        fn given_batches_keep_their_bounds(
            sizes in prop::collection::vec(1u64..6, 0..20), fails in prop::collection::vec(0u64..60, 0..6), seed: u64,
        ) {
            let mut epoch = Epoch::open(Cut::Given(VecDeque::new()), 0, 0);
            sizes.iter().for_each(|&s| epoch.feed(s));
            epoch.close();
            let mut state = seed | 1;
            let batches = run(epoch, 12, &fails, |len| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % len
            });
            let mut start = 0;
            let expect: Vec<Vec<u64>> = sizes.iter().map(|s| {
                start += s;
                (start - s..start).filter(|p| !fails.contains(p)).collect()
            }).filter(|b: &Vec<u64>| !b.is_empty()).collect();
            prop_assert_eq!(batches.into_iter().map(|b| b.positions).collect::<Vec<_>>(), expect);
        }
    }

    #[test]
    fn a_slow_sample_does_not_hold_up_batches_within_its_allowance() {
        let mut epoch = Epoch::new(12, Cut::Every { batch: 4, drop_last: false }, 4);
        let issued: Vec<_> = std::iter::from_fn(|| epoch.issue()).collect();
        assert_eq!(issued.len(), 12);
        for position in 1..12 {
            epoch.ready(position);
        }
        // Position 0 is slow: one batch may pass, the next would make it more than 4 late.
        assert_eq!(epoch.form().map(|b| b.positions), Some(vec![1, 2, 3, 4]));
        assert_eq!(epoch.form(), None);
        epoch.ready(0);
        assert_eq!(epoch.form().map(|b| b.positions), Some(vec![0, 5, 6, 7]));
    }

    #[test]
    fn drop_last_refills_from_the_positions_it_left_out() {
        let batches = run(Epoch::new(10, Cut::Every { batch: 4, drop_last: true }, 0), 20, &[1], |_| 0);
        assert_eq!(delivered(&batches).len(), 8);
        assert!(!delivered(&batches).contains(&1));
    }

    #[test]
    fn an_open_epoch_waits_for_food_and_ends_when_closed() {
        let mut epoch = Epoch::open(Cut::Every { batch: 2, drop_last: false }, 0, 0);
        epoch.feed(3);
        let positions: Vec<_> = std::iter::from_fn(|| epoch.issue()).collect();
        positions.into_iter().for_each(|p| epoch.ready(p));
        assert_eq!(epoch.form().map(|b| b.positions), Some(vec![0, 1]));
        assert!(epoch.form().is_none() && !epoch.is_done());
        epoch.close();
        assert_eq!(epoch.form().map(|b| b.positions), Some(vec![2]));
        assert!(epoch.is_done());
    }
}
