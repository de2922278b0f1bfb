//! A Python process that speaks JSON lines: [`Worker`].
//!
//! Scripts are embedded and run from a temporary folder that also keeps what the process prints on
//! stderr, so that a failure can quote it and a chatty library disturbs nothing. The process leads a
//! process group of its own: its CPU time, with that of its own workers, can then be told from others'.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::hint::Hinted;
use crate::interrupt;

/// How often a wait looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// One running script. Dropping it closes its stdin, which ends it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    folder: TempDir,
}

impl Worker {
    /// Runs `script` (its text) under `python` with one JSON argument.
    pub(crate) fn open(python: &Path, script: &str, config: &impl Serialize) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("forebay-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let file = folder.path().join("script.py");
        fs::write(&file, script).with_context(|| format!("cannot write {}", file.display()))?;
        let stderr = File::create(folder.path().join("stderr"))?;
        let mut command = Command::new(python);
        command
            .arg(&file)
            .arg(serde_json::to_string(config)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            // Parallelism comes from a loader's own workers; nested pools would only fight over cores.
            .envs(["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"].map(|name| (name, "1")));
        let mut child = command.spawn().map_err(|error| {
            anyhow!(Hinted::new(
                format!("cannot run {}: {error}", python.display()),
                "name a Python 3.10 or newer with --python or FOREBAY_PYTHON",
            ))
        })?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the process has no stdout")?;
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, stdin, lines, reader: Some(reader), folder })
    }

    /// Sends one command.
    pub(crate) fn send(&mut self, command: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(command)?;
        line.push('\n');
        let stdin = self.stdin.as_mut().context("the process is being stopped")?;
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).with_context(|| self.last_words())
    }

    /// The next line; `None` when the process has closed its stdout.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<Option<T>> {
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            match self.lines.recv_timeout(left.min(LOOK)) {
                Ok(line) => return parse(&line).map(Some),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    bail!("no answer for {} s: {}", patience.as_secs(), self.last_words())
                }
                Err(RecvTimeoutError::Timeout) => interrupt::check()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// As [`Worker::receive`], without waiting.
    pub(crate) fn poll<T: DeserializeOwned>(&mut self) -> Result<Poll<Option<T>>> {
        match self.lines.try_recv() {
            Ok(line) => parse(&line).map(|line| Poll::Ready(Some(line))),
            Err(TryRecvError::Empty) => Ok(Poll::Pending),
            Err(TryRecvError::Disconnected) => Ok(Poll::Ready(None)),
        }
    }

    /// The end of what the process printed on stderr, or a sentence in its place.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read(self.folder.path().join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return "nothing on stderr".into();
        }
        lines[lines.len().saturating_sub(6)..].join("\n    ")
    }

    /// The process group that the process leads; [`ticks`] tells the CPU time of groups.
    pub(crate) fn group(&self) -> u32 {
        self.child.id()
    }

    fn end(&mut self, patience: Duration) {
        drop(self.stdin.take());
        let waited = (0..patience.as_millis() / 20).any(|_| {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
            if !ended {
                thread::sleep(Duration::from_millis(20));
            }
            ended
        });
        // Its own workers can outlive it, so the group is told even after a quiet end.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
        }
        if !waited {
            self.child.wait().ok();
        }
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end(Duration::from_secs(2));
    }
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("not understood: {line}"))
}

/// CPU time that the processes of `groups` have used, in clock ticks, with those that ended.
pub(crate) fn ticks(groups: &[u32]) -> u64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    entries
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter_map(|stat| ticks_of_groups(&stat, groups))
        .sum()
}

/// User and system time in one line of `/proc/*/stat`, of the process and of children it has waited
/// for, if it belongs to one of `groups`.
fn ticks_of_groups(stat: &str, groups: &[u32]) -> Option<u64> {
    // The name in parentheses may hold anything, so fields are counted from behind it.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if !groups.contains(&fields.get(2)?.parse().ok()?) {
        return None;
    }
    fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_stat_line_is_read_behind_the_name() {
        let stat = "77 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 7 1 20 0 1 0";
        assert_eq!(ticks_of_groups(stat, &[7, 42]), Some(183));
        assert_eq!(ticks_of_groups(stat, &[1]), None);
        assert_eq!(ticks_of_groups("nonsense", &[1]), None);
    }

    #[test]
    fn lines_go_both_ways_and_the_end_is_noticed() {
        let script = "import sys\nprint(sys.argv[1], flush=True)\nprint(input(), flush=True)\nprint('bye', file=sys.stderr)";
        let mut worker = Worker::open(Path::new("python3"), script, &"config").unwrap();
        assert_eq!(worker.receive::<String>(PATIENCE).unwrap().as_deref(), Some("config"));
        assert!(worker.poll::<String>().unwrap().is_pending());
        worker.send(&[1, 2]).unwrap();
        assert_eq!(worker.receive::<Vec<i32>>(PATIENCE).unwrap(), Some(vec![1, 2]));
        assert_eq!(worker.receive::<String>(PATIENCE).unwrap(), None);
        assert_eq!(worker.last_words(), "bye");
    }

    #[test]
    fn a_missing_python_comes_with_a_hint() {
        let error = Worker::open(Path::new("/nonexistent/python"), "", &()).unwrap_err();
        assert!(crate::hint::render(&error).contains("hint: name a Python"));
    }
}
