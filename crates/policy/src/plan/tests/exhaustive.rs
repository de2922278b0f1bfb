//! The linear program against every split on a grid, with rates in closed form.
//!
//! For equal jobs that share copies a split gives the least, over the resources, of what is there over what one
//! delivery takes. A 0.5 % grid over the split finds the best cell; finer grids within it find the best point.

use proptest::prelude::*;

use super::near;
use crate::plan::waste::waste;
use crate::plan::{Job, Load, Machine, Split, bottleneck, predict};
use crate::share::Level;

/// Steps of the first grid along each axis.
const STEPS: i32 = 200;
/// Each finer grid spans a step of the one before to either side, in so many steps.
const FINER: i32 = 8;
/// Finer grids.
const ROUNDS: i32 = 5;

/// Deliveries per second of each of the equal jobs, when these parts of memory hold pixels, files and copies.
fn rate(machine: &Machine, load: &Load, [pixels, files, copies]: [f64; 3]) -> f64 {
    let (memory, n, jobs) = (machine.memory as f64, load.samples as f64, load.jobs.len() as f64);
    let decoded = if load.decoded > 0.0 { (pixels * memory / (n * load.decoded)).min(1.0) } else { 0.0 };
    let encoded = (files * memory / (n * load.encoded)).min(1.0 - decoded);
    let stored = 1.0 - decoded - encoded;
    let w = waste(jobs, copies * memory / (n * load.augmented), load.mixing);
    let pooled = if jobs > 1.0 { load.augmented * (w + jobs) } else { 0.0 };
    let seconds = load.augment_s + (1.0 - decoded) * load.decode_s + stored * load.read_s;
    let per_delivery = [
        (w * seconds + jobs * load.jobs[0].finish_s, machine.cores),
        (w * stored * load.encoded, machine.storage_bytes),
        (w * stored, machine.storage_requests),
        (w * (decoded * load.decoded + encoded * load.encoded) + pooled, machine.link_bytes),
    ];
    let bound = |(takes, there): (f64, f64)| if takes > 0.0 { there / takes } else { f64::INFINITY };
    let demand = load.jobs[0].demand.unwrap_or(f64::INFINITY);
    per_delivery.into_iter().map(bound).fold(demand, f64::min)
}

fn exhaustive(machine: &Machine, load: &Load) -> f64 {
    let grid = |steps: i32, at: &dyn Fn(i32, i32) -> [f64; 2]| {
        let mut best = (f64::MIN, [0.0; 2]);
        for i in 0..=steps {
            for k in 0..=steps {
                let [pixels, files] = at(i, k);
                if pixels < 0.0 || files < 0.0 || pixels + files > 1.0 + 1e-12 {
                    continue;
                }
                let found = rate(machine, load, [pixels, files, (1.0 - pixels - files).max(0.0)]);
                if found > best.0 {
                    best = (found, [pixels, files]);
                }
            }
        }
        best
    };
    let step = 1.0 / f64::from(STEPS);
    let mut best = grid(STEPS, &|i, k| [f64::from(i) * step, f64::from(k) * step]);
    let mut width = step;
    for _ in 0..ROUNDS {
        let [x, y] = best.1;
        let fine = 2.0 * width / f64::from(FINER);
        let finer = grid(FINER, &|i, k| [x - width + f64::from(i) * fine, y - width + f64::from(k) * fine]);
        best = if finer.0 > best.0 { finer } else { best };
        width = fine;
    }
    best.0
}

prop_compose! {
    fn platforms()(
        cores in 1.0..64.0f64,
        share in 0.02..1.5f64,
        storage in 20e6..2e9f64,
        requests in prop_oneof![Just(f64::INFINITY), 200.0..20_000.0f64],
        link in prop_oneof![Just(f64::INFINITY), 0.5e9..30e9f64],
        samples in 5_000u64..2_000_000,
        encoded in 20e3..400e3f64,
        pixels in prop_oneof![1 => Just(0.0), 4 => 0.5..8.0f64],
        copy in 0.3..6.0f64,
        read_s in 0.0..0.0005f64,
        decode_s in 0.0005..0.01f64,
        augment_s in 0.0001..0.004f64,
        finish_s in 0.0..0.001f64,
        mixing in 0.0..0.2f64,
        jobs in 1usize..7,
        demand in prop_oneof![Just(None), (100.0..20_000.0f64).prop_map(Some)],
    ) -> (Machine, Load) {
        let memory = (share * samples as f64 * encoded * pixels.max(1.0)) as u64;
        let job = Job { demand, finish_s, level: Level::Augmented };
        let machine =
            Machine { cores, memory, storage_bytes: storage, storage_requests: requests, link_bytes: link };
        let load = Load {
            samples, encoded, decoded: encoded * pixels, augmented: encoded * copy,
            read_s, decode_s, augment_s, mixing, jobs: vec![job; jobs],
        };
        (machine, load)
    }
}

