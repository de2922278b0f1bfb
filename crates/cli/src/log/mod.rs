//! `forebay log`: look at order logs, which say what a training job received, batch by batch.
//!
//! `read` turns a file into the entries that count, `show` and `diff` print them. Both hold one epoch's set of
//! samples and one batch at a time, so that a log of any length can be looked at.

mod diff;
mod read;
mod show;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::Answer;

/// What a header says about its job, in the order it is shown.
const KEYS: [&str; 12] = [
    "job",
    "dataset",
    "samples",
    "recipe",
    "output",
    "batch_size",
    "seed",
    "order",
    "shuffle",
    "rank",
    "world_size",
    "on_error",
];

/// Arguments of `forebay log`.
#[derive(Debug, Args)]
pub(crate) struct Log {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// Show what a training job received, epoch by epoch.
    Show(show::Show),
    /// Compare what two training jobs received, batch by batch.
    Diff(diff::Diff),
}

impl Log {
    /// Reads and prints.
    pub(crate) fn run(self) -> Result<Answer> {
        match self.which {
            Which::Show(show) => show.run(),
            Which::Diff(diff) => diff.run(),
        }
    }
}

/// A value of a header as JSON, where strings have no quotes but keep their escapes.
fn plain(value: &Value) -> String {
    let text = value.to_string();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(&text).to_owned()
}

/// A log in a file that goes away with the test.
#[cfg(test)]
fn written(lines: &[&str]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = r#"{"forebay_log": 1, "dataset": "d", "seed": 7, "order": "ready", "later": [1]}"#;
    let text: String = [header].iter().chain(lines).map(|line| format!("{line}\n")).collect();
    std::fs::write(file.path(), text).unwrap();
    file
}
