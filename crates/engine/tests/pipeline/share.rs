//! Several jobs of one engine over one stream, on real JPEGs: exactly once each, made once for all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::pictures::{self, check, detailed, epoch, folder, next, open, remainder, rows, write_image};
use forebay_engine::batch::Batch;
use forebay_engine::pipeline::{Engine, Job, Level, Next, OnError, Order, Remainder, Sharing, Spec};
use forebay_engine::storage::Folder;
use forebay_engine::{CacheMode, Config, Error};
use forebay_policy::Received;
use proptest::prelude::*;

fn sharing(order: Order) -> Sharing {
    Sharing { order, level: Level::Augmented, mixing: 0.1, before: None }
}

fn spec(folder: Arc<Folder>, batch: u64, order: Order) -> Spec {
    Spec { share: Some(sharing(order)), ..pictures::spec(folder, batch) }
}

fn engine(threads: usize, memory: u64) -> Arc<Engine> {
    Arc::new(Engine::new(Config::new(memory, threads)))
}

fn samples(batches: &[Batch]) -> Vec<u64> {
    batches.iter().flat_map(|b| b.samples.clone()).collect()
}

#[test]
fn every_job_gets_every_sample_once_whoever_else_is_there() {
    let five = |most| prop::collection::vec(0u64..most, 5);
    let batches = prop::collection::vec(1u64..12, 1..5);
    let values = (2usize..60, batches, five(3), 1usize..4, 30u64..400, five(3), any::<bool>());
    check(20, values, |(n, batches, orders, threads, kilobytes, pauses, drop_last)| {
        // From hardly enough to plenty.
        let memory = (threads as u64 * 4 * 64 + kilobytes * 4) << 10;
        let engine = engine(threads, memory);
        let folder = folder(n);
        let workers = batches.iter().enumerate().map(|(at, &batch)| {
            let order = [Order::Ready, Order::Late(5), Order::Strict][orders[at] as usize];
            let spec = Spec {
                remainder: remainder(drop_last),
                seed: at as u64 % 2,
                ..spec(folder.clone(), batch, order)
            };
            let (engine, pause) = (engine.clone(), Duration::from_millis(pauses[at]));
            std::thread::spawn(move || {
                let Ok(mut job) = engine.join(spec) else { return Vec::new() };
                (0..3)
                    .map(|number| {
                        job.start(number, &Received::default()).expect("started");
                        let mut got = Vec::new();
                        while let Some(batch) = next(&mut job).expect("a batch") {
                            got.push((batch.samples.clone(), batch.positions.clone()));
                            std::thread::sleep(pause);
                        }
                        got
                    })
                    .collect::<Vec<_>>()
            })
        });
        let workers: Vec<_> = workers.collect();
        for ((worker, &batch), &order) in workers.into_iter().zip(&batches).zip(&orders) {
            for got in worker.join().expect("no panic") {
                let samples: Vec<u64> = got.iter().flat_map(|(samples, _)| samples.clone()).collect();
                let share = if drop_last { n as u64 / batch * batch } else { n as u64 };
                prop_assert_eq!(samples.len() as u64, share);
                prop_assert_eq!(samples.iter().collect::<BTreeSet<_>>().len() as u64, share);
                let positions = got.iter().flat_map(|(_, positions)| positions.clone());
                for (index, position) in positions.enumerate() {
                    prop_assert!(position < share, "the last positions are left out");
                    let late = [u64::MAX / 2, 5, 0][order as usize];
                    prop_assert!(index as u64 <= position + late);
                }
            }
        }
        prop_assert!(engine.is_idle());
        let (now, peak) = engine.memory();
        prop_assert!(now <= peak && peak <= memory, "{now} bytes now, {peak} at most, of {memory}");
        Ok(())
    });
}

#[test]
fn jobs_in_step_share_nearly_every_preparation() {
    let engine = engine(2, 64 << 20);
    let mut jobs: Vec<Job> =
        (0..4).map(|_| engine.join(spec(folder(200), 10, Order::Ready)).expect("joined")).collect();
    for number in 0..3 {
        jobs.iter_mut().for_each(|job| job.start(number, &Received::default()).expect("started"));
        let mut seen = vec![BTreeSet::new(); jobs.len()];
        for _ in 0..20 {
            for (job, seen) in jobs.iter_mut().zip(&mut seen) {
                seen.extend(next(job).expect("a batch").expect("twenty of them").samples);
            }
        }
        assert!(seen.iter().all(|seen| seen.len() == 200));
        assert!(jobs.iter_mut().all(|job| next(job).expect("the end").is_none()));
    }
    let made: u64 = jobs.iter().map(|job| job.counters().preparations.get()).sum();
    let given: u64 = jobs.iter().map(|job| job.counters().deliveries.get()).sum();
    assert_eq!(given, 4 * 3 * 200);
    assert!(made as f64 <= 0.4 * given as f64, "{made} made for {given}");
    assert_eq!(jobs[0].pool().expect("shared")[0], 4);
    drop(jobs);
    assert!(engine.is_idle());
}

