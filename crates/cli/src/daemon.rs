//! `forebay serve` in a temporary folder, for commands that need one of their own: [`Daemon`].

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

const STARTING: Duration = Duration::from_secs(30);
const STOPPING: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);
/// Seconds without a job; importing torch on a cold disk takes less.
const IDLE: &str = "600";

/// A running daemon; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    program: PathBuf,
    child: Child,
    socket: PathBuf,
    folder: TempDir,
}

impl Daemon {
    /// Starts this very program as a daemon, which keeps what `cache` says and reads from a simulated device if
    /// there is one, and waits until it listens.
    pub(crate) fn open(memory: u64, threads: usize, cache: &str, throttle: Option<&Path>) -> Result<Self> {
        let program = env::current_exe().context("cannot find this program")?;
        Self::run(program, memory, threads, cache, throttle)
    }

    fn run(
        program: PathBuf,
        memory: u64,
        threads: usize,
        cache: &str,
        throttle: Option<&Path>,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("forebay-").tempdir()?;
        let socket = folder.path().join("socket");
        let throttle = throttle.map(|file| ("FOREBAY_THROTTLE", file));
        let child = Command::new(&program)
            .envs(throttle)
            .arg("serve")
            .arg("--socket")
            .arg(&socket)
            .args(["--memory", &memory.to_string(), "--threads", &threads.to_string()])
            .args(["--cache", cache])
            // If this program is killed its jobs end, and after them the daemon.
            .args(["--idle-exit", IDLE])
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

    /// Where it listens.
    pub(crate) fn socket(&self) -> &str {
        self.socket.to_str().unwrap_or_default()
    }

    /// The process group that it leads.
    pub(crate) fn group(&self) -> u32 {
        self.child.id()
    }

    /// The end of what it said.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
        text.lines().rfind(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
    }

    /// Whether it is gone.
    pub(crate) fn has_ended(&mut self) -> bool {
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
        let error = Daemon::run(program, 1 << 30, 2, "off", None).unwrap_err();
        assert_eq!(error.to_string(), "`forebay serve` does not listen: error: no serve");
    }
}
