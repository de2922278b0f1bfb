//! The waste `w`: preparations of copies over the least that is possible, simulated and kept as a table.
//!
//! The least is one preparation for each delivery of the fastest job. A small pool and mixing cost more. Every
//! cell is [`scenario`] under the shipped policy, the mean of three seeds, made by
//! `cargo run --release -p forebay-policy --example waste`. A test simulates some cells again.
//!
//! Jobs are equal and staggered evenly over an epoch. Jobs come when they come, and mixing costs staggered jobs
//! most: jobs that start together waste less than the table says, and so do jobs of unequal speed.

use crate::simulate::{Group, Scenario};

/// Numbers of jobs in the table.
pub const JOBS: [u32; 5] = [1, 2, 3, 4, 8];
/// Copies in the pool, as shares of the samples.
pub const POOL: [f64; 7] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];
/// Parts of the draws that follow each job's own order.
pub const MIXING: [f64; 4] = [0.0, 0.05, 0.1, 0.2];

/// By jobs, pool and mixing.
#[rustfmt::skip]
const TABLE: [[[f64; MIXING.len()]; POOL.len()]; JOBS.len()] = [
    // 1 jobs
    [
        [1.000, 1.000, 1.000, 1.000],
        [1.000, 1.000, 1.000, 1.000],
        [1.000, 1.000, 1.000, 1.000],
        [1.000, 1.000, 1.000, 1.000],
        [1.000, 1.000, 1.000, 1.000],
        [1.000, 1.000, 1.000, 1.000],
        [1.000, 1.000, 1.000, 1.000],
    ],
    // 2 jobs
    [
        [1.012, 1.037, 1.068, 1.133],
        [1.006, 1.028, 1.061, 1.126],
        [1.004, 1.022, 1.051, 1.113],
        [1.003, 1.018, 1.036, 1.084],
        [1.003, 1.018, 1.035, 1.069],
        [1.003, 1.018, 1.035, 1.069],
        [1.003, 1.018, 1.035, 1.069],
    ],
    // 3 jobs
    [
        [1.027, 1.081, 1.149, 1.293],
        [1.011, 1.065, 1.135, 1.278],
        [1.007, 1.052, 1.118, 1.254],
        [1.006, 1.031, 1.072, 1.191],
        [1.006, 1.032, 1.062, 1.123],
        [1.006, 1.032, 1.061, 1.121],
        [1.006, 1.032, 1.061, 1.121],
    ],
    // 4 jobs
    [
        [1.043, 1.138, 1.250, 1.475],
        [1.015, 1.114, 1.224, 1.450],
        [1.010, 1.098, 1.206, 1.414],
        [1.008, 1.046, 1.132, 1.326],
        [1.008, 1.044, 1.087, 1.168],
        [1.008, 1.044, 1.086, 1.166],
        [1.008, 1.044, 1.086, 1.166],
    ],
    // 8 jobs
    [
        [1.149, 1.526, 1.842, 2.405],
        [1.056, 1.479, 1.786, 2.336],
        [1.017, 1.449, 1.736, 2.271],
        [1.008, 1.334, 1.614, 2.120],
        [1.008, 1.087, 1.370, 1.923],
        [1.008, 1.085, 1.159, 1.322],
        [1.008, 1.085, 1.159, 1.234],
    ],
];

/// The waste of so many equal jobs with a pool of this share of the samples, interpolated.
///
/// Below the smallest pool of the table it rises to `jobs` at no pool, where everybody makes his own. It is never
/// below 1 and never above `jobs`. A fraction stands for jobs of unequal speed: deliveries of all over those of
/// the fastest.
pub fn waste(jobs: f64, pool: f64, mixing: f64) -> f64 {
    if jobs <= 1.0 {
        return 1.0;
    }
    let (low, part) = between(&JOBS.map(f64::from), jobs);
    let of = |row: usize| TABLE[row].map(|cells| along(&MIXING, &cells, mixing.max(0.0)));
    let (few, many) = (at_pool(&of(low), pool), at_pool(&of(low + 1), pool));
    let small = few + (many - few) * part;
    let none = (pool / POOL[0]).clamp(0.0, 1.0);
    (jobs + (small - jobs) * none).clamp(1.0, jobs)
}

/// Pools differ by factors, so their logarithm is interpolated.
fn at_pool(cells: &[f64; POOL.len()], pool: f64) -> f64 {
    along(&POOL.map(f64::ln), cells, pool.clamp(POOL[0], POOL[POOL.len() - 1]).ln())
}

fn along<const N: usize>(knots: &[f64; N], values: &[f64; N], at: f64) -> f64 {
    let (low, part) = between(knots, at);
    values[low] + (values[low + 1] - values[low]) * part
}

/// The knot below and how far beyond it, in steps; beyond the last knot the last step goes on.
fn between<const N: usize>(knots: &[f64; N], at: f64) -> (usize, f64) {
    let low = knots.iter().skip(1).take(N - 2).take_while(|&&knot| knot <= at).count();
    (low, (at - knots[low]) / (knots[low + 1] - knots[low]))
}

/// What a cell is a simulation of.
pub fn scenario(jobs: u32, pool: f64, mixing: f64, seed: u64) -> Scenario {
    let group = Group { count: jobs, stagger: 1.0 / f64::from(jobs), ..Group::default() };
    Scenario { pool, mixing, seed, jobs: vec![group], ..Scenario::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Policy, run};

    /// What a cell may be off when it is simulated again, with one seed.
    const OFF: f64 = 0.03;

    #[test]
    fn knots_are_cells_and_between_them_is_between() {
        for (i, &jobs) in JOBS.iter().enumerate() {
            for (k, &pool) in POOL.iter().enumerate() {
                for (l, &mixing) in MIXING.iter().enumerate() {
                    let value = waste(f64::from(jobs), pool, mixing);
                    assert!((value - TABLE[i][k][l]).abs() < 1e-9, "{jobs} {pool} {mixing}: {value}");
                }
            }
        }
        let middle = waste(6.0, 0.03, 0.15);
        assert!(waste(4.0, 0.05, 0.1) < middle && middle < waste(8.0, 0.02, 0.2), "{middle}");
    }

    #[test]
    fn no_pool_is_no_sharing_and_one_job_wastes_nothing() {
        assert_eq!((waste(4.0, 0.0, 0.1), waste(1.0, 0.0, 0.2), waste(0.5, 0.5, 0.2)), (4.0, 1.0, 1.0));
        assert!(waste(4.0, 0.001, 0.0) > 3.0);
        assert!(waste(2.0, 5.0, 1.0) <= 2.0 && waste(64.0, 0.05, 0.1) <= 64.0);
    }

    #[test]
    fn the_simulator_still_says_so() {
        for (jobs, pool, mixing) in [(2, 0.01, 0.1), (3, 0.05, 0.05), (4, 0.02, 0.2), (8, 0.005, 0.0)] {
            let report = run(&scenario(jobs, pool, mixing, 7), Policy::Forebay, &mut |_| ()).expect("sound");
            let (now, table) = (report.ratio / report.bound, waste(f64::from(jobs), pool, mixing));
            let said =
                format!("{jobs} jobs, pool {pool}, mixing {mixing}: {now:.3}, in the table {table:.3}");
            assert!((now / table - 1.0).abs() < OFF, "{said}");
        }
    }
}
