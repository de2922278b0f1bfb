//! A scenario as plain data, as it stands in a TOML file.

use serde::{Deserialize, Serialize};

use crate::share::{Level, MOST_JOBS, Order, Remainder};

/// Samples in a step of all ranks of a job, at most.
const MOST_STEP: u64 = 1 << 20;

/// Which system serves the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Policy {
    /// The shipped policy.
    Forebay,
    /// Every job in its own random order over one cache that evicts the least recently used.
    Lru,
    /// The same over a cache that keeps what came first (MinIO).
    NoEvict,
    /// Opportunistic sampling with counts (Seneca).
    Ods,
    /// Every job prepares a part of each epoch for all, in step (CoorDL).
    Coordinated,
    /// A window that slides over one sequence and skips for the slow (tf.data service).
    Window,
    /// One sequence, and a short buffer within which consumers may differ (TensorSocket).
    Band,
    /// Dependent sampling (Joader).
    Joader,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 8] = [
        Policy::Forebay,
        Policy::Lru,
        Policy::NoEvict,
        Policy::Ods,
        Policy::Coordinated,
        Policy::Window,
        Policy::Band,
        Policy::Joader,
    ];

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Forebay => "forebay",
            Policy::Lru => "lru",
            Policy::NoEvict => "no-evict",
            Policy::Ods => "ods",
            Policy::Coordinated => "coordinated",
            Policy::Window => "window",
            Policy::Band => "band",
            Policy::Joader => "joader",
        }
    }
}

/// Some equal jobs, perhaps one after another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
    /// How many.
    pub count: u32,
    /// Samples per second that each of them can use.
    pub speed: f64,
    /// Samples in a batch of one rank.
    pub batch: u32,
    /// Ranks of each.
    pub ranks: u32,
    /// What becomes of samples that do not fill a step.
    pub remainder: Remainder,
    /// Seconds before the first starts.
    pub start: f64,
    /// Epochs of this group's own speed between one start and the next.
    pub stagger: f64,
    /// Second at which all of them end.
    pub stop: Option<f64>,
    /// Epochs after which each ends; without it, at the scenario's end.
    pub epochs: Option<u64>,
    /// Seconds that each validates after every epoch.
    pub pause: f64,
    /// `"ready"`, `"strict"` or an integer.
    pub order: Order,
    /// What it shares.
    pub level: Level,
    /// Part of its draws that follow its own order; the scenario's if absent.
    pub mixing: Option<f64>,
    /// First and last share of the samples that it trains on, such as `[0.0, 0.8]`; all if absent.
    pub subset: Option<[f64; 2]>,
    /// Each of the group has its own seed, else all have the same.
    pub own_seed: bool,
    /// As many draws with replacement as there are samples make an epoch, in strict order, sharing nothing.
    pub replacement: bool,
}

impl Default for Group {
    fn default() -> Self {
        Group {
            count: 1,
            speed: 1000.0,
            batch: 64,
            ranks: 1,
            remainder: Remainder::Pad,
            start: 0.0,
            stagger: 0.0,
            stop: None,
            epochs: None,
            pause: 0.0,
            order: Order::Ready,
            level: Level::Augmented,
            mixing: None,
            subset: None,
            own_seed: true,
            replacement: false,
        }
    }
}

/// Early stopping as tuning services do it (asynchronous successive halving): a job that ends one of the
/// epochs `rungs` goes on only if its score is among the best `keep` of those that came so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Halving {
    /// Epochs after which jobs are judged.
    pub rungs: Vec<u64>,
    /// Share of them that goes on.
    pub keep: f64,
}

/// What is simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// For tables.
    pub name: String,
    /// Samples of the dataset.
    pub samples: u64,
    /// Copies that the pool (or a baseline's cache) holds, as a share of the samples.
    pub pool: f64,
    /// Part of the draws that follow each job's own order.
    pub mixing: f64,
    /// Threads that prepare; 0: preparation takes no time.
    pub workers: u32,
    /// Seconds that one preparation takes.
    pub prepare: f64,
    /// Steps and preparations take this share more or less, uniformly.
    pub jitter: f64,
    /// Epochs that the slowest job has time for after the last one started.
    pub epochs: f64,
    /// Count from the moment when every job has had this many epochs (0 counts everything).
    pub warmup: u64,
    /// Names every random number.
    pub seed: u64,
    /// Early stopping.
    pub halving: Option<Halving>,
    /// The jobs.
    pub jobs: Vec<Group>,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            name: String::new(),
            samples: 20_000,
            pool: 0.01,
            mixing: 0.1,
            workers: 0,
            prepare: 0.0,
            jitter: 0.2,
            epochs: 6.0,
            warmup: 1,
            seed: 0,
            halving: None,
            jobs: vec![Group::default()],
        }
    }
}

