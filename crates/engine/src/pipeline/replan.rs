//! The plan, kept up to date: what work costs is taken from counters, and memory is split anew when jobs come and
//! go or costs change.
//!
//! Until something is measured the cache's own rule holds. A plan is solved by a worker, outside the lock;
//! what it takes away from a form goes when another form needs the room.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_policy::plan::{self, Job as Draws, Load, Machine, Options, Plan, Split};
use forebay_policy::share::{Level, Order};
use serde::{Deserialize, Serialize};

use super::fetch::Device;
use super::{Client, Shared, State};
use crate::CacheMode;
use crate::Config;
use crate::cache::Ticket;
use crate::counters::Counters;

/// Counters are looked at so often.
const LOOK: Duration = Duration::from_millis(500);
/// So many of something must have been seen before its cost is believed.
const ENOUGH: u64 = 32;
/// Weight of the newest observation.
const NEW: f64 = 0.4;
/// A cost has drifted when it is more than this part away from what the plan was made with.
const DRIFT: f64 = 0.25;
/// A plan that gives less than this part more is not worth the moving.
const GAIN: f64 = 0.05;
/// Decisions that are remembered.
const MOST: usize = 64;
/// Of a load whose reads go to a device more often than this, reads count.
const COLD: f64 = 0.02;
/// A plan that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(10);
/// New pools get this part of the room until there is a plan.
const POOLS: u64 = 8;
/// Core-seconds of a read from the device where nothing is known of it.
const READ_S: f64 = 30e-6;

/// What was decided about memory, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since 1970.
    pub time: u64,
    /// What made it necessary.
    pub reason: String,
    /// Whether the split changed.
    pub moved: bool,
    /// Deliveries per second of all jobs, as predicted with the split before and with this one.
    pub before: f64,
    /// See `before`.
    pub after: f64,
    /// What keeps jobs from more.
    pub binds: Vec<String>,
    /// The split of each stream.
    pub streams: Vec<StreamSplit>,
}

/// The bytes that one stream's forms get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamSplit {
    /// Its folder.
    pub root: String,
    /// Bytes of each form.
    #[serde(flatten)]
    pub split: Split,
    /// Deliveries per second that are predicted for its jobs.
    pub rates: Vec<f64>,
}

/// What is planned with now, and what was decided.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Planning {
    /// The machine as it is measured; nothing before there is a plan.
    pub machine: Option<Machine>,
    /// The folder of each stream, and what its work costs.
    pub streams: Vec<(String, Load)>,
    /// What was decided lately, the newest last.
    pub decisions: Vec<Decision>,
}

/// What work for one stream costs.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    read_s: Option<f64>,
    crop_s: Option<f64>,
    whole_s: Option<f64>,
    augment_s: Option<f64>,
    finish_s: Option<f64>,
    /// Part of its reads that go to the device.
    cold: f64,
}

impl Costs {
    /// Decoding what a copy needs.
    fn decode_s(&self) -> Option<f64> {
        // A crop is about three quarters of an image.
        self.crop_s.or(self.whole_s.map(|whole| 0.75 * whole))
    }

    fn is_known(&self) -> bool {
        self.decode_s().is_some() && self.augment_s.is_some() && self.finish_s.is_some()
    }
}

/// Numbers of one job when they were last looked at.
type Seen = [u64; 13];

/// What is known, planned and decided.
#[derive(Debug)]
pub(super) struct Planner {
    looked: Instant,
    seen: BTreeMap<u64, Seen>,
    costs: BTreeMap<Client, Costs>,
    device: (Device, Duration, Instant),
    /// Reads and bytes per second of the device while it has something to do.
    storage: Option<(f64, f64)>,
    /// Core time and time that workers were at work, and the part of a core that each had.
    worked: (u64, u64),
    given: f64,
    /// Why a plan is wanted.
    wanted: Option<String>,
    /// Only because costs are not what they were.
    drift: bool,
    solving: bool,
    /// The loads that the present plan was made for.
    made_for: Option<(Machine, BTreeMap<Client, Load>)>,
    decisions: VecDeque<Decision>,
    failed: Option<Instant>,
}

/// A plan to be solved, away from the lock.
#[derive(Debug)]
pub(super) struct Problem {
    reason: String,
    drift: bool,
    machine: Machine,
    clients: Vec<Client>,
    loads: Vec<Load>,
    /// Whether each load reads from a device.
    cold: Vec<bool>,
    /// Whether one of them has a pool of decoded samples.
    window: bool,
    now: Vec<Split>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Solution {
    problem: Problem,
    before: f64,
    plan: Plan,
}

impl Planner {
    pub(super) fn new() -> Self {
        Planner {
            looked: Instant::now(),
            seen: BTreeMap::new(),
            costs: BTreeMap::new(),
            device: (Device::default(), Duration::ZERO, Instant::now()),
            storage: None,
            worked: (0, 0),
            given: 1.0,
            wanted: None,
            drift: false,
            solving: false,
            made_for: None,
            decisions: VecDeque::new(),
            failed: None,
        }
    }

