//! Where samples come from: a folder per class, as torchvision's `ImageFolder` reads it.
//!
//! A dataset is scanned once, in parallel, into an index of fixed records that later opens map; the index
//! lives in the user's cache directory and never in the data. User files are read with `pread`-style
//! calls into a reused buffer and never mapped.

mod dataset;
mod folder;
mod index;
mod scan;
pub(crate) mod throttle;

pub use dataset::Dataset;
pub use folder::{Folder, cache_dir};
pub use scan::EXTENSIONS;
