//! Prints the table of `plan::waste`: preparations per delivery, over the least that is possible.
//!
//! `cargo run --release -p forebay-policy --example waste` simulates every cell with the shipped policy and writes
//! rows that can be pasted into `src/plan/waste.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_policy::plan::waste::{JOBS, MIXING, POOL, scenario};
use forebay_policy::simulate::{Policy, run};

/// Runs of each cell, each with another seed.
const SEEDS: u64 = 3;

fn main() {
    let cells = JOBS.len() * POOL.len() * MIXING.len();
    let found = Mutex::new(vec![0.0; cells]);
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let cell = next.fetch_add(1, Ordering::Relaxed);
                    if cell >= cells {
                        break;
                    }
                    let value = simulate(cell);
                    eprintln!("{} of {cells}", cell + 1);
                    if let Ok(mut found) = found.lock() {
                        found[cell] = value;
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_default();
    for (jobs, block) in JOBS.iter().zip(found.chunks(POOL.len() * MIXING.len())) {
        println!("    // {jobs} jobs");
        println!("    [");
        for row in block.chunks(MIXING.len()) {
            let row: Vec<String> = row.iter().map(|value| format!("{value:.3}")).collect();
            println!("        [{}],", row.join(", "));
        }
        println!("    ],");
    }
}

/// The mean over seeds.
fn simulate(cell: usize) -> f64 {
    let (jobs, rest) = (cell / (POOL.len() * MIXING.len()), cell % (POOL.len() * MIXING.len()));
    let (pool, mixing) = (POOL[rest / MIXING.len()], MIXING[rest % MIXING.len()]);
    let one = |seed| {
        let scenario = scenario(JOBS[jobs], pool, mixing, seed);
        run(&scenario, Policy::Forebay, &mut |_| ()).map_or(f64::NAN, |report| report.ratio / report.bound)
    };
    (0..SEEDS).map(one).sum::<f64>() / SEEDS as f64
}
