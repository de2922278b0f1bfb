//! Every combination of scenario, pool, policy and mixing that was asked for.
//!
//! Only the shipped policy mixes, so the published ones run once for all mixings, and their cases do not
//! name one. All cases are checked before the first runs: a wrong number shall not cost minutes.

use anyhow::Result;
use forebay_policy::simulate::{Policy, Scenario, Wrong};

use super::source::{CURE, Source};
use crate::hint::Hinted;

/// What to combine. An empty list or nothing means what the scenario says.
#[derive(Debug)]
pub(super) struct Cases {
    pub(super) scenarios: Vec<Source>,
    pub(super) policies: Vec<Policy>,
    pub(super) pools: Vec<f64>,
    pub(super) mixings: Vec<f64>,
    pub(super) samples: Option<u64>,
    pub(super) workers: Option<u32>,
    pub(super) prepare: Option<f64>,
}

/// One combination, to be run with one or several seeds.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) origin: String,
    pub(super) scenario: Scenario,
    pub(super) policy: Policy,
}

impl Case {
    /// The mixing, where the policy knows it.
    pub(super) fn mixing(&self) -> Option<f64> {
        (self.policy == Policy::Forebay).then_some(self.scenario.mixing)
    }

    /// Scenario and pool.
    pub(super) fn place(&self) -> String {
        format!("{} pool={}", self.scenario.name, self.scenario.pool)
    }

    /// Scenario, pool and mixing.
    pub(super) fn label(&self) -> String {
        let mixing = self.mixing().map(|mixing| format!(" mixing={mixing}"));
        self.place() + &mixing.unwrap_or_default()
    }

    /// What is wrong with its scenario, for the user.
    pub(super) fn refuse(&self, wrong: &Wrong) -> anyhow::Error {
        Hinted::new(format!("{}: {wrong}", self.origin), CURE).into()
    }
}

impl Cases {
    /// Scenario by scenario, pool by pool, policy by policy, mixing by mixing.
    pub(super) fn list(&self) -> Result<Vec<Case>> {
        let mut cases = Vec::new();
        for Source { origin, scenario } in &self.scenarios {
            let mut scenario = scenario.clone();
            scenario.samples = self.samples.unwrap_or(scenario.samples);
            scenario.workers = self.workers.unwrap_or(scenario.workers);
            scenario.prepare = self.prepare.unwrap_or(scenario.prepare);
            let own = ([scenario.pool], [scenario.mixing]);
            let (pools, mixings) = (either(&self.pools, &own.0), either(&self.mixings, &own.1));
            for &pool in pools {
                for &policy in &self.policies {
                    let mixings = if policy == Policy::Forebay { mixings } else { &mixings[..1] };
                    for &mixing in mixings {
                        let scenario = Scenario { pool, mixing, ..scenario.clone() };
                        let case = Case { origin: origin.clone(), scenario, policy };
                        case.scenario.members().map_err(|wrong| case.refuse(&wrong))?;
                        cases.push(case);
                    }
                }
            }
        }
        Ok(cases)
    }
}

fn either<'a>(asked: &'a [f64], own: &'a [f64]) -> &'a [f64] {
    if asked.is_empty() { own } else { asked }
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;
    use crate::hint;

    fn cases() -> Cases {
        Cases {
            scenarios: source::read(&["one".into(), "4-equal".into()]).unwrap(),
            policies: vec![Policy::Forebay, Policy::Lru],
            pools: vec![0.01, 0.05],
            mixings: vec![0.0, 0.1, 0.2],
            samples: Some(500),
            workers: None,
            prepare: None,
        }
    }

    #[test]
    fn published_policies_run_once_for_all_mixings() {
        let labels: Vec<_> =
            cases().list().unwrap().iter().map(|case| (case.policy.name(), case.label())).collect();
        assert_eq!(labels.len(), 2 * 2 * (3 + 1));
        assert_eq!(labels[0], ("forebay", "one pool=0.01 mixing=0".into()));
        assert_eq!(labels[2], ("forebay", "one pool=0.01 mixing=0.2".into()));
        assert_eq!(labels[3], ("lru", "one pool=0.01".into()));
        assert_eq!(labels[4], ("forebay", "one pool=0.05 mixing=0".into()));
    }

    #[test]
    fn without_lists_the_scenario_decides() {
        let own = Cases { pools: vec![], mixings: vec![], ..cases() };
        let own = own.list().unwrap();
        assert_eq!(own[0].label(), "one pool=0.01 mixing=0.1");
        assert_eq!((own.len(), own[0].scenario.samples), (4, 500));
    }

    #[test]
    fn bad_numbers_are_told_with_the_origin_and_a_hint() {
        let said = hint::render(&Cases { pools: vec![7.0], ..cases() }.list().unwrap_err());
        assert_eq!(said, format!("error: built-in scenario one: pool = 7: between 0 and 2\nhint: {CURE}\n"));
        let said = hint::render(&Cases { workers: Some(2), ..cases() }.list().unwrap_err());
        assert!(said.contains("workers need prepare > 0"), "{said}");
    }
}
