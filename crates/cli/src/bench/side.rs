//! One way of loading, ready to take its turn: [`Side`].
//!
//! Loaders used from Python are processes that live through the whole run and speak a line protocol
//! (`sides/protocol.py`); bare loops over the codecs run in this process. A round first takes some
//! batches untimed, which empties what a loader prefetched while it waited for its turn, and then
//! measures from the arrival of the last of those to the arrival of the last timed one.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_recipe::Recipe;
use serde::{Deserialize, Serialize};

use super::data::Data;
use crate::rng::Rng;
use crate::worker::Worker;

/// Samples in a batch.
pub(crate) const BATCH: usize = 64;
const SIZE: usize = 224;

/// Conversion of a whole data set, or compilation, may stand before the first answer.
const PREPARING: Duration = Duration::from_secs(900);
const MEASURING: Duration = Duration::from_secs(600);

/// Long enough for most loaders to fill their queues again.
const SETTLE_LEAST: Duration = Duration::from_millis(300);
const SETTLE_MOST: Duration = Duration::from_secs(4);
const SETTLE_STEP: Duration = Duration::from_millis(100);

/// What one turn measured.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Turn {
    images: u64,
    seconds: f64,
}

impl Turn {
    /// Images per second.
    pub(crate) fn rate(&self) -> f64 {
        self.images as f64 / self.seconds
    }
}

/// A loader that takes turns with others.
pub(crate) trait Side {
    /// A new loader's first epoch, timed from before the loader exists; `None` where there is no loader.
    fn first(&mut self) -> Result<Option<Turn>>;

    /// `skip` batches untimed, then `batches` timed.
    fn round(&mut self, skip: usize, batches: usize) -> Result<Turn>;

    /// Returns when this side no longer works in the background.
    fn settle(&mut self) {}
}

/// What the script of a side is told.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Config<'a> {
    data: &'a Path,
    cache: &'a Path,
    case: &'a str,
    batch: usize,
    size: usize,
    threads: usize,
    seed: u64,
}

impl<'a> Config<'a> {
    /// `cache` is where a side keeps converted copies of `data`.
    pub(crate) fn new(data: &'a Path, cache: &'a Path, case: &'a str, threads: usize, seed: u64) -> Self {
        Self { data, cache, case, batch: BATCH, size: SIZE, threads, seed }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Reply {
    Ready { ready: String },
    Missing { missing: String },
    Failed { error: String },
    Turn(Turn),
}

#[derive(Debug, Serialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Ask {
    Epoch,
    Round { skip: usize, batches: usize },
}

/// A loader in a Python process.
#[derive(Debug)]
pub(crate) struct Python(Worker);

/// How a Python side started.
#[derive(Debug)]
pub(crate) enum Started {
    /// With what it says it is.
    Ready(String),
    /// A package is not installed.
    Missing(String),
}

impl Python {
    /// Starts the process; [`Python::wait`] says whether it can run.
    pub(crate) fn open(python: &Path, script: &str, config: &Config<'_>) -> Result<Self> {
        let whole = [include_str!("sides/protocol.py"), script].concat();
        Ok(Self(Worker::open(python, &whole, config)?))
    }