    /// A plan should be made.
    pub(super) fn want(&mut self, reason: String) {
        if self.drift || self.wanted.is_none() {
            (self.wanted, self.drift) = (Some(reason), false);
        }
    }

    pub(super) fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// The machine and the loads that the present plan was made for.
    pub(super) fn made_for(&self) -> Option<&(Machine, BTreeMap<Client, Load>)> {
        self.made_for.as_ref()
    }

    /// There is no plan any more.
    pub(super) fn forget(&mut self) {
        self.made_for = None;
    }

    /// Whether memory is split by a plan.
    pub(super) fn is_planned(&self) -> bool {
        self.made_for.is_some()
    }

    fn note(&mut self, decision: Decision) {
        if self.decisions.len() == MOST {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }
}

/// The numbers that costs are made of.
fn numbers(counters: &Counters) -> Seen {
    let c = counters;
    [
        &c.reads,
        &c.device_reads,
        &c.read_ns,
        &c.device_ns,
        &c.decodes,
        &c.decode_ns,
        &c.whole_decodes,
        &c.whole_ns,
        &c.preparations,
        &c.augment_ns,
        &c.deliveries,
        &c.finish_ns,
        &c.decoded_hits,
    ]
    .map(crate::Counter::get)
}

fn learn(cost: &mut Option<f64>, nanoseconds: u64, count: u64) {
    if count >= ENOUGH {
        let new = nanoseconds as f64 / count as f64 / 1e9;
        *cost = Some(cost.map_or(new, |old| old + NEW * (new - old)));
    }
}

impl State {
    /// Looks at the counters now and then; gives a plan to be solved, if one is wanted.
    pub(super) fn review(&mut self, config: &Config, worked: (u64, u64)) -> Option<Problem> {
        if config.cache != CacheMode::Auto {
            return None;
        }
        let planner = &mut self.planner;
        if planner.looked.elapsed() >= LOOK {
            planner.looked = Instant::now();
            let (cores, wall) = (worked.0 - planner.worked.0, worked.1 - planner.worked.1);
            if wall > 0 {
                planner.given += NEW * ((cores as f64 / wall as f64).min(1.0) - planner.given);
                planner.worked = worked;
            }
            self.look();
            self.notice_drift(config);
        }
        if self.planner.solving || self.planner.wanted.is_none() {
            return None;
        }
        let reason = self.planner.wanted.clone()?;
        let problem = self.problem(config, reason)?;
        (self.planner.wanted, self.planner.solving) = (None, true);
        Some(problem)
    }

    /// Takes what the counters say since the last look into the costs.
    fn look(&mut self) {
        let mut sums: BTreeMap<Client, Seen> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for (&id, job) in &self.jobs {
            let now = numbers(&job.counters);
            let before = self.planner.seen.get(&id).copied().unwrap_or_default();
            let sum = sums.entry(job.client()).or_default();
            (0..now.len()).for_each(|at| sum[at] += now[at].saturating_sub(before[at]));
            seen.insert(id, now);
        }
        for (client, sum) in sums {
            let costs = self.planner.costs.entry(client).or_default();
            let [
                reads,
                device,
                read,
                waited,
                decodes,
                decode,
                wholes,
                whole,
                copies,
                augment,
                given,
                finish,
                hits,
            ] = sum;
            learn(&mut costs.read_s, read - waited.min(read), reads - device.min(reads));
            learn(&mut costs.whole_s, whole, wholes);
            learn(&mut costs.crop_s, decode - whole.min(decode), decodes - wholes.min(decodes));
            learn(&mut costs.augment_s, augment, copies.max(hits));
            learn(&mut costs.finish_s, finish, given);
            if reads >= ENOUGH {
                costs.cold += NEW * (device as f64 / reads as f64 - costs.cold);
            }
        }
        // What has too few to be believed is looked at again with what comes.
        for (id, now) in seen {
            let before = self.planner.seen.entry(id).or_default();
            let grown = |at: usize| now[at] - before[at].min(now[at]) >= ENOUGH;
            if grown(8) || grown(10) || grown(12) {
                *before = now;
            }
        }
        self.planner.seen.retain(|id, _| self.jobs.contains_key(id));
        self.planner.costs.retain(|client, _| self.served.contains_key(client));
        let (device, (old, busy, since)) = (self.fetch.device(), self.planner.device);
        let (reads, seconds) = (device.reads - old.reads, (device.busy() - busy).as_secs_f64());
        if reads >= ENOUGH && seconds > 0.0 {
            let (new, bytes) = (reads as f64 / seconds, (device.bytes - old.bytes) as f64 / seconds);
            // It may be low only because little was asked of it.
            let asked = seconds > 0.8 * since.elapsed().as_secs_f64();
            self.planner.storage = Some(match self.planner.storage {
                Some(known) if new < known.0 && !asked => known,
                Some((old, per)) => (old + NEW * (new - old), per + NEW * (bytes - per)),
                None => (new, bytes),
            });
            self.planner.device = (device, device.busy(), Instant::now());
        }
    }

