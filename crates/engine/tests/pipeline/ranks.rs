//! Ranks of one job: equal steps, every sample once, whoever deals.

use std::sync::Arc;

use crate::pictures::{self, check, detailed, folder, next, rows};
use forebay_engine::batch::Batch;
use forebay_engine::pipeline::{Engine, Job, Level, Order, Remainder, Sharing, Spec};
use forebay_engine::{Config, Error};
use forebay_policy::{Picks, Received};
use proptest::prelude::*;

fn engine() -> Arc<Engine> {
    Arc::new(Engine::new(Config::new(64 << 20, 2)))
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop::sample::select(vec![Remainder::Pad, Remainder::Drop, Remainder::Uneven])
}

/// Takes batches of all ranks at a time until their epoch is over; `most` steps of them.
fn steps(jobs: &mut [Job], most: usize) -> Result<Vec<Vec<Batch>>, Error> {
    let mut all = Vec::new();
    while all.len() < most {
        let step: Vec<Option<Batch>> = jobs.iter_mut().map(next).collect::<Result<_, _>>()?;
        let over = step.iter().filter(|batch| batch.is_none()).count();
        assert!(over == 0 || over == jobs.len(), "{over} of {} ranks are over", jobs.len());
        if over > 0 {
            break;
        }
        all.push(step.into_iter().flatten().collect());
    }
    Ok(all)
}

/// Samples that are more than padding, sorted.
fn valid(steps: &[Vec<Batch>]) -> Vec<u64> {
    let batches = steps.iter().flatten();
    let mut samples: Vec<u64> = batches
        .flat_map(|batch| {
            batch.samples.iter().zip(&batch.valid).filter(|(_, valid)| **valid).map(|(s, _)| *s)
        })
        .collect();
    samples.sort_unstable();
    samples
}

/// What a rank's client would count as received.
fn receive(received: &mut Received, batch: &Batch) {
    received.add(&batch.positions, &batch.skipped);
    received.add(&batch.others, &[]);
}

/// Joins as `ranks` ranks to a stream of one engine, or to engines of their own.
fn join(spec: &Spec, ranks: u32, engine: &dyn Fn() -> Arc<Engine>, order: Option<Order>) -> Vec<Job> {
    let share = order.map(|order| Sharing { order, level: Level::Augmented, mixing: 0.1, before: None });
    let rank = |rank| Spec { rank, ranks, share, group: format!("job of {ranks}"), ..spec.clone() };
    (0..ranks).map(|at| engine().join(rank(at)).expect("joined")).collect()
}

#[test]
fn a_stream_deals_equal_steps_and_every_sample_once_to_any_number_of_ranks_in_turn() {
    let orders = prop::sample::select(vec![Order::Ready, Order::Late(7), Order::Strict]);
    let parts = prop::collection::vec((1u32..5, 0usize..6), 1..4);
    let values = (2usize..70, 1u64..9, remainders(), orders, parts, any::<bool>());
    check(30, values, |(n, batch, remainder, order, parts, half)| {
        let engine = engine();
        let picks = if half { (0..n as u32).step_by(2).collect() } else { (0..n as u32).collect() };
        let picks = Picks::of(picks, n as u32, false).expect("samples");
        let share = picks.len(n as u64);
        let spec = Spec { remainder, picks, ..pictures::spec(folder(n), batch) };
        let mut received = Received::default();
        let mut seen = Vec::new();
        let mut left = 0;
        for (at, &(ranks, most)) in parts.iter().enumerate() {
            let most = if at + 1 == parts.len() { usize::MAX } else { most };
            let mut jobs = join(&spec, ranks, &|| engine.clone(), Some(order));
            for job in &mut jobs {
                job.start(3, &received).expect("started");
            }
            let taken = steps(&mut jobs, most).expect("batches");
            let mut each = vec![received.clone(); ranks as usize];
            for step in &taken {
                step.iter().zip(&mut each).for_each(|(batch, received)| receive(received, batch));
            }
            prop_assert!(each.iter().all(|one| *one == each[0]), "any rank knows what all have");
            received = each.remove(0);
            left = (share - seen.len() as u64) % (u64::from(ranks) * batch);
            seen.extend(valid(&taken));
        }
        seen.sort_unstable();
        let whole = seen.len();
        seen.dedup();
        prop_assert_eq!(seen.len(), whole, "nobody twice");
        let expect = if remainder == Remainder::Drop { share - left } else { share };
        prop_assert_eq!(whole as u64, expect);
        prop_assert!(!half || seen.iter().all(|sample| sample % 2 == 0));
        Ok(())
    });
}

