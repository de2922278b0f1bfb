//! What is kept between epochs and between jobs: the same pixels, made once, within the budget.

use std::collections::HashSet;
use std::sync::Arc;

use crate::pictures::{check, dataset, detailed, epoch, folder, next, rows, spec, write_image};
use forebay_engine::batch::Batch;
use forebay_engine::pipeline::{Engine, Job, Level, OnError, Order, Sharing, Spec};
use forebay_engine::storage::{Dataset, Folder};
use forebay_engine::{CacheMode, Config};
use forebay_policy::{Picks, Received};
use forebay_recipe::{Recipe, Values};
use proptest::prelude::*;

/// Recipes that differ in their first, middle and last steps; two of them have no random one.
const RECIPES: [&str; 6] = [
    r#"{"op": "random_resized_crop", "height": 16, "width": 16, "scale": [0.2, 1.0], "ratio": [0.75, 1.3]}"#,
    r#"{"op": "random_resized_crop", "height": 16, "width": 16, "scale": [0.2, 1.0], "ratio": [0.75, 1.3]},
       {"op": "random_horizontal_flip", "p": 0.5}"#,
    r#"{"op": "resize", "to": {"shorter": 40}}, {"op": "random_crop", "height": 16, "width": 16}"#,
    r#"{"op": "resize", "to": {"shorter": 40}}, {"op": "center_crop", "height": 16, "width": 16}"#,
    r#"{"op": "resize", "to": {"shorter": 40}}, {"op": "center_crop", "height": 24, "width": 12}"#,
    r#"{"op": "center_crop", "height": 130, "width": 30}, {"op": "random_crop", "height": 16, "width": 16}"#,
];

fn recipe(at: usize, scaled: bool) -> Recipe {
    let decode = if scaled { "scaled" } else { "exact" };
    let text = format!(
        r#"{{"steps": [{}, {{"op": "to_float", "scale": true}}], "decode": "{decode}"}}"#,
        RECIPES[at]
    );
    Recipe::from_json(&text).expect("a recipe")
}

fn engine(cache: CacheMode, memory: u64) -> Arc<Engine> {
    Arc::new(Engine::new(Config { cache, ..Config::new(memory, 2) }))
}

fn job(engine: &Arc<Engine>, folder: &Arc<Folder>, which: usize) -> Job {
    let spec = Spec { recipe: recipe(which, false), ..spec(folder.clone(), 8) };
    engine.join(spec).expect("joined")
}

fn counted(job: &Job, name: &str) -> u64 {
    job.counters().list().into_iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
}

#[test]
fn pixels_do_not_depend_on_what_is_kept() {
    let modes = ["auto", "decoded", "encoded", "no-evict", "lru", "lru-decoded", "30-40-30"];
    let modes = modes.map(|mode| CacheMode::parse(mode).expect("a mode"));
    let jobs = prop::collection::vec((0usize..6, any::<bool>()), 1..4);
    let values = (2usize..30, prop::sample::select(modes.to_vec()), 6000u64..14000, jobs);
    check(30, values, |(n, mode, kilobytes, jobs)| {
        let (folder, memory) = (detailed(n), kilobytes << 10);
        let engine_kept = engine(mode, memory);
        let work = jobs.iter().map(|&(which, scaled)| {
            let spec = Spec { recipe: recipe(which, scaled), ..spec(folder.clone(), 4) };
            let (engine, plain) = (engine_kept.clone(), engine(CacheMode::Off, 64 << 20));
            std::thread::spawn(move || {
                let Ok(mut job) = engine.join(spec.clone()) else { return true };
                let mut plain = plain.join(spec).expect("there is room");
                (0..3).all(|number| {
                    let same = |job: &mut Job| rows(&epoch(job, number, &Received::default()));
                    same(&mut job) == same(&mut plain)
                })
            })
        });
        for work in work.collect::<Vec<_>>() {
            prop_assert!(work.join().expect("no panic"), "the same pixels");
        }
        let (now, peak) = engine_kept.memory();
        prop_assert!(now <= peak && peak <= memory, "{now} now, {peak} at most, of {memory}");
        prop_assert_eq!(engine_kept.kept(), [0, 0], "nothing is kept for nobody");
        Ok(())
    });
}

#[test]
fn what_fits_is_read_and_decoded_once() {
    let folder = detailed(40);
    let engine = engine(CacheMode::Auto, 64 << 20);
    let mut job = job(&engine, &folder, 1);
    (0..3).for_each(|number| _ = epoch(&mut job, number, &Received::default()));
    let counts =
        ["reads", "decodes", "decoded_hits", "preparations", "deliveries"].map(|name| counted(&job, name));
    // The epoch after the last is begun ahead.
    assert_eq!((counts[0], counts[1], counts[4]), (40, 40, 120));
    assert!(counts[2] >= 80 && counts[3] >= 120, "{counts:?}");
    let [encoded, decoded] = engine.kept();
    // Planes: half the bytes of pixels, and a little.
    let planes = 40 * 160 * 120 * 3 / 2;
    assert!(encoded == 0 && (planes..planes * 5 / 4).contains(&decoded), "{encoded} and {decoded} bytes");
}