/// One job of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// What it is.
    pub group: Group,
    /// Second at which it starts.
    pub start: f64,
    /// Its seed.
    pub seed: u64,
    /// First sample and the one after the last.
    pub range: (u32, u32),
    /// Part of its draws that follow its own order.
    pub mixing: f64,
}

impl Member {
    /// Samples it trains on.
    pub fn len(&self) -> u32 {
        self.range.1 - self.range.0
    }

    /// Whether it trains on nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a scenario cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(pub String);

fn wrong<T>(text: String) -> Result<T, Wrong> {
    Err(Wrong(text))
}

impl Group {
    /// Whether its numbers make sense, and the range of the samples that it trains on.
    fn check(&self, samples: u64) -> Result<(u32, u32), Wrong> {
        let positive = self.speed.is_finite() && self.speed > 0.0;
        if !positive || self.batch == 0 || self.ranks == 0 || self.count == 0 {
            return wrong("a job needs count, speed, batch and ranks above 0".into());
        }
        let step = u64::from(self.batch) * u64::from(self.ranks);
        if step > MOST_STEP {
            return wrong(format!("batch × ranks = {step}: {MOST_STEP} at most"));
        }
        if self.epochs == Some(0) {
            return wrong("epochs = 0: a job has at least one, or no such field".into());
        }
        let times = [("start", self.start), ("stagger", self.stagger), ("pause", self.pause)];
        for (name, value) in times.into_iter().chain(self.stop.map(|stop| ("stop", stop))) {
            if !(value.is_finite() && value >= 0.0) {
                return wrong(format!("{name} = {value}: finite and not negative"));
            }
        }
        if let Some(mixing) = self.mixing.filter(|mixing| !(0.0..=1.0).contains(mixing)) {
            return wrong(format!("mixing = {mixing}: between 0 and 1"));
        }
        let [low, high] = self.subset.unwrap_or([0.0, 1.0]);
        let ordered = low >= 0.0 && low < high && high <= 1.0;
        let n = samples as f64;
        let range = ((low * n).round() as u32, (high * n).round() as u32);
        if !ordered || range.0 >= range.1 {
            return wrong(format!("subset = [{low}, {high}]: two rising shares with samples between them"));
        }
        Ok(range)
    }
}

impl Scenario {
    /// Copies that fit.
    pub fn slots(&self) -> u32 {
        ((self.samples as f64 * self.pool).round() as u32).max(1)
    }

    /// The jobs one by one, and whether the numbers make sense.
    pub fn members(&self) -> Result<Vec<Member>, Wrong> {
        self.check()?;
        let mut members = Vec::new();
        for group in &self.jobs {
            let range = group.check(self.samples)?;
            let mixing = group.mixing.unwrap_or(self.mixing);
            let epoch = f64::from(range.1 - range.0) / group.speed;
            for i in 0..group.count {
                let number = members.len() as u64;
                let seed = if group.own_seed {
                    self.seed.wrapping_mul(1009).wrapping_add(number)
                } else {
                    self.seed
                };
                let start = group.start + f64::from(i) * group.stagger * epoch;
                if !start.is_finite() {
                    return wrong(format!("stagger = {}: a job would never start", group.stagger));
                }
                members.push(Member { group: group.clone(), start, seed, range, mixing });
            }
        }
        Ok(members)
    }

