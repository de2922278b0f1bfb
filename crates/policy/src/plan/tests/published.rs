//! Equations 1 to 9 by hand, and what the published figures give in both models.

use super::near;
use crate::plan::platforms::published;
use crate::plan::seneca::{Charge, Params, Shares, best, predict, ring};
use crate::plan::{Split, bottleneck, predict as given};

fn params(platform: &str, dataset: &str) -> Params {
    let (platform, dataset) = (published().platform(platform), published().dataset(dataset));
    platform.expect("published").params(dataset.expect("published"))
}

fn shares(encoded: f64, decoded: f64, augmented: f64) -> Shares {
    Shares { encoded, decoded, augmented }
}

#[track_caller]
fn is(platform: &str, dataset: &str, split: Shares, charge: Charge, overall: f64) {
    let found = predict(&params(platform, dataset), split, charge);
    assert!(near(found.overall, overall, 1e-3), "{platform} {dataset}: {} for {overall}", found.overall);
}

// ImageNet-1K has 142e9 / 114 620 = 1 238 876 samples, OpenImages 517e9 / 315 840 = 1 636 905, ImageNet-22K
// 1400e9 / 91 390 = 15 318 963. A tensor has 586 854 bytes.

#[test]
fn in_house_with_files_only() {
    // N_E = 115e9 / 114 620 = 1 003 315. DSI_E = min(1.25e9 / 114 620 = 10 906, 2132) = 2132 and
    // DSI_S = min(2132, 500e6 / 114 620 = 4362) = 2132, so every sample comes at 2132.
    is("in-house", "imagenet-1k", shares(1.0, 0.0, 0.0), Charge::Once, 2132.0);
}

#[test]
fn in_house_half_files_half_copies() {
    // DSI_A = 1.25e9 / 586 854 = 2130.0 and all else 2132: N_A = 57.5e9 / 586 854 = 97 980, 7.91 % of the samples.
    // 0.0791 × 2130.0 + 0.9209 × 2132 = 2131.8.
    is("in-house", "imagenet-1k", shares(0.5, 0.0, 0.5), Charge::Once, 2131.8);
}

#[test]
fn aws_with_mixed_forms() {
    // 46-0-54: N_A = 216e9 / 586 854 = 368 064 (29.71 %); the rest, 870 812, fits encoded (184e9 / 114 620 =
    // 1 605 305). DSI_A = 2130.0, DSI_E = 3432. 0.2971 × 2130.0 + 0.7029 × 3432 = 3045.
    is("aws", "imagenet-1k", shares(0.46, 0.0, 0.54), Charge::Once, 3045.2);
}

#[test]
fn aws_with_storage_behind() {
    // OpenImages 52-48-0: N_D = 192e9 / 586 854 = 327 168 (19.987 %), N_E = 208e9 / 315 840 = 658 561 (40.232 %),
    // N_S = 651 176 (39.781 %). DSI_D = min(2130.0, 6520) = 2130.0, DSI_E = min(1.25e9 / 315 840 = 3957.7, 3432) =
    // 3432, DSI_S = 256e6 / 315 840 = 810.54.
    // 0.19987 × 2130.0 + 0.40232 × 3432 + 0.39781 × 810.54 = 425.7 + 1380.8 + 322.4 = 2128.9.
    is("aws", "openimages", shares(0.52, 0.48, 0.0), Charge::Once, 2128.9);
}

#[test]
fn azure_as_published_with_copies_charged_once_and_twice() {
    // 0-48-52: N_A = 208e9 / 586 854 = 354 432 (28.609 %), N_D = 192e9 / 586 854 = 327 168 (26.408 %),
    // N_S = 44.983 %. DSI_A = DSI_D = 3.75e9 / 586 854 = 6390.0; DSI_S = 250e6 / 114 620 = 2181.1.
    // 0.55017 × 6390.0 + 0.44983 × 2181.1 = 3515.6 + 981.1 = 4496.7.
    is("azure", "imagenet-1k", shares(0.0, 0.48, 0.52), Charge::Once, 4496.7);
    // Twice: N_A = 177 216 (14.305 %), N_S = 59.287 %. 0.40713 × 6390.0 + 0.59287 × 2181.1 = 3894.7.
    is("azure", "imagenet-1k", shares(0.0, 0.48, 0.52), Charge::Twice, 3894.7);
}

#[test]
fn two_nodes_double_what_is_theirs() {
    // In-house twice, 40-59-1: N_A = 1.15e9 / 586 854 = 1960 (0.1582 %), N_D = 67.85e9 / 586 854 = 115 617
    // (9.3324 %), N_E = 46e9 / 114 620 = 401 326 (32.394 %), the rest storage. DSI_A = DSI_D = 2130.0: the cache is
    // one. DSI_E = 2 × 2132 = 4264; DSI_S = min(4264, 4362) = 4264.
    // 0.094906 × 2130.0 + 0.905094 × 4264 = 202.2 + 3859.3 = 4061.5.
    is("2x-in-house", "imagenet-1k", shares(0.40, 0.59, 0.01), Charge::Once, 4061.5);
}

