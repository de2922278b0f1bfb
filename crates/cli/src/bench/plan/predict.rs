//! What the model says of a cell, from what work costs: measured once, before any cell.

use anyhow::{Context, Result};
use forebay_policy::plan::{self, Job, Load, Machine, Plan, Split};
use forebay_policy::share::Level;
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use crate::bench::window::Window;

/// What work costs, in core-seconds for a sample, and how large its forms are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    pub(crate) samples: u64,
    pub(crate) encoded: f64,
    pub(crate) decoded: f64,
    pub(crate) augmented: f64,
    pub(crate) read_s: f64,
    pub(crate) decode_s: f64,
    pub(crate) augment_s: f64,
    /// Of the daemon: finish, and all that no stage counts.
    pub(crate) finish_s: f64,
    /// Of the process that takes batches.
    pub(crate) job_s: f64,
    pub(crate) cores: f64,
    /// Reads per second of the device.
    pub(crate) requests: f64,
}

/// Counters and CPU time of two turns: one that decodes every sample, one that has all of them decoded.
pub(crate) fn costs(plain: &Window, kept: &Window) -> Result<[f64; 5]> {
    let per = |window: &Window, seconds: &str, each: &str| {
        window.counted(seconds, each).with_context(|| format!("{seconds} was not counted"))
    };
    let read_s = per(plain, "read_seconds", "reads")?;
    let decode_s = per(plain, "decode_seconds", "decodes")?;
    let augment_s = (per(plain, "augment_seconds", "preparations")?
        + per(kept, "augment_seconds", "preparations")?)
        / 2.0;
    let finish = |window: &Window| {
        let all = window.server_cpu_s_per_sample().context("nothing was delivered")?;
        let part = |seconds: &str| window.counted(seconds, "deliveries").unwrap_or_default();
        // What no stage counts is done for each delivery.
        anyhow::Ok(all - part("read_seconds") - part("decode_seconds") - part("augment_seconds"))
    };
    let finish_s = (finish(plain)? + finish(kept)?) / 2.0;
    let job_s = kept.job_cpu_s_per_sample().context("nothing was delivered")?;
    Ok([read_s, decode_s, augment_s, finish_s.max(0.0), job_s])
}

impl Costs {
    /// Bytes of all decoded images.
    pub(crate) fn decoded_set(&self) -> u64 {
        (self.decoded * self.samples as f64) as u64
    }

    fn machine(&self, cell: Cell, room: u64) -> Machine {
        Machine {
            cores: self.cores,
            memory: room,
            storage_bytes: f64::INFINITY,
            storage_requests: if cell.storage { self.requests } else { f64::INFINITY },
            link_bytes: f64::INFINITY,
        }
    }

    fn load(&self, cell: Cell) -> Load {
        let job = Job { demand: None, finish_s: self.finish_s + self.job_s, level: Level::Augmented };
        Load {
            samples: self.samples,
            encoded: self.encoded,
            decoded: self.decoded,
            augmented: self.augmented,
            read_s: self.read_s,
            decode_s: self.decode_s,
            augment_s: self.augment_s,
            mixing: 0.0,
            jobs: vec![job; cell.jobs],
        }
    }

    /// Deliveries per second of all jobs with a given split of `room`.
    pub(crate) fn predict(&self, cell: Cell, room: u64, [files, pixels, copies]: [u8; 3]) -> Result<Plan> {
        let of = |part: u8| room / 100 * u64::from(part);
        let split = Split { encoded: of(files), decoded: of(pixels), pool: of(copies) };
        Ok(plan::predict(&self.machine(cell, room), &[self.load(cell)], &[split])?)
    }

    /// The best plan for `room`.
    pub(crate) fn best(&self, cell: Cell, room: u64) -> Result<Plan> {
        Ok(plan::bottleneck(&self.machine(cell, room), &[self.load(cell)])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_reckons_with_the_device_and_the_cores() {
        let costs = Costs {
            samples: 1000,
            encoded: 1e5,
            decoded: 6e5,
            augmented: 1.5e5,
            read_s: 0.0,
            decode_s: 8e-4,
            augment_s: 1e-4,
            finish_s: 5e-5,
            job_s: 5e-5,
            cores: 2.0,
            requests: 100.0,
        };
        let cell = |storage, jobs| Cell { storage, memory: 25, jobs };
        let rate = |cell, split| costs.predict(cell, 100_000_000, split).unwrap().total();
        assert!((rate(cell(true, 1), [0, 0, 100]) - 100.0).abs() < 1.0, "every sample from the device");
        assert!((rate(cell(true, 1), [100, 0, 0]) - 2000.0).abs() < 1.0, "all files fit: 1 ms of two cores");
        assert!((rate(cell(true, 4), [0, 0, 100]) - 400.0).abs() < 8.0, "one read for four jobs");
        let best = costs.best(cell(true, 1), 100_000_000).unwrap().total();
        assert!(best >= 1999.0, "{best}");
    }
}
