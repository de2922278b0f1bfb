//! Memory that other parts of the program, and other processes, borrow.
//!
//! [`Mapping`] is the only mapping of files (our own index, never user data: a truncated user file must
//! be an error, not a SIGBUS). [`Buffer`] is the memory of one batch; [`Cut`] hands its pieces to many
//! threads, each exactly once, so that filling a batch in parallel needs no `unsafe` outside this crate.
//!
//! A batch reaches another process without a copy: a lendable [`Buffer`] is a sealed memory file that its
//! maker alone can change, and a [`View`] is the borrower's private mapping of it, in which a borrower may
//! write without anybody else seeing it. Such memory has no limit of its own and belongs to no process
//! when it runs out, so [`Room`] is asked before each one is made.
//!
//! With the feature `bench` there is also a simulated slow device that processes share, `throttle`.

mod buffer;
mod cut;
mod dirty;
mod map;
mod pages;
mod room;
mod slot;
#[cfg(feature = "bench")]
pub mod throttle;
mod view;

pub use buffer::{Buffer, Refused};
pub use cut::{Cut, Piece};
pub use map::Mapping;
pub use room::{Room, Short};
pub use view::View;
