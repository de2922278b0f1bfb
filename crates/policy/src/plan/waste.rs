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

/// What a cell is a simulation of.
pub fn scenario(jobs: u32, pool: f64, mixing: f64, seed: u64) -> Scenario {
    let group = Group { count: jobs, stagger: 1.0 / f64::from(jobs), ..Group::default() };
    Scenario { pool, mixing, seed, jobs: vec![group], ..Scenario::default() }
}