#[test]
fn azure_large_with_files_only() {
    // ImageNet-22K: N_E = 400e9 / 91 390 = 4 376 846 (28.571 %). DSI_E = 9783, DSI_S = 250e6 / 91 390 = 2735.5.
    // 0.28571 × 9783 + 0.71429 × 2735.5 = 2795.1 + 1953.9 = 4749.1.
    is("azure", "imagenet-22k", shares(1.0, 0.0, 0.0), Charge::Once, 4749.1);
}

#[test]
fn forms_fill_in_order_and_never_beyond_the_data_set() {
    let small = Params { total: 100_000.0, ..params("azure", "imagenet-1k") };
    let found = predict(&small, shares(0.4, 0.4, 0.2), Charge::Once);
    // 0.2 × 400e9 / 586 854 = 136 320 copies would fit: all are augmented.
    assert_eq!(found.counts, [100_000.0, 0.0, 0.0, 0.0]);
}

#[test]
fn gradients_are_added_for_a_batch_as_printed() {
    let with = Params { network_gradients: ring(4.0, 100e6), ..params("azure", "imagenet-1k") };
    // 2 × 3 / 4 × 100 MB = 150 MB beside a sample: 10e9 / (114 620 + 150e6) = 66.6.
    let found = predict(&with, shares(1.0, 0.0, 0.0), Charge::Once);
    assert!(near(found.rates[2], 66.6, 1e-3), "{found:?}");
}

#[test]
fn the_printed_equations_choose_files_in_every_published_cell() {
    for platform in &published().platforms {
        for dataset in &published().datasets {
            let (chosen, _) = best(&platform.params(dataset), Charge::Once);
            assert_eq!(chosen, shares(1.0, 0.0, 0.0), "{} {}", platform.name, dataset.name);
        }
    }
}

#[test]
fn in_house_the_optimum_is_flat() {
    let params = params("in-house", "imagenet-1k");
    let top = best(&params, Charge::Once).1.overall;
    for percent in 0..=100 {
        let part = f64::from(percent) / 100.0;
        for split in [shares(part, 1.0 - part, 0.0), shares(part, 0.0, 1.0 - part)] {
            let found = predict(&params, split, Charge::Once).overall;
            assert!(near(found, top, 1e-3), "{percent}: {found}");
        }
    }
    // The bottleneck knows better: pixels save the decode. 115e9 / 586 854 = 195 960 of them, 15.82 %:
    // 1 / (0.1582 / 4050 + 0.8418 / 2132) = 2305.
    let (platform, dataset) = (published().platform("in-house"), published().dataset("imagenet-1k"));
    let (platform, dataset) = (platform.expect("there"), dataset.expect("there"));
    let plan = bottleneck(&platform.machine(), &[platform.load(dataset, 1)]).expect("a plan");
    assert!(near(plan.total(), 2305.0, 1e-3), "{plan:?}");
    assert!(plan.splits[0].encoded == 0 && plan.splits[0].pool == 0, "{plan:?}");
}

#[test]
fn the_mean_of_rates_asks_more_of_storage_than_it_has() {
    let (platform, dataset) = (published().platform("azure"), published().dataset("openimages"));
    let (platform, dataset) = (platform.expect("there"), dataset.expect("there"));
    let params = platform.params(dataset);
    let found = predict(&params, shares(1.0, 0.0, 0.0), Charge::Once);
    assert!(near(found.overall, 7748.0, 1e-3), "{found:?}");
    assert!(near(found.storage_bytes(&params), 554e6, 1e-3), "{}", found.storage_bytes(&params));
    assert!(found.storage_bytes(&params) > 2.2 * platform.storage);
    // Kept: 400 / 517 = 77.37 %. 250e6 / 315 840 / 22.63 % = 3498.
    let loads = [platform.load(dataset, 1)];
    let split = Split { encoded: platform.memory as u64, ..Split::default() };
    let bound = given(&platform.machine(), &loads, &[split]).expect("a prediction");
    assert!(near(bound.total(), 3498.0, 1e-3), "{bound:?}");
    let plan = bottleneck(&platform.machine(), &loads).expect("a plan");
    assert!(near(plan.total(), 3498.0, 1e-3), "{plan:?}");
}

#[test]
fn azure_keeps_pixels_and_some_files() {
    // Cores, 1 / 9783 − 1 / 12 930 s for a decode: with x of the samples decoded and the others kept as files,
    // x × 586 854 + (1 − x) × 114 620 bytes for each of 1 238 876 samples are 400 GB: x = 0.4410.
    // The link carries 0.4410 × 586 854 + 0.5590 × 114 620 = 322 871 bytes: 3.75e9 / 322 871 = 11 615.
    // Cores: 1 / (1 / 12 930 + 0.5590 × 2.4879e-5) = 10 961. Some samples from storage instead of files leave room
    // for more pixels, until the link or storage is full.
    let (platform, dataset) = (published().platform("azure"), published().dataset("imagenet-1k"));
    let (platform, dataset) = (platform.expect("there"), dataset.expect("there"));
    let plan = bottleneck(&platform.machine(), &[platform.load(dataset, 1)]).expect("a plan");
    assert!(plan.total() > 10_961.0 && near(plan.total(), 11_090.0, 2e-3), "{plan:?}");
    let part = plan.splits[0].encoded as f64 / platform.memory;
    assert!((part - 0.12).abs() < 0.01, "{part}");
}
