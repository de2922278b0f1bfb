//! A machine and its streams as the linear program sees them: costs in parts of each resource, rates in one unit.
//!
//! Rates are counted in units of the fastest rate that any job can have, and resources as parts of the whole, so
//! that all coefficients are of like size.

use super::waste::waste;
use super::{Load, Machine, Options, PlanError};
use crate::share::Level;

/// Cores, storage bytes, storage requests, link.
pub(super) const ROWS: usize = 4;

/// Parts of each resource that one event per unit of time takes.
pub(super) type Cost = [f64; ROWS];

/// How a job's deliveries become preparations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It draws copies that others draw too.
    Pool,
    /// It takes decoded data that others take too, and makes its own copies.
    Window,
    /// It makes its own copies from its own takes.
    Own,
}

#[derive(Debug, Clone)]
pub(super) struct Drawer {
    pub(super) way: Way,
    /// Deliveries cannot be more, in units.
    pub(super) most: f64,
    /// Its part in a fair division, 1 for the largest.
    pub(super) weight: f64,
    /// Of a delivery.
    pub(super) cost: Cost,
}

#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) samples: f64,
    /// Bytes of the forms that can be kept: decoded (0: none) and encoded.
    pub(super) sizes: [f64; 2],
    /// Bytes of what the pool holds: of a copy, and of a window's sample.
    pub(super) copy: f64,
    /// Of a take from kept pixels, from kept files, from storage.
    pub(super) takes: [Cost; 3],
    /// Of making a copy for the pool and putting it there.
    pub(super) pooled: Cost,
    pub(super) jobs: Vec<Drawer>,
    mixing: f64,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    /// Deliveries per second in a unit.
    pub(super) unit: f64,
    pub(super) memory: f64,
    pub(super) flows: Vec<Flow>,
}

impl Model {
    pub(super) fn new(machine: &Machine, loads: &[Load], options: Options) -> Result<Self, PlanError> {
        machine.check()?;
        loads.iter().enumerate().try_for_each(|(stream, load)| load.check(stream))?;
        let reach = |load: &Load, finish: f64| reach(machine, load, finish);
        let jobs = || loads.iter().flat_map(|load| load.jobs.iter().map(move |job| (load, job)));
        // The most that any job without a demand could have.
        let common =
            jobs().filter(|(_, job)| job.demand.is_none()).map(|(load, job)| reach(load, job.finish_s));
        let common = common.fold(0.0, f64::max);
        // It counts as one that asks for an equal part of that, so that those without a demand share equally and
        // those with a small one are not crowded out.
        let equal = common / jobs().count().max(1) as f64;
        let demand = |load: &Load, job: &super::Job| {
            let limit = job.demand.unwrap_or(f64::INFINITY);
            (job.demand.unwrap_or(equal), limit.min(reach(load, job.finish_s)))
        };
        if common.is_infinite() {
            let free = |load: &Load| {
                load.jobs.iter().any(|j| j.demand.is_none() && reach(load, j.finish_s).is_infinite())
            };
            return Err(PlanError::Unbounded { stream: loads.iter().position(free).unwrap_or(0) });
        }
        let unit = jobs().map(|(load, job)| demand(load, job).1).fold(0.0, f64::max);
        let unit = if unit > 0.0 { unit } else { 1.0 };
        let largest = jobs().map(|(load, job)| demand(load, job).0).fold(f64::MIN_POSITIVE, f64::max);
        let flows = loads.iter().map(|load| {
            let drawers = load.jobs.iter().map(|job| {
                let (wanted, most) = demand(load, job);
                (way(job.level, options), wanted / largest, most / unit, job.finish_s)
            });
            flow(machine, load, unit, drawers.collect())
        });
        Ok(Model { unit, memory: machine.memory as f64, flows: flows.collect() })
    }
}

fn way(level: Level, options: Options) -> Way {
    match level {
        Level::Augmented => Way::Pool,
        Level::Decoded if options.window => Way::Window,
        Level::Decoded | Level::Encoded => Way::Own,
    }
}

/// A rate that no job of the stream can exceed, on cores and links.
fn reach(machine: &Machine, load: &Load, finish: f64) -> f64 {
    let kept = if load.decoded > 0.0 { 0.0 } else { load.decode_s };
    let seconds = load.augment_s + finish + kept;
    let cores = if seconds > 0.0 { machine.cores / seconds } else { f64::INFINITY };
    let smallest = if load.decoded > 0.0 { load.decoded.min(load.encoded) } else { load.encoded };
    let stored = (machine.storage_bytes / load.encoded).min(machine.storage_requests);
    cores.min(machine.link_bytes / smallest + stored)
}

fn flow(machine: &Machine, load: &Load, unit: f64, jobs: Vec<(Way, f64, f64, f64)>) -> Flow {
    let whole = [machine.cores, machine.storage_bytes, machine.storage_requests, machine.link_bytes];
    // A resource without limit is divided by infinity and costs nothing.
    let cost = |seconds, stored, requests, link| {
        let of: Cost = [seconds, stored, requests, link];
        std::array::from_fn(|row| of[row] * unit / whole[row])
    };
    // Who shares only files has no use for pixels that are kept.
    let pixels = load.jobs.iter().any(|job| job.level > Level::Encoded);
    let decoded = if pixels { load.decoded } else { 0.0 };
    let copy = if load.augmented > 0.0 { load.augmented } else { load.decoded };
    let alone = jobs.iter().filter(|job| job.0 == Way::Pool).count() < 2;
    // A copy that only one job can use is handed on and not put anywhere.
    let through = if alone { 0.0 } else { copy };
    let drawers = jobs.into_iter().map(|(way, weight, most, finish)| {
        let cost = match way {
            Way::Pool => cost(finish, 0.0, 0.0, through),
            Way::Window | Way::Own => cost(finish + load.augment_s, 0.0, 0.0, 0.0),
        };
        Drawer { way, most, weight, cost }
    });
    Flow {
        samples: load.samples as f64,
        sizes: [decoded, load.encoded],
        copy,
        takes: [
            cost(0.0, 0.0, 0.0, load.decoded),
            cost(load.decode_s, 0.0, 0.0, load.encoded),
            cost(load.read_s + load.decode_s, load.encoded, 1.0, 0.0),
        ],
        pooled: cost(load.augment_s, 0.0, 0.0, through),
        jobs: drawers.collect(),
        mixing: load.mixing,
    }
}

impl Flow {
    /// Whether a pool would serve more than one job.
    pub(super) fn shares(&self) -> bool {
        let count = |way| self.jobs.iter().filter(|job| job.way == way).count();
        count(Way::Pool) > 1 || count(Way::Window) > 1
    }

    /// The waste of those who go this way, with so many bytes of pool for both ways.
    pub(super) fn waste(&self, way: Way, pool: f64) -> f64 {
        let of = |way: Way| self.jobs.iter().filter(move |job| job.way == way);
        let (here, all) = (of(way).count(), of(Way::Pool).count() + of(Way::Window).count());
        let most = of(way).map(|job| job.weight).fold(0.0, f64::max);
        if here < 2 || most <= 0.0 {
            return 1.0;
        }
        let alike = of(way).map(|job| job.weight).sum::<f64>() / most;
        let size = if way == Way::Window { self.sizes[0] } else { self.copy };
        let part = pool * here as f64 / all as f64;
        if size <= 0.0 {
            return alike;
        }
        waste(alike, part / (self.samples * size), self.mixing)
    }

    /// Bytes of all samples in the larger kept form.
    pub(super) fn all(&self) -> f64 {
        self.samples * self.sizes[0].max(self.sizes[1])
    }
}
