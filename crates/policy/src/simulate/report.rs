//! What a run is judged by, counted by the driver and not by the system.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::{Member, Policy, Quality, Scenario, Served, Watch};
use crate::share::{Level, Order, Remainder};

/// Beyond this many samples copies are not followed one by one.
const FOLLOWED: u64 = 200_000;

/// The figures of one job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobReport {
    /// Samples it received.
    pub deliveries: u64,
    /// Share of its time that it waited for a batch.
    pub waited: f64,
    /// Epochs it finished.
    pub epochs: u64,
    /// How well its order was shuffled.
    pub quality: Quality,
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// Who served.
    pub policy: Policy,
    /// Whether the warm-up ended; if not, everything is counted.
    pub measured: bool,
    /// Samples prepared in the measured time.
    pub preparations: u64,
    /// Samples received in it.
    pub deliveries: u64,
    /// Preparations per delivery.
    pub ratio: f64,
    /// What no policy can go below with a small pool: each moment's fastest job, or the union of needs.
    pub bound: f64,
    /// Share of deliveries that were there before the job asked.
    pub hits: f64,
    /// Samples that a finished epoch did not give its job.
    pub missed: u64,
    /// Samples given a second time within an epoch.
    pub twice: u64,
    /// Copies given to one job a second time; nothing for large datasets, where it is not followed.
    pub repeats: Option<u64>,
    /// Moments at which a job waited though a worker was free to serve it.
    pub neglected: u64,
    /// Share of all jobs' time spent waiting.
    pub waited: f64,
    /// Means over the jobs.
    pub quality: Quality,
    /// Job by job.
    pub jobs: Vec<JobReport>,
}

/// With whom a job can share copies: those for which this is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sharing {
    /// Any copy will do.
    Any,
    /// In strict order, the copies that this seed names.
    Seed(u64),
    /// Only its own.
    Apart(usize),
}

impl Sharing {
    fn of(job: usize, member: &Member) -> Self {
        match (member.group.level, member.group.order) {
            _ if member.group.replacement => Sharing::Apart(job),
            (Level::Augmented, Order::Strict) => Sharing::Seed(member.seed),
            (Level::Augmented, _) => Sharing::Any,
            _ => Sharing::Apart(job),
        }
    }
}

struct Seen {
    member: Member,
    samples: Vec<u64>,
    count: u32,
    copies: HashSet<u64>,
    watch: Watch,
    epochs: u64,
    joined: Option<f64>,
    gone: bool,
    asked: Option<f64>,
    present: f64,
    waited: f64,
    deliveries: u64,
    /// Received since the set of running jobs changed last.
    recent: u64,
}

pub(super) struct Tally {
    seen: Vec<Seen>,
    follow: bool,
    warmup: u64,
    measuring: bool,
    preparations: u64,
    bound: f64,
    hits: u64,
    missed: u64,
    twice: u64,
    repeats: u64,
    pub(super) neglected: u64,
}

impl Tally {
    pub(super) fn new(scenario: &Scenario, members: &[Member]) -> Self {
        let seen = members.iter().map(|member| Seen {
            samples: vec![0; scenario.samples.div_ceil(64) as usize],
            count: 0,
            copies: HashSet::new(),
            watch: Watch::new(member.range.0, member.len()),
            epochs: 0,
            joined: None,
            gone: false,
            asked: None,
            present: 0.0,
            waited: 0.0,
            deliveries: 0,
            recent: 0,
            member: member.clone(),
        });
        Tally {
            seen: seen.collect(),
            follow: scenario.samples <= FOLLOWED,
            warmup: scenario.warmup,
            measuring: scenario.warmup == 0,
            preparations: 0,
            bound: 0.0,
            hits: 0,
            missed: 0,
            twice: 0,
            repeats: 0,
            neglected: 0,
        }
    }

    pub(super) fn prepared(&mut self) {
        self.preparations += 1;
    }

    pub(super) fn joined(&mut self, now: f64, job: usize) {
        self.settle();
        self.seen[job].joined = Some(now);
    }

    pub(super) fn asked(&mut self, now: f64, job: usize) {
        self.seen[job].asked = Some(now);
    }

