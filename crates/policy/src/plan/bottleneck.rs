//! The linear program: which rates the resources allow, for what is kept.
//!
//! For each stream: takes by source (kept pixels, kept files, storage), copies for the pool, takes for a window;
//! for each job its deliveries. Resources are rows of parts that sum to at most 1. Memory is a row too: of all
//! takes a form may serve the share of samples it is kept for. Solved three times: the fairest division of what
//! jobs ask for, then the most deliveries, then the least work for them. Sizes of pools and memory of each stream
//! are given; `search` looks for the best.

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};

use super::model::{Cost, Flow, Model, ROWS, Way};
use super::search::{self, Choice};
use super::{Load, Machine, Options, Plan, PlanError, Resource, Split, Usage};

/// A rate that was reached is asked for again with so much less, for the solver's rounding.
const SLACK: f64 = 1e-7;
/// A resource in use to so much of it binds.
const FULL: f64 = 1.0 - 1e-5;
/// Shares below this are none.
const NONE: f64 = 1e-9;

/// The best plan: what to keep so that jobs get most, the one that gets least of its demand first.
pub fn bottleneck(machine: &Machine, loads: &[Load]) -> Result<Plan, PlanError> {
    bottleneck_with(machine, loads, Options::default())
}

/// [`bottleneck`] with other machinery.
pub fn bottleneck_with(machine: &Machine, loads: &[Load], options: Options) -> Result<Plan, PlanError> {
    let model = Model::new(machine, loads, options)?;
    let choice = search::best(&model, None)?;
    finish(&model, &choice)
}

/// What a given split for each stream gives.
///
/// Samples are drawn uniformly: the share of takes from a form is the share of samples that are kept in it. No
/// sample is kept in two forms.
pub fn predict(machine: &Machine, loads: &[Load], splits: &[Split]) -> Result<Plan, PlanError> {
    predict_with(machine, loads, splits, Options::default())
}

/// [`predict`] with other machinery.
pub fn predict_with(
    machine: &Machine,
    loads: &[Load],
    splits: &[Split],
    options: Options,
) -> Result<Plan, PlanError> {
    if splits.len() != loads.len() {
        return Err(PlanError::Splits { splits: splits.len(), streams: loads.len() });
    }
    let need = splits.iter().map(Split::bytes).sum::<u64>();
    if need > machine.memory {
        return Err(PlanError::Memory { need, have: machine.memory });
    }
    let model = Model::new(machine, loads, options)?;
    let rooms = model.flows.iter().zip(splits).map(|(flow, split)| {
        let share =
            |bytes: u64, size: f64| if size > 0.0 { bytes as f64 / (flow.samples * size) } else { 0.0 };
        let decoded = share(split.decoded, flow.sizes[0]).min(1.0);
        let encoded = share(split.encoded, flow.sizes[1]).min(1.0 - decoded);
        Room { kept: Kept::Shares([decoded, encoded]), pool: split.pool as f64 }
    });
    let answer = solve(&model, &rooms.collect::<Vec<_>>())?;
    Ok(answer.plan(&model, splits.to_vec(), false))
}

/// The plan of a choice.
pub(super) fn finish(model: &Model, choice: &Choice) -> Result<Plan, PlanError> {
    let answer = solve(model, &choice.rooms())?;
    let mut left = model.memory as u64;
    let mut splits = Vec::new();
    for (flow, (takes, pool)) in model.flows.iter().zip(answer.takes.iter().zip(&choice.pool)) {
        let all = takes.iter().sum::<f64>();
        let mut bytes = |bytes: f64, one: f64| {
            // So little is the solver's rounding.
            let bytes =
                if bytes < one.max(1e-5 * model.memory) { 0 } else { (bytes.round() as u64).min(left) };
            left -= bytes;
            bytes
        };
        let kept =
            |form: usize| if all > 0.0 { flow.samples * flow.sizes[form] * takes[form] / all } else { 0.0 };
        let pool = if flow.shares() { bytes(*pool, flow.copy) } else { 0 };
        let [decoded, encoded] = [0, 1].map(|form| bytes(kept(form), flow.sizes[form]));
        splits.push(Split { encoded, decoded, pool });
    }
    // Memory binds if a little more of it for everything would give more.
    let more = solve(model, &choice.scaled(1.01).rooms())?;
    let binds = more.value.beats(&answer.value, 1e-5);
    Ok(answer.plan(model, splits, binds))
}

/// What is kept of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kept {
    /// So many bytes of whatever is best.
    Bytes(f64),
    /// These shares of the samples, decoded and encoded.
    Shares([f64; 2]),
}

/// Memory of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) kept: Kept,
    pub(super) pool: f64,
}

/// How good an answer is: the least part of its demand that a job has, then deliveries, then work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    fair: f64,
    sum: f64,
    work: f64,
}

impl Value {
    /// Whether it is better by more than this part.
    pub(super) fn beats(&self, other: &Value, by: f64) -> bool {
        let more = |a: f64, b: f64| a > b * (1.0 + by) + 1e-12;
        let pairs = [(self.fair, other.fair), (self.sum, other.sum), (other.work, self.work)];
        for (mine, theirs) in pairs {
            if more(mine, theirs) {
                return true;
            }
            if more(theirs, mine) {
                return false;
            }
        }
        false
    }
}

