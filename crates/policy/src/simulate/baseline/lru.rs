//! A cache that evicts what was used least recently, as the page cache roughly does.
//!
//! With random orders it keeps what was just used, which is what nobody needs soon: a job comes back to a
//! sample only in its next epoch, and other jobs at any time.

use std::collections::{BTreeMap, HashMap};

use super::{Item, own::Cache};

/// The cache.
pub(super) struct Recent {
    room: usize,
    clock: u64,
    held: HashMap<u32, (u64, Item)>,
    /// Samples by last use.
    uses: BTreeMap<u64, u32>,
}

impl Recent {
    pub(super) fn new(room: u32) -> Self {
        Recent { room: room as usize, clock: 0, held: HashMap::new(), uses: BTreeMap::new() }
    }
}

impl Cache for Recent {
    fn find(&mut self, sample: u32) -> Option<Item> {
        let (used, item) = self.held.get_mut(&sample)?;
        self.uses.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.uses.insert(self.clock, sample);
        Some(*item)
    }

    fn add(&mut self, item: Item) {
        if self.held.len() == self.room
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.held.remove(&oldest);
        }
        self.clock += 1;
        self.held.insert(item.sample, (self.clock, item));
        self.uses.insert(self.clock, item.sample);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_near, jobs, report};
    use crate::simulate::{Policy, Scenario};

    #[test]
    fn four_independent_jobs_prepare_nearly_everything_themselves() {
        // Calculated for independent orders with one sample per turn.
        for (pool, ratio) in [(0.01, 0.993), (0.05, 0.962), (0.2, 0.847)] {
            let small = Scenario { samples: 8000, pool, epochs: 3.0, warmup: 0, ..Scenario::default() };
            assert_near(report(Policy::Lru, &jobs(small, 8, &[1.0; 4])).ratio, ratio, 0.01);
        }
    }
}