    pub(super) fn took(&mut self, now: f64, job: usize, batch: &[Served]) {
        let seen = &mut self.seen[job];
        seen.waited += seen.asked.take().map_or(0.0, |asked| now - asked);
        for served in batch {
            let (word, bit) = (served.sample as usize / 64, 1u64 << (served.sample % 64));
            if seen.samples[word] & bit != 0 {
                self.twice += u64::from(!seen.member.group.replacement);
            } else {
                seen.samples[word] |= bit;
                seen.count += 1;
            }
            if self.follow && !seen.copies.insert(served.copy) {
                self.repeats += 1;
            }
            self.hits += u64::from(served.hit);
        }
        seen.watch.batch(batch.iter().map(|served| served.sample));
        seen.deliveries += batch.len() as u64;
        seen.recent += batch.len() as u64;
    }

    pub(super) fn ended(&mut self, now: f64, job: usize) {
        let seen = &mut self.seen[job];
        seen.waited += seen.asked.take().map_or(0.0, |asked| now - asked);
        if !seen.member.group.replacement {
            let short = seen.member.len() - seen.count;
            let step = seen.member.group.batch * seen.member.group.ranks;
            let dropped = seen.member.group.remainder == Remainder::Drop;
            self.missed +=
                u64::from(if dropped { short.saturating_sub(seen.member.len() % step) } else { short });
        }
        seen.samples.fill(0);
        seen.count = 0;
        seen.epochs += 1;
        seen.watch.end(true);
        self.warm_up(now);
    }

    /// From the end of the warm-up on it counts. A job that left early keeps nobody from being measured.
    fn warm_up(&mut self, now: f64) {
        let warm = |seen: &Seen| seen.gone || seen.epochs >= self.warmup;
        if self.measuring || !self.seen.iter().all(warm) {
            return;
        }
        self.measuring = true;
        (self.preparations, self.bound, self.hits) = (0, 0.0, 0);
        (self.missed, self.twice, self.repeats, self.neglected) = (0, 0, 0, 0);
        for seen in &mut self.seen {
            (seen.deliveries, seen.recent, seen.waited, seen.present) = (0, 0, 0.0, 0.0);
            (seen.joined, seen.asked) = (seen.joined.map(|_| now), seen.asked.map(|_| now));
            seen.watch.restart();
        }
    }

    pub(super) fn left(&mut self, now: f64, job: usize) {
        self.settle();
        let seen = &mut self.seen[job];
        seen.present += seen.joined.take().map_or(0.0, |joined| now - joined);
        (seen.asked, seen.gone) = (None, true);
        self.warm_up(now);
    }

