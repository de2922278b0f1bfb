//! What a case gave, over its seeds, and the metrics that are reported of it.

use forebay_policy::simulate::Report;

use super::cases::Case;
use crate::bench::report::Measured;

/// A figure of a run; nothing where there was too little to see.
pub(super) type Metric = (&'static str, fn(&Report) -> Option<f64>);

/// Preparations per delivery: what sharing is about.
pub(super) const PREPARED: Metric = ("preparations_per_delivery", |report| Some(report.ratio));
/// The least that a small pool allows.
pub(super) const BOUND: Metric = ("bound", |report| Some(report.bound));
/// Of a sample's place in one epoch and in the next.
pub(super) const CORRELATION: Metric = ("correlation", |report| report.quality.correlation);
/// Neighbours that were neighbours in the epoch before.
pub(super) const REPEATED: Metric = ("repeated", |report| report.quality.repeated);
/// Of a batch's labels.
pub(super) const SKEW: Metric = ("skew", |report| report.quality.skew);
/// Deliveries that were there before the job asked.
pub(super) const HITS: Metric = ("hits", |report| Some(report.hits));
/// Share of the jobs' time.
pub(super) const WAITED: Metric = ("waited", |report| Some(report.waited));
/// Samples that an epoch did not give.
pub(super) const MISSED: Metric = ("missed", |report| Some(report.missed as f64));
/// Samples that an epoch gave again.
pub(super) const TWICE: Metric = ("twice", |report| Some(report.twice as f64));
/// Copies that a job was given again.
pub(super) const REPEATS: Metric = ("repeats", |report| report.repeats.map(|repeats| repeats as f64));

/// All of them, in the order of the report.
pub(super) const METRICS: [Metric; 10] =
    [PREPARED, BOUND, CORRELATION, REPEATED, SKEW, HITS, WAITED, MISSED, TWICE, REPEATS];

/// A case and its reports, one for each seed.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) case: Case,
    pub(super) reports: Vec<Report>,
}

/// A figure over the seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Outcome {
    /// One figure over all seeds that have it.
    pub(super) fn spread(&self, metric: Metric) -> Option<Spread> {
        let values = self.values(metric);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let low = values.iter().copied().reduce(f64::min)?;
        Some(Spread { mean, low, high: values.iter().copied().reduce(f64::max)? })
    }

    /// Preparations above the bound, as a share of it.
    pub(super) fn over(&self) -> Option<f64> {
        let (prepared, bound) = (self.spread(PREPARED)?.mean, self.spread(BOUND)?.mean);
        (bound > 0.0).then(|| prepared / bound - 1.0)
    }

    /// All metrics, as benches report them.
    pub(super) fn measured(&self) -> Vec<Measured> {
        let (side, case) = (self.case.policy.name(), self.case.label());
        let one = |metric: Metric| Measured::new(side, &case, metric.0, &self.values(metric), 6);
        METRICS.into_iter().filter_map(one).collect()
    }

    /// Whether the warm-up ended with every seed.
    pub(super) fn is_warm(&self) -> bool {
        self.reports.iter().all(|report| report.measured)
    }

    fn values(&self, (_, get): Metric) -> Vec<f64> {
        self.reports.iter().filter_map(get).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use forebay_policy::simulate::{Policy, Quality, Scenario};

    /// A case with one report for each number of preparations per delivery.
    pub(crate) fn outcome(name: &str, policy: Policy, mixing: f64, prepared: &[f64]) -> Outcome {
        let scenario = Scenario { name: name.into(), mixing, ..Scenario::default() };
        let report = |&ratio: &f64| Report {
            scenario: name.into(),
            policy,
            measured: true,
            preparations: 0,
            deliveries: 1000,
            ratio,
            bound: 0.25,
            hits: 0.75,
            missed: 0,
            twice: 0,
            repeats: Some(0),
            neglected: 0,
            waited: 0.0,
            quality: Quality { correlation: Some(0.1 - mixing), repeated: Some(0.001), skew: None },
            jobs: Vec::new(),
        };
        let case = Case { origin: "test".into(), scenario, policy };
        Outcome { case, reports: prepared.iter().map(report).collect() }
    }

    #[test]
    fn figures_are_means_with_the_extremes_and_what_is_unknown_is_left_out() {
        let outcome = outcome("a", Policy::Forebay, 0.1, &[0.25, 0.30, 0.35]);
        let spread = outcome.spread(PREPARED).unwrap();
        assert!((spread.mean - 0.30).abs() < 1e-12 && (spread.low, spread.high) == (0.25, 0.35));
        assert!((outcome.over().unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(outcome.spread(SKEW), None);
        assert_eq!(outcome.measured().len(), METRICS.len() - 1);
    }
}
