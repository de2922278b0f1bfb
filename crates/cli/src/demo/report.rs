//! The figures of the demo and their table.

use std::path::PathBuf;

use forebay_policy::simulate::Quality;
use serde::Serialize;

use super::jobs::Outcome;

/// One way to feed the jobs.
#[derive(Debug, Serialize)]
pub(super) struct Side {
    /// Samples per second, summed over the jobs.
    pub(super) throughput: f64,
    /// From the start to the end of the last job.
    pub(super) makespan_seconds: f64,
    pub(super) preparations_per_delivery: f64,
    pub(super) reads_per_delivery: f64,
    /// What neither of these two can go below.
    pub(super) bound: f64,
    pub(super) jobs: Vec<Outcome>,
}

impl Side {
    /// Jobs that draw from one pool.
    pub(super) fn shared(jobs: Vec<Outcome>) -> Self {
        // No job gets a copy twice, so a sample is prepared as often as the job with most epochs gets it.
        let most = jobs.iter().map(|job| job.counted.deliveries).max().unwrap_or(0);
        let bound = most as f64 / sum(&jobs, |job| job.counted.deliveries as f64);
        Self { bound, ..Self::alone(jobs) }
    }

    /// Jobs that load for themselves.
    pub(super) fn alone(jobs: Vec<Outcome>) -> Self {
        let deliveries = sum(&jobs, |job| job.counted.deliveries as f64);
        Self {
            throughput: sum(&jobs, Outcome::rate),
            makespan_seconds: jobs.iter().map(|job| job.counted.seconds).fold(0.0, f64::max),
            preparations_per_delivery: sum(&jobs, |job| job.counted.preparations as f64) / deliveries,
            reads_per_delivery: sum(&jobs, |job| job.counted.reads as f64) / deliveries,
            bound: 1.0,
            jobs,
        }
    }

    /// Least to most of the jobs.
    fn range(&self, of: fn(&Quality) -> Option<f64>) -> String {
        let found = || self.jobs.iter().filter_map(|job| of(&job.quality));
        match (found().reduce(f64::min), found().reduce(f64::max)) {
            (Some(least), Some(most)) => format!("{:.2} to {:.2}", plain(least), plain(most)),
            _ => "–".into(),
        }
    }
}

/// Two digits, and no minus before nothing.
fn plain(value: f64) -> f64 {
    (value * 100.0).round() / 100.0 + 0.0
}

impl Outcome {
    /// Samples per second.
    fn rate(&self) -> f64 {
        self.counted.deliveries as f64 / self.counted.seconds
    }
}

fn sum(jobs: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    jobs.iter().map(of).sum()
}

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) data: PathBuf,
    pub(super) images: u64,
    pub(super) epochs: u64,
    pub(super) threads: usize,
    pub(super) shared: Side,
    pub(super) alone: Side,
    /// One epoch of one job that has the machine to itself.
    pub(super) pytorch: Outcome,
}

/// For people.
pub(super) fn table(report: &Report) -> String {
    let (shared, alone) = (&report.shared, &report.alone);
    let row = |name: &str, batch: &str, step: &str, ours: f64, own: f64| {
        format!("{name:<14}{batch:>6}{step:>15}{ours:>10.0}{own:>18.0}{:>8.1}\n", ours / own)
    };
    let mut text = format!(
        "{:<14}{:>6}{:>15}{:>10}{:>18}{:>8}\n",
        "samples/s", "batch", "step/sample", "shared", "each on its own", "times"
    );
    for (ours, own) in shared.jobs.iter().zip(&alone.jobs) {
        let step = format!("{:.2} ms", ours.step_seconds * 1e3);
        text.push_str(&row(ours.name, &ours.batch.to_string(), &step, ours.rate(), own.rate()));
    }
    text.push_str(&row("sum", "", "", shared.throughput, alone.throughput));
    text.push_str(&format!("\n{:<26}{:>20}{:>20}\n", "", "shared", "each on its own"));
    let mut line = |name: &str, show: fn(&Side) -> String| {
        text.push_str(&format!("{name:<26}{:>20}{:>20}\n", show(shared), show(alone)));
    };
    line("until the last job ends", |side| format!("{:.1} s", side.makespan_seconds));
    line("preparations per delivery", |side| bounded(side.preparations_per_delivery, side.bound));
    // What is kept between epochs is not read again, so the bound is no bound for it.
    line("storage reads per delivery", |side| format!("{:.2}", side.reads_per_delivery));
    line("correlation of epochs", |side| side.range(|quality| quality.correlation));
    line("repeated neighbours", |side| side.range(|quality| quality.repeated));
    line("label skew of batches", |side| side.range(|quality| quality.skew));
    text.push_str(&format!(
        "\n{} jobs, {} x {} JPEGs each, to 224x224 float32 batches, on {} threads.\n\
         One job with PyTorch's DataLoader and the machine to itself: {:.0} samples/s ({} workers).\n",
        shared.jobs.len(),
        report.epochs,
        report.images,
        report.threads,
        report.pytorch.rate(),
        report.threads
    ));
    text
}

fn bounded(value: f64, bound: f64) -> String {
    format!("{value:.2} (bound {bound:.2})")
}

#[cfg(test)]
mod tests {
    use super::super::jobs::Counted;
    use super::*;

    fn job(deliveries: u64, seconds: f64, preparations: u64, correlation: Option<f64>) -> Outcome {
        let counted = Counted { deliveries, seconds, preparations, reads: preparations };
        let quality = Quality { correlation, repeated: Some(-0.001), skew: None };
        Outcome { name: "slow-64", batch: 64, step_seconds: 0.00125, counted, quality }
    }

    #[test]
    fn a_side_sums_rates_and_ends_with_its_last_job() {
        let side = Side::alone(vec![job(100, 1.0, 110, None), job(100, 4.0, 90, None)]);
        assert_eq!((side.throughput, side.makespan_seconds), (125.0, 4.0));
        assert_eq!((side.preparations_per_delivery, side.reads_per_delivery, side.bound), (1.0, 1.0, 1.0));
    }

    #[test]
    fn sharing_cannot_prepare_less_than_the_job_that_gets_most() {
        let equal = Side::shared((0..4).map(|_| job(100, 1.0, 30, None)).collect());
        assert_eq!((equal.bound, equal.preparations_per_delivery), (0.25, 0.3));
        let unequal = Side::shared(vec![job(300, 1.0, 300, None), job(100, 1.0, 0, None)]);
        assert_eq!(unequal.bound, 0.75);
    }

    #[test]
    fn the_table_has_a_row_for_each_job_and_each_figure() {
        let report = Report {
            data: "d".into(),
            images: 100,
            epochs: 1,
            threads: 2,
            shared: Side::shared(vec![job(100, 1.0, 50, Some(-0.01)), job(100, 1.0, 50, Some(0.02))]),
            alone: Side::alone(vec![job(100, 2.0, 100, None), job(100, 2.0, 100, None)]),
            pytorch: job(100, 4.0, 100, None),
        };
        let text = table(&report);
        for row in [
            "slow-64           64        1.25 ms       100                50     2.0\n",
            "sum                                       200               100     2.0\n",
            "until the last job ends                  1.0 s               2.0 s\n",
            "preparations per delivery    0.50 (bound 0.50)   1.00 (bound 1.00)\n",
            "correlation of epochs            -0.01 to 0.02                   –\n",
            "repeated neighbours               0.00 to 0.00        0.00 to 0.00\n",
            "itself: 25 samples/s (2 workers).\n",
        ] {
            assert!(text.contains(row), "{row}in\n{text}");
        }
    }
}