/// `PROPTEST_CASES`, else 1000 under `FOREBAY_TEST_LONG=1`, else 100.
pub(super) fn cases() -> ProptestConfig {
    let long = std::env::var("FOREBAY_TEST_LONG").is_ok_and(|value| value == "1");
    let set = std::env::var("PROPTEST_CASES").is_ok();
    let default = ProptestConfig::default();
    let cases = if set {
        default.cases
    } else if long {
        1000
    } else {
        100
    };
    ProptestConfig { cases, ..default }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_plan_is_the_best_of_all_splits((machine, load) in platforms()) {
        let plan = bottleneck(&machine, std::slice::from_ref(&load)).expect("a plan");
        let best = exhaustive(&machine, &load);
        let rates = &plan.rates[0];
        prop_assert!(near(rates[0], best, 0.005), "plan {} grid {best}: {plan:?}", rates[0]);
        prop_assert!(rates.iter().all(|&rate| near(rate, rates[0], 1e-5)), "{plan:?}");
        prop_assert!(plan.splits[0].bytes() <= machine.memory);
        within(&machine, &load, &plan)?;
        // What the plan says of its own split is what a prediction for that split says.
        let same = predict(&machine, std::slice::from_ref(&load), &plan.splits).expect("a prediction");
        prop_assert!(near(same.total(), plan.total(), 1e-4), "{same:?} {plan:?}");
    }

    #[test]
    fn a_prediction_is_what_the_split_gives(
        (machine, load) in platforms(), parts in prop::array::uniform3(0.0..0.33f64)
    ) {
        let bytes = parts.map(|part| (part * machine.memory as f64) as u64);
        let split = Split { decoded: if load.decoded > 0.0 { bytes[0] } else { 0 }, encoded: bytes[1], pool: bytes[2] };
        let plan = predict(&machine, std::slice::from_ref(&load), &[split]).expect("a prediction");
        let expected = rate(&machine, &load, parts);
        prop_assert!(near(plan.rates[0][0], expected, 1e-4), "{expected}: {plan:?}");
        within(&machine, &load, &plan)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases().cases.div_ceil(5), ..cases() })]

    #[test]
    fn no_random_split_of_two_streams_gives_more(
        (machine, load) in platforms(),
        (_, other) in platforms(),
        tries in prop::collection::vec(prop::array::uniform6(0.01..1.0f64), 20),
    ) {
        let mut loads = [load, other];
        loads.iter_mut().flat_map(|load| &mut load.jobs).for_each(|job| job.demand = None);
        let plan = bottleneck(&machine, &loads).expect("a plan");
        prop_assert!(plan.splits.iter().map(Split::bytes).sum::<u64>() <= machine.memory);
        for parts in tries {
            let sum: f64 = parts.iter().map(|part| part.powi(3)).sum();
            let of = |at: usize| (parts[at].powi(3) / sum * machine.memory as f64 * 0.999) as u64;
            let split = |at: usize| Split { encoded: of(at), decoded: of(at + 1), pool: of(at + 2) };
            let found = predict(&machine, &loads, &[split(0), split(3)]).expect("a prediction");
            let least = |plan: &crate::plan::Plan| plan.slowest().unwrap_or_default();
            prop_assert!(least(&found) <= least(&plan) * 1.005, "{found:?} {plan:?}");
        }
    }
}

/// No resource gives more than it has, recomputed from rates and takes.
fn within(machine: &Machine, load: &Load, plan: &crate::plan::Plan) -> Result<(), TestCaseError> {
    let [decoded, encoded, stored] = plan.sources[0];
    let total = plan.total();
    let pooled = if load.jobs.len() > 1 { load.augmented * (plan.copies[0] + total) } else { 0.0 };
    let used = [
        (
            (encoded + stored) * load.decode_s
                + stored * load.read_s
                + plan.copies[0] * load.augment_s
                + total * load.jobs[0].finish_s,
            machine.cores,
        ),
        (stored * load.encoded, machine.storage_bytes),
        (stored, machine.storage_requests),
        (decoded * load.decoded + encoded * load.encoded + pooled, machine.link_bytes),
    ];
    for (used, there) in used {
        prop_assert!(used <= there * (1.0 + 1e-5), "{used} of {there}: {plan:?}");
    }
    for rate in &plan.rates[0] {
        prop_assert!(load.jobs[0].demand.is_none_or(|demand| *rate <= demand * (1.0 + 1e-6)));
    }
    Ok(())
}
