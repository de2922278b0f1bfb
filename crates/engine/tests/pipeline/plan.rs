//! Memory split between forms: what is read for what is delivered, and a plan that follows its jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pictures::{self, detailed, epoch, next, rows};
use forebay_engine::pipeline::{Engine, Job, Level, Order, Sharing, Spec};
use forebay_engine::{CacheMode, Config};
use forebay_policy::Received;
use forebay_recipe::Recipe;

const SIDE: u64 = 128;

fn recipe(flip: bool) -> Recipe {
    let flip = if flip { r#"{"op": "random_horizontal_flip", "p": 0.5},"# } else { "" };
    let text = format!(
        r#"{{"steps": [{{"op": "random_resized_crop", "height": {SIDE}, "width": {SIDE}, "scale": [0.2, 1.0],
            "ratio": [0.75, 1.3]}}, {flip} {{"op": "to_float", "scale": true}}]}}"#
    );
    Recipe::from_json(&text).expect("a recipe")
}

fn spec(samples: usize, level: Level, mixing: f64, seed: u64) -> Spec {
    let share = Sharing { order: Order::Ready, level, mixing, before: None };
    Spec { recipe: recipe(false), seed, share: Some(share), ..pictures::spec(detailed(samples), 8) }
}

fn counted(jobs: &[Job], name: &str) -> u64 {
    let of = |job: &Job| job.counters().list().into_iter().find(|(known, _)| *known == name);
    jobs.iter().filter_map(of).map(|(_, value)| value).sum()
}

/// Reads per delivery of three equal jobs with a fifth of the samples decoded in memory and a pool of one in a
/// hundred, from their second epoch on.
fn reads_per_delivery(level: Level, mixing: f64) -> f64 {
    const SAMPLES: u64 = 1500;
    let (decoded, copy) = (31_000, SIDE * SIDE * 3);
    let pool = if level == Level::Augmented { copy } else { decoded } * SAMPLES / 100;
    let kept = decoded * SAMPLES / 5;
    let percent = (100 * pool).div_ceil(pool + kept) as u8;
    let job = 4 * (8 * (copy * 4 + 8) + 512) + 20 * copy;
    let memory = (pool + kept + 3 * job) * 4 / 3;
    let cache = CacheMode::Split([0, 100 - percent, percent]);
    let engine = Arc::new(Engine::new(Config { cache, ..Config::new(memory, 2) }));
    let mut jobs: Vec<Job> = (0..3)
        .map(|seed| engine.join(spec(SAMPLES as usize, level, mixing, seed)).expect("joined"))
        .collect();
    let mut before = (0, 0);
    for number in 0..4 {
        if number == 1 {
            before = (counted(&jobs, "reads"), counted(&jobs, "deliveries"));
        }
        for job in &mut jobs {
            job.start(number, &Received::default()).expect("started");
        }
        while jobs.iter_mut().map(|job| next(job).expect("a batch")).filter(Option::is_some).count() > 0 {}
    }
    let [_, decoded_bytes] = engine.kept();
    let part = decoded_bytes as f64 / (decoded * SAMPLES) as f64;
    assert!((0.16..0.21).contains(&part), "{part} of the samples are kept");
    let slots: u64 = engine.streams().iter().map(|(_, [_, _, slots])| slots).sum();
    assert!(slots <= SAMPLES / 80, "{slots} places in the pool");
    assert!(engine.memory().1 <= memory, "{} of {memory} bytes", engine.memory().1);
    let (reads, deliveries) = (counted(&jobs, "reads"), counted(&jobs, "deliveries"));
    (reads - before.0) as f64 / (deliveries - before.1) as f64
}

#[test]
fn three_jobs_read_what_is_not_kept_once() {
    // No less than 0.8 / 3 is possible.
    let copies = reads_per_delivery(Level::Augmented, 0.0);
    assert!(copies <= 0.28, "{copies} reads per delivery with shared copies");
    let decoded = reads_per_delivery(Level::Decoded, 0.0);
    assert!(decoded <= 0.36, "{decoded} reads per delivery with shared decoded data");
    eprintln!("{copies:.3} and {decoded:.3} reads per delivery");
}

