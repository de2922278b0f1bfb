//! Everything that is said about a case, as data: the plan, its prices, and other splits in both models.

use anyhow::Result;
use forebay_policy::plan::seneca::{self, Charge, Params, Shares};
use forebay_policy::plan::{self, Load, Machine, Plan, Prices, Resource, Split};
use serde::Serialize;

use super::Case;

/// All memory for files.
pub(super) const ENCODED: &str = "encoded only";
/// All memory for pixels.
pub(super) const DECODED: &str = "decoded only";
/// All memory for copies.
pub(super) const POOL: &str = "pool only";
/// What the linear program chose.
pub(super) const PLANNED: &str = "planned";

/// What is said.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) streams: Vec<Stream>,
    pub(super) plan: Plan,
    pub(super) prices: Prices,
    /// Other splits, with what both models say.
    pub(super) splits: Vec<Row>,
}

/// One stream.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) load: Load,
}

/// A split, and deliveries per second of all jobs with it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Bytes of all streams.
    pub(super) split: Split,
    pub(super) bottleneck: f64,
    pub(super) binds: Vec<Resource>,
    /// Equation 9, which knows one stream.
    pub(super) seneca: Option<f64>,
    /// Bytes per second that equation 9 would need of storage.
    pub(super) seneca_storage: Option<f64>,
}

impl Report {
    /// Plans a case.
    pub(super) fn of(case: &Case) -> Result<Self> {
        let Case { machine, loads, .. } = case;
        let plan = plan::bottleneck(machine, loads)?;
        let once = |name, splits| row(case, name, splits, Charge::Once);
        let mut rows = vec![once(PLANNED, plan.splits.clone())?];
        for name in [ENCODED, DECODED, POOL] {
            rows.push(once(name, single(machine, loads, name))?);
        }
        if let [load] = &loads[..] {
            let params = Params::of(machine, load);
            let split = |shares: Shares| vec![bytes(machine, shares)];
            rows.push(once("seneca's choice", split(seneca::best(&params, Charge::Once).0))?);
            let twice = split(seneca::best(&params, Charge::Twice).0);
            rows.push(row(case, "seneca, copies twice", twice, Charge::Twice)?);
            if let Some(shares) = case.published {
                rows.push(once("published choice", split(shares))?);
            }
        }
        let named = |(name, load): (&String, &Load)| Stream { name: name.clone(), load: load.clone() };
        Ok(Report {
            machine: *machine,
            streams: case.names.iter().zip(loads).map(named).collect(),
            plan,
            prices: plan::prices(machine, loads)?,
            splits: rows,
        })
    }
}

fn row(case: &Case, name: &'static str, splits: Vec<Split>, charge: Charge) -> Result<Row> {
    let Case { machine, loads, .. } = case;
    let plan = plan::predict(machine, loads, &splits)?;
    let published = match (&loads[..], &splits[..]) {
        ([load], [split]) => {
            let params = Params::of(machine, load);
            let found = seneca::predict(&params, shares(machine, split), charge);
            Some((found.overall, found.storage_bytes(&params)))
        }
        _ => None,
    };
    let sum = |of: fn(&Split) -> u64| splits.iter().map(of).sum();
    Ok(Row {
        name,
        split: Split {
            encoded: sum(|one| one.encoded),
            decoded: sum(|one| one.decoded),
            pool: sum(|one| one.pool),
        },
        bottleneck: plan.total(),
        binds: plan.binds,
        seneca: published.map(|one| one.0),
        seneca_storage: published.map(|one| one.1),
    })
}

/// All memory for one form, divided among streams by the bytes that all their samples would take in it.
pub(super) fn single(machine: &Machine, loads: &[Load], form: &str) -> Vec<Split> {
    let size = |load: &Load| match form {
        ENCODED => load.encoded,
        DECODED => load.decoded,
        _ => load.augmented.max(f64::MIN_POSITIVE),
    };
    let whole = |load: &Load| load.samples as f64 * size(load);
    let all: f64 = loads.iter().map(whole).sum();
    let split = |load: &Load| {
        let part = if all > 0.0 { (machine.memory as f64 * whole(load) / all).floor() as u64 } else { 0 };
        match form {
            ENCODED => Split { encoded: part, ..Split::default() },
            DECODED => Split { decoded: part, ..Split::default() },
            _ => Split { pool: part, ..Split::default() },
        }
    };
    loads.iter().map(split).collect()
}

fn bytes(machine: &Machine, shares: Shares) -> Split {
    let of = |share: f64| (share * machine.memory as f64).floor() as u64;
    Split { encoded: of(shares.encoded), decoded: of(shares.decoded), pool: of(shares.augmented) }
}

fn shares(machine: &Machine, split: &Split) -> Shares {
    let of = |bytes: u64| if machine.memory > 0 { bytes as f64 / machine.memory as f64 } else { 0.0 };
    Shares { encoded: of(split.encoded), decoded: of(split.decoded), augmented: of(split.pool) }
}
