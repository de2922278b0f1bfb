//! One way of loading, ready to take its turn: [`Side`].
//!
//! Loaders used from Python are processes that live through the whole run; bare loops over the codecs
//! run in this process. A round first takes some batches untimed, which empties what a loader prefetched
//! while it waited for its turn, and then measures from the arrival of the last of those to the arrival
//! of the last timed one.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_recipe::Recipe;
use serde::{Deserialize, Serialize};

use super::data::Data;
use super::script::{BATCH, Python, SIZE};
use crate::rng::Rng;
use crate::worker;

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

#[derive(Debug, Serialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Ask {
    Epoch,
    Round { skip: usize, batches: usize },
}

impl Side for Python {
    fn first(&mut self) -> Result<Option<Turn>> {
        self.send(&Ask::Epoch)?;
        self.receive(MEASURING).map(Some)
    }

    fn round(&mut self, skip: usize, batches: usize) -> Result<Turn> {
        self.send(&Ask::Round { skip, batches })?;
        self.receive(MEASURING)
    }

    fn settle(&mut self) {
        settle(&[self.group()]);
    }
}

/// Waits for the CPU time of process groups to stand still.
pub(crate) fn settle(groups: &[u32]) {
    let start = Instant::now();
    thread::sleep(SETTLE_LEAST);
    let mut before = worker::ticks(groups);
    while start.elapsed() < SETTLE_MOST {
        thread::sleep(SETTLE_STEP);
        let now = worker::ticks(groups);
        // One tick is what polling a queue costs.
        if now <= before + groups.len() as u64 {
            return;
        }
        before = now;
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
pub(crate) fn recipe() -> Result<Recipe> {
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
    use std::path::Path;

    use super::super::script::{Config, Started};
    use super::*;

    const SCRIPT: &str = r#"
print("a library that talks")
class Batch:
    shape, dtype, strides = (64, 3, 224, 224), None, None
    def __len__(self): return 64
def check(_): pass
def batches(n):
    for _ in range(n): yield Batch()
def prepare(): return "toy 1"
def first(): return batches(3)
def later(): return batches(10)
"#;

    #[test]
    fn a_side_answers_in_turn_and_its_prints_do_no_harm() {
        let config = Config::new(Path::new("data"), Path::new("cache"), 2);
        let parts = [SCRIPT, include_str!("sides/single.py")];
        let mut side = Python::open(Path::new("python3"), &parts, &config).unwrap();
        assert!(matches!(side.wait().unwrap(), Started::Ready(version) if version == "toy 1"));
        assert_eq!(side.first().unwrap().unwrap().images, 3 * 64);
        assert_eq!(side.round(2, 4).unwrap().images, 4 * 64);
        side.settle();
        let error = side.round(2, 4).unwrap_err();
        assert!(error.to_string().contains("StopIteration"), "{error}");
    }

    #[test]
    fn the_recipe_is_understood() {
        recipe().unwrap();
    }
}