#[test]
fn without_random_steps_a_second_epoch_prepares_nothing() {
    let folder = detailed(40);
    let mut job = job(&engine(CacheMode::Auto, 64 << 20), &folder, 3);
    epoch(&mut job, 0, &Received::default());
    let before = counted(&job, "preparations");
    epoch(&mut job, 1, &Received::default());
    assert_eq!((before, counted(&job, "preparations")), (40, 40));
}

#[test]
fn files_are_kept_where_pixels_do_not_fit() {
    let folder = detailed(120);
    // 120 images of some 30 KB decoded do not fit; their files do.
    let engine = engine(CacheMode::Auto, 3 << 20);
    let mut job = job(&engine, &folder, 0);
    (0..3).for_each(|number| _ = epoch(&mut job, number, &Received::default()));
    let [reads, hits] = ["reads", "encoded_hits"].map(|name| counted(&job, name));
    let [encoded, decoded] = engine.kept();
    // Some are decoded before it is known that not all fit.
    assert!(reads <= 120 + 40 && hits > 120, "{reads} reads, {hits} hits");
    assert!(decoded == 0 && encoded > 0, "{encoded} and {decoded} bytes");
    assert!(engine.memory().1 <= 3 << 20);
}

#[test]
fn recipes_that_differ_share_every_decode() {
    // In the last random step, in a deterministic one, and in all but the file.
    for (a, b) in [(0, 1), (3, 4), (0, 3)] {
        let folder = detailed(100);
        let engine = engine(CacheMode::Auto, 64 << 20);
        let jobs = [a, b].map(|which| job(&engine, &folder, which));
        let work = jobs.map(|mut job| {
            std::thread::spawn(move || {
                epoch(&mut job, 0, &Received::default());
                job
            })
        });
        let jobs = work.map(|work| work.join().expect("no panic"));
        let decodes: u64 = jobs.iter().map(|job| counted(job, "decodes")).sum();
        let delivered: u64 = jobs.iter().map(|job| counted(job, "deliveries")).sum();
        assert_eq!((delivered, decodes), (200, 100), "recipes {a} and {b}");
    }
}

#[test]
fn a_recipe_that_comes_later_goes_on_from_what_is_decoded() {
    // Whole images are kept for the first; the others begin with them, or with what the one before resized.
    let folder = detailed(40);
    let engine = engine(CacheMode::Auto, 64 << 20);
    let jobs = [0, 2, 3, 4].map(|which| {
        let mut job = job(&engine, &folder, which);
        epoch(&mut job, 0, &Received::default());
        job
    });
    assert_eq!(jobs.map(|job| counted(&job, "decodes")), [40, 0, 0, 0]);
}

