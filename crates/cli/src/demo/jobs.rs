//! Training jobs, each a Python process: start them together, draw their progress, take their figures.

use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use forebay_policy::simulate::{Quality, Watch};
use indicatif::{MultiProgress, ProgressBar};
use serde::{Deserialize, Serialize};

use crate::hint::Hinted;
use crate::interrupt;
use crate::worker::Worker;

const SCRIPT: &str = include_str!("job.py");
/// The longest silence of all jobs: importing torch on a cold disk.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often lines are looked for; far below what an eye sees of a bar.
const LOOK: Duration = Duration::from_millis(10);

/// What one process is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Job {
    pub(super) name: &'static str,
    pub(super) batch: u64,
    /// Time of the training step for each sample.
    pub(super) step_seconds: f64,
    pub(super) seed: u64,
    pub(super) data: PathBuf,
    /// For what it loads by itself.
    pub(super) memory: u64,
    pub(super) threads: usize,
}

/// What a job is to do next.
#[derive(Debug, Serialize)]
pub(super) struct Task {
    pub(super) side: &'static str,
    pub(super) epochs: u64,
    /// Of the daemon, if there is one.
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Missing { missing: String, why: String },
    Ready { ready: bool },
    Progress { done: u64 },
    Order { order: Vec<u32> },
    End(Counted),
}

/// What a job counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) deliveries: u64,
    /// From the start of all jobs to its end, with making the loader.
    pub(super) seconds: f64,
    pub(super) preparations: u64,
    pub(super) reads: u64,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) batch: u64,
    pub(super) step_seconds: f64,
    #[serde(flatten)]
    pub(super) counted: Counted,
    #[serde(flatten)]
    pub(super) quality: Quality,
}

/// A job's process. It serves one side after the other: importing torch takes longer than a side.
pub(super) struct Process {
    job: Job,
    python: PathBuf,
    worker: Worker,
    images: u32,
    watch: Watch,
    bar: ProgressBar,
    ready: bool,
    counted: Option<Counted>,
}

/// Starts a process for each job and waits until all could begin.
pub(super) fn open(python: &Path, images: u32, jobs: Vec<Job>) -> Result<Vec<Process>> {
    let open = |job: Job| -> Result<Process> {
        Ok(Process {
            worker: Worker::open(python, SCRIPT, &job)?,
            python: python.to_owned(),
            watch: Watch::new(0, images),
            bar: ProgressBar::hidden(),
            ready: false,
            counted: None,
            images,
            job,
        })
    };
    let mut processes = jobs.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    until(&mut processes, |process| process.ready)?;
    Ok(processes)
}

/// Lets them do the same beside each other.
pub(super) fn run(processes: &mut [Process], task: &Task) -> Result<Vec<Outcome>> {
    let bars = MultiProgress::new();
    for process in &mut *processes {
        let what = format!("{}, {}", task.side, process.job.name);
        let bar = super::bar(&what, u64::from(process.images) * task.epochs)?;
        (process.bar, process.counted) = (bars.add(bar), None);
        process.watch = Watch::new(0, process.images);
    }
    for process in &mut *processes {
        process.worker.send(task)?;
    }
    until(processes, |process| process.counted.is_some())?;
    bars.clear()?;
    Ok(processes.iter().filter_map(Process::outcome).collect())
}

/// Takes lines until all have come so `far`.
fn until(processes: &mut [Process], far: fn(&Process) -> bool) -> Result<()> {
    let mut heard = Instant::now();
    while !processes.iter().all(far) {
        let mut quiet = true;
        for process in processes.iter_mut().filter(|process| !far(process)) {
            if let Poll::Ready(line) = process.worker.poll()? {
                quiet = false;
                process.hear(line)?;
            }
        }
        interrupt::check()?;
        if !quiet {
            heard = Instant::now();
        } else if heard.elapsed() > PATIENCE {
            bail!("no job said anything for {} s", PATIENCE.as_secs());
        } else {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

impl Process {
    fn hear(&mut self, line: Option<Line>) -> Result<()> {
        match line {
            Some(Line::Missing { missing, why }) => bail!(missing_hint(&self.python, &missing, &why)),
            Some(Line::Ready { ready }) => self.ready = ready,
            Some(Line::Progress { done }) => self.bar.set_position(done),
            Some(Line::Order { order }) => {
                let whole = order.len() == self.images as usize;
                for batch in order.chunks(self.job.batch as usize) {
                    self.watch.batch(batch.iter().copied());
                }
                self.watch.end(whole);
            }
            Some(Line::End(counted)) => {
                self.bar.finish();
                self.counted = Some(counted);
            }
            None => {
                let name = self.job.name;
                return Err(anyhow!(self.worker.last_words()).context(format!("job {name} stopped early")));
            }
        }
        Ok(())
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(Outcome {
            name: self.job.name,
            batch: self.job.batch,
            step_seconds: self.job.step_seconds,
            counted: self.counted?,
            quality: self.watch.quality(),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_script_are_told_apart() {
        let parse = |text: &str| serde_json::from_str::<Line>(text).unwrap();
        assert!(matches!(parse(r#"{"missing":"torch","why":"no"}"#), Line::Missing { .. }));
        assert!(matches!(parse(r#"{"ready":true}"#), Line::Ready { ready: true }));
        assert!(matches!(parse(r#"{"done":64}"#), Line::Progress { done: 64 }));
        assert!(matches!(parse(r#"{"order":[1,0]}"#), Line::Order { order } if order == [1, 0]));
        let end = parse(r#"{"deliveries":64,"seconds":0.5,"preparations":60,"reads":61}"#);
        let counted = Counted { deliveries: 64, seconds: 0.5, preparations: 60, reads: 61 };
        assert!(matches!(end, Line::End(found) if found == counted));
    }

    #[test]
    fn a_missing_package_comes_with_its_cure() {
        let torch = missing_hint(Path::new("py"), "torch", "no").into();
        assert!(crate::hint::render(&torch).contains("hint: `py -m pip install torch"));
        let forebay = missing_hint(Path::new("py"), "forebay", "no").into();
        assert!(crate::hint::render(&forebay).contains("hint: `make demo`"));
    }
}
