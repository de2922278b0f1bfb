//! `forebay serve`: the daemon that feeds every job of this user from one pool.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use forebay_daemon::{Daemon, Error, Options, log};
use forebay_engine::{CacheMode, Config, DiskConfig, parse_bytes};
use forebay_wire::client::{self, Client};
use forebay_wire::default_socket;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Answer;
use crate::hint::Hinted;

/// A daemon that does not answer by then has not started.
const START: Duration = Duration::from_secs(10);
/// Variables that show GPUs; a loader has no use for one.
const GPUS: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];
/// A longer log of earlier daemons is begun anew.
const LOG: u64 = 1 << 20;

/// Arguments of `forebay serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen; default: forebay.sock in the user's runtime directory.
    #[arg(long, env = "FOREBAY_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Bytes for pools, samples in hand and lent batches, such as 8GB; default: a quarter of what the cgroup
    /// or the machine allows, at most 16 GiB.
    #[arg(long, env = "FOREBAY_MEMORY", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
    /// Worker threads; default: the cores that affinity and cgroup leave.
    #[arg(long, env = "FOREBAY_THREADS")]
    pub(crate) threads: Option<usize>,
    /// What is kept of samples between epochs; auto: as planned from what is measured.
    #[arg(long, env = "FOREBAY_CACHE", value_name = "auto|off|no-evict|encoded|decoded|lru|lru-decoded|E-D-P", value_parser = cache)]
    pub(crate) cache: Option<CacheMode>,
    /// Keep files of slow storage on a local disk, across restarts, up to so many bytes.
    #[arg(long, env = "FOREBAY_DISK", value_name = "DIR:SIZE", value_parser = disk)]
    pub(crate) disk: Option<DiskConfig>,
    /// End after so many seconds without a job; default: never.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,
    /// Start in the background, in a session of its own, and return when it answers. It is no error if one
    /// serves there already.
    #[arg(long)]
    pub(crate) detach: bool,
    /// Where a detached daemon writes what happens; default: daemon.log in the user's state directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Set by --detach: leave the session of whoever started this.
    #[arg(long, hide = true)]
    pub(crate) apart: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|e| e.to_string())
}

fn cache(text: &str) -> Result<CacheMode, String> {
    CacheMode::parse(text).map_err(|e| e.to_string())
}

fn disk(text: &str) -> Result<DiskConfig, String> {
    DiskConfig::parse(text).map_err(|e| e.to_string())
}

