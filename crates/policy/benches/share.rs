//! What a decision costs at ten million samples and 32 jobs: `cargo bench -p forebay-policy`.
//!
//! Jobs stand at evenly spread places of their epochs and take turns, a batch of 64 each. A decision is a
//! draw or a choice of what to prepare; only time inside the stream counts. Prints one JSON object.

use std::time::{Duration, Instant};

use forebay_policy::share::{Effect, Join, Stream};
use forebay_policy::{Dice, Received};

const JOBS: u64 = 32;
const BATCH: u32 = 64;
const ROUNDS: usize = 20_000;

fn main() {
    // `cargo test --benches` asks only whether it runs.
    let quick = std::env::args().any(|arg| arg == "--test");
    let samples: u64 = if quick { 100_000 } else { 10_000_000 };
    for (pool, mixing) in [(0.01, 0.0), (0.01, 0.1), (0.05, 0.1)] {
        measure(samples, pool, mixing, if quick { 200 } else { ROUNDS });
    }
}

fn measure(samples: u64, pool: f64, mixing: f64, rounds: usize) {
    let slots = (samples as f64 * pool) as u32;
    let mut stream = Stream::new(samples, slots, 1, 1).expect("not too many");
    let mut dice = Dice::new(7);
    let mut jobs = Vec::new();
    for number in 0..JOBS {
        let join = Join { batch: BATCH, mixing, seed: number, ..Join::default() };
        let job = stream.join(join).expect("32 jobs");
        let received = Received { base: samples * number / JOBS, ..Received::default() };
        stream.begin(job, 0, &received).expect("a sound state");
        stream.set_demand(job, Some(1000.0));
        jobs.push(job);
    }
    let (mut spent, mut decisions) = (Duration::ZERO, 0u64);
    for round in 0..rounds {
        let job = jobs[round % jobs.len()];
        let start = Instant::now();
        stream.open(job, &mut dice);
        let step = loop {
            if let Some(step) = stream.take(job) {
                break step;
            }
            let Some(prepare) = stream.next(false, &mut dice) else { break Default::default() };
            decisions += 1;
            stream.ready(prepare.slot, &mut dice);
        };
        spent += start.elapsed();
        assert_eq!(step.taken.len(), BATCH as usize, "the epochs are long enough");
        decisions +=
            stream.effects().iter().filter(|effect| matches!(effect, Effect::Draw { .. })).count() as u64;
    }
    // An epoch's turn: a job counts anew on all that is in the pool.
    let mut turns: Vec<f64> = (0..5)
        .map(|epoch| {
            let start = Instant::now();
            stream.begin(jobs[0], 1 + epoch, &Received::default()).expect("nothing received");
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    turns.sort_by(f64::total_cmp);
    println!(
        "{{\"samples\": {samples}, \"jobs\": {JOBS}, \"pool\": {pool}, \"mixing\": {mixing}, \"decisions\": {decisions}, \
         \"ns_per_decision\": {:.0}, \"turn_ms\": {:.2}, \"bytes_per_sample\": {:.2}, \"resident\": {}}}",
        spent.as_nanos() as f64 / decisions as f64,
        turns[2],
        stream.bytes() as f64 / samples as f64,
        stream.resident(),
    );
}
