//! What to draw and what to prepare next: pure code, no clock, no I/O, no threads.
//!
//! [`Permutation`] is the keyed order of an epoch, [`Picks`] say of which samples and [`Deal`] for which rank.
//! [`Epoch`] decides which position is prepared next and
//! when a batch may be delivered. [`Received`] is what a job has been given, and so the heart of its
//! state. Everything here is a function of its arguments, so the engine and tests drive the same code.

mod deal;
mod dice;
mod order;
mod permute;
mod picks;
pub mod plan;
mod positions;
mod received;
pub mod share;
pub mod simulate;

pub use deal::{Deal, Place, Rank};
pub use dice::Dice;
pub use order::{Cut, Epoch, Formed};
pub use permute::Permutation;
pub use picks::{Error as PicksError, Picks, Sequence, Weights};
pub use positions::Positions;
pub use received::Received;
