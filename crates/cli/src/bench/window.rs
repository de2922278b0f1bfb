//! What jobs were given in a stretch of time in which all of them ran: [`Window`].
//!
//! A job may take a second for a batch, so whole batches would be a coarse measure. Between two arrivals
//! samples count in proportion to time.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

/// What one job tells after a turn: when its batches arrived and how many samples each had.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Told {
    pub(crate) arrivals: Vec<(f64, u64)>,
    pub(crate) preparations: Option<u64>,
    pub(crate) deliveries: Option<u64>,
    /// By how much its counters grew after it was warm.
    #[serde(default)]
    pub(crate) counters: BTreeMap<String, f64>,
    /// Bytes of decoded images that its engine keeps.
    #[serde(default)]
    pub(crate) decoded_bytes: Option<u64>,
}

/// One turn of a side.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    /// Samples per second of each job.
    rates: Vec<f64>,
    /// CPU seconds, per second: of the jobs with their workers, and of what feeds them.
    cpu: [f64; 2],
    /// Over the whole turn, of all jobs together; `None` where the side does not count.
    prepared: Option<f64>,
    counters: BTreeMap<String, f64>,
    decoded_bytes: Option<u64>,
}

impl Window {
    /// From `begin` to `end`, for which jobs and what feeds them took `cpu` seconds of CPU time.
    pub(crate) fn new(told: &[Told], begin: f64, end: f64, cpu: [f64; 2]) -> Result<Self> {
        let rate = |one: &Told| {
            let samples = arrived(&one.arrivals, end)? - arrived(&one.arrivals, begin)?;
            Some(samples / (end - begin))
        };
        let rates = told.iter().map(rate).collect::<Option<_>>().context("a job left before the others")?;
        let sum = |count: fn(&Told) -> Option<u64>| told.iter().map(count).sum::<Option<u64>>();
        let prepared = sum(|one| one.preparations)
            .zip(sum(|one| one.deliveries).filter(|&deliveries| deliveries > 0))
            .map(|(preparations, deliveries)| preparations as f64 / deliveries as f64);
        let mut counters: BTreeMap<String, f64> = BTreeMap::new();
        for (name, value) in told.iter().flat_map(|one| &one.counters) {
            *counters.entry(name.clone()).or_default() += value;
        }
        let decoded_bytes = told.iter().filter_map(|one| one.decoded_bytes).max();
        let cpu = cpu.map(|seconds| seconds / (end - begin));
        Ok(Self { rates, cpu, prepared, counters, decoded_bytes })
    }

    /// Samples per second of each job.
    pub(crate) fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Of all jobs.
    pub(crate) fn samples_per_s(&self) -> f64 {
        self.rates.iter().sum()
    }

    /// The slowest job's rate over the fastest one's.
    pub(crate) fn fairness(&self) -> Option<f64> {
        let slowest = self.rates.iter().copied().reduce(f64::min)?;
        let fastest = self.rates.iter().copied().reduce(f64::max)?;
        (fastest > 0.0).then(|| slowest / fastest)
    }

    /// Bytes of decoded images that were kept at the end.
    pub(crate) fn decoded_bytes(&self) -> Option<u64> {
        self.decoded_bytes
    }

    /// By how much a counter of all jobs together grew for each time that another did.
    pub(crate) fn counted(&self, name: &str, each: &str) -> Option<f64> {
        let of = |name: &str| self.counters.get(name).copied();
        of(each).filter(|&count| count > 0.0).and_then(|count| Some(of(name)? / count))
    }

    /// CPU seconds of the jobs themselves, for a sample that a job was given.
    pub(crate) fn job_cpu_s_per_sample(&self) -> Option<f64> {
        self.per_sample(self.cpu[0])
    }

    /// CPU seconds of all processes for a sample that a job was given.
    pub(crate) fn cpu_s_per_sample(&self) -> Option<f64> {
        self.per_sample(self.cpu.iter().sum())
    }

    /// CPU seconds of what feeds the jobs, for a sample that a job was given.
    pub(crate) fn server_cpu_s_per_sample(&self) -> Option<f64> {
        self.per_sample(self.cpu[1])
    }

    fn per_sample(&self, cpu: f64) -> Option<f64> {
        let rate = self.samples_per_s();
        (rate > 0.0).then(|| cpu / rate)
    }

    /// Preparations over deliveries.
    pub(crate) fn preparations_per_delivery(&self) -> Option<f64> {
        self.prepared
    }
}

/// Samples that arrived after the first batch and up to `at`; `None` before the first and after the last.
fn arrived(arrivals: &[(f64, u64)], at: f64) -> Option<f64> {
    let mut sum = 0.0;
    for pair in arrivals.windows(2) {
        let ((before, _), (now, samples)) = (pair[0], pair[1]);
        if (before..=now).contains(&at) {
            let part = if now > before { (at - before) / (now - before) } else { 1.0 };
            return Some(sum + part * samples as f64);
        }
        sum += samples as f64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(arrivals: &[(f64, u64)], counters: Option<(u64, u64)>) -> Told {
        Told {
            arrivals: arrivals.into(),
            preparations: counters.map(|pair| pair.0),
            deliveries: counters.map(|pair| pair.1),
            counters: counters.map(|pair| [("reads".into(), pair.0 as f64)].into()).unwrap_or_default(),
            decoded_bytes: None,
        }
    }

    #[test]
    fn batches_across_an_edge_count_in_proportion() {
        let arrivals = [(1.0, 64), (2.0, 64), (4.0, 64)];
        assert_eq!(arrived(&arrivals, 1.0), Some(0.0));
        assert_eq!(arrived(&arrivals, 1.5), Some(32.0));
        assert_eq!(arrived(&arrivals, 3.0), Some(96.0));
        assert_eq!(arrived(&arrivals, 4.0), Some(128.0));
        assert_eq!(arrived(&arrivals, 0.9), None);
        assert_eq!(arrived(&arrivals, 4.1), None);
    }

    #[test]
    fn a_window_adds_jobs_up_and_tells_the_slowest_from_the_fastest() {
        let jobs = [
            told(&[(0.0, 64), (1.0, 64), (2.0, 64), (3.0, 64)], Some((90, 100))),
            told(&[(0.5, 64), (2.5, 64), (4.5, 64)], Some((10, 100))),
        ];
        let window = Window::new(&jobs, 1.0, 3.0, [4.5, 1.5]).unwrap();
        assert_eq!(window.samples_per_s(), 96.0);
        assert_eq!(window.fairness(), Some(0.5));
        assert_eq!(window.cpu_s_per_sample(), Some(0.03125));
        assert_eq!(window.server_cpu_s_per_sample(), Some(0.0078125));
        assert_eq!(window.preparations_per_delivery(), Some(0.5));
    }

    #[test]
    fn a_job_that_does_not_count_leaves_preparations_out_and_one_that_left_is_an_error() {
        let jobs = [told(&[(0.0, 64), (9.0, 64)], Some((1, 2))), told(&[(0.0, 64), (9.0, 64)], None)];
        assert_eq!(Window::new(&jobs, 1.0, 2.0, [1.0, 0.0]).unwrap().preparations_per_delivery(), None);
        assert!(Window::new(&jobs, 8.0, 10.0, [1.0, 0.0]).is_err());
    }
}
