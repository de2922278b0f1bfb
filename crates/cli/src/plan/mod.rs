//! `forebay plan`: what to keep in memory, what that gives each job, and what would give more.
//!
//! `input` reads a profile or a published platform and applies what-ifs; the result is a [`Case`], a machine with
//! its streams. `report` plans it, and `table` and `plot` show what came out. Whoever has a machine and loads from
//! elsewhere, such as a daemon's counters, makes a [`Case`] of them and goes on from there.

mod input;
mod plot;
mod report;
mod table;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_engine::parse_bytes;
use forebay_policy::plan::platforms::published;
use forebay_wire::default_socket;

use crate::Answer;
pub(crate) use input::Case;
use input::Change;
use report::Report;

/// Arguments of `forebay plan`.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Where the daemon listens whose jobs are planned for where no profile is given.
    #[arg(long, env = "FOREBAY_SOCKET", conflicts_with = "profile")]
    socket: Option<PathBuf>,
    /// A profile of this machine and its streams, made by `forebay profile`; default: what a running daemon
    /// measures.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["platform", "dataset"])]
    profile: Option<PathBuf>,
    /// A platform published with Seneca (FAST '26), instead of a profile.
    #[arg(long, value_name = "NAME", requires = "dataset", value_parser = platforms())]
    platform: Option<String>,
    /// The published data set on that platform.
    #[arg(long, value_name = "NAME", requires = "platform", value_parser = datasets())]
    dataset: Option<String>,
    /// Jobs on each stream. They share copies.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Bytes for kept forms and pools, such as 8GB; default: the profile's.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,
    /// Files come from the page cache, at the profile's warm rates.
    #[arg(long)]
    warm: bool,
    /// Also plan with other figures: memory, cores, jobs, storage, requests, link, demand or mixing.
    #[arg(long, value_name = "memory=64GB,cores=8,storage=200MB/s,…", value_delimiter = ',', value_parser = Change::parse)]
    what_if: Vec<Change>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Also draw deliveries against memory, for each form alone and as planned.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

fn platforms() -> PossibleValuesParser {
    PossibleValuesParser::new(published().platforms.iter().map(|one| one.name.as_str()))
}

fn datasets() -> PossibleValuesParser {
    PossibleValuesParser::new(published().datasets.iter().map(|one| one.name.as_str()))
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|e| e.to_string())
}

impl Plan {
    /// Reads, plans, prints.
    pub(crate) fn run(self) -> Result<Answer> {
        let case = self.case()?;
        let changed = self.changed(&case)?;
        if let Some(file) = &self.plot {
            let drawing = plot::svg(changed.as_ref().unwrap_or(&case))?;
            fs::write(file, drawing).with_context(|| format!("cannot write {}", file.display()))?;
            eprintln!("drew {}", file.display());
        }
        let (before, report) = match changed {
            Some(changed) => (Some(Report::of(&case)?), Report::of(&changed)?),
            None => (None, Report::of(&case)?),
        };
        if self.json {
            let before = before.map(serde_json::to_value).transpose()?;
            let mut json = serde_json::to_value(&report)?;
            json["before"] = before.unwrap_or_default();
            println!("{}", serde_json::to_string_pretty(&json)?);
        } else {
            let what = self.what_if.iter().map(Change::to_string).collect::<Vec<_>>().join(", ");
            print!("{}", table::text(&report, before.as_ref().map(|before| (before, what.as_str()))));
        }
        Ok(Answer::Yes)
    }

    fn case(&self) -> Result<Case> {
        let jobs = self.jobs as usize;
        let mut case = match (&self.profile, &self.platform, &self.dataset) {
            (Some(file), ..) => input::profile(file, jobs, !self.warm)?,
            (None, Some(platform), Some(dataset)) => input::published(platform, dataset, jobs)?,
            _ => input::live(&self.socket.clone().unwrap_or_else(default_socket))?,
        };
        if let Some(memory) = self.memory {
            case.machine.memory = memory;
        }
        Ok(case)
    }

