//! `forebay bench`: what Forebay gives beside what else a user could pick.
//!
//! Machines drift by tens of percent within an hour, so no figure here stands alone: all sides of a
//! bench live side by side in one run, take turns in short rounds in a random order, and are compared
//! round by round. `single`, `sharing` and `neighbours` hold the sequences; `script` is a loader in a
//! Python process, `jobs` several, `window` what they were given in a time, `stat` the numbers, `report`
//! and `plot` what the user sees. `throttle` is a slow device for all of them.

mod data;
mod jobs;
pub(crate) mod machine;
mod neighbours;
mod plan;
mod plot;
pub(crate) mod report;
mod script;
mod setup;
mod sharing;
mod side;
mod single;
mod stat;
mod throttle;
mod window;

pub(crate) use side::recipe;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::{Answer, interrupt};

/// Arguments of `forebay bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// One training job: JPEG, random crop to 224x224, flip, normalise, float32 batches of 64.
    Single(single::Single),
    /// 1, 2, 4 or more training processes on the same images at once: what they get together, and for what CPU time.
    Sharing(sharing::Sharing),
    /// Every split of memory between files, decoded images and copies: what is predicted, measured and planned.
    Plan(plan::PlanBench),
    /// One training job beside a slow one, and beside one that stands still: what that costs it.
    Neighbours(neighbours::Neighbours),
    /// A simulated slow device that all loaders obey: make one, or check that it gives what it says.
    Throttle(throttle::Check),
}

impl Bench {
    /// Runs the bench that was named.
    pub(crate) fn run(self) -> Result<Answer> {
        interrupt::watch()?;
        match self.which {
            Which::Single(single) => single.run(),
            Which::Sharing(sharing) => sharing.run(),
            Which::Plan(plan) => plan.run(),
            Which::Neighbours(neighbours) => neighbours.run(),
            Which::Throttle(check) => check.run(),
        }
    }
}
