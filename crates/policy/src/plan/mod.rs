//! How memory is split between forms, and what that gives: the plan.
//!
//! [`bottleneck`] finds the best split by a small linear program over what the machine has and what its streams
//! cost. [`predict`] says what a given split gives, [`prices`] what one unit more of something would buy.
//! [`seneca`] is the published model, to compare with; [`platforms`] holds the machines it was published for.
//! Figures come from a [`profile::Profile`]. Everything is a function of its arguments.
//!
//! A *take* is a sample fetched for preparing: from pixels that are kept, from kept bytes of its file, or from
//! storage. A copy is made from each take and delivered to one job, or to all jobs that share copies.

mod bottleneck;
pub mod density;
mod model;
pub mod platforms;
mod price;
pub mod profile;
mod search;
pub mod seneca;
pub mod waste;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::share::Level;

pub use bottleneck::{bottleneck, bottleneck_with, predict, predict_with};
pub use price::{Prices, prices};

/// What the machine has. In files an absent figure is one that does not bind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Cores for loading and for whatever jobs do on them.
    pub cores: f64,
    /// Bytes for kept forms and pools.
    pub memory: u64,
    /// Bytes per second from storage.
    #[serde(with = "unbound", default = "unbound::none", skip_serializing_if = "unbound::is")]
    pub storage_bytes: f64,
    /// Reads per second from storage.
    #[serde(with = "unbound", default = "unbound::none", skip_serializing_if = "unbound::is")]
    pub storage_requests: f64,
    /// Bytes per second to and from what is kept: memory, or a remote cache.
    #[serde(with = "unbound", default = "unbound::none", skip_serializing_if = "unbound::is")]
    pub link_bytes: f64,
}

/// One stream: a dataset with a recipe, and the jobs that draw from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Samples of the dataset.
    pub samples: u64,
    /// Mean bytes of a sample as stored.
    pub encoded: f64,
    /// Mean bytes of a decoded sample; 0: the recipe has no decoded form to keep.
    pub decoded: f64,
    /// Mean bytes of a copy; 0: the recipe has no random steps, and the decoded form is served.
    pub augmented: f64,
    /// Core-seconds of a read from storage.
    pub read_s: f64,
    /// Core-seconds from file bytes to the decoded form, when a copy is made from its file.
    pub decode_s: f64,
    /// Core-seconds of the random steps, after a decode as well as from kept pixels.
    pub augment_s: f64,
    /// Part of the draws that follow each job's own order.
    pub mixing: f64,
    /// Who draws.
    pub jobs: Vec<Job>,
}

/// One training run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Deliveries per second that it can use; none: as many as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<f64>,
    /// Core-seconds of a delivery: finish, hand-over, and what the job itself uses of these cores.
    pub finish_s: f64,
    /// The last form it shares.
    #[serde(default)]
    pub level: Level,
}

/// Bytes of memory for each form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Split {
    /// Files as stored.
    pub encoded: u64,
    /// Decoded samples.
    pub decoded: u64,
    /// Copies that wait for jobs.
    pub pool: u64,
}

impl Split {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.encoded + self.decoded + self.pool
    }
}

/// What can keep jobs from getting more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Time of the cores.
    Cores,
    /// Bytes per second of storage.
    Storage,
    /// Reads per second of storage.
    Requests,
    /// Bytes per second to and from what is kept.
    Link,
    /// Bytes to keep things in.
    Memory,
    /// Nothing: every job has what it can use.
    Demand,
}

impl Resource {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cores => "cores",
            Resource::Storage => "storage",
            Resource::Requests => "requests",
            Resource::Link => "link",
            Resource::Memory => "memory",
            Resource::Demand => "demand",
        }
    }
}

/// The part of each resource that is in use, 0 to 1; 0 where there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Usage {
    /// Of the cores.
    pub cores: f64,
    /// Of storage's bytes per second.
    pub storage: f64,
    /// Of storage's reads per second.
    pub requests: f64,
    /// Of the link.
    pub link: f64,
    /// Of memory.
    pub memory: f64,
}