    /// Wants a new plan if a cost is no longer what the present one was made with.
    fn notice_drift(&mut self, config: &Config) {
        let Some((machine, loads)) = &self.planner.made_for else {
            if self.planner.failed.is_some_and(|failed| failed.elapsed() < RETRY) {
                return;
            }
            if !self.planner.decisions.is_empty() || self.planner.costs.values().any(Costs::is_known) {
                self.planner.want("first figures".into());
            }
            return;
        };
        let far = |old: f64, new: f64| (new - old).abs() > DRIFT * old.max(1e-9);
        let now = self.machine(config);
        let storage = now.storage_requests.is_finite() != machine.storage_requests.is_finite()
            || now.storage_requests.is_finite() && far(machine.storage_requests, now.storage_requests);
        let mut drift = storage.then(|| "storage".to_string());
        for (client, old) in loads {
            let Some(costs) = self.planner.costs.get(client) else { continue };
            let pairs = [
                ("decoding", old.decode_s, costs.decode_s()),
                ("augmenting", old.augment_s, costs.augment_s),
                ("finishing", old.jobs.first().map_or(0.0, |job| job.finish_s), costs.finish_s),
            ];
            let drifted = pairs.iter().find(|(_, old, new)| new.is_some_and(|new| far(*old, new)));
            drift = drift.or(drifted.map(|(what, ..)| what.to_string()));
        }
        if let (Some(what), None) = (drift, &self.planner.wanted) {
            self.planner.want(format!("drift of {what}"));
            self.planner.drift = true;
        }
    }

    fn machine(&self, config: &Config) -> Machine {
        let (reads, bytes) = self.planner.storage.unwrap_or((f64::INFINITY, f64::INFINITY));
        // Only a part of the reads may go to the device.
        let cold = self.planner.costs.values().map(|costs| costs.cold).fold(0.0, f64::max);
        let per = if cold < COLD { f64::INFINITY } else { 1.0 / cold };
        Machine {
            cores: config.threads as f64 * self.planner.given.max(0.05),
            memory: self.room(config),
            storage_bytes: if per.is_finite() { bytes * per } else { f64::INFINITY },
            storage_requests: if per.is_finite() { reads * per } else { f64::INFINITY },
            link_bytes: f64::INFINITY,
        }
    }