    /// Whether what all jobs have in common makes sense, and how many they are.
    fn check(&self) -> Result<(), Wrong> {
        let n = self.samples;
        if n == 0 || n > u64::from(u32::MAX) / 2 {
            return wrong(format!("samples = {n}: between 1 and {}", u32::MAX / 2));
        }
        for (name, value, low, high) in [
            ("pool", self.pool, 0.0, 2.0),
            ("mixing", self.mixing, 0.0, 1.0),
            ("jitter", self.jitter, 0.0, 0.99),
            ("epochs", self.epochs, 0.0, 1e6),
            ("prepare", self.prepare, 0.0, 1e6),
        ] {
            if !(low..=high).contains(&value) {
                return wrong(format!("{name} = {value}: between {low} and {high}"));
            }
        }
        if self.workers > 0 && self.prepare <= 0.0 {
            return wrong("workers need prepare > 0, the seconds of one preparation".into());
        }
        if let Some(Halving { rungs, keep }) = &self.halving {
            if !(*keep > 0.0 && *keep <= 1.0) {
                return wrong(format!("keep = {keep}: above 0, 1 at most"));
            }
            if rungs.contains(&0) {
                return wrong("rungs: a job is judged after 1 epoch at the earliest".into());
            }
        }
        let jobs: u64 = self.jobs.iter().map(|group| u64::from(group.count)).sum();
        if jobs == 0 || jobs > MOST_JOBS as u64 {
            return wrong(format!("{jobs} jobs: between 1 and {MOST_JOBS}"));
        }
        Ok(())
    }

    /// Second at which everything ends.
    pub fn end(&self, members: &[Member]) -> f64 {
        let last = members.iter().map(|m| m.start).fold(0.0, f64::max);
        let longest =
            members.iter().map(|m| f64::from(m.len()) / m.group.speed + m.group.pause).fold(0.0, f64::max);
        last + self.epochs * longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(scenario: &Scenario) -> String {
        scenario.members().map_or_else(|wrong| wrong.0, |members| format!("{} jobs", members.len()))
    }

    #[test]
    fn numbers_of_a_job_that_make_no_sense_are_named() {
        let of = |group: Group| said(&Scenario { jobs: vec![group], ..Scenario::default() });
        let group = Group::default;
        assert_eq!(of(group()), "1 jobs");
        assert_eq!(of(Group { count: 64, ..group() }), "64 jobs");
        assert_eq!(of(Group { count: u32::MAX, ..group() }), "4294967295 jobs: between 1 and 64");
        assert_eq!(of(Group { count: 0, ..group() }), "0 jobs: between 1 and 64");
        let large = Group { batch: u32::MAX, ranks: u32::MAX, ..group() };
        assert_eq!(of(large), "batch × ranks = 18446744065119617025: 1048576 at most");
        assert_eq!(of(Group { batch: 1 << 20, ..group() }), "1 jobs");
        assert_eq!(
            of(Group { epochs: Some(0), ..group() }),
            "epochs = 0: a job has at least one, or no such field"
        );
        for stop in [-1.0, f64::NAN, f64::INFINITY] {
            let text = of(Group { stop: Some(stop), ..group() });
            assert_eq!(text, format!("stop = {stop}: finite and not negative"));
        }
        assert_eq!(of(Group { stop: Some(0.0), ..group() }), "1 jobs");
        let never = Group { count: 3, stagger: f64::MAX, ..group() };
        assert!(of(never).contains("would never start"));
        assert!(of(Group { speed: 0.0, ..group() }).starts_with("a job needs count, speed"));
        assert!(of(Group { mixing: Some(1.5), ..group() }).starts_with("mixing = 1.5"));
        assert!(of(Group { subset: Some([0.5, 0.5]), ..group() }).starts_with("subset = [0.5, 0.5]"));
    }

    #[test]
    fn jobs_of_all_groups_are_counted_and_halving_must_leave_somebody() {
        let two = vec![Group { count: 40, ..Group::default() }; 2];
        assert_eq!(said(&Scenario { jobs: two, ..Scenario::default() }), "80 jobs: between 1 and 64");
        let of = |rungs: &[u64], keep| {
            let halving = Some(Halving { rungs: rungs.to_vec(), keep });
            said(&Scenario { halving, ..Scenario::default() })
        };
        assert_eq!(of(&[1, 2], 1.0), "1 jobs");
        for keep in [0.0, -0.5, 1.01, f64::NAN] {
            assert_eq!(of(&[1], keep), format!("keep = {keep}: above 0, 1 at most"));
        }
        assert!(of(&[1, 0], 0.5).starts_with("rungs: "));
    }
}
