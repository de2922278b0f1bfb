//! How a job talks to a daemon: messages, frames, and the blocking client.
//!
//! ```text
//!  job                                         daemon
//!  Hello(version) ───────────────────────────▶ checks uid, watches the process
//!  Join(recipe, folder, batch, …) ───────────▶ a job of its engine
//!  Start(epoch, received) ───────────────────▶
//!  Next, Next ───────────────────────────────▶ one batch is always on its way
//!  maps a slot once  ◀──── Batch(slot, columns, + descriptor the first time)
//!  Release(slot) ────────────────────────────▶ the slot is filled again
//! ```
//!
//! The client has no thread and no runtime: it is safe inside any training process. Nothing is shared with
//! the daemon but bytes of finished batches, which it cannot change.

pub mod client;
mod frame;
mod message;
mod peer;
pub mod picks;
mod place;

pub use frame::{FRAME, Frames, Kind, MESSAGE, Sender, Trouble, wait};
pub use message::{
    Answer, Ask, Batch, Column, Done, Facts, Failure, Failures, Fault, FaultKind, Fed, Feed, Hello, Join,
    Joined, Number, Open, Opened, Part, Parts, Picks, Quarantine, Release, Reply, Request, Sharing, Span,
    Start, Status, StatusJob, StatusStream, Wants,
};
pub use peer::Peer;
pub use place::default_socket;

/// Version of the messages. A daemon answers only its own, and `Stop` of every version.
pub const VERSION: u32 = 3;