    /// Waits until imports and conversions are done.
    pub(crate) fn wait(&mut self) -> Result<Started> {
        match self.0.receive(PREPARING)?.with_context(|| self.0.last_words())? {
            Reply::Ready { ready } => Ok(Started::Ready(ready)),
            Reply::Missing { missing } => Ok(Started::Missing(missing)),
            Reply::Failed { error } => bail!(error),
            Reply::Turn(_) => bail!("it measured before it was asked to"),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Turn> {
        self.0.send(ask)?;
        match self.0.receive(MEASURING)?.with_context(|| self.0.last_words())? {
            Reply::Turn(turn) => Ok(turn),
            Reply::Failed { error } => bail!(error),
            other => bail!("an answer out of turn: {other:?}"),
        }
    }
}

impl Side for Python {
    fn first(&mut self) -> Result<Option<Turn>> {
        self.ask(&Ask::Epoch).map(Some)
    }

    fn round(&mut self, skip: usize, batches: usize) -> Result<Turn> {
        self.ask(&Ask::Round { skip, batches })
    }

    /// Waits for the CPU time of the process and its workers to stand still.
    fn settle(&mut self) {
        let start = Instant::now();
        thread::sleep(SETTLE_LEAST);
        let mut before = self.0.busy_ticks();
        while start.elapsed() < SETTLE_MOST {
            thread::sleep(SETTLE_STEP);
            let now = self.0.busy_ticks();
            // One tick is what polling a queue costs.
            if now <= before + 1 {
                return;
            }
            before = now;
        }
    }
}

/// A loop over the codecs in this process: no batches, no hand-over.
#[derive(Debug)]
pub(crate) struct Bare {
    files: Vec<PathBuf>,
    recipe: Recipe,
    seed: u64,
    threads: usize,
    decode_only: bool,
    at: usize,
}

impl Bare {
    /// Either the whole recipe, or with `decode_only` a full decode to RGB and nothing else.
    pub(crate) fn new(data: &Data, decode_only: bool, threads: usize, seed: u64) -> Result<Self> {
        let mut files = data.files.clone();
        Rng::new(seed, 0).shuffle(&mut files);
        Ok(Self { files, recipe: recipe()?, seed, threads, decode_only, at: 0 })
    }

    /// The only call into the engine: each of `files` once.
    fn run(&mut self, images: usize) -> Result<Turn> {
        let files: Vec<PathBuf> = self.files.iter().cycle().skip(self.at).take(images).cloned().collect();
        self.at = (self.at + images) % self.files.len();
        self.seed += 1;
        let start = Instant::now();
        let images =
            forebay_engine::native::run(&files, &self.recipe, self.seed, self.threads, self.decode_only)?;
        Ok(Turn { images, seconds: start.elapsed().as_secs_f64() })
    }
}

impl Side for Bare {
    fn first(&mut self) -> Result<Option<Turn>> {
        Ok(None)
    }

    fn round(&mut self, skip: usize, batches: usize) -> Result<Turn> {
        self.run(skip * BATCH)?;
        self.run(batches * BATCH)
    }
}

/// What every side does to a sample.
fn recipe() -> Result<Recipe> {
    let steps = serde_json::json!({"steps": [
        {"op": "random_resized_crop", "height": SIZE, "width": SIZE, "scale": [0.08, 1.0],
         "ratio": [3.0 / 4.0, 4.0 / 3.0], "filter": "bilinear"},
        {"op": "random_horizontal_flip", "p": 0.5},
        {"op": "to_float", "scale": true},
        {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    ]});
    Ok(Recipe::from_json(&steps.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = r#"
print("a library that talks")
class Batch:
    shape, dtype, strides = (64, 3, 224, 224), None, None
    def __len__(self): return 64
def check(_): pass
def batches(n):
    for _ in range(n): yield Batch()
serve(lambda: "toy 1", lambda: batches(3), lambda: batches(10))
"#;

    fn toy(script: &str) -> Python {
        let config = Config::new(Path::new("data"), Path::new("cache"), "later", 2, 0);
        Python::open(Path::new("python3"), script, &config).unwrap()
    }

    #[test]
    fn a_side_answers_in_turn_and_its_prints_do_no_harm() {
        let mut side = toy(SCRIPT);
        assert!(matches!(side.wait().unwrap(), Started::Ready(version) if version == "toy 1"));
        assert_eq!(side.first().unwrap().unwrap().images, 3 * 64);
        assert_eq!(side.round(2, 4).unwrap().images, 4 * 64);
        side.settle();
        let error = side.round(2, 4).unwrap_err();
        assert!(error.to_string().contains("StopIteration"), "{error}");
    }

    #[test]
    fn a_missing_package_is_told_from_a_failure() {
        let mut missing = toy("def prepare(): import no_such_package\nserve(prepare, None, None)");
        assert!(matches!(missing.wait().unwrap(), Started::Missing(why) if why.contains("no_such_package")));
        let mut broken = toy("def prepare(): raise ValueError('bad shard')\nserve(prepare, None, None)");
        assert_eq!(broken.wait().unwrap_err().to_string(), "ValueError: bad shard");
        let mut dead = toy("raise SystemExit('gone')");
        assert_eq!(dead.wait().unwrap_err().to_string(), "gone");
    }

    #[test]
    fn the_recipe_is_understood() {
        recipe().unwrap();
    }
}
