//! What feeds all jobs of a turn from outside of them: Forebay's daemon, or TensorSocket's producer.
//!
//! Each turn has a new one, so that nothing is left in it from the turn before.

use anyhow::{Result, bail};

use crate::bench::script::{Python, Started};
use crate::daemon::Daemon;

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
            Self::Daemon(daemon) => (daemon.socket(), daemon.group()),
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

    /// TensorSocket's producer, once it listens.
    pub(super) fn producer(mut process: Python) -> Result<Self> {
        match process.wait()? {
            Started::Ready(ports) => Ok(Self::Producer { process, ports }),
            Started::Missing(why) => bail!(why),
        }
    }
}
