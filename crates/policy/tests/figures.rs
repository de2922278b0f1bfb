//! The figures that sharing promises, over the simulator and with the shipped policy.
//!
//! Every row is 20 000 samples in batches of 64 with a jitter of 0.2, six epochs, the first not counted.
//! Bars are on preparations per delivery, as means over seeds: `FOREBAY_TEST_LONG=1` takes five seeds and
//! all rows. `forebay simulate --seeds 5` prints the same figures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_policy::simulate::{Group, Policy, Report, Scenario, run};

const SMALL: [f64; 2] = [0.01, 0.05];
const LARGE: f64 = 0.5;
/// What well shuffled costs: of ten draws one follows the job's own order.
const MIXED: f64 = 0.1;
const WORKERS: u32 = 8;
/// Capacity to prepare, in speeds of the fastest job.
const CAPACITY: f64 = 2.5;
/// What preparations that take time may add to a figure.
const TIMED: f64 = 0.03;
/// What a large pool may lie above its bound.
const OVER: f64 = 0.08;

/// Jobs, and bars for the small pools without mixing.
struct Row {
    name: &'static str,
    jobs: fn() -> Vec<Group>,
    bars: [f64; 2],
}

const ROWS: [Row; 6] = [
    Row { name: "one", jobs: || equal(1, 0.0), bars: [1.0, 1.0] },
    Row { name: "4 equal", jobs: || equal(4, 0.0), bars: [0.26, 0.26] },
    Row { name: "4 staggered", jobs: || equal(4, 0.25), bars: [0.26, 0.26] },
    Row { name: "8 staggered", jobs: || equal(8, 0.125), bars: [0.140, 0.130] },
    Row { name: "1 : 1 : 2 : 4", jobs: || speeds(&[500.0, 500.0, 1000.0, 2000.0]), bars: [0.506, 0.506] },
    Row { name: "3 : 1", jobs: || speeds(&[1500.0, 500.0]), bars: [0.755, 0.755] },
];
const ONE: usize = 0;
const FOUR: usize = 2;
const EIGHT: usize = 3;
/// Preparations per delivery of the eight with mixing, and how far two epochs may be alike then.
const EIGHT_MIXED: [f64; 2] = [0.23, 0.21];
const ALIKE: f64 = 0.22;

fn equal(count: u32, stagger: f64) -> Vec<Group> {
    vec![Group { count, stagger, ..Group::default() }]
}

fn speeds(speeds: &[f64]) -> Vec<Group> {
    speeds.iter().map(|&speed| Group { speed, ..Group::default() }).collect()
}

fn is_long() -> bool {
    std::env::var("FOREBAY_TEST_LONG").is_ok_and(|value| value == "1")
}

/// One figure: a row under some conditions, with all seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    row: usize,
    pool: f64,
    mixing: f64,
    timed: bool,
}

impl Case {
    fn scenario(&self, seed: u64) -> Scenario {
        let jobs = (ROWS[self.row].jobs)();
        let fastest = jobs.iter().map(|group| group.speed).fold(0.0, f64::max);
        let (workers, prepare) =
            if self.timed { (WORKERS, f64::from(WORKERS) / (CAPACITY * fastest)) } else { (0, 0.0) };
        let (pool, mixing) = (self.pool, self.mixing);
        Scenario { pool, mixing, workers, prepare, seed, jobs, ..Scenario::default() }
    }
}

/// What a case gave, over its seeds.
struct Figure {
    case: Case,
    reports: Vec<Report>,
}

impl Figure {
    fn mean(&self, of: impl Fn(&Report) -> f64) -> f64 {
        self.reports.iter().map(of).sum::<f64>() / self.reports.len() as f64
    }

    fn ratio(&self) -> f64 {
        self.mean(|report| report.ratio)
    }

    fn name(&self) -> String {
        format!("{}, {:?}: {:.4}", ROWS[self.case.row].name, self.case, self.ratio())
    }

    /// Adds what is above a bar to what is said at the end, so that one run shows all.
    fn check(&self, value: f64, bar: f64, over: &mut Vec<String>) {
        if value > bar {
            over.push(format!("{}, and {value:.4} is above {bar:.4}", self.name()));
        }
    }
}