#[test]
fn copies_are_equal_for_all_jobs_and_new_in_every_epoch() {
    let engine = engine(2, 64 << 20);
    let mut a = engine.join(spec(detailed(40), 4, Order::Ready)).expect("joined");
    let mut b = engine.join(spec(detailed(40), 8, Order::Ready)).expect("joined");
    let mut all = BTreeSet::new();
    for number in 0..3 {
        a.start(number, &Received::default()).expect("started");
        b.start(number, &Received::default()).expect("started");
        let mut mine = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..5 {
            mine.extend((0..2).map(|_| next(&mut a).expect("a batch").expect("ten of them")));
            theirs.push(next(&mut b).expect("a batch").expect("five of them"));
        }
        let (mine, theirs) = (rows(&mine), rows(&theirs));
        let theirs: BTreeSet<_> = theirs.into_iter().collect();
        let same = mine.iter().filter(|row| theirs.contains(row)).count();
        assert!(same >= 20, "{same} of 40 copies are the same");
        for row in mine {
            assert!(all.insert(row), "no copy twice");
        }
    }
}

#[test]
fn strict_order_is_bit_equal_alone_and_shared_and_shares_with_its_like() {
    let alone = engine(2, 64 << 20);
    let mut job = alone.join(Spec { share: None, ..spec(folder(50), 7, Order::Strict) }).expect("joined");
    let expect: Vec<_> = (0..2).map(|number| rows(&epoch(&mut job, number, &Received::default()))).collect();

    let shared = engine(2, 64 << 20);
    let mut other = shared.join(spec(folder(50), 9, Order::Ready)).expect("joined");
    let mut twins: Vec<Job> =
        (0..2).map(|_| shared.join(spec(folder(50), 7, Order::Strict)).expect("joined")).collect();
    other.start(0, &Received::default()).expect("started");
    for (number, expect) in expect.iter().enumerate() {
        twins.iter_mut().for_each(|twin| twin.start(number as u64, &Received::default()).expect("started"));
        let mut got = [Vec::new(), Vec::new()];
        while let Some(batch) = next(&mut twins[0]).expect("a batch") {
            got[0].extend(rows(&[batch]));
            got[1].extend(next(&mut twins[1]).expect("a batch").into_iter().flat_map(|batch| rows(&[batch])));
        }
        assert!(next(&mut twins[1]).expect("the end").is_none());
        assert_eq!(&got[0], expect);
        assert_eq!(&got[1], expect);
    }
    let made: u64 = twins.iter().map(|twin| twin.counters().preparations.get()).sum();
    assert!(made < 160, "{made} made for 200 deliveries of two jobs with one seed");
}

#[test]
fn a_job_that_keeps_its_copies_to_itself_shares_none() {
    let engine = engine(2, 64 << 20);
    let own = Sharing { level: Level::Decoded, ..sharing(Order::Ready) };
    let mut a =
        engine.join(Spec { share: Some(own), ..spec(detailed(40), 5, Order::Ready) }).expect("joined");
    let mut b = engine.join(spec(detailed(40), 5, Order::Ready)).expect("joined");
    let (a, b) =
        (rows(&epoch(&mut a, 0, &Received::default())), rows(&epoch(&mut b, 0, &Received::default())));
    let a: BTreeSet<_> = a.into_iter().collect();
    assert_eq!(b.iter().filter(|row| a.contains(*row)).count(), 0);
}

