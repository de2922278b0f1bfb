//! What the simulator drives: the shipped policy, or a published one beside it.

use super::Member;

/// One sample that a job is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Which sample.
    pub sample: u32,
    /// Which copy of it: a number that no other preparation has.
    pub copy: u64,
    /// Whether it was there before this job asked for it.
    pub hit: bool,
}

/// What [`System::take`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// A batch was written to the buffer.
    Batch,
    /// The job's epoch is over.
    End,
    /// Not yet.
    Wait,
}

/// A loading system with many jobs, driven by events. Jobs are numbered as in the scenario; times are
/// seconds and never go back. Every preparation is handed out by `work` and given back by `done`, so that
/// the driver can count it and let it take time.
pub trait System {
    /// A job starts; its first epoch is begun separately.
    fn join(&mut self, now: f64, job: usize, member: &Member);
    /// A job ends, in the middle of an epoch or not.
    fn leave(&mut self, now: f64, job: usize);
    /// A job begins an epoch.
    fn begin(&mut self, now: f64, job: usize, epoch: u64);
    /// A job wants its next batch; it asks again only after it took one.
    fn ask(&mut self, now: f64, job: usize);
    /// Gives the batch that a job asked for, if it may leave. `batch` comes empty.
    fn take(&mut self, now: f64, job: usize, batch: &mut Vec<Served>) -> Take;
    /// Something for a free worker to prepare: a token for `done`, or nothing. Without `ahead` only what a
    /// job has asked for.
    fn work(&mut self, now: f64, ahead: bool) -> Option<u64>;
    /// A preparation is finished.
    fn done(&mut self, now: f64, token: u64);
    /// A job asked, and nothing that it waits for is being prepared, though there is room to.
    fn neglects(&mut self, _job: usize) -> bool {
        false
    }
}
