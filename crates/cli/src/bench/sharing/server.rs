//! What feeds all jobs of a turn from outside of them: Forebay's daemon, or TensorSocket's producer.
//!
//! Each turn has a new one, so that nothing is left in it from the turn before.

use std::env;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::bench::script::{Config, Python, Started};

/// Enough for a pool of all generated images and the batches of eight jobs.
const MEMORY: &str = "4GB";
const STARTING: Duration = Duration::from_secs(30);
const STOPPING: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);

/// A running one; it ends when dropped.
#[derive(Debug)]
pub(super) enum Server {
    Daemon(Daemon),
    Producer { process: Python, ports: String },
}

impl Server {
    /// What jobs connect to, and its process group.
    pub(super) fn place(&self) -> (&str, u32) {
        match self {
            Self::Daemon(daemon) => (daemon.socket.to_str().unwrap_or_default(), daemon.child.id()),
            Self::Producer { process, ports } => (ports, process.group()),
        }
    }

    /// What it failed with, if it did and can tell.
    pub(super) fn complaint(&mut self) -> Option<String> {
        match self {
            Self::Daemon(daemon) => daemon.has_ended().then(|| daemon.last_words()),
            Self::Producer { process, .. } => process.complaint(),
        }
    }

    /// TensorSocket's producer for `config.jobs` consumers.
    pub(super) fn producer(python: &Path, config: &Config<'_>) -> Result<Self> {
        let parts = [include_str!("../sides/torch.py"), include_str!("../sides/producer.py")];
        let mut process = Python::open(python, &parts, config)?;
        match process.wait()? {
            Started::Ready(ports) => Ok(Self::Producer { process, ports }),
            Started::Missing(why) => bail!(why),
        }
    }
}

/// `forebay serve` in a temporary folder.
#[derive(Debug)]
pub(super) struct Daemon {
    program: PathBuf,
    child: Child,
    socket: PathBuf,
    folder: TempDir,
}

impl Daemon {
    /// Starts this very program as a daemon and waits until it listens.
    pub(super) fn open(threads: usize) -> Result<Self> {
        Self::run(env::current_exe().context("cannot find this program")?, threads)
    }

    fn run(program: PathBuf, threads: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("forebay-").tempdir()?;
        let socket = folder.path().join("socket");
        let child = Command::new(&program)
            .arg("serve")
            .arg("--socket")
            .arg(&socket)
            .args(["--memory", MEMORY, "--threads", &threads.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("stderr"))?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut daemon = Self { program, child, socket, folder };
        let start = Instant::now();
        while UnixStream::connect(&daemon.socket).is_err() {
            if daemon.child.try_wait()?.is_some() || start.elapsed() > STARTING {
                bail!("`forebay serve` does not listen: {}", daemon.last_words());
            }
            thread::sleep(STEP);
        }
        Ok(daemon)
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
        text.lines().rfind(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let stop = Command::new(&self.program)
            .arg("stop")
            .arg("--socket")
            .arg(&self.socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let start = Instant::now();
        while stop.is_ok() && start.elapsed() < STOPPING && !self.has_ended() {
            thread::sleep(STEP);
        }
        if !self.has_ended() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_serve_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "#!/bin/sh\necho \"error: no $1\" >&2\nexit 2\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let error = Daemon::run(program, 2).unwrap_err();
        assert_eq!(error.to_string(), "`forebay serve` does not listen: error: no serve");
    }
}
