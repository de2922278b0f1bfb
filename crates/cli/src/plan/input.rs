//! Where a machine and its streams come from: a profile, or a published platform; and what-ifs.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use forebay_engine::parse_bytes;
use forebay_engine::pipeline::Planning;
use forebay_policy::plan::platforms;
use forebay_policy::plan::profile::Profile;
use forebay_policy::plan::seneca::Shares;
use forebay_policy::plan::{Load, Machine};

use crate::hint::Hinted;
use crate::status;

/// What is planned.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The machine.
    pub(crate) machine: Machine,
    /// Its streams.
    pub(crate) loads: Vec<Load>,
    /// What to call them.
    pub(crate) names: Vec<String>,
    /// The split that was published for it.
    pub(crate) published: Option<Shares>,
}

/// The cure when there is nothing to plan.
pub(super) fn nothing() -> Hinted {
    Hinted::new(
        "there is nothing to plan",
        "make a profile with `forebay profile` and pass it with --profile, start training with a daemon \
         (`forebay serve`), or name a published machine with --platform azure --dataset openimages",
    )
}

/// What a running daemon measures of itself and its jobs.
pub(super) fn live(socket: &Path) -> Result<Case> {
    let Some(status) = status::ask(socket)? else { return Err(nothing().into()) };
    let planning: Planning = serde_json::from_str(&status.planning).context("the daemon tells of no plan")?;
    let (Some(machine), false) = (planning.machine, planning.streams.is_empty()) else {
        bail!(Hinted::new(
            "the daemon has measured nothing to plan with",
            "let a job draw from it for some seconds; with `--cache` other than auto it does not plan"
        ));
    };
    let (names, loads) = planning.streams.into_iter().unzip();
    Ok(Case { machine, loads, names, published: None })
}

/// Reads a profile.
pub(super) fn profile(file: &Path, jobs: usize, cold: bool) -> Result<Case> {
    let text = fs::read_to_string(file)
        .map_err(|error| Hinted::new(error.to_string(), "`forebay profile` makes one"))
        .with_context(|| format!("cannot read the profile {}", file.display()))?;
    let profile =
        Profile::from_json(&text).with_context(|| format!("cannot plan with {}", file.display()))?;
    let name = |dataset: &str| {
        let last = Path::new(dataset).file_name().map(|name| name.to_string_lossy().into_owned());
        last.unwrap_or_else(|| dataset.to_owned())
    };
    Ok(Case {
        machine: profile.machine(profile.machine.memory, cold),
        loads: profile.loads(jobs),
        names: profile.streams.iter().map(|stream| name(&stream.dataset)).collect(),
        published: None,
    })
}

/// A published platform with a data set.
pub(super) fn published(platform: &str, dataset: &str, jobs: usize) -> Result<Case> {
    let all = platforms::published();
    let found = all.platform(platform).zip(all.dataset(dataset));
    let (platform, dataset) = found.context("there is no such platform or data set")?;
    Ok(Case {
        machine: platform.machine(),
        loads: vec![platform.load(dataset, jobs)],
        names: vec![format!("{} on {}", dataset.name, platform.name)],
        published: dataset.shares(platform),
    })
}

/// One figure that is different.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    /// Bytes.
    Memory(u64),
    /// How many.
    Cores(f64),
    /// On each stream.
    Jobs(usize),
    /// Bytes per second.
    Storage(f64),
    /// Reads per second.
    Requests(f64),
    /// Bytes per second.
    Link(f64),
    /// Deliveries per second of each job.
    Demand(f64),
    /// Part of the draws.
    Mixing(f64),
}

const CHANGES: &str =
    "memory=64GB, cores=8, jobs=4, storage=200MB/s, requests=500, link=10GB/s, demand=900 or mixing=0.1";

impl Change {
    /// Reads `name=value`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no change; write {CHANGES}");
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let value = value.trim();
        let number = || {
            let number = value.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
            number.ok_or_else(wrong)
        };
        let size = || parse_bytes(value.trim_end_matches("/s")).map_err(|_| wrong());
        let rate = || size().and_then(|bytes| if bytes > 0 { Ok(bytes as f64) } else { Err(wrong()) });
        Ok(match name.trim() {
            "memory" => Change::Memory(size()?),
            "cores" => Change::Cores(number()?),
            "jobs" => match value.parse() {
                Ok(jobs @ 1..=64) => Change::Jobs(jobs),
                _ => return Err(wrong()),
            },
            "storage" => Change::Storage(rate()?),
            "requests" => Change::Requests(number()?),
            "link" => Change::Link(rate()?),
            "demand" => Change::Demand(number()?),
            "mixing" => Change::Mixing(value.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        })
    }

    /// Makes it so.
    pub(super) fn apply(self, case: &mut Case) -> Result<()> {
        let machine = &mut case.machine;
        match self {
            Change::Memory(bytes) => machine.memory = bytes,
            Change::Cores(cores) => machine.cores = cores,
            Change::Storage(bytes) => machine.storage_bytes = bytes,
            Change::Requests(requests) => machine.storage_requests = requests,
            Change::Link(bytes) => machine.link_bytes = bytes,
            Change::Jobs(_) | Change::Demand(_) | Change::Mixing(_) => {}
        }
        for load in &mut case.loads {
            match self {
                Change::Jobs(jobs) => {
                    let like = *load.jobs.first().context("a stream has no job to be like")?;
                    load.jobs = vec![like; jobs];
                }
                Change::Demand(demand) => load.jobs.iter_mut().for_each(|job| job.demand = Some(demand)),
                Change::Mixing(mixing) => load.mixing = mixing,
                _ => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Memory(bytes) => write!(f, "memory={}", super::table::bytes(*bytes as f64)),
            Change::Cores(cores) => write!(f, "cores={cores}"),
            Change::Jobs(jobs) => write!(f, "jobs={jobs}"),
            Change::Storage(bytes) => write!(f, "storage={}/s", super::table::bytes(*bytes)),
            Change::Requests(requests) => write!(f, "requests={requests}"),
            Change::Link(bytes) => write!(f, "link={}/s", super::table::bytes(*bytes)),
            Change::Demand(demand) => write!(f, "demand={demand}"),
            Change::Mixing(mixing) => write!(f, "mixing={mixing}"),
        }
    }
}