#[test]
fn a_state_of_a_shared_job_gives_exactly_the_rest() {
    for order in [Order::Ready, Order::Late(8), Order::Strict] {
        let engine = engine(2, 64 << 20);
        let mut beside = engine.join(spec(detailed(60), 6, Order::Ready)).expect("joined");
        beside.start(0, &Received::default()).expect("started");
        let mut received = Received::default();
        let mut seen = Vec::new();
        let mut before = None;
        let mut copies = BTreeSet::new();
        // Killed after every third batch.
        loop {
            let again = Sharing { before, ..sharing(order) };
            let mut job =
                engine.join(Spec { share: Some(again), ..spec(detailed(60), 7, order) }).expect("joined");
            job.start(0, &received).expect("started");
            let mut ended = false;
            for _ in 0..3 {
                let _ = next(&mut beside).expect("a batch, or the end");
                let Some(batch) = next(&mut job).expect("a batch") else {
                    ended = true;
                    break;
                };
                received.add(&batch.positions, &batch.skipped);
                seen.extend(batch.samples.clone());
                for row in rows(&[batch]) {
                    assert!(copies.insert(row), "no copy twice");
                }
                before = job.clock();
            }
            if ended {
                break;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<_>>(), "{order:?}");
    }
}

#[test]
fn what_was_skipped_before_makes_room_in_a_stream_that_has_not_seen_it_fail() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    (0..10).for_each(|i| write_image(dir.path(), i));
    std::fs::write(dir.path().join("class0/0004.jpg"), b"not a picture").expect("written");
    let folder = open(dir.path());
    for order in [Order::Ready, Order::Strict] {
        // Of nine that work two batches of four are made, wherever the job goes on in another process.
        for stop in 0..2 {
            let (mut received, mut batches) = (Received::default(), 0);
            for most in [stop, 9] {
                let engine = engine(2, 64 << 20);
                let skip = Spec {
                    remainder: Remainder::Drop,
                    on_error: OnError::Skip,
                    ..spec(folder.clone(), 4, order)
                };
                let mut job = engine.join(skip).expect("joined");
                job.start(0, &received).expect("started");
                for _ in 0..most {
                    let Some(batch) = next(&mut job).expect("a batch, or the end") else { break };
                    received.add(&batch.positions, &batch.skipped);
                    batches += 1;
                }
            }
            assert_eq!(batches, 2, "{order:?} stopped after {stop}");
        }
    }
}

#[test]
fn a_bad_sample_is_skipped_replaced_or_told_to_every_job() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    (0..20).for_each(|i| write_image(dir.path(), i));
    std::fs::write(dir.path().join("class0/0004.jpg"), b"not a picture").expect("written");
    let folder = open(dir.path());
    let bad = (0..20).find(|&s| folder.path(s).ends_with("class0/0004.jpg")).expect("it is there");
    for on_error in [OnError::Skip, OnError::Substitute, OnError::Raise] {
        let engine = engine(2, 64 << 20);
        for _ in 0..2 {
            let mut job =
                engine.join(Spec { on_error, ..spec(folder.clone(), 3, Order::Ready) }).expect("joined");
            for number in 0..2 {
                job.start(number, &Received::default()).expect("started");
                let mut got = Vec::new();
                let error = loop {
                    match next(&mut job) {
                        Ok(Some(batch)) => got.push(batch),
                        Ok(None) => break None,
                        Err(error) => break Some(error),
                    }
                };
                match on_error {
                    OnError::Raise => {
                        assert!(
                            matches!(error, Some(Error::Sample { sample, .. }) if sample == bad),
                            "{error:?}"
                        );
                    }
                    OnError::Skip => {
                        assert_eq!(samples(&got).len(), 19);
                        assert_eq!(got.iter().flat_map(|b| &b.skipped).count(), 1);
                    }
                    OnError::Substitute => {
                        assert_eq!(samples(&got).len(), 20);
                        assert_eq!(got.iter().flat_map(|b| &b.valid).filter(|valid| !**valid).count(), 1);
                    }
                }
            }
            let quarantined = job.quarantine().expect("mine").len();
            assert_eq!(quarantined, usize::from(on_error != OnError::Raise));
        }
    }
}

#[test]
fn pools_make_room_for_jobs_that_join_later_and_give_all_back() {
    let engine = engine(2, 1 << 19);
    let mut first = engine.join(spec(folder(200), 8, Order::Ready)).expect("joined");
    first.start(0, &Received::default()).expect("started");
    next(&mut first).expect("a batch").expect("there are more");
    let [_, _, wide] = first.pool().expect("shared");
    let mut second =
        engine.join(Spec { share: None, ..spec(folder(40), 16, Order::Ready) }).expect("room is made");
    let [_, _, narrow] = first.pool().expect("shared");
    assert!(narrow < wide, "{narrow} slots after {wide}");
    assert_eq!(samples(&epoch(&mut second, 0, &Received::default())).len(), 40);
    drop(second);
    assert_eq!(first.pool().expect("shared")[2], wide, "and takes it back");
    let (_, peak) = engine.memory();
    assert!(peak <= 1 << 19, "{peak} bytes of {}", 1 << 19);
    drop(first);
    // Scratch of the threads is all that stays.
    let (now, _) = engine.memory();
    assert!(now <= 1 << 17, "{now} bytes stay");
}

#[test]
fn a_job_that_is_back_from_a_pause_does_not_starve() {
    back_from_a_pause(4, true);
    back_from_a_pause(4, false);
    back_from_a_pause(20, false);
}