    fn changed(&self, case: &Case) -> Result<Option<Case>> {
        if self.what_if.is_empty() {
            return Ok(None);
        }
        let mut changed = case.clone();
        self.what_if.iter().try_for_each(|change| change.apply(&mut changed))?;
        Ok(Some(changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        plan: Plan,
    }

    const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plan/fixture.json");

    fn parse(line: &str) -> Plan {
        Line::parse_from(line.split(' ')).plan
    }

    #[test]
    fn arguments_are_read_and_contradictions_refused() {
        let plan = parse(
            "plan --profile p.json --jobs 4 --memory 2GB --what-if memory=64GB,cores=8,storage=200MB/s",
        );
        assert_eq!((plan.jobs, plan.memory, plan.what_if.len()), (4, Some(2_000_000_000), 3));
        let published = parse("plan --platform azure --dataset openimages --json");
        assert!(published.json && published.profile.is_none());
        for wrong in [
            "--platform azure",
            "--dataset openimages",
            "--platform moon --dataset openimages",
            "--profile p --platform azure --dataset openimages",
            "--profile p --jobs 0",
            "--profile p --what-if speed=3",
            "--profile p --what-if memory",
            "--profile p --what-if cores=-2",
            "--profile p --what-if storage=fast",
        ] {
            let line = format!("plan {wrong}");
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_profile_is_planned_and_a_what_if_changes_it() {
        let plan = parse(&format!("plan --profile {FIXTURE} --jobs 2 --what-if cores=8,jobs=4,memory=4GB"));
        let case = plan.case().unwrap();
        let changed = plan.changed(&case).unwrap().unwrap();
        assert_eq!((changed.machine.cores, changed.machine.memory), (8.0, 4_000_000_000));
        assert_eq!((case.loads[0].jobs.len(), changed.loads[0].jobs.len()), (2, 4));
        let (before, after) = (Report::of(&case).unwrap(), Report::of(&changed).unwrap());
        assert!(after.plan.total() > before.plan.total());
        let text = table::text(&after, Some((&before, "cores=8")));
        for part in ["what if cores=8", "binds", "GB of memory", "encoded only", "planned", "seneca"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let json = serde_json::to_value(&after).unwrap();
        assert!(json["plan"]["rates"][0][3].as_f64().unwrap() > 0.0, "{json}");
        assert_eq!(json["streams"][0]["name"], "pictures");
    }

    #[test]
    fn the_published_oddity_is_shown() {
        let case = parse("plan --platform azure --dataset openimages").case().unwrap();
        let report = Report::of(&case).unwrap();
        let files = report.splits.iter().find(|one| one.name == report::ENCODED).unwrap();
        assert_eq!((files.bottleneck.round(), files.seneca.map(f64::round)), (3498.0, Some(7748.0)));
        let text = table::text(&report, None);
        assert!(text.contains("554 MB/s of storage, which has 250 MB/s"), "\n{text}");
    }

    #[test]
    fn what_is_missing_is_named_with_its_cure() {
        let said = |line: &str| crate::hint::render(&parse(line).case().unwrap_err());
        let nothing = said("plan --jobs 2");
        assert!(nothing.contains("hint:") && nothing.contains("--profile"), "{nothing}");
        let absent = said("plan --profile /nowhere/p.json");
        assert!(absent.contains("/nowhere/p.json") && absent.contains("forebay profile"), "{absent}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "{\"version\": 9}").unwrap();
        let newer = said(&format!("plan --profile {}", file.path().display()));
        assert!(newer.contains("version 9") && newer.contains("newer forebay"), "{newer}");
    }

    #[test]
    fn the_drawing_has_a_line_for_each_form() {
        let case = parse(&format!("plan --profile {FIXTURE} --jobs 2")).case().unwrap();
        let svg = plot::svg(&case).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.ends_with("</svg>\n"));
    }
}
