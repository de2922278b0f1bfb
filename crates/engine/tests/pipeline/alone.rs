//! The engine from folder to batch, on real JPEGs: exactly once, bit-equal, bounded, and never stuck.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pictures::{check, epoch, folder, next, open, remainder, rows, spec, write_image};
use forebay_engine::pipeline::{Engine, Feeding, OnError, Spec};
use forebay_engine::{Config, Error};
use forebay_policy::Received;
use proptest::prelude::*;

fn engine(threads: usize) -> Arc<Engine> {
    Arc::new(Engine::new(Config::new(64 << 20, threads)))
}

#[test]
fn every_epoch_gives_every_sample_once_with_its_own_pixels() {
    let values = (2usize..40, 1u64..12, 0u64..20, 1usize..5, any::<bool>(), any::<u64>());
    check(40, values, |(n, batch, late, threads, drop_last, seed)| {
        let folder = folder(n);
        let reference = rows(&epoch(
            &mut engine(1).join(Spec { seed, ..spec(folder.clone(), 1) }).expect("joined"),
            1,
            &Received::default(),
        ));
        let engine = engine(threads);
        let mut job = engine
            .join(Spec { late, remainder: remainder(drop_last), seed, ..spec(folder, batch) })
            .expect("joined");
        for number in 0..3 {
            let batches = epoch(&mut job, number, &Received::default());
            let samples: Vec<u64> = batches.iter().flat_map(|b| b.samples.clone()).collect();
            let set: BTreeSet<u64> = samples.iter().copied().collect();
            prop_assert_eq!(set.len(), samples.len(), "nobody twice");
            let share = if drop_last { n as u64 / batch * batch } else { n as u64 };
            prop_assert_eq!(samples.len() as u64, share);
            let index = batches.iter().flat_map(|b| &b.positions).enumerate();
            for (index, position) in index {
                prop_assert!(index as u64 <= position + late);
                prop_assert!(*position < share, "drop_last leaves out the last positions");
            }
            if number == 1 {
                for (sample, bytes) in rows(&batches) {
                    let expect = reference.iter().find(|(s, _)| *s == sample).map(|(_, b)| b);
                    prop_assert_eq!(Some(&bytes), expect, "the copy's name decides its pixels");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn epochs_may_be_left_started_anew_and_resumed_in_any_way() {
    let moves = prop::collection::vec((0u64..4, 0usize..8, any::<bool>()), 1..8);
    let values = (2usize..30, 1u64..8, 0u64..10, 1usize..4, moves);
    check(40, values, |(n, batch, late, threads, moves)| {
        let engine = engine(threads);
        let mut job = engine.join(Spec { late, ..spec(folder(n), batch) }).expect("joined");
        let mut received = Received::default();
        for (number, take, resume) in moves {
            if !resume {
                received = Received::default();
            }
            let before = received.count();
            job.start(number, &received).expect("started");
            let mut count = 0;
            for _ in 0..take {
                let Some(batch) = next(&mut job).expect("a batch") else { break };
                for position in &batch.positions {
                    prop_assert!(!received.contains(*position), "position {position} came again");
                }
                received.add(&batch.positions, &batch.skipped);
                count += batch.positions.len() as u64;
            }
            prop_assert_eq!(received.count(), before + count);
            prop_assert!(received.is_sound(n as u64));
        }
        drop(job);
        prop_assert!(engine.is_idle());
        Ok(())
    });
}

#[test]
fn resuming_at_every_step_gives_the_same_bytes() {
    let engine = engine(3);
    let mut job = engine.join(spec(folder(37), 5)).expect("joined");
    let all = epoch(&mut job, 2, &Received::default());
    let expect = rows(&all);
    let mut received = Received::default();
    let mut done = 0;
    for batch in &all {
        received.add(&batch.positions, &batch.skipped);
        done += batch.samples.len();
        assert_eq!(rows(&epoch(&mut job, 2, &received)), expect[done..]);
    }
}

#[test]
fn every_epoch_brings_other_copies_in_another_order() {
    let engine = engine(2);
    let mut job = engine.join(spec(folder(30), 5)).expect("joined");
    let [mut one, mut two] = [0, 1].map(|number| rows(&epoch(&mut job, number, &Received::default())));
    assert_ne!(one.iter().map(|r| r.0).collect::<Vec<_>>(), two.iter().map(|r| r.0).collect::<Vec<_>>());
    one.sort_unstable();
    two.sort_unstable();
    let same = one.iter().zip(&two).filter(|(a, b)| a == b).count();
    assert!(same < 3, "{same} of 30 copies are the same in both epochs");
}

#[test]
fn a_job_that_keeps_every_batch_still_gets_them_all_and_memory_stays_in_its_budget() {
    let engine = engine(2);
    let mut job = engine.join(spec(folder(39), 2)).expect("joined");
    let kept = epoch(&mut job, 0, &Received::default());
    assert_eq!(kept.len(), 20);
    let again = rows(&epoch(&mut job, 0, &Received::default()));
    assert_eq!(rows(&kept), again, "kept batches keep their bytes");
    assert!(job.counters().copied_batches.get() > 0, "the third and later ones are copies");
    let (_, peak) = engine.memory();
    assert!(peak <= engine.config().memory, "{peak}");
    drop(job);
    drop(kept);
    // What is left belongs to the threads.
    assert!(engine.memory().0 <= engine.config().scratch());
}

#[test]
fn bad_files_are_told_skipped_or_replaced() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    (0..20).for_each(|i| write_image(dir.path(), i));
    let bad = dir.path().join("class0/0004.jpg");
    let bytes = std::fs::read(&bad).expect("bytes");
    std::fs::write(&bad, &bytes[..bytes.len() / 2]).expect("cut short");
    let folder = open(dir.path());
    let sample = (0..20).find(|s| folder.path(*s).ends_with("class0/0004.jpg")).expect("listed");
    let engine = engine(2);

    let mut job = engine.join(spec(folder.clone(), 3)).expect("joined");
    job.start(0, &Received::default()).expect("started");
    let mut before = 0;
    let error = loop {
        match next(&mut job) {
            Ok(Some(batch)) => before += batch.positions.len(),
            Ok(None) => panic!("the epoch ended without the error"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Sample { sample: s, .. } if *s == sample), "{error}");
    let place =
        (0..20).find(|p| forebay_policy::Permutation::new(20, 5, 0).at(*p) == sample).expect("a place");
    assert_eq!(before as u64, place / 3 * 3, "all whole batches before the bad sample arrive first");
    drop(job);

    let mut job = engine.join(Spec { on_error: OnError::Skip, ..spec(folder.clone(), 3) }).expect("joined");
    for number in 0..2 {
        let batches = epoch(&mut job, number, &Received::default());
        assert_eq!(batches.iter().map(|b| b.positions.len()).collect::<Vec<_>>(), [3, 3, 3, 3, 3, 3, 1]);
        assert_eq!(job.quarantine().expect("a list").len(), 1);
    }
    assert_eq!(job.counters().failures.get(), 1, "the second epoch does not try again");
    drop(job);

    let mut job = engine.join(Spec { on_error: OnError::Substitute, ..spec(folder, 3) }).expect("joined");
    for number in 0..2 {
        let batches = epoch(&mut job, number, &Received::default());
        assert_eq!(batches.iter().map(|b| b.positions.len()).sum::<usize>(), 20);
        let marked = batches.iter().flat_map(|b| &b.valid).filter(|valid| !**valid).count();
        assert_eq!(marked, 1);
    }
}

#[test]
fn a_fed_epoch_gives_what_it_was_fed_and_repeats_get_copies_of_their_own() {
    let engine = engine(2);
    let mut job = engine.join(spec(folder(12), 4)).expect("joined");
    job.start_fed(0, Feeding::default()).expect("started");
    job.feed(&[3, 3, 7, 1, 3]).expect("fed");
    job.feed_end().expect("closed");
    let batches: Vec<_> = std::iter::from_fn(|| next(&mut job).expect("a batch")).collect();
    let rows = rows(&batches);
    assert_eq!(rows.iter().map(|r| r.0).collect::<Vec<_>>(), [3, 3, 7, 1, 3]);
    assert_ne!(rows[0].1, rows[1].1, "two occurrences are two copies");
    assert!(matches!(job.feed(&[12]), Err(Error::Invalid(_))));
}

#[test]
fn a_budget_that_holds_no_three_batches_is_refused_with_the_sum() {
    let engine = Arc::new(Engine::new(Config::new(1 << 20, 1)));
    let error = engine.join(spec(folder(12), 4096)).expect_err("refused");
    let text = error.to_string();
    assert!(matches!(error, Error::Budget(_)) && text.contains("3 batches x"), "{text}");
}

#[test]
fn two_jobs_share_the_threads_and_both_finish() {
    let engine = engine(2);
    let mut jobs = [8, 3].map(|batch| engine.join(spec(folder(33), batch)).expect("joined"));
    for job in &mut jobs {
        job.start(0, &Received::default()).expect("started");
    }
    let mut counts = [0, 0];
    let mut open = [true, true];
    while open.contains(&true) {
        for (i, job) in jobs.iter_mut().enumerate() {
            if open[i] {
                match next(job).expect("a batch") {
                    Some(batch) => counts[i] += batch.positions.len(),
                    None => open[i] = false,
                }
            }
        }
    }
    assert_eq!(counts, [33, 33]);
}