impl Serve {
    /// Serves until a signal, `forebay stop`, or idleness ends it.
    pub(crate) fn run(self) -> Result<Answer> {
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        // A detached daemon does not stay in this directory.
        let socket =
            std::path::absolute(&socket).with_context(|| format!("not a path: {}", socket.display()))?;
        if self.detach {
            return self.detach(&socket);
        }
        if self.apart {
            // It fails only for the leader of a group, which is apart enough.
            let _ = rustix::process::setsid();
        }
        // Jobs come and go; what was made for one is there for the next.
        let config = Config::resolve(self.memory, self.threads, self.cache, self.disk.clone())?;
        let config = Config { keep: true, ..config };
        let (memory, threads) = (config.memory, config.threads);
        // When memory runs out a loader is the one to go: its jobs start another.
        let _ = fs::write("/proc/self/oom_score_adj", "500");
        // Before any thread starts, so that all of them leave signals to this one.
        let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot watch for signals")?;
        let idle_exit = self.idle_exit.map(Duration::from_secs);
        let daemon = match Daemon::bind(Options { socket: socket.clone(), config, idle_exit }) {
            Ok(daemon) => daemon,
            Err(Error::Taken(path)) => {
                eprintln!("a daemon already serves {}; `forebay status` shows it", path.display());
                return Ok(Answer::No);
            }
            Err(error) => return Err(error.into()),
        };
        log(format!(
            "serves {} with {:.2} GB and {} threads",
            socket.display(),
            memory as f64 / 1e9,
            threads
        ));
        let (stop, handle) = (daemon.stop(), signals.handle());
        let watcher = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                log(format!("ends: signal {signal}"));
                stop.tell();
            }
        });
        let served = daemon.run();
        handle.close();
        let _ = watcher.join();
        served.context("the daemon failed")?;
        Ok(Answer::Yes)
    }

    fn detach(&self, socket: &Path) -> Result<Answer> {
        match Client::connect(socket) {
            Ok(_) => {
                let asked = self.memory.is_some() || self.threads.is_some() || self.cache.is_some();
                if asked || self.disk.is_some() {
                    eprintln!(
                        "a daemon already serves {}, with the memory, threads, cache and disk it was started with; \
                         `forebay status` shows it",
                        socket.display()
                    );
                }
                return Ok(Answer::Yes);
            }
            // It has another version.
            Err(error @ client::Error::Fault(_)) => return Err(error.into()),
            Err(_) => {}
        }
        let path = self.log.clone().map_or_else(log_path, Ok)?;
        let mut child = self.spawn(socket, &path)?;
        let start = Instant::now();
        let mut ended = None;
        loop {
            if Client::connect(socket).is_ok() {
                return Ok(Answer::Yes);
            }
            // Another one may have been faster; then that one answers soon.
            ended = ended.or(child.try_wait()?);
            let failed = ended.filter(|status| status.code() != Some(1));
            if failed.is_some() || start.elapsed() > START {
                let last = fs::read_to_string(&path).unwrap_or_default();
                let last = last.lines().rev().take(5).collect::<Vec<_>>();
                let said = last.into_iter().rev().collect::<Vec<_>>().join("\n");
                let hint = format!("its log is {}", path.display());
                bail!(Hinted::new(format!("the daemon did not start:\n{said}"), hint));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The same program again, in the background.
    fn spawn(&self, socket: &Path, log: &Path) -> Result<Child> {
        let program = std::env::current_exe().context("cannot find this program")?;
        if let Some(dir) = log.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let long = fs::metadata(log).is_ok_and(|meta| meta.len() > LOG);
        let open = OpenOptions::new().create(true).write(true).append(!long).truncate(long).open(log);
        let out = open.with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = match scope() {
            Some(mut scope) => {
                scope.arg(program);
                scope
            }
            None => Command::new(program),
        };
        command.arg("serve").arg("--apart").arg("--socket").arg(socket);
        for (flag, value) in [
            ("--memory", self.memory.map(|bytes| bytes.to_string())),
            ("--threads", self.threads.map(|threads| threads.to_string())),
            ("--cache", self.cache.map(|mode| mode.to_string())),
            ("--idle-exit", self.idle_exit.map(|seconds| seconds.to_string())),
        ] {
            command.args(value.map(|value| [flag.to_string(), value]).into_iter().flatten());
        }
        if let Some(DiskConfig { dir, bytes }) = &self.disk {
            let mut value = dir.as_os_str().to_owned();
            value.push(format!(":{bytes}"));
            command.arg("--disk").arg(value);
        }
        command.envs(GPUS.map(|name| (name, "")));
        command.current_dir("/").stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        command.spawn().context("cannot start the daemon")
    }
}

/// A scope of the user's systemd, so that a job scheduler or a closed login does not end the daemon with the
/// process that happened to start it; where there is no such systemd, none.
fn scope() -> Option<Command> {
    let make = || {
        let mut command = Command::new("systemd-run");
        command.args(["--user", "--scope", "--quiet", "--collect", "--"]);
        command
    };
    if !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    let mut trial = make();
    trial.arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = trial.spawn().ok()?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success().then(make);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn log_path() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    let state = state.ok_or_else(|| Hinted::new("there is no place for a log", "set HOME, or pass --log"))?;
    Ok(state.join("forebay/daemon.log"))
}
