//! `forebay demo`: four training jobs of unequal speed on generated JPEGs, sharing and each on its own.
//!
//! A job is a Python script as a user would write it ([`jobs`]); shared ones are fed by a daemon that lives
//! as long as they do. It is a first impression, not a measurement: the sides run one after
//! another, once.

mod jobs;
mod report;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::daemon::Daemon;
use crate::generate::{self, Outcome, Parameters};
use crate::{Answer, cache, interrupt, python};
use jobs::{Job, Task};
use report::{Report, Side};

const CLASSES: u64 = 20;
/// Budget of the daemon; jobs on their own have equal parts of it.
const MEMORY: u64 = 2 << 30;
/// Names, batch sizes, and steps in milliseconds per sample on one thread. More threads come with faster
/// steps, so that loading is what the fast jobs wait for on any machine.
const JOBS: [(&str, u64, f64); 4] =
    [("slow-64", 64, 2.5), ("slow-32", 32, 2.5), ("medium-48", 48, 1.25), ("fast-96", 96, 0.0)];

/// Arguments of `forebay demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Number of JPEGs to generate.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) images: u64,
    /// Where to put them; default: a folder in the user's cache directory.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How often each job loads all of them; two or more show how epochs differ in order.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// The Python that has forebay, torch and torchvision; default: the active environment, else python3.
    #[arg(long, env = "FOREBAY_PYTHON")]
    pub(crate) python: Option<PathBuf>,
    /// Threads of the daemon, and of each job on its own; default: the cores this process may use.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
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
        let report = self.load(data, threads)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report::table(&report));
        }
        Ok(Answer::Yes)
    }

    fn load(&self, data: PathBuf, threads: usize) -> Result<Report> {
        let python = python::find(self.python.as_deref(), &[]);
        interrupt::watch()?;
        let jobs = (0..).zip(JOBS).map(|(seed, (name, batch, step_ms))| Job {
            name,
            batch,
            step_seconds: step_ms / 1e3 / threads as f64,
            seed,
            data: data.clone(),
            memory: MEMORY / JOBS.len() as u64,
            threads,
        });
        // Before the jobs, so that it ends after them even where one fails.
        let daemon = Daemon::open(MEMORY, threads, "auto", None)?;
        eprintln!("starting {} training jobs", JOBS.len());
        let mut processes = jobs::open(&python, u32::try_from(self.images)?, jobs.collect())?;
        // Sharing goes first: what is not in the page cache yet costs this side.
        let mut task = Task { side: "shared", epochs: self.epochs, socket: Some(daemon.socket().into()) };
        let shared = Side::shared(jobs::run(&mut processes, &task)?);
        drop(daemon);
        (task.side, task.socket) = ("alone", None);
        let alone = Side::alone(jobs::run(&mut processes, &task)?);
        (task.side, task.epochs) = ("pytorch", 1);
        // The last job has no step.
        let pytorch = jobs::run(&mut processes[JOBS.len() - 1..], &task)?.remove(0);
        Ok(Report { data, images: self.images, epochs: self.epochs, threads, shared, alone, pytorch })
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
