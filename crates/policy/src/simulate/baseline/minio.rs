//! A cache that fills with what comes first and then never changes: MinIO of CoorDL.
//!
//! Since every job takes every sample once per epoch, hits per epoch are exactly what is held.

use std::collections::HashMap;

use super::{Item, own::Cache};

/// The cache.
pub(super) struct First {
    room: usize,
    held: HashMap<u32, Item>,
}

impl First {
    pub(super) fn new(room: u32) -> Self {
        First { room: room as usize, held: HashMap::new() }
    }
}

impl Cache for First {
    fn find(&mut self, sample: u32) -> Option<Item> {
        self.held.get(&sample).copied()
    }

    fn add(&mut self, item: Item) {
        if self.held.len() < self.room {
            self.held.insert(item.sample, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_near, jobs, report};
    use crate::simulate::{Policy, Scenario};

    #[test]
    fn hits_are_the_cached_share_for_any_number_of_jobs() {
        // CoorDL: misses per epoch are the dataset less the cache, exactly.
        for speeds in [&[1.0][..], &[1.0; 3], &[3.0, 1.0]] {
            for pool in [0.2, 0.65] {
                let scenario = Scenario { samples: 5000, pool, ..Scenario::default() };
                let report = report(Policy::NoEvict, &jobs(scenario, 64, speeds));
                assert_near(report.hits, pool, 0.005);
                assert_near(report.ratio, 1.0 - pool, 0.005);
            }
        }
    }
}
