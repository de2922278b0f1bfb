//! Processes that load the same data at the same time: [`Jobs`].

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::IgnoredAny;

use super::window::Window;
use crate::bench::script::{Config, Python, Started};
use crate::bench::side::settle;
use crate::worker;

/// Eight jobs may compile on two cores.
const OPENING: Duration = Duration::from_secs(300);
/// For a few batches of the slowest job.
const RUNNING: Duration = Duration::from_secs(120);

/// How a turn goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn<'a> {
    /// Processes that take part.
    pub(super) count: usize,
    /// Threads or worker processes of each.
    pub(super) threads: usize,
    /// Where what they share is found, and the process group that shares it.
    pub(super) server: Option<(&'a str, u32)>,
    /// Batches that each takes before the window opens.
    pub(super) skip: usize,
    /// How long the window is open.
    pub(super) window: Duration,
}

#[derive(Debug, Serialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum Ask<'a> {
    Open { threads: usize, address: Option<&'a str> },
    Run { skip: usize },
    Stop { at: f64 },
    Close,
}

/// Processes with one script.
#[derive(Debug)]
pub(super) struct Jobs<'a> {
    python: &'a Path,
    script: &'static str,
    config: Config<'a>,
    jobs: Vec<Python>,
    ready: usize,
}

impl<'a> Jobs<'a> {
    /// None yet.
    pub(super) fn new(python: &'a Path, script: &'static str, config: Config<'a>) -> Self {
        Self { python, script, config, jobs: Vec::new(), ready: 0 }
    }

    /// Starts processes until there are `count`, each with a seed of its own.
    pub(super) fn start(&mut self, count: usize) -> Result<()> {
        for number in self.jobs.len()..count {
            let config = Config { seed: self.config.seed + number as u64, ..self.config.clone() };
            let parts = [self.script, include_str!("../sides/sharing.py")];
            self.jobs.push(Python::open(self.python, &parts, &config)?);
        }
        Ok(())
    }

    /// Waits for all that were started.
    pub(super) fn wait(&mut self) -> Result<Started> {
        let mut version = String::new();
        for job in &mut self.jobs[self.ready..] {
            match job.wait()? {
                Started::Ready(said) => version = said,
                missing => return Ok(missing),
            }
        }
        self.ready = self.jobs.len();
        Ok(Started::Ready(version))
    }

    /// All open a loader, all take batches, and when each is warm the window opens.
    pub(super) fn turn(&mut self, turn: Turn<'_>) -> Result<Window> {
        let jobs = &mut self.jobs[..turn.count];
        let groups: Vec<u32> =
            jobs.iter().map(Python::group).chain(turn.server.map(|(_, group)| group)).collect();
        let address = turn.server.map(|(address, _)| address);
        ask(jobs, &Ask::Open { threads: turn.threads, address })?;
        answers::<IgnoredAny>(jobs, OPENING)?;
        ask(jobs, &Ask::Run { skip: turn.skip })?;
        answers::<IgnoredAny>(jobs, RUNNING)?;

        let (begin, before) = (now(), worker::ticks(&groups));
        thread::sleep(turn.window);
        let (end, after) = (now(), worker::ticks(&groups));

        ask(jobs, &Ask::Stop { at: end })?;
        let told = answers(jobs, RUNNING)?;
        ask(jobs, &Ask::Close)?;
        answers::<IgnoredAny>(jobs, RUNNING)?;
        settle(&groups);
        let cpu = after.saturating_sub(before) as f64 / rustix::param::clock_ticks_per_second() as f64;
        Window::new(&told, begin, end, cpu)
    }
}

fn ask(jobs: &mut [Python], ask: &Ask<'_>) -> Result<()> {
    jobs.iter_mut().try_for_each(|job| job.send(ask))
}

fn answers<T: serde::de::DeserializeOwned>(jobs: &mut [Python], patience: Duration) -> Result<Vec<T>> {
    jobs.iter_mut().map(|job| job.receive(patience)).collect()
}

/// Seconds on the clock that Python calls `time.monotonic`.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = r#"
import types
sys.modules["torch"] = types.SimpleNamespace(uint8=None)
class Batch:
    def __len__(self): return 64
    def __getitem__(self, _): return self
    def view(self, _): return self
    def sum(self): return self
    def item(self): return 0
def check(_): pass
def prepare(): return "toy 1"
def later():
    while True:
        time.sleep(0.01)
        yield Batch()
def counted(): return {"preparations": 3, "deliveries": 6}
"#;

    #[test]
    fn jobs_run_together_and_a_turn_can_be_repeated() {
        let config = Config::new(Path::new("data"), Path::new("cache"), 2);
        let mut jobs = Jobs::new(Path::new("python3"), SCRIPT, config);
        jobs.start(2).unwrap();
        assert!(matches!(jobs.wait().unwrap(), Started::Ready(version) if version == "toy 1"));
        let turn = Turn { count: 2, threads: 1, server: None, skip: 2, window: Duration::from_millis(200) };
        for count in [1, 2] {
            let window = jobs.turn(Turn { count, ..turn }).unwrap();
            assert!(window.samples_per_s() > 64.0 * count as f64, "{window:?}");
            assert_eq!(window.preparations_per_delivery(), Some(0.5));
        }
    }
}
