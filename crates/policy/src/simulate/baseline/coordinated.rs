//! Coordinated preparation of CoorDL: every batch of an epoch is prepared once, staged, and dropped when all
//! jobs used it.
//!
//! Who of the jobs prepares it is not simulated, since workers are shared. The staging area is the pool; a
//! job that it leaves no room for waits. The paper starts its jobs together and says nothing of later ones:
//! here they wait for the next epoch, since what was staged before them is gone and would have to be
//! prepared again.

use super::lockstep::Lockstep;
use super::{Member, Scenario};

pub(super) fn rule(scenario: &Scenario, members: &[Member]) -> Lockstep {
    Lockstep::new(scenario, members, None, false)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_near, jobs, report};
    use crate::simulate::{Policy, Scenario};

    #[test]
    fn jobs_in_step_prepare_once_for_all() {
        // CoorDL: each of the jobs prepares its part of the epoch, 1 / jobs.
        for count in [1, 4, 8] {
            let report = report(Policy::Coordinated, &jobs(Scenario::default(), 64, &vec![1.0; count]));
            assert_near(report.ratio, 1.0 / count as f64, 0.003);
            assert_eq!((report.missed, report.twice, report.repeats), (0, 0, Some(0)));
        }
    }

    #[test]
    fn the_fast_wait_for_the_slow() {
        let report = report(Policy::Coordinated, &jobs(Scenario::default(), 64, &[4.0, 2.0, 1.0]));
        for (job, waited) in report.jobs.iter().zip([0.75, 0.5, 0.0]) {
            assert_near(job.waited, waited, 0.02);
        }
        assert_near(report.ratio, 1.0 / 3.0, 0.003);
    }

    #[test]
    fn who_comes_late_waits_for_the_next_epoch() {
        let mut scenario = jobs(Scenario { warmup: 0, epochs: 3.0, ..Scenario::default() }, 64, &[1.0; 2]);
        scenario.jobs[1].start = 0.05;
        let late = report(Policy::Coordinated, &scenario);
        assert_near(late.jobs[1].waited, 1.0 / 3.0, 0.02);
        assert_eq!((late.missed, late.twice), (0, 0));
    }
}
