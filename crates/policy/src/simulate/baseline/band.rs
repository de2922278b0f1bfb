//! The rubber band of TensorSocket: one producer serves the slowest consumer first, and consumers may be
//! apart by a short buffer.
//!
//! Who joins while the buffer still holds the beginning of the epoch catches up and the others wait for it;
//! who comes later waits until the epoch is over. The buffer is a fixed part of the epoch, whatever the
//! pool holds, but never less than a batch. Not simulated: consumers that are taken for dead when they do
//! not answer, and samples that are lost where a batch does not divide the producer's.

use super::lockstep::Lockstep;
use super::{Member, Scenario};

/// Buffer, as a share of the epoch.
const BUFFER: f64 = 0.005;

pub(super) fn rule(scenario: &Scenario, members: &[Member]) -> Lockstep {
    Lockstep::new(scenario, members, Some(BUFFER), true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_near, jobs, report};
    use crate::simulate::{Policy, Scenario};

    #[test]
    fn consumers_within_the_band_are_served_by_one_preparation() {
        // TensorSocket: one producer for any number of consumers.
        let report = report(Policy::Band, &jobs(Scenario::default(), 32, &[1.0; 4]));
        assert_near(report.ratio, 0.25, 0.003);
        assert_eq!((report.missed, report.twice, report.repeats), (0, 0, Some(0)));
    }

    #[test]
    fn a_late_consumer_catches_up_within_the_band_and_waits_beyond_it() {
        // An epoch takes 20 s and the band holds a tenth of a second of it.
        for (start, waited) in [(0.05, 0.0), (6.0, 14.0 / 60.0)] {
            let times = Scenario { warmup: 0, epochs: 3.0, ..Scenario::default() };
            let mut scenario = jobs(times, 32, &[1.0; 2]);
            scenario.jobs[1].start = start;
            let report = report(Policy::Band, &scenario);
            assert_near(report.jobs[1].waited, waited, 0.02);
            assert_eq!((report.missed, report.twice), (0, 0));
        }
    }
}
