//! Streams and jobs of other shapes: fairness, windows, several streams, prices, and what is refused.

use proptest::prelude::*;

use super::*;

#[test]
fn jobs_share_fairly_by_what_they_ask_for() {
    let (machine, mut load) = small();
    let ask = |demand| Job { demand: Some(demand), level: Level::Decoded, ..load.jobs[0] };
    load.jobs = vec![ask(4000.0), ask(2000.0)];
    let plan = bottleneck(&machine, &[load]).expect("a plan");
    let rates = &plan.rates[0];
    assert!(near(rates[0], 2.0 * rates[1], 1e-4), "{plan:?}");
    assert!(plan.binds.contains(&Resource::Cores) && plan.binds.contains(&Resource::Memory), "{plan:?}");
}

#[test]
fn jobs_that_have_enough_leave_the_rest_to_others() {
    let (machine, mut load) = small();
    let job = Job { level: Level::Decoded, ..load.jobs[0] };
    load.jobs = vec![Job { demand: Some(50.0), ..job }, job];
    let plan = bottleneck(&machine, &[load]).expect("a plan");
    assert!(plan.rates[0][0] > 20.0 && plan.rates[0][1] > 1200.0, "{plan:?}");
}

#[test]
fn where_all_have_enough_demand_binds_and_little_is_used() {
    let (machine, mut load) = small();
    load.jobs[0].demand = Some(100.0);
    let plan = bottleneck(&machine, &[load]).expect("a plan");
    assert_eq!(plan.binds, [Resource::Demand]);
    assert!(near(plan.total(), 100.0, 1e-6) && plan.use_.cores < 0.1, "{plan:?}");
}

#[test]
fn sharing_copies_beats_sharing_pixels_beats_sharing_nothing() {
    let (machine, load) = small();
    let with = |level, window| {
        let job = Job { level, ..load.jobs[0] };
        let load = Load { jobs: vec![job; 4], ..load.clone() };
        bottleneck_with(&machine, &[load], Options { window }).expect("a plan").total()
    };
    let (copies, window) = (with(Level::Augmented, false), with(Level::Decoded, true));
    let (pixels, files) = (with(Level::Decoded, false), with(Level::Encoded, false));
    assert!(copies > 1.2 * window && window > 1.2 * pixels, "{copies} {window} {pixels}");
    assert!(pixels > files, "{pixels} {files}");
}

#[test]
fn two_streams_divide_the_cores_and_the_memory() {
    let (machine, load) = small();
    let plan = bottleneck(&machine, &[load.clone(), load.clone()]).expect("a plan");
    let [a, b] = [plan.rates[0][0], plan.rates[1][0]];
    assert!(near(a, b, 1e-3), "{plan:?}");
    // Two equal streams are one with twice the samples and work.
    let both = Load { samples: 2 * load.samples, ..load };
    let one = bottleneck(&machine, &[both]).expect("a plan").total();
    assert!(near(plan.total(), one, 2e-3), "{} {one}", plan.total());
}

#[test]
fn a_stream_that_gains_more_from_memory_gets_it() {
    let (machine, load) = small();
    let quick = Load { decode_s: 0.0002, read_s: 0.0, ..load.clone() };
    let machine = Machine { storage_bytes: f64::INFINITY, storage_requests: f64::INFINITY, ..machine };
    let plan = bottleneck(&machine, &[load, quick]).expect("a plan");
    assert!(plan.splits[0].decoded > 10 * plan.splits[1].decoded, "{plan:?}");
}

#[test]
fn many_streams_are_planned_too() {
    let (machine, load) = small();
    let loads: Vec<Load> = (0..8).map(|i| Load { samples: 5000 + 1000 * i, ..load.clone() }).collect();
    let plan = bottleneck(&machine, &loads).expect("a plan");
    assert!(plan.rates.iter().flatten().all(|&rate| rate > 0.0), "{plan:?}");
    assert!(plan.splits.iter().map(Split::bytes).sum::<u64>() <= machine.memory);
}

#[test]
fn a_pool_is_there_for_jobs_that_share() {
    let (machine, load) = small();
    let alone = bottleneck(&machine, std::slice::from_ref(&load)).expect("a plan");
    assert_eq!((alone.splits[0].pool, alone.waste[0]), (0, 1.0));
    let four = Load { jobs: vec![load.jobs[0]; 4], ..load };
    let plan = bottleneck(&machine, &[four]).expect("a plan");
    assert!(plan.splits[0].pool > 0 && plan.waste[0] > 1.0 && plan.waste[0] < 2.0, "{plan:?}");
    assert!(plan.total() > 3.0 * alone.total(), "{} {}", plan.total(), alone.total());
}