#[test]
fn whole_images_are_served_as_pixels_where_planes_are_kept_of_them() {
    let folder = detailed(30);
    let as_it_is = Recipe::from_json(r#"{"steps": [{"op": "to_float", "scale": true}]}"#).expect("a recipe");
    let spec_whole = Spec { recipe: as_it_is, ..spec(folder.clone(), 1) };
    let engine_kept = engine(CacheMode::Auto, 64 << 20);
    let mut train = job(&engine_kept, &folder, 0);
    epoch(&mut train, 0, &Received::default());
    let mut whole = engine_kept.join(spec_whole.clone()).expect("joined");
    let mut plain = engine(CacheMode::Off, 64 << 20).join(spec_whole).expect("joined");
    let all = |job: &mut Job| -> Vec<Vec<u8>> {
        let one = |batch: &Batch| match &batch.columns[0].values {
            Values::Stacked(span) => batch.lease.bytes()[..span.shape.iter().product::<usize>() * 4].to_vec(),
            Values::Ragged(_) => panic!("one sample is never ragged"),
        };
        epoch(job, 0, &Received::default()).iter().map(one).collect()
    };
    let seen = all(&mut whole);
    assert!(seen.len() == 30 && seen == all(&mut plain), "the same pixels");
    assert_eq!(counted(&whole, "decodes"), 0);
    assert!(counted(&whole, "preparations") >= 30, "each is converted");
}

#[test]
fn samples_of_a_job_that_left_do_not_crowd_out_those_of_another() {
    let folder = detailed(60);
    // Room for all, and room for some two thirds.
    for memory in [64 << 20, 5 << 20] {
        let engine = engine(CacheMode::Auto, memory);
        let half = |first: u32| {
            let picks = Picks::of((first..60).step_by(2).collect(), 60, false).expect("samples");
            engine.join(Spec { picks, recipe: recipe(1, false), ..spec(folder.clone(), 5) }).expect("joined")
        };
        let mut gone = half(0);
        (0..2).for_each(|number| _ = epoch(&mut gone, number, &Received::default()));
        let mut stays = half(1);
        epoch(&mut stays, 0, &Received::default());
        drop(gone);
        (1..3).for_each(|number| _ = epoch(&mut stays, number, &Received::default()));
        let before = counted(&stays, "decodes");
        (3..6).for_each(|number| _ = epoch(&mut stays, number, &Received::default()));
        assert_eq!(counted(&stays, "decodes"), before, "with {memory} bytes");
        assert!(engine.memory().1 <= memory);
    }
}

#[test]
fn a_level_says_what_is_shared() {
    let folder = detailed(30);
    for (level, reads, decodes) in
        [(Level::Encoded, 30, 60), (Level::Decoded, 30, 30), (Level::Augmented, 30, 30)]
    {
        let engine = engine(CacheMode::Auto, 64 << 20);
        let sharing = Sharing { order: Order::Ready, level, mixing: 0.0, before: None };
        let mut jobs = [0, 1].map(|seed| {
            let spec =
                Spec { share: Some(sharing), seed, recipe: recipe(0, false), ..spec(folder.clone(), 5) };
            engine.join(spec).expect("joined")
        });
        for job in &mut jobs {
            job.start(0, &Received::default()).expect("started");
        }
        // In turn, so that copies are there for both.
        let mut names = [HashSet::new(), HashSet::new()];
        let mut over = 0;
        while over < 2 {
            over = 0;
            for (job, names) in jobs.iter_mut().zip(&mut names) {
                match next(job).expect("a batch") {
                    Some(batch) => names.extend(batch.names),
                    None => over += 1,
                }
            }
        }
        let common = names[0].intersection(&names[1]).count();
        assert_eq!(common > 0, level == Level::Augmented, "{level:?}: {common} copies in common");
        let sum = |name| jobs.iter().map(|job| counted(job, name)).sum::<u64>();
        // Work ahead for the next epoch decodes again where only files are kept.
        assert!(sum("reads") <= reads && sum("decodes") >= decodes, "{level:?}: {} reads", sum("reads"));
        if level > Level::Encoded {
            assert_eq!(sum("decodes"), decodes, "{level:?}");
        }
    }
}

#[test]
fn a_bad_file_is_told_to_all_who_waited_for_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    (0..12).for_each(|i| write_image(dir.path(), i));
    let bad = dir.path().join("class1").join("broken.jpg");
    std::fs::write(&bad, [0xff, 0xd8, 0xff, 0xe0, 0, 16]).expect("written");
    let folder = Arc::new(Folder::open(dir.path(), 1, &|_| ()).expect("a dataset"));
    let engine = engine(CacheMode::Auto, 64 << 20);
    let jobs = [0, 1, 2].map(|which| {
        let spec = Spec { on_error: OnError::Skip, recipe: recipe(which, false), ..spec(folder.clone(), 4) };
        engine.join(spec).expect("joined")
    });
    let work = jobs.map(|mut job| {
        std::thread::spawn(move || {
            let seen = rows(&epoch(&mut job, 0, &Received::default())).len();
            (seen, job.quarantine().expect("open").len())
        })
    });
    for work in work {
        assert_eq!(work.join().expect("no panic"), (12, 1));
    }
}

#[test]
fn parts_of_a_dataset_keep_their_forms_in_common() {
    let (a, b) = (detailed(30), folder(20));
    let both = Arc::new(Dataset::build(vec![a.clone(), b.clone()]).expect("two folders"));
    let engine = engine(CacheMode::Auto, 64 << 20);
    let mut first = job(&engine, &b, 0);
    let small = rows(&epoch(&mut first, 0, &Received::default()));
    let all = Spec { dataset: both.clone(), recipe: recipe(0, false), shuffle: false, ..spec(a, 8) };
    let mut second = engine.join(all.clone()).expect("joined");
    let seen = rows(&epoch(&mut second, 0, &Received::default()));
    assert_eq!((small.len(), seen.len()), (20, 50));
    assert_eq!(counted(&second, "reads"), 30, "the files of the second folder are kept");
    // A part of the whole is named by the whole's numbers.
    let picks = Picks::of((30..50).collect(), 50, true).expect("samples");
    let part = Spec { picks, ..all };
    let seen_part = rows(&epoch(&mut engine.join(part).expect("joined"), 0, &Received::default()));
    assert_eq!(seen_part, seen[30..]);
    let alone = Spec { dataset: dataset(b), ..spec(folder(20), 8) };
    assert_eq!(engine.join(alone).expect("joined").counters().list()[0].1, 0);
}
