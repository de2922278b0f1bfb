//! Processes that load the same data at the same time: [`Jobs`].

use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::script::{Config, Python, Started};
use super::side::settle;
use super::window::Window;
use crate::worker;

/// Eight jobs may compile on two cores.
const OPENING: Duration = Duration::from_secs(300);
/// For a few batches of the slowest job.
const RUNNING: Duration = Duration::from_secs(120);

/// How a turn goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn<'a> {
    /// Processes that are measured.
    pub(crate) count: usize,
    /// One more that is not.
    pub(crate) beside: Option<Beside>,
    /// Threads or worker processes of each.
    pub(crate) threads: usize,
    /// Where what they share is found, and the process group that shares it.
    pub(crate) server: Option<(&'a str, u32)>,
    /// Batches that each takes before the window opens.
    pub(crate) skip: usize,
    /// How long the window is open.
    pub(crate) window: Duration,
}

/// A job that runs beside those that are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Beside {
    /// It pauses after each batch.
    Slow(Duration),
    /// It is stopped (SIGSTOP) while it takes batches.
    Stopped,
}

/// To `count` jobs.
#[derive(Debug, Serialize)]
struct Ask<'a> {
    first: usize,
    count: usize,
    #[serde(flatten)]
    what: What<'a>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
enum What<'a> {
    Open { threads: usize, address: Option<&'a str> },
    Run { skip: usize, step: f64 },
    Freeze,
    Thaw,
    Stop { at: f64 },
    Close,
}

/// What each of them says.
#[derive(Debug, Deserialize)]
struct Answers<T> {
    said: Vec<T>,
}

/// Processes with one script, forked by one that leads them.
#[derive(Debug)]
pub(crate) struct Jobs<'a> {
    python: &'a Path,
    script: &'static str,
    config: Config<'a>,
    leader: Option<Python>,
}

impl<'a> Jobs<'a> {
    /// Starts the leader; [`Jobs::wait`] says whether it can run.
    pub(crate) fn open(python: &'a Path, script: &'static str, config: Config<'a>) -> Result<Self> {
        let mut jobs = Self { python, script, config, leader: None };
        jobs.leader = Some(jobs.lead()?);
        Ok(jobs)
    }

    fn lead(&self) -> Result<Python> {
        let parts = [self.script, include_str!("sides/sharing.py")];
        Python::open(self.python, &parts, &self.config)
    }

    /// Waits until imports and conversions are done; after a turn that failed, with a new leader.
    pub(crate) fn wait(&mut self) -> Result<Started> {
        let leader = self.leader.take().map_or_else(|| self.lead(), Ok)?;
        self.leader.insert(leader).wait()
    }

    /// What feeds them, if it is a script too.
    pub(crate) fn producer(&self, count: usize) -> Result<Python> {
        let parts = [include_str!("sides/torch.py"), include_str!("sides/producer.py")];
        Python::open(self.python, &parts, &Config { jobs: count, ..self.config.clone() })
    }

    /// All open a loader, all take batches, and when each is warm the window opens.
    pub(crate) fn turn(&mut self, turn: Turn<'_>) -> Result<Window> {
        if self.leader.is_none()
            && let Started::Missing(why) = self.wait()?
        {
            bail!(why);
        }
        // Jobs of a turn that fails are in an unknown state: they end with their leader.
        let mut leader = self.leader.take().context("no process leads the jobs")?;
        let window = measure(&mut leader, turn)?;
        self.leader = Some(leader);
        Ok(window)
    }
}

fn measure(leader: &mut Python, turn: Turn<'_>) -> Result<Window> {
    let all = 0..turn.count + usize::from(turn.beside.is_some());
    let (measured, other) = (0..turn.count, turn.count..all.end);
    let server: Vec<u32> = turn.server.map(|(_, group)| group).into_iter().collect();
    let jobs = [leader.group()];
    let address = turn.server.map(|(address, _)| address);
    let mut none =
        |range: &Range<usize>, what, patience| ask::<IgnoredAny>(leader, range, what, patience).map(|_| ());
    none(&all, What::Open { threads: turn.threads, address }, OPENING)?;
    if let Some(beside) = turn.beside {
        let step = if let Beside::Slow(step) = beside { step.as_secs_f64() } else { 0.0 };
        none(&other, What::Run { skip: 1, step }, RUNNING)?;
    }
    if turn.beside == Some(Beside::Stopped) {
        none(&other, What::Freeze, RUNNING)?;
    }
    none(&measured, What::Run { skip: turn.skip, step: 0.0 }, RUNNING)?;

    let used = || [worker::ticks(&jobs), worker::ticks(&server)];
    let (begin, before) = (now(), used());
    thread::sleep(turn.window);
    let (end, after) = (now(), used());

    let told = ask(leader, &measured, What::Stop { at: end }, RUNNING)?;
    let mut none = |range: &Range<usize>, what| ask::<IgnoredAny>(leader, range, what, RUNNING).map(|_| ());
    if turn.beside == Some(Beside::Stopped) {
        none(&other, What::Thaw)?;
    }
    if turn.beside.is_some() {
        none(&other, What::Stop { at: 0.0 })?;
    }
    none(&all, What::Close)?;
    settle(&[jobs.as_slice(), &server].concat());
    let seconds = |at: usize| {
        after[at].saturating_sub(before[at]) as f64 / rustix::param::clock_ticks_per_second() as f64
    };
    Window::new(&told, begin, end, [seconds(0), seconds(1)])
}

fn ask<T: DeserializeOwned>(
    leader: &mut Python,
    range: &Range<usize>,
    what: What<'_>,
    patience: Duration,
) -> Result<Vec<T>> {
    leader.send(&Ask { first: range.start, count: range.len(), what })?;
    Ok(leader.receive::<Answers<T>>(patience)?.said)
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
        let mut jobs = Jobs::open(Path::new("python3"), SCRIPT, config).unwrap();
        assert!(matches!(jobs.wait().unwrap(), Started::Ready(version) if version == "toy 1"));
        let window = Duration::from_millis(200);
        let turn = Turn { count: 2, beside: None, threads: 1, server: None, skip: 2, window };
        let slow = Beside::Slow(Duration::from_millis(100));
        for (count, beside) in [(1, None), (2, None), (1, Some(slow)), (1, Some(Beside::Stopped))] {
            let window = jobs.turn(Turn { count, beside, ..turn }).unwrap();
            assert!(window.samples_per_s() > 64.0 * count as f64, "{window:?}");
            assert_eq!(window.preparations_per_delivery(), Some(0.5));
        }
    }
}
