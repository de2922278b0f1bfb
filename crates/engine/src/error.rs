//! What can go wrong, one variant per decision a caller can take.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Shorthand for this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in its life a sample failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Fetching bytes.
    Read,
    /// Bytes to pixels.
    Decode,
    /// Pixels to pixels.
    Augment,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Read => "read",
            Stage::Decode => "decode",
            Stage::Augment => "augment",
        })
    }
}

/// Why one sample could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Size or time differ from the index.
    #[error(
        "the file changed after it was indexed (was {was}, is {is}); open the dataset again to re-index it"
    )]
    Changed {
        /// What the index says.
        was: String,
        /// What the file says.
        is: String,
    },
    /// The file ends before the image does.
    #[error("the image file is truncated")]
    Truncated,
    /// Nothing we know.
    #[error("cannot identify the image file{0}")]
    NotAnImage(String),
    /// A format or variant that is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The codec gave up.
    #[error("corrupt image data: {0}")]
    Corrupt(String),
    /// It would take more memory than a worker may use.
    #[error(
        "it needs {need} bytes but a worker may use {allowed}; raise FOREBAY_MEMORY or forebay.configure(memory=…)"
    )]
    TooLarge {
        /// Bytes needed.
        need: u64,
        /// Bytes allowed.
        allowed: u64,
    },
    /// The recipe does not fit this image.
    #[error("{0}")]
    Recipe(#[from] forebay_recipe::Error),
}

impl Fault {
    /// The same fault for another job.
    pub fn again(&self) -> Fault {
        match self {
            Fault::Io(error) => Fault::Io(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
            Fault::Changed { was, is } => Fault::Changed { was: was.clone(), is: is.clone() },
            Fault::Truncated => Fault::Truncated,
            Fault::NotAnImage(text) => Fault::NotAnImage(text.clone()),
            Fault::Unsupported(text) => Fault::Unsupported(text.clone()),
            Fault::Corrupt(text) => Fault::Corrupt(text.clone()),
            Fault::TooLarge { need, allowed } => Fault::TooLarge { need: *need, allowed: *allowed },
            Fault::Recipe(error) => Fault::Recipe(error.clone()),
        }
    }
}

/// Any failure of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One sample failed; the others are untouched.
    #[error("sample {sample} ({}) failed to {stage}: {fault}", path.display())]
    Sample {
        /// Number in the dataset.
        sample: u64,
        /// Its file.
        path: PathBuf,
        /// Where it failed.
        stage: Stage,
        /// Why.
        #[source]
        fault: Fault,
    },
    /// The dataset is not there or is empty.
    #[error("{0}")]
    NotFound(String),
    /// A file of ours or a folder of the dataset cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file was written by a newer Forebay.
    #[error("{}: version {found} is newer than this Forebay understands ({known}); upgrade Forebay or delete the file", path.display())]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Version in it.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// Another process keeps its files there.
    #[error(
        "{}: another process keeps files there; name another directory, or let processes share a daemon that has it",
        path.display()
    )]
    Taken {
        /// Which directory.
        path: PathBuf,
    },
    /// The budget cannot hold what a job needs to make progress.
    #[error("memory budget: {0}")]
    Budget(String),
    /// Samples of one batch differ in shape.
    #[error(
        "stack expects each tensor to be equal size, but got {first:?} at entry 0 and {other:?} at entry {entry}; crop or resize to one size, or pass collate_fn"
    )]
    Ragged {
        /// Shape of the first sample.
        first: Vec<usize>,
        /// Shape of the odd one.
        other: Vec<usize>,
        /// Its place in the batch.
        entry: usize,
    },
    /// The recipe is wrong.
    #[error(transparent)]
    Recipe(#[from] forebay_recipe::Error),
    /// A state or an argument cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The process was forked after the loader started.
    #[error(
        "this loader was started before the process was forked, and its threads are not in the child; \
         make the loader in the child, or start workers with spawn"
    )]
    Forked,
    /// The engine was stopped.
    #[error("the loader was closed")]
    Closed,
    /// A worker could not go on; it is reported rather than swallowed.
    #[error("a worker thread stopped: {0}")]
    Panic(String),
}
