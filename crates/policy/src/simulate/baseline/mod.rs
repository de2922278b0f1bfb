//! Published policies, as far as they are specified, to compare with.
//!
//! [`desk`] turns a decision rule into a [`System`]: it keeps requests, preparations and finished copies, so
//! that the file of a policy says only which samples a job gets, which of them are copies that exist, and
//! when it must wait. All of them train ranks of a job together (a batch is that of all ranks), form the
//! short batch at the end of an epoch, and ignore what only the shipped policy knows: order, level, mixing.

mod band;
mod coordinated;
mod desk;
mod joader;
mod left;
mod line;
mod lockstep;
mod lru;
mod minio;
mod ods;
mod own;
mod window;

use super::{Member, Policy, Scenario, System, Take, Wrong};
use desk::{Desk, Item, Rule, Stock};

/// The system for a published policy.
pub(super) fn build(
    policy: Policy,
    scenario: &Scenario,
    members: &[Member],
) -> Result<Box<dyn System>, Wrong> {
    let jobs = members.len();
    Ok(match policy {
        Policy::Lru => Desk::boxed(jobs, own::Own::new(members, lru::Recent::new(scenario.slots()))),
        Policy::NoEvict => Desk::boxed(jobs, own::Own::new(members, minio::First::new(scenario.slots()))),
        Policy::Ods => Desk::boxed(jobs, ods::Ods::new(scenario, members)),
        Policy::Coordinated => Desk::boxed(jobs, coordinated::rule(scenario, members)),
        Policy::Window => Desk::boxed(jobs, window::Window::new(scenario, members)),
        Policy::Band => Desk::boxed(jobs, band::rule(scenario, members)),
        Policy::Joader => Desk::boxed(jobs, joader::Joader::new(scenario, members)),
        Policy::Forebay => return Err(Wrong("forebay is not a baseline".into())),
    })
}

/// Samples of all ranks in one step.
fn step(member: &Member) -> usize {
    (member.group.batch * member.group.ranks) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Group, Report, run};
    use super::*;

    pub(super) fn report(policy: Policy, scenario: &Scenario) -> Report {
        run(scenario, policy, &mut |_| ()).unwrap()
    }

    /// One job per speed.
    pub(super) fn jobs(scenario: Scenario, batch: u32, speeds: &[f64]) -> Scenario {
        let group = |speed: &f64| Group { speed: speed * 1000.0, batch, ..Group::default() };
        Scenario { jobs: speeds.iter().map(group).collect(), ..scenario }
    }

    #[track_caller]
    pub(super) fn assert_near(value: f64, wanted: f64, within: f64) {
        assert!((value - wanted).abs() <= within, "{value} is not {wanted} within {within}");
    }

    fn group() -> impl Strategy<Value = Group> {
        let subset = prop_oneof![Just(None), Just(Some([0.0, 0.6])), Just(Some([0.3, 1.0]))];
        let stop = prop_oneof![3 => Just(None), 1 => (0.1..6.0).prop_map(Some)];
        let start = prop_oneof![Just(0.0), 0.0..4.0];
        let pause = prop_oneof![Just(0.0), 0.0..3.0];
        let sizes = (1u32..3, 1u32..80, 1u32..3);
        (sizes, 50.0..400.0, start, stop, pause, subset).prop_map(
            |((count, batch, ranks), speed, start, stop, pause, subset)| Group {
                count,
                batch,
                ranks,
                speed,
                start,
                stop,
                pause,
                subset,
                epochs: Some(2),
                ..Group::default()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_job_ends_its_epochs_whoever_comes_and_goes(
            jobs in prop::collection::vec(group(), 1..5),
            samples in 20u64..300,
            pool in 0.0..1.2,
            workers in 0u32..3,
            seed: u64,
        ) {
            let scenario = Scenario {
                jobs, samples, pool, workers, seed, prepare: 1e-4, warmup: 0, epochs: 20.0, ..Scenario::default()
            };
            let members = scenario.members().unwrap();
            for policy in Policy::ALL.into_iter().filter(|&policy| policy != Policy::Forebay) {
                let report = report(policy, &scenario);
                prop_assert_eq!(report.twice, 0, "{:?}", policy);
                prop_assert!(report.missed == 0 || policy == Policy::Window, "{:?}", policy);
                for (member, job) in members.iter().zip(&report.jobs) {
                    prop_assert!(job.epochs == 2 || member.group.stop.is_some(), "{:?}: {:?}", policy, job);
                }
                prop_assert_eq!(&report, &self::report(policy, &scenario), "{:?}", policy);
            }
        }
    }
}
