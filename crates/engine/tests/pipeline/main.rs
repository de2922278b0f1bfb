//! The pipeline from folder to batch, on real JPEGs.

mod alone;
mod cache;
mod pictures;
mod ranks;
mod share;
