//! `forebay profile`: what storage, cores and memory give here, and what a dataset with a recipe costs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use forebay_engine::profile::{Measured, Options, Store, measure};
use forebay_engine::storage::{Dataset, Folder};
use forebay_engine::{Config, parse_bytes};
use forebay_policy::plan::profile::Form;
use forebay_recipe::Recipe;
use indicatif::{ProgressBar, ProgressStyle};

use crate::Answer;
use crate::bench::machine::Machine;
use crate::hint::Hinted;

/// Of samples and coins.
const SEED: u64 = 1;
const STEPS: u64 = 1000;

/// Arguments of `forebay profile`.
#[derive(Debug, Args)]
pub(crate) struct Profile {
    /// A folder of images with a folder for each class.
    dataset: PathBuf,
    /// The recipe as JSON; default: a random crop to 224x224, a flip, normalised float32.
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// How many samples are measured.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Threads that will load; default: FOREBAY_THREADS, else the cores this process may use.
    #[arg(long)]
    threads: Option<usize>,
    /// Memory that loading will have, such as 8GB; default: FOREBAY_MEMORY, else a quarter of the machine's.
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Samples per second that one training job can use; without it, as many as there are.
    #[arg(long, value_name = "PER_SECOND")]
    demand: Option<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Profile {
    /// Opens, measures, shows.
    pub(crate) fn run(self) -> Result<Answer> {
        let recipe = match &self.recipe {
            Some(path) => open_recipe(path)?,
            None => crate::bench::recipe()?,
        };
        let config = Config::resolve(self.memory, self.threads, None, None)?;
        let folder = Folder::open(&self.dataset, config.threads, &|_| ())
            .with_context(|| format!("cannot open the dataset {}", self.dataset.display()))?;
        let options = Options { samples: self.samples, config, seed: SEED };
        let bar = ProgressBar::new(STEPS)
            .with_style(ProgressStyle::with_template("{wide_bar} {elapsed} (about {eta} left) {msg}")?);
        let show = |what: &str, part: f64| {
            bar.set_message(what.to_owned());
            bar.set_position((part * STEPS as f64) as u64);
        };
        let measured = measure(&Dataset::from(folder), &recipe, &options, &show)?;
        bar.finish_and_clear();
        let machine = Machine::read(options.config.threads);
        let text = measured.profile(machine.cpu, self.demand).to_json()?;
        if let Some(path) = &self.output {
            fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        print!("{}", if self.json { text } else { table(&measured, self.demand) });
        Ok(Answer::Yes)
    }
}

fn open_recipe(path: &Path) -> Result<Recipe> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Recipe::from_json(&text).with_context(|| {
        Hinted::new(
            format!("{} is not a recipe", path.display()),
            "a recipe is {\"steps\": [{\"op\": …}, …]}, as `loader.explain()` names them",
        )
    })
}

/// Lines for a terminal.
fn table(measured: &Measured, demand: Option<f64>) -> String {
    let work = &measured.work;
    let mut text = format!(
        "{}: {} samples, {} of them measured on {} threads\n{}\n\n",
        measured.dataset, measured.samples, work.samples, measured.config.threads, measured.recipe
    );
    text += &format!(
        "{:<24}{:>10}{:>12}{:>12}{:>16}\n",
        "storage", "MB/s", "files/s", "in flight", "one at a time"
    );
    let row = |name: &str, store: &Store| {
        let (best, one) = (store.best(), store.one());
        format!(
            "{name:<24}{:>10.1}{:>12.1}{:>12}{:>16.1}\n",
            best.bytes_per_s / 1e6,
            best.requests_per_s,
            best.inflight,
            one.requests_per_s
        )
    };
    text += &row("cold", &measured.cold);
    text += &row("in the page cache", &measured.warm);

    text += &format!("\n{:<24}{:>10}\n", "a sample", "kB");
    let sizes = [
        ("encoded", measured.encoded_bytes),
        ("decoded", work.decoded_bytes),
        ("augmented", work.augmented_bytes),
    ];
    for (name, bytes) in sizes {
        text += &match bytes {
            0.0 => format!("{name:<24}{:>10}\n", "none"),
            bytes => format!("{name:<24}{:>10.1}\n", bytes / 1e3),
        };
    }

    text += &format!("\n{:<24}{:>10}\n", "core time of a sample", "µs");
    let mut line = |name: &str, seconds: f64| text += &format!("{name:<24}{:>10.1}\n", seconds * 1e6);
    line("read", work.read_s);
    line("decode", work.decode_s);
    for form in [Form::Decoded, Form::Augmented] {
        for step in work.steps.iter().filter(|step| step.form == form) {
            line(&step.name, step.seconds);
        }
    }
    line("finish", work.finish_s);
    let steps: f64 = work.steps.iter().map(|step| step.seconds).sum();
    let sum = work.read_s + work.decode_s + steps + work.finish_s;
    line("all of it", sum);
    line("whole decode", work.decode_whole_s);

    let cores = measured.config.threads as f64;
    text += &format!("\n{:.0} samples/s if cores are all that binds\n", cores / sum);
    text += &format!(
        "memory: one core copies {:.1} GB/s, all together read {:.1} GB/s of what is kept\n",
        measured.copy_bytes_per_s / 1e9,
        measured.link_bytes_per_s / 1e9
    );
    if let Some(demand) = demand {
        text += &format!("demand: {demand} samples/s\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use forebay_policy::plan::profile;

    use super::*;
    use crate::generate::{Parameters, generate};

    fn asked(dataset: &Path) -> Profile {
        Profile {
            dataset: dataset.to_owned(),
            recipe: None,
            samples: 6,
            threads: Some(2),
            memory: Some(64_000_000),
            demand: Some(900.0),
            json: true,
            output: Some(dataset.with_extension("json")),
        }
    }

    #[test]
    fn what_is_written_is_what_a_plan_reads() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        generate(&data, Parameters { images: 8, classes: 2, seed: 3 }, 2, &|| ()).unwrap();
        assert_eq!(asked(&data).run().unwrap(), Answer::Yes);
        let text = fs::read_to_string(folder.path().join("data.json")).unwrap();
        let profile = profile::Profile::from_json(&text).unwrap();
        assert_eq!((profile.machine.cores, profile.machine.memory), (2.0, 64_000_000));
        let stream = &profile.streams[0];
        assert_eq!((stream.samples, stream.demand), (8, Some(900.0)));
        assert!((88e3..112e3).contains(&stream.encoded_bytes), "{}", stream.encoded_bytes);
        assert_eq!(stream.augmented_bytes, 3.0 * 224.0 * 224.0);
        let names: Vec<_> = stream.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["random_resized_crop", "random_horizontal_flip"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let absent = asked(&folder.path().join("absent")).run().unwrap_err();
        assert!(format!("{absent:#}").contains("absent"), "{absent:#}");
        let empty = asked(folder.path()).run().unwrap_err();
        assert!(format!("{empty:#}").contains("class folder"), "{empty:#}");
        let path = folder.path().join("recipe.json");
        assert!(open_recipe(&path).unwrap_err().to_string().contains("cannot read"));
        fs::write(&path, "{\"steps\": 3}").unwrap();
        let error = open_recipe(&path).unwrap_err();
        assert!(error.to_string().contains("is not a recipe"), "{error}");
    }
}
