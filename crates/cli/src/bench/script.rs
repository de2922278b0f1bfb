//! A loader in a Python process: [`Python`].
//!
//! Its script has four parts in one file: the protocol (`sides/protocol.py`), the throttle, the side, and
//! the commands of the bench. It lives as long as the bench wants turns of it and speaks a line protocol.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::setup::SEED;
use crate::worker::Worker;

/// Samples in a batch.
pub(crate) const BATCH: usize = 64;
/// Pixels of an image's side.
pub(crate) const SIZE: usize = 224;

/// Conversion of a whole data set, or compilation, may stand before the first answer.
const PREPARING: Duration = Duration::from_secs(900);

/// What a script is told.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Config<'a> {
    pub(crate) data: &'a Path,
    pub(crate) cache: &'a Path,
    pub(crate) batch: usize,
    pub(crate) size: usize,
    /// Threads or worker processes; 0 is the side's own choice.
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    /// Forebay's `decode`.
    pub(crate) decode: &'a str,
    /// The type of pixels: `float32`, which is normalised, or `uint8`.
    pub(crate) output: &'a str,
    /// Processes that load together.
    pub(crate) jobs: usize,
    /// Whether Forebay keeps decoded images.
    pub(crate) keep: bool,
    /// Bytes that Forebay may use in each process; its own choice if there is none.
    pub(crate) memory: Option<u64>,
    /// Whether a loader waits for its next turn instead of being made anew.
    pub(crate) stays: bool,
    /// The simulated device that its reads wait for.
    pub(crate) throttle: Option<&'a Path>,
}

impl<'a> Config<'a> {
    /// `cache` is where a side keeps converted copies of `data`.
    pub(crate) fn new(data: &'a Path, cache: &'a Path, threads: usize) -> Self {
        let (decode, output) = ("exact", "float32");
        Self {
            data,
            cache,
            batch: BATCH,
            size: SIZE,
            threads,
            seed: SEED,
            decode,
            output,
            jobs: 1,
            keep: false,
            memory: None,
            stays: false,
            throttle: None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Reply<T> {
    Failed { error: String },
    Said(T),
}

/// How a script started.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Started {
    /// With what it says it is.
    Ready(String),
    /// A package is not installed.
    Missing(String),
}

/// A running script.
#[derive(Debug)]
pub(crate) struct Python(Worker);

impl Python {
    /// Starts the process with the protocol and `parts`; [`Python::wait`] says whether it can run.
    pub(crate) fn open(python: &Path, parts: &[&str], config: &Config<'_>) -> Result<Self> {
        let (protocol, throttle) = (include_str!("sides/protocol.py"), include_str!("sides/throttle.py"));
        let whole = [protocol, throttle, &parts.join("\n\n")].join("\n\n");
        Ok(Self(Worker::open(python, &whole, config)?))
    }

    /// Waits until imports and conversions are done.
    pub(crate) fn wait(&mut self) -> Result<Started> {
        self.receive(PREPARING)
    }

    /// Gives a command.
    pub(crate) fn send(&mut self, ask: &impl Serialize) -> Result<()> {
        self.0.send(ask)
    }

    /// The next answer; an error that the script tells is one here.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T> {
        match self.0.receive(patience)?.with_context(|| self.0.last_words())? {
            Reply::Said(said) => Ok(said),
            Reply::Failed { error } => bail!(error),
        }
    }

    /// What it failed with although nothing was asked, if it did.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        match self.0.receive(Duration::ZERO) {
            Ok(Some(Reply::<serde::de::IgnoredAny>::Failed { error })) => Some(error),
            _ => None,
        }
    }

    /// The process group it leads.
    pub(crate) fn group(&self) -> u32 {
        self.0.group()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toy(script: &str) -> Python {
        let config = Config::new(Path::new("data"), Path::new("cache"), 2);
        Python::open(Path::new("python3"), &[script, "serve()"], &config).unwrap()
    }

    #[test]
    fn a_missing_package_is_told_from_a_failure() {
        let mut missing = toy("def prepare(): import no_such_package");
        assert!(matches!(missing.wait().unwrap(), Started::Missing(why) if why.contains("no_such_package")));
        let mut broken = toy("def prepare(): raise ValueError('bad shard')");
        assert_eq!(broken.wait().unwrap_err().to_string(), "ValueError: bad shard");
        let mut dead = toy("raise SystemExit('gone')");
        assert_eq!(dead.wait().unwrap_err().to_string(), "gone");
    }
}