#[test]
fn jobs_that_share_decoded_data_get_copies_of_their_own_of_every_sample() {
    let engine = Arc::new(Engine::new(Config::new(64 << 20, 2)));
    let make = |seed, flip| Spec { recipe: recipe(flip), ..spec(90, Level::Decoded, 0.1, seed) };
    let jobs = [make(0, false), make(1, false), make(2, true)].map(|spec| engine.join(spec).expect("joined"));
    assert_eq!(engine.streams().len(), 1, "whatever their random steps are");
    let work = jobs.map(|mut job| {
        std::thread::spawn(move || {
            let mut copies = BTreeSet::new();
            for number in 0..3 {
                let batches = epoch(&mut job, number, &Received::default());
                let samples: BTreeSet<u64> = batches.iter().flat_map(|batch| batch.samples.clone()).collect();
                assert_eq!(samples.len(), 90, "every sample once");
                for name in batches.iter().flat_map(|batch| batch.names.clone()) {
                    assert!(copies.insert((name.sample, name.generation, name.occurrence)), "no copy twice");
                }
            }
            (copies, job)
        })
    });
    let done = work.map(|work| work.join().expect("no panic"));
    for (at, (copies, _)) in done.iter().enumerate() {
        assert!(done[at + 1..].iter().all(|(others, _)| copies.is_disjoint(others)), "no copy is shared");
    }
    let jobs = done.map(|(_, job)| job);
    assert_eq!(counted(&jobs, "decodes"), 90, "each is decoded once");
    assert_eq!(counted(&jobs, "preparations"), 3 * 3 * 90, "and augmented for each");
}

#[test]
fn a_copy_made_from_shared_decoded_data_is_the_one_its_name_says() {
    let engine = Arc::new(Engine::new(Config::new(64 << 20, 2)));
    let mut job = engine.join(spec(40, Level::Decoded, 0.1, 3)).expect("joined");
    let batches = epoch(&mut job, 0, &Received::default());
    let names: Vec<Vec<_>> =
        batches.iter().map(|batch| batch.names.iter().map(|name| (*name, true)).collect()).collect();
    let mut again = engine.join(Spec { share: None, ..spec(40, Level::Decoded, 0.1, 3) }).expect("joined");
    again.start_listed(0, 0).expect("started");
    names.into_iter().for_each(|names| again.list(names).expect("listed"));
    again.feed_end().expect("listed");
    let repeated: Vec<_> = std::iter::from_fn(|| next(&mut again).expect("a batch")).collect();
    assert!(rows(&batches) == rows(&repeated), "bit for bit");
}

#[test]
fn what_cannot_be_augmented_is_told_by_name() {
    let text = r#"{"steps": [{"op": "random_crop", "height": 300, "width": 300}, {"op": "to_float", "scale": true}]}"#;
    let recipe = Recipe::from_json(text).expect("a recipe");
    let engine = Arc::new(Engine::new(Config::new(64 << 20, 2)));
    let mut job = engine.join(Spec { recipe, ..spec(20, Level::Decoded, 0.0, 0) }).expect("joined");
    job.start(0, &Received::default()).expect("started");
    let error = next(&mut job).expect_err("an image of 160 pixels has no crop of 300").to_string();
    assert!(error.contains("augment") && error.contains(".jpg"), "{error}");
}

#[test]
fn the_plan_follows_what_is_measured_and_who_is_there() {
    // Pixels of some hundred of 400 samples fit, or the files of all.
    let folder = 400;
    let engine = Arc::new(Engine::new(Config::new(20 << 20, 2)));
    let mut job = engine.join(spec(folder, Level::Augmented, 0.0, 0)).expect("joined");
    let mut number = 0;
    while engine.planning().decisions.is_empty() {
        epoch(&mut job, number, &Received::default());
        number += 1;
        assert!(number < 200, "nothing was planned");
    }
    let first = engine.planning().decisions[0].clone();
    assert!(first.moved && first.after > 0.0 && first.streams.len() == 1, "{first:?}");
    // Files come from the system's memory: only decoding is worth keeping.
    assert!(first.streams[0].split.decoded > first.streams[0].split.encoded, "{first:?}");
    let mut other = engine.join(spec(folder, Level::Augmented, 0.0, 1)).expect("joined");
    let mut seen = BTreeSet::new();
    other.start(0, &Received::default()).expect("started");
    while let Some(batch) = next(&mut other).expect("a batch") {
        assert!(batch.samples.iter().all(|&sample| seen.insert(sample)), "nothing twice");
    }
    assert_eq!(seen.len(), folder, "nothing lost");
    let reasons: Vec<String> = engine.planning().decisions.into_iter().map(|one| one.reason).collect();
    assert!(reasons.iter().any(|reason| reason.contains("joined")), "{reasons:?}");
    drop(other);
    while !engine.planning().decisions.iter().any(|one| one.reason.contains("left")) {
        epoch(&mut job, number, &Received::default());
        number += 1;
        assert!(number < 400, "the one that left is still planned for");
    }
    assert!(engine.memory().1 <= 20 << 20);
}

