//! `forebay demo`: generate real JPEGs, load them from Python, and say how fast that was.
//!
//! The loading is done by a Python script as a user would write it; this file draws the progress bars
//! and the table. It is a first impression, not a measurement: the sides run one after another, once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::generate::{self, Outcome, Parameters};
use crate::hint::Hinted;
use crate::worker::Worker;
use crate::{Answer, cache, python};

const SCRIPT: &str = include_str!("demo.py");
const CLASSES: u64 = 20;
/// The slowest step between two lines of the script: importing torch on a cold disk.
const PATIENCE: Duration = Duration::from_secs(300);

/// Arguments of `forebay demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Number of JPEGs to generate.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) images: u64,
    /// Where to put them; default: a folder in the user's cache directory.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How often to load all of them.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// The Python that has forebay, torch and torchvision; default: the active environment, else python3.
    #[arg(long, env = "FOREBAY_PYTHON")]
    pub(crate) python: Option<PathBuf>,
    /// Threads for Forebay and worker processes for PyTorch; default: the cores this process may use.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Missing { missing: String, why: String },
    Epoch { side: String, epoch: u64, images: u64, seconds: f64 },
    Progress { side: String, epoch: u64, done: u64 },
}

/// One epoch of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Epoch {
    side: String,
    epoch: u64,
    images: u64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    data: PathBuf,
    threads: usize,
    epochs: Vec<Epoch>,
    ratio: f64,
}

impl Demo {
    /// Generates, loads, prints.
    pub(crate) fn run(self) -> Result<Answer> {
        let threads = self.threads.filter(|&threads| threads > 0).unwrap_or_else(cores);
        let parameters = Parameters { images: self.images, classes: CLASSES.min(self.images), seed: 0 };
        let data = match &self.dir {
            Some(dir) => dir.clone(),
            None => cache::folder("generated")?.join(parameters.folder()),
        };
        prepare(&data, parameters)?;
        let python = python::find(self.python.as_deref(), &[]);
        let epochs = load(&python, &data, self.images, self.epochs, threads)?;
        let ratio = rate(&epochs, "forebay") / rate(&epochs, "torch");
        let report = Report { data, threads, epochs, ratio };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", table(&report));
        }
        Ok(Answer::Yes)
    }
}

/// How many cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Generates with a progress bar.
pub(crate) fn prepare(dir: &Path, parameters: Parameters) -> Result<()> {
    let bar = bar("generating", parameters.images)?;
    let outcome = generate::generate(dir, parameters, cores(), &|| bar.inc(1))?;
    bar.finish_and_clear();
    match outcome {
        Outcome::Made => eprintln!("made {} JPEGs in {}", parameters.images, dir.display()),
        Outcome::Found => eprintln!("using the {} JPEGs in {}", parameters.images, dir.display()),
    }
    Ok(())
}

/// A bar on stderr that counts images.
pub(crate) fn bar(what: &str, images: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:>18} {wide_bar} {pos}/{len} images, {rate}")?.with_key(
        "rate",
        |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            // A bar has nowhere to report that it could not be drawn.
            let _ = write!(text, "{:.0}/s", state.per_sec());
        },
    );
    Ok(ProgressBar::new(images).with_style(style).with_prefix(what.to_owned()))
}

fn load(python: &Path, data: &Path, images: u64, epochs: u64, threads: usize) -> Result<Vec<Epoch>> {
    let config = serde_json::json!({ "data": data, "epochs": epochs, "threads": threads });
    let mut worker = Worker::open(python, SCRIPT, &config)?;
    let mut done = Vec::new();
    let mut shown: Option<((String, u64), ProgressBar)> = None;
    while let Some(line) = worker.receive(PATIENCE)? {
        match line {
            Line::Missing { missing, why } => bail!(missing_hint(python, &missing, &why)),
            Line::Progress { side, epoch, done } => {
                let key = (side, epoch);
                if shown.as_ref().is_none_or(|(current, _)| *current != key) {
                    let bar = bar(&format!("{}, epoch {}", key.0, key.1), images)?;
                    shown = Some((key, bar));
                }
                if let Some((_, bar)) = &shown {
                    bar.set_position(done);
                }
            }
            Line::Epoch { side, epoch, images, seconds } => {
                if let Some((_, bar)) = shown.take() {
                    bar.finish_and_clear();
                }
                done.push(Epoch { side, epoch, images, seconds });
            }
        }
    }
    if done.len() as u64 != 2 * epochs {
        return Err(anyhow::anyhow!(worker.last_words())
            .context(format!("the demo stopped early ({})", python.display())));
    }
    Ok(done)
}

