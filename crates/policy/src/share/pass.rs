//! One epoch of one job: which sample is at which position, and how far the job is.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::subset::Subset;
use crate::Permutation;

/// Position ↔ sample of an epoch.
#[derive(Debug, Clone)]
pub(super) struct Keyed {
    permutation: Option<Permutation>,
    subset: Option<Arc<Subset>>,
    len: u64,
}

impl Keyed {
    pub(super) fn new(n: u32, subset: Option<Arc<Subset>>, shuffle: Option<(u64, u64)>) -> Self {
        let len = u64::from(subset.as_ref().map_or(n, |subset| subset.len()));
        Keyed { permutation: shuffle.map(|(seed, epoch)| Permutation::new(len, seed, epoch)), subset, len }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn at(&self, position: u64) -> u32 {
        let index = self.permutation.as_ref().map_or(position, |keyed| keyed.at(position));
        self.subset.as_ref().map_or(index as u32, |subset| subset.samples()[index as usize])
    }

    /// The position of a sample that is in.
    pub(super) fn position(&self, sample: u32) -> u64 {
        let index = match &self.subset {
            None => u64::from(sample),
            Some(subset) => subset.samples().partition_point(|&other| other < sample) as u64,
        };
        self.permutation.as_ref().map_or(index, |keyed| keyed.position(index))
    }
}

/// Progress through an epoch. A position is *live* until it is drawn or fails.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) epoch: u64,
    pub(super) keyed: Keyed,
    /// Positions below this are the share; `drop` leaves out those above.
    pub(super) share: u64,
    /// Live positions.
    pub(super) left: u64,
    /// Positions given to the job: those drawn, now or before it resumed.
    pub(super) drawn: u64,
    /// All positions below are drawn or failed.
    pub(super) cursor: u64,
    /// All live positions below are in the pool or on their way.
    pub(super) front: u64,
    pub(super) failed: BTreeSet<u64>,
    /// Failed positions that the job has not been told.
    pub(super) untold: Vec<u64>,
}

impl Pass {
    pub(super) fn new(epoch: u64, keyed: Keyed, share: u64) -> Self {
        Pass {
            epoch,
            keyed,
            share,
            left: share,
            drawn: 0,
            cursor: 0,
            front: 0,
            failed: BTreeSet::new(),
            untold: Vec::new(),
        }
    }

    /// Places among the positions that did not fail, of the cursor.
    pub(super) fn rank(&self) -> u64 {
        self.cursor - self.failed.range(..self.cursor).count() as u64
    }
}