/// Runs all cases on all cores, and sees to it that no contract was broken.
fn measure(cases: &[Case]) -> Vec<Figure> {
    let seeds = if is_long() { 5 } else { 1 };
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Report>>> = Mutex::new(vec![None; cases.len() * seeds]);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index / seeds) else { break };
                    let scenario = case.scenario((index % seeds) as u64);
                    let report = run(&scenario, Policy::Forebay, &mut |_| ()).expect("a sound scenario");
                    done.lock().expect("no thread panicked")[index] = Some(report);
                }
            });
        }
    });
    let mut reports = done.into_inner().expect("no thread panicked").into_iter().flatten();
    let figure = |&case: &Case| {
        let figure = Figure { case, reports: reports.by_ref().take(seeds).collect() };
        for report in &figure.reports {
            assert!(report.measured, "{}", figure.name());
            assert_eq!((report.missed, report.twice), (0, 0), "{}", figure.name());
            assert_eq!((report.repeats, report.neglected), (Some(0), 0), "{}", figure.name());
        }
        figure
    };
    cases.iter().map(figure).collect()
}

/// The small pools, with and without mixing, with preparations that take no time.
fn small(wanted: impl Fn(&Case) -> bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in 0..ROWS.len() {
        for mixing in [0.0, MIXED] {
            cases.extend(SMALL.map(|pool| Case { row, pool, mixing, timed: false }));
        }
    }
    cases.retain(wanted);
    cases
}

fn none_over(over: &[String]) {
    assert!(over.is_empty(), "\n{}", over.join("\n"));
}

#[test]
fn small_pools_come_close_to_one_preparation_for_all() {
    let mut over = Vec::new();
    // In short runs the smallest pool, and the other where its bar differs.
    let few = |case: &Case| case.pool == SMALL[0] || case.row == EIGHT;
    for figure in measure(&small(|case| case.mixing == 0.0 && (is_long() || few(case)))) {
        let bars = ROWS[figure.case.row].bars;
        let bar = if figure.case.pool == SMALL[0] { bars[0] } else { bars[1] };
        figure.check(figure.ratio(), bar, &mut over);
    }
    none_over(&over);
}

#[test]
fn one_job_alone_is_prepared_for_as_without_sharing() {
    for figure in measure(&small(|case| case.row == ONE)) {
        assert!(figure.reports.iter().all(|report| report.ratio == 1.0), "{}", figure.name());
    }
}

#[test]
fn mixing_shuffles_well_at_a_price_that_is_known() {
    let mut over = Vec::new();
    for figure in measure(&small(|case| case.row == EIGHT && case.mixing == MIXED)) {
        let bar = if figure.case.pool == SMALL[0] { EIGHT_MIXED[0] } else { EIGHT_MIXED[1] };
        figure.check(figure.ratio(), bar, &mut over);
        figure.check(figure.mean(|report| report.quality.correlation.unwrap_or(1.0)), ALIKE, &mut over);
    }
    none_over(&over);
}

#[test]
fn a_large_pool_stays_near_the_bound() {
    let case = |row| Case { row, pool: LARGE, mixing: 0.0, timed: false };
    let mut over = Vec::new();
    for figure in measure(&(0..ROWS.len()).map(case).collect::<Vec<_>>()) {
        let bar = (1.0 + OVER) * figure.mean(|report| report.bound);
        figure.check(figure.ratio(), bar, &mut over);
    }
    none_over(&over);
}

#[test]
fn preparations_that_take_time_add_little() {
    // In short runs, of four and of eight staggered jobs, the figure that it adds most to.
    let most = [(FOUR, SMALL[1], MIXED), (EIGHT, SMALL[0], 0.0)];
    let few = |case: &Case| most.contains(&(case.row, case.pool, case.mixing));
    let cases = small(|case| is_long() || few(case));
    let timed: Vec<Case> = cases.iter().map(|&case| Case { timed: true, ..case }).collect();
    let mut over = Vec::new();
    for (figure, instant) in measure(&timed).iter().zip(measure(&cases)) {
        figure.check((figure.ratio() - instant.ratio()).abs(), TIMED, &mut over);
    }
    none_over(&over);
}