/// A job of batches of `size` beside a busy one of batches of 4, which joined before or after it.
fn back_from_a_pause(size: u64, first: bool) {
    // What is kept would leave the threads so little to do that nobody has to wait for them.
    let config = Config { cache: CacheMode::Off, ..Config::new(64 << 20, 1) };
    let engine = Arc::new(Engine::new(config));
    let folder = detailed(60);
    let strict = |seed, batch| Spec { seed, ..spec(folder.clone(), batch, Order::Strict) };
    let join = |seed, batch| engine.join(strict(seed, batch)).expect("it fits");
    let (mut job, mut busy);
    if first {
        (job, busy) = (join(1, size), join(2, 4));
    } else {
        busy = join(2, 4);
        job = join(1, size);
    }
    let (over, others) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                busy.start(number, &Received::default()).expect("started");
                while next(&mut busy).expect("a batch").is_some() {
                    others.fetch_add(1, Ordering::Relaxed);
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        });
        // As a job in another process: it says how long it was busy, and not at the start of an epoch.
        let mut epoch = |number| {
            job.start(number, &Received::default()).expect("started");
            let (before, mut batches) = (others.load(Ordering::Relaxed), 0);
            loop {
                match job.poll_next().expect("the job lives") {
                    Next::Batch(_) => {
                        batches += 1;
                        job.ask(Duration::from_millis(1), size).expect("the job lives");
                    }
                    Next::End => return (batches, others.load(Ordering::Relaxed) - before),
                    _ => std::thread::yield_now(),
                }
            }
        };
        epoch(0);
        // Longer than a job may be silent.
        std::thread::sleep(Duration::from_millis(2200));
        let (batches, meanwhile) = epoch(1);
        over.store(true, Ordering::Relaxed);
        assert_eq!(batches, 60 / size);
        assert!(meanwhile < 60, "the other job got {meanwhile} batches meanwhile, {size} {first}");
    });
}

#[test]
fn jobs_that_leave_in_the_middle_leave_no_bytes_behind() {
    let engine = engine(1, 64 << 20);
    let folder = folder(40);
    // It keeps the stream, and needs no copy: those that the others have drawn are in nobody else's hands.
    let steady = engine.join(spec(folder.clone(), 4, Order::Ready)).expect("it fits");
    let quiet = || {
        // Threads rest when the same bytes are held for a while.
        let mut before = (engine.memory().0, engine.idle_ns());
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = (engine.memory().0, engine.idle_ns());
            if now == before {
                return now.0;
            }
            before = now;
        }
    };
    let mut held = Vec::new();
    for round in 0..120u64 {
        // Batches of several are formed at once, and filled one after another.
        let join = || engine.join(spec(folder.clone(), 20, Order::Ready)).expect("it fits");
        let mut jobs: Vec<Job> = (0..8).map(|_| join()).collect();
        jobs.iter_mut().for_each(|job| job.start(0, &Received::default()).expect("started"));
        std::thread::sleep(Duration::from_micros(50 * (round % 40)));
        drop(jobs);
        if round % 40 == 39 {
            quiet();
            // Whoever joins or leaves has the stream let go of memory that it keeps for the next copies.
            drop(join());
            held.push(engine.memory().0);
        }
    }
    // What threads need for decoding may still grow a little.
    assert!(held.windows(2).all(|pair| pair[1] < pair[0] + 2000), "{held:?}");
    drop(steady);
}

#[test]
fn a_folder_of_bad_files_ends_or_is_told() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir_all(dir.path().join("class0")).expect("a folder");
    for i in 0..3 {
        std::fs::write(dir.path().join(format!("class0/{i}.jpg")), b"not a picture").expect("written");
    }
    let folder = open(dir.path());
    for (on_error, order) in
        [(OnError::Skip, Order::Ready), (OnError::Skip, Order::Strict), (OnError::Raise, Order::Ready)]
    {
        for batch in [1, 2, 8] {
            let engine = engine(2, 64 << 20);
            let mut job =
                engine.join(Spec { on_error, ..spec(folder.clone(), batch, order) }).expect("joined");
            for number in 0..2 {
                job.start(number, &Received::default()).expect("started");
                match next(&mut job) {
                    Ok(None) => assert_eq!(on_error, OnError::Skip),
                    Err(Error::Sample { .. }) => assert_eq!(on_error, OnError::Raise),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_sample_that_failed_once_is_tried_again_where_failures_are_told() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    (0..6).for_each(|i| write_image(dir.path(), i));
    let folder = open(dir.path());
    let (path, hidden) = (folder.path(2), dir.path().join("hidden"));
    std::fs::rename(&path, &hidden).expect("hidden");
    let engine = engine(2, 64 << 20);
    let mut job = engine.join(spec(folder, 2, Order::Ready)).expect("joined");
    job.start(0, &Received::default()).expect("started");
    let error = std::iter::repeat_with(|| next(&mut job)).find_map(|got| got.err());
    assert!(matches!(error, Some(Error::Sample { sample: 2, .. })));
    std::fs::rename(&hidden, &path).expect("back again");
    assert_eq!(samples(&epoch(&mut job, 1, &Received::default())).len(), 6);
}