#[test]
fn fixed_shares_are_what_a_stream_deals_in_strict_order() {
    let values = (2usize..50, 1u64..7, 1u32..5, remainders(), 0u64..20);
    check(20, values, |(n, batch, ranks, remainder, base)| {
        let spec = Spec { remainder, ..pictures::spec(folder(n), batch) };
        let received = Received { base: base.min(n as u64), ..Received::default() };
        let shared = engine();
        let mut dealt = join(&spec, ranks, &|| shared.clone(), Some(Order::Strict));
        let mut fixed = join(&spec, ranks, &engine, None);
        for job in dealt.iter_mut().chain(&mut fixed) {
            job.start(1, &received).expect("started");
        }
        let (dealt, fixed) = (steps(&mut dealt, usize::MAX), steps(&mut fixed, usize::MAX));
        let (dealt, fixed) = (dealt.expect("batches"), fixed.expect("batches"));
        prop_assert_eq!(dealt.len(), fixed.len());
        for (a, b) in dealt.iter().flatten().zip(fixed.iter().flatten()) {
            prop_assert_eq!(&a.names, &b.names);
            prop_assert_eq!(&a.valid, &b.valid);
            prop_assert_eq!(rows(std::slice::from_ref(a)), rows(std::slice::from_ref(b)), "bit for bit");
        }
        Ok(())
    });
}

#[test]
fn ranks_that_do_not_fit_each_other_are_told() {
    let engine = engine();
    let sharing = Sharing { order: Order::Ready, level: Level::Augmented, mixing: 0.0, before: None };
    let spec = Spec { ranks: 2, group: "one".into(), share: Some(sharing), ..pictures::spec(folder(80), 4) };
    let mut first = engine.join(spec.clone()).expect("joined");
    let refused = |spec: Spec| engine.join(spec).map(|_| ()).expect_err("refused").to_string();
    assert!(refused(spec.clone()).contains("is there already"));
    assert!(refused(Spec { rank: 1, batch: 5, ..spec.clone() }).contains("other arguments"));
    assert!(refused(Spec { rank: 2, ..spec.clone() }).contains("no rank 2 of 2"));
    let mut second = engine.join(Spec { rank: 1, ..spec }).expect("joined");
    first.start(0, &Received::default()).expect("started");
    second.start(1, &Received::default()).expect("started");
    for job in [&mut first, &mut second] {
        let told = next(job).expect_err("they begin different epochs").to_string();
        assert!(told.contains("load one state in all of them"), "{told}");
    }
    // And all of them can begin again.
    for job in [&mut first, &mut second] {
        job.start(0, &Received::default()).expect("started");
    }
    let mut jobs = [first, second];
    assert_eq!(valid(&steps(&mut jobs, usize::MAX).expect("batches")).len(), 80);
    // A rank that leaves does not leave the other waiting: its part of further steps would be nobody's.
    let [mut first, second] = jobs;
    let mut jobs = [second];
    first.start(1, &Received::default()).expect("started");
    jobs[0].start(1, &Received::default()).expect("started");
    next(&mut first).expect("a batch");
    drop(first);
    let told = steps(&mut jobs, usize::MAX).map(|steps| steps.len());
    assert!(told.is_err_and(|error| error.to_string().contains("rank 0 of job one has left")));
}

#[test]
fn copies_that_a_log_names_are_made_again() {
    let engine = engine();
    let sharing = Sharing { order: Order::Ready, level: Level::Augmented, mixing: 0.1, before: None };
    let spec = Spec { share: Some(sharing), ..pictures::spec(detailed(30), 7) };
    let mut jobs: Vec<Job> = (0..3).map(|_| engine.join(spec.clone()).expect("joined")).collect();
    for job in &mut jobs {
        job.start(0, &Received::default()).expect("started");
    }
    let seen: Vec<Vec<Batch>> = steps(&mut jobs, usize::MAX).expect("batches");
    let first: Vec<&Batch> = seen.iter().map(|step| &step[1]).collect();
    let mut replayed = self::engine().join(Spec { share: None, ..spec }).expect("joined");
    replayed.start_listed(0, 0).expect("started");
    for batch in &first {
        replayed.list(batch.names.iter().map(|name| (*name, true)).collect()).expect("listed");
    }
    replayed.feed_end().expect("ended");
    for batch in first {
        let again = next(&mut replayed).expect("a batch").expect("as many");
        assert_eq!(again.names, batch.names);
        assert_eq!(rows(std::slice::from_ref(&again)), rows(std::slice::from_ref(batch)));
    }
    assert!(next(&mut replayed).expect("an end").is_none());
}