    /// What is to be planned; nothing before something is measured.
    fn problem(&self, config: &Config, reason: String) -> Option<Problem> {
        let known = self.planner.costs.values().find(|costs| costs.is_known()).copied()?;
        let mut problem = Problem {
            reason,
            drift: self.planner.drift,
            machine: self.machine(config),
            clients: Vec::new(),
            loads: Vec::new(),
            cold: Vec::new(),
            window: self.streams.values().any(super::StreamState::is_decoded),
            now: Vec::new(),
        };
        for &client in self.served.keys() {
            // Who is new costs what others cost, until it is known better.
            let costs = self.planner.costs.get(&client).filter(|costs| costs.is_known()).unwrap_or(&known);
            let jobs: Vec<_> = self.jobs.values().filter(|job| job.client() == client).collect();
            let Some(first) = jobs.first() else { continue };
            let spec = &first.spec;
            let (all, ticket) = (spec.dataset.len(), &first.ticket);
            // Of a subset only that is kept.
            let taken = jobs.iter().fold(0u64, |sum, job| sum.saturating_add(job.spec.samples()));
            let samples = taken.min(all);
            let sizes = self.cache.sizes(ticket);
            if samples == 0 {
                continue;
            }
            let bytes: u64 = spec.dataset.parts().iter().map(|folder| folder.bytes()).sum();
            let finish_s = costs.finish_s.unwrap_or_default();
            let stream = match client {
                Client::Stream(id) => self.streams.get(&id),
                Client::Job(_) => None,
            };
            let draws = jobs.iter().filter(|job| job.spec.rank == 0 || stream.is_none()).map(|job| {
                // Who has copies of its own has what is kept in common with others.
                let level = match job.spec.sharing().filter(|_| stream.is_some()) {
                    Some(sharing) if sharing.order != Order::Strict => sharing.level,
                    _ => job.spec.level().min(Level::Decoded),
                };
                let demand = job.seat.and_then(|(_, bit)| stream?.demand(bit));
                Draws { demand, finish_s, level }
            });
            let draws: Vec<Draws> = draws.collect();
            // Who validates meanwhile draws nothing; if all do, they are back soon.
            let awake: Vec<Draws> = draws.iter().copied().filter(|one| one.demand != Some(0.0)).collect();
            let draws = match awake.is_empty() {
                true => draws.into_iter().map(|one| Draws { demand: None, ..one }).collect(),
                false => awake,
            };
            let pixels = sizes.pixels as f64 / all as f64;
            problem.loads.push(Load {
                samples,
                encoded: bytes as f64 / all as f64,
                decoded: pixels,
                augmented: if spec.recipe.has_augmented() { first.share.sample_bytes as f64 } else { 0.0 },
                read_s: costs.read_s.unwrap_or(READ_S),
                decode_s: costs.decode_s().unwrap_or_default(),
                augment_s: costs.augment_s.unwrap_or_default(),
                mixing: spec.share.map_or(0.0, |sharing| sharing.mixing),
                jobs: draws,
            });
            problem.cold.push(costs.cold >= COLD);
            let pool = stream.map_or(0, super::StreamState::bytes);
            problem.now.push(Split { encoded: sizes.targets[0], decoded: sizes.targets[1], pool });
            problem.clients.push(client);
        }
        problem.scale();
        Some(problem).filter(|problem| !problem.loads.is_empty())
    }

    /// Puts a solution into force, unless it is not worth while.
    pub(super) fn follow(&mut self, solution: Result<Solution, String>, config: &Config) {
        self.planner.solving = false;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Solution { problem, before, plan } = match solution {
            Ok(solution) => solution,
            Err(why) => {
                // What is done until something is measured holds, and it is tried again later.
                self.planner.forget();
                self.planner.failed = Some(Instant::now());
                self.share_out(config);
                let (before, after) = (0.0, 0.0);
                let (binds, streams) = (Vec::new(), Vec::new());
                let reason = format!("no plan: {why}");
                return self.planner.note(Decision {
                    time,
                    reason,
                    moved: false,
                    before,
                    after,
                    binds,
                    streams,
                });
            }
        };
        // Jobs may have come or gone meanwhile: then there is another plan to come.
        if problem.machine.memory != self.room(config) {
            return self.planner.want(problem.reason);
        }
        let after = plan.total();
        // Who has come has no part yet, and what drifts drifts back.
        let moved = !problem.drift || after > before * (1.0 + GAIN);
        let splits = if moved { &plan.splits } else { &problem.now };
        let streams = problem.clients.iter().zip(splits).zip(&plan.rates);
        let streams = streams.map(|((client, split), rates)| StreamSplit {
            root: self.root(*client),
            split: *split,
            rates: rates.clone(),
        });
        let decision = Decision {
            time,
            reason: problem.reason,
            moved,
            before,
            after: if moved { after } else { before },
            binds: plan.binds.iter().map(|resource| resource.name().to_string()).collect(),
            streams: streams.collect(),
        };
        self.planner.note(decision);
        let loads = problem.clients.iter().copied().zip(problem.loads).collect();
        self.planner.made_for = Some((problem.machine, loads));
        if moved {
            let parts: Vec<(Client, Split)> =
                problem.clients.iter().copied().zip(plan.splits.iter().copied()).collect();
            self.split(&parts, config);
        }
    }

    pub(super) fn root(&self, client: Client) -> String {
        let job = self.jobs.values().find(|job| job.client() == client);
        job.map(|job| job.spec.dataset.root().display().to_string()).unwrap_or_default()
    }

    /// What was planned goes on in the room that is left, until there is another plan.
    pub(super) fn keep_plan(&mut self, mut room: u64) {
        let new = self.streams.values().filter(|stream| !stream.planned).count() as u64;
        let first = room / POOLS / new.max(1);
        for stream in self.streams.values_mut() {
            let pool = if stream.planned { stream.bytes() } else { first };
            let pool = pool.min(stream.appetite()).min(room);
            stream.resize(pool);
            room -= pool;
        }
        self.cache.squeeze(room);
    }