/// A solved program; rates in the model's unit.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) value: Value,
    rates: Vec<Vec<f64>>,
    takes: Vec<[f64; 3]>,
    copies: Vec<f64>,
    waste: Vec<f64>,
    parts: Cost,
}

/// Variables of one stream.
struct Vars {
    takes: [Variable; 3],
    pool: Variable,
    window: Variable,
    rates: Vec<Variable>,
}

/// What is asked of the program.
enum Aim<'a> {
    /// The largest common part of all demands.
    Fair,
    /// The most deliveries, with this part for each.
    Most(f64),
    /// The least work for these rates.
    Least(&'a [Vec<f64>]),
}

/// Solves for fixed rooms.
pub(super) fn solve(model: &Model, rooms: &[Room]) -> Result<Answer, PlanError> {
    let (_, fair) = run(model, rooms, &Aim::Fair)?;
    go_on(model, rooms, fair)
}

/// Solves for fixed rooms, unless they are clearly no better than what there is.
pub(super) fn solve_beyond(
    model: &Model,
    rooms: &[Room],
    there: &Value,
) -> Result<Option<Answer>, PlanError> {
    let (_, fair) = run(model, rooms, &Aim::Fair)?;
    if fair < there.fair * (1.0 - 1e-6) {
        return Ok(None);
    }
    go_on(model, rooms, fair).map(Some)
}

fn go_on(model: &Model, rooms: &[Room], fair: f64) -> Result<Answer, PlanError> {
    let (most, _) = run(model, rooms, &Aim::Most(fair))?;
    let (mut least, _) = run(model, rooms, &Aim::Least(&most.rates))?;
    least.value.fair = fair;
    least.value.sum = least.rates.iter().flatten().sum();
    Ok(least)
}

fn run(model: &Model, rooms: &[Room], aim: &Aim<'_>) -> Result<(Answer, f64), PlanError> {
    let direction = match aim {
        Aim::Least(_) => OptimizationDirection::Minimize,
        Aim::Fair | Aim::Most(_) => OptimizationDirection::Maximize,
    };
    let mut problem = Problem::new(direction);
    let work = |cost: &Cost| if matches!(aim, Aim::Least(_)) { cost.iter().sum() } else { 0.0 };
    let mut rows: [LinearExpr; ROWS] = std::array::from_fn(|_| LinearExpr::empty());
    let mut spend = |variable: Variable, cost: &Cost| {
        for (row, &part) in rows.iter_mut().zip(cost) {
            if part > 0.0 {
                row.add(variable, part);
            }
        }
    };
    // Without jobs nothing else would bound it.
    let jobs = || model.flows.iter().flat_map(|flow| &flow.jobs);
    let most = jobs().map(|job| job.most / job.weight).fold(0.0, f64::max);
    let fair = matches!(aim, Aim::Fair).then(|| problem.add_var(1.0, (0.0, most)));
    let mut all = Vec::new();
    for (stream, (flow, room)) in model.flows.iter().zip(rooms).enumerate() {
        let bounds = bounds(flow, room);
        let takes = std::array::from_fn(|source| {
            let variable = problem.add_var(work(&flow.takes[source]), (0.0, bounds[source]));
            spend(variable, &flow.takes[source]);
            variable
        });
        let pool = problem.add_var(work(&flow.pooled), (0.0, f64::INFINITY));
        spend(pool, &flow.pooled);
        let window = problem.add_var(0.0, (0.0, f64::INFINITY));
        let rates = flow.jobs.iter().enumerate().map(|(number, job)| {
            let least = match aim {
                Aim::Fair => 0.0,
                Aim::Most(fair) => fair * job.weight,
                Aim::Least(rates) => rates[stream][number],
            };
            let least = (least * (1.0 - SLACK)).clamp(0.0, job.most);
            let value = if matches!(aim, Aim::Most(_)) { 1.0 } else { work(&job.cost) };
            let rate = problem.add_var(value, (least, job.most));
            spend(rate, &job.cost);
            rate
        });
        let vars = Vars { takes, pool, window, rates: rates.collect() };
        constrain(&mut problem, flow, room, &vars, fair);
        all.push(vars);
    }
    for row in rows {
        problem.add_constraint(row, ComparisonOp::Le, 1.0);
    }
    let solved = problem.solve().map_err(PlanError::Solver)?;
    let Some(solution) = solved.solution() else {
        return Err(PlanError::Solver(microlp::Error::InternalError("interrupted".into())));
    };
    let value = |variable: Variable| solution.var_value(variable).max(0.0);
    Ok((answer(model, rooms, &all, &value), fair.map_or(0.0, value)))
}

/// Sources of which nothing is kept give nothing.
fn bounds(flow: &Flow, room: &Room) -> [f64; 3] {
    let kept = match room.kept {
        Kept::Bytes(bytes) => [0, 1].map(|form| flow.sizes[form] > 0.0 && bytes > NONE * flow.all()),
        Kept::Shares(shares) => shares.map(|share| share > NONE),
    };
    let bound = |kept: bool| if kept { f64::INFINITY } else { 0.0 };
    [bound(kept[0]), bound(kept[1]), f64::INFINITY]
}

