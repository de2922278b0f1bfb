//! Many jobs, one engine: a daemon that lends finished batches to the processes of one user.
//!
//! Each connection is one job and has a thread of its own, which waits for the socket, the job's bell, the
//! end of the job's process and the end of the daemon. Nothing that comes through a socket is believed: what
//! no honest client would send ends that connection, with a line in the log, and costs nobody else anything.

mod board;
mod convert;
mod listen;
mod log;
mod scans;
mod session;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::Config;
use forebay_engine::pipeline::Engine;
use forebay_wire::wait;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use board::Board;
use listen::Listener;
pub use log::log;
use scans::Scans;

/// Connections at most, jobs or not; fewer where the system allows few descriptors.
const CONNECTIONS: u64 = 1024;
/// Descriptors of a connection: its socket and process, and a job's bell and slots.
const DESCRIPTORS: u64 = 8;
/// Descriptors for everything else, such as the files that are read.
const OTHERS: u64 = 128;
/// How long a session may take to answer what it was asked when the daemon ends.
const DRAIN: Duration = Duration::from_secs(5);

/// How a daemon is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// Its budget and threads.
    pub config: Config,
    /// End after so long without a job.
    pub idle_exit: Option<Duration>,
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is one already.
    #[error("a daemon already serves {}", .0.display())]
    Taken(PathBuf),
    /// The place is wrong.
    #[error("{}: {why}", path.display())]
    Place {
        /// The socket or its directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system says no.
    #[error("cannot listen at {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The engine cannot start.
    #[error(transparent)]
    Engine(#[from] forebay_engine::Error),
}

/// Tells a daemon to end: rings once, for good.
#[derive(Debug)]
pub struct Stop {
    told: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { told: AtomicBool::new(false), event })
    }

    /// Finish what is asked for, take no more, end.
    pub fn tell(&self) {
        self.told.store(true, Ordering::Release);
        // Nobody reads it, so it stays readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }
}

/// What all sessions share.
#[derive(Debug)]
struct House {
    engine: Arc<Engine>,
    board: Board,
    scans: Scans,
    connections: usize,
    stop: Arc<Stop>,
    started: Instant,
}

impl House {
    /// An engine that met a bug gives no job anything more: another daemon must serve them.
    fn heed(&self, error: &forebay_engine::Error) {
        if let forebay_engine::Error::Panic(bug) = error {
            log(format!("ends: {bug}"));
            self.stop.tell();
        }
    }
}

/// How many connections there are descriptors for, of all that this process may have.
fn connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    // Where it cannot be raised, what is allowed now is what there is.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_ok();
    let allowed = if raised { most } else { limit.current.unwrap_or(most) };
    (allowed.saturating_sub(OTHERS) / DESCRIPTORS).clamp(1, CONNECTIONS) as usize
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Daemon {
    house: Arc<House>,
    listener: Listener,
    idle_exit: Option<Duration>,
}

impl Daemon {
    /// Takes the socket, over from a dead daemon if need be.
    pub fn bind(options: Options) -> Result<Self, Error> {
        let listener = Listener::bind(&options.socket)?;
        let io = |source| Error::Io { path: options.socket.clone(), source };
        let house = House {
            engine: Arc::new(Engine::open(options.config)?),
            board: Board::default(),
            scans: Scans::default(),
            connections: connections(),
            stop: Arc::new(Stop::new().map_err(io)?),
            started: Instant::now(),
        };
        Ok(Daemon { house: Arc::new(house), listener, idle_exit: options.idle_exit })
    }

    /// Ends it from another thread.
    pub fn stop(&self) -> Arc<Stop> {
        self.house.stop.clone()
    }

    /// Serves until told to stop, or until it was idle for long enough.
    pub fn run(self) -> io::Result<()> {
        let mut idle_since = Instant::now();
        while !self.house.stop.is_told() {
            if self.house.board.jobs() > 0 || self.house.scans.any() {
                idle_since = Instant::now();
            } else if self.idle_exit.is_some_and(|longest| idle_since.elapsed() >= longest) {
                log("ends: no job for a while");
                self.house.stop.tell();
                break;
            }
            let soon = self.idle_exit.map(|_| Instant::now() + Duration::from_millis(500));
            let [incoming, _] = wait(
                [(self.listener.as_fd(), PollFlags::IN), (self.house.stop.event.as_fd(), PollFlags::IN)],
                soon,
            )?;
            if incoming {
                self.accept();
            }
        }
        let end = Instant::now() + DRAIN + Duration::from_secs(1);
        while self.house.board.connections() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn accept(&self) {
        let socket = match self.listener.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => {
                log(format!("a connection failed: {error}"));
                // Out of descriptors, most likely: some time may bring some.
                std::thread::sleep(Duration::from_millis(100));
                return;
            }
        };
        if self.house.board.connections() >= self.house.connections {
            log(format!("a connection was refused: there are {} already", self.house.connections));
            return;
        }
        let house = self.house.clone();
        let entry = house.board.enter();
        let spawned = std::thread::Builder::new()
            .name("forebay-session".into())
            .spawn(move || session::run(house, socket, entry));
        if let Err(error) = spawned {
            log(format!("no thread for a connection: {error}"));
        }
    }
}