    /// Splits memory as planned.
    fn split(&mut self, parts: &[(Client, Split)], config: &Config) {
        let mut room = self.room(config);
        for (client, split) in parts {
            if let Client::Stream(id) = client
                && let Some(stream) = self.streams.get_mut(id)
            {
                let pool = split.pool.min(stream.appetite()).min(room);
                stream.resize(pool);
                stream.planned = true;
                room -= pool;
            }
        }
        let tickets = parts.iter().filter_map(|(client, split)| {
            let job = self.jobs.values().find(|job| job.client() == *client)?;
            Some((&*job.ticket, split.encoded, split.decoded))
        });
        let tickets: Vec<(&Ticket, u64, u64)> = tickets.collect();
        self.cache.follow(&tickets, room);
    }
}

impl Problem {
    /// Shelves that several streams use count for each of them: together no more than there is.
    fn scale(&mut self) {
        let all: u64 = self.now.iter().map(Split::bytes).sum();
        let memory = self.machine.memory;
        for split in self.now.iter_mut().filter(|_| all > memory) {
            let part = |bytes: u64| (u128::from(bytes) * u128::from(memory) / u128::from(all)) as u64;
            *split =
                Split { encoded: part(split.encoded), decoded: part(split.decoded), pool: part(split.pool) };
        }
    }

    /// Solves it.
    pub(super) fn solve(self) -> Result<Solution, String> {
        let failed = |error: plan::PlanError| error.to_string();
        let options = Options { window: self.window };
        let mut best = plan::bottleneck_with(&self.machine, &self.loads, options).map_err(failed)?;
        for (at, split) in best.splits.iter_mut().enumerate() {
            // One job never reads a device more than a cache of files would.
            if self.cold[at] && self.loads[at].jobs.len() == 1 {
                *split = cover_first(&self.loads[at], *split);
            }
        }
        let predict = |splits: &[Split]| plan::predict_with(&self.machine, &self.loads, splits, options);
        let best = predict(&best.splits).map_err(failed)?;
        let before = predict(&self.now).map_or(0.0, |plan| plan.total());
        Ok(Solution { problem: self, before, plan: best })
    }
}

/// The same bytes, but no sample's pixels at the cost of another's file: as many samples as a cache of files
/// would have, and pixels of as many of them as there is room for.
fn cover_first(load: &Load, split: Split) -> Split {
    let (samples, file, pixels) = (load.samples as f64, load.encoded, load.decoded);
    let bytes = (split.encoded + split.decoded) as f64;
    if bytes <= samples * file || pixels <= file {
        return Split { encoded: split.encoded + split.decoded, decoded: 0, ..split };
    }
    let decoded = ((bytes - samples * file) / (pixels - file)).min(samples);
    let all = load.decoded * decoded + file * (samples - decoded);
    let decoded = (load.decoded * decoded) as u64;
    Split { decoded, encoded: (all as u64).saturating_sub(decoded), ..split }
}

impl Shared {
    /// Looks after the plan, now and then; the lock is free while it is solved.
    pub(super) fn replan<'a>(
        &'a self,
        mut state: super::MutexGuard<'a, State>,
    ) -> super::MutexGuard<'a, State> {
        let worked = (self.core_ns.get(), self.work_ns.get());
        let Some(problem) = state.review(&self.config, worked) else { return state };
        drop(state);
        let solution = problem.solve();
        let mut state = self.lock();
        state.follow(solution, &self.config);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_samples_go_before_pixels_of_some() {
        let load = Load {
            samples: 100,
            encoded: 10.0,
            decoded: 30.0,
            augmented: 20.0,
            read_s: 0.0,
            decode_s: 1.0,
            augment_s: 1.0,
            mixing: 0.0,
            jobs: Vec::new(),
        };
        let of = |bytes| cover_first(&load, Split { encoded: 0, decoded: bytes, pool: 7 });
        assert_eq!(of(800), Split { encoded: 800, decoded: 0, pool: 7 }, "not even all files fit");
        // 1400 bytes are files of 100 and 400 more: pixels of 20 of them.
        assert_eq!(of(1400), Split { encoded: 800, decoded: 600, pool: 7 });
        assert_eq!(of(9000), Split { encoded: 0, decoded: 3000, pool: 7 }, "all are decoded");
    }

    #[test]
    fn who_joins_is_planned_for_though_a_cost_has_drifted() {
        let mut planner = Planner::new();
        planner.want("drift of decoding".into());
        planner.drift = true;
        planner.want("job 3 joined".into());
        planner.want("job 4 joined".into());
        assert_eq!((planner.wanted.as_deref(), planner.drift), (Some("job 3 joined"), false));
    }
}