/// What to keep, and what that gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// For each stream.
    pub splits: Vec<Split>,
    /// For each stream its takes per second from kept pixels, from kept files and from storage.
    pub sources: Vec<[f64; 3]>,
    /// Copies made per second, for each stream.
    pub copies: Vec<f64>,
    /// Waste of each stream: preparations over the least that is possible.
    pub waste: Vec<f64>,
    /// Deliveries per second of each job of each stream.
    pub rates: Vec<Vec<f64>>,
    /// What keeps jobs from more.
    pub binds: Vec<Resource>,
    /// What is in use.
    #[serde(rename = "use")]
    pub use_: Usage,
}

impl Plan {
    /// Deliveries per second of all jobs.
    pub fn total(&self) -> f64 {
        self.rates.iter().flatten().sum()
    }

    /// Deliveries per second of the slowest job; nothing without jobs.
    pub fn slowest(&self) -> Option<f64> {
        self.rates.iter().flatten().copied().reduce(f64::min)
    }
}

/// Which machinery the jobs of a stream have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Jobs that share decoded data and no copies read and decode once for all of them, through a window of
    /// decoded data that takes the pool's place. Without it each makes its own copies from what is kept.
    pub window: bool,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A figure makes no sense.
    #[error("{what} = {value}: {must}")]
    Wrong {
        /// Which.
        what: String,
        /// As given.
        value: f64,
        /// What it must be.
        must: &'static str,
    },
    /// A job without a demand on a machine where nothing costs anything.
    #[error("nothing limits a job of stream {stream}: give it a demand, or give costs and cores")]
    Unbounded {
        /// Of which stream.
        stream: usize,
    },
    /// Splits for another number of streams.
    #[error("{splits} splits for {streams} streams: give one for each")]
    Splits {
        /// How many splits.
        splits: usize,
        /// How many streams.
        streams: usize,
    },
    /// The splits need more memory than there is.
    #[error("the splits take {need} bytes of {have}: make them smaller, or give more memory")]
    Memory {
        /// Bytes of all splits.
        need: u64,
        /// Bytes of the machine.
        have: u64,
    },
    /// The solver gave up, which it does only for figures of very different size.
    #[error("the linear program was not solved: check the profile for figures that are far off")]
    Solver(#[source] microlp::Error),
}

impl Machine {
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let figures = [
            ("cores", self.cores),
            ("storage_bytes", self.storage_bytes),
            ("storage_requests", self.storage_requests),
            ("link_bytes", self.link_bytes),
        ];
        figures.into_iter().try_for_each(|(what, value)| {
            check(what, value, value > 0.0 && !value.is_nan(), "must be above 0")
        })
    }
}

impl Load {
    pub(crate) fn check(&self, stream: usize) -> Result<(), PlanError> {
        let name = |what: &str| format!("stream {stream}: {what}");
        check(&name("samples"), self.samples as f64, self.samples > 0, "must be above 0")?;
        let whole = |value: f64| value > 0.0 && value.is_finite();
        check(&name("encoded"), self.encoded, whole(self.encoded), "must be above 0")?;
        check(&name("mixing"), self.mixing, (0.0..=1.0).contains(&self.mixing), "must be 0 to 1")?;
        for (what, value) in [
            ("decoded", self.decoded),
            ("augmented", self.augmented),
            ("read_s", self.read_s),
            ("decode_s", self.decode_s),
            ("augment_s", self.augment_s),
        ] {
            check(&name(what), value, value >= 0.0 && value.is_finite(), "must be 0 or more")?;
        }
        for job in &self.jobs {
            let finish = job.finish_s >= 0.0 && job.finish_s.is_finite();
            check(&name("finish_s"), job.finish_s, finish, "must be 0 or more")?;
            if let Some(demand) = job.demand {
                check(&name("demand"), demand, whole(demand), "must be above 0; leave it out for no limit")?;
            }
        }
        Ok(())
    }
}

fn check(what: &str, value: f64, sound: bool, must: &'static str) -> Result<(), PlanError> {
    if sound { Ok(()) } else { Err(PlanError::Wrong { what: what.to_owned(), value, must }) }
}

/// A figure that may be without limit: infinite here, absent in files.
mod unbound {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn none() -> f64 {
        f64::INFINITY
    }

    pub(super) fn is(value: &f64) -> bool {
        value.is_infinite()
    }

    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
    }
}
