//! Steps as plain data, their split, fingerprint and coins.
//!
//! A [`Recipe`] is a list of [`Step`]s that can be printed, compared, hashed and shipped. Before any
//! pixel is touched, [`Recipe::draw`] turns it and the *name* of a copy into [`Drawn`]: concrete
//! operations with every random number already in them. What executes the operations (the engine)
//! therefore holds no randomness at all, and the same name always makes the same pixels, whatever the
//! thread, worker or machine.

mod coins;
mod draw;
mod error;
mod explain;
mod sample;
mod split;
mod step;

pub use coins::{Coins, CopyName};
pub use draw::{Drawn, Erasure, Fill, Op, Rect};
pub use error::Error;
pub use sample::{Dtype, Field, Kind, Layout};
pub use split::{Finish, Output, Recipe, Split};
pub use step::{Decode, EraseValue, Filter, PadMode, ResizeTo, Step};