#[test]
fn a_scaled_decode_is_not_shared_as_decoded_data() {
    // A resize that changes nothing is no step: the decode would depend on the copy.
    let text = r#"{"steps": [{"op": "resize", "to": {"height": 120, "width": 160}}, {"op": "random_crop", "height": 64, "width": 64},
        {"op": "to_float", "scale": true}], "decode": "scaled"}"#;
    let recipe = Recipe::from_json(text).expect("a recipe");
    let spec = Spec { recipe, ..spec(13, Level::Decoded, 0.0, 0) };
    let engine = Arc::new(Engine::new(Config::new(64 << 20, 2)));
    let mut job = engine.join(spec.clone()).expect("joined");
    let batches = epoch(&mut job, 0, &Received::default());
    let names = batches.iter().map(|batch| batch.names.iter().map(|name| (*name, true)).collect::<Vec<_>>());
    let mut again = engine.join(Spec { share: None, ..spec }).expect("joined");
    again.start_listed(0, 0).expect("started");
    names.for_each(|names| again.list(names).expect("listed"));
    again.feed_end().expect("listed");
    for batch in &batches {
        let repeated = next(&mut again).expect("a batch").expect("as many");
        // A slot may be larger than its batch.
        let bytes = batch.samples.len() * 64 * 64 * 3 * 4;
        assert!(batch.lease.bytes()[..bytes] == repeated.lease.bytes()[..bytes], "bit for bit");
    }
}

#[test]
fn what_jobs_have_in_hand_of_decoded_data_is_reserved() {
    // Crops of 16 x 16 of images of some 30 KB: a batch of 64 in hand takes 2 MB, not 50 KB.
    let text =
        r#"{"steps": [{"op": "random_crop", "height": 16, "width": 16}, {"op": "to_float", "scale": true}]}"#;
    let recipe = Recipe::from_json(text).expect("a recipe");
    let make = |level| Spec { batch: 64, recipe: recipe.clone(), ..spec(300, level, 0.0, 0) };
    let engine = Arc::new(Engine::new(Config::new(3 << 20, 2)));
    assert!(engine.join(make(Level::Augmented)).is_ok(), "copies are small");
    let mut job = Arc::new(Engine::new(Config::new(24 << 20, 2))).join(make(Level::Decoded)).expect("joined");
    assert_eq!(epoch(&mut job, 0, &Received::default()).len(), 5);
    let (_, peak) = job.engine().memory();
    assert!(peak <= 24 << 20, "{peak} bytes");
}

#[test]
fn a_file_goes_when_its_pixels_are_kept() {
    let cache = CacheMode::parse("50-50-0").expect("a mode");
    let engine = Arc::new(Engine::new(Config { cache, ..Config::new(64 << 20, 2) }));
    let mut files = engine.join(spec(40, Level::Encoded, 0.0, 0)).expect("joined");
    epoch(&mut files, 0, &Received::default());
    let [encoded, decoded] = engine.kept();
    assert!(encoded > 0 && decoded == 0, "{encoded} and {decoded} bytes");
    let mut pixels = engine.join(spec(40, Level::Decoded, 0.0, 0)).expect("joined");
    drop(files);
    epoch(&mut pixels, 0, &Received::default());
    let [encoded, decoded] = engine.kept();
    assert!(encoded == 0 && decoded > 0, "{encoded} and {decoded} bytes");
    assert_eq!(counted(&[pixels], "reads"), 0, "they were made from the files");
}
