//! `forebay simulate`: what sharing costs and gives for jobs that come and go, without data or cores.
//!
//! The library drives the shipped policy, or a published one, through a scenario. This folder reads
//! scenarios (`source`), makes every combination that was asked for (`cases`), runs them on all cores
//! (`runs`) and shows what came out: `outcome` holds the numbers, `table`, `policies` and `frontier` draw.

mod cases;
mod frontier;
mod outcome;
mod policies;
mod runs;
mod source;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_policy::simulate::Policy;

use crate::bench::machine::Machine;
use crate::bench::report::Report;
use crate::{Answer, demo};
use cases::Cases;
use outcome::Outcome;

/// The policy that means every policy.
const ALL: &str = "all";

/// Arguments of `forebay simulate`.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// Scenario files, or names of built-in scenarios; default: all built-in ones.
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<PathBuf>,
    /// Who serves the jobs.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "forebay", value_parser = names())]
    policy: Vec<String>,
    /// Copies that the pool or cache holds, as shares of the samples; default: the scenario's.
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', allow_negative_numbers = true)]
    pool: Vec<f64>,
    /// Parts of the draws that follow each job's own order; default: the scenario's.
    #[arg(long, value_name = "PART,…", value_delimiter = ',', allow_negative_numbers = true)]
    mixing: Vec<f64>,
    /// Runs of every combination, each with another seed.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Samples of the dataset; default: the scenario's.
    #[arg(long, value_name = "N")]
    samples: Option<u64>,
    /// Threads that prepare, 0 for preparation that takes no time; default: the scenario's.
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Seconds that one preparation takes; default: the scenario's.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    prepare: Option<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also draw into this folder: policies.svg, and frontier.svg where several mixings were run.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Name the built-in scenarios.
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print a built-in scenario, to start a file of your own from.
    #[arg(long, value_name = "NAME", exclusive = true, value_parser = PossibleValuesParser::new(source::NAMES))]
    show: Option<String>,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name).into_iter().chain([ALL]))
}

impl Simulate {
    /// Reads, runs, prints.
    pub(crate) fn run(self) -> Result<Answer> {
        if self.list {
            print!("{}", source::list());
            return Ok(Answer::Yes);
        }
        if let Some(name) = &self.show {
            print!("{}", source::built_in(name).unwrap_or_default());
            return Ok(Answer::Yes);
        }
        let threads = demo::cores();
        let outcomes = self.outcomes(threads)?;
        if let Some(folder) = &self.plot {
            plot(folder, &outcomes)?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report(Machine::read(threads), &outcomes))?);
        } else {
            print!("{}", table::table(&outcomes));
        }
        Ok(Answer::Yes)
    }

    fn outcomes(&self, threads: usize) -> Result<Vec<Outcome>> {
        let chosen = |policy: &Policy| self.policy.iter().any(|name| name == ALL || name == policy.name());
        let cases = Cases {
            scenarios: source::read(&self.scenarios)?,
            policies: Policy::ALL.into_iter().filter(chosen).collect(),
            pools: self.pool.clone(),
            mixings: self.mixing.clone(),
            samples: self.samples,
            workers: self.workers,
            prepare: self.prepare,
        };
        runs::run(cases.list()?, self.seeds, threads)
    }
}

/// The shape that all benches share.
fn report(machine: Machine, outcomes: &[Outcome]) -> Report {
    Report::of("simulate", machine, outcomes.iter().flat_map(Outcome::measured).collect())
}

fn plot(folder: &Path, outcomes: &[Outcome]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let drawings =
        [("policies.svg", Some(policies::svg(outcomes))), ("frontier.svg", frontier::svg(outcomes))];
    for (name, drawing) in drawings {
        let Some(drawing) = drawing else { continue };
        let file = folder.join(name);
        fs::write(&file, drawing).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("drew {}", file.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        simulate: Simulate,
    }

    fn parse(line: &str) -> Simulate {
        Line::parse_from(line.split(' ')).simulate
    }

    #[test]
    fn lists_are_separated_by_commas_and_unknown_names_are_refused() {
        let simulate =
            parse("simulate one my.toml --policy ods,no-evict --pool 0.01,0.05 --mixing 0,0.1 --seeds 5");
        assert_eq!(simulate.scenarios, [PathBuf::from("one"), PathBuf::from("my.toml")]);
        assert_eq!(simulate.policy, ["ods", "no-evict"]);
        assert_eq!((&simulate.pool[..], &simulate.mixing[..]), (&[0.01, 0.05][..], &[0.0, 0.1][..]));
        assert_eq!((simulate.seeds, simulate.samples, simulate.json), (5, None, false));
        for wrong in ["--policy best", "--pool much", "--seeds 0", "--show none", "--list --json"] {
            let line = format!("simulate {wrong}");
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_built_in_scenario_runs_under_every_policy_and_equal_runs_are_equal() {
        let simulate = parse("simulate --samples 500 --policy all");
        let outcomes = simulate.outcomes(2).unwrap();
        assert_eq!(outcomes.len(), source::NAMES.len() * Policy::ALL.len());
        for outcome in &outcomes {
            let report = &outcome.reports[0];
            assert!(report.deliveries > 0, "{}", outcome.case.label());
            assert_eq!(report.twice, 0, "{}", outcome.case.label());
        }
        assert_eq!(table::table(&outcomes), table::table(&simulate.outcomes(1).unwrap()));
    }

    #[test]
    fn the_json_has_the_shape_of_a_bench() {
        let outcomes =
            parse("simulate one --samples 500 --policy forebay,lru --seeds 3").outcomes(2).unwrap();
        let json = serde_json::to_value(report(Machine::read(2), &outcomes)).unwrap();
        assert_eq!(json["bench"], "simulate");
        assert_eq!(json["ratios"].as_array().unwrap().len(), 0);
        let results = json["results"].as_array().unwrap();
        assert_eq!(results.len(), 2 * outcome::METRICS.len());
        let first = &results[0];
        assert_eq!(first["side"], "forebay");
        assert_eq!(first["case"], "one pool=0.01 mixing=0.1");
        assert_eq!(first["metric"], "preparations_per_delivery");
        assert_eq!(first["runs"], 3);
        assert!(first["p10"].as_f64() <= first["median"].as_f64());
        assert_eq!(results[outcome::METRICS.len()]["case"], "one pool=0.01");
    }

    #[test]
    fn drawings_go_into_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("new");
        let one = parse("simulate one --samples 500").outcomes(1).unwrap();
        plot(&into, &one).unwrap();
        assert!(into.join("policies.svg").exists() && !into.join("frontier.svg").exists());
        let several = parse("simulate 4-equal --samples 500 --mixing 0,0.1").outcomes(1).unwrap();
        plot(&into, &several).unwrap();
        assert!(into.join("frontier.svg").exists());
    }
}
