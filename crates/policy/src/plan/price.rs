//! What one unit more of something would buy, found by solving again.

use serde::Serialize;

use super::bottleneck::finish;
use super::model::Model;
use super::{Load, Machine, Options, PlanError, search};

/// Bytes in the unit of memory.
const GIGABYTE: u64 = 1_000_000_000;
/// Bytes per second in the unit of storage.
const MEGABYTE: f64 = 1e6;
/// Reads per second in the unit of requests.
const REQUESTS: f64 = 100.0;

/// Deliveries per second that one unit more would add, over all jobs.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Prices {
    /// Of one GB of memory.
    pub gigabyte: f64,
    /// Of one core.
    pub core: f64,
    /// Of one MB/s of storage.
    pub megabyte: f64,
    /// Of 100 reads per second.
    pub requests: f64,
    /// Of one job more on each stream, like its first.
    pub jobs: Vec<Joined>,
}

/// What one job more does.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Joined {
    /// Deliveries per second that it gets.
    pub gets: f64,
    /// Deliveries per second that all jobs have more or, below 0, less.
    pub total: f64,
}

/// The prices of the best plan.
pub fn prices(machine: &Machine, loads: &[Load]) -> Result<Prices, PlanError> {
    let options = Options::default();
    let model = Model::new(machine, loads, options)?;
    let choice = search::best(&model, None)?;
    let base = finish(&model, &choice)?.total();
    let again = |machine: Machine| {
        let model = Model::new(&machine, loads, options)?;
        let choice = search::best(&model, Some(&choice))?;
        Ok((finish(&model, &choice)?.total() - base).max(0.0))
    };
    let mut jobs = Vec::new();
    for stream in 0..loads.len() {
        let mut more = loads.to_vec();
        let Some(&like) = more[stream].jobs.first() else { continue };
        more[stream].jobs.push(like);
        let more = Model::new(machine, &more, options)?;
        // Who makes a second job has a pool to look for.
        let known = model.flows[stream].shares() == more.flows[stream].shares();
        let plan = finish(&more, &search::best(&more, known.then_some(&choice))?)?;
        let gets = plan.rates[stream].last().copied().unwrap_or_default();
        jobs.push(Joined { gets, total: plan.total() - base });
    }
    Ok(Prices {
        gigabyte: again(Machine { memory: machine.memory + GIGABYTE, ..*machine })?,
        core: again(Machine { cores: machine.cores + 1.0, ..*machine })?,
        megabyte: again(Machine { storage_bytes: machine.storage_bytes + MEGABYTE, ..*machine })?,
        requests: again(Machine { storage_requests: machine.storage_requests + REQUESTS, ..*machine })?,
        jobs,
    })
}