    /// Adds what the jobs of the time now ending needed at least: every sample as often as the job that got
    /// it most often, of those that can share a copy.
    fn settle(&mut self) {
        let mut edges: Vec<u32> =
            self.seen.iter().flat_map(|s| [s.member.range.0, s.member.range.1]).collect();
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let over = self
                .seen
                .iter()
                .enumerate()
                .filter(|(_, s)| s.member.range.0 <= pair[0] && pair[1] <= s.member.range.1);
            let passes = |s: &Seen| s.recent as f64 / f64::from(s.member.len());
            let mut least: BTreeMap<Sharing, f64> = BTreeMap::new();
            for (job, seen) in over {
                let most = least.entry(Sharing::of(job, &seen.member)).or_default();
                *most = most.max(passes(seen));
            }
            self.bound += least.values().sum::<f64>() * f64::from(pair[1] - pair[0]);
        }
        self.seen.iter_mut().for_each(|seen| seen.recent = 0);
    }

    pub(super) fn report(mut self, scenario: &Scenario, policy: Policy, end: f64) -> Report {
        self.settle();
        for seen in &mut self.seen {
            seen.waited += seen.asked.take().map_or(0.0, |asked| end - asked);
            seen.present += seen.joined.take().map_or(0.0, |joined| end - joined);
        }
        let jobs: Vec<JobReport> = self
            .seen
            .iter()
            .map(|seen| JobReport {
                deliveries: seen.deliveries,
                waited: share(seen.waited, seen.present),
                epochs: seen.epochs,
                quality: seen.watch.quality(),
            })
            .collect();
        let deliveries = jobs.iter().map(|job| job.deliveries).sum::<u64>();
        let per_delivery = |value: f64| share(value, deliveries as f64);
        let waited: f64 = self.seen.iter().map(|seen| seen.waited).sum();
        let present: f64 = self.seen.iter().map(|seen| seen.present).sum();
        Report {
            scenario: scenario.name.clone(),
            policy,
            measured: self.measuring,
            preparations: self.preparations,
            deliveries,
            ratio: per_delivery(self.preparations as f64),
            bound: per_delivery(self.bound),
            hits: per_delivery(self.hits as f64),
            missed: self.missed,
            twice: self.twice,
            repeats: self.follow.then_some(self.repeats),
            neglected: self.neglected,
            waited: share(waited, present),
            quality: mean(&jobs),
            jobs,
        }
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn mean(jobs: &[JobReport]) -> Quality {
    let of = |get: fn(&Quality) -> Option<f64>| {
        let known: Vec<f64> = jobs.iter().filter_map(|job| get(&job.quality)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    Quality { correlation: of(|q| q.correlation), repeated: of(|q| q.repeated), skew: of(|q| q.skew) }
}

#[cfg(test)]
mod tests {
    use super::super::{Group, run};
    use super::*;

    fn report(scenario: &Scenario) -> Report {
        run(scenario, Policy::Forebay, &mut |_| ()).expect("a sound scenario")
    }

    fn scenario(groups: Vec<Group>) -> Scenario {
        Scenario { samples: 1000, pool: 0.1, mixing: 0.0, jitter: 0.0, jobs: groups, ..Scenario::default() }
    }

    #[test]
    fn the_bound_adds_what_cannot_be_shared() {
        let two = Group { count: 2, ..Group::default() };
        let bound = |groups: &[&Group]| {
            let report = report(&scenario(groups.iter().map(|&group| group.clone()).collect()));
            (report.bound * 100.0).round() / 100.0
        };
        let strict = Group { order: Order::Strict, ..two.clone() };
        let same = Group { own_seed: false, ..strict.clone() };
        assert_eq!(bound(&[&two]), 0.5);
        assert_eq!(bound(&[&strict]), 1.0, "two seeds, two orders");
        assert_eq!(bound(&[&same]), 0.5, "one seed, one order");
        assert_eq!(bound(&[&same, &two]), 0.5);
        assert_eq!(bound(&[&strict, &two]), 0.75);
        let decoded = Group { level: Level::Decoded, ..two.clone() };
        let replaced = Group { replacement: true, ..same.clone() };
        assert_eq!(bound(&[&decoded]), 1.0);
        assert_eq!(bound(&[&replaced, &same, &two]), 0.67, "four classes for six jobs");
        assert_eq!(bound(&[&Group { order: Order::Late(100), ..two.clone() }, &two]), 0.25);
    }

    #[test]
    fn a_warm_up_that_never_ends_is_told_and_everything_counts() {
        let jobs = vec![Group::default(), Group { start: 5.5, ..Group::default() }];
        let whole = Scenario { warmup: 0, ..scenario(jobs) };
        let all = report(&whole);
        assert!(all.measured);
        let late = report(&Scenario { warmup: 100, ..whole.clone() });
        assert_eq!(late, Report { measured: false, ..all.clone() });
        let some = report(&Scenario { warmup: 1, ..whole });
        assert!(some.measured && some.deliveries < all.deliveries);
    }

    #[test]
    fn who_leaves_early_is_not_waited_for_and_not_credited() {
        let jobs = vec![Group::default(), Group { stop: Some(0.5), ..Group::default() }];
        let report = report(&Scenario { warmup: 2, ..scenario(jobs) });
        assert!(report.measured);
        assert_eq!(report.jobs[1].epochs, 0);
    }

    #[test]
    fn counters_and_clocks_begin_anew_when_the_warm_up_ends() {
        let of = scenario(vec![Group::default()]);
        let mut tally = Tally::new(&of, &of.members().expect("sound"));
        tally.joined(0.0, 0);
        tally.asked(0.0, 0);
        tally.prepared();
        tally.neglected = 7;
        tally.seen[0].epochs = 1;
        tally.warm_up(4.0);
        tally.took(5.0, 0, &[Served { sample: 1, copy: 1, hit: false }]);
        let report = tally.report(&of, Policy::Forebay, 6.0);
        assert_eq!((report.neglected, report.preparations, report.deliveries), (0, 0, 1));
        assert_eq!(report.waited, 0.5, "one of the two seconds that count");
    }
}
