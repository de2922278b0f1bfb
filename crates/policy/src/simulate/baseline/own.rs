//! Every job in its own random order over one shared cache: what loaders do that know nothing of each other.
//!
//! The order of an epoch is a permutation keyed by the job's seed. A sample that another job is having
//! prepared counts as cached, so that two jobs at the same moment prepare it once.

use super::{Item, Member, Rule, Stock, Take, step};
use crate::Permutation;

/// What is kept.
pub(super) trait Cache {
    fn find(&mut self, sample: u32) -> Option<Item>;
    fn add(&mut self, item: Item);
}

struct Job {
    member: Member,
    order: Permutation,
    position: u64,
}

/// The rule.
pub(super) struct Own<C> {
    jobs: Vec<Job>,
    cache: C,
}

impl<C: Cache> Own<C> {
    pub(super) fn new(members: &[Member], cache: C) -> Self {
        let job = |member: &Member| Job {
            order: Permutation::new(member.len().into(), member.seed, 0),
            position: 0,
            member: member.clone(),
        };
        Own { jobs: members.iter().map(job).collect(), cache }
    }
}

impl<C: Cache> Rule for Own<C> {
    fn begin(&mut self, job: usize, epoch: u64) {
        let job = &mut self.jobs[job];
        job.order = Permutation::new(job.member.len().into(), job.member.seed, epoch);
        job.position = 0;
    }

    fn leave(&mut self, _job: usize) {}

    fn draw(&mut self, _now: f64, job: usize, stock: &mut Stock, batch: &mut Vec<Item>) -> Take {
        let Job { member, order, position } = &mut self.jobs[job];
        let end = (*position + step(member) as u64).min(order.len());
        if *position == end {
            return Take::End;
        }
        for place in *position..end {
            let sample = member.range.0 + order.at(place) as u32;
            batch.push(self.cache.find(sample).unwrap_or_else(|| {
                let item = stock.prepare(sample);
                self.cache.add(item);
                item
            }));
        }
        *position = end;
        Take::Batch
    }
}
