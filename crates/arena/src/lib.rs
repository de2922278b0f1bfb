//! Memory that other parts of the program lend and map.
//!
//! [`Mapping`] is the only mapping of files (our own index, never user data: a truncated user file must
//! be an error, not a SIGBUS). [`Buffer`] is the memory of one batch; [`Cut`] hands its pieces to many
//! threads, each exactly once, so that filling a batch in parallel needs no `unsafe` outside this crate.

mod buffer;
mod cut;
mod map;

pub use buffer::Buffer;
pub use cut::{Cut, Piece};
pub use map::Mapping;