#[test]
fn prices_name_what_binds() {
    let (machine, load) = small();
    let of = |machine: &Machine| prices(machine, std::slice::from_ref(&load)).expect("prices");
    let busy = of(&machine);
    assert!(busy.core > 0.0 && busy.gigabyte > 0.0, "{busy:?}");
    let slow = Machine { memory: 1_000_000_000, storage_bytes: 5e6, cores: 64.0, ..machine };
    let waits = of(&slow);
    assert!(waits.megabyte > 1.0 && waits.core < 1e-3 && waits.gigabyte > 0.0, "{waits:?}");
    let unlike = Machine { storage_bytes: f64::INFINITY, storage_requests: 50.0, ..slow };
    let seeks = of(&unlike);
    assert!(seeks.requests > 1.0 && seeks.megabyte == 0.0, "{seeks:?}");
    assert!(seeks.jobs[0].total > 0.0 && seeks.jobs[0].gets > 0.0, "copies are shared: {seeks:?}");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_figure() {
    let (machine, load) = small();
    let plan = |machine: &Machine, load: &Load| bottleneck(machine, std::slice::from_ref(load));
    for wrong in [f64::NAN, 0.0, -1.0] {
        assert!(matches!(plan(&Machine { cores: wrong, ..machine }, &load), Err(PlanError::Wrong { .. })));
    }
    let minus = plan(&machine, &Load { decode_s: -1.0, ..load.clone() }).expect_err("negative");
    assert_eq!(minus.to_string(), "stream 0: decode_s = -1: must be 0 or more");
    let free = Machine {
        storage_bytes: f64::INFINITY,
        storage_requests: f64::INFINITY,
        link_bytes: f64::INFINITY,
        ..machine
    };
    let mut costless = Load { read_s: 0.0, decode_s: 0.0, augment_s: 0.0, ..load.clone() };
    costless.jobs[0].finish_s = 0.0;
    assert_eq!(plan(&free, &costless), Err(PlanError::Unbounded { stream: 0 }));
    costless.jobs[0].demand = Some(7.0);
    assert!(near(plan(&free, &costless).expect("a plan").total(), 7.0, 1e-6));
    let splits = [Split { pool: 3_000_000_000, ..Split::default() }];
    let large = predict(&machine, std::slice::from_ref(&load), &splits);
    assert!(matches!(large, Err(PlanError::Memory { .. })), "{large:?}");
    assert!(matches!(predict(&machine, &[load], &[]), Err(PlanError::Splits { splits: 0, streams: 1 })));
}

#[test]
fn no_jobs_and_no_streams_are_plans_of_nothing() {
    let (machine, load) = small();
    assert_eq!(bottleneck(&machine, &[]).expect("a plan").total(), 0.0);
    let idle = bottleneck(&machine, &[Load { jobs: vec![], ..load }]).expect("a plan");
    assert_eq!((idle.total(), idle.binds), (0.0, vec![Resource::Demand]));
}

#[test]
fn without_memory_everything_comes_from_storage() {
    let (machine, load) = small();
    let plan = bottleneck(&Machine { memory: 0, ..machine }, &[load]).expect("a plan");
    assert_eq!((plan.sources[0][0], plan.sources[0][1]), (0.0, 0.0));
    assert!(near(plan.total(), plan.sources[0][2], 1e-6) && plan.total() > 0.0, "{plan:?}");
}

/// Of any size from 10 to this power to 10 to that.
fn any_size(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (low..high).prop_map(|power| 10f64.powf(power))
}

prop_compose! {
    fn any_load()(
        samples in any_size(0.0, 9.0),
        sizes in prop::array::uniform3(any_size(0.0, 9.0)),
        times in prop::array::uniform4(prop_oneof![1 => Just(0.0), 4 => any_size(-8.0, 2.0)]),
        mixing in 0.0..=1.0f64,
        jobs in prop::collection::vec((prop::option::of(any_size(-2.0, 9.0)), 0usize..3), 0..6),
    ) -> Load {
        let level = |at: usize| [Level::Encoded, Level::Decoded, Level::Augmented][at];
        let job = |&(demand, at): &(Option<f64>, usize)| Job { demand, finish_s: times[3], level: level(at) };
        Load {
            samples: samples as u64, encoded: sizes[0], decoded: sizes[1], augmented: sizes[2],
            read_s: times[0], decode_s: times[1], augment_s: times[2], mixing,
            jobs: jobs.iter().map(job).collect(),
        }
    }
}

proptest! {
    #![proptest_config(super::exhaustive::cases())]

    #[test]
    fn figures_of_any_size_are_planned(
        loads in prop::collection::vec(any_load(), 1..3),
        cores in any_size(0.0, 3.0),
        memory in any_size(0.0, 15.0),
        rates in prop::array::uniform3(prop_oneof![Just(f64::INFINITY), any_size(3.0, 12.0)]),
        window: bool,
    ) {
        let [storage_bytes, storage_requests, link_bytes] = rates;
        let machine = Machine { cores, memory: memory as u64, storage_bytes, storage_requests, link_bytes };
        match bottleneck_with(&machine, &loads, Options { window }) {
            Err(PlanError::Unbounded { .. }) => {}
            Err(error) => prop_assert!(false, "{error:?}"),
            Ok(plan) => {
                prop_assert!(plan.rates.iter().flatten().all(|rate| rate.is_finite() && *rate >= 0.0));
                prop_assert!(plan.splits.iter().map(Split::bytes).sum::<u64>() <= machine.memory);
            }
        }
    }
}
