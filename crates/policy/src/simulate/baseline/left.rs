//! The samples that a job still has to receive in its epoch, drawn uniformly in constant time.
//!
//! A list and, for every sample of the range, its place in it: removing moves the last one into the gap.

use super::Member;
use crate::Dice;

/// Not in the set.
const ABSENT: u32 = u32::MAX;

/// A set of samples of one range.
pub(super) struct Left {
    first: u32,
    items: Vec<u32>,
    /// Where each sample of the range is in `items`.
    place: Vec<u32>,
}

impl Left {
    /// Nothing yet of a job's samples.
    pub(super) fn new(member: &Member) -> Self {
        Left { first: member.range.0, items: Vec::new(), place: vec![ABSENT; member.len() as usize] }
    }

    /// All samples of the range.
    pub(super) fn fill(&mut self) {
        self.items.clear();
        self.items.extend((self.first..).take(self.place.len()));
        self.place.iter_mut().zip(0..).for_each(|(place, at)| *place = at);
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.place.fill(ABSENT);
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn items(&self) -> &[u32] {
        &self.items
    }

    pub(super) fn contains(&self, sample: u32) -> bool {
        let at = sample.wrapping_sub(self.first) as usize;
        self.place.get(at).is_some_and(|&place| place != ABSENT)
    }

    /// One of them; there must be one.
    pub(super) fn any(&self, dice: &mut Dice) -> u32 {
        self.items[dice.below(self.items.len() as u64) as usize]
    }

    /// Adds a sample that is not there.
    pub(super) fn insert(&mut self, sample: u32) {
        self.place[(sample - self.first) as usize] = self.items.len() as u32;
        self.items.push(sample);
    }

    /// Removes a sample that is there.
    pub(super) fn remove(&mut self, sample: u32) {
        let at = std::mem::replace(&mut self.place[(sample - self.first) as usize], ABSENT);
        self.items.swap_remove(at as usize);
        if let Some(&moved) = self.items.get(at as usize) {
            self.place[(moved - self.first) as usize] = at;
        }
    }
}