fn constrain(problem: &mut Problem, flow: &Flow, room: &Room, vars: &Vars, fair: Option<Variable>) {
    let [decoded, encoded, stored] = vars.takes;
    // Takes are what the pool, the window and the jobs on their own need.
    let mut need: Vec<(Variable, f64)> = vars.takes.iter().map(|&take| (take, 1.0)).collect();
    need.extend([(vars.pool, -1.0), (vars.window, -1.0)]);
    for (job, &rate) in flow.jobs.iter().zip(&vars.rates) {
        let made = match job.way {
            Way::Pool => vars.pool,
            Way::Window => vars.window,
            Way::Own => {
                need.push((rate, -1.0));
                continue;
            }
        };
        let waste = flow.waste(job.way, room.pool);
        problem.add_constraint([(made, 1.0), (rate, -waste)], ComparisonOp::Ge, 0.0);
    }
    if let Some(fair) = fair {
        for (job, &rate) in flow.jobs.iter().zip(&vars.rates) {
            problem.add_constraint([(rate, 1.0), (fair, -job.weight)], ComparisonOp::Ge, 0.0);
        }
    }
    problem.add_constraint(&need[..], ComparisonOp::Eq, 0.0);
    match room.kept {
        Kept::Bytes(bytes) => {
            // Bytes that these takes need kept, in samples as stored, against those there are.
            let whole = flow.samples * flow.sizes[1];
            let size = flow.sizes[0] / flow.sizes[1];
            let there = (bytes / whole).min(size.max(1.0));
            let row = [(decoded, size - there), (encoded, 1.0 - there), (stored, -there)];
            problem.add_constraint(row, ComparisonOp::Le, 0.0);
        }
        Kept::Shares(shares) => {
            for (form, share) in shares.into_iter().enumerate().filter(|(_, share)| *share > NONE) {
                let row = [0, 1, 2].map(|source| (vars.takes[source], f64::from(source == form) - share));
                problem.add_constraint(row, ComparisonOp::Eq, 0.0);
            }
        }
    }
}

fn answer(model: &Model, rooms: &[Room], all: &[Vars], value: &dyn Fn(Variable) -> f64) -> Answer {
    let mut parts = [0.0; ROWS];
    let mut spend = |rate: f64, cost: &Cost| (0..ROWS).for_each(|row| parts[row] += rate * cost[row]);
    let (mut rates, mut takes, mut copies, mut waste) = (vec![], vec![], vec![], vec![]);
    for ((flow, room), vars) in model.flows.iter().zip(rooms).zip(all) {
        let of = vars.takes.map(value);
        (0..3).for_each(|source| spend(of[source], &flow.takes[source]));
        spend(value(vars.pool), &flow.pooled);
        let mine: Vec<f64> = vars.rates.iter().map(|&rate| value(rate)).collect();
        let mut made = value(vars.pool);
        for (job, &rate) in flow.jobs.iter().zip(&mine) {
            spend(rate, &job.cost);
            made += if job.way == Way::Pool { 0.0 } else { rate };
        }
        rates.push(mine);
        takes.push(of);
        copies.push(made);
        waste.push(flow.waste(Way::Pool, room.pool).max(flow.waste(Way::Window, room.pool)));
    }
    let value = Value { fair: 0.0, sum: 0.0, work: parts.iter().sum() };
    Answer { value, rates, takes, copies, waste, parts }
}

impl Answer {
    fn plan(&self, model: &Model, splits: Vec<Split>, memory_binds: bool) -> Plan {
        let unit = model.unit;
        let bytes = splits.iter().map(Split::bytes).sum::<u64>() as f64;
        let [cores, storage, requests, link] = self.parts.map(|part| part.min(1.0));
        let memory = if model.memory > 0.0 { bytes / model.memory } else { 0.0 };
        let use_ = Usage { cores, storage, requests, link, memory };
        let full = [
            (Resource::Cores, cores >= FULL),
            (Resource::Storage, storage >= FULL),
            (Resource::Requests, requests >= FULL),
            (Resource::Link, link >= FULL),
            (Resource::Memory, memory_binds),
        ];
        let jobs = || model.flows.iter().flat_map(|flow| &flow.jobs).zip(self.rates.iter().flatten());
        let fed = jobs().all(|(job, &rate)| rate >= job.most * (1.0 - 1e-6));
        let mut binds: Vec<_> = full.into_iter().filter(|one| one.1).map(|one| one.0).collect();
        if fed {
            binds = vec![Resource::Demand];
        }
        Plan {
            splits,
            sources: self.takes.iter().map(|takes| takes.map(|take| take * unit)).collect(),
            copies: self.copies.iter().map(|copies| copies * unit).collect(),
            waste: self.waste.clone(),
            rates: self.rates.iter().map(|rates| rates.iter().map(|rate| rate * unit).collect()).collect(),
            binds,
            use_,
        }
    }
}
