//! Steps as plain data, their split, fingerprint and coins.
//!
//! A [`Recipe`] is a list of [`Step`]s that can be printed, compared, hashed and shipped. Before any
//! pixel is touched, [`Recipe::draw`] turns it and the *name* of a copy into [`Drawn`]: concrete
//! operations with every random number already in them. What executes the operations (the engine)
//! therefore holds no randomness at all, and the same name always makes the same pixels, whatever the
//! thread, worker or machine.
//!
//! ```
//! use forebay_recipe::{CopyName, Op, Recipe};
//!
//! let recipe = Recipe::from_json(
//!     r#"{"steps": [{"op": "center_crop", "height": 2, "width": 2},
//!                   {"op": "random_horizontal_flip", "p": 0.5}]}"#,
//! )?;
//! let name = CopyName { seed: 0, sample: 7, generation: 0, occurrence: 0 };
//! let drawn = recipe.draw(&name, 4, 4)?;
//! assert_eq!(drawn, recipe.draw(&name, 4, 4)?);
//! assert!(matches!(drawn.ops[0], Op::Crop(_)));
//! # Ok::<(), forebay_recipe::Error>(())
//! ```

mod coins;
mod draw;
mod error;
mod explain;
mod names;
mod sample;
mod split;
mod step;

pub use coins::{Coins, CopyName};
pub use draw::{Drawn, Erasure, Fill, Op, Rect};
pub use error::Error;
pub use names::Names;
pub use sample::{Column, Dtype, Field, Kind, Layout, Span, Values};
pub use split::{Finish, Output, Recipe, Split};
pub use step::{Decode, EraseValue, Filter, PadMode, ResizeTo, Step};
