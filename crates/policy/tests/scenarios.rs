//! Whatever a scenario says, it ends, the shipped policy breaks no promise, and equal runs are equal.

use forebay_policy::share::{Level, Order, Remainder};
use forebay_policy::simulate::{Group, Halving, Policy, Scenario, run};
use proptest::prelude::*;

/// Of two jobs one may be this much faster.
const FASTER: f64 = 100.0;

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![3 => Just(Order::Ready), 1 => Just(Order::Strict), 1 => (1u64..200).prop_map(Order::Late)]
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![4 => Just(Level::Augmented), 1 => Just(Level::Decoded), 1 => Just(Level::Encoded)]
}

fn remainder() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Pad), Just(Remainder::Drop), Just(Remainder::Uneven)]
}

prop_compose! {
    fn group()(
        (count, faster, batch, ranks) in (1u32..4, 0.0..1.0, 1u32..40, 1u32..4),
        (start, stagger, stop) in (0.0..3.0, 0.0..0.5, prop::option::weighted(0.3, 0.0..6.0)),
        (epochs, pause) in (prop::option::weighted(0.3, 1u64..4), prop_oneof![Just(0.0), 0.0..4.0]),
        (order, level, remainder) in (order(), level(), remainder()),
        mixing in prop::option::weighted(0.2, 0.0..=1.0),
        subset in prop::option::weighted(0.4, (0.0..0.5, 0.51..=1.0)),
        (own_seed, replacement) in (any::<bool>(), prop::bool::weighted(0.2)),
    ) -> Group {
        let speed = 100.0 * FASTER.powf(faster);
        let subset = subset.map(|(low, high)| [low, high]);
        Group {
            count, speed, batch, ranks, remainder, start, stagger, stop, epochs, pause, order, level, mixing,
            subset, own_seed, replacement,
        }
    }
}

prop_compose! {
    fn scenario()(
        samples in 51u64..=500,
        (pool, mixing, jitter) in (0.0..1.2, prop_oneof![Just(0.0), 0.0..=1.0], 0.0..0.9),
        (workers, prepare) in (0u32..5, 1e-4..1e-2),
        (epochs, warmup, seed) in (0.5..4.0, 0u64..3, any::<u64>()),
        halving in prop::option::weighted(0.3, (prop::collection::vec(1u64..4, 0..3), 0.1..=1.0)),
        jobs in prop::collection::vec(group(), 1..5),
    ) -> Scenario {
        let halving = halving.map(|(rungs, keep)| Halving { rungs, keep });
        let name = String::from("any");
        Scenario { name, samples, pool, mixing, workers, prepare, jitter, epochs, warmup, seed, halving, jobs }
    }
}

fn cases() -> u32 {
    if std::env::var("FOREBAY_TEST_LONG").is_ok_and(|value| value == "1") { 2000 } else { 100 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn every_scenario_ends_as_it_should_and_as_it_did_before(scenario in scenario()) {
        let report = run(&scenario, Policy::Forebay, &mut |_| ()).expect("a sound scenario");
        prop_assert_eq!((report.missed, report.twice, report.repeats), (0, 0, Some(0)));
        if scenario.workers == 0 {
            prop_assert_eq!(report.waited, 0.0, "nothing is ever late");
        }
        prop_assert_eq!(report.neglected, 0);
        let again = run(&scenario, Policy::Forebay, &mut |_| ()).expect("a sound scenario");
        prop_assert_eq!(serde_json::to_string(&report)?, serde_json::to_string(&again)?);
    }
}