fn missing_hint(python: &Path, package: &str, why: &str) -> Hinted {
    let cure = match package {
        "forebay" => "`make demo` builds it into an environment of its own; or install forebay there".into(),
        _ => format!(
            "`{} -m pip install torch torchvision`, or name another Python with --python",
            python.display()
        ),
    };
    Hinted::new(format!("{} cannot import {package}: {why}", python.display()), cure)
}

/// Images over seconds of all epochs of one side.
fn rate(epochs: &[Epoch], side: &str) -> f64 {
    let of = || epochs.iter().filter(|epoch| epoch.side == side);
    of().map(|epoch| epoch.images as f64).sum::<f64>() / of().map(|epoch| epoch.seconds).sum::<f64>()
}

fn table(report: &Report) -> String {
    let last = report.epochs.iter().map(|epoch| epoch.epoch).max().unwrap_or(0);
    let mut text = format!("{:<22}", "images/s");
    for epoch in 1..=last {
        text.push_str(&format!("{:>10}", format!("epoch {epoch}")));
    }
    text.push_str(&format!("{:>10}\n", "all"));
    for (side, name) in [("forebay", "Forebay"), ("torch", "PyTorch DataLoader")] {
        text.push_str(&format!("{name:<22}"));
        for epoch in report.epochs.iter().filter(|epoch| epoch.side == side) {
            text.push_str(&format!("{:>10.0}", epoch.images as f64 / epoch.seconds));
        }
        text.push_str(&format!("{:>10.0}\n", rate(&report.epochs, side)));
    }
    text.push_str(&format!(
        "\nForebay is {:.1} times as fast ({} threads, {} workers; JPEG to a 224x224 float32 batch of 64).\n",
        report.ratio, report.threads, report.threads
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(side: &str, epoch: u64, seconds: f64) -> Epoch {
        Epoch { side: side.into(), epoch, images: 100, seconds }
    }

    #[test]
    fn a_rate_is_all_images_over_all_seconds() {
        let epochs = [epoch("forebay", 1, 1.0), epoch("forebay", 2, 3.0), epoch("torch", 1, 8.0)];
        assert_eq!(rate(&epochs, "forebay"), 50.0);
        assert_eq!(rate(&epochs, "torch"), 12.5);
    }

    #[test]
    fn the_table_has_a_column_for_each_epoch() {
        let epochs = vec![
            epoch("forebay", 1, 0.5),
            epoch("forebay", 2, 0.25),
            epoch("torch", 1, 2.0),
            epoch("torch", 2, 1.0),
        ];
        let text = table(&Report { data: "d".into(), threads: 2, epochs, ratio: 4.0 });
        assert!(text.contains("Forebay                      200       400       267\n"), "{text}");
        assert!(text.contains("PyTorch DataLoader            50       100        67\n"), "{text}");
        assert!(text.contains("4.0 times as fast"));
    }

    #[test]
    fn lines_of_the_script_are_told_apart() {
        let parse = |text: &str| serde_json::from_str::<Line>(text).unwrap();
        assert!(matches!(parse(r#"{"missing":"torch","why":"no"}"#), Line::Missing { .. }));
        assert!(matches!(parse(r#"{"side":"torch","epoch":1,"done":64}"#), Line::Progress { done: 64, .. }));
        assert!(matches!(
            parse(r#"{"side":"torch","epoch":1,"images":64,"seconds":0.5}"#),
            Line::Epoch { images: 64, .. }
        ));
    }
}
